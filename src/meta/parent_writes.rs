//! Writes for each parent: their limit, what the server stored of the last status, the record of a
//! sync that needed none, and the children that needed none.

use std::{collections::HashMap, mem::take, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{
    equal_children::EqualChildren,
    fingerprint::Fingerprint,
    sync_record::SyncRecord,
    write_limit::{Flapping, WriteLimit},
};
use crate::informer::ObjectKey;

/// Time for which a pruned status counts as written. Afterwards it is written again, since the
/// schema may have gained the field.
const SETTLED: Duration = Duration::from_secs(60);

/// Writes for the parents of one controller.
#[derive(Debug, Default)]
pub(crate) struct ParentWrites(Mutex<HashMap<ObjectKey, TrackedParent>>);

#[derive(Debug)]
struct TrackedParent {
    uid: Arc<str>,
    limit: WriteLimit,
    status: Option<SettledStatus>,
    // Of the last sync, if that found the parent as desired.
    record: Option<SyncRecord>,
    // Of the last sync that was executed.
    equal: EqualChildren,
}

/// Fingerprints of a status: as it was sent, and as the server stored it.
#[derive(Debug)]
struct SettledStatus {
    sent: Fingerprint,
    stored: Option<Fingerprint>,
    at: Instant,
}

impl ParentWrites {
    /// Starts to count writes for a parent; a parent with another uid starts at zero.
    pub(crate) fn track(&self, key: &ObjectKey, uid: &Arc<str>) {
        let mut parents = self.lock();
        if parents.get(key).is_none_or(|entry| entry.uid != *uid) {
            let (uid, limit) = (uid.clone(), WriteLimit::default());
            let entry = TrackedParent {
                uid,
                limit,
                status: None,
                record: None,
                equal: EqualChildren::default(),
            };
            parents.insert(key.clone(), entry);
        }
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    /// Forgets all parents.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns whether the limit admits a write of `what` for a parent.
    pub(crate) fn may_write(&self, key: &ObjectKey, what: &str) -> bool {
        let mut parents = self.lock();
        parents.get_mut(key).is_none_or(|entry| entry.limit.may_write(what, Instant::now()))
    }

    /// Counts a write.
    pub(crate) fn wrote(&self, key: &ObjectKey, what: String) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.limit.wrote(what, Instant::now());
        }
    }

    /// Counts a conflict: another client wrote `what` first.
    pub(crate) fn conflicted(&self, key: &ObjectKey, what: &str) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.limit.conflicted(what, Instant::now());
        }
    }

    /// Object that is written too often for a parent.
    pub(crate) fn flapping(&self, key: &ObjectKey) -> Option<Flapping> {
        self.lock().get(key)?.limit.flapping(Instant::now())
    }

    /// Returns whether the server stored `stored` when `sent` was written, within the last minute.
    pub(crate) fn status_settled(
        &self,
        key: &ObjectKey,
        sent: Fingerprint,
        stored: Option<Fingerprint>,
    ) -> bool {
        let parents = self.lock();
        let known = parents.get(key).and_then(|entry| entry.status.as_ref());
        known.is_some_and(|known| {
            (known.sent, known.stored) == (sent, stored) && known.at.elapsed() < SETTLED
        })
    }

    /// Records what the server stored when `sent` was written.
    pub(crate) fn settle_status(
        &self,
        key: &ObjectKey,
        sent: Fingerprint,
        stored: Option<Fingerprint>,
    ) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.status = Some(SettledStatus { sent, stored, at: Instant::now() });
        }
    }

    /// Removes and returns the record of the last sync of a parent. A sync that does not complete
    /// leaves none.
    pub(crate) fn take_record(&self, key: &ObjectKey) -> Option<SyncRecord> {
        self.lock().get_mut(key)?.record.take()
    }

    /// Keeps the record of a sync that found the parent as desired.
    pub(crate) fn keep_record(&self, key: &ObjectKey, record: SyncRecord) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.record = Some(record);
        }
    }

    /// Removes and returns the children of a parent that were equal to the desired ones. A sync that
    /// does not complete leaves none.
    pub(crate) fn take_equal(&self, key: &ObjectKey) -> EqualChildren {
        self.lock().get_mut(key).map(|entry| take(&mut entry.equal)).unwrap_or_default()
    }

    /// Keeps the children that a sync found equal to the desired ones.
    pub(crate) fn keep_equal(&self, key: &ObjectKey, equal: EqualChildren) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.equal = equal;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, TrackedParent>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sync_record::ObservedDigest, *};

    #[tokio::test(start_paused = true)]
    async fn a_status_that_the_schema_pruned_is_written_again_after_a_minute() {
        let (writes, key) = (ParentWrites::default(), ObjectKey::namespaced("ns", "a"));
        let [one, two, three] =
            ["1", "2", "3"].map(|text| Fingerprint::of(text.as_bytes()).unwrap());
        writes.track(&key, &"u".into());

        writes.settle_status(&key, one, Some(two));

        assert!(writes.status_settled(&key, one, Some(two)));
        assert!(!writes.status_settled(&key, one, Some(three)));
        assert!(!writes.status_settled(&key, one, None));
        assert!(!writes.status_settled(&key, three, Some(two)));
        tokio::time::advance(SETTLED).await;
        assert!(!writes.status_settled(&key, one, Some(two)));
    }

    #[test]
    fn record_is_taken_once_and_belongs_to_one_parent() {
        let (writes, key) = (ParentWrites::default(), ObjectKey::namespaced("ns", "a"));
        let record = SyncRecord::new(ObservedDigest::of(b"request", &[], &[]), b"answer");
        writes.keep_record(&key, record);
        assert_eq!(writes.take_record(&key), None, "it is not tracked");

        writes.track(&key, &"u".into());
        writes.keep_record(&key, record);
        writes.track(&key, &"u".into());
        assert_eq!(writes.take_record(&key), Some(record));
        assert_eq!(writes.take_record(&key), None);

        writes.keep_record(&key, record);
        writes.track(&key, &"v".into());
        assert_eq!(writes.take_record(&key), None, "another parent of that name");

        writes.keep_record(&key, record);
        writes.clear();
        writes.track(&key, &"v".into());
        assert_eq!(writes.take_record(&key), None, "another epoch");
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_of_another_uid_starts_anew() {
        let (writes, key) = (ParentWrites::default(), ObjectKey::namespaced("ns", "a"));
        let sent = Fingerprint::of(b"1").unwrap();
        writes.track(&key, &"u".into());
        writes.settle_status(&key, sent, None);

        writes.track(&key, &"u".into());
        assert!(writes.status_settled(&key, sent, None));
        writes.track(&key, &"v".into());

        assert!(!writes.status_settled(&key, sent, None));
    }
}
