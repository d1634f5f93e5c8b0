//! Restart of a runnable on request.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_restart_resolves_when_the_old_epoch_is_done_and_begins_another() {
    let mut harness = Harness::new();
    harness.add("widgets", &Probe::new(Body::Drains(Duration::from_secs(2))).arc()).await;
    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 1);
    let begin = tokio::time::Instant::now();

    harness.handle.restart("widgets").await.unwrap();

    assert_eq!(begin.elapsed(), Duration::from_secs(2), "it drains");
    assert_eq!(harness.next_done().await, (1, DoneReason::Superseded));
    assert_eq!(harness.until("widgets", ControllerState::Running).await.epoch, 2);
    assert_eq!(begin.elapsed(), Duration::from_secs(2), "no back-off");
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restart_ends_a_back_off_and_a_final_stop() {
    let harness = Harness::new();
    let never = RunnableOptions { restart: RestartPolicy::Never, ..RunnableOptions::default() };
    harness.add("fails", &Probe::new(Body::Fails).arc()).await;
    harness.handle.add("once", Probe::new(Body::Fails).arc(), never).await.unwrap();
    let backing_off = harness.until("fails", ControllerState::BackingOff).await;
    harness.until("once", ControllerState::Stopped).await;
    let begin = tokio::time::Instant::now();

    for name in ["fails", "once"] {
        harness.handle.restart(name).await.unwrap();
        let mut watch = harness.handle.watch();
        let again = |snapshot: &Arc<Snapshot>| snapshot[&name.into()].epoch > backing_off.epoch;
        watch.wait_for(again).await.unwrap();
    }

    assert_eq!(begin.elapsed(), Duration::ZERO, "at once");
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restart_counts_while_a_failed_epoch_ends() {
    for restart in [RestartPolicy::Always, RestartPolicy::Never] {
        let mut harness = Harness::new();
        let options = RunnableOptions { restart, ..RunnableOptions::default() };
        let slow = Probe::new(Body::FailsSlowly(Duration::from_secs(2))).arc();
        harness.handle.add("slow", slow, options).await.unwrap();
        harness.until("slow", ControllerState::Stopping).await;
        let begin = tokio::time::Instant::now();

        harness.handle.restart("slow").await.unwrap();

        assert_eq!(harness.next_done().await.0, 1);
        let mut watch = harness.handle.watch();
        let again = |snapshot: &Arc<Snapshot>| snapshot[&"slow".into()].epoch == 2;
        watch.wait_for(again).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_secs(2), "{restart:?}: no back-off");
        harness.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_starts_nothing_whose_condition_is_not_met() {
    let harness = Harness::new();
    harness.add("waits", &Probe::new(Body::UntilStopped).waiting().arc()).await;

    harness.handle.restart("waits").await.unwrap();

    let status = harness.until("waits", ControllerState::Waiting).await;
    assert_eq!((status.epoch, status.reason.as_str()), (0, "TypeAbsent"));
    let unknown = harness.handle.restart("unknown").await;
    assert_eq!(unknown, Err(AddError::NotThere("unknown".into())));
    harness.stop().await.unwrap();
}
