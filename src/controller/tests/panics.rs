//! User code that panics affects its own controller alone, and the status of that one says so.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match names the few that matter")]

use super::*;
use crate::{
    guard::fixture::{Bomb, Unspeakable, check_each, is_named},
    informer::Index,
    manager::{Condition, Readiness, always},
};

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
    PredicateDropped,
    EventFilterDropped,
    MapDropped,
    DeltaDropped,
    SyncedDropped,
    IndexDropped,
    Condition,
    ConditionDropped,
    EveryValueDropped,
}

struct Faulty {
    seam: Seam,
    _bomb: Option<Bomb>,
}

impl Faulty {
    fn reconciler(seam: Seam) -> Self {
        Self {
            seam,
            _bomb: matches!(seam, Seam::ReconcilerDropped | Seam::EveryValueDropped).then(|| Bomb),
        }
    }

    fn source(seam: Seam) -> Self {
        Self {
            seam,
            _bomb: matches!(seam, Seam::SourceDropped | Seam::EveryValueDropped).then(|| Bomb),
        }
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
                Seam::ReconcilePayload => std::panic::panic_any(Bomb),
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
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        assert!(self.seam != Seam::SourceStart, "boom");
        let seam = self.seam;
        let synced = async move {
            match seam {
                Seam::SourceSynced => panic!("boom"),
                Seam::SourceSyncedPayload => std::panic::panic_any(Bomb),
                Seam::SourceSyncError => Err(Unspeakable { dropped: false }.into()),
                Seam::SourceSyncErrorDropped => Err(Unspeakable { dropped: true }.into()),
                _ => Ok(()),
            }
        };
        let done = async move {
            let _bomb = (seam == Seam::SourceDoneDropped).then(|| Bomb);
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

/// Condition whose code panics.
struct FaultyCondition {
    panics: bool,
    _bomb: Option<Bomb>,
}

impl Condition for FaultyCondition {
    fn watch(&self) -> Readiness {
        assert!(!self.panics, "boom");
        always()
    }
}

/// Makes a closure own a value whose `Drop` panics, if there is one.
fn keep(_bomb: &Option<Bomb>) {}

/// Builder whose values panic when they are dropped: this one, or every one.
fn dropping(seam: Seam) -> Builder {
    let bomb = |at| (seam == at || seam == Seam::EveryValueDropped).then(|| Bomb);
    let [map, delta, predicate] =
        [Seam::MapDropped, Seam::DeltaDropped, Seam::PredicateDropped].map(bomb);
    let [filter, synced, index] =
        [Seam::EventFilterDropped, Seam::SyncedDropped, Seam::IndexDropped].map(bomb);
    let map = Handler::map(move |_| {
        keep(&map);
        Vec::new()
    });
    let delta = Handler::delta(move |_, _| keep(&delta));
    let predicate = Predicate::new(move |_| {
        keep(&predicate);
        true
    });
    let filter = Predicate::new(move |_| {
        keep(&filter);
        true
    });
    let index = Index::new("by-app", move |_| {
        keep(&index);
        Vec::new()
    });
    let condition =
        FaultyCondition { panics: seam == Seam::Condition, _bomb: bomb(Seam::ConditionDropped) };
    builder()
        .watches_type(widgets(), map)
        .conditional()
        .predicate(predicate)
        .index(index)
        .on_synced(move |_| keep(&synced))
        .watches_type(widgets(), delta)
        .event_filter(filter)
        .source(Faulty::source(seam))
        .when(condition)
}

fn faulty(seam: Seam) -> Builder {
    let widgets = |handler: Handler| builder().watches_type(widgets(), handler).conditional();
    let itself = || widgets(Handler::map(|object| vec![object.key().clone().into()]));
    match seam {
        Seam::Predicate => itself().predicate(Predicate::new(|_| panics())),
        Seam::EventFilter => itself().event_filter(Predicate::new(|_| panics())),
        Seam::Map => widgets(Handler::map(|_| panic!("boom"))),
        Seam::MapPayload => widgets(Handler::map(|_| std::panic::panic_any(Bomb))),
        Seam::Delta => widgets(Handler::delta(|_, _| panic!("boom"))),
        Seam::Synced => itself().on_synced(|_| panic!("boom")),
        Seam::Index => itself().index(Index::new("by-app", |_| panic!("boom"))),
        Seam::PredicateDropped
        | Seam::EventFilterDropped
        | Seam::MapDropped
        | Seam::DeltaDropped
        | Seam::SyncedDropped
        | Seam::IndexDropped
        | Seam::Condition
        | Seam::ConditionDropped
        | Seam::EveryValueDropped => dropping(seam),
        _ => itself().source(Faulty::source(seam)),
    }
}

/// Runs a controller that panics there beside a healthy one that shares its informer.
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

    let dropped = matches!(
        seam,
        Seam::ReconcilerDropped
            | Seam::SourceDropped
            | Seam::PredicateDropped
            | Seam::EventFilterDropped
            | Seam::MapDropped
            | Seam::DeltaDropped
            | Seam::SyncedDropped
            | Seam::IndexDropped
            | Seam::ConditionDropped
            | Seam::EveryValueDropped
    );
    if dropped {
        harness.state(ControllerState::Running).await;
    } else {
        harness.until(is_named).await;
        let source = matches!(
            seam,
            Seam::Condition
                | Seam::SourceReady
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
            assert_eq!((status.epoch, &status.last_done), (1, &None), "the run continues");
        }
    }
    harness.server.apply(widget("b", "b"));
    run_until_idle().await;
    harness.manager.remove(NAME).await;
    let log = harness.log().await;
    assert!(log.contains(&"ns/b b".to_owned()), "{log:?}");
    assert_eq!(harness.manager.status_of("well").unwrap().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_any_code_of_a_controller_affects_that_controller_alone_and_is_reported() {
    let seams = [
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
        Seam::PredicateDropped,
        Seam::EventFilterDropped,
        Seam::MapDropped,
        Seam::DeltaDropped,
        Seam::SyncedDropped,
        Seam::IndexDropped,
        Seam::Condition,
        Seam::ConditionDropped,
        Seam::EveryValueDropped,
    ];
    check_each(&seams, try_seam).await;
}
