//! Store: read access to an informer's objects.
//!
//! Many readers, one writer: the informer's task, between two events. The result of a read depends
//! on the reader's own subscription alone, not on the objects that other subscribers keep whole.

mod custom_indexes;
mod interests;
mod parts;
mod writer;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::custom_indexes::CustomIndexes;
use super::{
    CacheShare, Index, Interest, Object, ObjectKey,
    interest::{InterestIndex, SubscriberId},
    objects::{ListNumber, Objects, ScanResult},
    share::{ObjectCount, Shares},
};
use crate::kind::GroupKind;

/// Reader of an informer's objects. Cheap to clone. Does not keep the informer alive: once that has
/// ended and has no subscribers, the store is empty. The indexes belong to the subscription that
/// the reader comes from, and are dropped with it.
///
/// An object that the subscription does not keep whole is returned as a metadata entry, which
/// [`Object::is_whole`] tells apart.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{informer::*, kind::{Scope, ServedType}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In a reconciler: `context.store(&type_ref)`. A unit test makes the store by hand.
/// let maps = ServedType::of::<ConfigMap>(Scope::Namespaced);
/// let object = br#"{"metadata": {"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "7",
///     "labels": {"tier": "web"}}}"#;
/// let store = Store::of([Object::from_json(object.to_vec(), &maps)?]);
///
/// let object = store.get(&ObjectKey::namespaced("ns", "a")).ok_or("not in the cache")?;
/// assert_eq!(object.header().labels.get("tier"), Some("web")); // Parsed once, at arrival.
/// let decoded: ConfigMap = object.decode()?;
/// # drop(decoded);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    shared: Arc<SharedStore>,
    reader: Option<Arc<StoreReader>>,
    // Objects that the subscription keeps whole.
    whole: Arc<InterestIndex<()>>,
    // Stores of the further namespaces of an input of several.
    others: Option<Arc<[Store]>>,
}

/// Error of a read of all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreReadError {
    /// The subscription keeps some objects as metadata entries. Build the input with `.whole()`, or
    /// read one object by its name with `Context::fetch`.
    #[error(
        "this input keeps objects that do not concern it as metadata entries: build it with \
         .whole() to list all objects"
    )]
    MetadataEntries,
    /// The store was read before. `Context::store` has the reason now.
    #[error(
        "the cache has ended since it was read first: its type was removed, or the condition of its \
         input is lost; repeat the reconcile"
    )]
    Gone,
}

/// Error: the subscription has no index of this name, or has ended.
///
/// Build the input with [`Builder::index`](crate::controller::Builder::index).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no index {0:?}: build the input with .index(…), and read a store in its own epoch")]
pub struct UnknownIndex(pub String);

/// Identity of a subscription in the store of its informer.
struct StoreReader {
    id: SubscriberId,
    // Set under the store's lock.
    left: AtomicBool,
    counted: CountedObjects,
}

/// Index that counts the objects that a subscription keeps whole.
enum CountedObjects {
    All,
    None,
    OfKind(GroupKind),
    Of(Vec<Interest>),
}

struct SharedStore {
    state: RwLock<StoreState>,
    len: AtomicUsize,
    entries: AtomicUsize,
    bytes: AtomicUsize,
    accounted: AtomicUsize,
    // Version up to which the objects include every change; 0 if it is not known.
    version: AtomicU64,
    // Set under the lock of the state when the objects of an ended informer are dropped.
    gone: AtomicBool,
}

#[derive(Default)]
struct StoreState {
    objects: Objects,
    indexes: CustomIndexes,
    shares: Shares,
}

impl Store {
    /// Returns the cached object of that name.
    pub fn get(&self, key: &ObjectKey) -> Option<Object> {
        self.parts().find_map(|store| {
            let object = store.stored(key);
            object.map(|object| store.view(object))
        })
    }

    /// Returns all objects, in the order of their keys.
    ///
    /// # Errors
    ///
    /// [`StoreReadError::MetadataEntries`] if the subscription keeps some objects as metadata entries;
    /// [`StoreReadError::Gone`] if the informer has ended, as for [`Store::is_gone`].
    pub fn list(&self) -> Result<Vec<Object>, StoreReadError> {
        self.keeps_all()?;
        self.present(self.all())
    }

    /// Returns the objects of a namespace, in the order of their names.
    ///
    /// # Errors
    ///
    /// As for [`Store::list`].
    pub fn in_namespace(&self, namespace: &str) -> Result<Vec<Object>, StoreReadError> {
        self.keeps_all()?;
        self.present(self.all_in(namespace))
    }

