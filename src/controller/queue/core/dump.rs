//! Rows of a queue for debugging.

use std::hash::Hash;

use tokio::time::Instant;

use super::{
    Core, effective_priority,
    slots::{SlotEntry, SlotPlace},
};
use crate::controller::queue::{
    item::{QueueRow, QueueRowState},
    lazy_now::LazyNow,
};

/// Rows of a queue with their order.
pub(in crate::controller::queue) struct QueueDump<K>(Vec<(RowOrder, u64, QueueRow<K>)>);

/// State, inverse priority if ready, and time if waiting.
type RowOrder = (u8, i64, Option<Instant>);

impl<K: Clone + Eq + Hash> Core<K> {
    /// Returns the keys in processing, ready or delayed, to be sorted without the lock of the queue.
    pub(in crate::controller::queue) fn dump(&self, now: Instant) -> QueueDump<K> {
        QueueDump(self.slots.entries().iter().filter_map(|entry| row(entry, now)).collect())
    }
}

impl<K> QueueDump<K> {
    /// Returns the keys in processing, then the ready ones in order, then the delayed ones by time.
    pub(in crate::controller::queue) fn sorted(self) -> Vec<QueueRow<K>> {
        let Self(mut rows) = self;
        rows.sort_by_key(|(order, rank, _)| (*order, *rank));
        rows.into_iter().map(|(.., row)| row).collect()
    }
}

fn row<K: Clone>(entry: &SlotEntry<K>, now: Instant) -> Option<(RowOrder, u64, QueueRow<K>)> {
    let key = entry.key.clone()?;
    let due = match entry.place {
        SlotPlace::Ready { ticket, since } => Some((since, ticket)),
        SlotPlace::Idle | SlotPlace::Waiting { .. } => {
            entry.due().map(|(at, rank)| (Some(at), rank))
        }
    };
    let state = match entry.place {
        _ if entry.processing.is_some() => QueueRowState::Running,
        SlotPlace::Ready { .. } => QueueRowState::Ready,
        SlotPlace::Idle | SlotPlace::Waiting { .. } => QueueRowState::Waiting,
    };
    if state == QueueRowState::Waiting && due.is_none() {
        return None; // Known only for its failures.
    }
    let SlotEntry { priority, failures: requeues, .. } = *entry;
    let row = QueueRow { key, priority, state, due: due.and_then(|(at, _)| at), requeues };
    let rank = due.map_or(0, |(_, rank)| rank);
    let order = match state {
        QueueRowState::Running => (0, 0, None),
        QueueRowState::Ready => {
            let now = &mut LazyNow::at(now);
            (1, -i64::from(effective_priority(priority, row.due, now)), None)
        }
        QueueRowState::Waiting => (2, 0, row.due),
    };
    Some((order, rank, row))
}
