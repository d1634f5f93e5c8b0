//! The registry against a scripted API server, on paused time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    sync::watch::Receiver,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::super::{
    DiscoveryOptions, Mode, Origin, TypeRegistry, TypeState, TypeStatus,
    script::{CRDS, SERVICES, Server, apps, crd, group},
};
use crate::kind::{TypeIdentity, TypeRef};

const SERVED: &str = "Served";
const ABSENT: &str = "Absent";
const UNKNOWN: &str = "Unknown";

/// A registry that runs against a server until it is dropped.
struct Rig {
    server: Server,
    registry: TypeRegistry,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Rig {
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

    /// A registry that has read everything.
    async fn ready() -> Self {
        let rig = Self::new();
        rig.read().await;
        rig
    }

    async fn read(&self) {
        until(&mut self.registry.subscribe(&deployments()), SERVED).await;
        // The watches are open once a second of silence has passed.
        sleep(Duration::from_secs(1)).await;
    }

    fn word(&self, type_ref: &TypeRef) -> &'static str {
        self.registry.get(type_ref).state.word()
    }

    fn identity(&self, type_ref: &TypeRef) -> TypeIdentity {
        self.registry.served(type_ref).unwrap().identity.clone()
    }
}

/// The status, as soon as its state is called `word`.
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

