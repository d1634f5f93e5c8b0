//! Tasks of an epoch: counted, traced, and aborted together.

use prometheus_client::metrics::counter::Counter;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, error};

use super::ControllerName;
use crate::guard;

/// Tasks that an epoch has spawned and may abort.
#[derive(Debug)]
pub(super) struct SpawnedTasks {
    tracker: TaskTracker,
    abort: CancellationToken,
    panics: Counter,
}

impl SpawnedTasks {
    /// No tasks yet; `panics` counts tasks that panic.
    pub(super) fn new(panics: Counter) -> Self {
        Self { tracker: TaskTracker::new(), abort: CancellationToken::new(), panics }
    }

    /// Spawns a task in the current span. Its panic is logged and counted, and ends no other task.
    pub(super) fn spawn(
        &self,
        controller: &ControllerName,
        epoch: u64,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let (controller, abort) = (controller.clone(), self.abort.clone());
        let panics = self.panics.clone();
        let task = async move {
            // Covers a panic in the drop of an aborted task too.
            if let Err(error) = guard::future(abort.run_until_cancelled_owned(task)).await {
                panics.inc();
                error!(%controller, epoch, error, "task panicked");
            }
        };
        drop(self.tracker.spawn(task.instrument(Span::current())));
    }

    /// Drops each task at its next await; tasks spawned later never start.
    pub(super) fn abort(&self) {
        self.abort.cancel();
    }

    /// Tracker of the tasks that have not ended.
    pub(super) fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Waits until no task is left. Cancel safe.
    pub(super) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
