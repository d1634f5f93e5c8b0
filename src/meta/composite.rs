//! Composite controller: syncs parents and their children with the hook that decides on them.

mod adopt;
mod apply;
mod dry_run_create;
mod dry_run_update;
mod owner_chain;
mod parent_status;

use std::{
    fmt,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::core::Status;
use tokio::{runtime::Handle, time::sleep};
use tracing::warn;

use super::{
    ControllerBudget, Definition, Hook, HookError, HookSeries, Parents, Selector,
    children::{Desired, Group, Parent, Rules},
    claim, hook,
    hook_health::{Failure, Health},
    hook_metrics::CallOutcome,
    protocol,
    recorder::{EventRecorder, Severity, Subject},
    resource::{asks_to_wait, explain, is_conflict, is_fenced, is_gone, is_not_found, throttled},
    write_limit::Flapping,
};
use crate::{
    controller::{
        Backoff, BuildError, Cluster, Context, Controller, Handler, ObjectGone, Outcome, Postponed,
        Predicate, ReconcileError, Reconciler, Request,
    },
    guard,
    informer::{Delta, Object},
    kind::{Scope, TypeRef},
    manager::{
        ConditionalRunnable, ControllerName, Epoch, Readiness, RunResult, Runnable, Subresource,
        all_of, subresource_served,
    },
    redaction,
};

/// Number of failures in a row after which a conflict or a cache that lags behind counts as an
/// error.
const CONFLICTS_BEFORE_ERROR: u32 = 5;

/// Time after the grace in which a hook may release its resources. Shorter than the time after which
/// an epoch counts as stuck.
const RELEASE_SLACK: Duration = Duration::from_millis(500);

/// Runnable of a declared composite controller.
pub(crate) struct CompositeRunnable {
    controller: Controller,
    parent: TypeRef,
    cluster: Cluster,
    parents: Arc<Parents>,
    hook: Arc<dyn Hook>,
}

/// Hook of a controller, with the metrics of its calls and the budget of its responses.
pub(crate) struct CountedHook {
    pub(crate) hook: Arc<dyn Hook>,
    pub(crate) series: HookSeries,
    pub(crate) budget: ControllerBudget,
}

struct Composite {
    definition: Arc<Definition>,
    hook: Arc<dyn Hook>,
    series: HookSeries,
    budget: ControllerBudget,
    recorder: EventRecorder,
    parents: Arc<Parents>,
    backoff: Backoff,
    /// Namespace that is watched, if only one is.
    restricted: Option<Arc<str>>,
}

impl CompositeRunnable {
    /// Builds the runnable of a definition. Starts nothing.
    pub(crate) fn new(
        name: ControllerName,
        definition: Arc<Definition>,
        hook: CountedHook,
        cluster: &Cluster,
        recorder: EventRecorder,
        workers: usize,
        health_changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let CountedHook { hook, series, budget } = hook;
        let parents = Arc::new(Parents::new(health_changed));
        let (selector, ignore) =
            (definition.parent_selector.clone(), definition.ignore_status_changes);
        let backoff = backoff(definition.resync_period);
        let mut builder = Controller::builder(name)
            .for_type(definition.parent.clone())
            .conditional()
            .predicate(Predicate::new(move |delta| triggers_sync(delta, &selector, ignore)))
            .backoff(backoff)
            .max_concurrent_reconciles(workers);
        for rule in &definition.children {
            let (parents, known) = (Arc::clone(&parents), Arc::clone(&parents));
            let handler = Handler::delta(move |delta, enqueue| {
                for parent in parents.index.concerned(delta) {
                    enqueue.add(parent);
                }
            });
            builder = builder.watches_type(rule.type_ref.clone(), handler);
            builder = if rule.optional {
                let parents = Arc::clone(&known);
                // Children of this type were left out while it was missing.
                builder.optional().on_synced(move |enqueue| {
                    for parent in parents.index.keys() {
                        enqueue.add(parent);
                    }
                })
            } else {
                builder.conditional()
            };
        }
        let reconciler = Composite {
            definition: Arc::clone(&definition),
            hook: Arc::clone(&hook),
            series,
            budget,
            recorder,
            parents: Arc::clone(&parents),
            backoff,
            restricted: cluster.namespace.clone(),
        };
        Ok(Self {
            controller: builder.build(cluster, reconciler)?,
            parent: definition.parent.clone(),
            cluster: cluster.clone(),
            parents,
            hook,
        })
    }

    /// Returns the health of the hook, and each later change.
    pub(crate) fn health(&self) -> tokio::sync::watch::Receiver<Health> {
        self.parents.hook.subscribe()
    }
}

/// Cleans up after a run. Dropping it cleans up too, when the run is dropped after its grace
/// period.
struct Cleanup {
    parents: Arc<Parents>,
    // `None` once the hook is released.
    hook: Option<Arc<dyn Hook>>,
    epoch: Epoch,
}

/// Failed release of a hook, which may still hold connections or cached answers.
#[derive(Debug, thiserror::Error)]
enum ReleaseError {
    /// Resolve `Hook::release` sooner, or raise the grace.
    #[error("the hook was not released within the grace")]
    Late,
    /// Mend `Hook::release`.
    #[error("the hook panicked during its release: {0}")]
    Panicked(String),
}

impl Cleanup {
    async fn run(mut self) -> Result<(), ReleaseError> {
        self.parents.clear();
        let released = match &self.hook {
            Some(hook) => release(&**hook, &self.epoch).await,
            None => Ok(()),
        };
        self.hook = None;
        released
    }
}

/// Releases a hook; drops the release shortly after the grace of the epoch.
async fn release(hook: &dyn Hook, epoch: &Epoch) -> Result<(), ReleaseError> {
    let over = async {
        epoch.grace_over().await;
        sleep(RELEASE_SLACK).await;
    };
    tokio::select! {
        biased;
        released = guard::future(async { hook.release().await }) => {
            released.map_err(ReleaseError::Panicked)
        }
        () = over => Err(ReleaseError::Late),
    }
}

fn warn_of(epoch: &Epoch, error: &ReleaseError) {
    let (controller, epoch) = (epoch.controller(), epoch.number());
    warn!(%controller, epoch, %error, "hook not released");
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let Some(hook) = self.hook.take() else { return };
        self.parents.clear();
        // The epoch awaits the task, and so is not done before the hook is released.
        if let Ok(runtime) = Handle::try_current() {
            let epoch = self.epoch.clone();
            let release = async move {
                if let Err(error) = release(&*hook, &epoch).await {
                    warn_of(&epoch, &error);
                }
            };
            drop(self.epoch.tracker().spawn_on(release, &runtime));
        }
    }
}

