//! Controller: the conditional runnable that the manager starts and stops.

use std::{
    collections::HashMap,
    mem,
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, try_join_all},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{select, time::timeout};

use super::{
    BuildError, Builder, Cluster, Context, Inputs, QueueRow, Reconciler, Request,
    builder::with_all_indexes,
    debug,
    inputs::{input::InputSource, state::NamedInputs, status::InputMode},
    queue::QueueOptions,
    run,
    slots::WorkerBound,
    source::kind::KindSource,
    spec::{Spec, erase},
};
use crate::{
    duration,
    informer::{EndReason, InformerProgress, Subscription},
    kind::TypeRef,
    manager::{
        AddError, Condition, ConditionalRunnable, ControllerName, Epoch, Manager, ManagerHandle,
        Readiness, Replacement, RunResult, Runnable, RunnableGroup, RunnableOptions, all_of,
    },
};

/// Default timeout of the first sync, as in controller-runtime.
const SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Controller: a description from which every epoch builds its sources, queue and workers.
///
/// Dropping it stops nothing, and it may be started again. A start while it runs already, under
/// another name or in another manager, fails, and the first run continues.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::*, manager::*};
/// # fn example(cluster: &Cluster, manager: &mut Manager) -> Result<(), Box<dyn std::error::Error>> {
/// let controller = Controller::builder("settings")
///     .for_::<ConfigMap>()
///     .build(cluster, async |request: Request, _: Context| {
///         println!("reconciling {request}");
///         Ok(Outcome::Done)
///     })?;
/// controller.add_to(manager)?;
/// # Ok(())
/// # }
/// ```
pub struct Controller {
    spec: Arc<Spec>,
    group: RunnableGroup,
    warms_up: bool,
    prepared: Arc<Mutex<PreparedSubscriptions>>,
}

/// Subscriptions that `prepare` has acquired for the next start.
#[derive(Default)]
struct PreparedSubscriptions {
    // Keyed by the number of the input.
    subscriptions: HashMap<usize, Subscription>,
    // Subscription of the input by name that was prepared last.
    named: Option<Subscription>,
    // Number of calls of `unprepare`; the result of a preparation that began before is dropped.
    generation: u64,
}

/// Error of a preparation: the controller cannot replace its predecessor yet.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    /// Install the type, or make it optional.
    #[error("{0} is not served; install it or make it optional")]
    NotServed(TypeRef),
    /// Grant the right that the reason names.
    #[error("{type_ref} is forbidden: {why}")]
    Forbidden { type_ref: TypeRef, why: String },
    /// Fix the problem that the reason names.
    #[error("{type_ref} is not synced after {}: {why}", duration::human(*.after))]
    NotSynced { type_ref: TypeRef, after: Duration, why: String },
    /// Wait: the preparation is retried with the next change.
    #[error("the informer of {0} ended: {1}; the preparation is retried")]
    Ended(TypeRef, EndReason),
}

impl Controller {
    /// Returns a builder of a controller of this name.
    pub fn builder(name: impl Into<ControllerName>) -> Builder {
        Builder::new(name.into())
    }

    /// Returns the name of the controller.
    pub fn name(&self) -> &ControllerName {
        &self.spec.name
    }

    /// Returns the inputs by name that each epoch of this controller starts. They can be changed at
    /// any time, and belong to this controller only, not to one that replaces it.
    pub fn inputs(&self) -> Inputs {
        Inputs { named: Arc::clone(&self.spec.named), epoch: None }
    }

    /// Returns the requests in the queue of the running epoch, for debugging; empty while none
    /// runs. A manager shows them by
    /// [`ManagerHandle::debug`](crate::manager::ManagerHandle::debug).
    pub fn queue(&self) -> Vec<QueueRow<Request>> {
        let queue = self.spec.running_queue.lock().upgrade();
        queue.map(|queue| queue.dump()).unwrap_or_default()
    }

