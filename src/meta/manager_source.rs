//! What the manager has to say of declared controllers, as a source of requests: one whose state
//! changed is looked at again, so that its object's status follows.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::broadcast::error::RecvError;

use super::declared::Changes;
use crate::{
    controller::{ConditionalSource, SourceContext, SourceEnd, SourceStart},
    informer::ObjectKey,
    manager::{
        ControllerState, DoneReason, ManagerHandle, Readiness, Transition, TransitionKind, always,
    },
};

/// What the runnables of declared controllers are called, before their name.
///
/// Metacontroller names its work queues so, and the name is their label in metrics.
pub(super) const PREFIX: &str = "CompositeController-";
/// Requests for the declared controllers of which the manager has news.
pub(super) struct ManagerSource {
    /// The manager that runs them.
    pub(super) manager: ManagerHandle,
    /// Where news is collected.
    pub(super) changes: Arc<Changes>,
}

impl ConditionalSource for ManagerSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let changes = Arc::clone(&self.changes);
        let mut snapshots = self.manager.watch();
        let mut transitions = self.manager.transitions();
        let mut last = snapshots.borrow_and_update().clone();
        let done = async move {
            // Those whose object is missing have no other event.
            for name in changes.names() {
                context.enqueue(ObjectKey::cluster(name));
            }
            loop {
                tokio::select! {
                    () = context.stopping() => return SourceEnd::Stopped,
                    name = changes.next() => context.enqueue(ObjectKey::cluster(name)),
                    transition = transitions.recv() => match transition {
                        Ok(transition) => changes.transition(&transition),
                        Err(RecvError::Lagged(missed)) => {
                            tracing::debug!(missed, "transitions went by unseen");
                            for name in changes.names() {
                                changes.mark(&name);
                            }
                        }
                        Err(RecvError::Closed) => return SourceEnd::Stopped,
                    },
                    changed = snapshots.changed() => {
                        if changed.is_err() {
                            return SourceEnd::Stopped;
                        }
                        let snapshot = snapshots.borrow_and_update().clone();
                        for (name, status) in snapshot.iter() {
                            let same = last.get(name).is_some_and(|last| Arc::ptr_eq(last, status));
                            if let Some(name) = name.as_str().strip_prefix(PREFIX) && !same {
                                changes.mark(name);
                            }
                        }
                        let gone = last.keys().filter(|name| !snapshot.contains_key(*name));
                        for name in gone.filter_map(|name| name.as_str().strip_prefix(PREFIX)) {
                            changes.mark(name);
                        }
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

impl Changes {
    /// Notes a transition that is worth an Event.
    fn transition(&self, transition: &Transition) {
        let Some(name) = transition.name.as_str().strip_prefix(PREFIX) else { return };
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
        self.note_event(name, reason, format!("{reason} controller: {name}{why}"));
    }
}