impl Runnable for CompositeRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let cleanup = Cleanup {
            parents: Arc::clone(&self.parents),
            hook: Some(Arc::clone(&self.hook)),
            epoch: epoch.clone(),
        };
        let run = self.controller.start(epoch.clone());
        Box::pin(async move {
            let end = run.await;
            match (end, cleanup.run().await) {
                (Ok(()), released) => Ok(released?),
                (failed, Ok(())) => failed,
                (failed, Err(error)) => {
                    warn_of(&epoch, &error);
                    failed
                }
            }
        })
    }

    fn reports_running(&self) -> bool {
        self.controller.reports_running()
    }

    fn keeps_grace(&self) -> bool {
        self.controller.keeps_grace()
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        self.controller.prepare()
    }

    fn unprepare(&self) {
        self.controller.unprepare();
    }
}

impl ConditionalRunnable for CompositeRunnable {
    fn ready(&self) -> Readiness {
        // The status is written through its subresource, which must be served.
        let parent = subresource_served(&self.cluster.types, &self.parent, Subresource::Status);
        all_of([parent, self.controller.ready()])
    }
}

impl fmt::Debug for CompositeRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompositeRunnable").field("parent", &self.parent).finish_non_exhaustive()
    }
}

/// Back-off of failed syncs, at most as long as the resync period.
fn backoff(resync_period: Option<Duration>) -> Backoff {
    let longest = Backoff::default().max;
    Backoff { max: resync_period.unwrap_or(longest).min(longest), ..Backoff::default() }
}