    /// Adds the controller to a manager that does not run yet, under its own name and with default
    /// options.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_to(self, manager: &mut Manager) -> Result<(), AddError> {
        self.add_with(manager, RunnableOptions::default())
    }

    /// Like [`Controller::add_to`], with options.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_with(self, manager: &mut Manager, options: RunnableOptions) -> Result<(), AddError> {
        manager.add(self.name().clone(), Arc::new(self), options)
    }

    /// Adds the controller by a handle of a manager that may run already, under its own name and
    /// with default options.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, it may or may not have been added.
    pub async fn add_to_running(self, manager: &ManagerHandle) -> Result<(), AddError> {
        self.add_running_with(manager, RunnableOptions::default()).await
    }

    /// Like [`Controller::add_to_running`], with options.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`].
    pub async fn add_running_with(
        self,
        manager: &ManagerHandle,
        options: RunnableOptions,
    ) -> Result<(), AddError> {
        manager.add(self.name().clone(), Arc::new(self), options).await
    }

    /// Replaces the controller of the same name in a manager, with default options. The old one
    /// runs until this one can; [`Replacement::installed`] waits for that.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::replace`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, the old one may or may not be replaced.
    pub async fn replace_in(self, manager: &ManagerHandle) -> Result<Replacement, AddError> {
        self.replace_with(manager, RunnableOptions::default()).await
    }

    /// Like [`Controller::replace_in`], with options.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::replace`].
    pub async fn replace_with(
        self,
        manager: &ManagerHandle,
        options: RunnableOptions,
    ) -> Result<Replacement, AddError> {
        manager.replace(self.name().clone(), Arc::new(self), options).await
    }

    /// Sets the maximum number of concurrent reconciles, from the next one of the running epoch on.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.spec.workers.set(workers);
        self.spec.series.max_concurrent.set(i64::try_from(workers).unwrap_or(i64::MAX));
    }

    /// Subscribes to the informer of an input by name, and waits until it has synced. The
    /// subscription is held until the next start, whose input finds the informer lingering.
    pub(crate) fn prepare_input(&self, name: &str) -> BoxFuture<'static, RunResult> {
        let (input, slot) = (self.spec.named.input(name), Arc::clone(&self.prepared));
        let (generation, patience) = (self.prepared().generation, self.spec.sync_timeout);
        async move {
            let Some(InputSource::Kind(kind)) = input.map(|input| input.source) else {
                return Ok(());
            };
            let (_, subscription) = prepare(0, kind, patience).await?;
            let mut unneeded = Some(subscription);
            let mut slot = lock(&slot);
            if slot.generation == generation {
                mem::swap(&mut slot.named, &mut unneeded);
            }
            // The subscription of an earlier preparation is dropped outside of the lock.
            drop(slot);
            drop(unneeded);
            Ok(())
        }
        .boxed()
    }

    /// Returns a context of the running epoch without a request; `None` while no epoch runs.
    pub(crate) fn running(&self) -> Option<Context> {
        self.spec.running.lock().upgrade()
    }

    pub(super) fn new(spec: Spec, group: RunnableGroup, warms_up: bool) -> Self {
        Self { spec: Arc::new(spec), group, warms_up, prepared: Arc::default() }
    }

    fn prepared(&self) -> MutexGuard<'_, PreparedSubscriptions> {
        lock(&self.prepared)
    }
}

impl PreparedSubscriptions {
    /// Takes the subscriptions by number, and that of an input by name.
    fn take(&mut self) -> (HashMap<usize, Subscription>, Option<Subscription>) {
        (mem::take(&mut self.subscriptions), self.named.take())
    }
}

fn lock(prepared: &Mutex<PreparedSubscriptions>) -> MutexGuard<'_, PreparedSubscriptions> {
    prepared.lock()
}

