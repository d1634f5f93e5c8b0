//! Types that a change of the catalog may concern.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::super::crd::Crd;
use crate::kind::GroupResource;

/// Types whose judgement may have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::discovery) struct ChangedTypes {
    pub(in crate::discovery) all: bool,
    pub(in crate::discovery) groups: HashSet<Arc<str>>,
    /// Types, each with its current and former kinds.
    pub(in crate::discovery) types: HashMap<GroupResource, HashSet<Arc<str>>>,
}

impl ChangedTypes {
    pub(super) fn crd(&mut self, crd: &Crd) {
        let name = GroupResource { group: crd.group.to_string(), resource: crd.plural.to_string() };
        self.types.entry(name).or_default().extend(crd.kinds());
    }

    pub(super) fn group(&mut self, group: &Arc<str>) {
        self.groups.insert(group.clone());
    }

    /// Returns whether no judgement can have changed.
    pub(in crate::discovery) fn is_empty(&self) -> bool {
        !self.all && self.groups.is_empty() && self.types.is_empty()
    }
}
