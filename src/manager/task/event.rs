//! Events of a manager, and the queues that they come from.

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::{mpsc, watch};
use tokio_util::time::DelayQueue;

use super::super::{
    Readiness, Report, command::ManagerCommand, election::ElectionChange, end::RunEnd,
    metrics::OwnedLabels,
};
use crate::owner_gauge::CountGuard;

/// Identifier of an entry. Never reused, so that events of a removed entry cannot reach a new one
/// of the same name.
pub(super) type Id = u64;

/// Everything that can happen to a manager.
pub(super) enum ManagerEvent {
    Command(ManagerCommand),
    Verdict(Id, u64, Readiness),
    Reported(Id, u64, watch::Receiver<Report>),
    Returned(Id, u64, RunEnd),
    Ended(Id, RunEnd),
    Prepared(PreparationResult),
    Timer(Id, EntryTimer),
    Election(ElectionChange),
    GroupLate,
    Stop,
    Deadline,
}

/// Result of a preparation: entry, attempt, and the error as text.
pub(super) type PreparationResult = (Id, u64, Result<(), String>);

/// Pending timers by entry; each is counted for its runnable.
pub(super) type Timers = DelayQueue<(Id, EntryTimer, CountGuard<OwnedLabels>)>;

/// Changes that are waited for.
pub(super) type Watches = FuturesUnordered<BoxFuture<'static, Option<ManagerEvent>>>;

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryTimer {
    Wake,
    Grace(u64),
    Overdue(u64),
    Retry(u64),
    Ask(u64),
}

impl EntryTimer {
    /// Returns the value of the metric label `kind`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Wake => "wake",
            Self::Grace(_) => "grace",
            Self::Overdue(_) => "overdue",
            Self::Retry(_) => "retry",
            Self::Ask(_) => "ask",
        }
    }
}

/// Waits for a command or a change; `watches_first` decides if both are ready. Cancel safe.
pub(super) async fn next_command_or_change(
    commands: &mut mpsc::Receiver<ManagerCommand>,
    watches: &mut Watches,
    watches_first: bool,
) -> ManagerEvent {
    let command = async {
        match commands.recv().await {
            Some(command) => ManagerEvent::Command(command),
            // The manager keeps a sender.
            None => std::future::pending().await,
        }
    };
    let change = async {
        loop {
            match watches.next().await {
                Some(Some(event)) => return event,
                Some(None) => {}
                None => return std::future::pending().await,
            }
        }
    };
    if watches_first {
        tokio::select! { biased; event = change => event, event = command => event }
    } else {
        tokio::select! { biased; event = command => event, event = change => event }
    }
}