impl Builder {
    /// Builds the controller. Starts nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError`] with the first error in the description.
    pub fn build(
        self,
        cluster: &Cluster,
        reconciler: impl Reconciler,
    ) -> Result<Controller, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.name.as_str().is_empty() {
            return Err(BuildError::NameMissing);
        }
        if self.inputs.is_empty() {
            return Err(BuildError::NoInput(self.name));
        }
        let (primaries, defaults) = (self.primaries()?, &cluster.defaults);
        self.check_reconciler(&primaries, &reconciler)?;
        let of_type = primaries.first().and_then(|primary| defaults.find(primary));
        let of_type = of_type.and_then(|of_type| of_type.max_concurrent_reconciles);
        let workers = self.workers.or(of_type).or(defaults.workers).unwrap_or(1);
        if workers == 0 {
            return Err(BuildError::NoWorkers(self.name));
        }
        let group = self.group.or(defaults.group).unwrap_or(RunnableGroup::LeaderElection);
        let warms_up = self.warm_up.or(defaults.warm_up).unwrap_or(true);
        let default_limiter = defaults.limiter.clone().filter(|_| self.backoff.is_none());
        let queue = QueueOptions {
            backoff: self.backoff.or(defaults.backoff).unwrap_or_default(),
            limit: self.retry_limit.or(defaults.retry_limit),
        };
        let (name, event_filters) = (self.name, self.event_filters);
        let inputs = with_all_indexes(self.inputs, &name, cluster)?.into_iter().enumerate();
        let inputs = inputs.map(|(number, input)| {
            input.inputs(number, &name, &primaries, &event_filters, cluster)
        });
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let (of, within) = (name.clone(), cluster.clone());
        let named = match reconciler.takes_keys() {
            true => NamedInputs::of_keys(of, within, event_filters),
            false => NamedInputs::new(of, within, Arc::clone(&primaries), event_filters),
        };
        let spec = Spec {
            client: cluster.unfenced_client().clone(),
            inputs,
            named,
            primaries: Arc::clone(&primaries),
            reconcile: erase(reconciler),
            workers: WorkerBound::new(workers, self.most_running),
            reconcile_timeout: self.reconcile_timeout.or(defaults.reconcile_timeout),
            works_on_standby: self.works_on_standby,
            sync_timeout: self.sync_timeout.or(defaults.sync_timeout).unwrap_or(SYNC_TIMEOUT),
            queue,
            limiter: self.limiter.or(default_limiter),
            recovers_panics: self.recover_panic.or(defaults.recover_panic).unwrap_or(true),
            conditions: self.conditions,
            series: cluster.metrics.series(&name),
            unconfirmed: cluster.unconfirmed.of(&name),
            is_running: AtomicBool::new(false),
            running_queue: parking_lot::Mutex::default(),
            running: Mutex::default(),
            name,
        };
        Ok(Controller::new(spec, group, warms_up))
    }
}

impl Runnable for Controller {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let spec = Arc::clone(&self.spec);
        let (prepared, named) = self.prepared().take();
        drop(named);
        run::run(spec, epoch, prepared).boxed()
    }

    fn name(&self) -> Option<&ControllerName> {
        Some(&self.spec.name)
    }

    fn group(&self) -> RunnableGroup {
        self.group
    }

    fn reports_running(&self) -> bool {
        true
    }

    /// Fills caches and queue before this replica leads, by default; its workers wait.
    fn warms_up(&self) -> bool {
        self.warms_up
    }

    /// Drops reconciles after the grace; waits for a reconcile that blocks its thread.
    fn keeps_grace(&self) -> bool {
        true
    }

    /// Subscribes to the informers of all inputs except the optional ones, and waits until they
    /// have synced. The subscriptions are held for the next start.
    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        let (spec, slot) = (Arc::clone(&self.spec), Arc::clone(&self.prepared));
        let generation = self.prepared().generation;
        async move {
            let kinds =
                spec.inputs.iter().enumerate().filter_map(|(number, input)| match &input.source {
                    InputSource::Kind(kind) if input.mode != InputMode::Optional => {
                        Some(prepare(number, Arc::clone(kind), spec.sync_timeout))
                    }
                    InputSource::Kind(_) | InputSource::Other(..) => None,
                });
            let prepared = try_join_all(kinds).await?;
            let mut unneeded: HashMap<_, _> = prepared.into_iter().collect();
            let mut slot = lock(&slot);
            if slot.generation == generation {
                mem::swap(&mut slot.subscriptions, &mut unneeded);
            }
            // Subscriptions of an earlier preparation are dropped outside of the lock.
            drop(slot);
            drop(unneeded);
            Ok(())
        }
        .boxed()
    }

    fn debug(&self) -> Option<serde_json::Value> {
        Some(debug::queue(&self.queue()))
    }

    fn unprepare(&self) {
        let mut prepared = self.prepared();
        prepared.generation += 1;
        let unneeded = prepared.take();
        drop(prepared);
        drop(unneeded);
    }
}

