//! Recorders of Events, shared by the reconciles of an epoch.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube_runtime::events::{Event, Recorder, Reporter};
use parking_lot::Mutex;
use tokio::time::timeout;
use tracing::warn;

use super::Context;
use crate::{controller::foreign_cluster::ForeignCluster, discovery::RegistryId, redaction};

/// Longest wait for the response to an Event, so that a silent server collects no tasks.
const DEADLINE: Duration = Duration::from_secs(30);

/// Recorder of each reporter in each cluster; `None` means the controller's cluster.
#[derive(Default)]
pub(super) struct Recorders(Mutex<HashMap<(Option<RegistryId>, Reporter), Recorder>>);

impl Context {
    /// Returns the recorder of a reporter in the cluster of this context, built unless an earlier
    /// reconcile of the epoch has used it.
    pub(crate) fn recorder(&self, reporter: Reporter) -> Recorder {
        let cluster = self.foreign.as_ref().map(ForeignCluster::id);
        let build = || Recorder::new(self.client().clone(), reporter.clone());
        let mut recorders = self.shared.recorders.0.lock();
        recorders.entry((cluster, reporter.clone())).or_insert_with(build).clone()
    }

    /// Publishes an Event in a task of the epoch, and logs an error.
    pub(crate) fn publish(&self, recorder: &Recorder, event: Event, object: ObjectReference) {
        let recorder = recorder.clone();
        self.spawn(async move {
            let error = match timeout(DEADLINE, recorder.publish(&event, &object)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => redaction::error(&error),
                Err(_) => format!("no response within {DEADLINE:?}"),
            };
            warn!(error, "publishing the Event failed");
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc, time::Duration};

    use http::{Request as HttpRequest, Response};
    use kube::{Client, client::Body};
    use tokio::time::timeout;
    use tower::service_fn;

    use super::*;
    use crate::manager::Epoch;

    #[tokio::test]
    async fn recorder_is_built_once_for_each_reporter_and_dropped_with_the_contexts_of_the_epoch() {
        let service = service_fn(|_: HttpRequest<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let epoch = Epoch::new("c", 1, Duration::ZERO);
        let shared = Context::new(epoch.clone(), &Client::new(service, "default"));
        let reconcile = || Context { client: Arc::default(), ..shared.clone() };

        for reporter in ["a", "b", "a"] {
            drop(reconcile().recorder(reporter.into()));
        }
        assert_eq!(shared.shared.recorders.0.lock().len(), 2);

        drop(shared);
        let clients = epoch.fence().clients();
        clients.close();
        timeout(Duration::from_secs(10), clients.wait()).await.expect("the clients are dropped");
    }
}
