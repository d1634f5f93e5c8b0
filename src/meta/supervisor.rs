//! Supervisor: the controller of declared controllers. Each object becomes a runnable of the
//! manager, and the manager's state of the runnable becomes the object's status.
//!
//! Each kind has a supervisor, which waits for its own CRD like any conditional controller. While
//! the CRD is gone, the declared controllers keep running as declared. When it returns, objects and
//! runnables are matched by name.

mod declared;
mod declared_controllers;
mod freed_parents;
mod hook_builder;
mod manager_source;
mod own_status;
mod reconciler;
mod served_elsewhere;
mod status;
mod swap;
#[cfg(test)]
mod tests;

use std::sync::{Arc, atomic::AtomicBool};

use futures::future::BoxFuture;
use tracing::warn;

pub use self::declared_controllers::{DeclaredController, DeclaredControllers};
use self::{
    declared::DeclaredStates, manager_source::ManagerSource, reconciler::DeclarationReconciler,
};
use crate::{
    controller::{BuildError, Cluster, Controller, ControllerDefaults, Predicate},
    guard::GuardedDrop,
    manager::{
        ConditionalRunnable, Epoch, ManagerHandle, MetricPart, Readiness, Registration, RunResult,
        Runnable, StopReason,
    },
    meta::{
        api::controller_kind::ControllerKind,
        definition::Definition,
        hooks::credentials::HookCredentials,
        options::{HookFactory, MetaOptions},
        recorder::EventRecorder,
    },
};

/// Annotation that stops a declared controller while its value is `"true"`.
pub const PAUSED: &str = "pilotlight.dev/paused";

/// Recommended name of the supervisor of CompositeControllers in the manager; see
/// [`Supervisor::name`].
pub const SUPERVISOR: &str = "compositecontrollers";

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
        let options = Arc::new(bounded(options)?);
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
        let options = Arc::new(bounded(options)?);
        let shared = SharedState::new(cluster, manager, &options);
        let of = |kind| Self::of(kind, cluster, manager.clone(), Arc::clone(&options), &shared);
        ControllerKind::ALL.into_iter().map(of).collect()
    }

    fn of(
        kind: ControllerKind,
        cluster: &Cluster,
        manager: ManagerHandle,
        options: Arc<MetaOptions>,
        shared: &SharedState,
    ) -> Result<Self, BuildError> {
        let changes = Arc::new(DeclaredStates::default());
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

/// Checks the options, bounds the calls of all controllers together, and guards the drop of the
/// factory of hooks: the last holder of the options may be any task.
fn bounded(mut options: MetaOptions) -> Result<MetaOptions, BuildError> {
    if options.workers == 0 {
        return Err(BuildError::NoWorkers(SUPERVISOR.into()));
    }
    options.responses = options.responses.most_calls(options.max_hook_calls);
    options.hooks = options.hooks.map(|make| {
        let make = GuardedDrop::new(make);
        Arc::new(move |definition: &Definition, kind| make(definition, kind)) as HookFactory
    });
    Ok(options)
}
