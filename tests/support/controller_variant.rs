//! Kinds of controllers: the tests of a promise run once for each kind.

use std::sync::Arc;

use futures::future::BoxFuture;
use pilotlight::{
    controller::Controller,
    discovery::TypeRegistry,
    informer::{InformerKey, InformerSet, Linger},
    manager::{
        ConditionalRunnable, Epoch, Readiness, RunResult, Runnable, StopReason, type_served,
    },
    testing::LeakOracle,
};

use super::{Harness, RecordingReconciler};

/// Kind of controller.
pub(crate) trait ControllerVariant {
    /// Adds a controller that runs while the recorder's type is served and records its objects.
    /// Returns its name in the manager.
    async fn add(
        &self,
        harness: &Harness<'_>,
        name: &str,
        recorder: &RecordingReconciler,
    ) -> String;

    /// Removes a controller and waits until it is gone.
    async fn remove(&self, harness: &Harness<'_>, name: &str) {
        harness.manager.remove(name).await;
    }

    /// Returns an oracle that counts the remains of an added controller.
    fn leaks(&self, harness: &Harness<'_>) -> LeakOracle {
        harness.leaks()
    }
}

/// Controller of the builder, with a typed reconciler.
pub(crate) struct Embedded;

impl ControllerVariant for Embedded {
    async fn add(
        &self,
        harness: &Harness<'_>,
        name: &str,
        recorder: &RecordingReconciler,
    ) -> String {
        let controller = Controller::builder(name)
            .for_type(recorder.type_ref().clone())
            .conditional()
            .build(&harness.cluster, recorder.clone())
            .unwrap();
        harness.add(name, Arc::new(controller)).await;
        name.to_owned()
    }
}

/// Conditional runnable written on the public traits, with no work queue and no reconciler.
pub(crate) struct Listening;

impl ControllerVariant for Listening {
    async fn add(
        &self,
        harness: &Harness<'_>,
        name: &str,
        recorder: &RecordingReconciler,
    ) -> String {
        let listener = Listener {
            types: harness.cluster.types.clone(),
            informers: harness.cluster.informers.clone(),
            recorder: recorder.clone(),
        };
        harness.add(name, Arc::new(listener)).await;
        name.to_owned()
    }
}

struct Listener {
    types: TypeRegistry,
    informers: InformerSet,
    recorder: RecordingReconciler,
}

impl Runnable for Listener {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let served = self.types.served(self.recorder.type_ref());
        let (informers, recorder) = (self.informers.clone(), self.recorder.clone());
        Box::pin(async move {
            let Some(served) = served else {
                epoch.stopping().await;
                return Ok(());
            };
            let key = InformerKey::new(served.identity.clone());
            let mut subscription = informers.subscribe(&served, key);
            recorder.keep_store(epoch.number(), &subscription.store());
            let mut drained = std::pin::pin!(subscription.drained());
            let mut running = false;
            let reason = loop {
                tokio::select! {
                    biased;
                    reason = epoch.stopping() => break reason,
                    () = &mut drained, if !running => {
                        running = true;
                        epoch.running();
                    }
                    delta = subscription.next() => match delta {
                        Ok(delta) => {
                            let (controller, number) = (epoch.controller(), epoch.number());
                            let (name, new) = (&delta.key.name, delta.new.as_ref());
                            recorder.record(controller.as_str(), number, name, new, false);
                        }
                        // The same event that ended the subscription stops this epoch.
                        Err(_ended) => break epoch.stopping().await,
                    },
                }
            };
            let linger = match reason {
                StopReason::TypeGone => Linger::None,
                StopReason::Superseded | StopReason::Cancelled | StopReason::LeaseLost => {
                    Linger::Default
                }
            };
            subscription.release(linger).await;
            Ok(())
        })
    }

    fn reports_running(&self) -> bool {
        true
    }
}

impl ConditionalRunnable for Listener {
    fn ready(&self) -> Readiness {
        type_served(&self.types, self.recorder.type_ref())
    }
}
