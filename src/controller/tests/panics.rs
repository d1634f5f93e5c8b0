//! User code that panics affects its own controller alone, and the status of that one says so.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match names the few that matter")]

use super::*;
use crate::{
    guard::fixture::{PanickingError, PanicsOnDrop, check_each, is_named},
    informer::Index,
    manager::{Condition, Readiness, always},
};

/// Place in a controller whose code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PanicPoint {
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
    point: PanicPoint,
    _panics: Option<PanicsOnDrop>,
}

impl Faulty {
    fn reconciler(point: PanicPoint) -> Self {
        Self {
            point,
            _panics: matches!(point, PanicPoint::ReconcilerDropped | PanicPoint::EveryValueDropped)
                .then(|| PanicsOnDrop),
        }
    }

    fn source(point: PanicPoint) -> Self {
        Self {
            point,
            _panics: matches!(point, PanicPoint::SourceDropped | PanicPoint::EveryValueDropped)
                .then(|| PanicsOnDrop),
        }
    }
}

impl Reconciler for Faulty {
    fn reconcile(
        &self,
        _: Request,
        _: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send {
        assert!(self.point != PanicPoint::ReconcileCall, "boom");
        let point = self.point;
        async move {
            match point {
                PanicPoint::Reconcile => panic!("boom"),
                PanicPoint::ReconcilePayload => std::panic::panic_any(PanicsOnDrop),
                PanicPoint::ReconcileError => Err(PanickingError { dropped: false }.into()),
                PanicPoint::ReconcileErrorDropped => Err(PanickingError { dropped: true }.into()),
                _ => Ok(Outcome::Done),
            }
        }
    }
}

impl ConditionalSource for Faulty {
    fn ready(&self) -> Readiness {
        assert!(self.point != PanicPoint::SourceReady, "boom");
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        assert!(self.point != PanicPoint::SourceStart, "boom");
        let point = self.point;
        let synced = async move {
            match point {
                PanicPoint::SourceSynced => panic!("boom"),
                PanicPoint::SourceSyncedPayload => std::panic::panic_any(PanicsOnDrop),
                PanicPoint::SourceSyncError => Err(PanickingError { dropped: false }.into()),
                PanicPoint::SourceSyncErrorDropped => Err(PanickingError { dropped: true }.into()),
                _ => Ok(()),
            }
        };
        let done = async move {
            let _panics = (point == PanicPoint::SourceDoneDropped).then(|| PanicsOnDrop);
            assert!(point != PanicPoint::SourceDone, "boom");
            if point != PanicPoint::SourceDoneDropped {
                context.released().await;
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: synced.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        assert!(self.point != PanicPoint::SourceName, "boom");
        "its source".to_owned()
    }
}

fn panics() -> bool {
    panic!("boom")
}

/// Condition whose code panics.
struct FaultyCondition {
    panics: bool,
    _panics: Option<PanicsOnDrop>,
}

impl Condition for FaultyCondition {
    fn watch(&self) -> Readiness {
        assert!(!self.panics, "boom");
        always()
    }
}

/// Makes a closure own a value whose `Drop` panics, if there is one.
fn keep(_panics: &Option<PanicsOnDrop>) {}

/// Builder whose values panic when they are dropped: this one, or every one.
fn dropping(point: PanicPoint) -> Builder {
    let panics_on_drop =
        |at| (point == at || point == PanicPoint::EveryValueDropped).then(|| PanicsOnDrop);
    let [map, delta, predicate] =
        [PanicPoint::MapDropped, PanicPoint::DeltaDropped, PanicPoint::PredicateDropped]
            .map(panics_on_drop);
    let [filter, synced, index] =
        [PanicPoint::EventFilterDropped, PanicPoint::SyncedDropped, PanicPoint::IndexDropped]
            .map(panics_on_drop);
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
    let condition = FaultyCondition {
        panics: point == PanicPoint::Condition,
        _panics: panics_on_drop(PanicPoint::ConditionDropped),
    };
    builder()
        .watches_type(widgets(), map)
        .conditional()
        .predicate(predicate)
        .index(index)
        .on_synced(move |_| keep(&synced))
        .watches_type(widgets(), delta)
        .event_filter(filter)
        .source(Faulty::source(point))
        .when(condition)
}

fn faulty(point: PanicPoint) -> Builder {
    let widgets = |handler: Handler| builder().watches_type(widgets(), handler).conditional();
    let itself = || widgets(Handler::map(|object| vec![object.key().clone().into()]));
    match point {
        PanicPoint::Predicate => itself().predicate(Predicate::new(|_| panics())),
        PanicPoint::EventFilter => itself().event_filter(Predicate::new(|_| panics())),
        PanicPoint::Map => widgets(Handler::map(|_| panic!("boom"))),
        PanicPoint::MapPayload => widgets(Handler::map(|_| std::panic::panic_any(PanicsOnDrop))),
        PanicPoint::Delta => widgets(Handler::delta(|_, _| panic!("boom"))),
        PanicPoint::Synced => itself().on_synced(|_| panic!("boom")),
        PanicPoint::Index => itself().index(Index::new("by-app", |_| panic!("boom"))),
        PanicPoint::PredicateDropped
        | PanicPoint::EventFilterDropped
        | PanicPoint::MapDropped
        | PanicPoint::DeltaDropped
        | PanicPoint::SyncedDropped
        | PanicPoint::IndexDropped
        | PanicPoint::Condition
        | PanicPoint::ConditionDropped
        | PanicPoint::EveryValueDropped => dropping(point),
        _ => itself().source(Faulty::source(point)),
    }
}

/// Runs a controller that panics there beside a healthy one that shares its informer.
async fn try_point(point: PanicPoint) {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let well =
        Arc::new(harness.build(Controller::builder("well").for_type(widgets()).conditional()));
    harness.manager.add("well", well, RunnableOptions::default()).await.unwrap();

    let built = faulty(point).build(&harness.cluster, Faulty::reconciler(point));
    let controller = match (built, point) {
        (Err(error), PanicPoint::SourceName) => {
            assert!(error.to_string().contains("boom"), "{error}");
            harness.shutdown().await;
            return;
        }
        (built, _) => Arc::new(built.unwrap()),
    };
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    let dropped = matches!(
        point,
        PanicPoint::ReconcilerDropped
            | PanicPoint::SourceDropped
            | PanicPoint::PredicateDropped
            | PanicPoint::EventFilterDropped
            | PanicPoint::MapDropped
            | PanicPoint::DeltaDropped
            | PanicPoint::SyncedDropped
            | PanicPoint::IndexDropped
            | PanicPoint::ConditionDropped
            | PanicPoint::EveryValueDropped
    );
    if dropped {
        harness.state(ControllerState::Running).await;
    } else {
        harness.until(is_named).await;
        let source = matches!(
            point,
            PanicPoint::Condition
                | PanicPoint::SourceReady
                | PanicPoint::SourceStart
                | PanicPoint::SourceSynced
                | PanicPoint::SourceSyncedPayload
                | PanicPoint::SourceSyncError
                | PanicPoint::SourceSyncErrorDropped
                | PanicPoint::SourceDone
                | PanicPoint::SourceDoneDropped
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
    let points = [
        PanicPoint::Predicate,
        PanicPoint::EventFilter,
        PanicPoint::Map,
        PanicPoint::MapPayload,
        PanicPoint::Delta,
        PanicPoint::Synced,
        PanicPoint::Index,
        PanicPoint::Reconcile,
        PanicPoint::ReconcileCall,
        PanicPoint::ReconcilePayload,
        PanicPoint::ReconcileError,
        PanicPoint::ReconcileErrorDropped,
        PanicPoint::ReconcilerDropped,
        PanicPoint::SourceName,
        PanicPoint::SourceReady,
        PanicPoint::SourceStart,
        PanicPoint::SourceSynced,
        PanicPoint::SourceSyncedPayload,
        PanicPoint::SourceSyncError,
        PanicPoint::SourceSyncErrorDropped,
        PanicPoint::SourceDone,
        PanicPoint::SourceDoneDropped,
        PanicPoint::SourceDropped,
        PanicPoint::PredicateDropped,
        PanicPoint::EventFilterDropped,
        PanicPoint::MapDropped,
        PanicPoint::DeltaDropped,
        PanicPoint::SyncedDropped,
        PanicPoint::IndexDropped,
        PanicPoint::Condition,
        PanicPoint::ConditionDropped,
        PanicPoint::EveryValueDropped,
    ];
    check_each(&points, try_point).await;
}
