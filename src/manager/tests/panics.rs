//! User code that panics affects only its own runnable, whose status reports the panic.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match names the few that matter")]

use super::*;
use crate::guard::fixture::{PanickingError, check_each, is_named};

/// Place in a runnable at which its code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PanicPoint {
    Group,
    Ready,
    Start,
    Run,
    RunPayload,
    RunError,
    RunErrorDropped,
    RunDropped,
    Prepare,
    PreparePayload,
    PrepareError,
    PrepareErrorDropped,
    Unprepare,
    UnpreparePayload,
    RunnableDropped,
    Condition,
    ConditionDropped,
    ConditionAndRunnableDropped,
    TaskDropped,
    AbortedTaskDropped,
}

struct Faulty(Option<PanicPoint>);

/// A condition whose code panics.
struct FaultyCondition {
    panics: bool,
    _panics: Option<PanicsOnDrop>,
}

impl FaultyCondition {
    fn new(point: PanicPoint) -> Self {
        let dropped =
            matches!(point, PanicPoint::ConditionDropped | PanicPoint::ConditionAndRunnableDropped);
        Self { panics: point == PanicPoint::Condition, _panics: dropped.then(|| PanicsOnDrop) }
    }
}

impl Condition for FaultyCondition {
    fn watch(&self) -> Readiness {
        assert!(!self.panics, "boom");
        always()
    }
}

impl Faulty {
    fn panics(&self, at: PanicPoint) {
        assert!(self.0 != Some(at), "boom");
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.panics(PanicPoint::RunnableDropped);
        self.panics(PanicPoint::ConditionAndRunnableDropped);
    }
}

impl Runnable for Faulty {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        self.panics(PanicPoint::Start);
        let point = self.0;
        Box::pin(async move {
            match point {
                Some(PanicPoint::Run) => panic!("boom"),
                Some(PanicPoint::RunPayload) => std::panic::panic_any(PanicsOnDrop),
                Some(PanicPoint::RunError) => return Err(PanickingError { dropped: false }.into()),
                Some(PanicPoint::RunErrorDropped) => {
                    return Err(PanickingError { dropped: true }.into());
                }
                _ => {}
            }
            let _panics = (point == Some(PanicPoint::RunDropped)).then(|| PanicsOnDrop);
            if matches!(point, Some(PanicPoint::TaskDropped | PanicPoint::AbortedTaskDropped)) {
                let (panics_on_drop, stops) = (PanicsOnDrop, epoch.clone());
                epoch.spawn(async move {
                    let _panics = panics_on_drop;
                    stops.stopping().await;
                    if point == Some(PanicPoint::AbortedTaskDropped) {
                        std::future::pending().await
                    }
                });
            }
            epoch.stopping().await;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        self.panics(PanicPoint::Group);
        RunnableGroup::LeaderElection
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        self.panics(PanicPoint::Prepare);
        let point = self.0;
        Box::pin(async move {
            match point {
                Some(PanicPoint::PreparePayload) => std::panic::panic_any(PanicsOnDrop),
                Some(PanicPoint::PrepareError) => Err(PanickingError { dropped: false }.into()),
                Some(PanicPoint::PrepareErrorDropped) => {
                    Err(PanickingError { dropped: true }.into())
                }
                Some(PanicPoint::Unprepare | PanicPoint::UnpreparePayload) => Err("not now".into()),
                _ => Ok(()),
            }
        })
    }

    fn unprepare(&self) {
        self.panics(PanicPoint::Unprepare);
        if self.0 == Some(PanicPoint::UnpreparePayload) {
            std::panic::panic_any(PanicsOnDrop);
        }
    }
}

impl ConditionalRunnable for Faulty {
    fn ready(&self) -> Readiness {
        self.panics(PanicPoint::Ready);
        Readiness::published(watch::channel(met()).1)
    }
}

/// Runs a runnable that panics at `point` beside a healthy one.
async fn try_point(point: PanicPoint) {
    let harness = Harness::new();
    harness.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    let options = RunnableOptions::default;
    let faulty = Arc::new(Faulty(Some(point)));
    let prepares = matches!(
        point,
        PanicPoint::Prepare
            | PanicPoint::PreparePayload
            | PanicPoint::PrepareError
            | PanicPoint::PrepareErrorDropped
            | PanicPoint::Unprepare
            | PanicPoint::UnpreparePayload
    );
    if prepares {
        harness.handle.add("faulty", Arc::new(Faulty(None)), options()).await.unwrap();
        harness.until("faulty", ControllerState::Running).await;
        harness.handle.replace("faulty", faulty, options()).await.unwrap();
    } else {
        let conditional = RunnableWithCondition::new(faulty, FaultyCondition::new(point));
        harness.handle.add("faulty", Arc::new(conditional), options()).await.unwrap();
    }

    match point {
        PanicPoint::RunDropped
        | PanicPoint::RunnableDropped
        | PanicPoint::ConditionDropped
        | PanicPoint::ConditionAndRunnableDropped
        | PanicPoint::TaskDropped
        | PanicPoint::AbortedTaskDropped => {
            harness.until("faulty", ControllerState::Running).await;
        }
        _ => {
            let named = |it: &Arc<Snapshot>| is_named(&it[&"faulty".into()]);
            let mut snapshots = harness.handle.watch();
            let named = timeout(Duration::from_secs(60), snapshots.wait_for(named)).await;
            drop(named.expect("the status names it").expect("the manager runs"));
        }
    }
    harness.handle.remove("faulty").await;
    harness.handle.add("faulty", Arc::new(Faulty(None)), options()).await.unwrap();
    harness.until("faulty", ControllerState::Running).await;
    assert_eq!(harness.until("well", ControllerState::Running).await.epoch, 1);
    harness.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_any_code_of_a_runnable_affects_that_runnable_alone_and_is_reported() {
    let points = [
        PanicPoint::Group,
        PanicPoint::Ready,
        PanicPoint::Start,
        PanicPoint::Run,
        PanicPoint::RunPayload,
        PanicPoint::RunError,
        PanicPoint::RunErrorDropped,
        PanicPoint::RunDropped,
        PanicPoint::Prepare,
        PanicPoint::PreparePayload,
        PanicPoint::PrepareError,
        PanicPoint::PrepareErrorDropped,
        PanicPoint::Unprepare,
        PanicPoint::UnpreparePayload,
        PanicPoint::RunnableDropped,
        PanicPoint::Condition,
        PanicPoint::ConditionDropped,
        PanicPoint::ConditionAndRunnableDropped,
        PanicPoint::TaskDropped,
        PanicPoint::AbortedTaskDropped,
    ];
    check_each(&points, try_point).await;
}
