//! Secondary index of a store, defined by a function of the user.

use std::{
    any::TypeId,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::warn;

use super::{Object, ObjectKey};
use crate::guard::{self, GuardedDrop};

type Values = dyn Fn(&Object) -> Vec<String> + Send + Sync;

/// A secondary index of a store: a name, and a function from an object to its index values.
///
/// To a subscriber, two indexes of the same name are the same one. Each subscriber has its own.
/// ```
/// # use pilotlight::informer::{Index, Object, Store};
/// let team = Index::new("team", |object: &Object| {
///     object.header().labels.get("team").map(str::to_owned).into_iter().collect()
/// });
/// let store = Store::of([]);
/// store.add_index(team);
/// assert!(store.by_index("team", "blue").unwrap().is_empty());
/// ```
#[derive(Clone)]
pub struct Index {
    name: Arc<str>,
    values: Arc<Values>,
    panics: Option<watch::Sender<Option<IndexPanic>>>,
    // True if the function decodes the objects.
    decodes: bool,
    // Type of a function that captures no value; `None` for any other.
    function: Option<TypeId>,
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
        let function = function_of(&values);
        let values = GuardedDrop::new(values);
        let (name, values) = (name.into(), Arc::new(move |object: &Object| values(object)));
        Self { name, values, panics: None, decodes: false, function }
    }

    /// Creates an index of objects that are decoded to their Rust type. An object that cannot be
    /// decoded has no values.
    pub fn typed<K: DeserializeOwned>(
        name: impl Into<Arc<str>>,
        values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let index = Self::new(name, move |object| match object.decode() {
            Ok(object) => values(&object),
            Err(_) => Vec::new(),
        });
        Self { decodes: true, ..index }
    }

    /// Returns whether both have the same function for certain: one is a clone of the other, or both
    /// were created at one place of the code by a function that captures no value.
    pub(crate) fn has_function_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.values, &other.values)
            || (self.function.is_some() && self.function == other.function)
    }

    /// Returns whether the function decodes the objects to a Rust type.
    pub(crate) fn decodes(&self) -> bool {
        self.decodes
    }

    /// Returns the same index, with its panics sent to `panics`.
    pub(crate) fn reporting(&self, panics: watch::Sender<Option<IndexPanic>>) -> Self {
        Self { panics: Some(panics), ..self.clone() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn values(&self, object: &Object) -> Vec<String> {
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

/// Returns the type of a function, if it is the only value of that type.
fn function_of<F: 'static>(function: &F) -> Option<TypeId> {
    (size_of_val(function) == 0).then(TypeId::of::<F>)
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
