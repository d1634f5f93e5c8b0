//! Unconfirmed writes: writes of unknown outcome, by the request whose reconcile sent them.
//!
//! The server may have applied an unconfirmed write. A reconcile over a cache that does not yet
//! show it would send the write again. So the next reconcile of that request waits until the caches
//! have caught up with the server.

mod check;
mod target;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{task_local, time::Instant};

use self::{
    check::{Live, Unconfirmed},
    target::Target,
};

use crate::{
    controller::{Context, Request},
    duration::doubled,
    kind::TypeRef,
    manager::{Write, WriteEnd, WriteObserver},
};

/// Retention of the unconfirmed writes of a name without a controller, ten minutes since the last
/// write. Informers linger for seconds only, so that a cache which starts later includes them.
const RETENTION: Duration = Duration::from_secs(600);
/// First pause before the caches are compared again; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause before the caches are compared again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

task_local! {
    // Request whose reconcile, or a task spawned by it, runs in this task.
    static CURRENT: Request;
}

/// Unconfirmed writes of a controller; they outlive its epochs.
#[derive(Debug, Default)]
pub(in crate::controller) struct UnconfirmedWrites(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<Request, RequestWrites>,
    // Requests in reconcile.
    active: HashSet<Request>,
    // Time of the last write whose outcome became unknown.
    latest: Option<Instant>,
}

/// Unconfirmed writes of one request.
#[derive(Debug, Default)]
struct RequestWrites {
    // Objects or collections written, each with its state on the server if a list has shown it.
    targets: BTreeMap<Target, Option<Live>>,
    // Number of comparisons that found the caches behind.
    waits: u32,
}

/// Marks a request as in reconcile until dropped, and holds its unconfirmed writes.
#[derive(Debug)]
pub(in crate::controller) struct Reconciling {
    unconfirmed: Arc<UnconfirmedWrites>,
    request: Request,
    writes: Option<RequestWrites>,
}

/// The caches are behind the server, or the server could not be read. The request waits.
#[derive(Debug, thiserror::Error)]
#[error("the outcome of an earlier write is unknown, and {why}")]
pub(in crate::controller) struct Behind {
    why: Unconfirmed,
    /// Pause before the next comparison.
    pub(in crate::controller) after: Duration,
}

impl Behind {
    /// Returns the wait that the server asked for if it could not be read; zero if it asked for
    /// none.
    pub(in crate::controller) fn unanswered(&self) -> Option<Duration> {
        self.why.unanswered()
    }
}

impl UnconfirmedWrites {
    /// Returns an observer that records each write of unknown outcome for its request.
    ///
    /// A write from a task without a current request (`tokio::spawn`) counts for every request in
    /// reconcile.
    pub(in crate::controller) fn observer(self: &Arc<Self>) -> WriteObserver {
        let unconfirmed = Arc::clone(self);
        Arc::new(move |write| {
            let unconfirmed = Arc::clone(&unconfirmed);
            let requests = match CURRENT.try_with(Clone::clone) {
                Ok(request) => vec![request],
                Err(_) => unconfirmed.state().active.iter().cloned().collect(),
            };
            Box::new(move |end| {
                if end == WriteEnd::Unknown {
                    unconfirmed.add(requests, write);
                }
            })
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

    /// Returns the requests with unconfirmed writes, which the next epoch reconciles in any case.
    pub(in crate::controller) fn requests(&self) -> Vec<Request> {
        self.state().open.keys().cloned().collect()
    }

    /// Returns whether a later controller of the same name still needs these writes.
    pub(in crate::controller) fn is_needed(&self) -> bool {
        let state = self.state();
        !state.open.is_empty() && state.latest.is_some_and(|latest| latest.elapsed() < RETENTION)
    }

    fn add(&self, requests: Vec<Request>, write: Write) {
        let target = Target::of(write);
        let mut state = self.state();
        state.latest = Some(Instant::now());
        for request in requests {
            // A write without a target is recorded too: the request's own object is compared.
            let writes = state.open.entry(request).or_default();
            writes.targets.extend(target.clone().map(|target| (target, None)));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Reconciling {
    /// Returns whether the outcome of an earlier write is unknown.
    pub(in crate::controller) fn has_unconfirmed(&self) -> bool {
        self.writes.is_some()
    }

    /// Compares the caches with the server if there are unconfirmed writes; clears those writes
    /// once the caches have caught up.
    ///
    /// # Errors
    ///
    /// [`Behind`] while the caches have not caught up, or the server cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the writes stay unconfirmed.
    pub(in crate::controller) async fn confirm(
        &mut self,
        context: &Context,
        primary: Option<&TypeRef>,
    ) -> Result<(), Behind> {
        let Some(writes) = &mut self.writes else { return Ok(()) };
        // The request's own object is compared too: the write may have changed it.
        let served = primary.and_then(|primary| context.served(primary));
        let primary = served.map(|served| Target::of_request(&self.request, &served));
        if let Err(why) = writes.confirm(primary, context).await {
            let after = doubled(FIRST_PAUSE, writes.waits, LONGEST_PAUSE);
            writes.waits = writes.waits.saturating_add(1);
            return Err(Behind { why, after });
        }
        self.writes = None;
        Ok(())
    }

    /// Runs a reconcile, and attributes its writes to this request.
    pub(in crate::controller) async fn run<T>(&self, reconcile: impl Future<Output = T>) -> T {
        with_request(self.request.clone(), reconcile).await
    }
}

impl RequestWrites {
    /// Compares the targets in sequence.
    ///
    /// A target that the caches have caught up with is not compared again. A collection is listed
    /// once, and is then replaced by those of its objects that the caches lack.
    async fn confirm(
        &mut self,
        primary: Option<Target>,
        context: &Context,
    ) -> Result<(), Unconfirmed> {
        while let Some((target, seen)) = self.targets.first_key_value() {
            let missed = check::caught_up(target, seen.as_ref(), context).await?;
            self.targets.pop_first();
            for (target, seen) in missed {
                self.targets.entry(target).or_insert(Some(seen));
            }
        }
        if let Some(primary) = primary {
            check::caught_up(&primary, None, context).await?;
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
        if let Some(writes) = self.writes.take() {
            let open = state.open.entry(self.request.clone()).or_default();
            for (target, seen) in writes.targets {
                // The entry of a newer write wins: its write may have changed the state seen.
                open.targets.entry(target).or_insert(seen);
            }
            open.waits = open.waits.max(writes.waits);
        }
    }
}
