//! Drives one epoch from start to done.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{sleep, timeout};

use super::{Epoch, RunResult, end::RunEnd};
use crate::{guard, redaction};

/// Added to the epoch's own grace before a run is dropped, so that a run that keeps the grace is
/// never cut short.
const SLACK: Duration = Duration::from_millis(500);

/// Time after the grace after which an epoch is reported as stuck. A merely slow end takes less.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// Longest wait for the tasks of an epoch's clients.
const CLIENTS: Duration = Duration::from_millis(100);

/// Treatment of a run that outlives its grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overrun {
    Dropped,
    WaitedFor,
}

/// Runs `run` until it ends or is dropped after its grace. Returns when the epoch has no task, and
/// no request that may still be sent.
///
/// [`Epoch::subscribe_returned`] reports the end of the run earlier. From then on, its tasks have
/// the grace.
pub(super) async fn drive(
    epoch: Epoch,
    run: BoxFuture<'static, RunResult>,
    overrun: Overrun,
) -> RunEnd {
    // Guards against panics: dropping the run and formatting its error execute the runnable's code
    // too.
    let end =
        guard::future(run_to_end(&epoch, run, overrun)).await.unwrap_or_else(RunEnd::Panicked);
    epoch.record_run_end(end.clone());
    let is_source_done = end == RunEnd::Completed && epoch.is_source_done();
    let end = if is_source_done { RunEnd::SourceDone } else { end };
    epoch.drain().await;
    epoch.wait_ended().await;
    // The tasks end by themselves, unless a runnable keeps a client beyond its run. Such a client
    // is useless, since the fence is closed.
    timeout(CLIENTS, epoch.fence().clients_gone()).await.unwrap_or_default();
    end
}

async fn run_to_end(epoch: &Epoch, run: BoxFuture<'static, RunResult>, overrun: Overrun) -> RunEnd {
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
    epoch.wait_grace_over().await;
    sleep(SLACK).await;
}
