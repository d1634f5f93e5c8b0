//! Change of one object, as a subscriber receives it.

use std::{borrow::Cow, sync::Arc};

use super::{InterestName, Object, ObjectKey};

/// Change of one object for one subscriber. Changes of the same object between two calls of
/// [`Subscription::next`](super::Subscription::next) are merged.
///
/// An object that the subscription does not keep whole, such as one that no longer matches, is a
/// metadata entry.
///
/// Deleted, then created again, is one change, whose old and new object differ in uid: the handlers
/// and predicates of a controller receive its two parts. Created, then deleted, is also one change,
/// with `new: None`. Of these, only the last ten thousand pending ones are kept.
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
    /// Names of the moving interests that the object concerned at any of the merged changes, before
    /// or after it: those for which to reconcile, by [`MovingInterests`](super::MovingInterests). A
    /// name that has moved to other interests since then is left out, as it reads the store.
    pub interests: Vec<Arc<InterestName>>,
}

impl Delta {
    /// Returns the creation of an object that concerns no named interest.
    pub fn created(object: Object) -> Self {
        let (key, new) = (object.key().clone(), Some(object));
        Self { key, old: None, new, initial: false, interests: Vec::new() }
    }

    /// Returns the parts of a change that are of one object each: a deletion and a creation if the
    /// object was created again with another uid, else the change itself.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Cow<'_, Self>> {
        let parts = match (&self.old, &self.new) {
            (Some(old), Some(new)) if old.header().uid != new.header().uid => {
                let part = |old: Option<&Object>, new: Option<&Object>| {
                    Cow::Owned(Self { old: old.cloned(), new: new.cloned(), ..self.clone() })
                };
                [Some(part(Some(old), None)), Some(part(None, Some(new)))]
            }
            _ => [Some(Cow::Borrowed(self)), None],
        };
        parts.into_iter().flatten()
    }
}
