//! Run of a controller for one epoch: starts the sources, then the workers, and stops all in order.

pub(in crate::controller) mod failure_report;
mod failure_streak;
mod last_error;
pub(in crate::controller) mod named_inputs;
pub(in crate::controller) mod outcome;
mod settlement;
mod shutdown;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use foldhash::quality::RandomState;
use tokio::{
    select,
    sync::mpsc,
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, info_span};

use self::{
    failure_report::FailureReport,
    named_inputs::{NamedTasks, status_of},
    outcome::{Attempt, NextReconcile},
};
use super::{
    Context, ReconcileError, Request,
    foreign_cluster::ForeignCluster,
    inputs::{
        input::{Input, InputEnd, InputRun},
        status::{InputCache, InputMode},
        statuses::InputStatuses,
    },
    queue::{Item, Queue, retry_gate::RetryGate},
    slots::WorkerSlots,
    spec::{Spec, resource_of},
    unconfirmed::{Comparison, LONGEST_PAUSE, ReadPermit, Reconciling},
};
use crate::{
    duration, guard,
    informer::Subscription,
    manager::{BoxError, Epoch, RunResult},
};

/// Error that ends a run.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    /// Raise the timeout, make the input conditional, or fix the problem that the reason names.
    #[error("sync timeout after {}: {}", duration::human(*.after), .inputs.join("; "))]
    SyncTimeout { after: Duration, inputs: Vec<String> },
    /// Fix the problem that the reason names; the run is retried.
    #[error("source {0}")]
    Source(String),
    /// Fix the reconciler, or let the controller recover from panics.
    #[error("the reconcile of {request} panicked: {message}")]
    Panicked { request: String, message: String },
}

struct EpochRun {
    spec: Arc<Spec>,
    epoch: Epoch,
    statuses: Arc<InputStatuses>,
    queue: Queue<Request>,
    // Cancelled with the epoch, or when the run ends by itself.
    cancel: CancellationToken,
    // Cancelled once the reconciles have ended and read no cache.
    release: CancellationToken,
    sources: JoinSet<InputEnd>,
    // Names of the sources that have not ended.
    source_names: HashMap<Id, String>,
    settled: mpsc::Receiver<usize>,
    named: NamedTasks,
    workers: JoinSet<Attempt>,
    slots: Arc<WorkerSlots>,
    active: HashMap<Id, ActiveReconcile, RandomState>,
    context: Context,
    // Requests that the API server has throttled.
    throttled: RetryGate<Request>,
    // Requests with an earlier write that could not be read from the API server.
    unread: RetryGate<Request>,
    failures: FailureReport,
}

/// Running reconcile.
struct ActiveReconcile {
    item: Item<Request>,
    // True if the server of the controller's cluster is read before the reconcile begins.
    reads: bool,
    since: Instant,
    span: Span,
}

/// Claim on the only run of a controller, returned by its drop.
struct RunClaim(Arc<Spec>);

impl RunClaim {
    /// Claims the run of a controller, unless it runs already.
    fn of(spec: &Arc<Spec>) -> Result<Self, BoxError> {
        if spec.is_running.swap(true, Ordering::AcqRel) {
            let name = &spec.name;
            let why = "runs already, under another name or in another manager; build a second one";
            return Err(format!("controller {name} {why}").into());
        }
        Ok(Self(Arc::clone(spec)))
    }
}

impl Drop for RunClaim {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}

/// Runs one epoch to its end. Fails at once if the controller runs already.
pub(super) async fn run(
    spec: Arc<Spec>,
    epoch: Epoch,
    prepared: HashMap<usize, Subscription>,
) -> RunResult {
    let _claim = RunClaim::of(&spec)?;
    let refused = Arc::clone(&spec);
    let epoch = epoch.on_refused(move || refused.refused());
    let mut run = EpochRun::start(spec, epoch.clone(), prepared);
    let end = run.work().await;
    if end.is_err() || epoch.stop_reason().is_none() {
        // Reported before the drain, which may take the whole grace or longer.
        epoch.record_end(end.as_ref().err().map(ToString::to_string));
    }
    run.stop().await;
    end.map_err(BoxError::from)
}

