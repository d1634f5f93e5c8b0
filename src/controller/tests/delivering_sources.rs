//! Custom sources that deliver changes of objects, and offer a cache to the reconciler.

use tokio::sync::{Notify, watch};

use super::{
    types::{assert_absent, tasks},
    unknown_outcome::make,
    *,
};
use crate::{
    controller::InputState,
    informer::{Delta, InformerKey, Store},
    manager::{DoneReason, Readiness, Verdict, all_of, type_served},
};

/// Source of all objects of a type, as a user would write it.
struct AllOf {
    cluster: Cluster,
    type_ref: TypeRef,
    // Ends the source while its condition holds.
    ends: Arc<Notify>,
    // Part of its condition that a test sets; met by default.
    wanted: watch::Sender<Verdict>,
}

impl ConditionalSource for AllOf {
    fn ready(&self) -> Readiness {
        let wanted = Readiness::published(self.wanted.subscribe());
        all_of([type_served(&self.cluster.types, &self.type_ref), wanted])
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let Some(served) = self.cluster.types.served(&self.type_ref) else {
            let gone = async { SourceEnd::TypeGone };
            return SourceStart { synced: async { Ok(()) }.boxed(), done: gone.boxed() };
        };
        let key = InformerKey::new(served.identity.clone());
        let mut changes = self.cluster.informers.subscribe(&served, key);
        let (drained, ended, ends) = (changes.drained(), changes.ended(), Arc::clone(&self.ends));
        let done = async move {
            let run = async {
                context.offer(&served, &changes).await;
                while let Ok(change) = changes.next().await {
                    context.deliver(&change);
                }
            };
            tokio::select! {
                () = context.released() => {}
                _ = ended => {}
                () = ends.notified() => return SourceEnd::Stopped,
                () = run => {}
            }
            // The type is gone, and its objects with it.
            for old in changes.store().list().unwrap_or_default().into_iter() {
                let (key, old) = (old.key().clone(), Some(old));
                context.deliver(&Delta {
                    key,
                    old,
                    new: None,
                    initial: false,
                    interests: Vec::new(),
                });
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: drained.map(Ok).boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        format!("all {}", self.type_ref)
    }
}

fn wanted() -> Verdict {
    Verdict::Met(Vec::new())
}

impl Harness {
    fn all_of(&self, type_ref: TypeRef) -> AllOf {
        let (cluster, wanted) = (self.cluster.clone(), watch::Sender::new(wanted()));
        AllOf { cluster, type_ref, ends: Arc::default(), wanted }
    }
}

#[tokio::test(start_paused = true)]
async fn custom_source_has_a_handler_predicates_and_a_cache_twice_round() {
    let harness = Harness::new();
    let mark = |delta: &Delta| {
        let object = delta.new.as_ref().or(delta.old.as_ref()).unwrap();
        object.header().labels.get("mark").unwrap().to_owned()
    };
    let handler = Handler::delta(move |delta, queue| {
        assert_ne!(mark(delta), "handler", "a handler that panics");
        queue.add(delta.key.clone());
        queue.add(Request::cluster("summary"));
    });
    let predicate = Predicate::new(move |delta| {
        assert_ne!(mark(delta), "predicate", "a predicate that panics");
        mark(delta) != "dropped"
    });
    let source = harness.all_of(widgets());
    let ends = Arc::clone(&source.ends);
    harness.add(builder().watches_source(source, handler).predicate(predicate).conditional()).await;
    harness.state(ControllerState::Waiting).await;
    let before = tasks().await;
    assert_eq!(harness.server.requests_of(WIDGETS), 0);

    for _ in 0..2 {
        harness.install("Widget");
        harness.server.apply(widget("a", "old"));
        harness.state(ControllerState::Running).await;
        let mut first = harness.log().await;
        first.sort();
        assert_eq!(first, ["ns/a old", "summary gone"]);
        harness.server.apply(widget("a", "new"));
        assert_eq!(harness.log().await, ["ns/a new", "summary gone"]);
        harness.server.apply(widget("b", "dropped"));
        assert!(harness.log().await.is_empty());

        for place in ["predicate", "handler"] {
            harness.server.apply(widget("c", place));
            run_until_idle().await;
            let error = harness.status().report.last_error.clone().unwrap();
            assert!(error.contains("panicked at ns/c"), "{error}");
        }
        assert!(harness.log().await.is_empty());
        harness.server.delete("Widget", "a");
        assert_eq!(harness.log().await, ["ns/a gone", "summary gone"]);

        // A required source that is done stops its controller, and is started again.
        let epoch = harness.status().epoch;
        ends.notify_one();
        let done = harness.state(ControllerState::BackingOff).await;
        assert_eq!(done.last_done.as_ref().unwrap().reason, DoneReason::Completed);
        assert_eq!(done.report.watches.len(), 0, "nothing of the epoch is left");
        harness.server.apply(widget("a", "unseen"));
        assert!(harness.log().await.is_empty());
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch + 1);
        let mut again = harness.log().await;
        again.sort();
        assert_eq!(again, ["ns/a unseen", "summary gone"]);

        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        assert_absent(&harness, WIDGETS, before).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn custom_source_that_is_done_with_its_condition_waits_until_that_is_met_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    let source = harness.all_of(widgets());
    let (ends, wants) = (Arc::clone(&source.ends), source.wanted.clone());
    harness.add(builder().source(source).conditional()).await;

    for round in 1..=2 {
        assert_eq!(harness.state(ControllerState::Running).await.epoch, round);
        harness.server.apply(widget("a", "seen"));
        assert_eq!(harness.log().await, ["ns/a seen"]);
        assert_eq!(harness.server.watches(WIDGETS), 1);

        ends.notify_one();
        wants.send_replace(Verdict::Unmet(Vec::new()));
        harness.log().await;

        let waiting = harness.status();
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, round));
        sleep(Duration::from_secs(3600)).await;
        assert_eq!((harness.status().state, harness.status().epoch), (waiting.state, round));
        assert_eq!(harness.server.watches(WIDGETS), 0, "though the type is served");
        let requests = harness.server.requests_of(WIDGETS);
        harness.server.apply(widget("a", "unseen"));
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(harness.server.requests_of(WIDGETS), requests);
        assert!(harness.log().await.is_empty() && harness.cluster.informers.status().is_empty());

        wants.send_replace(wanted());
        assert_eq!(harness.state(ControllerState::Running).await.epoch, round + 1);
        assert_eq!(harness.log().await, ["ns/a unseen"]);
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cache_of_an_optional_custom_source_is_withdrawn_with_its_type_and_at_its_end() {
    let harness = Harness::new();
    harness.install("Part");
    harness.install("Widget");
    harness.server.apply(widget("a", "cached"));
    let source = harness.all_of(widgets());
    let ends = Arc::clone(&source.ends);
    harness.add(builder().for_type(parts()).source(source).optional()).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a cached"], "a request for the object by default");

    harness.server.uninstall("widgets");
    let log = harness.log().await;
    let is_gone = |last: &String| last == "ns/a gone" || last == "ns/a missing";
    assert!(log.last().is_some_and(is_gone), "deleted by the watch, or by the source: {log:?}");
    harness.server.apply(object("Part", "a", "a"));

    assert_eq!(harness.log().await, ["ns/a missing"]);
    harness.install("Widget");
    harness.server.apply(widget("a", "again"));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.log().await, ["ns/a again"]);

    ends.notify_one();
    run_until_idle().await;
    harness.server.apply(object("Part", "a", "a"));
    assert_eq!(harness.log().await, ["ns/a missing"], "nothing keeps the cache current");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.log().await, ["ns/a again"], "the source is started again");
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconcile_waits_until_the_cache_of_a_custom_source_holds_what_it_wrote() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let found = context.store(&parts()).unwrap().all().len();
        log.lock().unwrap().push(format!("{request} {found}"));
        async move {
            if found == 0 {
                make(context.client().clone(), request.name.to_string()).await?;
            }
            Ok(Outcome::Done)
        }
    };
    let source = harness.all_of(parts());
    let none = Handler::delta(|_, _| {});
    let described = builder().for_type(widgets()).watches_source(source, none).conditional();
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    let silence = harness.server.withhold("parts");
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0"]);

    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, [""; 0]);
    harness.server.release("parts", silence);
    sleep(Duration::from_secs(30)).await;

    assert_eq!(harness.log().await, ["ns/a 1"]);
    assert_eq!(harness.server.creations(), 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn optional_custom_source_whose_condition_is_off_waits_and_is_not_stale() {
    let harness = Harness::new();
    harness.install("Part");
    harness.install("Widget");
    let source = harness.all_of(widgets());
    let wants = source.wanted.clone();
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let read = context.store(&widgets()).map(|store| store.all().len());
        let read = read.map_or_else(|error| format!("{error:?}"), |all| all.to_string());
        log.lock().unwrap().push(format!("{request} {} {read}", context.stale()));
        async { Ok(Outcome::Done) }
    };
    let controller = builder().for_type(parts()).build(&harness.cluster, reconcile).unwrap();
    let inputs = controller.inputs();
    controller.add_to_running(&harness.manager).await.unwrap();
    let added = inputs.add("late", |input| input.source(source).conditional()).unwrap();

    for name in ["first", "second"] {
        added.started().await.unwrap();
        harness.log().await;
        wants.send_replace(Verdict::Unmet(Vec::new()));
        run_until_idle().await;
        assert!(matches!(added.state(), InputState::Pending(_)), "{:?}", added.state());
        assert!(!harness.status().report.stale);
        harness.server.apply(object("Part", name, "a"));
        let log = harness.log().await;
        let expected = format!("ns/{name} false Unavailable");
        assert!(log.len() == 1 && log[0].starts_with(&expected), "{log:?}");
        wants.send_replace(wanted());
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn end_of_a_custom_source_is_the_reason_why_its_cache_cannot_be_read() {
    let again = "its source has ended; it is started again in 1 s";
    let never = "its source has ended and is not started again in this epoch";
    for (is_late, is_optional) in [(false, true), (false, false), (true, true), (true, false)] {
        let harness = Harness::new();
        harness.install("Part");
        harness.install("Widget");
        let source = harness.all_of(widgets());
        let ends = Arc::clone(&source.ends);
        let log = Arc::clone(&harness.log);
        let reconcile = move |_: Request, context: Context| {
            let read = |found: Result<Store, ListerError>| {
                found.map_or_else(|error| error.to_string(), |_| "read".to_owned())
            };
            log.lock().unwrap().push(read(context.store(&widgets())));
            if is_late {
                log.lock().unwrap().push(read(context.store_of("late")));
            }
            if context.stale() {
                log.lock().unwrap().push("stale".to_owned());
            }
            async { Ok(Outcome::Done) }
        };
        let add = |builder: Builder| match is_optional {
            true => builder.source(source).optional(),
            false => builder.source(source),
        };
        let described = builder().for_type(parts());
        let (controller, late) = match is_late {
            false => (add(described).build(&harness.cluster, reconcile).unwrap(), None),
            true => {
                let controller = described.build(&harness.cluster, reconcile).unwrap();
                let added = controller.inputs().add("late", add).unwrap();
                (controller, Some(added))
            }
        };
        controller.add_to_running(&harness.manager).await.unwrap();
        harness.state(ControllerState::Running).await;
        run_until_idle().await;
        let expected = if is_optional { again } else { never };

        ends.notify_one();
        run_until_idle().await;
        harness.server.apply(object("Part", "a", "a"));

        let log = harness.log().await;
        assert_eq!(log.len(), 1 + usize::from(is_late), "{log:?}");
        assert!(log.iter().all(|why| why.ends_with(expected)), "{log:?}");
        if let Some(late) = &late {
            assert_eq!(late.state(), InputState::Started, "it has delivered what there was");
        }
        sleep(Duration::from_secs(5)).await;
        harness.server.apply(object("Part", "b", "b"));
        let log = harness.log().await;
        assert_eq!(log.iter().all(|read| read == "read"), is_optional, "{log:?}");
        if let Some(late) = &late {
            assert_eq!(late.state(), InputState::Started);
        }
        harness.shutdown().await;
    }
}
