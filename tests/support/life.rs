//! Transitions of a runnable.

use pilotlight::manager::{ControllerName, ControllerState, Transition, TransitionKind};
#[cfg(feature = "cli")]
use tokio::time::Instant;

use super::Harness;

impl Harness<'_> {
    /// Transitions of a runnable so far.
    pub(crate) fn life(&self, name: &str) -> Vec<Transition> {
        let name = ControllerName::from(name);
        let all = self.transitions.borrow();
        all.iter().filter(|(_, step)| step.name == name).map(|(_, step)| step.clone()).collect()
    }

    /// Times at which a runnable entered a state.
    #[cfg(feature = "cli")]
    pub(crate) fn entered(&self, name: &str, state: ControllerState) -> Vec<Instant> {
        let all = self.transitions.borrow();
        let entries = all.iter().filter(|(_, step)| {
            step.name.as_str() == name && step.kind == TransitionKind::Entered(state)
        });
        entries.map(|(at, _)| *at).collect()
    }

    /// Asserts that epochs do not overlap and that each is done exactly once. Returns the number of
    /// done epochs.
    pub(crate) fn assert_orderly(&self, name: &str) -> u64 {
        let (mut begun, mut done) = (0, 0);
        for Transition { epoch, kind, .. } in self.life(name) {
            match kind {
                TransitionKind::Entered(ControllerState::Starting) => {
                    assert_eq!(begun, done, "{name}: epoch {epoch} began before {begun} was done");
                    assert_eq!(epoch, begun + 1, "{name}: epochs are counted");
                    begun = epoch;
                }
                TransitionKind::Done(_) => {
                    assert_eq!(epoch, begun, "{name}: only a started epoch can be done");
                    assert_eq!(epoch, done + 1, "{name}: epoch {epoch} is done once");
                    done = epoch;
                }
                TransitionKind::Entered(
                    ControllerState::Waiting
                    | ControllerState::Running
                    | ControllerState::Stopping
                    | ControllerState::BackingOff
                    | ControllerState::Stopped,
                )
                | TransitionKind::Removed => {}
            }
        }
        done
    }
}
