//! Supervisor: the controller of declared controllers. Each object becomes a runnable of the
//! manager, and the manager's state of the runnable becomes the object's status.
//!
//! Each kind has a supervisor, which waits for its own CRD like any conditional controller. While
//! the CRD is gone, the declared controllers keep running as declared. When it returns, objects and
//! runnables are matched by name.

mod declared_controllers;
mod freed_parents;
mod own_status;
mod reconciler;
mod swap;
#[cfg(test)]
#[cfg(feature = "testing")]
mod tests;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::future::BoxFuture;
use http::HeaderValue;
use tracing::warn;

pub use self::declared_controllers::{DeclaredController, DeclaredControllers};
use self::reconciler::DeclarationReconciler;
use super::{
    Adoption, ApplyStrategy, ControllerKind, CustomizeLimits, Definition, EventLimit, FieldManager,
    Hook, HookKind, HookMetrics, ResponseBudget, Selector, Strictness,
    credentials::HookCredentials, declared::Changes, definition::DEFAULT_NAMESPACE,
    manager_source::ManagerSource, protocol::MAX_CHILDREN, recorder::EventRecorder,
    webhook::MAX_RETRY_AFTER,
};
use crate::{
    controller::{BuildError, Cluster, Controller, ControllerDefaults, Predicate},
    manager::{
        ConditionalRunnable, Epoch, ManagerHandle, MetricPart, Readiness, Registration, RunResult,
        Runnable, RunnableOptions, StopReason,
    },
    transport::{Proxies, user_agent},
};

/// Annotation that stops a declared controller while its value is `"true"`.
pub const PAUSED: &str = "pilotlight.dev/paused";

/// Recommended name of the supervisor of CompositeControllers in the manager; see
/// [`Supervisor::name`].
pub const SUPERVISOR: &str = "compositecontrollers";

/// Creates one of the declared hooks of a controller, in place of a call to its URL.
pub type HookFactory = Arc<dyn Fn(&Definition, HookKind) -> Arc<dyn Hook> + Send + Sync>;

/// Options of all declared controllers.
#[derive(Clone)]
pub struct MetaOptions {
    /// Maximum number of concurrent hook calls of one controller; 5, unless the controller has the
    /// annotation [`WORKERS`](super::WORKERS). A sync that writes is not
    /// counted; at most 50 parents of a controller are synced at once, or `workers` if that is
    /// more.
    pub workers: usize,
    /// Options of each runnable.
    pub runnable: RunnableOptions,
    /// Metrics of hook calls, which the supervisors register with their manager.
    pub metrics: HookMetrics,
    /// Makes hooks; `None` calls the declared webhooks.
    pub hooks: Option<HookFactory>,
    /// Budget of the hook responses that are held at once, in bytes; defaults as in
    /// [`ResponseLimits`](super::ResponseLimits).
    pub responses: ResponseBudget,
    /// Maximum number of concurrent hook calls of all controllers together; 0 for no bound, which
    /// is the default. Calls beyond it wait in the order in which they were made.
    pub max_hook_calls: usize,
    /// Selects the declared controllers that are run and whose status is written; all by default. A
    /// controller that stops matching is stopped.
    pub target: Selector,
    /// Resync period of controllers without `resyncPeriodSeconds`; none by default. Less than a
    /// second counts as one second.
    pub resync_period: Option<Duration>,
    /// Maximum number of children in one response; 10,000 by default.
    pub max_children: usize,
    /// Limits of the responses of customize hooks.
    pub customize: CustomizeLimits,
    /// Namespace of the revisions of cluster-scoped parents; `default` by default. A cluster that is
    /// limited to one namespace uses that one.
    pub revision_namespace: Arc<str>,
    /// Rate limit of the Events of one object.
    pub events: EventLimit,
    /// Deletes a child that is to be recreated without dry runs, as Metacontroller does; off by
    /// default.
    pub recreate_without_dry_run: bool,
    /// Apply strategy of controllers without the annotation
    /// [`APPLY_STRATEGY`](super::APPLY_STRATEGY); dynamic apply by default.
    pub apply_strategy: ApplyStrategy,
    /// Field manager of server-side apply, of controllers without the annotation
    /// [`APPLY_FIELD_MANAGER`](super::APPLY_FIELD_MANAGER); that of Metacontroller by default.
    pub field_manager: FieldManager,
    /// Refusals beyond those of Metacontroller, and lifted bounds; none by default.
    pub strictness: Strictness,
    /// Orphans that become children of a composite's parent; all that its selector matches by
    /// default.
    pub adoption: Adoption,
    /// Shows the first bytes of a hook's error body in Events, statuses, logs and endpoints; off by
    /// default, since they may hold secrets. No effect on hooks that `hooks` makes.
    pub hook_error_excerpts: bool,
    /// Follows redirects of hooks with status 307 and 308, as Metacontroller does; on by default.
    /// Another host gets no credentials. No effect on hooks that `hooks` makes.
    pub hook_redirects: bool,
    /// Longest wait that a hook may request by status 429; 5 min by default. A longer one is cut. No
    /// effect on hooks that `hooks` makes.
    pub longest_hook_retry_after: Duration,
    /// Proxies through which hooks are reached; none by default. No effect on hooks that `hooks`
    /// makes.
    pub hook_proxies: Proxies,
    /// `User-Agent` of requests to hooks; names the library by default.
    /// [`Transport::user_agent`](crate::transport::Transport::user_agent) also names the product of
    /// the embedder. No effect on hooks that `hooks` makes.
    pub user_agent: HeaderValue,
}