/// Returns whether a change of a parent triggers a sync.
///
/// The change that makes a parent stop matching passes, so that the reconciler forgets it.
fn triggers_sync(delta: &Delta, selector: &Selector, ignore_status_changes: bool) -> bool {
    let matches = |object: &Object| selector.matches(&object.header().labels);
    if !delta.old.iter().chain(&delta.new).any(matches) {
        return false;
    }
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) if ignore_status_changes => {
            let (old, new) = (old.header(), new.header());
            old.uid != new.uid
                || old.generation != new.generation
                || old.labels != new.labels
                || old.annotations != new.annotations
                || new.deletion_timestamp.is_some()
        }
        _ => true,
    }
}

/// Reason why a sync did not complete.
#[derive(Debug)]
enum SyncError {
    /// The epoch is over.
    Cancelled,
    /// The hook is busy and requests a later retry.
    Busy(Duration),
    /// Another client wrote first, or the cache lags behind. Retried soon, without an Event.
    Behind(String),
    /// The hook is down: the failure is not known to be specific to this parent.
    HookDown(Failure),
    /// The response of the hook is not usable.
    Hook(Failure),
    /// The API server throttled a request.
    Throttled { message: String, after: Duration },
    /// The chain of owners of the parent's type is too long for children of that type.
    TooDeep(String),
    /// Any other failure; reported as an Event.
    Failed(String),
}

impl SyncError {
    fn of_write(doing: &str, error: &kube::Error) -> Self {
        if is_fenced(error) {
            Self::Cancelled
        } else if is_conflict(error) || is_not_found(error) && !is_gone(error) {
            Self::Behind(format!("{doing}: {}", explain(error)))
        } else {
            let message = format!("{doing}: {}", explain(error));
            match asks_to_wait(error) {
                Some(after) => Self::Throttled { message, after },
                None => Self::Failed(message),
            }
        }
    }

    /// Returns the error after this many failures in a row. A cache that never catches up becomes a
    /// failure that is reported.
    fn after(self, failures: u32) -> Self {
        match self {
            Self::Behind(message) if failures >= CONFLICTS_BEFORE_ERROR => Self::Failed(message),
            Self::Cancelled
            | Self::Busy(_)
            | Self::Behind(_)
            | Self::HookDown(_)
            | Self::Hook(_)
            | Self::Throttled { .. }
            | Self::TooDeep(_)
            | Self::Failed(_) => self,
        }
    }

    fn answer(message: String) -> Self {
        Self::Hook(Failure { reason: "HookAnswerInvalid", message })
    }
}

impl From<HookError> for Failure {
    fn from(error: HookError) -> Self {
        Self { reason: error.reason(), message: error.to_string() }
    }
}

impl From<HookError> for SyncError {
    fn from(error: HookError) -> Self {
        match error {
            HookError::Cancelled => Self::Cancelled,
            HookError::Busy(after) => Self::Busy(after),
            HookError::Timeout(_)
            | HookError::Transport(_)
            | HookError::Status { code: 500.., .. } => Self::HookDown(Failure::from(error)),
            // The hook responded: the budget that is exhausted is that of this process.
            HookError::NoBudget { .. }
            | HookError::Status { .. }
            | HookError::NothingToConfirm { .. }
            | HookError::TooLarge { .. }
            | HookError::Encoded(_) => Self::Hook(Failure::from(error)),
        }
    }
}

