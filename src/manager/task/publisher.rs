//! Publisher of a manager: snapshots, and the messages that follow them.

use std::sync::Arc;

use tokio::sync::{broadcast, oneshot, watch};

use crate::manager::{
    AddError, ControllerName, RunnableStatus, Snapshot, Transition, TransitionKind,
    command::ManagerReply,
};

/// Sender of snapshots, and of the messages that leave after the snapshot that shows their cause, so
/// that their receivers never read an older snapshot.
pub(super) struct Publisher {
    pub(super) snapshot: watch::Sender<Arc<Snapshot>>,
    pub(super) transitions: broadcast::Sender<Transition>,
    /// Names removed since the last snapshot.
    pub(super) removed: Vec<ControllerName>,
    pub(super) messages: Vec<QueuedMessage>,
}

/// Message that follows the next snapshot.
pub(super) enum QueuedMessage {
    Transition(Transition),
    Answer(ManagerReply, Result<(), AddError>),
    Resolve(oneshot::Sender<()>),
    /// Dropped, which its receiver takes for an end without an answer.
    Discard(oneshot::Sender<()>),
}

impl Publisher {
    pub(super) fn announce(&mut self, name: &ControllerName, epoch: u64, kind: TransitionKind) {
        let transition = Transition { name: name.clone(), epoch, kind };
        self.messages.push(QueuedMessage::Transition(transition));
    }

    pub(super) fn answer(&mut self, reply: ManagerReply, response: Result<(), AddError>) {
        self.messages.push(QueuedMessage::Answer(reply, response));
    }

    pub(super) fn resolve(&mut self, waiter: oneshot::Sender<()>) {
        self.messages.push(QueuedMessage::Resolve(waiter));
    }

    pub(super) fn discard(&mut self, waiter: oneshot::Sender<()>) {
        self.messages.push(QueuedMessage::Discard(waiter));
    }

    /// Publishes the removals and these statuses as one snapshot, and then sends the messages.
    pub(super) fn publish(&mut self, changed: Vec<Arc<RunnableStatus>>) {
        let removed = std::mem::take(&mut self.removed);
        if !changed.is_empty() || !removed.is_empty() {
            self.snapshot.send_modify(|snapshot| {
                // Copies the map if a reader holds the last snapshot.
                let snapshot = Arc::make_mut(snapshot);
                for name in &removed {
                    snapshot.remove(name);
                }
                changed.into_iter().for_each(|status| snapshot.insert(status));
            });
        }
        for message in self.messages.drain(..) {
            // A receiver that was dropped needs no message.
            match message {
                QueuedMessage::Transition(transition) => drop(self.transitions.send(transition)),
                QueuedMessage::Answer(reply, response) => drop(reply.send(response)),
                QueuedMessage::Resolve(waiter) => waiter.send(()).unwrap_or_default(),
                QueuedMessage::Discard(waiter) => drop(waiter),
            }
        }
    }
}
