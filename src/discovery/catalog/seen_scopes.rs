//! Seen scopes: those in which each kind was served. An owner reference names a kind without its
//! scope.

use std::{collections::HashMap, sync::Arc};

use crate::kind::Scope;

/// Scopes of the kinds of each group, kept for kinds that are gone too.
#[derive(Debug, Default)]
pub(super) struct SeenScopes(HashMap<(Arc<str>, Arc<str>), SeenScope>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenScope {
    One(Scope),
    Both,
}

impl SeenScopes {
    /// Records the scope in which a kind is served.
    pub(super) fn record(&mut self, group: &Arc<str>, kind: &Arc<str>, scope: Scope) {
        let one = SeenScope::One(scope);
        let seen = self.0.entry((Arc::clone(group), Arc::clone(kind))).or_insert(one);
        if *seen != one {
            *seen = SeenScope::Both;
        }
    }

    /// Returns whether a kind was served in another scope than this one.
    pub(super) fn has_other(&self, group: &Arc<str>, kind: &Arc<str>, scope: Scope) -> bool {
        let seen = self.0.get(&(Arc::clone(group), Arc::clone(kind)));
        seen.is_some_and(|seen| *seen != SeenScope::One(scope))
    }
}
