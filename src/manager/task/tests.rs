//! Order in which the task handles events that are ready.

use tokio::sync::oneshot;

use super::*;
use crate::manager::{
    ConditionalRunnable, Epoch, Readiness, Report, RunResult, Runnable, RunnableOptions, always,
    end::RunEnd,
};

/// Runnable that always may run, and ends at once.
struct Idle;

impl Runnable for Idle {
    fn start(&self, _epoch: Epoch) -> BoxFuture<'static, RunResult> {
        Box::pin(async { Ok(()) })
    }
}

impl ConditionalRunnable for Idle {
    fn ready(&self) -> Readiness {
        always()
    }
}

struct Harness {
    task: ManagerTask,
    commands: mpsc::Sender<ManagerCommand>,
}

impl Harness {
    fn new() -> Self {
        let (sender, commands) = mpsc::channel(8);
        let options = ManagerOptions::default();
        let (snapshot, transitions) = (watch::Sender::default(), broadcast::Sender::new(1));
        let task = ManagerTask::new(options, commands, snapshot, transitions, None);
        Self { task, commands: sender }
    }

    fn command(&self) {
        let (reply, _) = oneshot::channel();
        let command = ManagerCommand::Remove("no runnable".into(), reply);
        assert!(self.commands.try_send(command).is_ok());
    }

    async fn next(&mut self) -> ManagerEvent {
        let mut deadline = std::future::pending().boxed();
        self.task.next_event(&CancellationToken::new(), &mut deadline).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_steady_stream_of_commands_does_not_starve_the_end_of_a_run() {
    let mut harness = Harness::new();
    harness.task.parts.watch_return(1, 1, watch::channel(Some(RunEnd::Completed)).1);

    let mut events = Vec::new();
    for _ in 0..4 {
        harness.command();
        events.push(harness.next().await);
    }

    let returned =
        |event: &ManagerEvent| matches!(event, ManagerEvent::Returned(1, 1, RunEnd::Completed));
    assert!(events.iter().any(returned), "4 commands were taken up before");
}

#[tokio::test(start_paused = true)]
async fn responses_and_transitions_leave_after_the_snapshot_that_shows_their_cause() {
    let mut harness = Harness::new();
    let mut transitions = harness.task.parts.publisher.transitions.subscribe();
    let spec = RunnableSpec::new(Arc::new(Idle), RunnableOptions::default());
    let (reply, mut added) = oneshot::channel();

    harness.task.handle(ManagerEvent::Command(ManagerCommand::Add("a".into(), spec, reply)));
    assert!(added.try_recv().is_err() && transitions.try_recv().is_err(), "not published yet");
    harness.task.publish();

    assert!(harness.task.parts.publisher.snapshot.borrow().get(&"a".into()).is_some());
    assert_eq!(added.try_recv(), Ok(Ok(())));
    assert!(transitions.try_recv().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_steady_stream_of_reports_does_not_starve_commands() {
    let mut harness = Harness::new();
    harness.command();

    let mut events = Vec::new();
    for _ in 0..4 {
        let (reports, report) = watch::channel(Report::default());
        reports.send_modify(|report| report.stale = true);
        harness.task.parts.watch_report(1, 1, report);
        events.push(harness.next().await);
    }

    assert!(events.iter().any(|event| matches!(event, ManagerEvent::Command(_))));
}
