//! Writes for each parent: their limit, and the last status as the server stored it.
//!
//! The module also holds the record of a sync without writes, the digests of equal children, and
//! the due time of the next resync.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::take,
    sync::Arc,
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{
    digest::digest,
    equal_children::EqualChildren,
    fingerprint::Fingerprint,
    resource::LiveOwner,
    sync_record::SyncRecord,
    write_limit::{FlappingObject, WriteLimit},
};
use crate::{controller::Request, duration::LONGEST};

/// Time for which a pruned status counts as written. Afterwards it is written again, since the
/// schema may have gained the field.
const SETTLED: Duration = Duration::from_secs(60);

/// Writes for the parents of one controller.
#[derive(Debug, Default)]
pub(crate) struct ParentWrites {
    parents: Mutex<HashMap<Request, TrackedParent, RandomState>>,
}

#[derive(Debug)]
struct TrackedParent {
    uid: Arc<str>,
    limit: WriteLimit,
    // Time of the resync that a response requested; kept until it has passed.
    resync: Option<Instant>,
    contested: BTreeMap<String, ContestedObject>,
    // Replacements that are refused.
    refused: BTreeMap<String, RefusedReplacement>,
    // Events that are not published yet.
    notes: BTreeSet<Note>,
    // True once the parent was warned of its selector.
    is_warned: bool,
    // Digest of the message about a child that the last response has several times.
    repeated: Option<u64>,
    status: Option<StoredStatus>,
    // Record of the last sync, if that found the parent as desired.
    record: Option<SyncRecord>,
    // Equal children of the last sync that was executed.
    equal: EqualChildren,
}

/// Normal Event of a parent about one of its children.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Note {
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

/// Desired object of a parent that exists and is not the parent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContestedObject {
    /// Refusal, with the owner.
    pub(crate) message: String,
    /// Controller of the object.
    pub(crate) owner: Option<OtherOwner>,
    // True if the running sync has found the object contested.
    is_current: bool,
    is_reported: bool,
}

/// Owner of an object that another parent desires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherOwner {
    /// Owner reference in the object.
    pub(crate) reference: LiveOwner,
    /// Namespace of the object; that of the owner too, unless the owner is cluster-scoped.
    pub(crate) namespace: Option<Arc<str>>,
    /// True if a declared controller has written the object, so that the owner is its parent.
    pub(crate) is_parent: bool,
}

/// Replacement that is refused in each sync.
#[derive(Debug)]
struct RefusedReplacement {
    // Time of the first refusal.
    since: Instant,
    // True if the running sync was refused too.
    is_current: bool,
}

/// Fingerprints of a status: as it was sent, and as the server stored it.
#[derive(Debug)]
struct StoredStatus {
    sent: Fingerprint,
    stored: Option<Fingerprint>,
    at: Instant,
}

impl TrackedParent {
    fn next_resync(&self, tick: Option<Instant>) -> Option<Instant> {
        self.resync.into_iter().chain(tick).min()
    }
}

impl ParentWrites {
    /// Starts to count writes for a parent; a parent with another uid starts at zero.
    pub(crate) fn track(&self, key: &Request, uid: &Arc<str>) {
        let mut parents = self.lock();
        if parents.get(key).is_none_or(|entry| entry.uid != *uid) {
            let entry = TrackedParent {
                uid: uid.clone(),
                limit: WriteLimit::default(),
                resync: None,
                contested: BTreeMap::new(),
                refused: BTreeMap::new(),
                notes: BTreeSet::new(),
                is_warned: false,
                repeated: None,
                status: None,
                record: None,
                equal: EqualChildren::default(),
            };
            parents.insert(key.clone(), entry);
        }
    }

    /// Begins a sync of a parent.
    pub(crate) fn begin(&self, key: &Request) {
        if let Some(entry) = self.lock().get_mut(key) {
            let now = Instant::now();
            entry.limit.prune(now);
            entry.resync = entry.resync.filter(|at| *at > now);
            entry.contested.values_mut().for_each(|contested| contested.is_current = false);
            entry.refused.values_mut().for_each(|refused| refused.is_current = false);
        }
    }

