//! Garbage collector.

use std::sync::Arc;

use serde_json::Value;

use super::{
    cluster::SimulatedCluster,
    delete::{Deletion, Propagation},
    history::NamespacedName,
    job::Job,
    object,
    resource::Storage,
};

/// State of an owner, as a dependent's reference finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerState {
    There,
    /// Type is not served, so that the state is unknown.
    Unknown,
    /// Deleted in the foreground, after its dependents.
    Waiting,
    Gone,
}

impl SimulatedCluster {
    /// Applies the owner references of one object.
    pub(super) fn collect(&mut self, storage: &Storage, key: &NamespacedName) {
        let Some(object) = self.history.get(storage, key).cloned() else { return };
        if object::is_deleting(&object) {
            if object::has_finalizer(&object, "orphan") {
                self.orphan_dependents(storage, &object);
            } else if object::has_finalizer(&object, "foregroundDeletion") {
                self.delete_dependents(storage, &object);
            }
            return;
        }
        let (mut solid, mut waiting, mut owned) = (false, false, false);
        let mut useless = Vec::new();
        for owner in object::owners(&object) {
            owned = true;
            let uid = owner["uid"].as_str().unwrap_or_default();
            let is = self.owner(key, owner);
            solid |= matches!(is, OwnerState::There | OwnerState::Unknown);
            waiting |= is == OwnerState::Waiting;
            match is {
                OwnerState::There => {}
                OwnerState::Unknown => {
                    self.owners.unclear.insert((Arc::clone(storage), key.clone()));
                }
                OwnerState::Waiting | OwnerState::Gone => useless.push(uid.to_owned()),
            }
        }
        if !owned {
            return;
        }
        if !solid {
            let has_dependents = self.owners.dependents.contains_key(object::uid(&object));
            let propagation = match waiting && has_dependents {
                true => Propagation::Foreground,
                false => Propagation::Background,
            };
            let deletion = Deletion::propagating(propagation);
            self.delete_object(storage, key, deletion);
        } else if !useless.is_empty() {
            self.drop_owners(storage, &object, &useless);
        }
    }

    /// Schedules the dependents of unknown owners again, since more types may be served now.
    pub(super) fn recheck_unknown_owners(&mut self) {
        for (storage, key) in std::mem::take(&mut self.owners.unclear) {
            self.schedule(self.delays.garbage_collection, Job::Collect(storage, key));
        }
    }

    /// Looks up the owner in a dependent's reference.
    fn owner(&self, (namespace, _): &NamespacedName, reference: &Value) -> OwnerState {
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        if self.owners.gone.contains(text("uid")) {
            return OwnerState::Gone;
        }
        let Some(resource) = self.resource_of_kind(text("apiVersion"), text("kind")) else {
            return OwnerState::Unknown;
        };
        if resource.namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot have a namespaced owner.
            return OwnerState::There;
        }
        let namespace = if resource.namespaced { namespace.as_str() } else { "" };
        let key = (namespace.to_owned(), text("name").to_owned());
        let found = self.history.get(&resource.storage, &key);
        match found.filter(|live| object::uid(live) == text("uid")) {
            None => OwnerState::Gone,
            Some(live)
                if object::is_deleting(live)
                    && object::has_finalizer(live, "foregroundDeletion") =>
            {
                OwnerState::Waiting
            }
            Some(_) => OwnerState::There,
        }
    }

    fn dependents(&self, owner: &Value) -> Vec<(Storage, NamespacedName)> {
        let all = self.owners.dependents.get(object::uid(owner));
        all.into_iter().flatten().cloned().collect()
    }

    fn drop_owners(&mut self, storage: &Storage, object: &Value, uids: &[String]) {
        let mut object = object.clone();
        if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|owner| !uids.iter().any(|uid| owner["uid"] == uid.as_str()));
        }
        object::tidy(&mut object);
        self.commit(storage, object);
    }

    fn orphan_dependents(&mut self, storage: &Storage, owner: &Value) {
        let uid = [object::uid(owner).to_owned()];
        for (storage, key) in self.dependents(owner) {
            if let Some(dependent) = self.history.get(&storage, &key).cloned() {
                self.drop_owners(&storage, &dependent, &uid);
            }
        }
        self.drop_finalizer(storage, owner, "orphan");
    }

    fn delete_dependents(&mut self, storage: &Storage, owner: &Value) {
        let mut blocked = false;
        for (storage, key) in self.dependents(owner) {
            let Some(dependent) = self.history.get(&storage, &key).cloned() else { continue };
            let blocks = object::owners(&dependent).any(|it| {
                it["uid"] == object::uid(owner) && it["blockOwnerDeletion"].as_bool() == Some(true)
            });
            blocked |= blocks;
            if !object::is_deleting(&dependent) {
                self.schedule(self.delays.garbage_collection, Job::Collect(storage, key));
            }
        }
        if !blocked {
            self.drop_finalizer(storage, owner, "foregroundDeletion");
        }
    }

    fn drop_finalizer(&mut self, storage: &Storage, object: &Value, finalizer: &str) {
        let key = (object::namespace(object).to_owned(), object::name(object).to_owned());
        let Some(live) = self.history.get(storage, &key) else { return };
        let mut live = Value::clone(live);
        object::remove_finalizer(&mut live, finalizer);
        self.commit_or_finish(storage, live);
    }
}
