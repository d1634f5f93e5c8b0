//! Type statuses: the state of each known type, and since when it holds.

use std::collections::{HashMap, HashSet};

use k8s_openapi::jiff::Timestamp;

use super::{
    TypeStatus,
    catalog::{Catalog, ChangedTypes},
    metrics::{Metrics, TypeStateLabel},
    subscriptions::blank,
};
use crate::kind::{GroupResource, TypeName, TypeRef};

/// Status of each known type at its best version. A type that is no longer known is dropped.
#[derive(Debug, Default)]
pub(super) struct TypeStatuses {
    statuses: HashMap<GroupResource, TypeStatus>,
}

impl TypeStatuses {
    /// Returns the status of a known type at its best version.
    pub(super) fn get(&self, name: &GroupResource) -> Option<&TypeStatus> {
        self.statuses.get(name)
    }

    /// Returns all known types.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&GroupResource, &TypeStatus)> {
        self.statuses.iter()
    }

    /// Evaluates the touched types.
    pub(super) fn update(
        &mut self,
        touched: &ChangedTypes,
        catalog: &Catalog,
        metrics: &Metrics,
        now: Timestamp,
    ) {
        let mut names: HashSet<GroupResource> = touched.types.keys().cloned().collect();
        if touched.all {
            names.extend(catalog.types());
            names.extend(self.statuses.keys().cloned());
        }
        for group in &touched.groups {
            names.extend(catalog.types_of(group));
            names.extend(self.statuses.keys().filter(|name| *name.group == **group).cloned());
        }
        for name in names {
            let old = self.statuses.get(&name);
            let new = catalog.knows(&name).then(|| {
                let judgement = catalog.status(&any_version(&name));
                old.unwrap_or(&blank(now)).after_judgement(judgement, now)
            });
            if let Some(old) = old {
                metrics.types.get_or_create(&TypeStateLabel { state: old.state.word() }).dec();
            }
            match new {
                Some(new) => {
                    metrics.types.get_or_create(&TypeStateLabel { state: new.state.word() }).inc();
                    self.statuses.insert(name, new);
                }
                None => {
                    self.statuses.remove(&name);
                }
            }
        }
    }
}

/// Returns a request for a known type at its best version.
pub(super) fn any_version(name: &GroupResource) -> TypeRef {
    TypeRef {
        group: name.group.clone(),
        version: None,
        name: TypeName::Resource(name.resource.clone()),
    }
}