    /// Returns the objects under `value` in an index added by [`Store::add_index`]. Objects that
    /// the subscription keeps as metadata entries are in no index.
    ///
    /// # Errors
    ///
    /// [`UnknownIndex`] if the subscription has no index of that name, or has ended.
    pub fn by_index(&self, name: &str, value: &str) -> Result<Vec<Object>, UnknownIndex> {
        let mut known = true;
        let found = self.of_parts(|store| {
            let found = store.by_own_index(name, value);
            known &= found.is_some();
            found.unwrap_or_default()
        });
        if known { Ok(found) } else { Err(UnknownIndex(name.to_owned())) }
    }

    /// Returns the objects of this part; `None` if it has no index of that name.
    fn by_own_index(&self, name: &str, value: &str) -> Option<Vec<Object>> {
        let state = self.read();
        let buckets = state.indexes.get(self.reader.as_ref()?.id, name)?;
        Some(buckets.get(value).map(|bucket| bucket.all().to_vec()).unwrap_or_default())
    }

    /// Adds an index, over the current and future objects that the subscription keeps whole, until
    /// it ends. No effect after that, or if an index of that name exists. Blocks the informer while
    /// the index is built.
    pub fn add_index(&self, index: Index) {
        self.parts().for_each(|store| store.add_own_index(index.clone()));
    }

    fn add_own_index(&self, index: Index) {
        let mut state = self.write();
        let StoreState { objects, indexes, .. } = &mut *state;
        let reader = self.reader.as_ref().filter(|it| !it.left.load(Ordering::Relaxed));
        if let Some(reader) = reader {
            indexes.add(reader.id, &self.whole, index, objects.iter());
        }
    }

    /// Returns the number of objects, metadata entries included.
    pub fn len(&self) -> usize {
        self.parts().map(Self::cached).sum()
    }

