//! Events of Kubernetes that a reconcile does not wait for.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube_runtime::events::{Event, Recorder};
use tokio::time::timeout;
use tracing::warn;

use crate::{controller::Context, redaction};

/// Longest wait for the response, so that a silent server collects no tasks.
const DEADLINE: Duration = Duration::from_secs(30);

/// Publishes an Event in a task of the epoch, as [`Context::spawn`] does, and returns at once. An
/// error, or a server that does not respond within 30 s, is logged and affects no reconcile.
///
/// The recorder must be one of this epoch, built with [`Context::client`].
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::Resource;
/// # use pilotlight::{controller::Context, runtime::{kube_runtime::events::*, publish}};
/// fn greeted(context: &Context, map: &ConfigMap) {
///     let recorder = Recorder::new(context.client().clone(), "greeter".into());
///     let event = Event {
///         type_: EventType::Normal,
///         reason: "Greeted".into(),
///         note: None,
///         action: "Greet".into(),
///         secondary: None,
///     };
///     publish(context, &recorder, event, map.object_ref(&()));
/// }
/// ```
///
/// # Panics
///
/// Outside a tokio runtime.
pub fn publish(context: &Context, recorder: &Recorder, event: Event, object: ObjectReference) {
    let recorder = recorder.clone();
    context.spawn(async move {
        let error = match timeout(DEADLINE, recorder.publish(&event, &object)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => redaction::error(&error),
            Err(_) => format!("no response within {DEADLINE:?}"),
        };
        warn!(error, "publishing the Event failed");
    });
}