    /// Forgets the refusals of replacements that the running sync did not repeat. Called by a sync
    /// that has tried all children; one that ends earlier proves nothing about the refusals.
    pub(crate) fn end_replacements(&self, key: &Request) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.refused.retain(|_, refused| refused.is_current);
        }
    }

    /// Records the time that a response requests until the next sync. It replaces an earlier one, and
    /// a response without a time leaves that.
    pub(crate) fn resync_after(&self, key: &Request, after: Duration) {
        if let Some(entry) = self.lock().get_mut(key) {
            let now = Instant::now();
            entry.resync = Some(now.checked_add(after).unwrap_or(now + LONGEST));
        }
    }

    /// Returns the time of the next resync: the requested time, or the end of the period.
    pub(crate) fn next_resync(&self, key: &Request, tick: Option<Instant>) -> Option<Instant> {
        self.lock().get(key)?.next_resync(tick)
    }

    /// Returns the time of the next resync of each parent. `tick` returns the end of the period of a
    /// uid.
    pub(crate) fn next_resyncs(
        &self,
        tick: impl Fn(&str) -> Option<Instant>,
    ) -> Vec<(Request, Option<Instant>)> {
        let parents = self.lock();
        let next = |entry: &TrackedParent| entry.next_resync(tick(&entry.uid));
        parents.iter().map(|(key, entry)| (key.clone(), next(entry))).collect()
    }

    /// Records that a desired object of the parent exists and is not the parent's.
    pub(crate) fn contest(
        &self,
        key: &Request,
        what: String,
        message: String,
        owner: Option<OtherOwner>,
    ) {
        if let Some(entry) = self.lock().get_mut(key) {
            let known = entry.contested.get(&what);
            let is_reported = known.is_some_and(|known| known.is_reported && known.owner == owner);
            let contested = ContestedObject { message, owner, is_current: true, is_reported };
            entry.contested.insert(what, contested);
        }
    }

    /// Returns whether an object is contested now, and those that are not reported yet. They count
    /// as reported from now on.
    pub(crate) fn contested(&self, key: &Request) -> (bool, Vec<(String, ContestedObject)>) {
        let mut parents = self.lock();
        let Some(entry) = parents.get_mut(key) else { return (false, Vec::new()) };
        entry.contested.retain(|_, contested| contested.is_current);
        let all = entry.contested.iter_mut();
        let unreported = all.filter_map(|(what, contested)| {
            let is_reported = std::mem::replace(&mut contested.is_reported, true);
            (!is_reported).then(|| (what.clone(), contested.clone()))
        });
        let unreported = unreported.collect();
        (!entry.contested.is_empty(), unreported)
    }

    /// Returns the names of the contested objects of the last sync; to be called after
    /// [`Self::contested`].
    pub(crate) fn contested_objects(&self, key: &Request) -> Vec<String> {
        let parents = self.lock();
        parents.get(key).map(|it| it.contested.keys().cloned().collect()).unwrap_or_default()
    }

    /// Records an Event of a parent, which the end of the sync publishes.
    pub(crate) fn note(&self, key: &Request, reason: &'static str, text: String) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.notes.insert(Note { reason, text });
        }
    }

    /// Removes and returns the recorded Events.
    pub(crate) fn notes(&self, key: &Request) -> BTreeSet<Note> {
        self.lock().get_mut(key).map(|entry| take(&mut entry.notes)).unwrap_or_default()
    }

    /// Returns whether a parent was not warned of its selector before. It counts as warned from now
    /// on.
    pub(crate) fn is_first_warning(&self, key: &Request) -> bool {
        let mut parents = self.lock();
        parents.get_mut(key).is_some_and(|entry| !std::mem::replace(&mut entry.is_warned, true))
    }

    /// Records the message about a child that a response has several times. Returns it unless it is
    /// that of the last response.
    pub(crate) fn repeated<'m>(&self, key: &Request, message: Option<&'m str>) -> Option<&'m str> {
        let now = message.map(digest);
        let mut parents = self.lock();
        let last = std::mem::replace(&mut parents.get_mut(key)?.repeated, now);
        message.filter(|_| last != now)
    }

    /// Returns all parents that were synced.
    pub(crate) fn keys(&self) -> Vec<Request> {
        self.lock().keys().cloned().collect()
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &Request) {
        self.lock().remove(key);
    }

    /// Forgets all parents.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns whether the limit admits a write of `what` for a parent.
    pub(crate) fn may_write(&self, key: &Request, what: &str) -> bool {
        let mut parents = self.lock();
        parents.get_mut(key).is_none_or(|entry| entry.limit.may_write(what, Instant::now()))
    }

    /// Counts a write of a parent or child that changed it.
    pub(crate) fn wrote(&self, key: &Request, what: &str) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.contested.remove(what);
            entry.refused.remove(what);
            entry.limit.wrote(what, Instant::now());
        }
    }

    /// Records that the replacement of a child is refused; returns the time since the first
    /// refusal. A sync that tries all children without this refusal resets the time.
    pub(crate) fn refused_for(&self, key: &Request, what: &str) -> Duration {
        let mut parents = self.lock();
        let Some(entry) = parents.get_mut(key) else { return Duration::ZERO };
        let new = || RefusedReplacement { since: Instant::now(), is_current: true };
        let refused = entry.refused.entry(what.to_owned()).or_insert_with(new);
        refused.is_current = true;
        refused.since.elapsed()
    }

    /// Counts a conflict: another client wrote `what` first.
    pub(crate) fn conflicted(&self, key: &Request, what: &str) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.limit.conflicted(what, Instant::now());
        }
    }

    /// Object that is written too often for a parent.
    pub(crate) fn flapping(&self, key: &Request) -> Option<FlappingObject> {
        self.lock().get(key)?.limit.flapping(Instant::now())
    }

    /// Returns whether the server stored `stored` when `sent` was written, within the last minute.
    pub(crate) fn status_settled(
        &self,
        key: &Request,
        sent: Fingerprint,
        stored: Option<Fingerprint>,
    ) -> bool {
        let parents = self.lock();
        let known = parents.get(key).and_then(|entry| entry.status.as_ref());
        known.is_some_and(|known| {
            (known.sent, known.stored) == (sent, stored) && known.at.elapsed() < SETTLED
        })
    }

    /// Records the status that the server stored when `sent` was written.
    pub(crate) fn record_stored_status(
        &self,
        key: &Request,
        sent: Fingerprint,
        stored: Option<Fingerprint>,
    ) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.status = Some(StoredStatus { sent, stored, at: Instant::now() });
        }
    }

    /// Removes and returns the record of the last sync of a parent. A sync that does not complete
    /// leaves none.
    pub(crate) fn take_record(&self, key: &Request) -> Option<SyncRecord> {
        self.lock().get_mut(key)?.record.take()
    }

    /// Keeps the record of a sync that found the parent as desired.
    pub(crate) fn keep_record(&self, key: &Request, record: SyncRecord) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.record = Some(record);
        }
    }

    /// Removes and returns the children of a parent that were equal to the desired ones. A sync
    /// that does not complete leaves none.
    pub(crate) fn take_equal(&self, key: &Request) -> EqualChildren {
        self.lock().get_mut(key).map(|entry| take(&mut entry.equal)).unwrap_or_default()
    }

    /// Returns the children of a parent that its last sync found equal to the desired ones.
    pub(crate) fn equal(&self, key: &Request) -> EqualChildren {
        self.lock().get(key).map(|entry| entry.equal.clone()).unwrap_or_default()
    }

    /// Keeps the children that a sync found equal to the desired ones.
    pub(crate) fn keep_equal(&self, key: &Request, equal: EqualChildren) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.equal = equal;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Request, TrackedParent, RandomState>> {
        self.parents.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sync_record::ObservedDigest, *};

    #[tokio::test(start_paused = true)]
    async fn time_that_the_newest_response_requests_stays_until_it_has_passed() {
        let (writes, key) = (ParentWrites::default(), Request::namespaced("ns", "a"));
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let period = Some(now + 60 * second);
        writes.track(&key, &"u".into());
        writes.resync_after(&key, Duration::MAX);
        assert_eq!(writes.next_resync(&key, None), Some(now + LONGEST));
        writes.resync_after(&key, 10 * second);

        tokio::time::advance(9 * second).await;
        writes.begin(&key);
        assert_eq!(writes.next_resync(&key, period), Some(now + 10 * second));

        tokio::time::advance(second).await;
        writes.begin(&key);
        assert_eq!(writes.next_resync(&key, period), period);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_the_schema_pruned_is_written_again_after_a_minute() {
        let (writes, key) = (ParentWrites::default(), Request::namespaced("ns", "a"));
        let [one, two, three] =
            ["1", "2", "3"].map(|text| Fingerprint::of(text.as_bytes()).unwrap());
        writes.track(&key, &"u".into());

        writes.record_stored_status(&key, one, Some(two));

        assert!(writes.status_settled(&key, one, Some(two)));
        assert!(!writes.status_settled(&key, one, Some(three)));
        assert!(!writes.status_settled(&key, one, None));
        assert!(!writes.status_settled(&key, three, Some(two)));
        tokio::time::advance(SETTLED).await;
        assert!(!writes.status_settled(&key, one, Some(two)));
    }

    #[test]
    fn record_is_taken_once_and_belongs_to_one_parent() {
        let (writes, key) = (ParentWrites::default(), Request::namespaced("ns", "a"));
        let record = SyncRecord::new(ObservedDigest::of(b"request", &[], &[], 0), b"response");
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
    async fn refusals_are_counted_from_the_first_one_without_a_sync_between() {
        let (writes, key) = (ParentWrites::default(), Request::namespaced("ns", "a"));
        let (minute, zero) = (Duration::from_secs(60), Duration::ZERO);
        writes.track(&key, &"u".into());
        let sync = async |is_refused: bool| {
            writes.begin(&key);
            let refused = is_refused.then(|| writes.refused_for(&key, "x"));
            writes.end_replacements(&key);
            tokio::time::advance(minute).await;
            refused
        };

        assert_eq!(sync(true).await, Some(zero));
        assert_eq!(sync(true).await, Some(minute));
        // A sync whose hook fails comes to no child.
        writes.begin(&key);
        tokio::time::advance(minute).await;
        assert_eq!(sync(true).await, Some(3 * minute));
        assert_eq!(sync(false).await, None);
        assert_eq!(sync(true).await, Some(zero), "the child was as desired in between");
    }

    #[test]
    fn contested_object_is_reported_once_for_each_owner() {
        let (writes, key) = (ParentWrites::default(), Request::namespaced("ns", "a"));
        writes.track(&key, &"u".into());
        let owner = |uid: &str| {
            let reference = LiveOwner {
                api_version: "v1".to_owned(),
                kind: "Thing".to_owned(),
                name: "b".to_owned(),
                uid: uid.to_owned(),
                controller: Some(true),
            };
            OtherOwner { reference, namespace: None, is_parent: true }
        };
        let sync = |owner: Option<OtherOwner>| {
            writes.begin(&key);
            if owner.is_some() {
                writes.contest(&key, "x".to_owned(), "exists".to_owned(), owner);
            }
            let (is_contested, unreported) = writes.contested(&key);
            (is_contested, unreported.len())
        };

        assert_eq!(sync(Some(owner("1"))), (true, 1));
        assert_eq!(sync(Some(owner("1"))), (true, 0));
        assert_eq!(sync(Some(owner("2"))), (true, 1));
        assert_eq!(sync(None), (false, 0));
        assert_eq!(sync(Some(owner("2"))), (true, 1), "again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_of_another_uid_starts_anew() {
        let (writes, key) = (ParentWrites::default(), Request::namespaced("ns", "a"));
        let sent = Fingerprint::of(b"1").unwrap();
        writes.track(&key, &"u".into());
        writes.record_stored_status(&key, sent, None);

        writes.track(&key, &"u".into());
        assert!(writes.status_settled(&key, sent, None));
        writes.track(&key, &"v".into());

        assert!(!writes.status_settled(&key, sent, None));
    }
}
