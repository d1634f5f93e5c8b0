//! Writes whose outcome nobody knows, by the request whose reconcile sent them.
//!
//! Such a write may have been carried out all the same, and a cache that has not seen it yet would
//! have it sent twice. So the next reconcile of that request begins when the caches have caught up
//! with the server.

mod check;
mod target;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{task_local, time::Instant};

use self::{
    check::{Live, Unconfirmed},
    target::Target,
};

use crate::{
    controller::{Context, Request},
    kind::TypeRef,
    manager::{Write, WriteObserver},
};

/// Informers linger for seconds; a cache that began after this has seen what was written.
const MEMORY: Duration = Duration::from_secs(600);
/// The first pause before the caches are compared again; doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

task_local! {
    // The request whose reconcile, or whose reconcile's task, runs in this task.
    static ASKING: Request;
}

/// The doubts of a controller. They outlive its epochs.
#[derive(Debug, Default)]
pub(in crate::controller) struct UnconfirmedWrites(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<Request, RequestWrites>,
    // Requests that are being reconciled.
    active: HashSet<Request>,
    // When a doubt last arose.
    latest: Option<Instant>,
}

/// What is not known of one request's writes.
#[derive(Debug, Default)]
struct RequestWrites {
    // With what was seen of it, if it is one of the objects of a collection that was listed.
    targets: BTreeMap<Target, Option<Live>>,
    // How often the caches were found behind.
    waits: u32,
}

/// Marks a request as being reconciled until dropped, and holds its doubt.
#[derive(Debug)]
pub(in crate::controller) struct Reconciling {
    unconfirmed: Arc<UnconfirmedWrites>,
    request: Request,
    writes: Option<RequestWrites>,
}

/// The caches are behind what the server has, or it could not be asked. The request waits.
#[derive(Debug, thiserror::Error)]
#[error("the outcome of an earlier write is unknown, and {why}")]
pub(in crate::controller) struct Behind {
    why: Unconfirmed,
    /// When to look again.
    pub(in crate::controller) after: Duration,
}

impl Behind {
    /// The server did not answer what it was asked; how long it asks to wait, if it does.
    pub(in crate::controller) fn unanswered(&self) -> Option<Duration> {
        self.why.unanswered()
    }
}

impl UnconfirmedWrites {
    /// Hears of writes for the requests whose reconciles send them.
    ///
    /// What a task of the reconciler's own sends may be for any of those that are running.
    pub(in crate::controller) fn observer(self: &Arc<Self>) -> WriteObserver {
        let unconfirmed = Arc::clone(self);
        Arc::new(move |write| {
            let unconfirmed = Arc::clone(&unconfirmed);
            let asking = match ASKING.try_with(Clone::clone) {
                Ok(request) => vec![request],
                Err(_) => unconfirmed.state().active.iter().cloned().collect(),
            };
            Box::new(move || unconfirmed.add(asking, write))
        })
    }

    /// The turn of a request, which has one at a time.
    pub(in crate::controller) fn begin(self: &Arc<Self>, request: &Request) -> Reconciling {
        let mut state = self.state();
        state.active.insert(request.clone());
        let writes = state.open.remove(request);
        drop(state);
        Reconciling { unconfirmed: Arc::clone(self), request: request.clone(), writes }
    }

    /// The requests in doubt: they are reconciled in the next epoch, whatever else happens.
    pub(in crate::controller) fn requests(&self) -> Vec<Request> {
        self.state().open.keys().cloned().collect()
    }

    /// Whether a controller of the same name has to know of them, when there is none now.
    pub(in crate::controller) fn matter(&self) -> bool {
        let state = self.state();
        !state.open.is_empty() && state.latest.is_some_and(|latest| latest.elapsed() < MEMORY)
    }

    fn add(&self, asking: Vec<Request>, write: Write) {
        let target = Target::of(write);
        let mut state = self.state();
        state.latest = Some(Instant::now());
        for request in asking {
            // A write to something that is no object leaves the request itself in doubt.
            let writes = state.open.entry(request).or_default();
            writes.targets.extend(target.clone().map(|target| (target, None)));
        }
    }

    // Nothing panics half-way through a change of it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconciling {
    /// Whether the outcome of an earlier write is unknown.
    pub(in crate::controller) fn has_unconfirmed(&self) -> bool {
        self.writes.is_some()
    }

    /// Compares the caches with the server, if there is a doubt; it is gone when they have caught
    /// up.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the doubt stays.
    pub(in crate::controller) async fn settle(
        &mut self,
        context: &Context,
        primary: Option<&TypeRef>,
    ) -> Result<(), Behind> {
        let Some(writes) = &mut self.writes else { return Ok(()) };
        // The object itself too: what was written may have changed it.
        let served = primary.and_then(|primary| context.served(primary));
        let itself = served.map(|served| Target::itself(&self.request, &served));
        if let Err(why) = writes.settle(itself, context).await {
            let after = FIRST_PAUSE.saturating_mul(1 << writes.waits.min(16)).min(LONGEST_PAUSE);
            writes.waits = writes.waits.saturating_add(1);
            return Err(Behind { why, after });
        }
        self.writes = None;
        Ok(())
    }

    /// Runs what a request is reconciled with, so that its writes are known as this request's.
    pub(in crate::controller) async fn take<T>(&self, reconcile: impl Future<Output = T>) -> T {
        asking(self.request.clone(), reconcile).await
    }
}

impl RequestWrites {
    /// Compares one target after the other. A target that the caches have caught up with is not
    /// looked at again, and a collection becomes those of its objects that they lack: it is listed
    /// once, however long they take.
    async fn settle(
        &mut self,
        itself: Option<Target>,
        context: &Context,
    ) -> Result<(), Unconfirmed> {
        while let Some((target, seen)) = self.targets.first_key_value() {
            let missed = check::caught_up(target, seen.as_ref(), context).await?;
            self.targets.pop_first();
            for (target, seen) in missed {
                self.targets.entry(target).or_insert(Some(seen));
            }
        }
        if let Some(itself) = itself {
            check::caught_up(&itself, None, context).await?;
        }
        Ok(())
    }
}

/// Runs work of a request, so that its writes are known as this request's.
pub(in crate::controller) fn asking<F: Future>(
    request: Request,
    work: F,
) -> impl Future<Output = F::Output> {
    ASKING.scope(request, work)
}

impl Drop for Reconciling {
    fn drop(&mut self) {
        let mut state = self.unconfirmed.state();
        state.active.remove(&self.request);
        if let Some(writes) = self.writes.take() {
            let open = state.open.entry(self.request.clone()).or_default();
            for (target, seen) in writes.targets {
                // A newer write may have changed what was seen.
                open.targets.entry(target).or_insert(seen);
            }
            open.waits = open.waits.max(writes.waits);
        }
    }
}
