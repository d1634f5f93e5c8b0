//! Inputs by name: added to, replaced in and removed from a controller at any time.

pub(in crate::controller) mod attached;
mod error;
pub(in crate::controller) mod input;
pub(in crate::controller) mod progress;
pub(in crate::controller) mod state;
pub(in crate::controller) mod status;
pub(in crate::controller) mod statuses;

use std::{fmt, sync::Arc};

use tokio::sync::watch;

use self::state::NamedInputs;
pub use self::{error::InputError, progress::InputState};

/// Inputs of a controller by name, beside those of its builder. Cheap to clone.
///
/// Inputs may be added before the first epoch and while one runs. The last change of an input
/// counts. An input that is added and removed before an epoch starts never runs.
///
/// [`Controller::inputs`](super::Controller::inputs) adds inputs that start in each epoch until
/// they are removed. [`Context::inputs`](super::Context::inputs) adds inputs that end with the
/// epoch. Both have the same names.
///
/// No input by name is required: none is part of the controller's condition, and none delays the
/// start of its workers. So [`Builder::conditional`](super::Builder::conditional) and
/// [`Builder::optional`](super::Builder::optional) mean the same here: the source starts and stops
/// with its type and its conditions, each time within the epoch. Any other input keeps its cache
/// while its type is lost, and fails the run if its source fails.
///
/// The inputs of the builder stay as they are. For another required input, pass a controller that
/// has it to [`ManagerHandle::replace`](crate::manager::ManagerHandle::replace): the old one runs
/// until the types of the new one are served and synced. An input that is to be removed later must
/// be added by name.
///
/// ```
/// # use pilotlight::{controller::{Controller, Handler, InputError}, kind::TypeRef};
/// # async fn example(controller: &Controller) -> Result<(), Box<dyn std::error::Error>> {
/// let inputs = controller.inputs();
/// let type_ref = TypeRef::kind("example.com", "v1", "Gadget");
/// let gadgets =
///     inputs.add("gadgets", |input| input.watches_type(type_ref, Handler::Object).optional())?;
/// gadgets.started().await?;
/// inputs.remove("gadgets").await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Inputs {
    pub(super) named: Arc<NamedInputs>,
    /// Epoch with which the inputs end; `None` for inputs that stay until they are removed.
    pub(super) epoch: Option<u64>,
}

/// Input that was added by name. Dropping it does not remove the input.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::controller::{InputHandle, InputState};
/// use tokio::time::timeout;
///
/// /// Waits for at most a second, since the type may not be installed.
/// async fn has_started(input: InputHandle) -> bool {
///     drop(timeout(Duration::from_secs(1), input.started()).await);
///     input.state() == InputState::Started
/// }
/// ```
#[derive(Clone, Debug)]
pub struct InputHandle {
    pub(super) state: watch::Receiver<InputState>,
    /// Inputs that this one replaces, until they have ended.
    pub(super) replaced: Vec<watch::Receiver<InputState>>,
}

impl Inputs {
    /// Removes the input of a name. Waits until its source, handlers and predicates have ended, and
    /// its cache is detached from the contexts. Returns whether the input existed.
    ///
    /// Requests that the input has added stay in the queue. A source that does not end is dropped
    /// after the grace.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the input is removed even if this future is dropped.
    pub async fn remove(&self, name: &str) -> bool {
        let ending = self.named.withdraw(name);
        let is_known = !ending.is_empty();
        for state in ending {
            ended(state).await;
        }
        is_known
    }

    /// Removes the input of a name without waiting for its end.
    pub(crate) fn remove_now(&self, name: &str) {
        drop(self.named.withdraw(name));
    }

    /// Returns the names of the inputs, and their states.
    pub fn states(&self) -> Vec<(String, InputState)> {
        self.named.states()
    }
}

impl InputHandle {
    /// Returns the current state.
    pub fn state(&self) -> InputState {
        self.state.borrow().clone()
    }

    /// Waits until the input has started, and the inputs that it replaces have ended. Waits for as
    /// long as no epoch runs, or its type is not served.
    ///
    /// A reconcile that awaits this holds its worker, and a type may be missing for ever. Return
    /// from the reconcile instead: the input adds requests for its objects once it has started.
    /// [`InputHandle::state`] has the reason until then. Or bound the wait:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pilotlight::controller::*;
    /// use tokio::time::timeout;
    ///
    /// async fn reconcile(gadgets: InputHandle) -> Result<Outcome, ReconcileError> {
    ///     match timeout(Duration::from_secs(1), gadgets.started()).await {
    ///         Ok(started) => started?,
    ///         // Frees the worker.
    ///         Err(_) => return Ok(Outcome::RequeueAfter(Duration::from_secs(60))),
    ///     }
    ///     Ok(Outcome::Done) // The cache of gadgets can be read here.
    /// }
    /// # drop(reconcile);
    /// ```
    ///
    /// # Errors
    ///
    /// [`InputError::Ended`] if the input ends first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn started(&self) -> Result<(), InputError> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, InputState::Pending(_))).await;
        match settled.map(|state| state.clone()) {
            Ok(InputState::Started) => {}
            Ok(InputState::Pending(_) | InputState::Ended) | Err(_) => {
                return Err(InputError::Ended);
            }
        }
        for replaced in &self.replaced {
            ended(replaced.clone()).await;
        }
        Ok(())
    }
}

async fn ended(mut state: watch::Receiver<InputState>) {
    // The sender is dropped with the last trace of the input.
    state.wait_for(|state| *state == InputState::Ended).await.map(drop).ok();
}

impl fmt::Debug for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs").field("states", &self.states()).finish_non_exhaustive()
    }
}
