//! Specification of a controller, from which each epoch is built.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use kube::Client;

use super::{
    Context, Outcome, ReconcileError, Reconciler, Request, inputs::state::NamedInputs,
    metrics::Series, queue::QueueOptions, run::carried_over::CarriedOver, run::input::Input,
};
use crate::{guard::Held, kind::TypeRef, manager::ControllerName};

/// Type-erased reconciler.
pub(super) type Reconcile = Arc<
    dyn Fn(Request, Context) -> BoxFuture<'static, Result<Outcome, ReconcileError>> + Send + Sync,
>;

/// Specification of a controller, without the state of an epoch.
pub(super) struct Spec {
    pub(super) name: ControllerName,
    pub(super) client: Client,
    pub(super) inputs: Vec<Input>,
    /// Inputs that are added while the controller exists.
    pub(super) named: Arc<NamedInputs>,
    /// Primary type, if the controller has one.
    pub(super) primaries: Arc<[TypeRef]>,
    pub(super) reconcile: Reconcile,
    pub(super) workers: usize,
    /// Maximum number of reconciles, those that gave their worker slot back included.
    pub(super) most_running: usize,
    pub(super) reconcile_timeout: Option<Duration>,
    /// True if reconciles begin before this replica leads.
    pub(super) works_on_standby: bool,
    pub(super) sync_timeout: Duration,
    pub(super) queue: QueueOptions,
    pub(super) series: Arc<Series>,
    pub(super) carried_over: Arc<CarriedOver>,
}

/// Erases the type of a reconciler.
pub(super) fn erase(reconciler: impl Reconciler) -> Reconcile {
    let reconciler = Arc::new(Held::new(reconciler));
    Arc::new(move |request, context| {
        let reconciler = Arc::clone(&reconciler);
        async move { reconciler.reconcile(request, context).await }.boxed()
    })
}
