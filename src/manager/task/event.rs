//! Events of a manager, and the queues that they come from.

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::{mpsc, watch};
use tokio_util::time::{DelayQueue, delay_queue};

use super::super::{
    ControllerName, Readiness, Report, command::ManagerCommand, election::ElectionChange,
    end::RunEnd, metrics::OwnedLabels,
};
use crate::owner_gauge::CountGuard;

/// Identifier of an entry. Never reused, so that events of a removed entry cannot reach a new one
/// of the same name.
pub(super) type Id = u64;

/// Identity of an entry, and the name under which its tasks and timers are counted.
#[derive(Clone, Debug)]
pub(super) struct EntryKey {
    pub(super) id: Id,
    pub(super) name: ControllerName,
}

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

/// Key of a pending timer.
pub(super) type TimerKey = delay_queue::Key;

/// Changes that are waited for.
pub(super) type Watches = FuturesUnordered<BoxFuture<'static, Option<ManagerEvent>>>;

/// Timer of an entry. Removed with the state that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryTimer {
    Wake,
    Grace,
    Overdue,
    Retry,
    /// Serial number of the subscription whose condition is asked again.
    Ask(u64),
}

impl EntryTimer {
    /// Returns the value of the metric label `kind`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Wake => "wake",
            Self::Grace => "grace",
            Self::Overdue => "overdue",
            Self::Retry => "retry",
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
    let mut changes = watches.filter_map(std::future::ready);
    // Without watches it waits for commands alone, of which the manager keeps a sender.
    if watches_first {
        tokio::select! {
            biased;
            Some(change) = changes.next() => change,
            Some(command) = commands.recv() => ManagerEvent::Command(command),
            else => std::future::pending().await,
        }
    } else {
        tokio::select! {
            biased;
            Some(command) = commands.recv() => ManagerEvent::Command(command),
            Some(change) = changes.next() => change,
            else => std::future::pending().await,
        }
    }
}
