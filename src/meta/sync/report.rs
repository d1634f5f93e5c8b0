//! Report of a sync: failures, contested objects and flapping, as Events and as health of the hook.

use std::time::Duration;

use kube::core::Status;

use super::{ParentReconciler, SyncError, owner_chain};
use crate::{
    controller::{Context, Outcome, PostponedError, ReconcileError},
    kind::{Scope, TypeRef},
    meta::{
        children::ownership::Ownership,
        hooks::error::HookError,
        parent::{
            Parent,
            health::Failure,
            sync_error::{CONFLICTS_BEFORE_EVENT, DELAYS_BEFORE_WARNING},
            sync_state::{ContestedObject, ContestedReport, Note, OtherOwner},
            write_limit::FlappingObject,
        },
        recorder::{Severity, Subject},
        resource::{LiveOwner, throttled},
    },
};

/// Time after which an object of another owner is tried again: its owner may have released it.
const CONTESTED_AGAIN: Duration = Duration::from_secs(300);

impl ParentReconciler {
    /// Reports a failed sync. Returns when the parent is reconciled again.
    pub(super) fn failed(
        &self,
        error: SyncError,
        parent: &Parent,
        context: &Context,
    ) -> Result<Outcome, ReconcileError> {
        let mut reason = "SyncError";
        let (message, after) = match error {
            SyncError::Cancelled => return Ok(Outcome::Done),
            SyncError::Busy(kind, after) => {
                // Not an error, but nothing is done for the parent until the hook is free. The
                // message omits the wait, which may differ with each response.
                let message = "the hook is busy and requests a later retry".to_owned();
                let (hook, reason) = (Some(kind), HookError::Busy(after).reason());
                self.parents.hook.failed(&parent.key, Failure { hook, reason, message });
                return Err(ReconcileError::RetryAfter(PostponedError.into(), after));
            }
            // Another client's success: it is no error however long it lasts.
            SyncError::Conflict(message) => {
                self.report_delay(&message, Severity::Normal, parent, context);
                return Err(conflict(&message));
            }
            SyncError::Outdated(message) => {
                let is_late = context.attempt() >= DELAYS_BEFORE_WARNING;
                let severity = if is_late { Severity::Warning } else { Severity::Normal };
                let is_reported = self.report_delay(&message, severity, parent, context);
                return Err(match is_reported {
                    true => ReconcileError::Retry(message.into()),
                    false => conflict(&message),
                });
            }
            SyncError::Throttled { message, after } => {
                return Err(ReconcileError::Retry(Box::new(throttled(&message, after))));
            }
            SyncError::HookDown(kind, failure) => {
                let message = failure.text();
                self.parents.hook.failed(&parent.key, failure);
                let failures = context.attempt();
                (message, Some(self.parents.hook.wait(kind, &parent.key, failures)))
            }
            SyncError::Hook(failure) => {
                let message = failure.text();
                self.parents.hook.failed(&parent.key, failure);
                (message, None)
            }
            SyncError::TooDeep(message) => {
                reason = owner_chain::TOO_DEEP;
                let failure = Failure { hook: None, reason, message: message.clone() };
                self.parents.hook.failed(&parent.key, failure);
                (message, None)
            }
            SyncError::Failed(message) => (message, None),
        };
        let subject = subject(parent);
        let text = format!("Sync error: {message}");
        self.recorder.publish(context, &subject, Severity::Warning, reason, &text);
        Err(match after {
            Some(after) => ReconcileError::RetryAfter(message.into(), after),
            None => ReconcileError::Retry(message.into()),
        })
    }

    /// Reports a sync that is delayed without a failure, once that has lasted for some attempts.
    /// Returns whether it is reported.
    fn report_delay(
        &self,
        message: &str,
        severity: Severity,
        parent: &Parent,
        context: &Context,
    ) -> bool {
        let is_reported = context.attempt() >= CONFLICTS_BEFORE_EVENT;
        if is_reported {
            let text = format!("Sync delayed: {message}");
            self.recorder.publish(context, &subject(parent), severity, "SyncDelayed", &text);
        }
        is_reported
    }

