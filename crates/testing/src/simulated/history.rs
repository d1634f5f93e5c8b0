//! Objects under one resource version, with the history of their changes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;

use super::{object, resource::Storage};

/// Namespace and name; the namespace is empty for cluster-scoped objects.
pub(super) type NamespacedName = (String, String);

/// Number of changes that are kept for watches and old lists. Older ones are dropped, as by a
/// compaction.
const KEPT: usize = 200_000;

/// Store of all objects.
#[derive(Debug, Default)]
pub(super) struct ObjectHistory {
    version: u64,
    objects: BTreeMap<Storage, BTreeMap<NamespacedName, Arc<Value>>>,
    log: VecDeque<ObjectChange>,
    /// Version below which lists have expired.
    compacted: u64,
    /// Versions before which watches of a collection cannot begin.
    floors: BTreeMap<Storage, u64>,
}

/// Change of one object.
#[derive(Clone, Debug)]
pub(super) struct ObjectChange {
    pub(super) version: u64,
    pub(super) storage: Storage,
    pub(super) key: NamespacedName,
    pub(super) before: Option<Arc<Value>>,
    /// Object after the change; `None` for a deletion. The deleted object is in `before`, with the
    /// version of the deletion in `last`.
    pub(super) after: Option<Arc<Value>>,
    pub(super) last: Arc<Value>,
}

impl ObjectHistory {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(super) fn get(&self, storage: &str, key: &NamespacedName) -> Option<&Arc<Value>> {
        self.objects.get(storage)?.get(key)
    }

    pub(super) fn all(
        &self,
        storage: &str,
    ) -> impl Iterator<Item = (&NamespacedName, &Arc<Value>)> {
        self.objects.get(storage).into_iter().flatten()
    }

    pub(super) fn collections(
        &self,
    ) -> impl Iterator<Item = (&Storage, &BTreeMap<NamespacedName, Arc<Value>>)> {
        self.objects.iter()
    }

    /// Writes an object under a new version.
    pub(super) fn put(&mut self, storage: &Storage, mut object: Value) -> ObjectChange {
        self.version += 1;
        object::metadata(&mut object)
            .insert("resourceVersion".to_owned(), self.version.to_string().into());
        let key = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
        let object = Arc::new(object);
        let before = self
            .objects
            .entry(Arc::clone(storage))
            .or_default()
            .insert(key.clone(), Arc::clone(&object));
        self.note(ObjectChange {
            version: self.version,
            storage: Arc::clone(storage),
            key,
            before,
            after: Some(Arc::clone(&object)),
            last: object,
        })
    }

    /// Removes an object; returns `None` if it does not exist.
    pub(super) fn remove(
        &mut self,
        storage: &Storage,
        key: &NamespacedName,
    ) -> Option<ObjectChange> {
        let before = self.objects.get_mut(storage)?.remove(key)?;
        self.version += 1;
        let mut last = Value::clone(&before);
        object::metadata(&mut last)
            .insert("resourceVersion".to_owned(), self.version.to_string().into());
        Some(self.note(ObjectChange {
            version: self.version,
            storage: Arc::clone(storage),
            key: key.clone(),
            before: Some(before),
            after: None,
            last: Arc::new(last),
        }))
    }

    fn note(&mut self, entry: ObjectChange) -> ObjectChange {
        self.log.push_back(entry.clone());
        if self.log.len() > KEPT
            && let Some(oldest) = self.log.pop_front()
        {
            self.compacted = oldest.version;
        }
        entry
    }

    /// Oldest version from which a watch of the collection can begin.
    pub(super) fn floor(&self, storage: &str) -> u64 {
        self.floors.get(storage).copied().unwrap_or(0).max(self.compacted)
    }

    /// Restarts the watch cache of a collection, which expires its older versions for watches.
    pub(super) fn restart_cache(&mut self, storage: &Storage) {
        self.floors.insert(Arc::clone(storage), self.version);
    }

    /// Drops the history before now.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.log.clear();
    }

    /// Sets the version counter, as after a restored backup.
    pub(super) fn reset_version(&mut self, version: u64) {
        self.version = version;
        self.compacted = version;
        self.floors.clear();
        self.log.clear();
    }

    /// Changes of a collection after a version.
    pub(super) fn since(&self, storage: &str, version: u64) -> impl Iterator<Item = &ObjectChange> {
        let begin = self.log.partition_point(|entry| entry.version <= version);
        self.log.range(begin..).filter(move |entry| *entry.storage == *storage)
    }

    /// Returns the collection at a version that is not compacted.
    pub(super) fn at(&self, storage: &str, version: u64) -> BTreeMap<NamespacedName, Arc<Value>> {
        let mut objects = self.objects.get(storage).cloned().unwrap_or_default();
        let begin = self.log.partition_point(|entry| entry.version <= version);
        let undone = self.log.range(begin..).rev().filter(|entry| *entry.storage == *storage);
        for entry in undone {
            match &entry.before {
                Some(before) => objects.insert(entry.key.clone(), Arc::clone(before)),
                None => objects.remove(&entry.key),
            };
        }
        objects
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn widget(name: &str, size: u64) -> Value {
        json!({ "metadata": { "name": name, "namespace": "a" }, "size": size })
    }

    #[test]
    fn collection_can_be_read_at_an_older_version() {
        let storage = Storage::from("widgets.x.test");
        let mut history = ObjectHistory::default();
        history.put(&storage, widget("a", 1));
        history.put(&storage, widget("b", 1));
        let then = history.version();
        history.put(&storage, widget("a", 2));
        history.remove(&storage, &("a".to_owned(), "b".to_owned()));
        history.put(&storage, widget("c", 1));

        let was = history.at(&storage, then);

        let seen: Vec<_> = was.values().map(|it| (object::name(it), &it["size"])).collect();
        assert_eq!(seen, [("a", &json!(1)), ("b", &json!(1))]);
        assert_eq!(history.since(&storage, then).count(), 3);
        assert_eq!(history.since("gears.x.test", then).count(), 0);
    }
}