impl Reconciler for Composite {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let parent = &self.definition.parent;
        let (Some(served), Some(store)) = (context.served(parent), context.store(parent)) else {
            return Ok(Outcome::Done);
        };
        let object = store
            .get(&request)
            .filter(|object| self.definition.parent_selector.matches(&object.header().labels));
        let Some(object) = object else {
            self.parents.forget(&request);
            self.hook.forget(&request);
            return Err(ReconcileError::Terminal(ObjectGone.into()));
        };
        let parent = Parent {
            key: request,
            uid: object.header().uid.clone(),
            terminating: object.header().deletion_timestamp.is_some(),
            served,
        };
        let synced = AssertUnwindSafe(self.sync(&parent, &object, &context)).catch_unwind().await;
        let synced = synced.unwrap_or_else(|panic| {
            // The message goes to the status, so it must not quote the values of a panic.
            resume_unwind(Box::new(redaction::panic_message(&*panic).to_owned()))
        });
        if !matches!(synced, Ok(_) | Err(SyncError::HookDown(_) | SyncError::Cancelled)) {
            self.parents.hook.stop_waiting(&parent.key);
        }
        let mut reason = "SyncError";
        let (message, after) = match synced.map_err(|error| error.after(context.attempt())) {
            Ok(outcome) => return Ok(outcome),
            Err(SyncError::Cancelled) => return Ok(Outcome::Done),
            Err(SyncError::Busy(after)) => {
                // Not an error, but nothing is done for the parent until the hook is free. The
                // message omits the wait, which may differ with each response.
                let message = "the hook is busy and requests a later retry".to_owned();
                let reason = HookError::Busy(after).reason();
                self.parents.hook.failed(&parent.key, Failure { reason, message });
                return Err(ReconcileError::RetryAfter(Postponed.into(), after));
            }
            Err(SyncError::Behind(message)) => {
                let conflict = Status::failure(&message, "Conflict").with_code(409);
                return Err(ReconcileError::Retry(Box::new(kube::Error::Api(conflict.boxed()))));
            }
            Err(SyncError::Throttled { message, after }) => {
                return Err(ReconcileError::Retry(Box::new(throttled(&message, after))));
            }
            Err(SyncError::HookDown(failure)) => {
                let message = failure.message.clone();
                self.parents.hook.failed(&parent.key, failure);
                let failures = context.attempt();
                (message, Some(self.parents.hook.wait(&parent.key, self.backoff, failures)))
            }
            Err(SyncError::Hook(failure)) => {
                let message = failure.message.clone();
                self.parents.hook.failed(&parent.key, failure);
                (message, None)
            }
            Err(SyncError::TooDeep(message)) => {
                reason = owner_chain::TOO_DEEP;
                self.parents.hook.failed(&parent.key, Failure { reason, message: message.clone() });
                (message, None)
            }
            Err(SyncError::Failed(message)) => (message, None),
        };
        let subject = subject(&parent);
        let text = format!("Sync error: {message}");
        self.recorder.publish(&context, &subject, Severity::Warning, reason, &text);
        Err(match after {
            Some(after) => ReconcileError::RetryAfter(message.into(), after),
            None => ReconcileError::Retry(message.into()),
        })
    }
}

