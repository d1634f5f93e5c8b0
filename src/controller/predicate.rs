//! Predicates: which changes are worth a look?

use std::sync::Arc;

use kube::core::{Selector, SelectorExt};

use crate::informer::{Delta, Header};

/// Drops changes before they reach a handler.
///
/// The ones that ask whether something changed let every creation and every deletion pass, and
/// also an object that was deleted and created again between two looks. Semantics:
/// `pkg/predicate` of controller-runtime, except where said.
#[derive(Clone)]
pub struct Predicate(Arc<dyn Fn(&Delta) -> bool + Send + Sync>);

impl Predicate {
    /// A predicate by function: `true` lets the change pass.
    pub fn new(pass: impl Fn(&Delta) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(pass))
    }

    /// The specification changed, or the deletion began.
    ///
    /// The server raises the generation of custom resources, and of most built-in types, with
    /// each change of the specification and when a deletion begins. Where a type has no
    /// generation every change passes, since this cannot tell them apart; controller-runtime
    /// drops them all.
    pub fn generation() -> Self {
        Self::changed(|old, new| {
            old.generation != new.generation
                || new.generation == 0
                || old.deletion_timestamp.is_some() != new.deletion_timestamp.is_some()
        })
    }

    /// The object was written: drops what a resync repeats.
    pub fn resource_version() -> Self {
        Self::changed(|old, new| {
            // An aggregated API may give none at all.
            old.resource_version != new.resource_version || new.resource_version.is_empty()
        })
    }

    /// Labels changed.
    pub fn labels() -> Self {
        Self::changed(|old, new| old.labels != new.labels)
    }

    /// Annotations changed.
    pub fn annotations() -> Self {
        Self::changed(|old, new| old.annotations != new.annotations)
    }

    /// The object matches, or did before the change, so that the last match is seen.
    pub fn selector(selector: Selector) -> Self {
        Self::new(move |delta| {
            [&delta.old, &delta.new]
                .into_iter()
                .flatten()
                .any(|object| selector.matches(&object.header().labels.to_map()))
        })
    }

    /// Both let it pass.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(move |delta| self.passes(delta) && other.passes(delta))
    }

    /// One of them lets it pass.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::new(move |delta| self.passes(delta) || other.passes(delta))
    }

    /// Whether the change passes.
    pub fn passes(&self, delta: &Delta) -> bool {
        (self.0)(delta)
    }

    fn changed(changed: impl Fn(&Header, &Header) -> bool + Send + Sync + 'static) -> Self {
        Self::new(move |delta| match (&delta.old, &delta.new) {
            (Some(old), Some(new)) => {
                let (old, new) = (old.header(), new.header());
                old.uid != new.uid || changed(old, new)
            }
            (None, _) | (_, None) => true,
        })
    }
}

/// What it let pass is dropped, and the other way round.
impl std::ops::Not for Predicate {
    type Output = Self;

    fn not(self) -> Self {
        Self::new(move |delta| !self.passes(delta))
    }
}

impl std::fmt::Debug for Predicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Predicate")
    }
}
