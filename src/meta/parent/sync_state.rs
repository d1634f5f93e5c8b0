//! Sync state of a parent: what its syncs leave for the next one. The limit of its writes, the last
//! status as the server stored it, the record of what was decided, and the due time of the next
//! resync.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::{replace, take},
    sync::Arc,
    time::Duration,
};

use dashmap::DashMap;
use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{
    sync_record::SyncRecord,
    write_limit::{FlappingObject, WriteLimit},
};
use crate::{
    controller::Request,
    duration::LONGEST,
    meta::{
        json::{digest::JsonDigest, digest::digest},
        resource::LiveOwner,
    },
};

/// Time for which a pruned status counts as written. Afterwards it is written again, since the
/// schema may have gained the field.
const SETTLED: Duration = Duration::from_secs(60);

/// States of the parents of one controller.
#[derive(Debug)]
pub(crate) struct SyncStates {
    parents: DashMap<Request, Arc<SyncState>, RandomState>,
}

/// State of one parent. A sync has it from its begin to its end, and no other sync of the parent runs
/// in between.
#[derive(Debug, Default)]
pub(crate) struct SyncState {
    uid: Arc<str>,
    known: Mutex<KnownFacts>,
    record: Mutex<SyncRecord>,
}

#[derive(Debug, Default)]
struct KnownFacts {
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
}

/// Contested objects at the end of a sync.
#[derive(Debug, Default)]
pub(crate) struct ContestedReport {
    /// Names of all.
    pub(crate) names: Vec<String>,
    /// Objects that were not reported before.
    pub(crate) unreported: Vec<(String, ContestedObject)>,
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

/// Digests of a status: as it was sent, and as the server stored it.
#[derive(Debug)]
struct StoredStatus {
    sent: JsonDigest,
    stored: Option<JsonDigest>,
    at: Instant,
}

impl Default for SyncStates {
    fn default() -> Self {
        // A controller has few syncs at once, and a process many controllers.
        Self { parents: DashMap::with_hasher_and_shard_amount(RandomState::default(), 4) }
    }
}

impl SyncStates {
    /// Begins a sync of a parent with the state that the last one has left. A parent with another uid
    /// begins anew.
    pub(crate) fn begin(&self, key: &Request, uid: &Arc<str>) -> Arc<SyncState> {
        let known = self.parents.get(key).filter(|state| state.uid == *uid);
        let known = known.map(|state| Arc::clone(&state));
        let state = known.unwrap_or_else(|| {
            let new = Arc::new(SyncState { uid: Arc::clone(uid), ..SyncState::default() });
            self.parents.insert(key.clone(), Arc::clone(&new));
            new
        });
        state.begin();
        state
    }

    /// Returns the time of the next resync of each parent. `tick` returns the end of the period of a
    /// uid.
    pub(crate) fn next_resyncs(
        &self,
        tick: impl Fn(&str) -> Option<Instant>,
    ) -> Vec<(Request, Option<Instant>)> {
        let next = |state: &SyncState| state.next_resync(tick(&state.uid));
        self.parents.iter().map(|parent| (parent.key().clone(), next(&parent))).collect()
    }

    /// Returns all parents that were synced.
    pub(crate) fn keys(&self) -> Vec<Request> {
        self.parents.iter().map(|parent| parent.key().clone()).collect()
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &Request) {
        self.parents.remove(key);
    }

    /// Forgets all parents.
    pub(crate) fn clear(&self) {
        self.parents.clear();
    }
}

impl SyncState {
    fn begin(&self) {
        let now = Instant::now();
        let mut known = self.lock();
        known.limit.prune(now);
        known.resync = known.resync.filter(|at| *at > now);
        known.contested.values_mut().for_each(|contested| contested.is_current = false);
        known.refused.values_mut().for_each(|refused| refused.is_current = false);
    }

    /// Forgets the refusals of replacements that the running sync did not repeat. Called by a sync
    /// that has tried all children; one that ends earlier proves nothing about the refusals.
    pub(crate) fn end_replacements(&self) {
        self.lock().refused.retain(|_, refused| refused.is_current);
    }