impl Default for MetaOptions {
    fn default() -> Self {
        Self {
            workers: 5,
            runnable: RunnableOptions::default(),
            metrics: HookMetrics::default(),
            hooks: None,
            responses: ResponseBudget::default(),
            max_hook_calls: 0,
            target: Selector::default(),
            resync_period: None,
            max_children: MAX_CHILDREN,
            customize: CustomizeLimits::default(),
            revision_namespace: DEFAULT_NAMESPACE.into(),
            events: EventLimit::default(),
            recreate_without_dry_run: false,
            apply_strategy: ApplyStrategy::default(),
            field_manager: FieldManager::default(),
            strictness: Strictness::default(),
            adoption: Adoption::default(),
            hook_error_excerpts: false,
            hook_redirects: true,
            longest_hook_retry_after: MAX_RETRY_AFTER,
            hook_proxies: Proxies::default(),
            user_agent: user_agent::library(),
        }
    }
}

impl fmt::Debug for MetaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetaOptions")
            .field("workers", &self.workers)
            .field("max_hook_calls", &self.max_hook_calls)
            .field("target", &self.target)
            .field("resync_period", &self.resync_period)
            .finish_non_exhaustive()
    }
}

/// State that the supervisors of one process share.
struct SharedState {
    credentials: HookCredentials,
    /// True once the missing status of a CRD was logged.
    logged_pruning: Arc<AtomicBool>,
    /// Metrics of hooks in those of the manager, until the last supervisor is dropped.
    metrics: Arc<Registration>,
}

impl SharedState {
    fn new(cluster: &Cluster, manager: &ManagerHandle, options: &MetaOptions) -> Self {
        let metrics = options.metrics.clone();
        let metrics = manager.register_part(MetricPart::Hooks, move |all| metrics.register(all));
        Self {
            credentials: HookCredentials::new(cluster),
            logged_pruning: Arc::default(),
            metrics: Arc::new(metrics),
        }
    }
}

/// Runs every declared controller of one kind in a cluster. Add it to the manager that it drives.
/// ```no_run
/// # use std::{error::Error, sync::Arc};
/// # use pilotlight::{controller::Cluster, manager::*, meta::*};
/// # fn example(cluster: &Cluster, manager: &mut Manager) -> Result<(), Box<dyn Error>> {
/// for supervisor in Supervisor::all(cluster, &manager.handle(), MetaOptions::default())? {
///     manager.add(supervisor.name(), Arc::new(supervisor), RunnableOptions::default())?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Supervisor {
    kind: ControllerKind,
    controller: Controller,
    declared: DeclaredControllers,
    // Held until the supervisor is dropped.
    _metrics: Arc<Registration>,
}

impl Supervisor {
    /// Builds the supervisor of CompositeControllers alone. Starts nothing.
    ///
    /// # Errors
    ///
    /// As for [`Supervisor::all`].
    pub fn new(
        cluster: &Cluster,
        manager: ManagerHandle,
        options: MetaOptions,
    ) -> Result<Self, BuildError> {
        let options = bounded(options)?;
        let shared = SharedState::new(cluster, &manager, &options);
        Self::of(ControllerKind::Composite, cluster, manager, options, &shared)
    }

