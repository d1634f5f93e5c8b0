//! User code that panics affects only its own runnable, whose status reports the panic.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match names the few that matter")]

use super::*;
use crate::guard::fixture::{Unspeakable, check_each, is_named};

/// Place in a runnable at which its code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seam {
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

struct Faulty(Option<Seam>);

/// A condition whose code panics.
struct FaultyCondition {
    panics: bool,
    _bomb: Option<Bomb>,
}

impl FaultyCondition {
    fn new(seam: Seam) -> Self {
        let dropped = matches!(seam, Seam::ConditionDropped | Seam::ConditionAndRunnableDropped);
        Self { panics: seam == Seam::Condition, _bomb: dropped.then(|| Bomb) }
    }
}

impl Condition for FaultyCondition {
    fn watch(&self) -> Readiness {
        assert!(!self.panics, "boom");
        always()
    }
}

impl Faulty {
    fn panics(&self, at: Seam) {
        assert!(self.0 != Some(at), "boom");
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.panics(Seam::RunnableDropped);
        self.panics(Seam::ConditionAndRunnableDropped);
    }
}

impl Runnable for Faulty {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        self.panics(Seam::Start);
        let seam = self.0;
        Box::pin(async move {
            match seam {
                Some(Seam::Run) => panic!("boom"),
                Some(Seam::RunPayload) => std::panic::panic_any(Bomb),
                Some(Seam::RunError) => return Err(Unspeakable { dropped: false }.into()),
                Some(Seam::RunErrorDropped) => return Err(Unspeakable { dropped: true }.into()),
                _ => {}
            }
            let _bomb = (seam == Some(Seam::RunDropped)).then(|| Bomb);
            if matches!(seam, Some(Seam::TaskDropped | Seam::AbortedTaskDropped)) {
                let (bomb, stops) = (Bomb, epoch.clone());
                epoch.spawn(async move {
                    let _bomb = bomb;
                    stops.stopping().await;
                    if seam == Some(Seam::AbortedTaskDropped) {
                        std::future::pending().await
                    }
                });
            }
            epoch.stopping().await;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        self.panics(Seam::Group);
        RunnableGroup::LeaderElection
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        self.panics(Seam::Prepare);
        let seam = self.0;
        Box::pin(async move {
            match seam {
                Some(Seam::PreparePayload) => std::panic::panic_any(Bomb),
                Some(Seam::PrepareError) => Err(Unspeakable { dropped: false }.into()),
                Some(Seam::PrepareErrorDropped) => Err(Unspeakable { dropped: true }.into()),
                Some(Seam::Unprepare | Seam::UnpreparePayload) => Err("not now".into()),
                _ => Ok(()),
            }
        })
    }

    fn unprepare(&self) {
        self.panics(Seam::Unprepare);
        if self.0 == Some(Seam::UnpreparePayload) {
            std::panic::panic_any(Bomb);
        }
    }
}

impl ConditionalRunnable for Faulty {
    fn ready(&self) -> Readiness {
        self.panics(Seam::Ready);
        Readiness::published(watch::channel(met()).1)
    }
}

/// Runs a runnable that panics at `seam` beside a healthy one.
async fn try_seam(seam: Seam) {
    let harness = Harness::new();
    harness.add("well", &Probe::new(Body::UntilStopped).arc()).await;
    let options = RunnableOptions::default;
    let faulty = Arc::new(Faulty(Some(seam)));
    let prepares = matches!(
        seam,
        Seam::Prepare
            | Seam::PreparePayload
            | Seam::PrepareError
            | Seam::PrepareErrorDropped
            | Seam::Unprepare
            | Seam::UnpreparePayload
    );
    if prepares {
        harness.handle.add("faulty", Arc::new(Faulty(None)), options()).await.unwrap();
        harness.until("faulty", ControllerState::Running).await;
        harness.handle.replace("faulty", faulty, options()).await.unwrap();
    } else {
        let conditional = RunnableWithCondition::also(faulty, FaultyCondition::new(seam));
        harness.handle.add("faulty", Arc::new(conditional), options()).await.unwrap();
    }

    match seam {
        Seam::RunDropped
        | Seam::RunnableDropped
        | Seam::ConditionDropped
        | Seam::ConditionAndRunnableDropped
        | Seam::TaskDropped
        | Seam::AbortedTaskDropped => {
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
    let seams = [
        Seam::Group,
        Seam::Ready,
        Seam::Start,
        Seam::Run,
        Seam::RunPayload,
        Seam::RunError,
        Seam::RunErrorDropped,
        Seam::RunDropped,
        Seam::Prepare,
        Seam::PreparePayload,
        Seam::PrepareError,
        Seam::PrepareErrorDropped,
        Seam::Unprepare,
        Seam::UnpreparePayload,
        Seam::RunnableDropped,
        Seam::Condition,
        Seam::ConditionDropped,
        Seam::ConditionAndRunnableDropped,
        Seam::TaskDropped,
        Seam::AbortedTaskDropped,
    ];
    check_each(&seams, try_seam).await;
}
