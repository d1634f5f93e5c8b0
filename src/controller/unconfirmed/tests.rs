use http::Response;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, client::Body};
use serde_json::json;
use tokio::time::advance;
use tower::service_fn;

use super::{expectation::ObjectState, *};
use crate::{
    controller::Context,
    informer::{Object, Store},
    kind::{Scope, ServedType, VersionOrder},
    manager::{Epoch, Fence},
};

/// Sends a create request whose response has this status code, in the name of a request.
async fn create(unconfirmed: &Arc<UnconfirmedWrites>, code: u16) {
    let service = service_fn(move |_request: http::Request<Body>| {
        let object = json!({ "metadata": { "name": "b", "uid": "u", "resourceVersion": "7" } });
        let body = Body::from(object.to_string().into_bytes());
        let response = Response::builder().status(code).body(body).unwrap();
        std::future::ready(Ok::<_, std::io::Error>(response))
    });
    let client = Client::new(service, "default");
    let client = Fence::new().observed_client(&client, unconfirmed.observer(None));
    let reconciling = unconfirmed.begin(&Request::namespaced("ns", "a"));
    let request = http::Request::post("/api/v1/namespaces/ns/pods").body(Vec::new()).unwrap();
    drop(reconciling.run(client.request::<serde_json::Value>(request)).await);
}

#[tokio::test(start_paused = true)]
async fn refused_write_is_not_recorded() {
    let unconfirmed = Arc::default();

    create(&unconfirmed, 409).await;

    assert!(unconfirmed.state().open.is_empty());
    assert_eq!(unconfirmed.expiry(), None);
}

#[tokio::test(start_paused = true)]
async fn answered_write_is_removed_after_ten_minutes_unless_a_cache_lacks_it() {
    let unconfirmed = Arc::default();
    create(&unconfirmed, 201).await;
    assert!(unconfirmed.requests().is_empty() && unconfirmed.is_needed());

    advance(RETENTION).await;
    assert_eq!(unconfirmed.expiry(), Some(Instant::now()));
    unconfirmed.expire(with_pod(None).statuses());
    assert_eq!(unconfirmed.state().open.len(), 1, "the watch of the cache may be down");
    advance(RETENTION).await;
    unconfirmed.expire(with_pod(Some("7")).statuses());

    assert!(unconfirmed.state().open.is_empty() && !unconfirmed.is_needed());
    assert_eq!(unconfirmed.expiry(), None);
    create(&unconfirmed, 500).await;
    advance(RETENTION).await;
    unconfirmed.expire(with_pod(Some("7")).statuses());
    assert_eq!(unconfirmed.requests(), [Request::namespaced("ns", "a")]);
}

#[tokio::test(start_paused = true)]
async fn unknown_outcome_is_reported_until_a_reconcile_succeeds() {
    let unconfirmed = Arc::default();
    create(&unconfirmed, 500).await;
    let (statuses, _settled) =
        InputStatuses::new(Epoch::new("c", 1, Duration::ZERO), None, Vec::new());

    for fails in [true, false] {
        let mut reconciling = unconfirmed.begin(&Request::namespaced("ns", "a"));
        assert!(reconciling.has_unknown());
        reconciling.confirm(&statuses, |_| unreachable!("no cache lacks it")).await.unwrap();
        if !fails {
            reconciling.succeeded();
        }
    }

    assert!(unconfirmed.state().open.is_empty());
}

#[tokio::test(start_paused = true)]
async fn newer_of_two_responses_counts_and_a_lost_one_is_read_in_any_case() {
    let stored = |version: &str| {
        let (uid, version) = ("u".into(), version.into());
        Expectation::new(Some(ObjectState::Stored { uid, version }))
    };
    for (old, new, expected) in [
        (stored("7"), stored("9"), Some("9")),
        (stored("9"), stored("7"), Some("9")),
        (stored("x"), stored("a"), Some("a")),
        (stored("7"), Expectation::new(None), None),
        (Expectation::new(None), stored("7"), None),
    ] {
        let mut expectation = old;

        expectation.replace(new);

        assert_eq!(expectation.written_version(), expected);
    }
}