    /// Builds a supervisor for each kind, in the order of [`ControllerKind::ALL`], which add the
    /// declared controllers to `manager`. Budgets, the credentials of hooks and the log line about
    /// a CRD without a status are shared. Starts nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError`], when the options leave no workers.
    pub fn all(
        cluster: &Cluster,
        manager: &ManagerHandle,
        options: MetaOptions,
    ) -> Result<Vec<Self>, BuildError> {
        let options = bounded(options)?;
        let shared = SharedState::new(cluster, manager, &options);
        let of = |kind| Self::of(kind, cluster, manager.clone(), options.clone(), &shared);
        ControllerKind::ALL.into_iter().map(of).collect()
    }

    fn of(
        kind: ControllerKind,
        cluster: &Cluster,
        manager: ManagerHandle,
        options: MetaOptions,
        shared: &SharedState,
    ) -> Result<Self, BuildError> {
        let changes = Arc::new(Changes::default());
        let target = options.target.clone();
        let keeps_managed_fields = options.strictness.managed_fields;
        let source = ManagerSource {
            kind,
            manager: manager.clone(),
            types: cluster.types.clone(),
            changes: Arc::clone(&changes),
        };
        let declared = DeclaredControllers {
            manager: manager.clone(),
            types: cluster.types.clone(),
            changes: vec![(kind, Arc::clone(&changes))],
        };
        let recorder = EventRecorder::new(cluster.unfenced_client().clone(), options.events);
        let reconciler = DeclarationReconciler {
            kind,
            cluster: cluster.clone(),
            manager,
            options,
            recorder,
            changes,
            credentials: shared.credentials.clone(),
            logged_pruning: Arc::clone(&shared.logged_pruning),
        };
        let builder = Controller::builder(kind.plural()).for_type(kind.type_ref());
        // Hooks receive the object as `controller`.
        let builder = if keeps_managed_fields { builder.managed_fields() } else { builder };
        let controller = builder
            .conditional()
            .predicate(Predicate::new(move |delta| {
                // The change that makes an object stop matching passes, so that its controller is
                // stopped.
                let mut looks = delta.old.iter().chain(&delta.new);
                looks.any(|object| target.matches(&object.header().labels))
            }))
            .source(source)
            // Stopping a controller may take its grace period, and must not delay the others.
            .max_concurrent_reconciles(16)
            .works_on_standby()
            .build(&cluster.clone().with_defaults(ControllerDefaults::default()), reconciler)?;
        Ok(Self { kind, controller, declared, _metrics: Arc::clone(&shared.metrics) })
    }

    /// Returns the recommended name in the manager: the plural name of the kind.
    pub fn name(&self) -> &'static str {
        self.kind.plural()
    }

    /// Returns a handle to the declared controllers, for reports.
    pub fn declared(&self) -> DeclaredControllers {
        self.declared.clone()
    }
}

impl Runnable for Supervisor {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let (kind, run) = (self.kind, self.controller.start(epoch.clone()));
        Box::pin(async move {
            let result = run.await;
            if epoch.stop_reason() == Some(StopReason::TypeGone) {
                let crd = kind.crd_name();
                warn!(crd, "the CRD was deleted; declared controllers keep running");
            }
            result
        })
    }

    fn reports_running(&self) -> bool {
        self.controller.reports_running()
    }

    /// Adds the declared controllers before this replica leads, so that they are warm.
    fn warms_up(&self) -> bool {
        self.controller.warms_up()
    }

    fn keeps_grace(&self) -> bool {
        self.controller.keeps_grace()
    }
}

impl ConditionalRunnable for Supervisor {
    fn ready(&self) -> Readiness {
        self.controller.ready()
    }
}

/// Checks the options, and bounds the calls of all controllers together.
fn bounded(mut options: MetaOptions) -> Result<MetaOptions, BuildError> {
    if options.workers == 0 {
        return Err(BuildError::NoWorkers(SUPERVISOR.into()));
    }
    options.responses = options.responses.most_calls(options.max_hook_calls);
    Ok(options)
}
