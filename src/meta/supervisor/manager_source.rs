//! Manager source: requests for declared controllers whose state in the manager changed, so that
//! the status of their object follows.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::broadcast::error::RecvError;

use super::declared::DeclaredStates;
use crate::{
    controller::{ConditionalSource, SourceContext, SourceEnd, SourceStart},
    discovery::TypeRegistry,
    informer::ObjectKey,
    manager::{
        ControllerState, DoneReason, ManagerHandle, Readiness, Snapshot, Transition,
        TransitionKind, always,
    },
    meta::{api::controller_kind::ControllerKind, recorder::Severity},
};

/// Source of requests for declared controllers that changed in the manager.
pub(super) struct ManagerSource {
    /// Kind of the declared controllers.
    pub(super) kind: ControllerKind,
    /// Manager that runs them.
    pub(super) manager: ManagerHandle,
    /// Registry with the CRD of the kind.
    pub(super) types: TypeRegistry,
    /// Declared controllers, with the names of those that changed.
    pub(super) changes: Arc<DeclaredStates>,
}

impl ConditionalSource for ManagerSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let (kind, changes) = (self.kind, Arc::clone(&self.changes));
        let mut snapshots = self.manager.watch();
        let mut transitions = self.manager.transitions();
        let mut last = snapshots.borrow_and_update().clone();
        let (types, mut types_changed) = (self.types.clone(), self.types.changes());
        let mut generation = types.crd_generation(ControllerKind::GROUP, kind.plural());
        let epoch = context.epoch.clone();
        let done = async move {
            let mut leading = std::pin::pin!(epoch.leading());
            let mut awaits_lead = !epoch.leads();
            // Controllers whose object is missing have no other event.
            for name in changes.names() {
                context.enqueue(ObjectKey::cluster(name));
            }
            loop {
                tokio::select! {
                    () = context.stopping() => return SourceEnd::Stopped,
                    () = &mut leading, if awaits_lead => {
                        awaits_lead = false;
                        // No status was written while another replica led.
                        changes.enqueue_all();
                    }
                    name = changes.next() => context.enqueue(ObjectKey::cluster(name)),
                    changed = types_changed.changed() => {
                        if changed.is_err() {
                            return SourceEnd::Stopped;
                        }
                        let now = types.crd_generation(ControllerKind::GROUP, kind.plural());
                        if now != generation {
                            // The CRD may have a place for the status now.
                            generation = now;
                            changes.enqueue_all();
                        }
                    }
                    transition = transitions.recv() => match transition {
                        Ok(transition) => changes.transition(kind, &transition),
                        Err(RecvError::Lagged(missed)) => {
                            tracing::debug!(missed, "transitions were missed; reconciling every controller");
                            changes.enqueue_all();
                        }
                        Err(RecvError::Closed) => return SourceEnd::Stopped,
                    },
                    changed = snapshots.changed() => {
                        if changed.is_err() {
                            return SourceEnd::Stopped;
                        }
                        let snapshot = snapshots.borrow_and_update().clone();
                        changes.compare(kind, &last, &snapshot);
                        last = snapshot;
                    }
                }
            }
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "the manager".to_owned()
    }
}

impl DeclaredStates {
    /// Enqueues each runnable of a kind that was added, changed or removed between two snapshots.
    fn compare(&self, kind: ControllerKind, last: &Snapshot, now: &Snapshot) {
        let changed = now.changed_since(last);
        // In the reverse comparison, removed runnables are the added ones.
        let removed = last.changed_since(now).filter(|it| now.get(&it.name).is_none());
        let names = changed.chain(removed).map(|status| &status.name);
        for name in names.filter_map(|name| of_kind(kind, name.as_str())) {
            self.enqueue(name);
        }
    }

    /// Enqueues all controllers, since any of them may have a missed transition.
    fn enqueue_all(&self) {
        for name in self.names() {
            self.enqueue(&name);
        }
    }

    /// Stores an Event for a transition that users should see.
    fn transition(&self, kind: ControllerKind, transition: &Transition) {
        let Some(name) = of_kind(kind, transition.name.as_str()) else { return };
        let reason = match &transition.kind {
            TransitionKind::Entered(ControllerState::Starting) => "Starting",
            TransitionKind::Entered(ControllerState::Running) => "Started",
            TransitionKind::Entered(ControllerState::Stopping) => "Stopping",
            TransitionKind::Done(_) => "Stopped",
            TransitionKind::Entered(
                ControllerState::Waiting | ControllerState::BackingOff | ControllerState::Stopped,
            )
            | TransitionKind::Removed => return,
        };
        let why = match &transition.kind {
            TransitionKind::Done(DoneReason::Cancelled) | TransitionKind::Entered(_) => {
                String::new()
            }
            TransitionKind::Done(why) => match why.error() {
                Some(error) => format!(" ({}: {error})", why.word()),
                None => format!(" ({})", why.word()),
            },
            TransitionKind::Removed => return,
        };
        let text = format!("{reason} controller: {name}{why}");
        self.note_event(name, (Severity::Normal, reason, text));
    }
}

/// Returns the name of the declared controller that a runnable runs, if that is of this kind.
fn of_kind(kind: ControllerKind, runnable: &str) -> Option<&str> {
    let (found, name) = ControllerKind::of_runnable(runnable)?;
    (found == kind).then_some(name)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{
        manager::{RunnableGroup, RunnableStatus},
        meta::supervisor::declared::DeclaredState,
    };

    fn snapshot(names: &[&str]) -> Snapshot {
        let status = |name: &&str| RunnableStatus {
            state: ControllerState::Running,
            since: Timestamp::UNIX_EPOCH,
            epoch: 1,
            ..RunnableStatus::new(
                ControllerKind::Composite.runnable_name(name),
                RunnableGroup::Others,
            )
        };
        names.iter().map(|name| Arc::new(status(name))).collect()
    }

    fn changed(changes: &DeclaredStates) -> Vec<Arc<str>> {
        std::iter::from_fn(|| changes.next().now_or_never()).collect()
    }

    #[test]
    fn added_changed_and_removed_runnables_are_enqueued() {
        let changes = DeclaredStates::default();
        let last = snapshot(&["changed", "gone", "same"]);
        let same = &last[&ControllerKind::Composite.runnable_name("same")];
        let now = snapshot(&["changed", "new"]);
        let now = now.values().chain([same]).cloned().collect();

        changes.compare(ControllerKind::Decorator, &last, &now);
        assert!(changed(&changes).is_empty(), "those of another kind");
        changes.compare(ControllerKind::Composite, &last, &now);

        assert_eq!(changed(&changes), ["changed".into(), "gone".into(), "new".into()]);
    }

    #[test]
    fn missed_transitions_enqueue_every_runnable() {
        let changes = DeclaredStates::default();
        for name in ["a", "b"] {
            changes.put(&name.into(), DeclaredState::default());
        }

        changes.enqueue_all();

        assert_eq!(changed(&changes), ["a".into(), "b".into()]);
    }
}
