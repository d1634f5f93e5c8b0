//! Adopted controller: a controller of kube-rs as a conditional runnable.

use std::{fmt, hash::Hash, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use kube::{Client, Resource};
use kube_runtime::{Controller, controller::Action};
use serde::de::DeserializeOwned;
use tracing::error;

use super::{
    adopted_object::request_of,
    adopted_run::{AdoptedRun, DecidedFailure},
};
use crate::{
    controller::{Cluster, is_forbidden},
    discovery::TypeRegistry,
    guard::{self, GuardedDrop},
    kind::TypeRef,
    manager::{ConditionalRunnable, Epoch, Readiness, RunResult, Runnable, all_of, type_served},
    redaction,
};

/// Time after which an object is reconciled again whose reconcile panicked. Longer than the
/// back-offs of most error policies, since a panic is a bug that seldom ends by itself.
const PANIC_RETRY: Duration = Duration::from_secs(30);

type Start = dyn Fn(Epoch) -> BoxFuture<'static, RunResult> + Send + Sync;

/// Controller of kube-rs that runs while its types are served; built by [`adopt`].
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use pilotlight::{manager::*, runtime::AdoptedController};
///
/// # fn example(manager: &mut Manager, adopted: AdoptedController) -> Result<(), AddError> {
/// let options = RunnableOptions { grace: Duration::from_secs(30), ..Default::default() };
/// manager.add("config-maps", Arc::new(adopted), options)?;
/// # Ok(())
/// # }
/// ```
pub struct AdoptedController {
    types: TypeRegistry,
    required: Vec<TypeRef>,
    start: GuardedDrop<Box<Start>>,
}

/// Makes a controller of kube-rs conditional: it runs while all `required` types are served.
///
/// `factory` is called once per epoch. It returns what
/// [`Controller::run`](kube_runtime::Controller::run) takes: the controller, the reconciler, the
/// error policy and the context. All of them must use the client that `factory` receives, whose
/// fence closes when the epoch ends. The epoch is for tasks of the user
/// ([`Epoch::spawn`]) and for reconciles that want to see the stop.
///
/// ```
/// # use std::sync::Arc;
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::{Api, Client};
/// # use pilotlight::{controller::Cluster, kind::TypeRef, manager::Epoch};
/// # use pilotlight::runtime::{AdoptedController, adopt};
/// use pilotlight::runtime::kube_runtime::{Controller, controller::Action, watcher};
///
/// # struct Settings { client: Client }
/// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<Settings>) -> Result<Action, kube::Error> {
/// #     Ok(Action::await_change())
/// # }
/// # fn on_error(_: Arc<ConfigMap>, _: &kube::Error, _: Arc<Settings>) -> Action {
/// #     Action::await_change()
/// # }
/// # fn example(cluster: &Cluster) -> AdoptedController {
/// adopt(cluster, [TypeRef::of::<ConfigMap>()], |client: Client, _: Epoch| {
///     let maps = Api::<ConfigMap>::all(client.clone());
///     let controller = Controller::new(maps, watcher::Config::default());
///     (controller, reconcile, on_error, Arc::new(Settings { client }))
/// })
/// # }
/// ```
///
/// - The epoch is running when the store of the controller's own type has synced.
/// - A stop is graceful: no new reconcile starts, and running ones may finish within the grace.
///   Then the controller is dropped, and its reconciles are aborted. Before the first sync it is
///   dropped at once.
/// - A reconcile that panics concerns its object alone, which is reconciled again after 30 s. A
///   panic in a mapper of `watches` ends the epoch, which is restarted after a back-off.
/// - Errors of reconciles and watches are in the status of the runnable.
///
/// Every type that the controller watches should be required: kube delays the events of all
/// watches while one of them fails. The controller must not stop by itself, so remove
/// `shutdown_on_signal` and `graceful_shutdown_on`.
///
/// The controller starts when this replica leads, if the manager takes part in an election.
pub fn adopt<K, Ctx, E, Fut, R, P, F>(
    cluster: &Cluster,
    required: impl IntoIterator<Item = TypeRef>,
    factory: F,
) -> AdoptedController
where
    K: Resource + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: fmt::Debug + Eq + Hash + Clone + Unpin + Send + Sync,
    Ctx: Send + Sync + 'static,
    E: std::error::Error + Send + 'static,
    Fut: Future<Output = Result<Action, E>> + Send + 'static,
    R: FnMut(Arc<K>, Arc<Ctx>) -> Fut + Send + 'static,
    P: Fn(Arc<K>, &E, Arc<Ctx>) -> Action + Send + Sync + 'static,
    F: Fn(Client, Epoch) -> (Controller<K>, R, P, Arc<Ctx>) + Send + Sync + 'static,
{
    let (client, factory) = (cluster.unfenced_client().clone(), Arc::new(factory));
    let start: Box<Start> = Box::new(move |epoch| {
        let (client, factory) = (epoch.client(&client), Arc::clone(&factory));
        async move {
            let (controller, mut reconciler, policy, context) = factory(client, epoch.clone());
            drop(factory);
            let store = controller.store();
            let controller = controller.graceful_shutdown_on(epoch.token().cancelled_owned());
            let (tracked, policy) = (epoch.clone(), Arc::new(policy));
            let reconcile = move |object: Arc<K>, context: Arc<Ctx>| {
                let started = guard::run(|| reconciler(Arc::clone(&object), Arc::clone(&context)));
                let (policy, epoch) = (Arc::clone(&policy), tracked.clone());
                let reconciled = Arc::clone(&object);
                let attempt = guard::future(async move {
                    // A panic before the first await is that of this future, too.
                    let attempt = started.map_err(|panic| panicked(&*object, &panic))?;
                    attempt.await.map_err(|error| {
                        if is_forbidden(&error) {
                            epoch.refused();
                        }
                        let request = request_of(&*object);
                        let message = redaction::message(&error);
                        DecidedFailure { request, message, action: policy(object, &error, context) }
                    })
                });
                // kube spawns the future on the runtime, so that the epoch has to count it.
                let attempt = report_panic(tracked.clone(), reconciled, attempt);
                tracked.tracker().track_future(attempt)
            };
            let decided = |_: Arc<K>, failure: &DecidedFailure, _: Arc<Ctx>| failure.action.clone();
            let results = controller.run(reconcile, decided, context);
            AdoptedRun::new(epoch).drive(store, results).await
        }
        .boxed()
    });
    let required = required.into_iter().collect();
    AdoptedController { types: cluster.types.clone(), required, start: GuardedDrop::new(start) }
}

/// Turns the panic of a reconcile into a failure.
async fn report_panic(
    epoch: Epoch,
    object: Arc<impl Resource>,
    attempt: impl Future<Output = Result<Result<Action, DecidedFailure>, String>>,
) -> Result<Action, DecidedFailure> {
    match attempt.await {
        Ok(result) => result,
        Err(panic) => {
            let (controller, number) = (epoch.controller(), epoch.number());
            error!(%controller, epoch = number, error = panic, "reconcile panicked");
            Err(panicked(&*object, &panic))
        }
    }
}

fn panicked(object: &impl Resource, panic: &str) -> DecidedFailure {
    let message = redaction::printable(&format!("the reconcile panicked: {panic}"));
    DecidedFailure { request: request_of(object), message, action: Action::requeue(PANIC_RETRY) }
}

impl Runnable for AdoptedController {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        (self.start)(epoch)
    }

    fn reports_running(&self) -> bool {
        true
    }

    fn keeps_grace(&self) -> bool {
        true
    }
}

impl ConditionalRunnable for AdoptedController {
    fn ready(&self) -> Readiness {
        all_of(self.required.iter().map(|required| type_served(&self.types, required)))
    }
}

impl fmt::Debug for AdoptedController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedController")
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}
