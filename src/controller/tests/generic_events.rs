//! Generic events: objects that a program sends to the handlers of a controller.

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;
use crate::{
    informer::Object,
    kind::{Scope, ServedType},
};

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
async fn object_sent_while_no_epoch_runs_is_handled_by_the_next_one() {
    let harness = Harness::new();
    harness.install("Widget");
    let object = sent(&harness, "a", "a").await;
    let (events, source) = EventSource::new(1);
    let described = builder().for_type(widgets()).conditional();
    harness.add(described.watches_source(source, Handler::Object)).await;
    harness.state(ControllerState::Running).await;
    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;

    events.send(object).await.unwrap();
    harness.install("Widget");
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, ["ns/a gone"]);
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

#[tokio::test(start_paused = true)]
async fn typed_handler_and_predicate_decide_about_a_generic_event() {
    let harness = Harness::new();
    harness.install("Widget");
    let (events, source) = EventSource::new(10);
    let typed = |map: ConfigMap, queue: &mut Enqueue<'_>| {
        let target = map.data.and_then(|mut data| data.remove("target"));
        target.into_iter().for_each(|name| queue.add(Request::cluster(name)));
    };
    let handler = Handler::delta(|_, _| panic!("it is no change")).generic_typed(typed);
    let never = || Predicate::new(|_| panic!("it is no change"));
    let named = |name: &'static str| never().generic(move |object| &*object.key().name == name);
    // A map named `c` passes no part, and `b` none of the whole.
    let predicate = named("a").or(named("b")).or(named("bad")).and(!named("b"));
    let described = builder().for_type(widgets()).watches_source(source, handler);
    harness.add(described.predicate(predicate)).await;
    harness.state(ControllerState::Running).await;

    for name in ["c", "b", "a"] {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.metadata.namespace = Some("ns".to_owned());
        map.data = Some([("target".to_owned(), format!("target-of-{name}"))].into());
        events.send(Object::from_typed(&map, Scope::Namespaced).unwrap()).await.unwrap();
    }
    assert_eq!(harness.log().await, ["target-of-a gone"]);
    assert_eq!(harness.status().report.last_error, None);

    let bad = json!({"metadata": {"name": "bad", "namespace": "ns"}, "data": "none"});
    let maps = ServedType::of::<ConfigMap>(Scope::Namespaced);
    events.send(Object::from_json(bad.to_string(), &maps).unwrap()).await.unwrap();
    assert_eq!(harness.log().await, [""; 0]);
    let error = harness.status().report.last_error.clone().unwrap();
    assert!(error.contains("ns/bad cannot be decoded by its event handler"), "{error}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn source_that_two_controllers_share_fails_the_second_one() {
    let (_sender, channel) = ChannelSource::new(1);
    let (_events, event) = EventSource::new(1);
    let shared: [Box<dyn Fn(Builder) -> Builder>; 2] = [
        Box::new(move |builder| builder.source(channel.clone())),
        Box::new(move |builder| builder.watches_source(event.clone(), Handler::Object)),
    ];
    for with_source in shared {
        let harness = Harness::new();
        harness.install("Widget");
        harness.add(with_source(builder().for_type(widgets()))).await;
        harness.state(ControllerState::Running).await;
        let second = with_source(Controller::builder("second").for_type(widgets()));
        let second = Arc::new(harness.build(second));
        harness.manager.add("second", second, RunnableOptions::default()).await.unwrap();

        let fails =
            |all: &Arc<Snapshot>| all[&"second".into()].state == ControllerState::BackingOff;
        let snapshot = harness.manager.watch().wait_for(fails).await.unwrap().clone();

        let message = &snapshot[&"second".into()].message;
        assert!(message.contains("another controller or input receives its items"), "{message}");
        assert_eq!(harness.status().state, ControllerState::Running);
        // The items are free for its restart.
        harness.manager.remove(NAME).await;
        let runs = |all: &Arc<Snapshot>| all[&"second".into()].state == ControllerState::Running;
        drop(harness.manager.watch().wait_for(runs).await.unwrap());
        harness.shutdown().await;
    }
}
