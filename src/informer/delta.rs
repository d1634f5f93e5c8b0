//! Change of one object, as a subscriber receives it.

use super::{Object, ObjectKey};

/// Change of one object for one subscriber. Changes of the same object between two calls of
/// [`Subscription::next`](super::Subscription::next) are merged.
///
/// An object that the subscription does not keep whole, such as one that no longer matches, is a
/// metadata entry.
///
/// Deleted, then created again, is one change, whose old and new object differ in uid. Created,
/// then deleted, is also one change, with `new: None`. Of these, only the last ten thousand pending
/// ones are kept.
/// ```
/// # use pilotlight::{controller::Predicate, informer::Delta};
/// // Changes of a label, creations and deletions.
/// let team = |object: &pilotlight::informer::Object| {
///     object.header().labels.get("team").map(str::to_owned)
/// };
/// let moved = Predicate::new(move |delta: &Delta| {
///     delta.old.as_ref().map(team) != delta.new.as_ref().map(team)
/// });
/// # drop(moved);
/// ```
#[derive(Clone, Debug)]
pub struct Delta {
    /// Key of the object.
    pub key: ObjectKey,
    /// Object that the subscriber saw before, or its last state if it was created and deleted
    /// unseen. `None` if the object is new to the subscriber.
    pub old: Option<Object>,
    /// Current object; `None` if it is deleted.
    pub new: Option<Object>,
    /// True if the object was in the store when the subscriber joined, or in the informer's first
    /// list.
    pub initial: bool,
}