/// What makes an APIService name a service, with or without a verdict on it.
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
    let asked = server.asked();

    for round in 0..3 {
        server.apply_crd("widgets", crd("widgets", "Widget", &format!("uid-{round}")));
        server.set_service("example.com", "v1", json!({}), false);
        let served = until(&mut status, SERVED).await;
        assert_eq!(served.served.unwrap().identity.uid.as_deref(), Some(&*format!("uid-{round}")));

        server.delete_crd("widgets");
        server.delete_service("example.com", "v1");
        until(&mut status, ABSENT).await;
    }

    assert_eq!(server.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_only_those_whose_type_changed() {
    let rig = Rig::ready().await;
    let mut touched = rig.registry.subscribe(&widgets());
    let mut by_kind = rig.registry.subscribe(&TypeRef::kind("example.com", "v1", "Widget"));
    let mut others: Vec<_> = (0..2000)
        .map(|n| rig.registry.subscribe(&TypeRef::resource("example.com", "v1", format!("t{n}"))))
        .collect();

    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut touched, SERVED).await;
    until(&mut by_kind, SERVED).await;

    assert!(others.iter_mut().all(|other| !other.has_changed().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_crds_costs_no_request() {
    let rig = Rig::ready().await;
    let asked = rig.server.asked();
    let mut last = rig.registry.subscribe(&TypeRef::kind("example.com", "v1", "Kind999"));

    for n in 0..1000 {
        let name = format!("kind{n}s");
        rig.server.apply_crd(&name, crd(&name, &format!("Kind{n}"), "a"));
    }
    until(&mut last, SERVED).await;

    assert_eq!(rig.server.asked(), asked);
    let known = rig.registry.report().iter().filter(|row| row.origin == Origin::Crd).count();
    assert_eq!(known, 1000);
}

#[tokio::test(start_paused = true)]
async fn churn_of_metadata_wakes_nobody() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    for n in 0..50 {
        let mut churned = crd("widgets", "Widget", "a");
        churned["metadata"]["annotations"] = json!({ "n": n.to_string() });
        rig.server.apply_crd("widgets", churned);
    }
    sleep(Duration::from_secs(60)).await;

    assert!(!status.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_crd_recreated_while_the_watch_is_down_is_another_type() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "old"));
    let old = until(&mut status, SERVED).await;

    rig.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    rig.server.cut(CRDS);
    rig.server.delete_crd("widgets");
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "new"));
    let changed = timeout(Duration::from_secs(60), status.changed()).await;
    changed.unwrap().unwrap();

    let new = status.borrow_and_update().clone();
    assert_eq!(new.state, TypeState::Served);
    assert_eq!(new.served.unwrap().identity.uid.as_deref(), Some("new"));
    assert!(new.since >= old.since);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_the_watch_missed_is_found_by_the_list() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    rig.server.silently(CRDS, |server| server.delete_crd("widgets"));
    rig.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    rig.server.cut(CRDS);

    until(&mut status, ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_watch_freezes_the_last_state_and_is_reported() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;
    assert!(rig.registry.health().is_current());

    for (code, request) in [(500, "watch"), (401, "watch"), (503, "list"), (429, "list")] {
        rig.server.fail(&format!("{request} {CRDS}"), code, Duration::ZERO);
    }
    rig.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(!status.has_changed().unwrap());
    let health = rig.registry.health().crds;
    assert!(health.stale_since.is_some());
    assert!(health.error.unwrap().contains(CRDS));
    let attempts = rig.server.requests(&format!("watch {CRDS}")).len()
        + rig.server.requests(&format!("list {CRDS}")).len();
    assert!(attempts < 40, "{attempts} requests in five minutes");

    rig.server.heal(&format!("watch {CRDS}"));
    rig.server.heal(&format!("list {CRDS}"));
    sleep(Duration::from_secs(60)).await;
    assert!(rig.registry.health().is_current());
    assert!(!status.has_changed().unwrap());
    assert_eq!(*rig.registry.mode().borrow(), Mode::Watching);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_watch_at_once_is_not_asked_in_a_circle() {
    let rig = Rig::ready().await;

    for _ in 0..600 {
        rig.server.cut(CRDS);
        sleep(Duration::from_secs(1)).await;
    }

    let watches = rig.server.requests(&format!("watch {CRDS}")).len();
    assert!(watches < 100, "{watches} watches in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_hangs_is_given_up() {
    let server = Server::new();
    server.fail(&format!("list {CRDS}"), 200, Duration::from_secs(3600));
    let rig = Rig::on(server);
    sleep(Duration::from_secs(5)).await;

    rig.server.heal(&format!("list {CRDS}"));

    until(&mut rig.registry.subscribe(&widgets()), ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_crds_discovery_is_polled_until_it_is_granted() {
    let server = Server::new();
    server.set_service("example.com", "v1", json!({}), false);
    server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    server.fail(&format!("list {CRDS}"), 403, Duration::ZERO);
    let widget_group = || group("example.com", "Current", &[("widgets", "Widget")]);
    server.discover("/apis", json!([apps(), widget_group()]));
    let rig = Rig::on(server);
    let mut status = rig.registry.subscribe(&widgets());
    let mut mode = rig.registry.mode();

    let reason = timeout(Duration::from_secs(60), mode.wait_for(|m| *m != Mode::Watching));
    assert!(matches!(&*reason.await.unwrap().unwrap(), Mode::Static(reason)
            if reason.contains("customresourcedefinitions.apiextensions.k8s.io")));
    let served = until(&mut status, SERVED).await;
    assert_eq!(served.served.unwrap().identity.uid, None);

    let asked = rig.server.asked();
    sleep(Duration::from_secs(300)).await;
    assert!((9..=12).contains(&(rig.server.asked() - asked)));

    rig.server.discover("/apis", json!([apps(), group("example.com", "Current", &[])]));
    until(&mut status, ABSENT).await;
    rig.server.discover("/apis", json!([apps(), widget_group()]));
    until(&mut status, SERVED).await;

    rig.server.heal(&format!("list {CRDS}"));
    timeout(Duration::from_secs(60), mode.wait_for(|m| *m == Mode::Watching))
        .await
        .unwrap()
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.identity(&widgets()).uid.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_revoked_later_stops_nothing() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.set_service("example.com", "v1", json!({}), false);
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    rig.server.discover(
        "/apis",
        json!([apps(), group("example.com", "Current", &[("widgets", "Widget")])]),
    );
    until(&mut status, SERVED).await;

    rig.server.fail(&format!("watch {CRDS}"), 403, Duration::ZERO);
    rig.server.fail(&format!("list {CRDS}"), 403, Duration::ZERO);
    rig.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(matches!(&*rig.registry.mode().borrow(), Mode::Static(_)));
    assert!(!status.has_changed().unwrap());
    assert_eq!(rig.identity(&widgets()).uid.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn half_an_answer_and_a_failing_one_change_nothing() {
    let rig = Rig::ready().await;
    let pods = TypeRef::resource("", "v1", "pods");
    let mut watched = [rig.registry.subscribe(&pods), rig.registry.subscribe(&deployments())];
    watched.iter_mut().for_each(Receiver::mark_unchanged);

    for (path, code) in [("/api", 503), ("/apis", 500)] {
        rig.server.fail(&format!("get {path}"), code, Duration::ZERO);
        sleep(Duration::from_secs(900)).await;
        assert!(rig.registry.health().discovery.stale_since.is_some());
    }
    assert!(watched.iter_mut().all(|status| !status.has_changed().unwrap()));

    rig.server.discover("/apis", json!([]));
    rig.server.heal("get /api");
    rig.server.heal("get /apis");
    sleep(Duration::from_secs(900)).await;
    assert!(watched.iter_mut().all(|status| !status.has_changed().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_backend_comes_fails_and_goes() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&loads());
    assert_eq!(rig.word(&loads()), ABSENT);

    rig.server.set_service("metrics.example.com", "v1", backend(None), false);
    let waiting = until(&mut status, UNKNOWN).await;
    assert_eq!(waiting.state, TypeState::Unknown(Some(Box::new(TypeState::Absent))));
    rig.server.discover("/apis", json!([apps(), metrics("Stale")]));
    sleep(Duration::from_secs(5)).await;
    rig.server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    rig.server.discover("/apis", json!([apps(), metrics("Current")]));
    let served = until(&mut status, SERVED).await.served.unwrap();
    assert_eq!(served.identity.uid.as_deref(), Some("uid-of-v1.metrics.example.com"));

    rig.server.discover("/apis", json!([apps(), metrics("Stale")]));
    rig.server.set_service("metrics.example.com", "v1", backend(Some(false)), false);
    let lost = until(&mut status, UNKNOWN).await;
    assert_eq!(lost.state, TypeState::Unknown(Some(Box::new(TypeState::Served))));
    assert_eq!(lost.served.as_ref(), Some(&served));

    rig.server.discover("/apis", json!([apps(), metrics("Current")]));
    rig.server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    until(&mut status, SERVED).await;

    rig.server.delete_service("metrics.example.com", "v1");
    until(&mut status, UNKNOWN).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(rig.word(&loads()), UNKNOWN);
    rig.server.discover("/apis", json!([apps()]));
    until(&mut status, ABSENT).await;
    assert_eq!(rig.word(&deployments()), SERVED);
}

#[tokio::test(start_paused = true)]
async fn discovery_is_asked_at_growing_intervals_until_the_group_is_current() {
    let rig = Rig::ready().await;
    let before = rig.server.asked();

    rig.server.set_service("metrics.example.com", "v1", backend(None), false);
    sleep(Duration::from_secs(40)).await;
    let times = rig.server.requests("get /apis").split_off(before);
    let gaps: Vec<u128> = times.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    // A millisecond is the resolution of paused time.
    let rounded: Vec<u128> = gaps.iter().map(|gap| gap / 10 * 10).collect();
    assert_eq!(rounded, [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]);

    rig.server.discover("/apis", json!([apps(), metrics("Current")]));
    until(&mut rig.registry.subscribe(&loads()), SERVED).await;
    let settled = rig.server.asked();
    sleep(Duration::from_secs(500)).await;
    assert_eq!(rig.server.asked(), settled);
    sleep(Duration::from_secs(200)).await;
    assert_eq!(rig.server.asked(), settled + 1);
}

#[tokio::test(start_paused = true)]
async fn a_discovery_that_hangs_is_given_up_and_asked_again() {
    let server = Server::new();
    server.fail("get /apis", 200, Duration::from_secs(3600));
    let rig = Rig::on(server);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.word(&deployments()), UNKNOWN);

    rig.server.heal("get /apis");

    let begun = Instant::now();
    until(&mut rig.registry.subscribe(&deployments()), SERVED).await;
    assert!(begun.elapsed() < Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn hints_ask_for_what_the_server_does_not_push() {
    let rig = Rig::ready().await;
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut rig.registry.subscribe(&widgets()), SERVED).await;
    let asked = rig.server.asked();

    rig.registry.hint(&rig.identity(&widgets()));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.server.asked(), asked);

    for _ in 0..1000 {
        rig.registry.hint(&rig.identity(&deployments()));
        sleep(Duration::from_millis(10)).await;
    }
    assert!((10..=12).contains(&(rig.server.asked() - asked)));
}

#[tokio::test(start_paused = true)]
async fn an_old_server_is_asked_group_by_group_and_a_failing_one_keeps_its_state() {
    let server = Server::new();
    server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    server.set_document("/api", json!({ "kind": "APIVersions", "versions": ["v1"] }));
    server.set_document(
        "/apis",
        json!({ "kind": "APIGroupList", "groups": [
            { "name": "apps", "versions": [{ "groupVersion": "apps/v1", "version": "v1" }] },
            { "name": "metrics.example.com",
              "versions": [{ "groupVersion": "metrics.example.com/v1", "version": "v1" }] }] }),
    );
    let list = |plural: &str, kind: &str| {
        json!({ "resources": [
            { "name": plural, "kind": kind, "namespaced": true, "verbs": ["list", "watch"] },
            { "name": format!("{plural}/status"), "kind": kind, "namespaced": true, "verbs": [] }] })
    };
    server.set_document("/api/v1", list("pods", "Pod"));
    server.set_document("/apis/apps/v1", list("deployments", "Deployment"));
    server.set_document("/apis/metrics.example.com/v1", list("loads", "Load"));
    let rig = Rig::on(server);
    let mut status = rig.registry.subscribe(&loads());
    until(&mut status, SERVED).await;
    assert!(rig.registry.served(&deployments()).unwrap().subresources.status);

    rig.server.fail("get /apis/metrics.example.com/v1", 503, Duration::ZERO);
    rig.registry.hint(&rig.identity(&loads()));
    until(&mut status, UNKNOWN).await;
    assert_eq!(rig.word(&deployments()), SERVED);

    rig.server.heal("get /apis/metrics.example.com/v1");
    until(&mut status, SERVED).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_aggregated_discovery_falls_back_to_plain() {
    let server = Server::new();
    server.fail("get /apis", 406, Duration::ZERO);
    let rig = Rig::on(server);
    sleep(Duration::from_secs(1)).await;
    rig.server.heal("get /apis");

    until(&mut rig.registry.subscribe(&deployments()), SERVED).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_api_services_crds_are_still_watched() {
    let server = Server::new();
    server.fail(&format!("list {SERVICES}"), 403, Duration::ZERO);
    let rig = Rig::on(server);

    until(&mut rig.registry.subscribe(&deployments()), SERVED).await;
    let mut status = rig.registry.subscribe(&widgets());
    until(&mut status, ABSENT).await;
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    assert_eq!(*rig.registry.mode().borrow(), Mode::Watching);
    assert!(rig.registry.health().api_services.stale_since.is_some());
}

#[tokio::test(start_paused = true)]
async fn stop_ends_the_task_and_its_watches_at_once() {
    let mut rig = Rig::ready().await;
    assert_eq!(rig.server.open_watches(), 2);
    rig.server.fail("get /apis", 200, Duration::from_secs(3600));
    rig.registry.hint(&rig.identity(&deployments()));
    sleep(Duration::from_secs(2)).await;

    let begun = Instant::now();
    rig.stop.cancel();
    rig.tasks.join_next().await.unwrap().unwrap();

    assert_eq!(begun.elapsed(), Duration::ZERO);
    // The client's own worker lets go of the bodies.
    tokio::task::yield_now().await;
    assert_eq!(rig.server.open_watches(), 0);
    let requests = rig.server.requests("").len();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(rig.server.requests("").len(), requests);
    assert_eq!(rig.word(&deployments()), SERVED);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_task_runs() {
    let server = Server::new();

    let (registry, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let status = registry.subscribe(&widgets());
    sleep(Duration::from_secs(60)).await;

    assert!(server.requests("").is_empty());
    assert_eq!(status.borrow().state, TypeState::Unknown(None));
    drop(discovery);
}

#[tokio::test(start_paused = true)]
async fn the_report_shows_what_is_known_and_what_is_asked_for_and_forgets_the_rest() {
    let rig = Rig::ready().await;
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    let mut first = rig.registry.subscribe(&widgets());
    let second = rig.registry.subscribe(&TypeRef::kind("example.com", "v1", "Widget"));
    let newer = rig.registry.subscribe(&TypeRef::resource("example.com", "v2", "widgets"));
    let missing = rig.registry.subscribe(&TypeRef::kind("nowhere.org", "v1", "Thing"));
    until(&mut first, SERVED).await;
    let find = |name: &str| rig.registry.report().into_iter().find(|row| row.name == name);

    let row = find("widgets.example.com").unwrap();
    assert_eq!((row.state, row.subscribers, row.origin), (SERVED, 2, Origin::Crd));
    assert_eq!((row.uid.as_deref(), row.scope), (Some("a"), Some("Namespaced")));
    assert_eq!(row.served_versions, ["v1"]);
    assert_eq!(find("Thing.nowhere.org/v1").unwrap().origin, Origin::Nowhere);
    let row = find("widgets.example.com/v2").unwrap();
    assert_eq!(row.reason.as_deref(), Some("this version is not served; served are v1"));
    assert_eq!(find("deployments.apps").unwrap().origin, Origin::BuiltIn);
    assert!(serde_json::to_string(&rig.registry.report()).unwrap().contains("servedVersions"));

    rig.server.delete_crd("widgets");
    until(&mut first, ABSENT).await;
    drop((first, second, newer, missing));
    let names: Vec<String> = rig.registry.report().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["pods", "deployments.apps"]);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_that_nobody_holds_are_forgotten() {
    let rig = Rig::ready().await;

    for n in 0..10_000 {
        drop(rig.registry.subscribe(&TypeRef::resource("example.com", "v1", format!("t{n}"))));
    }

    assert!(rig.registry.subscriptions() <= 128);
}

#[tokio::test(start_paused = true)]
async fn metrics_count_types_by_state_and_requests_by_outcome() {
    let rig = Rig::ready().await;
    let mut metrics = prometheus_client::registry::Registry::default();
    rig.registry.register_metrics(&mut metrics);
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    let mut status = rig.registry.subscribe(&widgets());
    until(&mut status, SERVED).await;
    rig.server.delete_crd("widgets");
    until(&mut status, ABSENT).await;

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();

    assert!(text.contains(r#"pilotlight_types{state="Served"} 2"#), "{text}");
    assert!(
        text.contains(r#"pilotlight_discovery_requests_total{outcome="complete"} 1"#),
        "{text}"
    );
}
