//! Store: read access to an informer's objects.
//!
//! Many readers, one writer: the informer's task, between two events.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::{Hash, Hasher},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;
use tracing::warn;

use super::{Object, ObjectKey};
use crate::guard::{self, Held};

/// Shards of a store's map. Its readers seldom collide, and each informer would pay for the default
/// of four shards per core.
const SHARDS: usize = 8;

type Values = dyn Fn(&Object) -> Vec<String> + Send + Sync;

/// A secondary index of a store: a name, and a function from an object to its index values.
///
/// To a subscriber, two indexes of the same name are the same one. Each subscriber has its own.
#[derive(Clone)]
pub struct Index {
    name: Arc<str>,
    values: Arc<Values>,
    panics: Option<watch::Sender<Option<IndexPanic>>>,
}

/// Panic of an index function.
#[derive(Clone, Debug)]
pub(crate) struct IndexPanic {
    /// Name of the index.
    pub(crate) index: Arc<str>,
    /// Object that the function was called with.
    pub(crate) key: ObjectKey,
    /// Message of the panic.
    pub(crate) message: String,
}

impl Index {
    /// Creates an index. The values must depend on the object alone, and the function must not read
    /// the store. If it panics, the object has no values.
    pub fn new(
        name: impl Into<Arc<str>>,
        values: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let values = Held::new(values);
        Self { name: name.into(), values: Arc::new(move |object| values(object)), panics: None }
    }

    /// Returns the same index, with its panics sent to `panics`.
    pub(crate) fn reporting(&self, panics: watch::Sender<Option<IndexPanic>>) -> Self {
        Self { panics: Some(panics), ..self.clone() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn values(&self, object: &Object) -> Vec<String> {
        guard::run(|| (self.values)(object)).unwrap_or_else(|message| {
            warn!(index = %self.name, name = %object.key(), error = message, "index function panicked");
            if let Some(panics) = &self.panics {
                let (index, key) = (self.name.clone(), object.key().clone());
                panics.send_replace(Some(IndexPanic { index, key, message }));
            }
            Vec::new()
        })
    }
}

impl PartialEq for Index {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Index {}

impl Hash for Index {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Index").field(&self.name).finish()
    }
}

/// Reader of an informer's objects. Cheap to clone. Does not keep the informer alive: once that has
/// ended and has no subscribers, the store is empty. The indexes belong to the subscription that
/// the reader comes from, and are dropped with it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    reader: Option<Reader>,
}

/// Identifies a subscriber of one informer.
type Reader = u64;

struct Shared {
    objects: DashMap<ObjectKey, Object>,
    // Locked for every write, before `objects`, so that building an index sees no partial change.
    indexes: RwLock<Indexes>,
    bytes: AtomicUsize,
    // Version up to which the objects include every change; 0 if it is not known.
    version: AtomicU64,
}

#[derive(Default)]
struct Indexes {
    namespaces: HashMap<Arc<str>, Bucket>,
    owners: HashMap<Arc<str>, Bucket>,
    orphans: HashMap<Option<Arc<str>>, Bucket>,
    // Indexes of each current subscriber.
    custom: BTreeMap<Reader, Vec<Custom>>,
    next_reader: Reader,
}

type Bucket = HashSet<ByKey>;

/// A subscriber's index, with the objects under each value.
type Custom = (Index, HashMap<String, Bucket>);

/// An object that is hashed and compared by its key, so that a bucket entry is one pointer.
struct ByKey(Object);

impl Store {
    /// Returns the cached object of that name.
    pub fn get(&self, key: &ObjectKey) -> Option<Object> {
        self.shared.objects.get(key).map(|entry| entry.value().clone())
    }

    /// Returns all objects; not a consistent snapshot while the informer runs.
    pub fn list(&self) -> Vec<Object> {
        self.shared.objects.iter().map(|entry| entry.value().clone()).collect()
    }

    /// Returns the objects of a namespace, by index.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Object> {
        objects(self.read().namespaces.get(namespace))
    }

    /// Returns the objects that name `uid` as their controller, by index.
    pub fn controlled_by(&self, uid: &str) -> Vec<Object> {
        let mut owned = self.owned_by(uid);
        owned.retain(|object| object.controller().is_some_and(|owner| &*owner.uid == uid));
        owned
    }

    /// Returns the objects that name `uid` as an owner, controller or not, by index.
    pub fn owned_by(&self, uid: &str) -> Vec<Object> {
        objects(self.read().owners.get(uid))
    }

    /// Returns the objects without a controller, in one namespace or all, by index.
    pub fn orphans(&self, namespace: Option<&str>) -> Vec<Object> {
        let indexes = self.read();
        match namespace {
            Some(namespace) => objects(indexes.orphans.get(&Some(Arc::from(namespace)))),
            None => indexes.orphans.values().flatten().map(|entry| entry.0.clone()).collect(),
        }
    }

