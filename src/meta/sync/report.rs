//! Report of a sync: failures, contested objects and flapping, as Events and as health of the hook.

use std::time::Duration;

use kube::core::Status;

use super::{SyncError, owner_chain};
use crate::{
    controller::{Context, Outcome, PostponedError, ReconcileError},
    discovery::TypeRegistry,
    kind::{Scope, TypeRef},
    meta::{
        children::ownership::Ownership,
        hooks::error::HookError,
        parent::{
            Parent,
            health::{Failure, HookHealth},
            sync_error::{CONFLICTS_BEFORE_EVENT, DELAYS_BEFORE_WARNING},
            sync_state::{ContestedObject, ContestedReport, Note, OtherOwner},
            write_limit::FlappingObject,
        },
        recorder::{EventRecorder, Severity, Subject},
        resource::{LiveOwner, throttled},
    },
};

/// Time after which an object of another owner is tried again: its owner may have released it.
const CONTESTED_AGAIN: Duration = Duration::from_secs(300);

/// Reporter of one sync of a parent.
#[derive(Clone, Copy)]
pub(super) struct SyncReporter<'a> {
    pub(super) recorder: &'a EventRecorder,
    /// Health of the hook, with the failing parents.
    pub(super) health: &'a HookHealth,
    pub(super) types: &'a TypeRegistry,
    pub(super) parent: &'a Parent,
    pub(super) context: &'a Context,
}

impl SyncReporter<'_> {
    /// Publishes an Event of the parent.
    pub(super) fn publish(&self, severity: Severity, reason: &'static str, text: &str) {
        self.recorder.publish(self.context, &subject(self.parent), severity, reason, text);
    }

    /// Reports a failed sync. Returns when the parent is reconciled again.
    pub(super) fn failed(&self, error: SyncError) -> Result<Outcome, ReconcileError> {
        let key = &self.parent.key;
        let mut reason = "SyncError";
        let (message, after) = match error {
            SyncError::Cancelled => return Ok(Outcome::Done),
            SyncError::Busy(kind, after) => {
                // Not an error, but nothing is done for the parent until the hook is free. The
                // message omits the wait, which may differ with each response.
                let message = "the hook is busy and requests a later retry".to_owned();
                let (hook, reason) = (Some(kind), HookError::Busy(after).reason());
                self.health.failed(key, Failure { hook, reason, message });
                return Err(ReconcileError::RetryAfter(PostponedError.into(), after));
            }
            // Another client's success: it is no error however long it lasts.
            SyncError::Conflict(message) => {
                self.delayed(&message, Severity::Normal);
                return Err(conflict(&message));
            }
            SyncError::Outdated(message) => {
                let is_late = self.context.attempt() >= DELAYS_BEFORE_WARNING;
                let severity = if is_late { Severity::Warning } else { Severity::Normal };
                return Err(if self.delayed(&message, severity) {
                    ReconcileError::Retry(message.into())
                } else {
                    conflict(&message)
                });
            }
            SyncError::Throttled { message, after } => {
                return Err(ReconcileError::Retry(Box::new(throttled(&message, after))));
            }
            SyncError::HookDown(kind, failure) => {
                let message = failure.text();
                self.health.failed(key, failure);
                (message, Some(self.health.wait(kind, key, self.context.attempt())))
            }
            SyncError::Hook(failure) => {
                let message = failure.text();
                self.health.failed(key, failure);
                (message, None)
            }
            SyncError::TooDeep(message) => {
                reason = owner_chain::TOO_DEEP;
                self.health.failed(key, Failure { hook: None, reason, message: message.clone() });
                (message, None)
            }
            SyncError::Failed(message) => (message, None),
        };
        self.publish(Severity::Warning, reason, &format!("Sync error: {message}"));
        Err(match after {
            Some(after) => ReconcileError::RetryAfter(message.into(), after),
            None => ReconcileError::Retry(message.into()),
        })
    }

    /// Reports a sync that is delayed without a failure, once that has lasted for some attempts.
    /// Returns whether it is reported.
    fn delayed(&self, message: &str, severity: Severity) -> bool {
        let is_reported = self.context.attempt() >= CONFLICTS_BEFORE_EVENT;
        if is_reported {
            self.publish(severity, "SyncDelayed", &format!("Sync delayed: {message}"));
        }
        is_reported
    }

    /// Warns once of a selector that adopts no orphan, since it requires no label.
    pub(super) fn selector(&self, ownership: &Ownership) {
        if ownership.adopts().is_none()
            && let Some(selector) = ownership.selector()
            && self.parent.state.is_first_warning()
        {
            let text = format!(
                "No orphan is adopted: the selector {selector} requires no label, so that it \
                 matches objects of others; add matchLabels, or matchExpressions with In or Exists"
            );
            self.publish(Severity::Warning, "SelectorTooBroad", &text);
        }
    }

    /// Reports a child that a response has several times, once until the message changes.
    pub(super) fn repeated(&self, message: Option<&str>) {
        if let Some(message) = self.parent.state.repeated(message) {
            self.publish(Severity::Warning, "RepeatedChild", message);
        }
    }

    /// Reports changes of children and newly contested objects as Events of the parent. An
    /// owner that is a parent too gets an Event for each contested object. The condition
    /// `Contested` of the controller has all of them. Returns the time until the next attempt.
    pub(super) fn contested(&self) -> Option<Duration> {
        let ContestedReport { names, unreported } = self.parent.state.contested();
        let is_contested = !names.is_empty();
        self.health.contested(&self.parent.key, names);
        for Note { reason, text } in self.parent.state.notes() {
            self.publish(Severity::Normal, reason, &text);
        }
        let wanted = subject(self.parent);
        for (what, ContestedObject { message, owner, .. }) in unreported {
            self.publish(Severity::Warning, "SyncError", &format!("Sync error: {message}"));
            if let Some(other) = owner.and_then(|owner| self.other_parent(owner, &wanted)) {
                let Subject { kind, name, .. } = &wanted;
                let text = format!("Sync error: {what} is also desired by {kind} {name}");
                self.recorder.publish(self.context, &other, Severity::Warning, "SyncError", &text);
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
    pub(super) fn flapping(&self) -> Option<Duration> {
        let key = &self.parent.key;
        let Some(flapping) = self.parent.state.flapping() else {
            self.health.succeeded(key);
            return None;
        };
        let FlappingObject { what, again, by_conflicts } = flapping;
        let message = format!("{what} changes repeatedly, because of the hook or another client");
        let failure = Failure { hook: None, reason: "Flapping", message: message.clone() };
        if self.health.failed(key, failure) {
            let severity = if by_conflicts { Severity::Normal } else { Severity::Warning };
            self.publish(severity, "Flapping", &format!("Delayed: {message}"));
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
fn subject(parent: &Parent) -> Subject {
    Subject {
        api_version: parent.served.identity.api_version(),
        kind: parent.served.kind.to_string(),
        namespace: parent.key.namespace.clone(),
        name: parent.key.name.clone(),
        uid: parent.uid.clone(),
    }
}
