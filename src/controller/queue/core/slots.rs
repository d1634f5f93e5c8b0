//! Slots of a work queue: one for each key, found by the hash of the key.

use hashbrown::{HashTable, hash_table::Entry};
use tokio::time::Instant;

use crate::controller::queue::{hashed::Hashed, ready::Ticket};

/// Slab of keys with their states: a key is stored once, and then addressed by its slot.
///
/// Each slot keeps the hash of its key, so that no key is hashed under the lock of the queue.
#[derive(Debug)]
pub(super) struct Slots<K> {
    entries: Vec<SlotEntry<K>>,
    free: Vec<u32>,
    by_hash: HashTable<u32>,
}

/// Key of a slot, and its state.
#[derive(Debug)]
pub(super) struct SlotEntry<K> {
    // `None` while the slot is free.
    pub(super) key: Option<K>,
    hash: u64,
    pub(super) place: SlotPlace,
    // Time of the next resync, with its rank; adds and failures of the key leave it.
    pub(super) resync: Option<(Instant, u64)>,
    pub(super) priority: i32,
    // No other worker gets the key until it is done.
    pub(super) processing: Option<Processing>,
    pub(super) failures: u32,
    // Time of the retry after the last failure, which an add may have preceded.
    pub(super) retry_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotPlace {
    Idle,
    Waiting { until: Instant, number: u64 },
    // `since` is recorded for metrics, and for low priorities.
    Ready { ticket: u64, since: Option<Instant> },
}

/// Processing of a key by a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processing {
    /// Start; recorded for metrics alone.
    pub(super) since: Option<Instant>,
}

impl<K> SlotEntry<K> {
    pub(super) fn holds(&self, it: Ticket) -> bool {
        matches!(self.place, SlotPlace::Ready { ticket, .. } if ticket == it.number)
    }

    pub(super) fn is_ready_since(&self, time: Instant) -> bool {
        matches!(self.place, SlotPlace::Ready { since, .. } if since == Some(time))
    }

    /// Returns the time at which a delayed key becomes ready, and its rank among the keys of the
    /// same time.
    pub(super) fn due(&self) -> Option<(Instant, u64)> {
        let delayed = match self.place {
            SlotPlace::Waiting { until, number } => Some((until, number)),
            SlotPlace::Idle | SlotPlace::Ready { .. } => None,
        };
        match (delayed, self.resync) {
            (Some(delayed), Some(resync)) => Some(delayed.min(resync)),
            (delayed, resync) => delayed.or(resync),
        }
    }

    #[inline]
    fn is_unused(&self) -> bool {
        self.place == SlotPlace::Idle
            && self.processing.is_none()
            && self.resync.is_none()
            && self.failures == 0
    }
}

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), by_hash: HashTable::new() }
    }
}

impl<K> Slots<K> {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> &SlotEntry<K> {
        &self.entries[slot as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut SlotEntry<K> {
        &mut self.entries[slot as usize]
    }

    /// Returns the entries of all slots, free ones included.
    pub(super) fn entries(&self) -> &[SlotEntry<K>] {
        &self.entries
    }

    pub(super) fn entries_mut(&mut self) -> &mut [SlotEntry<K>] {
        &mut self.entries
    }

    /// Returns whether no slot has a key.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Frees a slot whose key is idle and has neither failures nor a resync.
    pub(super) fn free_if_unused(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.is_unused() && entry.key.take().is_some() {
            if let Ok(known) = self.by_hash.find_entry(entry.hash, |other| *other == slot) {
                known.remove();
            }
            self.free.push(slot);
        }
    }
}

impl<K: Eq> Slots<K> {
    pub(super) fn find(&self, key: Hashed<&K>) -> Option<u32> {
        let is_same = |slot: &u32| self.get(*slot).key.as_ref() == Some(key.key);
        self.by_hash.find(key.hash, is_same).copied()
    }

    /// Changes the entry of a key, and frees its slot if the key is then idle and has neither
    /// failures nor a resync. `None` if the key has no slot.
    #[inline]
    pub(super) fn update<T>(
        &mut self,
        key: Hashed<&K>,
        change: impl FnOnce(u32, &mut SlotEntry<K>) -> T,
    ) -> Option<T> {
        let entries = &mut self.entries;
        let is_same = |slot: &u32| entries[*slot as usize].key.as_ref() == Some(key.key);
        let known = self.by_hash.find_entry(key.hash, is_same).ok()?;
        let slot = *known.get();
        let entry = &mut entries[slot as usize];
        let changed = change(slot, entry);
        if entry.is_unused() && entry.key.take().is_some() {
            known.remove();
            self.free.push(slot);
        }
        Some(changed)
    }

    /// Returns the slot of a key, which is a new one if the key has none.
    #[inline]
    pub(super) fn intern(&mut self, Hashed { hash, key }: Hashed<K>) -> u32 {
        let entries = &self.entries;
        let vacant = match self.by_hash.entry(
            hash,
            |slot| entries[*slot as usize].key.as_ref() == Some(&key),
            |slot| entries[*slot as usize].hash,
        ) {
            Entry::Occupied(slot) => return *slot.get(),
            Entry::Vacant(vacant) => vacant,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                // The other fields are those of an unused slot.
                let entry = &mut self.entries[slot as usize];
                entry.key = Some(key);
                entry.hash = hash;
                slot
            }
            None => {
                self.entries.push(SlotEntry {
                    key: Some(key),
                    hash,
                    place: SlotPlace::Idle,
                    resync: None,
                    priority: 0,
                    processing: None,
                    failures: 0,
                    retry_at: None,
                });
                u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 keys fit in memory")
            }
        };
        vacant.insert(slot);
        slot
    }
}
