//! Unconfirmed writes: writes that the caches may not hold yet, by the request that sent them.
//!
//! A reconcile over a cache without an earlier write would write again. After a response, the
//! caches are compared with the written version. After a lost response, the server is read at once.
//! While a cache is behind, the request waits up to about two seconds. Then the reconcile has the
//! live read in place of the cached object.

mod expectation;
mod read;
mod state;
mod target;
mod write_reply;

use std::{
    collections::{
        BTreeMap, HashMap, HashSet,
        btree_map::Entry::{Occupied, Vacant},
    },
    mem,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use foldhash::quality::RandomState;
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::{task_local, time::Instant};

use self::{
    expectation::{AnswerCheck, Expectation, ExpectationCheck, ReadComparison, Unconfirmed},
    target::Target,
    write_reply::WriteReply,
};

use crate::{
    controller::{Request, foreign_cluster::ForeignCluster, run::input_status::InputStatuses},
    discovery::RegistryId,
    informer::{InformerKey, Overlay},
    kind::TypeRef,
    manager::{WriteEnd, WriteObserver, WriteRequest},
};

/// Retention of an answered write that no reconcile requests, and of the writes of a name without a
/// controller, ten minutes. Informers linger for seconds only, so that a cache which starts later
/// includes them.
const RETENTION: Duration = Duration::from_secs(600);
/// First pause before the caches are compared again. Each pause is as long as the wait so far, so
/// that the wait doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause before the caches are compared again. Together with the delay of a live read, a reconcile
/// waits less than 5 s while the server answers.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Interval in which the caches are compared with live reads that a reconcile had, without a
/// request. A reconcile follows within this time if a cache turns out to lack what it read.
const RECHECK: Duration = Duration::from_secs(5);

task_local! {
    // Request whose reconcile, or a task spawned by it, runs in this task.
    static CURRENT: Request;
}

/// Live reads for one reconcile, by the cluster (`None` for that of the controller) and the cache
/// that is behind them.
pub(in crate::controller) type Overlays =
    HashMap<Option<RegistryId>, HashMap<InformerKey, Overlay>>;

/// Unconfirmed writes of a controller; they outlive its epochs.
#[derive(Debug, Default)]
pub(in crate::controller) struct UnconfirmedWrites(Mutex<TrackedWrites>);

#[derive(Debug, Default)]
struct TrackedWrites {
    open: HashMap<Request, RequestWrites, RandomState>,
    // Requests in reconcile.
    active: HashSet<Request, RandomState>,
    // Time of the last write.
    latest: Option<Instant>,
    // Time of the next removal of old writes; `None` without writes.
    expiry: Option<Instant>,
    // Time of the next comparison of live reads; `None` without live reads.
    recheck: Option<Instant>,
}

/// Unconfirmed writes of one request.
#[derive(Debug, Default)]
struct RequestWrites {
    targets: BTreeMap<Target, Expectation>,
    // True if the outcome of one of them is unknown.
    unknown: bool,
    // True if the request's own object has to be read, if it names one: such a write may have
    // changed it.
    own_object: bool,
    // Time of the first comparison that found the caches behind, since one has caught up.
    behind: Option<Instant>,
    // True if the last reconcile had live reads in place of cached objects: the caches may lack
    // these writes for as long as a watch is down.
    live: bool,
}

/// Result of the comparison of all caches with the writes of a request.
struct Confirmed {
    overlays: Overlays,
    // True if another cluster could not be read.
    unread: bool,
}

/// Marks a request as in reconcile until dropped, and holds its unconfirmed writes.
#[derive(Debug)]
pub(in crate::controller) struct Reconciling {
    unconfirmed: Arc<UnconfirmedWrites>,
    request: Request,
    writes: Option<RequestWrites>,
}

/// The caches are behind a write, or the server could not be read. The request waits.
#[derive(Debug, thiserror::Error)]
#[error("an earlier write is unconfirmed: {why}")]
pub(in crate::controller) struct Behind {
    why: Unconfirmed,
    /// Pause before the next comparison.
    pub(in crate::controller) after: Duration,
}

impl Behind {
    /// Returns the wait that the server requested if it could not be read; zero if it requested
    /// none.
    pub(in crate::controller) fn unanswered(&self) -> Option<Duration> {
        self.why.unanswered()
    }
}

impl UnconfirmedWrites {
    /// Returns an observer that records each write to a cluster for its request. `None` means the
    /// cluster of the controller.
    ///
    /// A write from a task without a current request (`tokio::spawn`) counts for every request in
    /// reconcile.
    pub(in crate::controller) fn observer(
        self: &Arc<Self>,
        cluster: Option<RegistryId>,
    ) -> WriteObserver {
        let unconfirmed = Arc::clone(self);
        Arc::new(move |write| {
            let (unconfirmed, cluster) = (Arc::clone(&unconfirmed), cluster.clone());
            let requests = match CURRENT.try_with(Clone::clone) {
                Ok(request) => vec![request],
                Err(_) => unconfirmed.state().active.iter().cloned().collect(),
            };
            Box::new(move |end| unconfirmed.add(requests, cluster, &write, end))
        })
    }

    /// Begins the reconcile of a request, of which one runs at a time.
    pub(in crate::controller) fn begin(self: &Arc<Self>, request: &Request) -> Reconciling {
        let mut state = self.state();
        state.active.insert(request.clone());
        let writes = state.open.remove(request);
        drop(state);
        Reconciling { unconfirmed: Arc::clone(self), request: request.clone(), writes }
    }

    /// Returns the requests with a write of unknown outcome, which the next epoch reconciles in any
    /// case.
    pub(in crate::controller) fn requests(&self) -> Vec<Request> {
        let state = self.state();
        let unknown = state.open.iter().filter(|(_, writes)| writes.unknown);
        unknown.map(|(request, _)| request.clone()).collect()
    }

    /// Returns whether a later controller of the same name still needs these writes.
    pub(in crate::controller) fn is_needed(&self) -> bool {
        let state = self.state();
        !state.open.is_empty() && state.latest.is_some_and(|latest| latest.elapsed() < RETENTION)
    }

    /// Returns the time at which [`UnconfirmedWrites::expire`] is due; `None` without writes.
    pub(in crate::controller) fn expiry(&self) -> Option<Instant> {
        self.state().expiry
    }

    /// Removes answered writes older than ten minutes, unless a request waits for them.
    pub(in crate::controller) fn expire(&self) {
        let mut state = self.state();
        state.open.retain(|_, writes| {
            if writes.live {
                // The objects of a request that is never reconciled again would stay in memory.
                writes.targets.values_mut().for_each(Expectation::forget_reads);
            }
            writes.unknown || writes.behind.is_some() || writes.live || {
                writes.targets.retain(|_, expected| expected.age() < RETENTION);
                !writes.targets.is_empty()
            }
        });
        state.open.shrink_to_fit();
        state.expiry = (!state.open.is_empty()).then(|| Instant::now() + RETENTION);
    }

    /// Returns the time at which [`UnconfirmedWrites::with_deleted_reads`] is due; `None` without
    /// live reads.
    pub(in crate::controller) fn recheck(&self) -> Option<Instant> {
        self.state().recheck
    }

    /// Returns the requests that had a live read of an object which is gone since: deleted by
    /// another client, or with its type. No cache has ever held such an object, so that no event
    /// reports its deletion.
    pub(in crate::controller) fn with_deleted_reads(
        &self,
        statuses: &InputStatuses,
    ) -> Vec<Request> {
        let (mut state, mut is_behind, mut with_deleted_reads) = (self.state(), false, Vec::new());
        for (request, writes) in state.open.iter_mut().filter(|(_, writes)| writes.live) {
            let mut is_deleted = false;
            for (target, expected) in &mut writes.targets {
                let caches = target.caches(statuses);
                is_deleted |= expected.detach(&caches);
                for cache in &caches {
                    match expected.reached(target, cache) {
                        ReadComparison::Behind => is_behind = true,
                        ReadComparison::Deleted => is_deleted = true,
                        ReadComparison::Current => {}
                    }
                }
            }
            if is_deleted {
                with_deleted_reads.push(request.clone());
            }
        }
        state.recheck = is_behind.then(|| Instant::now() + RECHECK);
        with_deleted_reads
    }

    fn add(
        &self,
        requests: Vec<Request>,
        cluster: Option<RegistryId>,
        write: &WriteRequest,
        end: WriteEnd,
    ) {
        let (unknown, response) = match end {
            WriteEnd::Answered(body) => (false, WriteReply::decode(write.method(), &body)),
            WriteEnd::Unknown => (true, WriteReply::default()),
        };
        let is_own = cluster.is_none();
        let target = Target::of(write, cluster, response.name);
        let mut state = self.state();
        let now = Instant::now();
        state.latest = Some(now);
        state.expiry.get_or_insert(now + RETENTION);
        for request in requests {
            let writes = state.open.entry(request).or_default();
            writes.unknown |= unknown;
            // A write without a target may have changed it, too.
            writes.own_object |= unknown && is_own;
            if let Some(target) = &target {
                writes.expect(target.clone(), Expectation::new(response.state.clone()));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, TrackedWrites> {
        self.0.lock()
    }
}

impl Reconciling {
    /// Returns whether the outcome of an earlier write is unknown.
    pub(in crate::controller) fn has_unknown(&self) -> bool {
        self.writes.as_ref().is_some_and(|writes| writes.unknown)
    }

    /// Compares the caches of a run with the answered writes, and forgets those that the caches
    /// hold. Returns an error as [`Reconciling::confirm`] would, if that is certain without a read
    /// of the server.
    pub(in crate::controller) fn behind(&mut self, statuses: &InputStatuses) -> Option<Behind> {
        let writes = self.writes.as_mut().filter(|writes| !writes.own_object)?;
        let count = writes.targets.len();
        let why = writes.answers_behind(statuses);
        if why.is_none() && writes.targets.len() != count {
            writes.behind = None;
        }
        why.map(|why| writes.behind(why, count))
    }

    /// Compares the caches of a run with the unconfirmed writes, and forgets those that the caches
    /// hold. Returns live reads of the others, by cache. The client is called for if the server has
    /// to be read.
    ///
    /// # Errors
    ///
    /// [`Behind`] while a cache does not hold one of them yet, or the server cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the writes stay unconfirmed.
    pub(in crate::controller) async fn confirm(
        &mut self,
        statuses: &InputStatuses,
        client: impl Fn(Option<&ForeignCluster>) -> Client,
        primaries: &[TypeRef],
    ) -> Result<Overlays, Behind> {
        let Some(writes) = &mut self.writes else { return Ok(Overlays::default()) };
        let primary = primaries.get(self.request.primary);
        // Without a primary type a request names no object, such as one of a custom key.
        writes.own_object &= primary.is_some();
        let attached = primary.and_then(|primary| statuses.attached(None, primary));
        if let Some(attached) = attached.filter(|_| writes.own_object) {
            writes.own_object = false;
            let own = Target::of_request(&self.request, &attached.current());
            writes.expect(own, Expectation::new(None));
        }
        let count = writes.targets.len();
        let Confirmed { overlays, unread } = match writes.confirm(statuses, client).await {
            Ok(confirmed) => confirmed,
            Err(why) => return Err(writes.behind(why, count)),
        };
        // Every outcome is known, unless another cluster could not be read. What a cache lacks is
        // compared again before the next reconcile.
        let unknown = writes.unknown && unread;
        let targets = mem::take(&mut writes.targets);
        // Before its type is listed, the request's own object cannot be compared.
        let own_object = writes.own_object;
        let live = !targets.is_empty();
        self.writes = (live || own_object).then(|| RequestWrites {
            targets,
            live,
            own_object,
            unknown: own_object || unknown,
            ..RequestWrites::default()
        });
        Ok(overlays)
    }

    /// Runs a reconcile, and attributes its writes to this request.
    pub(in crate::controller) async fn run<T>(&self, reconcile: impl Future<Output = T>) -> T {
        with_request(self.request.clone(), reconcile).await
    }
}

impl RequestWrites {
    fn expect(&mut self, target: Target, new: Expectation) {
        match self.targets.entry(target) {
            Vacant(vacant) => {
                vacant.insert(new);
            }
            Occupied(mut old) => old.get_mut().replace(new),
        }
    }

    /// Returns the wait for the caches. `count` is the number of targets before the comparison: the
    /// wait restarts whenever a cache has caught up with one.
    fn behind(&mut self, why: Unconfirmed, count: usize) -> Behind {
        if self.targets.len() != count {
            self.behind = None;
        }
        // From the elapsed time, not by `doubled`: an event of the request adds comparisons, which
        // must not lengthen the pause.
        let waited = self.behind.get_or_insert_with(Instant::now).elapsed();
        Behind { why, after: waited.clamp(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    /// Compares the targets in sequence, until a cache is behind or a read may be due, and removes
    /// those that the caches hold.
    fn answers_behind(&mut self, statuses: &InputStatuses) -> Option<Unconfirmed> {
        while let Some(first) = self.targets.first_entry() {
            let (target, expected) = (first.key(), first.get());
            for cache in target.caches(statuses) {
                if target.may_be_in(&cache) {
                    match expected.answered_in(target, &cache)? {
                        AnswerCheck::Held => {}
                        AnswerCheck::Behind(why) => return Some(why),
                    }
                }
            }
            first.remove();
        }
        None
    }

    /// Compares the targets in sequence, until a cache is behind, and keeps those that were read
    /// live. A collection is read once, and is then replaced by those of its objects that the
    /// caches lack, which follow it in the order of the targets.
    async fn confirm(
        &mut self,
        statuses: &InputStatuses,
        client: impl Fn(Option<&ForeignCluster>) -> Client,
    ) -> Result<Confirmed, Unconfirmed> {
        let (mut overlays, mut after) = (Overlays::default(), Bound::Unbounded);
        let mut unread = false;
        while let Some((target, expected)) =
            self.targets.range_mut((after, Bound::Unbounded)).next()
        {
            let (target, mut missing, mut is_open) = (target.clone(), Vec::new(), false);
            for cache in target.caches(statuses) {
                if target.may_be_in(&cache) {
                    match expected.check(&target, &cache, &client).await {
                        Ok(ExpectationCheck::Held) => {}
                        Ok(ExpectationCheck::Missing(objects)) => missing.extend(objects),
                        Ok(ExpectationCheck::Live(key, object)) => {
                            let of_cluster = overlays.entry(cache.cluster()).or_default();
                            of_cluster.entry(cache.key).or_default().insert(key, object);
                            is_open = true;
                        }
                        // Another cluster that does not answer delays no work for the others.
                        Err(Unconfirmed::Unread { .. }) if target.cluster.is_some() => {
                            (is_open, unread) = (true, true);
                        }
                        Err(why) => return Err(why),
                    }
                }
            }
            if !is_open {
                self.targets.remove(&target);
            }
            for (key, state) in missing {
                self.expect(target.object(key), Expectation::new(Some(state)));
            }
            after = Bound::Excluded(target);
        }
        Ok(Confirmed { overlays, unread })
    }
}

/// Runs work of a request, and attributes its writes to it.
pub(in crate::controller) fn with_request<F: Future>(
    request: Request,
    work: F,
) -> impl Future<Output = F::Output> {
    CURRENT.scope(request, work)
}

impl Drop for Reconciling {
    fn drop(&mut self) {
        let mut state = self.unconfirmed.state();
        state.active.remove(&self.request);
        if let Some(writes) = self.writes.take() {
            let open = state.open.entry(self.request.clone()).or_default();
            for (target, expected) in writes.targets {
                // The entry of a newer write wins: it has changed the object since.
                open.targets.entry(target).or_insert(expected);
            }
            open.unknown |= writes.unknown;
            open.own_object |= writes.own_object;
            open.behind = writes.behind;
            open.live |= writes.live;
            if open.live {
                state.recheck.get_or_insert_with(|| Instant::now() + RECHECK);
            }
        }
    }
}

#[cfg(test)]
mod tests;
