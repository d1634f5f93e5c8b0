//! Specification of a controller, from which each epoch is built.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use parking_lot::Mutex;
use tracing::warn;

use super::{
    Context, Outcome, ReconcileError, Reconciler, Request,
    context::WeakContext,
    inputs::{
        input::{Input, InputConditions, InputSource},
        state::NamedInputs,
    },
    metrics::Series,
    queue::{NewLimiter, QueueOptions, WeakQueue},
    slots::WorkerBound,
    unconfirmed::UnconfirmedWrites,
};
use crate::{
    guard::{self, GuardedDrop},
    kind::TypeRef,
    manager::ControllerName,
};

/// Type-erased reconciler.
pub(super) type Reconcile = Arc<
    dyn Fn(Request, Context) -> BoxFuture<'static, Result<Outcome, ReconcileError>> + Send + Sync,
>;

/// Specification of a controller, without the state of an epoch.
pub(super) struct Spec {
    pub(super) name: ControllerName,
    pub(super) client: Client,
    pub(super) inputs: Vec<Input>,
    /// Conditions besides those of the required inputs.
    pub(super) conditions: InputConditions,
    /// Inputs that are added while the controller exists.
    pub(super) named: Arc<NamedInputs>,
    /// Primary type, if the controller has one.
    pub(super) primaries: Arc<[TypeRef]>,
    pub(super) reconcile: Reconcile,
    pub(super) workers: Arc<WorkerBound>,
    pub(super) reconcile_timeout: Option<Duration>,
    /// True if reconciles begin before this replica leads.
    pub(super) works_on_standby: bool,
    pub(super) sync_timeout: Duration,
    pub(super) queue: QueueOptions,
    pub(super) limiter: Option<NewLimiter<Request>>,
    /// True if a panic of a reconcile is an error of its request; false if it ends the run.
    pub(super) recovers_panics: bool,
    pub(super) series: Arc<Series>,
    /// Unconfirmed writes of all epochs.
    pub(super) unconfirmed: Arc<UnconfirmedWrites>,
    /// True while a run lasts. A controller has one run at a time.
    pub(super) is_running: AtomicBool,
    /// Queue of the run, while one lasts.
    pub(super) running_queue: Mutex<WeakQueue<Request>>,
    /// Context of the run, while one lasts.
    pub(super) running: Mutex<WeakContext>,
}

impl Spec {
    /// Reports a refused request to all conditions.
    pub(super) fn refused(&self) {
        let named = self.named.inputs();
        let inputs = || self.inputs.iter().chain(&named);
        let of_inputs = inputs().flat_map(|input| &input.conditions);
        let report = |refused: Result<(), String>| {
            if let Err(error) = refused {
                warn!(controller = %self.name, error, "`Condition::refused` panicked");
            }
        };
        for condition in self.conditions.iter().chain(of_inputs) {
            report(guard::run(|| condition.refused()));
        }
        for input in inputs() {
            if let InputSource::Other(source, _) = &input.source {
                report(guard::run(|| source.ready().refused()));
            }
        }
    }
}

/// Returns the primary type at this position for the log, if a controller has several.
pub(super) fn resource_of(primaries: &[TypeRef], primary: usize) -> Option<String> {
    let is_one_of_several = primaries.len() > 1;
    primaries.get(primary).filter(|_| is_one_of_several).map(ToString::to_string)
}

/// Erases the type of a reconciler.
pub(super) fn erase(reconciler: impl Reconciler) -> Reconcile {
    let reconciler = Arc::new(GuardedDrop::new(reconciler));
    Arc::new(move |request, context| {
        let reconciler = Arc::clone(&reconciler);
        async move { reconciler.reconcile(request, context).await }.boxed()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_names_the_type_of_a_request_if_there_are_several() {
        let [things, pods] = [("example.com", "things"), ("", "pods")]
            .map(|(group, plural)| TypeRef::resource(group, "v1", plural));

        assert_eq!(resource_of(std::slice::from_ref(&things), 0), None);
        assert_eq!(resource_of(&[things, pods.clone()], 1), Some(pods.to_string()));
        assert_eq!(resource_of(&[], 0), None);
    }
}
