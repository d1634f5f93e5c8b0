//! Subscriber: an informer's record of one subscription, with its interests and its scan.

use std::{collections::HashMap, sync::Arc};

use foldhash::quality::RandomState;

use super::{
    Header, Interest, Object, ObjectKey, Store, interest::InterestIndex, mailbox::Mailbox,
};

/// Objects that one step of a scan examines at most, under the informer's lock. Few in tests, which
/// have few objects.
const EXAMINED: usize = if cfg!(test) { 2 } else { 256 };

/// State of a subscriber, locked by its informer.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) mailbox: Arc<Mailbox>,
    /// Interests whose objects are delivered from the first one on.
    pub(super) deliver: Vec<Interest>,
    /// Interests whose objects are kept whole.
    pub(super) whole: Vec<Interest>,
    /// Interests that were set after the join, by their names.
    pub(super) moving: HashMap<(usize, ObjectKey), Vec<Interest>, RandomState>,
    // Number of the requested list that makes its objects whole; 0 if they are.
    fill: u64,
    cursor: Cursor,
}

/// Position of a scan of the store in the order of keys.
#[derive(Debug)]
enum Cursor {
    /// The objects up to this key were scanned; with `None`, no object was.
    At(Option<ObjectKey>),
    /// All objects were scanned, after the list was complete.
    Done,
}

impl Subscriber {
    pub(super) fn new(deliver: Vec<Interest>, whole: Vec<Interest>, fill: u64) -> Self {
        Self {
            mailbox: Arc::new(Mailbox::new()),
            deliver,
            whole,
            moving: HashMap::default(),
            fill,
            cursor: Cursor::At(None),
        }
    }

    /// Returns an index of all interests whose objects are delivered.
    pub(super) fn interests(&self) -> InterestIndex<()> {
        let mut own = InterestIndex::default();
        for interest in self.deliver.iter().chain(self.moving.values().flatten()) {
            own.insert(interest, ());
        }
        own
    }

    /// Delivers a change that concerns the subscriber.
    ///
    /// A change of an object that the scan has not reached is left to the scan. A deletion is
    /// delivered in any case: the subscriber may know the object from the store.
    pub(super) fn deliver(
        &self,
        key: &ObjectKey,
        old: Option<&Object>,
        new: Option<&Object>,
        initial: bool,
    ) {
        match (new, old) {
            _ if !self.is_ahead(key) => self.mailbox.push(key, old.cloned(), new.cloned(), initial),
            (Some(new), _) if self.scans(new.header()) => self.mailbox.wake(),
            (_, Some(old)) if self.scans(old.header()) => match new {
                None => self.mailbox.push_unseen(key, old.clone()),
                Some(new) => self.mailbox.push(key, Some(old.clone()), Some(new.clone()), false),
            },
            (_, _) => self.mailbox.push(key, old.cloned(), new.cloned(), initial),
        }
    }

    /// Records that a list is complete, which satisfies the requests up to number `filled`.
    pub(super) fn complete(&mut self, filled: u64, store: &Store) {
        if self.fill <= filled {
            self.fill = 0;
            self.mailbox.complete();
            // Ends the scan at once if there is nothing more to find. A scan that has not begun is
            // left to the subscriber, since many may wait for this list.
            let may_end = match &self.cursor {
                Cursor::At(None) => self.deliver.is_empty() || store.is_empty(),
                Cursor::At(Some(_)) => true,
                Cursor::Done => false,
            };
            if may_end && self.mailbox.needs_scan() {
                self.scan(store, true);
            }
        }
    }

    /// Scans the next objects; returns whether there were any, or whether the scan has ended now.
    pub(super) fn scan(&mut self, store: &Store, complete: bool) -> bool {
        let Cursor::At(cursor) = &self.cursor else { return false };
        if self.fill > 0 {
            return false;
        }
        let scanned = store.after(cursor.as_ref(), &self.deliver, EXAMINED);
        for object in scanned.objects {
            let key = object.key().clone();
            self.mailbox.push(&key, None, Some(object), true);
        }
        let moved = scanned.last.is_some();
        if moved {
            self.cursor = Cursor::At(scanned.last);
        }
        if scanned.end && complete {
            self.end_scan();
            return true;
        }
        moved
    }

    fn end_scan(&mut self) {
        self.cursor = Cursor::Done;
        self.mailbox.scanned();
    }

    /// Returns whether the scan has not reached a key yet.
    fn is_ahead(&self, key: &ObjectKey) -> bool {
        match &self.cursor {
            Cursor::At(None) => true,
            Cursor::At(Some(scanned)) => key > scanned,
            Cursor::Done => false,
        }
    }

    /// Returns whether the scan finds an object.
    fn scans(&self, object: &Header) -> bool {
        self.deliver.iter().any(|interest| interest.concerns(object))
    }
}
