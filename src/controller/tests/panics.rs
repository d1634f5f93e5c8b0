//! Panics of user code: they affect their own controller only, and show in its status.

#![expect(clippy::wildcard_enum_match_arm, reason = "each match names the few that matter")]

use std::fmt;

use super::*;
use crate::{informer::Index, manager::Readiness};

/// Place in a controller whose code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
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
struct PanicOnDrop(bool);

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        assert!(!self.0, "boom");
    }
}

/// Error whose `Display` or `Drop` panics.
#[derive(Debug)]
struct PanickingError {
    dropped: bool,
}

impl fmt::Display for PanickingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.dropped, "boom");
        f.write_str("an error")
    }
}

impl std::error::Error for PanickingError {}

impl Drop for PanickingError {
    fn drop(&mut self) {
        assert!(!self.dropped, "boom");
    }
}

struct Faulty {
    place: Place,
    _value: PanicOnDrop,
}

impl Faulty {
    fn reconciler(place: Place) -> Self {
        Self { place, _value: PanicOnDrop(place == Place::ReconcilerDropped) }
    }

    fn source(place: Place) -> Self {
        Self { place, _value: PanicOnDrop(place == Place::SourceDropped) }
    }
}

impl Reconciler for Faulty {
    fn reconcile(
        &self,
        _: Request,
        _: Context,
    ) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send {
        assert!(self.place != Place::ReconcileCall, "boom");
        let place = self.place;
        async move {
            match place {
                Place::Reconcile => panic!("boom"),
                Place::ReconcilePayload => std::panic::panic_any(PanicOnDrop(true)),
                Place::ReconcileError => Err(PanickingError { dropped: false }.into()),
                Place::ReconcileErrorDropped => Err(PanickingError { dropped: true }.into()),
                _ => Ok(Outcome::Done),
            }
        }
    }
}

impl ConditionalSource for Faulty {
    fn ready(&self) -> Readiness {
        assert!(self.place != Place::SourceReady, "boom");
        crate::manager::always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        assert!(self.place != Place::SourceStart, "boom");
        let place = self.place;
        let synced = async move {
            match place {
                Place::SourceSynced => panic!("boom"),
                Place::SourceSyncedPayload => std::panic::panic_any(PanicOnDrop(true)),
                Place::SourceSyncError => Err(PanickingError { dropped: false }.into()),
                Place::SourceSyncErrorDropped => Err(PanickingError { dropped: true }.into()),
                _ => Ok(()),
            }
        };
        let done = async move {
            let _value = PanicOnDrop(place == Place::SourceDoneDropped);
            assert!(place != Place::SourceDone, "boom");
            if place != Place::SourceDoneDropped {
                context.released().await;
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: synced.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        assert!(self.place != Place::SourceName, "boom");
        "its source".to_owned()
    }
}

fn panics() -> bool {
    panic!("boom")
}

fn faulty(place: Place) -> Builder {
    let widgets = |handler: Handler| builder().watches_type(widgets(), handler).conditional();
    let itself = || widgets(Handler::map(|object| vec![object.key().clone()]));
    match place {
        Place::Predicate => itself().predicate(Predicate::new(|_| panics())),
        Place::EventFilter => itself().event_filter(Predicate::new(|_| panics())),
        Place::Map => widgets(Handler::map(|_| panic!("boom"))),
        Place::MapPayload => widgets(Handler::map(|_| std::panic::panic_any(PanicOnDrop(true)))),
        Place::Delta => widgets(Handler::delta(|_, _| panic!("boom"))),
        Place::Synced => itself().on_synced(|_| panic!("boom")),
        Place::Index => itself().index(Index::new("by-app", |_| panic!("boom"))),
        _ => itself().source(Faulty::source(place)),
    }
}

/// Runs a controller that panics at one place, besides a healthy one that shares its informer.
async fn try_place(place: Place) {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let well =
        Arc::new(harness.build(Controller::builder("well").for_type(widgets()).conditional()));
    harness.manager.add("well", well, RunnableOptions::default()).await.unwrap();

    let built = faulty(place).build(&harness.cluster, Faulty::reconciler(place));
    let controller = match (built, place) {
        (Err(error), Place::SourceName) => {
            assert!(error.to_string().contains("boom"), "{error}");
            harness.shutdown().await;
            return;
        }
        (built, _) => Arc::new(built.unwrap()),
    };
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    if matches!(place, Place::ReconcilerDropped | Place::SourceDropped) {
        harness.state(ControllerState::Running).await;
    } else {
        let named = |status: &RunnableStatus| {
            let text = format!("{status:?}");
            text.contains("boom") || text.contains("a panic without a message")
        };
        harness.until(named).await;
        let source = matches!(
            place,
            Place::SourceReady
                | Place::SourceStart
                | Place::SourceSynced
                | Place::SourceSyncedPayload
                | Place::SourceSyncError
                | Place::SourceSyncErrorDropped
                | Place::SourceDone
                | Place::SourceDoneDropped
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
    for place in [
        Place::Predicate,
        Place::EventFilter,
        Place::Map,
        Place::MapPayload,
        Place::Delta,
        Place::Synced,
        Place::Index,
        Place::Reconcile,
        Place::ReconcileCall,
        Place::ReconcilePayload,
        Place::ReconcileError,
        Place::ReconcileErrorDropped,
        Place::ReconcilerDropped,
        Place::SourceName,
        Place::SourceReady,
        Place::SourceStart,
        Place::SourceSynced,
        Place::SourceSyncedPayload,
        Place::SourceSyncError,
        Place::SourceSyncErrorDropped,
        Place::SourceDone,
        Place::SourceDoneDropped,
        Place::SourceDropped,
    ] {
        let mut tasks = JoinSet::new();
        tasks.spawn(try_place(place));
        if tasks.join_next().await.unwrap().is_err() {
            wrong.push(place);
        }
    }
    assert!(wrong.is_empty(), "not contained: {wrong:?}");
}
