//! Events by verb: handlers and predicates of a user, which read caches and decode objects.

use super::{
    typed::{Part, Widget},
    *,
};
use crate::{controller::Event, informer::Index};

fn named(object: &Widget) -> Vec<String> {
    object.spec.part.iter().cloned().collect()
}

fn widget_of(name: &str, part: &str) -> Value {
    let mut widget = widget(name, part);
    widget["spec"] = json!({"size": 1, "part": part});
    widget
}

/// Reconciles of widgets that name a part, after changes of parts.
async fn reconciled(handler: Handler) -> [Vec<String>; 4] {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    for (name, part) in [("a", "one"), ("b", "one"), ("c", "other")] {
        harness.server.apply(widget_of(name, part));
    }
    let builder = builder().for_::<Widget>().conditional().index(Index::typed("part", named));
    harness.add(builder.watches::<Part>(handler).optional()).await;
    harness.state(ControllerState::Running).await;
    let mut first = harness.log().await;
    first.sort();
    let after = async |change: &dyn Fn(&Server)| {
        change(&harness.server);
        let mut log = harness.log().await;
        log.sort();
        log
    };

    let created = after(&|server| server.apply(object("Part", "one", "1"))).await;
    let moved = after(&|server| {
        server.apply(widget_of("c", "one"));
    })
    .await;
    assert_eq!(moved, ["ns/c one"], "by its own event");
    let changed = after(&|server| server.apply(object("Part", "one", "2"))).await;
    let deleted = after(&|server| server.delete("Part", "one")).await;
    harness.shutdown().await;
    [first, created, changed, deleted]
}

#[tokio::test(start_paused = true)]
async fn handler_finds_those_who_name_an_object_by_an_index_of_their_cache() {
    let typed = Handler::typed(|event: Event<Part>, queue| {
        let name = event.object().metadata.name.clone().unwrap();
        for widget in queue.lister::<Widget>().unwrap().by_index("part", &name).unwrap() {
            let name = widget.unwrap().metadata.name.clone().unwrap();
            queue.add(crate::informer::ObjectKey::namespaced("ns", name));
        }
    });
    let untyped = Handler::events(|event, queue| {
        let store = queue.store(&widgets()).unwrap();
        for widget in store.by_index("part", &event.object().key().name).unwrap() {
            queue.add(widget.key().clone());
        }
    });

    for handler in [typed, untyped] {
        let [first, created, changed, deleted] = reconciled(handler).await;

        assert_eq!(first, ["ns/a one", "ns/b one", "ns/c other"]);
        assert_eq!(created, ["ns/a one", "ns/b one"]);
        assert_eq!(changed, ["ns/a one", "ns/b one", "ns/c one"]);
        assert_eq!(deleted, changed);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_receives_each_verb_and_chooses_priority_and_delay() {
    let harness = Harness::new();
    harness.install("Widget");
    let mut bad = widget("bad", "x");
    bad["spec"] = json!({"size": "large"});
    harness.server.apply(bad);
    harness.server.apply(widget_of("a", "1"));
    let events = Log::default();
    let seen = Arc::clone(&events);
    let handler = Handler::typed(move |event: Event<Widget>, queue| {
        let part = |widget: &Widget| widget.spec.part.clone().unwrap();
        let name = event.object().metadata.name.clone().unwrap();
        let (note, add) = match event {
            Event::Create { new, initial } => {
                (format!("create {name} {} {initial}", part(&new)), Add::default())
            }
            Event::Update { old, new } => (
                format!("update {name} {} {}", part(&old), part(&new)),
                Add { after: Duration::from_secs(60), ..Add::default() },
            ),
            Event::Delete { old } => {
                (format!("delete {name} {}", part(&old)), Add { priority: 7, ..Add::default() })
            }
        };
        seen.lock().unwrap().push(note);
        queue.add_with(crate::informer::ObjectKey::namespaced("ns", name), add);
    });
    harness.add(builder().watches::<Widget>(handler).conditional()).await;
    harness.state(ControllerState::Running).await;
    let taken = || std::mem::take(&mut *events.lock().unwrap());
    run_until_idle().await;
    assert_eq!(taken(), ["create a 1 true"]);
    let error = harness.status().report.last_error.clone().unwrap();
    assert!(error.contains("ns/bad") && !error.contains("large"), "without its values: {error}");
    assert_eq!(harness.log().await, ["ns/a 1"]);

    harness.server.apply(widget_of("bad", "mended"));
    run_until_idle().await;
    assert_eq!(taken(), ["create bad mended false"]);
    assert_eq!(harness.log().await, ["ns/bad mended"]);

    harness.server.apply(widget_of("a", "2"));
    harness.server.apply(widget_of("a", "3"));
    run_until_idle().await;
    assert_eq!(taken(), ["update a 1 3"], "what is not delivered yet is one change");
    assert!(harness.log().await.is_empty(), "delayed");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.log().await, ["ns/a 3"]);

    harness.server.delete("Widget", "a");
    harness.server.apply(widget_of("a", "4"));
    run_until_idle().await;
    assert_eq!(taken(), ["delete a 3", "create a 4 false"]);

    for size in ["large", "larger"] {
        let mut bad = widget("a", "x");
        bad["spec"] = json!({ "size": size });
        harness.server.apply(bad);
        run_until_idle().await;
    }
    assert_eq!(taken(), ["delete a 4"], "once, as long as it cannot be decoded");
    harness.server.delete("Widget", "a");
    run_until_idle().await;
    assert_eq!(taken(), [""; 0]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn typed_predicate_decides_by_verb_and_passes_what_it_cannot_decode() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget_of("a", "1"));
    let resized = Predicate::typed(|event: Event<Widget>| match event {
        Event::Create { new, .. } => new.spec.size > 0,
        Event::Update { old, new } => old.spec.part != new.spec.part,
        Event::Delete { .. } => false,
    });
    let not_named_b = !Predicate::events(|event| &*event.object().key().name == "b");
    let builder = builder().for_type(widgets()).conditional();
    harness.add(builder.predicate(resized.and(not_named_b))).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a 1"]);

    let mut relabelled = widget_of("a", "1");
    relabelled["metadata"]["labels"]["mark"] = json!("dropped");
    harness.server.apply(relabelled);
    harness.server.apply(widget_of("b", "1"));
    assert!(harness.log().await.is_empty());
    harness.server.apply(widget_of("a", "2"));
    assert_eq!(harness.log().await, ["ns/a 2"]);
    let mut bad = widget("bad", "x");
    bad["spec"] = json!({"size": "large"});
    harness.server.apply(bad);
    assert_eq!(harness.log().await, ["ns/bad x"]);
    harness.server.delete("Widget", "a");
    assert!(harness.log().await.is_empty());
    harness.shutdown().await;
}
