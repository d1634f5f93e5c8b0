//! Parts of kube-rs with the client of an epoch.

use kube::{Resource, api::DeleteParams};
use kube_runtime::{
    Predicate as _,
    events::{Event, EventType, Recorder},
    finalizer::{self, finalizer},
    predicates,
    wait::{await_condition, conditions},
};

use super::*;
use crate::{
    controller::{Context, Controller, Outcome, Predicate, ReconcileError, Request, for_object},
    informer::{Delta, Object, ObjectKey, fixture::Fixture},
    manager::{Condition, StopReason, Verdict},
    runtime::{object_condition, object_predicate, publish, recorder},
};

async fn finalize(object: Arc<Widget>, shared: Arc<Shared>) -> Result<Action, Refused> {
    let widgets = Api::<Widget>::namespaced(shared.client.clone(), "default");
    let log = Arc::clone(&shared.log);
    let step = |event: finalizer::Event<Widget>| async move {
        log.lock().unwrap().push(match event {
            finalizer::Event::Apply(widget) => format!("apply {}", widget.name_any()),
            finalizer::Event::Cleanup(widget) => format!("clean up {}", widget.name_any()),
        });
        Ok::<_, Refused>(Action::await_change())
    };
    let ended = finalizer(&widgets, "example.com/test", object, step).await;
    ended.map_err(|error| Refused(error.to_string()))
}

#[tokio::test(start_paused = true)]
async fn finalizer_of_kube_works_behind_the_fence() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    let logged = Arc::clone(&log);
    let adopted = adopt(&harness.cluster, [widgets()], move |client, epoch| {
        let shared = Shared { client: client.clone(), epoch, log: Arc::clone(&logged) };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::requeue(Duration::from_secs(1));
        (controller(&client), finalize, policy, Arc::new(shared))
    });
    harness.add(adopted).await;
    harness.apply("a", json!({ "size": 1 }));
    harness.state(ControllerState::Running).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(take(&log), ["apply a"], "{:?}", harness.status().report);

    let api = Api::<Widget>::namespaced(harness.server.client(), "default");
    drop(api.delete("a", &DeleteParams::default()).await.unwrap());
    sleep(Duration::from_secs(3)).await;

    assert_eq!(take(&log), ["clean up a"]);
    assert!(api.get_opt("a").await.unwrap().is_none());
    harness.shutdown().await;
}

/// As [`finalize`], in a controller of this crate.
async fn finalize_in(
    widget: Option<Arc<Widget>>,
    context: Context,
    log: Log,
) -> Result<Outcome, ReconcileError> {
    let Some(widget) = widget else { return Ok(Outcome::Done) };
    let (client, epoch) = (context.client().clone(), context.epoch().clone());
    finalize(widget, Arc::new(Shared { client, epoch, log })).await?;
    Ok(Outcome::Done)
}