/// Context with a cache of pods that holds this version of the written pod.
fn with_pod(version: Option<&str>) -> Context {
    with_pod_of(VersionOrder::Comparable, version)
}

fn with_pod_of(version_order: VersionOrder, version: Option<&str>) -> Context {
    let service = service_fn(|_: http::Request<Body>| async {
        Ok::<_, std::io::Error>(Response::new(Body::empty()))
    });
    let pods = ServedType { version_order, ..ServedType::of::<Pod>(Scope::Namespaced) };
    let pod = version.map(|version| {
        let metadata =
            json!({ "namespace": "ns", "name": "b", "uid": "u", "resourceVersion": version });
        Object::from_json(json!({ "metadata": metadata }).to_string().as_bytes(), &pods).unwrap()
    });
    let epoch = Epoch::new("c", 1, Duration::ZERO);
    let context = Context::new(epoch, &Client::new(service, "default"));
    context.with_input(&pods, pods.clone(), Store::of(pod))
}

#[tokio::test(start_paused = true)]
async fn request_whose_cache_is_behind_a_fresh_answer_waits_without_a_task() {
    let unconfirmed = Arc::<UnconfirmedWrites>::default();
    let request = Request::namespaced("ns", "a");
    let compare = |context: &Context| unconfirmed.begin(&request).compare(context.statuses());
    let pause = |context: &Context| match compare(context) {
        Comparison::Behind(behind) => behind.after,
        other @ (Comparison::Held | Comparison::Unread(_)) => panic!("{other:?}"),
    };
    create(&unconfirmed, 201).await;

    assert_eq!(pause(&with_pod(None)), FIRST_PAUSE);
    advance(Duration::from_millis(400)).await;
    assert_eq!(pause(&with_pod(Some("6"))), Duration::from_millis(400), "the wait so far");
    advance(READ_DELAY).await;
    assert!(matches!(compare(&with_pod(Some("6"))), Comparison::Unread(_)));

    create(&unconfirmed, 201).await;
    assert!(matches!(compare(&with_pod(Some("7"))), Comparison::Held));
    create(&unconfirmed, 500).await;
    assert!(matches!(compare(&with_pod(None)), Comparison::Unread(_)), "the outcome is unknown");
}

#[tokio::test(start_paused = true)]
async fn object_of_another_opaque_version_is_read_at_once() {
    let unconfirmed = Arc::<UnconfirmedWrites>::default();
    let request = Request::namespaced("ns", "a");
    create(&unconfirmed, 201).await;
    let is_read = |version: Option<&str>| {
        let context = with_pod_of(VersionOrder::Opaque, version);
        let compared = unconfirmed.begin(&request).compare(context.statuses());
        matches!(compared, Comparison::Unread(_))
    };

    assert!(!is_read(None));
    assert!(is_read(Some("9")), "it may be newer");
}

#[tokio::test(start_paused = true)]
async fn later_write_of_an_object_does_not_postpone_its_read() {
    let unconfirmed = Arc::<UnconfirmedWrites>::default();
    let request = Request::namespaced("ns", "a");
    create(&unconfirmed, 201).await;
    let waits = || {
        let compared = unconfirmed.begin(&request).compare(with_pod(Some("6")).statuses());
        matches!(compared, Comparison::Behind(_))
    };
    advance(READ_DELAY - Duration::from_secs(1)).await;
    create(&unconfirmed, 201).await;
    assert!(waits());

    advance(Duration::from_secs(1)).await;

    assert!(!waits(), "the server is to be read");
}

#[tokio::test(start_paused = true)]
async fn write_during_a_comparison_replaces_the_earlier_one_of_its_object() {
    let unconfirmed = Arc::<UnconfirmedWrites>::default();
    let request = Request::namespaced("ns", "a");
    create(&unconfirmed, 201).await;
    let comparing = unconfirmed.begin(&request);
    let written = comparing.writes.as_ref().unwrap().targets.keys().next().unwrap().clone();

    let unknown = Expectation::new(None);
    unconfirmed.state().writes_of(request.clone()).expect(written, unknown);
    drop(comparing);

    let compared = unconfirmed.begin(&request).compare(with_pod(None).statuses());
    assert!(matches!(compared, Comparison::Unread(_)), "the outcome is unknown: {compared:?}");
}