impl EpochRun {
    fn start(spec: Arc<Spec>, epoch: Epoch, mut prepared: HashMap<usize, Subscription>) -> Self {
        let queue = Queue::with_metrics(spec.queue, spec.series.queue());
        if let Some(limiter) = &spec.limiter {
            queue.limit_by(limiter.build());
        }
        spec.series.watch_work(queue.probe());
        *spec.running_queue.lock() = queue.downgrade();
        spec.series.max_concurrent.set(i64::try_from(spec.workers.workers()).unwrap_or(i64::MAX));
        // Requests with a write of unknown outcome are reconciled even without a change.
        for request in spec.unconfirmed.requests() {
            queue.add(request);
        }
        let inputs = spec.inputs.iter().enumerate().map(|(number, input)| {
            let mut status = status_of(input);
            status.cache = prepared.remove(&number).map(InputCache::Prepared).unwrap_or_default();
            status
        });
        let types = Some(spec.named.cluster.types.clone());
        let (statuses, settled) = InputStatuses::new(epoch.clone(), types, inputs.collect());
        spec.series.watch_inputs(Arc::downgrade(&statuses));
        let cancel = epoch.token().child_token();
        let writes = Some(Arc::clone(&spec.unconfirmed));
        let (own_statuses, own_queue) = (Arc::clone(&statuses), Some(queue.clone()));
        let named = Some(Arc::clone(&spec.named));
        let (inside, client, own) = (epoch.clone(), spec.client.clone(), cancel.clone());
        let context = Context::of(inside, client, writes, own, own_statuses, own_queue, named);
        *spec.running.lock() = context.downgrade();
        let named = NamedTasks::new(Arc::clone(&spec.named), epoch.number());
        let slots = WorkerSlots::new(Arc::clone(&spec.workers));
        let failures = FailureReport::new(epoch.clone());
        let mut run = Self {
            spec,
            epoch,
            statuses,
            queue,
            cancel,
            release: CancellationToken::new(),
            sources: JoinSet::new(),
            source_names: HashMap::new(),
            settled,
            named,
            workers: JoinSet::new(),
            slots,
            active: HashMap::default(),
            context,
            throttled: RetryGate::default(),
            unread: RetryGate::default(),
            failures,
        };
        run.start_sources();
        run
    }

    fn start_sources(&mut self) {
        let spec = Arc::clone(&self.spec);
        for (number, input) in spec.inputs.iter().enumerate() {
            let (feed, release) = (self.cancel.clone(), self.release.clone());
            let _source = self.start_source(input.clone(), number, feed, release);
        }
    }

    fn start_source(
        &mut self,
        input: Input,
        number: usize,
        feed: CancellationToken,
        release: CancellationToken,
    ) -> AbortHandle {
        let name = input.name();
        let follower = InputRun {
            input,
            number,
            epoch: self.epoch.clone(),
            queue: self.queue.clone(),
            feed,
            release,
            statuses: Arc::clone(&self.statuses),
            series: Arc::clone(&self.spec.series),
        };
        let span = info_span!(
            "source",
            controller = %self.spec.name,
            epoch = self.epoch.number(),
            source = name,
        );
        let follow = follower.run().instrument(span);
        let source = self.sources.spawn(self.epoch.tracker().track_future(follow));
        self.source_names.insert(source.id(), name);
        source
    }

    /// Waits for the sources and then reconciles, until the epoch stops or the run fails.
    async fn work(&mut self) -> Result<(), RunError> {
        if self.sync().await? && self.lead().await? {
            self.epoch.running();
            self.reconcile().await?;
        }
        Ok(())
    }

    /// Waits until the requests of all initial lists are in the queue; `false` when the epoch stops
    /// or ends first.
    ///
    /// The sync timeout decides by mode. A required input is waited for as long as its condition
    /// holds, and is reported as late after the timeout. A plain input that is late fails the run.
    /// An optional input is not waited for any longer.
    async fn sync(&mut self) -> Result<bool, RunError> {
        let epoch = self.epoch.clone();
        let after = self.spec.sync_timeout;
        let mut deadline = Instant::now().checked_add(after);
        let mut pending: BTreeSet<usize> = (0..self.spec.inputs.len()).collect();
        while !pending.is_empty() {
            let at = deadline.unwrap_or_else(Instant::now);
            select! {
                biased;
                _ = epoch.stopping() => return Ok(false),
                Some(input) = self.settled.recv() => {
                    pending.remove(&input);
                }
                Some(end) = self.sources.join_next_with_id() => if self.source_ended(end)? {
                    return Ok(false);
                },
                () = self.named.changed() => self.update_inputs(),
                () = sleep_until(at), if deadline.is_some() => {
                    deadline = None;
                    pending.retain(|&input| self.statuses.mode(input) != InputMode::Optional);
                    let is_plain = |input: &&usize| self.statuses.mode(**input) == InputMode::Plain;
                    let late = pending.iter().filter(is_plain);
                    let late: Vec<_> = late.copied().collect();
                    let inputs = self.statuses.reasons(&late);
                    if !inputs.is_empty() {
                        return Err(RunError::SyncTimeout { after, inputs });
                    }
                    self.statuses.overdue();
                }
            }
        }
        Ok(true)
    }

