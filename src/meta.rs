//! Room 5: controllers declared as objects, wire-compatible with Metacontroller.
//!
//! [`composites`] is a controller like any other: given to the manager, it turns every
//! [`CompositeController`] into a controller of the manager's.

mod blueprint;
mod children;
mod claim;
mod composite;
mod composite_controller;
mod crds;
mod declared;
mod hook;
mod hook_metrics;
mod last_applied;
mod merge;
mod news;
mod protocol;
mod recorder;
mod resource;
mod roster;
mod selection;
mod status;
mod supervisor;
mod webhook;

use std::sync::Arc;

use crate::{
    controller::{BuildError, Cluster, Controller},
    manager::ManagerHandle,
};

pub use blueprint::{Blueprint, ChildRule, HookRule, HookVersion, Problem, Rejected, UpdateMethod};
pub use composite_controller::{
    Authorization, BasicAuth, CaBundle, CaReference, ChildResource, ClientTls, CompositeController,
    CompositeControllerSpec, CompositeControllerStatus, CompositeHooks, EndpointConfig, EtagSpec,
    HookSpec, LabelSelector, LabelSelectorRequirement, ParentResource, RevisionHistory,
    SecretKeyReference, SecretReference, ServiceReference, StatusChecks, StatusCondition,
    StatusConditionCheck, UpdateStrategy, WatchStatus, WebhookSpec,
};
pub use crds::crds;
pub use hook::{Hook, HookError};
pub use hook_metrics::{HookMetrics, HookSeries};
pub use last_applied::LAST_APPLIED;
pub use protocol::MAX_CHILDREN;
pub use selection::Selector;
pub use supervisor::PAUSED;
pub use webhook::{MAX_RESPONSE_BYTES, Webhook};

/// What declared controllers have in common.
#[derive(Clone, Debug)]
pub struct MetaOptions {
    /// Parents of one controller that are synced at the same time; 5.
    pub workers: usize,
    /// Where calls of hooks are counted.
    pub hooks: HookMetrics,
}

impl Default for MetaOptions {
    fn default() -> Self {
        Self { workers: 5, hooks: HookMetrics::default() }
    }
}

/// The controller that turns CompositeControllers into controllers of `manager`'s.
///
/// It is conditional on its own CRD, see [`crds`]. The manager has to run on the same cluster.
///
/// # Errors
///
/// See [`BuildError`].
pub fn composites(
    cluster: &Cluster,
    manager: &ManagerHandle,
    options: MetaOptions,
) -> Result<Controller, BuildError> {
    let recorder = recorder::Recorder::default();
    let (shared, events) = (cluster.clone(), recorder.clone());
    let build: supervisor::Build = Arc::new(move |blueprint: Blueprint| {
        let name = supervisor::controller_name(&blueprint.name);
        let series = options.hooks.series(
            &blueprint.name,
            "CompositeController",
            &blueprint.sync.url.to_string(),
        );
        let webhook =
            Webhook::new(blueprint.sync.url.clone(), blueprint.sync.timeout).series(series);
        let composite = composite::CompositeRunnable::new(
            name,
            Arc::new(blueprint),
            Arc::new(webhook),
            &shared,
            events.clone(),
            options.workers,
        )?;
        Ok(Arc::new(composite) as _)
    });
    supervisor::supervisor(cluster, manager, recorder, build)
}