impl ConditionalRunnable for Controller {
    fn ready(&self) -> Readiness {
        // The namespaces of an input have the same condition.
        let inputs = self.spec.inputs.iter().scan(None, |before, input| {
            let is_further = input.part_of.is_some() && *before == input.part_of;
            *before = input.part_of;
            Some((!is_further).then_some(input))
        });
        let required = inputs.flatten().filter(|input| input.mode == InputMode::Required);
        let required = required.map(|input| input.ready());
        all_of(required.chain(self.spec.conditions.iter().map(|condition| condition.watch())))
    }
}

async fn prepare(
    number: usize,
    kind: Arc<KindSource>,
    after: Duration,
) -> Result<(usize, Subscription), PrepareError> {
    let type_ref = kind.type_ref().clone();
    let Some(served) = kind.types.served(&type_ref) else {
        return Err(PrepareError::NotServed(type_ref));
    };
    let subscription = kind.subscribe(&served);
    let mut progress = subscription.progress();
    let mut fill_failure = subscription.fill_failure();
    let mut complete = pin!(subscription.complete());
    // A failure may be that of a list for another subscriber.
    let mut is_complete = complete.as_mut().now_or_never().is_some();
    let mut last = "its first list is in progress".to_owned();
    let synced = async {
        loop {
            // The informer may be synced for its earlier subscribers, and still have to list the
            // objects that this one needs whole.
            let failure = fill_failure.borrow_and_update().clone().filter(|_| !is_complete);
            let now = progress.borrow_and_update().clone();
            for state in [Some(now), failure].into_iter().flatten() {
                match state {
                    InformerProgress::Synced
                    | InformerProgress::Polled
                    | InformerProgress::Stale(_)
                    | InformerProgress::ConversionFailed(_)
                        if is_complete =>
                    {
                        return Ok(());
                    }
                    InformerProgress::Ended(ended) => {
                        return Err(PrepareError::Ended(type_ref.clone(), ended));
                    }
                    // Not waited for: it lasts until access is granted, and the caller retries.
                    InformerProgress::Forbidden(why) => {
                        return Err(PrepareError::Forbidden { type_ref: type_ref.clone(), why });
                    }
                    InformerProgress::Syncing(None)
                    | InformerProgress::Synced
                    | InformerProgress::Polled => {}
                    InformerProgress::Syncing(Some(error))
                    | InformerProgress::Stale(error)
                    | InformerProgress::ConversionFailed(error) => last = error,
                }
            }
            select! {
                biased;
                () = &mut complete, if !is_complete => is_complete = true,
                // A failure of the list is only of interest until it is complete.
                Ok(()) = fill_failure.changed(), if !is_complete => {}
                changed = progress.changed() => if changed.is_err() {
                    return Err(PrepareError::Ended(type_ref.clone(), EndReason::Released));
                },
            }
        }
    };
    match timeout(after, synced).await {
        Ok(synced) => synced.map(|()| (number, subscription)),
        Err(_) => Err(PrepareError::NotSynced { type_ref, after, why: last }),
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("name", &self.spec.name).finish_non_exhaustive()
    }
}