    /// Returns the number of cached objects.
    fn cached(&self) -> usize {
        self.shared.len.load(Ordering::Relaxed)
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the objects were dropped because the informer has ended, as after the removal
    /// of its type: the store is empty, and does not show what the server has. Ask after a read.
    pub fn is_gone(&self) -> bool {
        self.parts().any(|store| {
            let _state = store.read();
            store.shared.gone.load(Ordering::Relaxed)
        })
    }

    /// Returns the number of metadata entries, which depends on all subscribers of the type.
    pub fn entries(&self) -> usize {
        self.parts().map(|store| store.shared.entries.load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes of the JSON as it is stored, without headers. They depend on all
    /// subscribers of the type.
    pub fn bytes(&self) -> usize {
        self.parts().map(|store| store.shared.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns an estimate of the memory that the objects take, in bytes, which depends on all
    /// subscribers of the type.
    pub fn accounted(&self) -> usize {
        self.parts().map(|store| store.shared.accounted.load(Ordering::Relaxed)).sum()
    }

    /// Returns the counts of this subscription; those of the whole store for a reader without one.
    pub fn share(&self) -> CacheShare {
        self.parts().map(Self::own_share).fold(CacheShare::default(), CacheShare::and)
    }

    fn own_share(&self) -> CacheShare {
        let all =
            || ObjectCount { objects: self.cached() - self.entries(), accounted: self.accounted() };
        let state = self.read();
        let count = match self.reader.as_deref() {
            None => all(),
            Some(StoreReader { id, counted, .. }) => match counted {
                CountedObjects::All => all(),
                CountedObjects::None => ObjectCount::default(),
                CountedObjects::OfKind(kind) => state.objects.count_of(kind),
                CountedObjects::Of(_) => state.shares.of(*id),
            },
        };
        let ObjectCount { objects: whole, accounted } = count;
        CacheShare { whole, entries: self.cached().saturating_sub(whole), accounted }
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

    /// Returns all objects; those that the subscription does not keep as entries.
    pub(crate) fn all(&self) -> Vec<Object> {
        self.of_parts(Self::all_here)
    }

    fn all_here(&self) -> Vec<Object> {
        let state = self.read();
        let all: Vec<_> = state.objects.iter().cloned().collect();
        drop(state);
        all.into_iter().map(|object| self.view(object)).collect()
    }

    /// Returns all objects of a namespace, like [`Store::all`].
    pub(crate) fn all_in(&self, namespace: &str) -> Vec<Object> {
        self.of_parts(|store| store.all_here_in(namespace))
    }

    fn all_here_in(&self, namespace: &str) -> Vec<Object> {
        let (state, namespace) = (self.read(), namespace.into());
        let all: Vec<_> = state.objects.in_namespace(&namespace).cloned().collect();
        drop(state);
        all.into_iter().map(|object| self.view(object)).collect()
    }

    fn keeps_all(&self) -> Result<(), StoreReadError> {
        let keeps_all = self.parts().all(|store| store.whole.is_everything());
        if keeps_all { Ok(()) } else { Err(StoreReadError::MetadataEntries) }
    }

    /// Returns what was read, unless the informer has ended, so that nothing was there.
    fn present<T>(&self, found: T) -> Result<T, StoreReadError> {
        if self.is_gone() { Err(StoreReadError::Gone) } else { Ok(found) }
    }

    /// Returns whether the subscription keeps an object whole.
    fn keeps(&self, object: &Object) -> bool {
        self.whole.concerns(object.header())
    }

    /// Returns an object as this subscription keeps it.
    pub(super) fn view(&self, object: Object) -> Object {
        if object.is_whole() && !self.keeps(&object) { object.reduced() } else { object }
    }

    /// Returns a store of these objects, without an informer: to call a reconciler in a test.
    /// [`Store::add_index`] adds the indexes that it reads.
    pub fn of(objects: impl IntoIterator<Item = Object>) -> Self {
        let store = Self::new();
        for object in objects {
            store.put(&object, ListNumber::default());
        }
        store.join(SubscriberId(0), &[Interest::Everything])
    }

    /// Creates an empty store, with a reader of everything.
    pub(super) fn new() -> Self {
        let mut whole = InterestIndex::default();
        whole.insert(&Interest::Everything, ());
        let shared = SharedStore {
            state: RwLock::default(),
            len: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            accounted: AtomicUsize::new(0),
            version: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        };
        let (shared, whole) = (Arc::new(shared), Arc::new(whole));
        Self { shared, reader: None, whole, others: None }
    }

    /// Returns a reader of the same objects for a new subscriber, with its own indexes.
    pub(super) fn join(&self, id: SubscriberId, whole: &[Interest]) -> Self {
        let mut index = InterestIndex::default();
        for interest in whole {
            index.insert(interest, ());
        }
        let counted = match whole {
            [] => CountedObjects::None,
            all if all.contains(&Interest::Everything) => CountedObjects::All,
            [Interest::OwnerKind(kind)] => CountedObjects::OfKind(kind.clone()),
            interests => {
                let StoreState { objects, shares, .. } = &mut *self.write();
                shares.join(id, interests, objects.whole_of(interests));
                CountedObjects::Of(interests.to_vec())
            }
        };
        let reader = Some(Arc::new(StoreReader { id, left: AtomicBool::new(false), counted }));
        let whole = Arc::new(index);
        Self { shared: self.shared.clone(), reader, whole, others: None }
    }

    /// Returns an object as it is stored.
    pub(crate) fn stored(&self, key: &ObjectKey) -> Option<Object> {
        self.read().objects.get(key).cloned()
    }

    pub(super) fn not_in(&self, list: ListNumber) -> Vec<ObjectKey> {
        self.read().objects.not_in(list)
    }

    pub(super) fn after(
        &self,
        key: Option<&ObjectKey>,
        interests: &[Interest],
        examine: usize,
    ) -> ScanResult {
        self.read().objects.after(key, interests, examine)
    }

    /// Returns the number of objects that [`Store::after`] examines in all, at most.
    pub(super) fn scan_len(&self, interests: &[Interest]) -> usize {
        let state = self.read();
        let indexed = |interest: &Interest| {
            let Interest::OwnerKind(kind) = interest else { return None };
            Some(state.objects.count_of(kind).objects)
        };
        interests.iter().map(indexed).sum::<Option<usize>>().unwrap_or_else(|| self.cached())
    }

    /// Returns whether an interest concerns an object that is kept as a metadata entry.
    pub(super) fn has_entries_of(&self, interest: &Interest) -> bool {
        self.entries() > 0
            && (*interest == Interest::Everything || self.read().objects.has_entries_of(interest))
    }

    /// Number of places of objects in the lookup indexes.
    #[cfg(test)]
    pub(super) fn lookup_places(&self) -> usize {
        self.read().objects.lookup_places()
    }

    // No code under this lock panics, and an index is consistent between two statements.
    fn read(&self) -> RwLockReadGuard<'_, StoreState> {
        self.shared.state.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, StoreState> {
        self.shared.state.write()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("objects", &self.len())
            .field("entries", &self.entries())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::{Selection, Selector, fixture::Fixture};

    fn names(mut objects: Vec<Object>) -> Vec<String> {
        objects.sort_by_key(|object| object.key().clone());
        objects.iter().map(|object| object.key().to_string()).collect()
    }

    fn all(namespace: Option<&str>) -> Selection {
        Selection { namespace: namespace.map(Arc::from), selector: Selector::default() }
    }

    fn put(store: &Store, object: &Object) -> Option<Object> {
        store.put(object, 0)
    }

    fn fixture(name: &str) -> Fixture {
        Fixture::new(name).namespace("ns")
    }

    #[test]
    fn objects_are_found_by_namespace_owner_and_orphanhood() {
        let store = Store::new();
        put(&store, &fixture("a").controller("p").object());
        put(&store, &fixture("b").owner("p").object());
        put(&store, &fixture("c").object());
        put(&store, &Fixture::new("d").namespace("other").object());

        assert_eq!(names(store.in_namespace("ns").unwrap()), ["ns/a", "ns/b", "ns/c"]);
        assert_eq!(names(store.controlled_by("p")), ["ns/a"]);
        assert_eq!(names(store.owned_by("p")), ["ns/a", "ns/b"]);
        assert_eq!(names(store.orphans(&all(Some("ns")))), ["ns/b", "ns/c"]);
        assert_eq!(names(store.orphans(&all(None))), ["ns/b", "ns/c", "other/d"]);
        assert_eq!(names(store.in_namespace("nowhere").unwrap()), [""; 0]);
    }

    #[test]
    fn a_changed_object_moves_between_buckets() {
        let store = Store::new();
        put(&store, &fixture("a").controller("p").object());

        put(&store, &fixture("a").controller("q").object());
        assert!(store.controlled_by("p").is_empty());
        assert_eq!(names(store.controlled_by("q")), ["ns/a"]);

        put(&store, &fixture("a").object());
        assert!(store.controlled_by("q").is_empty());
        assert_eq!(names(store.orphans(&all(None))), ["ns/a"]);
    }

    #[test]
    fn a_bucket_reads_the_newest_object() {
        let store = Store::new();
        put(&store, &fixture("a").version(1).object());

        put(&store, &fixture("a").version(2).object());

        assert_eq!(&*store.in_namespace("ns").unwrap()[0].header().resource_version, "2");
    }

    #[test]
    fn an_index_finds_objects_put_before_and_after_it() {
        let store = Store::new().join(SubscriberId(0), &[Interest::Everything]);
        put(&store, &fixture("a").label("app", "x").object());

        let index = Index::new("app", |object| {
            object.header().labels.get("app").map(str::to_owned).into_iter().collect()
        });
        store.add_index(index.clone());
        store.add_index(index);
        put(&store, &fixture("b").label("app", "x").object());
        assert_eq!(names(store.by_index("app", "x").unwrap()), ["ns/a", "ns/b"]);

        put(&store, &fixture("a").label("app", "y").object());
        store.remove(&ObjectKey::namespaced("ns", "b"));
        assert!(store.by_index("app", "x").unwrap().is_empty());
        assert_eq!(names(store.by_index("app", "y").unwrap()), ["ns/a"]);
        assert_eq!(store.by_index("nothing", "x").unwrap_err(), UnknownIndex("nothing".to_owned()));

        let label = |object: &Object, key| object.header().labels.get(key).map(str::to_owned);
        store.add_index(Index::new("app and tier", move |object| {
            let both = label(object, "app").zip(label(object, "tier"));
            both.map(|(app, tier)| format!("{app}/{tier}")).into_iter().collect()
        }));
        for (name, app, tier) in [("c", "x", "1"), ("d", "x", "2"), ("e", "y", "1")] {
            put(&store, &fixture(name).label("app", app).label("tier", tier).object());
        }
        assert_eq!(names(store.by_index("app and tier", "x/1").unwrap()), ["ns/c"]);
    }

    #[test]
    fn a_panicking_index_function_hurts_only_its_index() {
        let store = Store::new().join(SubscriberId(0), &[Interest::Everything]);
        store.add_index(Index::new("bad", |_object| panic!("no index for you")));

        put(&store, &fixture("a").object());

        assert_eq!(names(store.list().unwrap()), ["ns/a"]);
        assert!(store.by_index("bad", "x").unwrap().is_empty());
    }

    #[test]
    fn bytes_are_counted_until_nothing_is_left() {
        let store = Store::new();
        let long = serde_json::json!({"long": "y".repeat(4096)});
        let small = fixture("a").object();
        let large = fixture("a").set("annotations", long).object();
        assert!(large.stored_json().len() < large.json().len(), "stored compressed");

        put(&store, &small);
        assert_eq!(store.bytes(), small.json().len());
        put(&store, &large);
        assert_eq!(store.bytes(), large.stored_json().len());
        store.remove(large.key());
        assert_eq!(store.bytes(), 0);

        put(&store, &large);
        store.clear();
        assert_eq!((store.bytes(), store.len()), (0, 0));
        assert!(!store.read().objects.has_indexes());
    }
}