    /// Returns the objects under `value` in an index added by [`Store::add_index`]. Empty if this
    /// subscriber has no index of that name, or has left.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Object> {
        let indexes = self.read();
        let mut own = self.reader.iter().filter_map(|it| indexes.custom.get(it)).flatten();
        let index = own.find(|(index, _)| index.name() == name);
        objects(index.and_then(|(_, buckets)| buckets.get(value)))
    }

    /// Adds an index, over current and future objects, until the subscription of this store ends.
    /// No effect after that, or if an index of that name exists. Blocks the informer while the
    /// index is built.
    pub fn add_index(&self, index: Index) {
        let mut indexes = self.write();
        let own = self.reader.and_then(|reader| indexes.custom.get_mut(&reader));
        let Some(own) = own.filter(|own| own.iter().all(|(known, _)| *known != index)) else {
            return;
        };
        let mut buckets = HashMap::new();
        for entry in &self.shared.objects {
            for value in index.values(entry.value()) {
                insert(&mut buckets, value, entry.value());
            }
        }
        own.push((index, buckets));
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.shared.objects.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.shared.objects.is_empty()
    }

    /// Returns the cached JSON bytes, without headers.
    pub fn bytes(&self) -> usize {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Returns the resourceVersion up to which the objects include every change; 0 if it is not
    /// known, as for a type whose versions are opaque.
    pub(crate) fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Acquire)
    }

    /// Sets that version, after the changes have been applied.
    pub(super) fn set_version(&self, version: u64) {
        self.shared.version.store(version, Ordering::Release);
    }

    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                objects: DashMap::with_shard_amount(SHARDS),
                indexes: RwLock::default(),
                bytes: AtomicUsize::new(0),
                version: AtomicU64::new(0),
            }),
            reader: None,
        }
    }

    /// Returns a reader of the same objects for a new subscriber, with its own indexes.
    pub(super) fn join(&self) -> Self {
        let mut indexes = self.write();
        let reader = indexes.next_reader;
        indexes.next_reader += 1;
        indexes.custom.insert(reader, Vec::new());
        Self { shared: self.shared.clone(), reader: Some(reader) }
    }

    /// Drops the subscriber's indexes.
    pub(super) fn leave(&self) {
        let left = self.reader.and_then(|reader| self.write().custom.remove(&reader));
        // Not under the lock: dropping a user's function may call this store.
        drop(left);
    }

    /// Adds or replaces an object; returns the old one.
    pub(super) fn put(&self, object: &Object) -> Option<Object> {
        let mut indexes = self.write();
        let old = self.shared.objects.insert(object.key().clone(), object.clone());
        if let Some(old) = &old {
            indexes.remove(old);
            self.shared.bytes.fetch_sub(old.json().len(), Ordering::Relaxed);
        }
        indexes.insert(object);
        self.shared.bytes.fetch_add(object.json().len(), Ordering::Relaxed);
        old
    }

    pub(super) fn remove(&self, key: &ObjectKey) -> Option<Object> {
        let mut indexes = self.write();
        let (_, old) = self.shared.objects.remove(key)?;
        indexes.remove(&old);
        self.shared.bytes.fetch_sub(old.json().len(), Ordering::Relaxed);
        Some(old)
    }

    /// Drops all objects and the maps' memory.
    pub(super) fn clear(&self) {
        if self.is_empty() && self.bytes() == 0 {
            return;
        }
        // Freed last, outside the store's locks: these vectors keep the objects alive until then.
        let objects = self.list();
        let mut freed = Indexes::default();
        let mut values = Vec::new();
        {
            let mut indexes = self.write();
            self.shared.objects.clear();
            self.shared.objects.shrink_to_fit();
            for (_, buckets) in indexes.custom.values_mut().flatten() {
                values.push(mem::take(buckets));
            }
            mem::swap(&mut *indexes, &mut freed);
            indexes.custom = mem::take(&mut freed.custom);
            indexes.next_reader = freed.next_reader;
            self.shared.bytes.store(0, Ordering::Relaxed);
            self.set_version(0);
        }
        drop((freed, values, objects));
    }

    // No code under this lock panics, and an index is consistent between two statements.
    fn read(&self) -> RwLockReadGuard<'_, Indexes> {
        self.shared.indexes.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Indexes> {
        self.shared.indexes.write()
    }
}

impl Indexes {
    fn insert(&mut self, object: &Object) {
        let header = object.header();
        if let Some(namespace) = &header.key.namespace {
            insert(&mut self.namespaces, namespace.clone(), object);
        }
        for owner in &header.owners {
            insert(&mut self.owners, owner.uid.clone(), object);
        }
        if object.controller().is_none() {
            insert(&mut self.orphans, header.key.namespace.clone(), object);
        }
        for (index, buckets) in self.custom.values_mut().flatten() {
            for value in index.values(object) {
                insert(buckets, value, object);
            }
        }
    }

