//! Generic events: objects that a program sends to the handlers of a controller.

use super::*;
use crate::{informer::Object, kind::ServedType};

async fn sent(harness: &Harness, name: &str, mark: &str) -> Object {
    run_until_idle().await;
    let served: Arc<ServedType> = harness.cluster.types.served(&widgets()).unwrap();
    let mut widget = widget(name, mark);
    widget["metadata"]["namespace"] = json!("ns");
    Object::from_json(serde_json::to_vec(&widget).unwrap(), &served).unwrap()
}

#[tokio::test(start_paused = true)]
async fn generic_event_is_mapped_by_the_handler_or_by_its_own_function_and_passes_predicates() {
    let by_label =
        || Handler::map(|it| vec![Request::cluster(it.header().labels.get("mark").unwrap())]);
    let changes = || Handler::delta(|_, _| panic!("it is no change"));
    let own = |object: &Object, queue: &mut Enqueue<'_>| {
        queue.add(Request::cluster(format!("generic {}", object.key().name)));
    };
    for (handler, expected) in [
        (Handler::Object, vec!["ns/a gone"]),
        (by_label(), vec!["passed gone"]),
        (changes().generic(own), vec!["generic a gone"]),
        (by_label().generic(own), vec!["generic a gone"]),
    ] {
        let harness = Harness::new();
        harness.install("Widget");
        let object = sent(&harness, "a", "passed").await;
        let dropped = sent(&harness, "b", "dropped").await;
        let (events, source) = EventSource::new(10);
        let label = Predicate::new(|delta| {
            delta.new.as_ref().unwrap().header().labels.get("mark") == Some("passed")
        });
        let described = builder().for_type(widgets()).watches_source(source, handler);
        harness.add(described.predicate(label)).await;
        harness.state(ControllerState::Running).await;

        events.send(dropped).await.unwrap();
        events.send(object).await.unwrap();

        assert_eq!(harness.log().await, expected);
        assert_eq!(harness.status().report.last_error, None);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn function_of_changes_is_not_called_for_a_generic_event() {
    let harness = Harness::new();
    harness.install("Widget");
    let object = sent(&harness, "a", "a").await;
    let source = FunctionSource::new("a function", move |context| {
        context.deliver_generic(&object);
        async move { context.stopping().await }
    });
    let changes = Handler::delta(|_, _| panic!("it is no change"));

    harness.add(builder().for_type(widgets()).watches_source(source, changes)).await;
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, [""; 0]);
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn delayed_request_of_a_generic_event_takes_no_capacity_of_its_channel() {
    let harness = Harness::new();
    harness.install("Widget");
    let (events, source) = EventSource::new(1);
    let handler = Handler::Object.generic(|object, queue| {
        let after = Duration::from_secs(600);
        queue.add_with(Request::cluster(&*object.key().name), Add { after, ..Add::default() });
    });
    harness.add(builder().for_type(widgets()).watches_source(source, handler)).await;
    harness.state(ControllerState::Running).await;

    for name in ["a", "b", "c"] {
        let object = sent(&harness, name, name).await;
        tokio::time::timeout(Duration::from_secs(60), events.send(object))
            .await
            .expect("taken")
            .unwrap();
    }
    assert_eq!(harness.log().await, [""; 0]);
    sleep(Duration::from_secs(600)).await;

    assert_eq!(harness.log().await, ["a gone", "b gone", "c gone"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn request_of_a_generic_event_survives_the_end_of_its_epoch() {
    let harness = Harness::new();
    harness.install("Widget");
    let object = sent(&harness, "a", "a").await;
    let (events, source) = EventSource::new(1);
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let epoch = context.epoch().number();
        log.lock().unwrap().push(format!("{request} {epoch}"));
        async move { if epoch == 1 { std::future::pending().await } else { Ok(Outcome::Done) } }
    };
    let described =
        builder().for_type(widgets()).conditional().watches_source(source, Handler::Object);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    events.send(object).await.unwrap();
    assert_eq!(harness.log().await, ["ns/a 1"]);

    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;
    harness.install("Widget");
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a 2"]);

    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;
    harness.install("Widget");
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, [""; 0], "its reconcile has finished");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn function_for_generic_events_is_refused_for_a_type() {
    let harness = Harness::new();
    let handler = Handler::Object.generic(|_, _| {});
    let described = builder().for_type(widgets()).watches_type(parts(), handler);

    let built = described.build(&harness.cluster, LoggingReconciler { log: Log::default() });

    let error = built.map(drop).unwrap_err().to_string();
    assert!(error.contains("Handler::generic has no effect for parts"), "{error}");
    harness.shutdown().await;
}
