//! Change of one object that waits for its subscriber.

use super::{
    Delta, Object, ObjectKey,
    interest::{NamedInterests, names},
};

/// Change of one object for one subscriber, which has the interests that it concerns in place of
/// their names: thousands of changes may wait, each for thousands of parents.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: ObjectKey,
    pub(crate) old: Option<Object>,
    pub(crate) new: Option<Object>,
    pub(crate) initial: bool,
    pub(crate) interests: NamedInterests,
}

impl Change {
    /// Returns the change with the names that its interests have now.
    pub(crate) fn into_delta(self) -> Delta {
        let Self { key, old, new, initial, interests } = self;
        Delta { key, old, new, initial, interests: names(&interests) }
    }
}
