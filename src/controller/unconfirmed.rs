//! Unconfirmed writes: writes that the caches may not hold yet, by the request that sent them.
//!
//! A reconcile over a cache without an earlier write would write again. So the next reconcile of a
//! request waits until the caches hold what it wrote. The server is read at once after a lost
//! response, and otherwise after some seconds, since the state that a cache has to reach may be
//! another one by then. No reconcile sees what was read.

mod by_name;
mod expectation;
mod read;
mod reads;
mod target;
mod write_reply;

use std::{
    collections::{
        BTreeMap, HashMap, HashSet,
        btree_map::Entry::{Occupied, Vacant},
    },
    sync::Arc,
    time::Duration,
};

use foldhash::quality::RandomState;
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::{task_local, time::Instant};

pub(in crate::controller) use self::{by_name::UnconfirmedByName, reads::ReadPermit};
use self::{
    expectation::{Expectation, READ_DELAY},
    read::ReadError,
    reads::Reads,
    target::Target,
    write_reply::WriteReply,
};

use super::{
    Request,
    foreign_cluster::ForeignCluster,
    inputs::{attached::Attached, statuses::InputStatuses},
};
use crate::{
    discovery::RegistryId,
    informer::ObjectKey,
    kind::TypeIdentity,
    manager::{WriteEnd, WriteObserver, WriteRequest},
};

/// Retention of answered writes that no reconcile requests and no cache lacks, and of the writes of
/// a name without a controller, ten minutes. Informers linger for seconds only, so that a cache
/// which starts later includes them.
const RETENTION: Duration = Duration::from_secs(600);
/// First pause before the caches are compared again. Each pause is as long as the wait so far, so
/// that the wait doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause before the caches are compared again: a request whose write no event reports
/// continues within this time once the watch is back.
pub(in crate::controller) const LONGEST_PAUSE: Duration = READ_DELAY;

/// Longest pause of a request for whose read other reads have to end first.
const LONGEST_QUEUED_PAUSE: Duration = Duration::from_secs(1);

task_local! {
    // Request whose reconcile, or a task spawned by it, runs in this task.
    static CURRENT: Request;
}

/// Unconfirmed writes of a controller; they outlive its epochs.
#[derive(Debug, Default)]
pub(in crate::controller) struct UnconfirmedWrites {
    tracked: Mutex<TrackedWrites>,
    reads: Reads,
}

#[derive(Debug, Default)]
struct TrackedWrites {
    open: HashMap<Request, RequestWrites, RandomState>,
    // Requests in reconcile.
    active: HashSet<Request, RandomState>,
    // Time of the next removal of old writes; `None` without writes.
    expiry: Option<Instant>,
}

/// Unconfirmed writes of one request.
#[derive(Debug)]
struct RequestWrites {
    targets: BTreeMap<Target, Expectation>,
    // True if the outcome of one of them was unknown, until a reconcile has succeeded.
    unknown: bool,
    // Time of the first comparison that found the caches behind.
    behind: Option<Instant>,
    // Time of the last comparison, or of the first write after it.
    since: Instant,
}

/// Marks a request as in reconcile until dropped, and holds its unconfirmed writes.
#[derive(Debug)]
pub(in crate::controller) struct Reconciling {
    unconfirmed: Arc<UnconfirmedWrites>,
    request: Request,
    writes: Option<RequestWrites>,
}

/// Comparison of the caches with the writes of a request.
#[derive(Debug)]
pub(in crate::controller) enum Comparison {
    /// The caches hold the writes.
    Held,
    /// A cache does not hold one of them. The request waits.
    Behind(Behind),
    /// A server has to be read first, while this permit is held.
    Unread(ReadPermit),
}

/// The caches are behind a write, or the server could not be read. The request waits.
#[derive(Debug, thiserror::Error)]
#[error("an earlier write is unconfirmed: {why}")]
pub(in crate::controller) struct Behind {
    why: Unconfirmed,
    /// Pause before the next comparison.
    pub(in crate::controller) after: Duration,
}

/// Error: the caches could not be shown to hold a write.
#[derive(Debug, thiserror::Error)]
enum Unconfirmed {
    /// Wait for the watch to deliver the change.
    #[error("the cache of {resource} does not hold the last write of {key} yet")]
    Behind { resource: TypeIdentity, key: ObjectKey },
    /// Fix what the reason names; the read is retried.
    #[error("{resource} cannot be read from the server: {source}")]
    Unread { resource: TypeIdentity, source: ReadError },
    /// Wait for the reads of other requests.
    #[error("the server is read for other requests first")]
    Queued,
}

