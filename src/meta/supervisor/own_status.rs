//! Status and Events of a declared controller's own object.

use std::{sync::atomic::Ordering, time::Duration};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    declared::{CheckedObject, ControllerEvent, DeclaredState, PrunedStatus},
    reconciler::DeclarationReconciler,
    served_elsewhere::with_remedies,
    status::Acceptance,
};
use crate::{
    controller::{Context, ReconcileError},
    duration::doubled,
    informer::Object,
    manager::{ControllerState, Reason, RunnableStatus, UnmetRequirement},
    meta::{
        api::{ControllerStatus, controller_kind::ControllerKind},
        hooks::credentials,
        recorder::{Severity, Subject},
        resource::{Resource, is_not_found, requested_wait, throttled},
    },
    redaction,
};

/// Delay of an object's first status write. A client that edits the object directly after its
/// creation gets no conflict.
const FIRST_WRITE_DELAY: Duration = Duration::from_millis(100);
/// Shortest time between two writes of one status.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
/// Time allowed for our own write to arrive through the watch.
const WATCH_DELAY: Duration = Duration::from_secs(5);
/// Time until a pruned status is written again if its CRD does not change; doubles with each
/// attempt. The server may apply a new schema later than it reports it.
const PRUNED_RETRY: Duration = Duration::from_secs(60);
/// Time until a status that was not found is written again if nothing changes.
const NOT_FOUND_RETRY: Duration = Duration::from_secs(60);
/// Longest time until a pruned status is written again.
const LONGEST_PRUNED_RETRY: Duration = Duration::from_secs(3600);

impl DeclarationReconciler {
    /// Publishes Events: the stored ones, and one for a new rejection or a new reason to wait.
    pub(super) fn publish(
        &self,
        name: &str,
        subject: &Subject,
        acceptance: &Acceptance,
        declared: &mut DeclaredState,
        context: &Context,
    ) {
        for (severity, reason, message) in self.changes.take_events(name) {
            self.recorder.publish(context, subject, severity, reason, &message);
        }
        let rejected = match acceptance {
            Acceptance::Rejected(rejected) => Some(rejected.to_string()),
            Acceptance::Accepted | Acceptance::Paused => None,
        };
        if declared.rejected != rejected {
            if let Some(rejected) = &rejected {
                let text = format!("Cannot create new controller: {rejected}");
                tracing::warn!(name, error = rejected, "declared controller rejected");
                self.recorder.publish(context, subject, Severity::Warning, "CreateError", &text);
            }
            declared.rejected = rejected;
        }
        let run = self.manager.status_of(self.kind.runnable_name(name));
        let run = run.map(|run| with_remedies(run, &self.cluster.types));
        let waits = run
            .filter(|_| matches!(acceptance, Acceptance::Accepted))
            .and_then(|run| waiting(&run));
        if declared.waits != waits {
            if let Some((severity, reason, text)) = &waits {
                self.recorder.publish(context, subject, *severity, reason, text);
            }
            declared.waits = waits;
        }
    }

    /// Writes the status if it changed. Returns the time until the next check.
    pub(super) async fn write_status(
        &self,
        object: &Object,
        checked: &CheckedObject,
        declared: &mut DeclaredState,
        context: &Context,
    ) -> Result<Option<Duration>, ReconcileError> {
        let name = &object.key().name;
        let Ok(served) = context.served(&self.kind.type_ref()) else { return Ok(None) };
        let run = self.manager.status_of(self.kind.runnable_name(name));
        let run = run.map(|run| with_remedies(run, &self.cluster.types));
        if run.as_ref().is_some_and(|run| run.reason == Reason::Standby) {
            // This replica has just begun to lead, and the epoch is about to.
            return Ok(Some(STATUS_INTERVAL));
        }
        let cached = cached_status(object);
        let previous = declared.written.as_ref().map_or(&cached, |(status, _)| status);
        let wanted = declared.status(checked, run.as_deref(), previous, Timestamp::now());
        if cached == wanted {
            declared.written.get_or_insert_with(|| (wanted, Instant::now()));
            return Ok(None);
        }
        if cached == ControllerStatus::default() {
            let seen = declared.seen.get_or_insert_with(Instant::now).elapsed();
            if seen < FIRST_WRITE_DELAY {
                return Ok(Some(FIRST_WRITE_DELAY - seen));
            }
        }
        let types = &self.cluster.types;
        let crd_generation = types.crd_generation(ControllerKind::GROUP, self.kind.plural());
        if declared.pruned.is_some_and(|pruned| pruned.crd_generation != crd_generation) {
            // Another schema may have a place for the status.
            (declared.pruned, declared.written) = (None, None);
        }
        if let Some(wait) = wait_before_write(declared, &cached, &wanted) {
            return Ok(Some(wait));
        }
        let patch = json!({
            "metadata": {"uid": object.header().uid},
            "status": with_nulls(&wanted, &cached),
        });
        let resource = Resource::new(context.requester(), &served);
        let stored = resource.merge_patch::<Value>(object.key(), Some("status"), &patch).await;
        let is_pruned = match stored {
            Ok(stored) => {
                let stored = stored.get("status").cloned().unwrap_or_default();
                let stored = serde_json::from_value::<ControllerStatus>(stored);
                let stored = stored.unwrap_or_default();
                if stored != wanted && stored == ControllerStatus::default() {
                    self.log_pruned_status();
                }
                stored != wanted
            }
            // The object is gone, or its type has no status subresource.
            Err(error) if is_not_found(&error) => {
                (declared.written, declared.pruned) = (Some((wanted, Instant::now())), None);
                return Ok(Some(NOT_FOUND_RETRY));
            }
            Err(error) => {
                let message =
                    format!("writing the status of {name}: {}", redaction::request_error(&error));
                if let Some(after) = requested_wait(&error) {
                    return Err(throttled(&message, after).into());
                }
                return Err(ReconcileError::Retry(message.into()));
            }
        };
        declared.written = Some((wanted, Instant::now()));
        declared.pruned = is_pruned.then(|| {
            let longer = |pruned: PrunedStatus| doubled(pruned.retry, 1, LONGEST_PRUNED_RETRY);
            PrunedStatus { crd_generation, retry: declared.pruned.map_or(PRUNED_RETRY, longer) }
        });
        Ok(declared.pruned.map(|pruned| pruned.retry))
    }

