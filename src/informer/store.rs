//! What an informer knows, for reading.
//!
//! Many read, one writes: the informer's task, between two events.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::{Hash, Hasher},
    mem,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;
use tokio::sync::watch;
use tracing::warn;

use super::{Object, ObjectKey};
use crate::guard::{self, Held};

/// Readers of one store seldom meet; the default, four shards a core, is paid by every informer.
const SHARDS: usize = 8;

type Values = dyn Fn(&Object) -> Vec<String> + Send + Sync;

/// A secondary index that an informer keeps: a name and the values under which an object is found.
///
/// Two indexes of one name are the same one to a subscriber; each subscriber has its own.
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
    /// An index of that name. The values must depend on the object alone, and the function must
    /// not read the store; when it panics, the object is found under no value.
    pub fn new(
        name: impl Into<Arc<str>>,
        values: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let values = Held::new(values);
        Self { name: name.into(), values: Arc::new(move |object| values(object)), panics: None }
    }

    /// The same index, whose panics are published there.
    pub(crate) fn reporting(&self, panics: watch::Sender<Option<IndexPanic>>) -> Self {
        Self { panics: Some(panics), ..self.clone() }
    }

    /// Its name.
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

/// A reader of an informer's objects. Cheap to clone; keeps nothing alive: when the informer ends,
/// the store is empty. Its indexes are those of the subscription it comes from, and leave with it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    reader: Option<Reader>,
}

/// Tells the subscribers of one informer apart.
type Reader = u64;

struct Shared {
    objects: DashMap<ObjectKey, Object>,
    // Taken for every write, before `objects`: an index under construction sees no half change.
    indexes: RwLock<Indexes>,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Indexes {
    namespaces: HashMap<Arc<str>, Bucket>,
    owners: HashMap<Arc<str>, Bucket>,
    orphans: HashMap<Option<Arc<str>>, Bucket>,
    // Of each subscriber there is.
    custom: BTreeMap<Reader, Vec<Custom>>,
    next_reader: Reader,
}

type Bucket = HashSet<ByKey>;

/// A subscriber's index, and the objects under each of its values.
type Custom = (Index, HashMap<String, Bucket>);

/// An object that is hashed and compared by its key, so that a bucket entry is one pointer.
struct ByKey(Object);

impl Store {
    /// The object of that name, as last seen.
    pub fn get(&self, key: &ObjectKey) -> Option<Object> {
        self.shared.objects.get(key).map(|entry| entry.value().clone())
    }

    /// Every object; no snapshot while the informer runs.
    pub fn list(&self) -> Vec<Object> {
        self.shared.objects.iter().map(|entry| entry.value().clone()).collect()
    }

    /// Objects of one namespace, by index.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Object> {
        objects(self.read().namespaces.get(namespace))
    }

    /// Objects that name `uid` as their controller, by index.
    pub fn controlled_by(&self, uid: &str) -> Vec<Object> {
        let mut owned = self.owned_by(uid);
        owned.retain(|object| object.controller().is_some_and(|owner| &*owner.uid == uid));
        owned
    }

    /// Objects that name `uid` as an owner, controller or not, by index.
    pub fn owned_by(&self, uid: &str) -> Vec<Object> {
        objects(self.read().owners.get(uid))
    }

    /// Objects without a controller, in one namespace or everywhere, by index.
    pub fn orphans(&self, namespace: Option<&str>) -> Vec<Object> {
        let indexes = self.read();
        match namespace {
            Some(namespace) => objects(indexes.orphans.get(&Some(Arc::from(namespace)))),
            None => indexes.orphans.values().flatten().map(|entry| entry.0.clone()).collect(),
        }
    }

    /// Objects that an index added by [`Store::add_index`] finds under `value`; none when this
    /// subscriber has no index of that name, or has left.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Object> {
        let indexes = self.read();
        let mut own = self.reader.iter().filter_map(|it| indexes.custom.get(it)).flatten();
        let index = own.find(|(index, _)| index.name() == name);
        objects(index.and_then(|(_, buckets)| buckets.get(value)))
    }

    /// Keeps another index, from the objects there are and from now on, until the subscription
    /// ends that this store comes from. Nothing happens after that, or when it has one of that
    /// name. Blocks the informer while it is built.
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

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.shared.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shared.objects.is_empty()
    }

    /// JSON bytes held, headers not counted.
    pub fn bytes(&self) -> usize {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                objects: DashMap::with_shard_amount(SHARDS),
                indexes: RwLock::default(),
                bytes: AtomicUsize::new(0),
            }),
            reader: None,
        }
    }

    /// The same objects for one more subscriber, with indexes of its own.
    pub(super) fn join(&self) -> Self {
        let mut indexes = self.write();
        let reader = indexes.next_reader;
        indexes.next_reader += 1;
        indexes.custom.insert(reader, Vec::new());
        Self { shared: self.shared.clone(), reader: Some(reader) }
    }

    /// The subscriber leaves, and its indexes with it.
    pub(super) fn leave(&self) {
        let left = self.reader.and_then(|reader| self.write().custom.remove(&reader));
        // Not under the lock: what a user's function holds may come back to this store.
        drop(left);
    }

    /// Puts an object in the place of the one of its name, which is returned.
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

    /// Drops every object and the memory of the maps.
    pub(super) fn clear(&self) {
        if self.is_empty() && self.bytes() == 0 {
            return;
        }
        // Freed last, under no lock of the store: what is held here keeps the objects alive.
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
        }
        drop((freed, values, objects));
    }

    // No code of ours panics under this lock, and an index is whole between two statements.
    fn read(&self) -> RwLockReadGuard<'_, Indexes> {
        self.shared.indexes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Indexes> {
        self.shared.indexes.write().unwrap_or_else(PoisonError::into_inner)
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
