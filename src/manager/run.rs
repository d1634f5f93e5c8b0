//! Drives one epoch from start to done.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{Epoch, RunResult, lifecycle::RunEnd};
use crate::guard;

/// Beyond the epoch's own grace, so that a run which keeps it is never cut short.
const SLACK: Duration = Duration::from_millis(500);

/// How long the tasks of an epoch's clients are waited for.
const CLIENTS: Duration = Duration::from_millis(100);

/// What becomes of a run that outlives its grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overrun {
    Dropped,
    WaitedFor,
}

/// Runs `run` until it ends or is dropped after its grace, and returns when nothing of it is left:
/// no task, nothing that may still be sent.
pub(super) async fn drive(
    epoch: Epoch,
    run: BoxFuture<'static, RunResult>,
    overrun: Overrun,
) -> RunEnd {
    // Also what happens when it is dropped, and when its error is told, is the runnable's code.
    let end = guard::future(lived(&epoch, run, overrun)).await.unwrap_or_else(RunEnd::Panicked);
    epoch.stop(super::StopReason::Cancelled);
    epoch.fence().close();
    epoch.tasks().close();
    epoch.tasks().wait().await;
    // Nobody of the epoch is left to wait for these; whoever still does took the client away.
    if timeout(epoch.grace(), epoch.fence().quiet()).await.is_err() {
        warn!(
            controller = %epoch.controller(),
            epoch = epoch.number(),
            requests = epoch.fence().under_way(),
            "requests outlived their epoch, their outcome is unknown"
        );
    }
    // They end by themselves, except where a runnable keeps a client beyond its run: that one has
    // no use, since nothing passes the fence.
    timeout(CLIENTS, epoch.fence().clients_gone()).await.unwrap_or_default();
    end
}

async fn lived(epoch: &Epoch, run: BoxFuture<'static, RunResult>, overrun: Overrun) -> RunEnd {
    tokio::select! {
        biased;
        end = run => match end {
            Ok(()) => RunEnd::Completed,
            Err(error) => RunEnd::Failed(error.to_string()),
        },
        () = overdue(epoch), if overrun == Overrun::Dropped => RunEnd::Aborted,
    }
}

async fn overdue(epoch: &Epoch) {
    epoch.token().cancelled().await;
    sleep(epoch.grace().saturating_add(SLACK)).await;
}

/// When a stop that was asked for now counts as stuck.
pub(super) fn overdue_after(grace: Duration) -> Duration {
    // A timer cannot be set for years ahead.
    let longest = Duration::from_secs(24 * 60 * 60);
    (grace.saturating_mul(2).saturating_add(SLACK * 2)).min(longest)
}