#[tokio::test(start_paused = true)]
async fn finalizer_of_kube_applies_a_new_object_with_the_predicates_of_generation_and_finalizers() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    let logged = Arc::clone(&log);
    let controller = Controller::builder(NAME)
        .for_::<Widget>()
        .conditional()
        .predicate(Predicate::generation().or(Predicate::finalizers()))
        .build(
            &harness.cluster,
            for_object(move |widget, context| finalize_in(widget, context, Arc::clone(&logged))),
        );
    let (controller, options) = (Arc::new(controller.unwrap()), RunnableOptions::default());
    harness.manager.add(NAME, controller, options).await.unwrap();
    harness.state(ControllerState::Running).await;

    harness.apply("a", json!({ "size": 1 }));
    sleep(Duration::from_secs(3)).await;

    assert_eq!(take(&log), ["apply a"], "{:?}", harness.status().report);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn recorder_and_wait_of_kube_end_with_their_epoch() {
    let harness = Harness::new();
    harness.install().await;
    harness.apply("a", json!({ "size": 1 }));
    let epoch = Epoch::new("parts", 1, Duration::ZERO);
    let client = epoch.client(harness.cluster.unfenced_client());
    let widgets = Api::<Widget>::namespaced(client.clone(), "default");
    let recorder = Recorder::new(client, "parts".into());
    let object = widgets.get("a").await.unwrap().object_ref(&());
    let event = Event {
        type_: EventType::Normal,
        reason: "Greeted".to_owned(),
        note: None,
        action: "Greet".to_owned(),
        secondary: None,
    };
    recorder.publish(&event, &object).await.unwrap();
    let recorded = harness.server.list("events.k8s.io/v1", "Event").unwrap();
    assert_eq!(recorded.len(), 1);
    let waited = await_condition(widgets.clone(), "a", conditions::is_created());
    assert!(waited.await.unwrap().is_some());
    let waits = await_condition(widgets.clone(), "later", conditions::is_created());
    let mut waits = std::pin::pin!(waits);
    assert!(timeout(Duration::from_secs(5), &mut waits).await.is_err());

    epoch.stop(StopReason::LeaseLost);

    let ended = timeout(Duration::from_secs(60), waits).await;
    assert!(ended.unwrap().is_err(), "the fence ends its watch");
    recorder.publish(&event, &object).await.unwrap_err();
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconcile_does_not_wait_for_the_event_that_it_publishes() {
    let harness = Harness::new();
    harness.install().await;
    harness.apply("a", json!({ "size": 1 }));
    let epoch = Epoch::new("parts", 1, Duration::from_secs(60));
    let context = Context::new(epoch.clone(), harness.cluster.unfenced_client());
    let client = context.client().clone();
    let widgets = Api::<Widget>::namespaced(client.clone(), "default");
    let object = widgets.get("a").await.unwrap().object_ref(&());
    let recorder = Recorder::new(client, "parts".into());
    let event = || Event {
        type_: EventType::Normal,
        reason: "Greeted".to_owned(),
        note: None,
        action: "Greet".to_owned(),
        secondary: None,
    };
    let recorded = || harness.server.list("events.k8s.io/v1", "Event").unwrap().len();

    publish(&context, &recorder, event(), object.clone());

    assert_eq!(recorded(), 0, "nothing is awaited");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(recorded(), 1);
    epoch.stop(StopReason::LeaseLost);
    publish(&context, &recorder, event(), object);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(recorded(), 1, "the fence refuses it");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn repeated_event_of_an_epoch_is_one_object_with_a_count() {
    let harness = Harness::new();
    harness.install().await;
    harness.apply("a", json!({ "size": 1 }));
    let epoch = Epoch::new("parts", 1, Duration::from_secs(60));
    let context = Context::new(epoch, harness.cluster.unfenced_client());
    let widgets = Api::<Widget>::namespaced(context.client().clone(), "default");
    let object = widgets.get("a").await.unwrap().object_ref(&());
    let event = || Event {
        type_: EventType::Normal,
        reason: "Greeted".to_owned(),
        note: None,
        action: "Greet".to_owned(),
        secondary: None,
    };
    let publish_as = async |reporter: &str| {
        let context = context.clone().with_request(Request::namespaced("default", "a"));
        publish(&context, &recorder(&context, reporter), event(), object.clone());
        sleep(Duration::from_secs(1)).await;
    };
    let counts = || {
        let recorded = harness.server.list("events.k8s.io/v1", "Event").unwrap();
        recorded.iter().map(|it| it["series"]["count"].as_u64()).collect::<Vec<_>>()
    };

    publish_as("parts").await;
    assert_eq!(counts(), [None]);
    publish_as("parts").await;

    assert_eq!(counts(), [Some(2)]);
    publish_as("another").await;
    assert_eq!(counts().len(), 2);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_a_condition_of_kube_on_an_object_twice_round() {
    let harness = Harness::new();
    harness.install().await;
    let sized =
        |size: u32| move |widget: Option<&Widget>| widget.is_some_and(|it| it.spec.size == size);
    let key = || ObjectKey::namespaced("default", "a");
    let large = object_condition::<Widget>(&harness.cluster, key(), sized(2));
    let deleted =
        object_condition::<Widget>(&harness.cluster, key(), conditions::is_deleted("none"));
    for (name, condition) in [("large", &large), ("deleted", &deleted)] {
        let condition = Arc::new(condition.clone());
        harness.manager.add(name, condition, RunnableOptions::default()).await.unwrap();
    }
    let (mut large, mut deleted) = (large.watch(), deleted.watch());
    for _ in 0..2 {
        for (size, met) in [(1, false), (2, true)] {
            harness.apply("a", json!({ "size": size }));
            sleep(Duration::from_secs(3)).await;
            assert_eq!(matches!(large.verdict(), Verdict::Met(_)), met, "{size}");
        }
    }
    assert!(matches!(deleted.verdict(), Verdict::Met(_)), "another uid");
    harness.shutdown().await;
}

#[test]
fn predicate_of_kube_drops_changes_with_an_equal_value() {
    let predicate = object_predicate::<Widget>(predicates::generation.combine(predicates::labels));
    let widget = |uid: &str, generation: u32, label: &str| -> Object {
        let fixture = Fixture::new("a").uid(uid).label("app", label);
        let mut json = fixture.set("generation", json!(generation)).json();
        json["spec"] = json!({ "size": 1 });
        Object::from_json(json.to_string(), &crate::informer::fixture::widgets()).unwrap()
    };
    let passes = |old: Option<&Object>, new: Option<&Object>| {
        let key = old.or(new).unwrap().key().clone();
        let (old, new) = (old.cloned(), new.cloned());
        predicate.passes(&Delta { key, old, new, initial: false, interests: Vec::new() })
    };
    let first = widget("1", 1, "x");

    assert!(passes(None, Some(&first)) && passes(Some(&first), None));
    assert!(!passes(Some(&first), Some(&widget("1", 1, "x"))));
    assert!(passes(Some(&first), Some(&widget("1", 2, "x"))));
    assert!(passes(Some(&first), Some(&widget("1", 1, "y"))));
    assert!(passes(Some(&first), Some(&widget("2", 1, "x"))), "another object");
    assert!(passes(Some(&first), Some(&first.reduced())), "it cannot be decoded");
}
