//! What an informer knows, for reading.

use super::{Object, ObjectKey};

/// A secondary index that an informer keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {}

/// A reader of an informer's objects. Cheap to clone; keeps nothing alive but the objects.
#[derive(Clone, Debug)]
pub struct Store {}

impl Store {
    /// The object of that name, as last seen.
    pub fn get(&self, _key: &ObjectKey) -> Option<Object> {
        todo!()
    }

    /// Every object; no snapshot while the informer runs.
    pub fn list(&self) -> Vec<Object> {
        todo!()
    }

    /// Objects of one namespace, by index.
    pub fn in_namespace(&self, _namespace: &str) -> Vec<Object> {
        todo!()
    }

    /// Objects that name `uid` as their controller, by index.
    pub fn controlled_by(&self, _uid: &str) -> Vec<Object> {
        todo!()
    }

    /// Objects without a controller, in one namespace or everywhere, by index.
    pub fn orphans(&self, _namespace: Option<&str>) -> Vec<Object> {
        todo!()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// JSON bytes held, headers not counted.
    pub fn bytes(&self) -> usize {
        todo!()
    }
}