    /// Warns once of a selector that adopts no orphan, since it requires no label.
    pub(super) fn report_selector(
        &self,
        parent: &Parent,
        ownership: &Ownership,
        context: &Context,
    ) {
        if ownership.adopts().is_none()
            && let Some(selector) = ownership.selector()
            && parent.state.is_first_warning()
        {
            let text = format!(
                "No orphan is adopted: the selector {selector} requires no label, so that it \
                 matches objects of others; add matchLabels, or matchExpressions with In or Exists"
            );
            let subject = subject(parent);
            self.recorder.publish(context, &subject, Severity::Warning, "SelectorTooBroad", &text);
        }
    }

    /// Reports a child that a response has several times, once until the message changes.
    pub(super) fn report_repeated(
        &self,
        parent: &Parent,
        message: Option<&str>,
        context: &Context,
    ) {
        if let Some(message) = parent.state.repeated(message) {
            let subject = subject(parent);
            self.recorder.publish(context, &subject, Severity::Warning, "RepeatedChild", message);
        }
    }

    /// Reports changes of children and newly contested objects as Events of the parent. An
    /// owner that is a parent too gets an Event for each contested object. The condition
    /// `Contested` of the controller has all of them. Returns the time until the next attempt.
    pub(super) fn report_contested(&self, parent: &Parent, context: &Context) -> Option<Duration> {
        let ContestedReport { names, unreported } = parent.state.contested();
        let is_contested = !names.is_empty();
        self.parents.hook.contested(&parent.key, names);
        let wanted = subject(parent);
        for Note { reason, text } in parent.state.notes() {
            self.recorder.publish(context, &wanted, Severity::Normal, reason, &text);
        }
        for (what, ContestedObject { message, owner, .. }) in unreported {
            let text = format!("Sync error: {message}");
            self.recorder.publish(context, &wanted, Severity::Warning, "SyncError", &text);
            if let Some(other) = owner.and_then(|owner| self.other_parent(owner, &wanted)) {
                let Subject { kind, name, .. } = &wanted;
                let text = format!("Sync error: {what} is also desired by {kind} {name}");
                self.recorder.publish(context, &other, Severity::Warning, "SyncError", &text);
            }
        }
        is_contested.then_some(CONTESTED_AGAIN)
    }

    /// Returns the subject of Events about the owner of a contested object, if it has the type of
    /// the parent or is one of another type.
    fn other_parent(&self, owner: OtherOwner, parent: &Subject) -> Option<Subject> {
        let OtherOwner { reference, namespace, is_parent } = owner;
        let LiveOwner { api_version, kind, name, uid, .. } = reference;
        let is_same_type = (&api_version, &kind) == (&parent.api_version, &parent.kind);
        let namespace = if is_same_type {
            parent.namespace.clone()
        } else if is_parent {
            let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
            let served = self.types.served(&TypeRef::kind(group, version, kind.as_str()))?;
            namespace.filter(|_| served.identity.scope == Scope::Namespaced)
        } else {
            return None;
        };
        Some(Subject { api_version, kind, namespace, name: name.into(), uid: uid.into() })
    }

    /// Records that the hook is healthy, or that it flaps. Returns the time until the flapping is
    /// to be checked again.
    pub(super) fn report_flapping(&self, parent: &Parent, context: &Context) -> Option<Duration> {
        let Some(flapping) = parent.state.flapping() else {
            self.parents.hook.succeeded(&parent.key);
            return None;
        };
        let FlappingObject { what, again, by_conflicts } = flapping;
        let message = format!("{what} changes repeatedly, because of the hook or another client");
        let failure = Failure { hook: None, reason: "Flapping", message: message.clone() };
        if self.parents.hook.failed(&parent.key, failure) {
            let (subject, text) = (subject(parent), format!("Delayed: {message}"));
            let severity = if by_conflicts { Severity::Normal } else { Severity::Warning };
            self.recorder.publish(context, &subject, severity, "Flapping", &text);
        }
        Some(again)
    }
}

/// Returns the end of a reconcile that is retried as a conflict, which counts as no error.
fn conflict(message: &str) -> ReconcileError {
    let status = Status::failure(message, "Conflict").with_code(409);
    ReconcileError::Retry(Box::new(kube::Error::Api(status.boxed())))
}

/// Returns the subject of Events about a parent.
pub(super) fn subject(parent: &Parent) -> Subject {
    Subject {
        api_version: parent.served.identity.api_version(),
        kind: parent.served.kind.to_string(),
        namespace: parent.key.namespace.clone(),
        name: parent.key.name.clone(),
        uid: parent.uid.clone(),
    }
}