    /// Records the time that a response requests until the next sync. It replaces an earlier one, and
    /// a response without a time leaves that.
    pub(crate) fn resync_after(&self, after: Option<Duration>) {
        let Some(after) = after else { return };
        let now = Instant::now();
        self.lock().resync = Some(now.checked_add(after).unwrap_or(now + LONGEST));
    }

    /// Returns the time of the next resync: the requested time, or the end of the period.
    pub(crate) fn next_resync(&self, tick: Option<Instant>) -> Option<Instant> {
        self.lock().resync.into_iter().chain(tick).min()
    }

    /// Records that a desired object of the parent exists and is not the parent's.
    pub(crate) fn contest(&self, what: String, message: String, owner: Option<OtherOwner>) {
        let mut facts = self.lock();
        let known = facts.contested.get(&what);
        let is_reported = known.is_some_and(|known| known.is_reported && known.owner == owner);
        let contested = ContestedObject { message, owner, is_current: true, is_reported };
        facts.contested.insert(what, contested);
    }

    /// Returns the objects that the running sync has found contested. They count as reported from now
    /// on.
    pub(crate) fn contested(&self) -> ContestedReport {
        let mut known = self.lock();
        known.contested.retain(|_, contested| contested.is_current);
        let names = known.contested.keys().cloned().collect();
        let unreported = known.contested.iter_mut().filter_map(|(what, contested)| {
            let is_reported = replace(&mut contested.is_reported, true);
            (!is_reported).then(|| (what.clone(), contested.clone()))
        });
        let unreported = unreported.collect();
        ContestedReport { names, unreported }
    }

    /// Records an Event of a parent, which the end of the sync publishes.
    pub(crate) fn note(&self, reason: &'static str, text: String) {
        self.lock().notes.insert(Note { reason, text });
    }

    /// Removes and returns the recorded Events.
    pub(crate) fn notes(&self) -> BTreeSet<Note> {
        take(&mut self.lock().notes)
    }

    /// Returns whether a parent was not warned of its selector before. It counts as warned from now
    /// on.
    pub(crate) fn is_first_warning(&self) -> bool {
        !replace(&mut self.lock().is_warned, true)
    }