impl Behind {
    /// Returns the wait that the server requested if it could not be read; zero if it requested
    /// none.
    pub(in crate::controller) fn unanswered(&self) -> Option<Duration> {
        match &self.why {
            Unconfirmed::Behind { .. } | Unconfirmed::Queued => None,
            Unconfirmed::Unread { source, .. } => Some(source.retry_after()),
        }
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

    /// Returns the number of requests for which the server is read.
    pub(in crate::controller) fn reading(&self) -> usize {
        self.reads.under_way()
    }

    /// Returns whether a later controller of the same name still needs these writes.
    pub(in crate::controller) fn is_needed(&self) -> bool {
        self.state().open.values().any(RequestWrites::is_retained)
    }

    /// Returns the time at which [`UnconfirmedWrites::expire`] is due; `None` without writes.
    pub(in crate::controller) fn expiry(&self) -> Option<Instant> {
        self.state().expiry
    }

    /// Removes answered writes that no reconcile has requested for ten minutes, unless a cache of
    /// the run lacks one of them.
    pub(in crate::controller) fn expire(&self, statuses: &InputStatuses) {
        let mut state = self.state();
        state.open.retain(|_, writes| {
            writes.unknown
                || writes.is_retained()
                || writes.first_missing(statuses, |_| false).is_some()
        });
        state.open.shrink_to_fit();
        state.expiry = (!state.open.is_empty()).then(|| Instant::now() + RETENTION);
    }

    fn add(
        &self,
        requests: Vec<Request>,
        cluster: Option<RegistryId>,
        write: &WriteRequest,
        end: WriteEnd,
    ) {
        let (unknown, reply) = match end {
            WriteEnd::Answered(body) => (false, WriteReply::decode(write.method(), &body)),
            WriteEnd::Unknown => (true, WriteReply::default()),
        };
        let target = Target::of(write, cluster, reply.name);
        let mut state = self.state();
        for request in requests {
            let writes = state.writes_of(request);
            writes.unknown |= unknown;
            if let Some(target) = &target {
                writes.expect(target.clone(), Expectation::new(reply.state.clone()));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, TrackedWrites> {
        self.tracked.lock()
    }
}

impl TrackedWrites {
    /// Returns the writes of a request, to be changed.
    fn writes_of(&mut self, request: Request) -> &mut RequestWrites {
        let (targets, since) = (BTreeMap::new(), Instant::now());
        self.expiry.get_or_insert(since + RETENTION);
        let new = RequestWrites { targets, unknown: false, behind: None, since };
        self.open.entry(request).or_insert(new)
    }
}

impl Reconciling {
    /// Returns whether the outcome of an earlier write is unknown.
    pub(in crate::controller) fn has_unknown(&self) -> bool {
        self.writes.as_ref().is_some_and(|writes| writes.unknown)
    }

    /// Compares the caches of a run with the writes, up to the first that one of them lacks, and
    /// forgets those that all of them hold.
    pub(in crate::controller) fn compare(&mut self, statuses: &InputStatuses) -> Comparison {
        let Some(writes) = &mut self.writes else { return Comparison::Held };
        let reads = &self.unconfirmed.reads;
        let missing = writes.first_missing(statuses, |target| reads.excuses(target));
        let Some((target, lacking)) = missing else {
            self.confirmed();
            return Comparison::Held;
        };
        if let Some(why) = writes.not_due(&target, &lacking) {
            return Comparison::Behind(writes.wait(why));
        }
        if let Some(permit) = reads.permit(&target) {
            return Comparison::Unread(permit);
        }
        let Behind { why, after } = writes.wait(Unconfirmed::Queued);
        Comparison::Behind(Behind { why, after: after.min(LONGEST_QUEUED_PAUSE) })
    }

    /// Compares the caches of a run with the writes, reads the server for those that a cache lacks,
    /// and forgets those that the caches hold.
    ///
    /// # Errors
    ///
    /// [`Behind`] while a cache does not hold one of them, or the server cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the writes stay unconfirmed.
    pub(in crate::controller) async fn confirm(
        &mut self,
        statuses: &InputStatuses,
        client: impl Fn(Option<&ForeignCluster>) -> Client,
    ) -> Result<(), Behind> {
        let Some(writes) = &mut self.writes else { return Ok(()) };
        let confirmed = writes.confirm(statuses, &self.unconfirmed.reads, client).await;
        confirmed.map_err(|why| writes.wait(why))?;
        self.confirmed();
        Ok(())
    }

    /// Records that the reconcile may begin. Writes to another cluster that could not be read stay.
    fn confirmed(&mut self) {
        self.writes.take_if(|writes| {
            writes.behind = None;
            writes.targets.is_empty() && !writes.unknown
        });
    }

    /// Records that the reconcile has succeeded: the next one need not know of an unknown outcome.
    pub(in crate::controller) fn succeeded(&mut self) {
        self.writes.take_if(|writes| writes.targets.is_empty());
    }

    /// Runs a reconcile, and attributes its writes to this request.
    pub(in crate::controller) async fn run<T>(&self, reconcile: impl Future<Output = T>) -> T {
        with_request(self.request.clone(), reconcile).await
    }
}

impl RequestWrites {
    /// Returns whether the writes are kept although no reconcile requests them.
    fn is_retained(&self) -> bool {
        self.since.elapsed() < RETENTION
    }

    fn expect(&mut self, target: Target, new: Expectation) {
        match self.targets.entry(target) {
            Vacant(vacant) => {
                vacant.insert(new);
            }
            Occupied(mut old) => old.get_mut().replace(new),
        }
    }

    /// Returns the wait for the caches.
    fn wait(&mut self, why: Unconfirmed) -> Behind {
        // From the elapsed time: an event of the request adds comparisons, which must not lengthen
        // the pause.
        let waited = self.behind.get_or_insert_with(Instant::now).elapsed();
        Behind { why, after: waited.clamp(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    /// Returns the first target that some caches lack, with these caches, and forgets those that all
    /// caches hold.
    fn first_missing(
        &mut self,
        statuses: &InputStatuses,
        skips: impl Fn(&Target) -> bool,
    ) -> Option<(Target, Vec<Attached>)> {
        let mut missing = None;
        self.targets.retain(|target, expected| {
            if missing.is_some() || skips(target) {
                return true;
            }
            let mut lacking = target.caches(statuses);
            lacking.retain(|cache| !expected.is_held(target, cache));
            let is_lacking = !lacking.is_empty();
            if is_lacking {
                missing = Some((target.clone(), lacking));
            }
            is_lacking
        });
        missing
    }

    /// Returns an error if the server is not to be read for a target yet.
    fn not_due(&self, target: &Target, lacking: &[Attached]) -> Option<Unconfirmed> {
        // A collection is read at once.
        let (key, cache) = (target.key()?, lacking.first()?);
        let resource = || cache.served.identity.clone();
        let is_due = self.targets[target].is_due(&key, lacking);
        (!is_due).then(|| Unconfirmed::Behind { resource: resource(), key })
    }

    async fn confirm(
        &mut self,
        statuses: &InputStatuses,
        reads: &Reads,
        client: impl Fn(Option<&ForeignCluster>) -> Client,
    ) -> Result<(), Unconfirmed> {
        let mut unread = Vec::new();
        loop {
            let skips = |target: &Target| {
                let is_unread = |cluster| unread.contains(cluster);
                reads.excuses(target) || target.cluster.as_ref().is_some_and(is_unread)
            };
            let Some((target, lacking)) = self.first_missing(statuses, skips) else {
                return Ok(());
            };
            match (self.read(&target, &lacking, &client).await, target.cluster) {
                // Another cluster that does not answer delays no work for the others, and is read once.
                (Err(Unconfirmed::Unread { source, .. }), Some(cluster)) => {
                    reads.failed(&cluster, source.retry_after());
                    unread.push(cluster);
                }
                (Ok(()), Some(cluster)) => reads.answered(&cluster),
                (read, _) => read?,
            }
        }
    }

    /// Reads a target from the server for the caches that lack it. From then on, they have to hold
    /// what was read.
    async fn read(
        &mut self,
        target: &Target,
        lacking: &[Attached],
        client: impl Fn(Option<&ForeignCluster>) -> Client,
    ) -> Result<(), Unconfirmed> {
        if let Some(early) = self.not_due(target, lacking) {
            return Err(early);
        }
        let mut found = Vec::new();
        for cache in lacking {
            let client = client(cache.foreign.as_ref());
            let missing = read::missing(target, cache, &client).await.map_err(|source| {
                Unconfirmed::Unread { resource: cache.served.identity.clone(), source }
            })?;
            found.extend(missing.into_iter().map(|(key, state)| (key, cache.key.clone(), state)));
        }
        let Some(written) = self.targets.remove(target) else { return Ok(()) };
        for (key, cache, state) in found {
            let expected = self.targets.entry(target.object(key));
            expected.or_insert_with(|| written.to_read(lacking)).expect_in(cache, state);
        }
        Ok(())
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
        let Some(mut writes) = self.writes.take() else { return };
        writes.since = Instant::now();
        let Some(newer) = state.open.get_mut(&self.request) else {
            state.expiry.get_or_insert_with(|| Instant::now() + RETENTION);
            state.open.insert(self.request.clone(), writes);
            return;
        };
        for (target, expected) in writes.targets {
            match newer.targets.entry(target) {
                Vacant(vacant) => {
                    vacant.insert(expected);
                }
                // The entry of a newer write wins: it has changed the object since.
                Occupied(mut newer) => newer.get_mut().keep_due(&expected),
            }
        }
        newer.unknown |= writes.unknown;
        newer.behind = writes.behind;
    }
}

#[cfg(test)]
mod tests;