    fn remove(&mut self, object: &Object) {
        let header = object.header();
        if let Some(namespace) = &header.key.namespace {
            remove(&mut self.namespaces, namespace, object);
        }
        for owner in &header.owners {
            remove(&mut self.owners, &owner.uid, object);
        }
        if object.controller().is_none() {
            remove(&mut self.orphans, &header.key.namespace, object);
        }
        for (index, buckets) in self.custom.values_mut().flatten() {
            for value in index.values(object) {
                remove(buckets, &value, object);
            }
        }
    }
}

fn insert<K: Eq + Hash>(buckets: &mut HashMap<K, Bucket>, value: K, object: &Object) {
    buckets.entry(value).or_default().replace(ByKey(object.clone()));
}

fn remove<K: Eq + Hash>(buckets: &mut HashMap<K, Bucket>, value: &K, object: &Object) {
    if let Some(bucket) = buckets.get_mut(value) {
        bucket.remove(object.key());
        if bucket.is_empty() {
            buckets.remove(value);
        }
    }
}

fn objects(bucket: Option<&Bucket>) -> Vec<Object> {
    bucket.into_iter().flatten().map(|entry| entry.0.clone()).collect()
}

impl Borrow<ObjectKey> for ByKey {
    fn borrow(&self) -> &ObjectKey {
        self.0.key()
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("objects", &self.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::fixture::Fixture;

    fn names(mut objects: Vec<Object>) -> Vec<String> {
        objects.sort_by_key(|object| object.key().clone());
        objects.iter().map(|object| object.key().to_string()).collect()
    }

    fn fixture(name: &str) -> Fixture {
        Fixture::new(name).namespace("ns")
    }

    #[test]
    fn objects_are_found_by_namespace_owner_and_orphanhood() {
        let store = Store::new();
        store.put(&fixture("a").controller("p").object());
        store.put(&fixture("b").owner("p").object());
        store.put(&fixture("c").object());
        store.put(&Fixture::new("d").namespace("other").object());

        assert_eq!(names(store.in_namespace("ns")), ["ns/a", "ns/b", "ns/c"]);
        assert_eq!(names(store.controlled_by("p")), ["ns/a"]);
        assert_eq!(names(store.owned_by("p")), ["ns/a", "ns/b"]);
        assert_eq!(names(store.orphans(Some("ns"))), ["ns/b", "ns/c"]);
        assert_eq!(names(store.orphans(None)), ["ns/b", "ns/c", "other/d"]);
        assert!(store.in_namespace("nowhere").is_empty());
    }

    #[test]
    fn a_changed_object_moves_between_buckets() {
        let store = Store::new();
        store.put(&fixture("a").controller("p").object());

        store.put(&fixture("a").controller("q").object());
        assert!(store.controlled_by("p").is_empty());
        assert_eq!(names(store.controlled_by("q")), ["ns/a"]);

        store.put(&fixture("a").object());
        assert!(store.controlled_by("q").is_empty());
        assert_eq!(names(store.orphans(None)), ["ns/a"]);
    }

    #[test]
    fn a_bucket_reads_the_newest_object() {
        let store = Store::new();
        store.put(&fixture("a").version(1).object());

        store.put(&fixture("a").version(2).object());

        assert_eq!(&*store.in_namespace("ns")[0].header().resource_version, "2");
    }

    #[test]
    fn an_index_finds_objects_put_before_and_after_it() {
        let store = Store::new().join();
        store.put(&fixture("a").label("app", "x").object());

        let index = Index::new("app", |object| {
            object.header().labels.get("app").map(str::to_owned).into_iter().collect()
        });
        store.add_index(index.clone());
        store.add_index(index);
        store.put(&fixture("b").label("app", "x").object());
        assert_eq!(names(store.by_index("app", "x")), ["ns/a", "ns/b"]);

        store.put(&fixture("a").label("app", "y").object());
        store.remove(&ObjectKey::namespaced("ns", "b"));
        assert!(store.by_index("app", "x").is_empty());
        assert_eq!(names(store.by_index("app", "y")), ["ns/a"]);
        assert!(store.by_index("nothing", "x").is_empty());
    }

    #[test]
    fn a_panicking_index_function_hurts_only_its_index() {
        let store = Store::new().join();
        store.add_index(Index::new("bad", |_object| panic!("no index for you")));

        store.put(&fixture("a").object());

        assert_eq!(names(store.list()), ["ns/a"]);
        assert!(store.by_index("bad", "x").is_empty());
    }

    #[test]
    fn bytes_are_counted_until_nothing_is_left() {
        let store = Store::new();
        let (small, large) = (fixture("a").object(), fixture("a").label("x", "yyyy").object());

        store.put(&small);
        assert_eq!(store.bytes(), small.json().len());
        store.put(&large);
        assert_eq!(store.bytes(), large.json().len());
        store.remove(large.key());
        assert_eq!(store.bytes(), 0);

        store.put(&large);
        store.clear();
        assert_eq!((store.bytes(), store.len()), (0, 0));
        let indexes = store.read();
        assert!(indexes.namespaces.is_empty() && indexes.orphans.is_empty());
    }
}
