//! Controllers of CustomResourceDefinitions: accept names, establish types, and delete instances.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    cluster::SimulatedCluster,
    custom::{CLEANUP, Custom, condition, group_versions, is_true},
    delete::Deletion,
    history::{NamespacedName, ObjectChange},
    job::Job,
    object,
    refusal::Refusal,
    resource::{CRDS, Storage},
};

impl SimulatedCluster {
    /// Returns 429 until the watch cache of a custom type is filled.
    pub(super) fn check_cache(&mut self, storage: &str, pages: bool) -> Result<(), Refusal> {
        let (now, ready_after) = (self.now, self.delays.storage_ready);
        let Some(custom) = self.custom.get_mut(storage) else { return Ok(()) };
        if custom.cache_ready.is_none() {
            // The first request starts the cache, which has no older versions.
            self.history.restart_cache(&storage.into());
        }
        let ready = *custom.cache_ready.get_or_insert(now.saturating_add(ready_after));
        // Later pages are read past the cache.
        if now < ready && !pages { Err(Refusal::initializing()) } else { Ok(()) }
    }

    /// Delay of a create.
    pub(super) fn create_hold(&self, storage: &str) -> Option<Duration> {
        let custom = self.custom.get(storage)?;
        let age = self.now.saturating_sub(custom.established_at);
        let hold = self.delays.create_hold;
        (!hold.is_zero() && age < hold).then_some(hold)
    }

    pub(super) fn notice_crd(&mut self, entry: &ObjectChange) {
        let name = &entry.key.1;
        let storage: Storage = name.as_str().into();
        if let Some(before) = &entry.before {
            let moved = |path| before.pointer(path) != entry.last.pointer(path);
            let renamed = moved("/status/acceptedNames");
            if entry.after.is_none() || moved("/spec") || renamed {
                self.tear_down(&storage);
            }
            if renamed && entry.after.is_some() {
                // The change may have released a name.
                self.recheck_other_names(entry);
            }
        }
        let Some(crd) = &entry.after else {
            self.custom.remove(&storage);
            self.sync_api_services();
            self.recheck_other_names(entry);
            return;
        };
        let mut custom = Custom::of(crd);
        let before = self.custom.get(&storage);
        custom.cache_ready = before.and_then(|before| before.cache_ready);
        custom.established_at = match before {
            Some(before) if before.established => before.established_at,
            // The condition's time has no fraction of a second, and the delay counts from it.
            _ => self.now.saturating_sub(self.part_of_second()),
        };
        self.custom.insert(Arc::clone(&storage), custom);
        let served_before = entry.before.as_deref().map(group_versions);
        let served = group_versions(crd);
        if served_before.is_none() {
            // No entry is stale here; a scan of all CRDs for each new one would be slow.
            for (version, group) in served {
                self.announce(version, group, "true");
            }
        } else if served_before.as_ref() != Some(&served) {
            self.sync_api_services();
        }
        if object::is_deleting(crd) && object::has_finalizer(crd, CLEANUP) {
            let begun = condition(crd, "Terminating")
                .is_some_and(|it| it["reason"] != "InstanceDeletionPending");
            if !begun {
                let job = Job::DeleteInstances(name.clone());
                self.schedule(self.delays.instance_deletion, job);
            }
        } else if crd["spec"]["names"] != crd["status"]["acceptedNames"] {
            self.schedule(self.delays.names_accepted, Job::AcceptNames(name.clone()));
        }
    }

    /// Empties the cache of a type and ends its watches after a change of the CRD's spec or
    /// accepted names. Open watches end after a short delay, in which running requests may finish.
    fn tear_down(&mut self, storage: &Storage) {
        if let Some(custom) = self.custom.get_mut(storage) {
            custom.forget_cache();
        }
        let job = Job::EndWatches(Arc::clone(storage), self.watches.last());
        self.schedule(self.delays.watch_teardown, job);
    }

    pub(super) fn crd(&self, name: &str) -> Option<Value> {
        let crd = self.history.get(CRDS, &crd_key(name))?;
        Some(Value::clone(crd))
    }

    pub(super) fn set_condition(
        &self,
        crd: &mut Value,
        kind: &str,
        status: &str,
        reason: &str,
        message: &str,
    ) {
        let before = condition(crd, kind);
        let since = match before {
            Some(before) if before["status"] == status => before["lastTransitionTime"].clone(),
            _ => self.timestamp().into(),
        };
        let set = json!({
            "type": kind,
            "status": status,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        });
        let all = object::member(crd, "status").entry("conditions").or_insert_with(|| json!([]));
        let Some(all) = all.as_array_mut() else { return };
        match all.iter_mut().find(|it| it["type"] == kind) {
            Some(found) => *found = set,
            None => all.push(set),
        }
    }

    /// Sets the conditions that the deletion of a CRD writes at once.
    pub(super) fn mark_crd_deleted(&mut self, crd: &mut Value) {
        object::add_finalizer(crd, CLEANUP);
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will \
                       begin soon";
        let reason = "InstanceDeletionPending";
        self.set_condition(crd, "Terminating", "True", reason, message);
    }

    pub(super) fn delete_instances(&mut self, name: &str) {
        let Some(mut crd) = self.crd(name) else { return };
        if !object::is_deleting(&crd) || !object::has_finalizer(&crd, CLEANUP) {
            return;
        }
        let message = "CustomResource deletion is in progress";
        let reason = "InstanceDeletionInProgress";
        self.set_condition(&mut crd, "Terminating", "True", reason, message);
        let established = is_true(&crd, "Established");
        self.commit(&CRDS.into(), crd);
        if established {
            let storage: Storage = name.into();
            let instances: Vec<NamespacedName> =
                self.history.all(&storage).map(|(key, _)| key.clone()).collect();
            for key in instances {
                self.delete_object(&storage, &key, Deletion::default());
            }
        }
        self.await_instances(name);
    }

    pub(super) fn await_instances(&mut self, name: &str) {
        let Some(mut crd) = self.crd(name) else { return };
        if !object::is_deleting(&crd) || !object::has_finalizer(&crd, CLEANUP) {
            return;
        }
        if !is_true(&crd, "Established") {
            let message = "resource was never established";
            self.set_condition(&mut crd, "Terminating", "False", "NeverEstablished", message);
        } else if self.history.all(name).next().is_some() {
            self.schedule(self.delays.instance_check, Job::AwaitInstances(name.to_owned()));
            return;
        } else {
            let reason = "InstanceDeletionCompleted";
            self.set_condition(&mut crd, "Terminating", "False", reason, "removed all instances");
        }
        object::remove_finalizer(&mut crd, CLEANUP);
        let storage: Storage = CRDS.into();
        if object::finalizers(&crd).next().is_some() {
            self.commit(&storage, crd);
        } else {
            self.erase(&storage, &crd_key(name));
        }
    }
}

fn crd_key(name: &str) -> NamespacedName {
    (String::new(), name.to_owned())
}
