//! Tests of the registry against a scripted API server, on paused time.

mod requests;
mod watches;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    sync::watch::Receiver,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        DiscoveryMode, DiscoveryOptions, Origin, TypeRegistry, TypeState, TypeStatus,
        script::{CRDS, SERVICES, Server, apps, crd, group},
    },
    agreement_period,
};
use crate::{
    duration::LONGEST,
    kind::{TypeIdentity, TypeRef},
};

const SERVED: &str = "Served";
const ABSENT: &str = "Absent";
const UNKNOWN: &str = "Unknown";

/// A registry that runs against a server until it is dropped.
struct Harness {
    server: Server,
    registry: TypeRegistry,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Harness {
    fn new() -> Self {
        Self::on(Server::new())
    }

    fn on(server: Server) -> Self {
        let (registry, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(discovery.run(stop.clone()));
        Self { server, registry, stop, tasks }
    }

    /// Starts a registry and waits until it has read all sources.
    async fn ready() -> Self {
        let harness = Self::new();
        harness.read().await;
        harness
    }

    async fn read(&self) {
        until(&mut self.registry.subscribe(&deployments()), SERVED).await;
        // The watches are open after one second without events.
        sleep(Duration::from_secs(1)).await;
    }

    fn word(&self, type_ref: &TypeRef) -> &'static str {
        self.registry.get(type_ref).state.word()
    }

    fn identity(&self, type_ref: &TypeRef) -> TypeIdentity {
        self.registry.served(type_ref).unwrap().identity.clone()
    }
}

/// Waits until the state has the name `word`; returns the status.
async fn until(status: &mut Receiver<TypeStatus>, word: &str) -> TypeStatus {
    let waited = status.wait_for(|status| status.state.word() == word);
    let Ok(found) = timeout(Duration::from_secs(3600), waited).await else {
        panic!("never {word}");
    };
    found.unwrap().clone()
}

fn widgets() -> TypeRef {
    TypeRef::resource("example.com", "v1", "widgets")
}

fn deployments() -> TypeRef {
    TypeRef::kind("apps", "v1", "Deployment")
}

fn loads() -> TypeRef {
    TypeRef::resource("metrics.example.com", "v1", "loads")
}

/// JSON that makes an APIService name a service, with or without the condition `Available`.
fn backend(available: Option<bool>) -> Value {
    let conditions: Vec<Value> = available
        .map(|up| json!({ "type": "Available", "status": if up { "True" } else { "False" } }))
        .into_iter()
        .collect();
    json!({ "metadata": { "labels": null },
        "spec": { "service": { "namespace": "default", "name": "metrics" } },
        "status": { "conditions": conditions } })
}

fn metrics(freshness: &str) -> Value {
    group("metrics.example.com", freshness, &[("loads", "Load")])
}

#[test]
fn two_responses_of_the_longest_interval_agree_on_an_absence() {
    for (interval, expected) in [
        (Duration::MAX, LONGEST - LONGEST / 10),
        (LONGEST, LONGEST - LONGEST / 10),
        (Duration::from_secs(30), Duration::from_secs(27)),
        (Duration::ZERO, Duration::from_secs(5)),
    ] {
        assert_eq!(agreement_period(interval), expected, "{interval:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_starts_unknown_and_follows_its_crd_without_a_request_to_discovery() {
    let server = Server::new();
    let (registry, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let mut status = registry.subscribe(&widgets());
    assert_eq!(status.borrow().state, TypeState::Unknown(None));
    let mut tasks = JoinSet::new();
    tasks.spawn(discovery.run(CancellationToken::new()));
    until(&mut status, ABSENT).await;
    until(&mut registry.subscribe(&deployments()), SERVED).await;
    let before = server.discovery_requests();

    for round in 0..3 {
        server.apply_crd("widgets", crd("widgets", "Widget", &format!("uid-{round}")));
        server.set_service("example.com", "v1", json!({}), false);
        let served = until(&mut status, SERVED).await;
        assert_eq!(served.served.unwrap().identity.uid.as_deref(), Some(&*format!("uid-{round}")));

        server.delete_crd("widgets");
        server.delete_service("example.com", "v1");
        until(&mut status, ABSENT).await;
    }

    assert_eq!(server.discovery_requests(), before);
}

#[tokio::test(start_paused = true)]
async fn stop_ends_the_task_and_its_watches_at_once() {
    let mut harness = Harness::ready().await;
    assert_eq!(harness.server.open_watches(), 2);
    harness.server.fail("get /apis", 200, Duration::from_secs(3600));
    harness.registry.hint(&harness.identity(&deployments()));
    sleep(Duration::from_secs(2)).await;

    let begun = Instant::now();
    harness.stop.cancel();
    harness.tasks.join_next().await.unwrap().unwrap();

    assert_eq!(begun.elapsed(), Duration::ZERO);
    // The client's own worker drops the bodies.
    tokio::task::yield_now().await;
    assert_eq!(harness.server.open_watches(), 0);
    let requests = harness.server.requests("").len();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(harness.server.requests("").len(), requests);
    assert_eq!(harness.word(&deployments()), SERVED);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_requested_before_the_task_runs() {
    let server = Server::new();

    let (registry, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let status = registry.subscribe(&widgets());
    sleep(Duration::from_secs(60)).await;

    assert!(server.requests("").is_empty());
    assert_eq!(status.borrow().state, TypeState::Unknown(None));
    drop(discovery);
}

#[tokio::test(start_paused = true)]
async fn report_has_known_and_subscribed_types_only() {
    let harness = Harness::ready().await;
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    let mut first = harness.registry.subscribe(&widgets());
    let second = harness.registry.subscribe(&TypeRef::kind("example.com", "v1", "Widget"));
    let newer = harness.registry.subscribe(&TypeRef::resource("example.com", "v2", "widgets"));
    let missing = harness.registry.subscribe(&TypeRef::kind("nowhere.org", "v1", "Thing"));
    until(&mut first, SERVED).await;
    let find = |name: &str| harness.registry.report().into_iter().find(|row| row.name == name);

    let row = find("widgets.example.com").unwrap();
    assert_eq!((row.state.word(), row.subscribers, row.origin), (SERVED, 2, Origin::Crd));
    assert_eq!((row.uid.as_deref(), row.scope), (Some("a"), Some(crate::kind::Scope::Namespaced)));
    assert_eq!(row.served_versions, ["v1"]);
    assert_eq!(find("Thing.nowhere.org/v1").unwrap().origin, Origin::Nowhere);
    let row = find("widgets.example.com/v2").unwrap();
    assert_eq!(row.reason.as_deref(), Some("this version is not served; served are v1"));
    assert_eq!(find("deployments.apps").unwrap().origin, Origin::BuiltIn);
    assert!(serde_json::to_string(&harness.registry.report()).unwrap().contains("servedVersions"));

    harness.server.delete_crd("widgets");
    until(&mut first, ABSENT).await;
    drop((first, second, newer, missing));
    let names: Vec<String> = harness.registry.report().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["pods", "deployments.apps"]);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_without_receivers_are_dropped() {
    let harness = Harness::ready().await;

    for n in 0..10_000 {
        drop(harness.registry.subscribe(&TypeRef::resource("example.com", "v1", format!("t{n}"))));
    }

    assert!(harness.registry.subscriptions() <= 128);
}

#[tokio::test(start_paused = true)]
async fn metrics_count_types_by_state_and_requests_by_outcome() {
    let harness = Harness::ready().await;
    let mut metrics = prometheus_client::registry::Registry::default();
    harness.registry.register_metrics(&mut metrics);
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    let mut status = harness.registry.subscribe(&widgets());
    until(&mut status, SERVED).await;
    harness.server.delete_crd("widgets");
    until(&mut status, ABSENT).await;

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();

    assert!(text.contains(r#"pilotlight_types{state="Served"} 2"#), "{text}");
    assert!(
        text.contains(r#"pilotlight_discovery_requests_total{outcome="complete"} 1"#),
        "{text}"
    );
}
