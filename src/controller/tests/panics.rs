//! Panics of user code: they affect their own controller only, and show in its status.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match names the few that matter")]

use std::fmt;

use super::*;
use crate::{informer::Index, manager::Readiness};

/// Place in a controller whose code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seam {
    Predicate,
    EventFilter,
    Map,
    MapPayload,
    Delta,
    Synced,
    Index,
    Reconcile,
    ReconcileCall,
    ReconcilePayload,
    ReconcileError,
    ReconcileErrorDropped,
    ReconcilerDropped,
    SourceName,
    SourceReady,
    SourceStart,
    SourceSynced,
    SourceSyncedPayload,
    SourceSyncError,
    SourceSyncErrorDropped,
    SourceDone,
    SourceDoneDropped,
    SourceDropped,
}

/// Value whose `Drop` panics on request.
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0, "boom");
    }
}

/// Error whose `Display` or `Drop` panics.
#[derive(Debug)]
struct Unspeakable {
    dropped: bool,
}

impl fmt::Display for Unspeakable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.dropped, "boom");
        f.write_str("an error")
    }
}

impl std::error::Error for Unspeakable {}

impl Drop for Unspeakable {
    fn drop(&mut self) {
        assert!(!self.dropped, "boom");
    }
}

struct Faulty {
    seam: Seam,
    _bomb: Bomb,
}

impl Faulty {
    fn reconciler(seam: Seam) -> Self {
        Self { seam, _bomb: Bomb(seam == Seam::ReconcilerDropped) }
    }

    fn source(seam: Seam) -> Self {
        Self { seam, _bomb: Bomb(seam == Seam::SourceDropped) }
    }
}

impl Reconciler for Faulty {
    fn reconcile(
        &self,
        _: Request,
        _: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send {
        assert!(self.seam != Seam::ReconcileCall, "boom");
        let seam = self.seam;
        async move {
            match seam {
                Seam::Reconcile => panic!("boom"),
                Seam::ReconcilePayload => std::panic::panic_any(Bomb(true)),
                Seam::ReconcileError => Err(Unspeakable { dropped: false }.into()),
                Seam::ReconcileErrorDropped => Err(Unspeakable { dropped: true }.into()),
                _ => Ok(Outcome::Done),
            }
        }
    }
}

impl ConditionalSource for Faulty {
    fn ready(&self) -> Readiness {
        assert!(self.seam != Seam::SourceReady, "boom");
        crate::manager::always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        assert!(self.seam != Seam::SourceStart, "boom");
        let seam = self.seam;
        let synced = async move {
            match seam {
                Seam::SourceSynced => panic!("boom"),
                Seam::SourceSyncedPayload => std::panic::panic_any(Bomb(true)),
                Seam::SourceSyncError => Err(Unspeakable { dropped: false }.into()),
                Seam::SourceSyncErrorDropped => Err(Unspeakable { dropped: true }.into()),
                _ => Ok(()),
            }
        };
        let done = async move {
            let _bomb = Bomb(seam == Seam::SourceDoneDropped);
            assert!(seam != Seam::SourceDone, "boom");
            if seam != Seam::SourceDoneDropped {
                context.released().await;
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: synced.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        assert!(self.seam != Seam::SourceName, "boom");
        "its source".to_owned()
    }
}

fn panics() -> bool {
    panic!("boom")
}

fn faulty(seam: Seam) -> Builder {
    let widgets = |handler: Handler| builder().watches_type(widgets(), handler).conditional();
    let itself = || widgets(Handler::map(|object| vec![object.key().clone()]));
    match seam {
        Seam::Predicate => itself().predicate(Predicate::new(|_| panics())),
        Seam::EventFilter => itself().event_filter(Predicate::new(|_| panics())),
        Seam::Map => widgets(Handler::map(|_| panic!("boom"))),
        Seam::MapPayload => widgets(Handler::map(|_| std::panic::panic_any(Bomb(true)))),
        Seam::Delta => widgets(Handler::delta(|_, _| panic!("boom"))),
        Seam::Synced => itself().on_synced(|_| panic!("boom")),
        Seam::Index => itself().index(Index::new("by-app", |_| panic!("boom"))),
        _ => itself().source(Faulty::source(seam)),
    }
}

/// Runs a controller that panics at one place, besides a healthy one that shares its informer.
async fn try_seam(seam: Seam) {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let well =
        Arc::new(harness.build(Controller::builder("well").for_type(widgets()).conditional()));
    harness.manager.add("well", well, RunnableOptions::default()).await.unwrap();

    let built = faulty(seam).build(&harness.cluster, Faulty::reconciler(seam));
    let controller = match (built, seam) {
        (Err(error), Seam::SourceName) => {
            assert!(error.to_string().contains("boom"), "{error}");
            harness.shutdown().await;
            return;
        }
        (built, _) => Arc::new(built.unwrap()),
    };
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    if matches!(seam, Seam::ReconcilerDropped | Seam::SourceDropped) {
        harness.state(ControllerState::Running).await;
    } else {
        let named = |status: &RunnableStatus| {
            let text = format!("{status:?}");
            text.contains("boom") || text.contains("a panic without a message")
        };
        harness.until(named).await;
        let source = matches!(
            seam,
            Seam::SourceReady
                | Seam::SourceStart
                | Seam::SourceSynced
                | Seam::SourceSyncedPayload
                | Seam::SourceSyncError
                | Seam::SourceSyncErrorDropped
                | Seam::SourceDone
                | Seam::SourceDoneDropped
        );
        if !source {
            let status = harness.state(ControllerState::Running).await;
            assert_eq!((status.epoch, &status.last_done), (1, &None), "the run goes on");
        }
    }
    harness.server.apply(widget("b", "b"));
    settle().await;
    harness.manager.remove(NAME).await;
    let log = harness.log().await;
    assert!(log.contains(&"ns/b b".to_owned()), "{log:?}");
    assert_eq!(harness.manager.status_of("well").unwrap().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_any_code_of_a_controller_affects_that_controller_alone_and_is_reported() {
    let mut wrong = Vec::new();
    for seam in [
        Seam::Predicate,
        Seam::EventFilter,
        Seam::Map,
        Seam::MapPayload,
        Seam::Delta,
        Seam::Synced,
        Seam::Index,
        Seam::Reconcile,
        Seam::ReconcileCall,
        Seam::ReconcilePayload,
        Seam::ReconcileError,
        Seam::ReconcileErrorDropped,
        Seam::ReconcilerDropped,
        Seam::SourceName,
        Seam::SourceReady,
        Seam::SourceStart,
        Seam::SourceSynced,
        Seam::SourceSyncedPayload,
        Seam::SourceSyncError,
        Seam::SourceSyncErrorDropped,
        Seam::SourceDone,
        Seam::SourceDoneDropped,
        Seam::SourceDropped,
    ] {
        let mut tasks = JoinSet::new();
        tasks.spawn(try_seam(seam));
        if tasks.join_next().await.unwrap().is_err() {
            wrong.push(seam);
        }
    }
    assert!(wrong.is_empty(), "not contained: {wrong:?}");
}