impl Composite {
    async fn sync(
        &self,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<Outcome, SyncError> {
        let definition = &*self.definition;
        let selector = claim::selector_of(object.json(), &parent.uid, definition.generate_selector)
            .map_err(SyncError::Failed)?;
        // Before any child is read, so that each later change of a child finds its parent.
        self.parents.index.insert(&parent.key, &parent.uid, &selector);
        self.parents.writes.track(&parent.key, &parent.uid);
        let (mut groups, mut stores, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for rule in &definition.children {
            match (context.served(&rule.type_ref), context.store(&rule.type_ref)) {
                (Some(served), Some(store)) => {
                    groups.push(Group { served, strategy: rule.strategy });
                    stores.push(store);
                }
                _ if rule.optional => missing.push(rule.type_ref.clone()),
                // A required type is gone, so the epoch is about to stop.
                _ => return Err(SyncError::Cancelled),
            }
        }
        let mut candidates = Vec::new();
        for (group, store) in stores.iter().enumerate() {
            let own = parent.key.namespace.as_deref();
            if own.is_some() && groups[group].served.identity.scope == Scope::Cluster {
                continue;
            }
            let owned = store.controlled_by(&parent.uid).into_iter();
            let owned = owned.filter(|child| own.is_none_or(|own| in_namespace(child, own)));
            candidates.extend(owned.map(|child| (group, child)));
            if !parent.terminating {
                candidates.extend(store.orphans(own).into_iter().map(|child| (group, child)));
            }
        }
        let observed = self.claim(parent, &selector, &groups, candidates, context).await?;
        let bytes = protocol::sync_request_bytes(&definition.controller, object.json(), &observed);
        let room = context.epoch().token().run_until_cancelled(self.budget.request(bytes)).await;
        let room = room.ok_or(SyncError::Cancelled)?;
        let request = protocol::sync_request(
            definition.sync.version,
            &definition.controller,
            parent,
            object.json(),
            &groups,
            &observed,
        );
        // The reservation is released after the request was sent.
        let request = match room {
            Some(room) => room.hold_all(request),
            None => request.into(),
        };
        let (answer, call) =
            hook::call(&*self.hook, &self.series, context.epoch(), parent, request).await?;
        for waiting in self.parents.hook.responded(&parent.key) {
            context.enqueue(waiting);
        }
        let unusable = |message| {
            // A kept response would be confirmed by its ETag again and stay unusable.
            self.hook.forget(&parent.key);
            SyncError::answer(message)
        };
        let rules = Rules {
            parent,
            groups: &groups,
            missing: &missing,
            selector: &selector,
            generate_selector: definition.generate_selector,
            observed: &observed,
            restricted: self.restricted.as_deref(),
        };
        let checked = {
            // Decodes the metadata of one child at a time.
            let _permit = self.budget.decode_permit(answer.len()).await;
            protocol::sync_response(&answer, definition.sync.strict).and_then(|response| {
                let desired = rules.check(response.children);
                let desired =
                    desired.map_err(|wrong| format!("hook answer is unusable: {wrong}"))?;
                Ok((desired, response.status, response.resync_after))
            })
        };
        // Status and children hold their slices of the response.
        drop(answer);
        call.end(if checked.is_ok() { CallOutcome::Answered } else { CallOutcome::Invalid });
        let (desired, status, resync_after) = checked.map_err(unusable)?;
        self.check_owners(parent, object, &groups, &desired, context)?;
        let managed =
            if parent.terminating { Ok(()) } else { self.execute(&rules, desired, context).await };
        match managed {
            Err(SyncError::Cancelled) => return Err(SyncError::Cancelled),
            // No further request is sent now, but the hook is healthy.
            Err(SyncError::Throttled { message, after }) => {
                self.report_flapping(parent, context);
                return Err(SyncError::Throttled { message, after });
            }
            Ok(()) | Err(_) => {}
        }
        // Written even if children failed, since the status reports that.
        let written = self.write_status(parent, object, status, context).await;
        let recheck = self.report_flapping(parent, context);
        managed.and(written)?;
        let resync = [resync_after, definition.resync_period, recheck];
        let resync = resync.into_iter().flatten().min();
        Ok(resync.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Refuses children of the parent's own type if the chain of owners is too long. Each such
    /// child may be a parent that wants children of its own.
    fn check_owners(
        &self,
        parent: &Parent,
        object: &Object,
        groups: &[Group],
        desired: &[Desired],
        context: &Context,
    ) -> Result<(), SyncError> {
        let is_own = |desired: &Desired| owner_chain::is_same_type(&groups[desired.group], parent);
        let Some(store) = context.store(&self.definition.parent) else { return Ok(()) };
        if parent.terminating || !desired.iter().any(is_own) {
            return Ok(());
        }
        let limit = self.definition.max_owner_depth;
        if owner_chain::depth(parent, object, limit, |key| store.get(key)) < limit {
            return Ok(());
        }
        Err(SyncError::TooDeep(owner_chain::explain(parent, limit)))
    }

    /// Records that the hook is healthy, or that it flaps. Returns the time until the flapping is
    /// to be checked again.
    fn report_flapping(&self, parent: &Parent, context: &Context) -> Option<Duration> {
        let Some(Flapping { what, again }) = self.parents.writes.flapping(&parent.key) else {
            self.parents.hook.succeeded(&parent.key);
            return None;
        };
        let message = format!("{what} changes repeatedly, because of the hook or another client");
        let failure = Failure { reason: "Flapping", message: message.clone() };
        if self.parents.hook.failed(&parent.key, failure) {
            let (subject, text) = (subject(parent), format!("Delayed: {message}"));
            self.recorder.publish(context, &subject, Severity::Warning, "Flapping", &text);
        }
        Some(again)
    }
}

fn subject(parent: &Parent) -> Subject {
    Subject {
        api_version: parent.served.identity.api_version(),
        kind: parent.served.kind.to_string(),
        namespace: parent.key.namespace.clone(),
        name: parent.key.name.clone(),
        uid: parent.uid.clone(),
    }
}

fn in_namespace(object: &Object, namespace: &str) -> bool {
    object.key().namespace.as_deref() == Some(namespace)
}

#[cfg(test)]
mod tests;
