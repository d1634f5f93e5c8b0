//! Events of Kubernetes that a reconcile does not wait for.

use k8s_openapi::api::core::v1::ObjectReference;
use kube_runtime::events::{Event, Recorder, Reporter};

use crate::controller::Context;

/// Returns the recorder of a reporter, which all reconciles of the epoch share. Its client is that of
/// the context, also after [`Context::of_cluster`].
///
/// kube's recorder remembers its Events for 6 minutes, and counts a repeated one in the `series` of
/// the first. A recorder that each reconcile builds for itself creates a new Event each time. Two
/// Events that are published at the same moment may both be created.
///
/// # Panics
///
/// Outside a tokio runtime.
pub fn recorder(context: &Context, reporter: impl Into<Reporter>) -> Recorder {
    context.recorder(reporter.into())
}

/// Publishes an Event in a task of the epoch, as [`Context::spawn`] does, and returns at once. An
/// error, or a server that does not respond within 30 s, is logged and affects no reconcile.
///
/// The recorder must be one of this epoch: that of [`recorder`].
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::Resource;
/// # use pilotlight::controller::Context;
/// use pilotlight::runtime::{kube_runtime::events::*, publish, recorder};
///
/// fn greeted(context: &Context, map: &ConfigMap) {
///     let recorder = recorder(context, "greeter");
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
    context.publish(recorder, event, object);
}
