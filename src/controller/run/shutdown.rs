//! Shutdown of a run, in an order that leaves no task and no request of its epoch.

use std::time::Duration;

use tokio::{
    select,
    task::{Id, JoinError},
    time::{Instant, sleep, timeout_at},
};
use tracing::warn;

use super::EpochRun;
use crate::controller::run::outcome::Attempt;

/// Time that a dropped reconcile may take to reach its next await, before the informers are
/// released without it.
const SLACK: Duration = Duration::from_millis(100);

impl EpochRun {
    /// Reports the names of reconciles and sources that have not ended after the grace.
    fn report_unfinished(&self) {
        let reconciles = self.active.values().map(|it| format!("reconcile of {}", it.item.key));
        let sources = self.source_names.values().map(|name| format!("source {name}"));
        let mut unfinished: Vec<_> = reconciles.chain(sources).collect();
        unfinished.sort();
        self.epoch.report(|report| report.unfinished = unfinished);
    }

    /// Stops in an order that leaves no task and no request of the epoch.
    pub(super) async fn stop(mut self) {
        // Stops the feed of the sources, and signals the reconciles to end.
        self.cancel.cancel();
        // From now on no request is added again.
        self.queue.close();
        self.drain_workers().await;
        // Tasks that reconciles have spawned may take the rest of the grace.
        self.epoch.idle().await;
        let deadline = Instant::now() + SLACK;
        while let Ok(Some(end)) = timeout_at(deadline, self.workers.join_next_with_id()).await {
            self.reconciled_while_stopping(end);
        }
        self.join_sources().await;
        // Sources may write until they have ended.
        self.epoch.drain().await;
        self.statuses.clear();
        // A reconcile that blocks its thread is awaited, because it may still write.
        self.report_unfinished();
        while let Some(end) = self.workers.join_next_with_id().await {
            self.reconciled_while_stopping(end);
            self.report_unfinished();
        }
    }

    fn reconciled_while_stopping(&mut self, end: Result<(Id, Attempt), JoinError>) {
        if let Err(error) = self.reconciled(end) {
            warn!(controller = %self.spec.name, %error, "reconcile panicked while stopping");
        }
    }

    /// Releases the sources, and aborts those that have not ended shortly after the grace.
    async fn join_sources(&mut self) {
        self.release.cancel();
        let epoch = self.epoch.clone();
        let mut deadline = std::pin::pin!(async {
            epoch.wait_grace_over().await;
            sleep(SLACK).await;
        });
        let mut aborted = false;
        loop {
            select! {
                biased;
                end = self.sources.join_next_with_id() => {
                    let Some(end) = end else { return };
                    if let Err(error) = self.source_ended(end) {
                        warn!(controller = %self.spec.name, %error, "source failed while stopping");
                    }
                    if aborted {
                        self.report_unfinished();
                    }
                }
                // A custom source may ignore its release.
                () = &mut deadline, if !aborted => {
                    aborted = true;
                    self.sources.abort_all();
                    // A source that blocks its thread is awaited.
                    self.report_unfinished();
                }
            }
        }
    }

    /// Waits for the reconciles until the grace is over, then drops them at their next await.
    async fn drain_workers(&mut self) {
        let epoch = self.epoch.clone();
        let mut grace_over = std::pin::pin!(epoch.wait_grace_over());
        loop {
            select! {
                biased;
                Some(end) = self.workers.join_next_with_id() => self.reconciled_while_stopping(end),
                () = &mut grace_over, if !self.workers.is_empty() => break,
                else => return,
            }
        }
        self.workers.abort_all();
    }
}