    /// Logs that the CRD prunes the status, and where the conditions are instead; once in a
    /// process, for the first CRD that does so.
    fn log_pruned_status(&self) {
        if !self.logged_pruning.swap(true, Ordering::Relaxed) {
            let crd = self.kind.crd_name();
            tracing::info!(
                crd,
                "the installed CRD prunes the status; apply the CRDs of `pilotlight crds`. Until \
                 then conditions are in Events, metrics and `pilotlight status --address`"
            );
        }
    }
}

/// Returns the time until a changed status may be written.
fn wait_before_write(
    declared: &DeclaredState,
    cached: &ControllerStatus,
    wanted: &ControllerStatus,
) -> Option<Duration> {
    // A schema that keeps no field of this status keeps none of a later one.
    let nothing_kept = *cached == ControllerStatus::default();
    let (written, at) = declared.written.as_ref()?;
    let interval = match declared.pruned {
        // The schema has no place for the status until the CRD is updated.
        Some(pruned) if written == wanted || nothing_kept => pruned.retry,
        Some(_) | None if written != wanted => STATUS_INTERVAL,
        Some(_) | None => WATCH_DELAY,
    };
    interval.checked_sub(at.elapsed()).filter(|wait| !wait.is_zero())
}

/// Returns the Event of a controller that waits, once the state of its types is known.
fn waiting(run: &RunnableStatus) -> Option<ControllerEvent> {
    let known = |unmet: &&UnmetRequirement| !unmet.reason.is_of_unknown_type();
    let unmet: Vec<_> = run.unmet.iter().filter(known).collect();
    if run.state != ControllerState::Waiting || unmet.is_empty() {
        return None;
    }
    let bare = unmet.iter().find(|unmet| unmet.reason == Reason::SubresourceMissing);
    if let Some(type_ref) = bare.and_then(|unmet| unmet.type_ref.as_ref()) {
        // Metacontroller's wording, which its users search for.
        let text = format!("Sync error: {type_ref} does not have subresource 'Status' enabled");
        return Some((Severity::Warning, "SyncError", text));
    }
    let messages: Vec<_> = unmet.iter().map(|unmet| &*unmet.message).collect();
    // A type may come by itself; credentials that are missing or unusable need a person.
    let needs_a_person = unmet.iter().any(|unmet| credentials::needs_a_person(&unmet.reason));
    let severity = if needs_a_person { Severity::Warning } else { Severity::Normal };
    Some((severity, "Waiting", format!("Waiting: {}", messages.join("; "))))
}

/// Returns the cached status; the default if it has another shape.
fn cached_status(object: &Object) -> ControllerStatus {
    #[derive(serde::Deserialize)]
    struct PartialObject {
        #[serde(default)]
        status: Option<Value>,
    }
    let partial: Option<PartialObject> = serde_json::from_slice(&object.json()).ok();
    let status = partial.and_then(|partial| partial.status).unwrap_or_default();
    serde_json::from_value(status).unwrap_or_default()
}

/// Returns the status as a merge patch: cached fields that are no longer wanted become null.
fn with_nulls(wanted: &ControllerStatus, cached: &ControllerStatus) -> Value {
    let mut patch = json!(wanted);
    let cached = json!(cached);
    if let (Some(patch), Some(cached)) = (patch.as_object_mut(), cached.as_object()) {
        for key in cached.keys() {
            patch.entry(key).or_insert(Value::Null);
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::{RunnableGroup, RunnableStatus};

    #[test]
    fn unusable_credentials_are_a_warning_and_a_missing_type_is_none() {
        let unmet = |reason: &'static str| UnmetRequirement {
            reason: Reason::from(reason),
            message: reason.to_owned(),
            type_ref: None,
        };
        for (reasons, expected) in [
            (&["TypeAbsent"][..], Severity::Normal),
            (&["HookCredentialsUnread"], Severity::Normal),
            (&["HookCredentialsInvalid"], Severity::Warning),
            (&["HookCredentialsMissing"], Severity::Warning),
            (&["HookCredentialsUnreadable"], Severity::Warning),
            (&["TypeAbsent", "HookCredentialsMissing"], Severity::Warning),
        ] {
            let mut run = RunnableStatus::new("a".into(), RunnableGroup::LeaderElection);
            run.state = ControllerState::Waiting;
            run.unmet = reasons.iter().map(|reason| unmet(reason)).collect();

            let (severity, reason, text) = waiting(&run).unwrap();

            assert_eq!((severity, reason), (expected, "Waiting"), "{reasons:?}");
            assert_eq!(text, format!("Waiting: {}", reasons.join("; ")));
        }
    }
}
