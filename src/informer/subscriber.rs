//! Subscriber: an informer's record of one subscription, with its interests and its scan.

mod moving;

use std::{collections::HashMap, sync::Arc};

use self::moving::MovingTable;
use super::{
    Change, Header, Interest, ObjectKey, Store,
    interest::{InterestHolder, InterestIndex, NamedInterests, SubscriberId, dedup},
    mailbox::Mailbox,
};

/// Objects that one step of a scan examines at most, under the informer's lock. Few in tests, which
/// have few objects.
const EXAMINED: usize = if cfg!(test) { 2 } else { 256 };

/// State of a subscriber, locked by its informer.
#[derive(Debug)]
pub(super) struct Subscriber {
    id: SubscriberId,
    pub(super) mailbox: Arc<Mailbox>,
    /// Interests whose objects are delivered from the first one on.
    pub(super) deliver: Vec<Interest>,
    /// Interests whose objects are kept whole.
    pub(super) whole: Vec<Interest>,
    /// Interests that were set after the join.
    pub(super) moving: MovingTable,
    // Number of the requested list that makes its objects whole; 0 if they are.
    fill: u64,
    cursor: Cursor,
    // Moving interests in earlier states of objects that the scan has to find.
    owed: HashMap<ObjectKey, NamedInterests>,
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
    pub(super) fn new(
        id: SubscriberId,
        deliver: Vec<Interest>,
        whole: Vec<Interest>,
        fill: u64,
    ) -> Self {
        Self {
            id,
            mailbox: Arc::new(Mailbox::new()),
            deliver,
            whole,
            moving: MovingTable::default(),
            fill,
            cursor: Cursor::At(None),
            owed: HashMap::new(),
        }
    }

    /// Delivers a change that concerns the subscriber.
    ///
    /// A change of an object that the scan has not reached is left to the scan. A deletion is
    /// delivered in any case: the subscriber may know the object from the store.
    pub(super) fn deliver(&mut self, mut change: Change) {
        change.interests.extend(self.take_owed(&change.key));
        match (&change.new, &change.old) {
            _ if !self.is_ahead(&change.key) => self.mailbox.push(change),
            (Some(new), _) if self.scans(new.header()) => {
                if !change.interests.is_empty() {
                    dedup(&mut change.interests);
                    self.owed.insert(change.key, change.interests);
                }
                self.mailbox.wake();
            }
            (None, Some(old)) if self.scans(old.header()) => self.mailbox.push_unseen(change),
            (Some(_), Some(old)) if self.scans(old.header()) => {
                self.mailbox.push(Change { initial: false, ..change });
            }
            (_, _) => self.mailbox.push(change),
        }
    }

    /// Records that a list is complete, which satisfies the requests up to number `filled`.
    pub(super) fn complete(
        &mut self,
        filled: u64,
        store: &Store,
        index: &InterestIndex<InterestHolder>,
    ) {
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
                self.scan(store, true, index);
            }
        }
    }

    /// Scans the next objects; returns whether there were any, or whether the scan has ended now.
    /// `index` is that of the informer.
    pub(super) fn scan(
        &mut self,
        store: &Store,
        complete: bool,
        index: &InterestIndex<InterestHolder>,
    ) -> bool {
        let Cursor::At(cursor) = &self.cursor else { return false };
        if self.fill > 0 {
            return false;
        }
        let scanned = store.after(cursor.as_ref(), &self.deliver, EXAMINED);
        for object in scanned.objects {
            // Most subscribers that scan have no moving interests.
            let index = Some(index).filter(|_| !self.moving.is_empty());
            let interests = index.and_then(|index| index.concerned(self.id, object.header()));
            let mut interests = interests.unwrap_or_default();
            interests.extend(self.take_owed(object.key()));
            dedup(&mut interests);
            let key = object.key().clone();
            let created = Change { key, old: None, new: Some(object), initial: true, interests };
            self.mailbox.push(created);
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

    /// Takes the interests in earlier states of an object that was left to the scan.
    fn take_owed(&mut self, key: &ObjectKey) -> NamedInterests {
        // Nearly always empty.
        if self.owed.is_empty() { Vec::new() } else { self.owed.remove(key).unwrap_or_default() }
    }

    fn end_scan(&mut self) {
        self.cursor = Cursor::Done;
        // Empty: the scan has found each of these objects.
        self.owed = HashMap::new();
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
