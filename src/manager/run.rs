//! Drives one epoch from start to done.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{sleep, timeout};

use super::{Epoch, RunResult, lifecycle::RunEnd};
use crate::{guard, redaction};

/// Beyond the epoch's own grace, so that a run which keeps it is never cut short.
const SLACK: Duration = Duration::from_millis(500);

/// Time after the grace before an epoch that is not done counts as stuck, so that a slow end is not
/// reported.
pub(super) const LATE: Duration = Duration::from_secs(1);

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
///
/// [`Epoch::subscribe_returned`] reports the end of the run before. From then on, its tasks have
/// the grace.
pub(super) async fn drive(
    epoch: Epoch,
    run: BoxFuture<'static, RunResult>,
    overrun: Overrun,
) -> RunEnd {
    // Also what happens when it is dropped, and when its error is told, is the runnable's code.
    let end = guard::future(lived(&epoch, run, overrun)).await.unwrap_or_else(RunEnd::Panicked);
    epoch.returned(end.clone());
    epoch.drain().await;
    epoch.ended().await;
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
            Err(error) => RunEnd::Failed(redaction::message(error.as_ref())),
        },
        () = overdue(epoch), if overrun == Overrun::Dropped => RunEnd::Aborted,
    }
}

async fn overdue(epoch: &Epoch) {
    epoch.grace_over().await;
    sleep(SLACK).await;
}
