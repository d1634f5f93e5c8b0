//! Release of the hooks after a run.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{runtime::Handle, time::sleep};
use tracing::warn;

use super::current::CurrentSync;
use crate::{
    guard,
    manager::Epoch,
    meta::{hooks::Hook, parents::Parents},
};

/// Time after the grace in which a hook may release its resources. Shorter than the time after
/// which an epoch counts as stuck.
const RELEASE_SLACK: Duration = Duration::from_millis(500);

/// Cleans up after a run. Dropping it cleans up too, when the run is dropped after its grace
/// period.
pub(super) struct Cleanup {
    parents: Arc<Parents>,
    // `None` once the hooks are released.
    hooks: Option<CurrentSync>,
    epoch: Epoch,
}

/// Failed release of a hook, which may still hold connections or cached responses.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReleaseError {
    /// Resolve `Hook::release` sooner, or raise the grace.
    #[error("the hook was not released within the grace")]
    Late,
    /// Fix `Hook::release`.
    #[error("the hook panicked during its release: {0}")]
    Panicked(String),
}

impl Cleanup {
    pub(super) fn new(parents: Arc<Parents>, hooks: CurrentSync, epoch: Epoch) -> Self {
        Self { parents, hooks: Some(hooks), epoch }
    }

    pub(super) async fn run(mut self) -> Result<(), ReleaseError> {
        self.parents.clear();
        let hooks = self.hooks.as_ref().map(CurrentSync::release).unwrap_or_default();
        let released = hooks.iter().map(|hook| release(&**hook, &self.epoch));
        let released = join_all(released).await;
        self.hooks = None;
        released.into_iter().collect()
    }
}

/// Releases a hook; drops the release shortly after the grace of the epoch.
pub(super) async fn release(hook: &dyn Hook, epoch: &Epoch) -> Result<(), ReleaseError> {
    let over = async {
        epoch.wait_grace_over().await;
        sleep(RELEASE_SLACK).await;
    };
    tokio::select! {
        biased;
        released = guard::future(async { hook.release().await }) => {
            released.map_err(ReleaseError::Panicked)
        }
        () = over => Err(ReleaseError::Late),
    }
}

pub(super) fn warn_of(epoch: &Epoch, error: &ReleaseError) {
    let (controller, epoch) = (epoch.controller(), epoch.number());
    warn!(%controller, epoch, %error, "releasing the hook failed");
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let Some(hooks) = self.hooks.take() else { return };
        self.parents.clear();
        // The epoch awaits the tasks, and so is not done before the hooks are released.
        let Ok(runtime) = Handle::try_current() else { return };
        for hook in hooks.release() {
            let epoch = self.epoch.clone();
            let release = async move {
                if let Err(error) = release(&*hook, &epoch).await {
                    warn_of(&epoch, &error);
                }
            };
            drop(self.epoch.tracker().spawn_on(release, &runtime));
        }
    }
}
