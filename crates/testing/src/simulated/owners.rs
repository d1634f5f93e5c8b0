//! Ownership index of the garbage collector.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    history::{NamespacedName, ObjectChange},
    object,
    resource::Storage,
};

/// Ownership index by uid.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Location of the live object of a uid.
    pub(super) alive: BTreeMap<String, (Storage, NamespacedName)>,
    pub(super) dependents: BTreeMap<String, BTreeSet<(Storage, NamespacedName)>>,
    /// Deleted owners with dependents. Their type may no longer be served.
    pub(super) gone: BTreeSet<String>,
    /// Dependents of owners whose type is not served.
    pub(super) unclear: BTreeSet<(Storage, NamespacedName)>,
}

impl Owners {
    /// Records a change and returns the objects that may have lost an owner or a dependent.
    pub(super) fn note(&mut self, entry: &ObjectChange) -> Vec<(Storage, NamespacedName)> {
        let place = (Arc::clone(&entry.storage), entry.key.clone());
        let mut suspects = Vec::new();
        let owners = |object: &Option<Arc<Value>>| -> BTreeSet<String> {
            let object = object.as_deref().unwrap_or(&Value::Null);
            let uids = object::owners(object).filter_map(|owner| owner["uid"].as_str());
            uids.map(str::to_owned).collect()
        };
        let (before, after) = (owners(&entry.before), owners(&entry.after));
        for uid in before.difference(&after) {
            if let Some(dependents) = self.dependents.get_mut(uid) {
                dependents.remove(&place);
                if dependents.is_empty() {
                    self.dependents.remove(uid);
                    self.gone.remove(uid);
                }
            }
            // The owner may wait for its dependents.
            suspects.extend(self.alive.get(uid).cloned());
        }
        for uid in after.difference(&before) {
            self.dependents.entry(uid.clone()).or_default().insert(place.clone());
        }
        let uid = object::uid(&entry.last).to_owned();
        match &entry.after {
            Some(_) => {
                self.alive.insert(uid, place.clone());
                if before != after {
                    suspects.push(place);
                }
            }
            None => {
                self.alive.remove(&uid);
                if let Some(dependents) = self.dependents.get(&uid) {
                    suspects.extend(dependents.iter().cloned());
                    self.gone.insert(uid);
                }
            }
        }
        suspects
    }
}