    /// Waits with synced sources and a full queue until this replica leads; `false` when the epoch
    /// stops or ends first.
    async fn lead(&mut self) -> Result<bool, RunError> {
        let epoch = self.epoch.clone();
        if self.spec.works_on_standby || epoch.leads() {
            return Ok(true);
        }
        epoch.report(|report| report.standby = true);
        loop {
            select! {
                biased;
                _ = epoch.stopping() => return Ok(false),
                () = epoch.leading() => break,
                Some(end) = self.sources.join_next_with_id() => if self.source_ended(end)? {
                    return Ok(false);
                },
                () = self.named.changed() => self.update_inputs(),
            }
        }
        epoch.report(|report| report.standby = false);
        Ok(true)
    }

    async fn reconcile(&mut self) -> Result<(), RunError> {
        let epoch = self.epoch.clone();
        let mut stopping = std::pin::pin!(epoch.stopping());
        loop {
            let unconfirmed = &self.spec.unconfirmed;
            let capacity = self.slots.assign(self.workers.len(), unconfirmed.reading());
            let due = self.failures.due();
            let expiry = unconfirmed.expiry();
            select! {
                biased;
                _ = &mut stopping => return Ok(()),
                Some(end) = self.workers.join_next_with_id() => self.reconciled(end)?,
                Some(end) = self.sources.join_next_with_id() => if self.source_ended(end)? {
                    return Ok(());
                },
                () = self.named.changed() => self.update_inputs(),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.failures.report_streak();
                }
                () = sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => {
                    self.spec.unconfirmed.expire(&self.statuses);
                }
                () = self.slots.freed() => {}
                Some(item) = self.queue.get_if(capacity) => self.spawn(item),
            }
        }
    }

    /// Returns the writes of a request that is to be reconciled now, with a permit if a server has to
    /// be read first. A request that is throttled, or whose caches are behind, returns to the queue.
    fn begin(&mut self, item: &Item<Request>) -> Option<(Reconciling, Option<ReadPermit>)> {
        let now = Instant::now();
        if let Some(after) = self.throttled.left(&item.key, now) {
            // An event, perhaps of a write of its own, does not shorten the minimum wait.
            self.wait(item, after);
            return None;
        }
        let mut reconciling = self.spec.unconfirmed.begin(&item.key);
        match reconciling.compare(&self.statuses) {
            Comparison::Held => {
                self.unread.forget(&item.key);
                Some((reconciling, None))
            }
            // No task is needed to wait for the caches.
            Comparison::Behind(behind) => {
                drop(reconciling);
                self.requeue_or_forget(item.clone(), NextReconcile::Wait(behind));
                None
            }
            Comparison::Unread(permit) => {
                let until_retry = self.unread.until_retry(&item.key, now);
                if let Some(after) = until_retry.filter(|_| permit.is_own) {
                    drop(reconciling);
                    // The caches may hold the write before the server is read.
                    self.wait(item, after.min(LONGEST_PAUSE));
                    return None;
                }
                Some((reconciling, Some(permit)))
            }
        }
    }

    /// Starts the reconcile of a request in a slot. While the server is read for it, it has none.
    fn spawn(&mut self, item: Item<Request>) {
        let Some((mut reconciling, permit)) = self.begin(&item) else { return };
        let reads = permit.as_ref().is_some_and(|permit| permit.is_own);
        let slot = self.slots.take(&self.spec.series);
        if permit.is_some() {
            slot.release();
        }
        let context =
            self.context.of_reconcile(&item.key, item.failures, reconciling.has_unknown(), &slot);
        let primary = self.spec.primaries.get(item.key.primary);
        let kind = primary.and_then(|primary| self.statuses.group_kind(primary));
        let span = info_span!(
            "reconcile",
            controller = %self.spec.name,
            epoch = self.epoch.number(),
            group = kind.as_ref().map(|kind| &*kind.group),
            kind = kind.as_ref().map(|kind| &*kind.kind),
            namespace = item.key.namespace.as_deref(),
            name = %item.key.name,
            resource = resource_of(&self.spec.primaries, item.key.primary),
            reconcile_id = %context.reconcile_id(),
        );
        let (request, spec) = (item.key.clone(), Arc::clone(&self.spec));
        let epoch = self.epoch.clone();
        // The user's function is called inside the task, so that its panic is the task's. Boxed
        // first, since each future around it would move its kilobytes again.
        let reconcile = Box::pin(async move {
            // Given back at the end of the reconcile, if it was not released before.
            let slot = slot;
            if let Some(permit) = permit {
                let reader = |cluster: Option<&ForeignCluster>| context.reader(cluster);
                let confirm = async {
                    let confirmed = reconciling.confirm(context.statuses(), reader).await;
                    drop(permit);
                    confirmed?;
                    slot.regain().await;
                    Ok(())
                };
                let confirmed = select! {
                    biased;
                    // The reconcile has not begun, so that a stop need not wait for it.
                    () = context.cancelled() => return Attempt::Aborted,
                    confirmed = confirm => confirmed,
                };
                if let Err(behind) = confirmed {
                    return Attempt::Behind(behind);
                }
            }
            let reconcile = reconciling.run(async {
                let result = (spec.reconcile)(request, context).await;
                if result.as_ref().is_err_and(ReconcileError::is_forbidden) {
                    epoch.refused();
                }
                result
            });
            let result = match spec.reconcile_timeout {
                None => reconcile.await,
                Some(after) => match timeout(after, reconcile).await {
                    Ok(result) => result,
                    Err(_) => return Attempt::TimedOut(after),
                },
            };
            let is_success = result.is_ok();
            let attempt = Attempt::of(result);
            if is_success || matches!(attempt, Attempt::Returned(NextReconcile::Gone)) {
                reconciling.succeeded();
            }
            attempt
        });
        let reconcile = self.epoch.tracker().track_future(reconcile.instrument(span.clone()));
        let id = self.workers.spawn(reconcile).id();
        self.active.insert(id, ActiveReconcile { item, reads, since: Instant::now(), span });
    }

    /// Settles the request of a reconcile that has ended.
    ///
    /// # Errors
    ///
    /// [`RunError::Panicked`] if the controller does not recover from panics.
    fn reconciled(&mut self, end: Result<(Id, Attempt), JoinError>) -> Result<(), RunError> {
        let (id, attempt) = match end {
            Ok(ended) => ended,
            Err(error) => (error.id(), ended_badly(error)),
        };
        let Some(ActiveReconcile { item, reads, since, span }) = self.active.remove(&id) else {
            return Ok(());
        };
        let _entered = span.enter();
        if reads && attempt.has_read() {
            self.admit_reads(&item.key);
        }
        let series = &self.spec.series;
        match &attempt {
            Attempt::TimedOut(_) => drop(series.timeouts.inc()),
            Attempt::Panicked(_) => drop(series.panics.inc()),
            Attempt::Returned(_) | Attempt::Aborted | Attempt::Behind(_) => {}
        }
        let fatal = match &attempt {
            Attempt::Panicked(message) if !self.spec.recovers_panics => {
                Err(RunError::Panicked { request: item.key.to_string(), message: message.clone() })
            }
            Attempt::Panicked(_)
            | Attempt::TimedOut(_)
            | Attempt::Returned(_)
            | Attempt::Aborted
            | Attempt::Behind(_) => Ok(()),
        };
        let next = attempt.next();
        if let Some(result) = next.result() {
            series.reconciled(result);
            series.time.observe(since.elapsed().as_secs_f64());
        }
        self.requeue_or_forget(item, next);
        fatal
    }

    /// Returns whether the epoch ends with the source.
    fn source_ended(&mut self, end: Result<(Id, InputEnd), JoinError>) -> Result<bool, RunError> {
        let id = end.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        self.source_names.remove(&id);
        self.input_joined(id);
        match end {
            Ok((_, InputEnd::Failed(error))) => Err(RunError::Source(error)),
            Ok((_, InputEnd::Done)) => Ok(true),
            Ok((_, InputEnd::Stopped)) => Ok(false),
            Err(error) => match ended_badly(error) {
                Attempt::Panicked(message) => Err(RunError::Source(message)),
                Attempt::Returned(_)
                | Attempt::TimedOut(_)
                | Attempt::Aborted
                | Attempt::Behind(_) => Ok(false),
            },
        }
    }
}

fn ended_badly(error: JoinError) -> Attempt {
    match error.try_into_panic() {
        Ok(panic) => Attempt::Panicked(guard::message(panic)),
        Err(_) => Attempt::Aborted,
    }
}

#[cfg(test)]
mod tests;
