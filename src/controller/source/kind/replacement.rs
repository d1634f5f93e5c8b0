//! Last changes of a subscription: as deletions, or as changes to its replacement.

use std::collections::HashSet;

use crate::informer::{Change, Subscription};

/// Returns the last changes of a subscription whose objects are gone: the pending ones, then a
/// deletion of each other object.
pub(super) fn last_changes(subscription: &Subscription) -> Vec<Change> {
    // The informer may continue. An object that it removes after this read is a pending deletion.
    let objects = subscription.concerned();
    let mut changes = subscription.take_pending();
    let deleted = changes.iter().filter(|change| change.new.is_none());
    let deleted: HashSet<_> = deleted.map(|change| change.key.clone()).collect();
    let others = objects.into_iter().filter(|object| !deleted.contains(&object.key));
    changes.extend(others.map(|it| Change { old: it.new, new: None, initial: false, ..it }));
    changes
}

/// Returns the last change of a held subscription as the change to its replacement; `None` if the
/// object is the same, or was not delivered. A changed uid is a deletion and a creation, as in any
/// change.
pub(super) fn replaced(change: Change, replacement: &Subscription) -> Option<Change> {
    let old = change.old?;
    let new = change.new.or_else(|| replacement.store().get(&change.key));
    // Most objects: their interests are not looked up.
    if new.as_ref().is_some_and(|new| new.is_same_version(&old)) {
        return None;
    }
    let mut interests = change.interests;
    let of_new = new.as_ref().map(|new| replacement.interests_in(new.header()));
    interests.extend(of_new.unwrap_or_default());
    Some(Change { key: change.key, old: Some(old), new, initial: false, interests })
}

/// Returns the objects that concern a replacement and were not delivered before: created since, or
/// by a pending change.
pub(super) fn created(changes: &[Change], replacement: &Subscription) -> Vec<Change> {
    let of = |is_new: bool| {
        let changes = changes.iter().filter(move |change| change.old.is_none() == is_new);
        changes.map(|change| &change.key).collect::<HashSet<_>>()
    };
    let (known, pending) = (of(false), of(true));
    let objects = replacement.concerned().into_iter();
    objects.filter(|it| !known.contains(&it.key) || pending.contains(&it.key)).collect()
}
