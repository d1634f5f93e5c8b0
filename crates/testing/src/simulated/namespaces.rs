//! Namespaces and their termination.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    cluster::SimulatedCluster,
    delete::Deletion,
    history::{NamespacedName, ObjectChange},
    job::Job,
    object,
    resource::NAMESPACES,
    resource::Storage,
};

/// Interval between two checks of a terminating namespace when no delay is set.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Conditions of a terminating namespace: type, and reason and message in the good state.
const CONDITIONS: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

impl SimulatedCluster {
    pub(super) fn found_namespace(&mut self, name: &str) {
        let metadata = json!({
            "name": name,
            "uid": self.new_uid(),
            "creationTimestamp": self.timestamp(),
            "labels": { "kubernetes.io/metadata.name": name },
        });
        let mut namespace = json!({ "metadata": metadata });
        default_namespace(&mut namespace);
        self.commit(&NAMESPACES.into(), namespace);
    }

    pub(super) fn notice_namespace(&mut self, entry: &ObjectChange) {
        let ends = |object: &Option<Arc<Value>>| object.as_deref().is_some_and(object::is_deleting);
        if ends(&entry.after) && !ends(&entry.before) {
            let job = Job::Drain(entry.key.1.clone());
            self.schedule(self.delays.namespace_drain, job);
        }
    }

    /// Deletes the contents of a terminating namespace, reports what remains, and removes it once
    /// empty.
    pub(super) fn drain_namespace(&mut self, name: &str) {
        let key = (String::new(), name.to_owned());
        let Some(namespace) = self.history.get(NAMESPACES, &key).cloned() else { return };
        if !object::is_deleting(&namespace) || namespace["spec"]["finalizers"].is_null() {
            return;
        }
        for (storage, key) in self.contents(name) {
            self.delete_object(&storage, &key, Deletion::default());
        }
        let rest = self.contents(name);
        let mut next = Value::clone(&namespace);
        self.say_what_remains(&mut next, &rest);
        if next != *namespace {
            self.commit(&NAMESPACES.into(), next.clone());
        }
        if rest.is_empty() {
            object::member(&mut next, "spec").remove("finalizers");
            self.commit_or_finish(&NAMESPACES.into(), next);
        } else {
            let again = self.delays.namespace_drain.max(CHECK_INTERVAL);
            self.schedule(again, Job::Drain(name.to_owned()));
        }
    }

    fn contents(&self, namespace: &str) -> Vec<(Storage, NamespacedName)> {
        let all = self.history.collections().flat_map(|(storage, objects)| {
            let inside = objects.keys().filter(|key| key.0 == namespace);
            inside.map(|key| (Arc::clone(storage), key.clone()))
        });
        all.collect()
    }

    fn say_what_remains(&self, namespace: &mut Value, rest: &[(Storage, NamespacedName)]) {
        let mut types: BTreeMap<String, usize> = BTreeMap::new();
        let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
        for (storage, key) in rest {
            // The core group has an empty name, which a dot precedes.
            let dot = if storage.contains('.') { "" } else { "." };
            *types.entry(format!("{storage}{dot}")).or_default() += 1;
            let object = self.history.get(storage, key);
            for finalizer in object.into_iter().flat_map(|it| object::finalizers(it)) {
                *finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
        let said = |counts: &BTreeMap<String, usize>, word: &str| {
            let each = counts
                .iter()
                .map(|(name, count)| format!("{name} {word} {count} resource instances"));
            each.collect::<Vec<_>>().join(", ")
        };
        let now = self.timestamp();
        let before = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let conditions = CONDITIONS.iter().map(|(kind, reason, message)| {
            let (status, reason, message) = match *kind {
                "NamespaceContentRemaining" if !types.is_empty() => {
                    let message = format!("Some resources are remaining: {}", said(&types, "has"));
                    ("True", "SomeResourcesRemain", message)
                }
                "NamespaceFinalizersRemaining" if !finalizers.is_empty() => {
                    let message = format!(
                        "Some content in the namespace has finalizers remaining: {}",
                        said(&finalizers, "in")
                    );
                    ("True", "SomeFinalizersRemain", message)
                }
                _ => ("False", *reason, (*message).to_owned()),
            };
            let old = before.iter().find(|it| it["type"] == *kind && it["status"] == status);
            let since = old.map_or(now.as_str().into(), |it| it["lastTransitionTime"].clone());
            json!({
                "type": kind,
                "status": status,
                "lastTransitionTime": since,
                "reason": reason,
                "message": message,
            })
        });
        let conditions: Vec<_> = conditions.collect();
        object::member(namespace, "status").insert("conditions".to_owned(), conditions.into());
    }
}

/// Sets the server's defaults in a namespace.
pub(super) fn default_namespace(namespace: &mut Value) {
    let name = object::name(namespace).to_owned();
    let metadata = object::metadata(namespace);
    object::fields(metadata.entry("labels").or_insert_with(|| json!({})))
        .insert("kubernetes.io/metadata.name".to_owned(), name.into());
    let spec = object::member(namespace, "spec");
    spec.entry("finalizers").or_insert_with(|| json!(["kubernetes"]));
    object::member(namespace, "status").entry("phase").or_insert_with(|| "Active".into());
}
