//! State of one input by name, published to those who added it.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// State of an input that was added by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputState {
    /// The input is to start: no epoch runs, its type is not served, or its first list is in
    /// progress. Holds the reason.
    Pending(String),
    /// The input has started: the requests for all objects that existed are in the queue. A custom
    /// source may have ended since.
    Started,
    /// The input was removed or replaced, or has ended with its epoch. Nothing of it runs.
    Ended,
}

/// Published state of one input.
#[derive(Clone, Debug)]
pub(in crate::controller) struct InputProgress {
    pub(in crate::controller) name: Arc<str>,
    state: Arc<watch::Sender<InputState>>,
    wake: Arc<Notify>,
}

impl InputProgress {
    pub(in crate::controller) fn new(name: &str, state: InputState, wake: Arc<Notify>) -> Self {
        Self { name: name.into(), state: Arc::new(watch::Sender::new(state)), wake }
    }

    /// Returns whether another progress is that of the same input.
    pub(in crate::controller) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Returns the current state.
    pub(super) fn get(&self) -> InputState {
        self.state.borrow().clone()
    }

    /// Returns whether the input has started.
    pub(super) fn is_started(&self) -> bool {
        *self.state.borrow() == InputState::Started
    }

    /// Returns a receiver of the states.
    pub(super) fn subscribe(&self) -> watch::Receiver<InputState> {
        self.state.subscribe()
    }

    /// Publishes a state.
    pub(in crate::controller) fn set(&self, state: InputState) {
        let mut started = false;
        self.state.send_if_modified(|now| {
            let is_new = *now != state;
            started = is_new && state == InputState::Started;
            *now = state;
            is_new
        });
        if started {
            // A replaced input may stop now.
            self.wake.notify_one();
        }
    }
}

/// Returns the state of an input while no epoch runs.
pub(super) fn idle() -> InputState {
    InputState::Pending("the controller does not run".to_owned())
}

/// Returns the state of an input that the current epoch is to start.
pub(super) fn added() -> InputState {
    InputState::Pending("it has not started yet".to_owned())
}