    /// Records the message about a child that a response has several times. Returns it unless it is
    /// that of the last response.
    pub(crate) fn repeated<'m>(&self, message: Option<&'m str>) -> Option<&'m str> {
        let now = message.map(digest);
        let last = replace(&mut self.lock().repeated, now);
        message.filter(|_| last != now)
    }

    /// Returns whether the limit admits a write of `what` for a parent.
    pub(crate) fn may_write(&self, what: &str) -> bool {
        self.lock().limit.may_write(what, Instant::now())
    }

    /// Counts a write of a parent or child that changed it.
    pub(crate) fn wrote(&self, what: &str) {
        let mut known = self.lock();
        known.contested.remove(what);
        known.refused.remove(what);
        known.limit.wrote(what, Instant::now());
    }

    /// Records that the replacement of a child is refused; returns the time since the first
    /// refusal. A sync that tries all children without this refusal resets the time.
    pub(crate) fn refused_for(&self, what: &str) -> Duration {
        let mut known = self.lock();
        let new = || RefusedReplacement { since: Instant::now(), is_current: true };
        let refused = known.refused.entry(what.to_owned()).or_insert_with(new);
        refused.is_current = true;
        refused.since.elapsed()
    }

    /// Counts a conflict: another client wrote `what` first.
    pub(crate) fn conflicted(&self, what: &str) {
        self.lock().limit.conflicted(what, Instant::now());
    }

    /// Object that is written too often for a parent.
    pub(crate) fn flapping(&self) -> Option<FlappingObject> {
        self.lock().limit.flapping(Instant::now())
    }

    /// Returns whether the server stored `stored` when `sent` was written, within the last minute.
    pub(crate) fn status_settled(&self, sent: JsonDigest, stored: Option<JsonDigest>) -> bool {
        self.lock().status.as_ref().is_some_and(|known| {
            (known.sent, known.stored) == (sent, stored) && known.at.elapsed() < SETTLED
        })
    }

    /// Records the status that the server stored when `sent` was written.
    pub(crate) fn record_stored_status(&self, sent: JsonDigest, stored: Option<JsonDigest>) {
        self.lock().status = Some(StoredStatus { sent, stored, at: Instant::now() });
    }

    /// Returns the record of the last sync.
    pub(crate) fn record(&self) -> MutexGuard<'_, SyncRecord> {
        self.record.lock()
    }

    fn lock(&self) -> MutexGuard<'_, KnownFacts> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::parent::sync_record::{ObservedDigest, SettledSync};

    #[tokio::test(start_paused = true)]
    async fn time_that_the_newest_response_requests_stays_until_it_has_passed() {
        let state = SyncState::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let period = Some(now + 60 * second);
        state.resync_after(Some(Duration::MAX));
        assert_eq!(state.next_resync(None), Some(now + LONGEST));
        state.resync_after(Some(10 * second));

        tokio::time::advance(9 * second).await;
        state.begin();
        assert_eq!(state.next_resync(period), Some(now + 10 * second));

        tokio::time::advance(second).await;
        state.begin();
        assert_eq!(state.next_resync(period), period);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_the_schema_pruned_is_written_again_after_a_minute() {
        let state = SyncState::default();
        let [one, two, three] =
            ["1", "2", "3"].map(|text| JsonDigest::of(text.as_bytes()).unwrap());

        state.record_stored_status(one, Some(two));

        assert!(state.status_settled(one, Some(two)));
        assert!(!state.status_settled(one, Some(three)));
        assert!(!state.status_settled(one, None));
        assert!(!state.status_settled(three, Some(two)));
        tokio::time::advance(SETTLED).await;
        assert!(!state.status_settled(one, Some(two)));
    }

    #[test]
    fn settled_sync_is_taken_once_and_belongs_to_one_parent() {
        let (states, key) = (SyncStates::default(), Request::namespaced("ns", "a"));
        let begin = |uid: &str| states.begin(&key, &uid.into());
        let settle = |uid: &str, sync: SettledSync| begin(uid).record().settle(sync);
        let taken = |uid: &str| begin(uid).record().take_settled();
        let sync =
            SettledSync::new(ObservedDigest::of(b"request", [].into_iter(), &[], 0), b"response");
        settle("u", sync);

        assert_eq!(taken("u"), Some(sync));
        assert_eq!(taken("u"), None);

        settle("u", sync);
        assert_eq!(taken("v"), None, "another parent of that name");

        settle("v", sync);
        states.clear();
        assert_eq!(taken("v"), None, "another epoch");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_counted_from_the_first_one_without_a_sync_between() {
        let state = SyncState::default();
        let (minute, zero) = (Duration::from_secs(60), Duration::ZERO);
        let sync = async |is_refused: bool| {
            state.begin();
            let refused = is_refused.then(|| state.refused_for("x"));
            state.end_replacements();
            tokio::time::advance(minute).await;
            refused
        };

        assert_eq!(sync(true).await, Some(zero));
        assert_eq!(sync(true).await, Some(minute));
        // A sync whose hook fails comes to no child.
        state.begin();
        tokio::time::advance(minute).await;
        assert_eq!(sync(true).await, Some(3 * minute));
        assert_eq!(sync(false).await, None);
        assert_eq!(sync(true).await, Some(zero), "the child was as desired in between");
    }

    #[test]
    fn contested_object_is_reported_once_for_each_owner() {
        let state = SyncState::default();
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
            state.begin();
            if owner.is_some() {
                state.contest("x".to_owned(), "exists".to_owned(), owner);
            }
            let ContestedReport { names, unreported } = state.contested();
            (!names.is_empty(), unreported.len())
        };

        assert_eq!(sync(Some(owner("1"))), (true, 1));
        assert_eq!(sync(Some(owner("1"))), (true, 0));
        assert_eq!(sync(Some(owner("2"))), (true, 1));
        assert_eq!(sync(None), (false, 0));
        assert_eq!(sync(Some(owner("2"))), (true, 1), "again");
    }
}
