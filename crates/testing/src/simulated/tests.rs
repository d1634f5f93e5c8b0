//! Behaviour of the server towards a client.

mod fields;
mod objects;
mod reads;
mod types;

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::{Instant, advance};
use tower::ServiceExt;

use super::*;
use crate::CrdBuilder;

const WIDGETS: &str = "/apis/x.test/v1/namespaces/default/widgets";
const ALL_WIDGETS: &str = "/apis/x.test/v1/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Client of a server with widgets and without delays.
struct Harness {
    server: SimulatedServer,
}

impl Harness {
    fn new() -> Self {
        let options = SimulatedOptions { delays: Delays::none(), ..SimulatedOptions::default() };
        Self { server: SimulatedServer::with(options) }
    }

    fn with_widgets() -> Self {
        let harness = Self::new();
        harness.server.install(&widgets().build()).unwrap();
        harness
    }

    async fn send_json(&self, method: &str, path: &str, kind: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, kind, body.into_bytes()).await
    }

    async fn send(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .header(header::USER_AGENT, "harness/1")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = self.server.service("alice").oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send_json("GET", path, "", Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send_json("POST", path, "application/json", body).await
    }

    async fn delete(&self, path: &str, options: Value) -> (u16, Value) {
        self.send_json("DELETE", path, "application/json", options).await
    }

    async fn patch(&self, path: &str, kind: &str, body: Value) -> (u16, Value) {
        self.send_json("PATCH", path, kind, body).await
    }

    async fn created(&self, object: Value) -> Value {
        let (code, created) = self.post(WIDGETS, object).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    async fn watch(&self, path: &str) -> BoxStream<'static, Value> {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let response = self.server.service("alice").oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let lines = response.into_body().into_data_stream();
        lines.map(|line| serde_json::from_slice(&line.unwrap()).unwrap()).boxed()
    }
}

fn widgets() -> CrdBuilder {
    CrdBuilder::new("x.test", "Widget")
}

fn widget(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "x.test/v1", "kind": "Widget", "metadata": { "name": name }, "spec": spec })
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(object::name).collect()
}

fn type_and_name(event: &Value) -> (&str, &str) {
    (event["type"].as_str().unwrap(), object::name(&event["object"]))
}

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_with_their_owner() {
    let harness = Harness::with_widgets();
    let owner = harness.created(widget("a", json!({}))).await;
    let reference = json!({
        "apiVersion": "x.test/v1", "kind": "Widget", "name": "a", "uid": object::uid(&owner),
        "blockOwnerDeletion": true });
    let dependent =
        |name: &str| json!({ "metadata": { "name": name, "ownerReferences": [reference] } });
    let dangling = json!({ "metadata": { "name": "dangling", "ownerReferences": [
        { "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "no" }] } });
    harness.post(MAPS, dependent("child")).await;
    harness.post(MAPS, dangling).await;
    assert_eq!(names(&harness.get(MAPS).await.1), ["child"]);

    let orphan = json!({ "propagationPolicy": "Orphan" });
    harness.delete(&format!("{WIDGETS}/a"), orphan).await;
    let child = harness.get(&format!("{MAPS}/child")).await;
    assert_eq!(harness.get(&format!("{WIDGETS}/a")).await.0, 404);
    assert_eq!((child.0, &child.1["metadata"]["ownerReferences"]), (200, &Value::Null));

    for policy in ["Background", "Foreground"] {
        let owner = harness.created(widget("a", json!({}))).await;
        let mut dependent = dependent(policy.to_lowercase().as_str());
        dependent["metadata"]["ownerReferences"][0]["uid"] = owner["metadata"]["uid"].clone();
        dependent["metadata"]["finalizers"] = json!(["x.test/hold"]);
        assert_eq!(harness.post(MAPS, dependent).await.0, 201);
        let path = format!("{MAPS}/{}", policy.to_lowercase());
        let options = json!({ "propagationPolicy": policy });
        harness.delete(&format!("{WIDGETS}/a"), options).await;
        assert!(object::is_deleting(&harness.get(&path).await.1), "{policy}");
        let owner_waits = harness.get(&format!("{WIDGETS}/a")).await.0 == 200;
        assert_eq!(owner_waits, policy == "Foreground");
        harness.patch(&path, MERGE, json!({ "metadata": { "finalizers": null } })).await;
        assert_eq!(harness.get(&path).await.0, 404);
        assert_eq!(harness.get(&format!("{WIDGETS}/a")).await.0, 404);
    }
}

#[tokio::test(start_paused = true)]
async fn dependents_of_an_unserved_type_are_collected_once_it_is_served() {
    let harness = Harness::new();
    let owner = json!({ "apiVersion": "x.test/v1", "kind": "Widget", "name": "a", "uid": "no" });
    let owned = json!({ "metadata": { "name": "owned", "ownerReferences": [owner] } });
    harness.post(MAPS, owned).await;
    assert_eq!(names(&harness.get(MAPS).await.1), ["owned"]);

    harness.server.install(&widgets().build()).unwrap();

    assert!(names(&harness.get(MAPS).await.1).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_ends_after_its_objects() {
    let harness = Harness::with_widgets();
    harness.post("/api/v1/namespaces", json!({ "metadata": { "name": "n" } })).await;
    let maps = "/api/v1/namespaces/n/configmaps";
    let held = json!({ "metadata": { "name": "held", "finalizers": ["x.test/hold"] } });
    harness.post(maps, held).await;
    harness.post(maps, json!({ "metadata": { "name": "free" } })).await;

    let (code, ending) = harness.delete("/api/v1/namespaces/n", Value::Null).await;
    assert_eq!((code, &ending["status"]["phase"]), (200, &json!("Terminating")));
    advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(names(&harness.get(maps).await.1), ["held"]);
    let (code, refused) = harness.post(maps, json!({ "metadata": { "name": "late" } })).await;
    assert_eq!(code, 403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    harness
        .patch(&format!("{maps}/held"), MERGE, json!({ "metadata": { "finalizers": null } }))
        .await;
    advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(harness.get("/api/v1/namespaces/n").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn forbidden_requests_have_the_servers_message() {
    let harness = Harness::with_widgets();
    let rule = AccessRule::deny().users(["alice"]).resources(["widgets.x.test"]).verbs(["list"]);
    harness.server.set_rbac([rule]);

    let (code, refused) = harness.get(ALL_WIDGETS).await;

    assert_eq!(code, 403);
    assert_eq!(
        refused["message"],
        "widgets.x.test is forbidden: User \"alice\" cannot list resource \"widgets\" in API group \
         \"x.test\" at the cluster scope"
    );
    let question = json!({ "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": { "resourceAttributes": { "group": "x.test", "resource": "widgets", "verb": "list" } } });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let (code, review) = harness.post(path, question).await;
    assert_eq!((code, &review["status"]["allowed"]), (201, &json!(false)));
    assert_eq!(harness.get(MAPS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_api_answers_while_its_service_answers() {
    let harness = Harness::new();
    let name = "v1.y.test";
    let gears = CrdBuilder::new("y.test", "Gear");
    harness.server.back_api_service(name, &[gears]);
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": name },
        "spec": { "group": "y.test", "version": "v1", "service": { "name": "s", "namespace": "default" },
            "groupPriorityMinimum": 10, "versionPriority": 10 } });
    harness.server.apply(service).unwrap();
    let path = "/apis/y.test/v1/gears";

    assert_eq!(harness.get(path).await, (503, json!("service unavailable\n")));
    harness.server.set_available(name, true);
    assert_eq!(harness.get(path).await.0, 200);
    assert_eq!(harness.get("/apis/y.test/v1").await.1["resources"][0]["kind"], "Gear");
    harness.server.set_available(name, false);
    assert_eq!(harness.get("/apis/y.test/v1").await.0, 503);
    assert_eq!(harness.get("/apis").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_restart_breaks_watches_and_compacts_the_history() {
    let harness = Harness::with_widgets();
    harness.created(widget("a", json!({}))).await;
    let then = harness.server.resource_version();
    harness.created(widget("b", json!({}))).await;
    let request = Request::get(format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}"));
    let request = request.body(Full::new(Bytes::new())).unwrap();
    let response = harness.server.service("alice").oneshot(request).await.unwrap();

    harness.server.restart();

    assert!(response.into_body().collect().await.is_err());
    let again = harness.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;
    assert_eq!(again.collect::<Vec<_>>().await[0]["object"]["code"], 410);
    harness.server.stop();
    let request = Request::get(ALL_WIDGETS).body(Full::new(Bytes::new())).unwrap();
    assert!(harness.server.service("alice").oneshot(request).await.is_err());
    harness.server.start();
    assert_eq!(harness.get(ALL_WIDGETS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn every_request_is_recorded() {
    let harness = Harness::with_widgets();
    harness.get(ALL_WIDGETS).await;
    let watch = harness.watch(&format!("{ALL_WIDGETS}?watch=1")).await;
    harness.get("/apis/x.test/v3/widgets").await;

    let requests = harness.server.requests();

    let seen: Vec<_> = requests.iter().map(|it| (it.resource(), it.code, it.is_open())).collect();
    let widgets = || "widgets.x.test".to_owned();
    assert_eq!(
        seen,
        [
            (widgets(), Some(200), false),
            (widgets(), Some(200), true),
            (widgets(), Some(404), false)
        ]
    );
    drop(watch);
    harness.server.forget_requests();
    assert!(harness.server.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_feature_that_is_not_simulated_is_refused_with_a_message() {
    let harness = Harness::new();
    let pod = "/api/v1/namespaces/default/pods";
    harness.post(pod, json!({ "metadata": { "name": "p" } })).await;
    let list = json!({ "metadata": { "finalizers": ["x.test/a"] } });
    let strategic = "application/strategic-merge-patch+json";
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let crd = |changed: &str, value: Value| {
        let mut crd = serde_json::to_value(widgets().build()).unwrap();
        let (parent, field) = changed.rsplit_once('/').unwrap();
        crd.pointer_mut(parent).unwrap()[field] = value;
        crd
    };
    let webhook = crd("/spec/conversion", json!({ "strategy": "Webhook" }));
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object",
        "properties": { "name": { "type": "string", "pattern": "^a+$" } } } } });
    let pattern = crd("/spec/versions/0/schema/openAPIV3Schema", schema);
    for (code, refused) in [
        harness.post(crds, webhook).await,
        harness.post(crds, pattern).await,
        harness.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json!({})).await,
        harness.get(&format!("{pod}/p/log")).await,
        harness.get("/metrics").await,
        harness.patch(&format!("{pod}/p"), strategic, list).await,
    ] {
        assert_eq!(code, 501, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("real control plane"));
    }
}

#[tokio::test(start_paused = true)]
async fn unchanged_discovery_is_answered_without_a_content_type() {
    let harness = Harness::new();
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let get = async |etag: &str| {
        let request = Request::get("/apis")
            .header(header::ACCEPT, aggregated)
            .header(header::IF_NONE_MATCH, etag)
            .body(Full::new(Bytes::new()))
            .unwrap();
        harness.server.service("alice").oneshot(request).await.unwrap()
    };
    let known = get("").await.headers()[header::ETAG].to_str().unwrap().to_owned();

    let response = get(&known).await;

    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(response.headers()[header::ETAG], known.as_str());
    // A content type would replace that of the cached response.
    assert!(!response.headers().contains_key(header::CONTENT_TYPE));
}

#[tokio::test(start_paused = true)]
async fn the_kube_client_accepts_every_response() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DynamicObject, PostParams},
    };

    let harness = Harness::with_widgets();
    let api: Api<DynamicObject> =
        Api::default_namespaced_with(harness.server.client(), &widgets().api_resource("v1"));
    api.create(&PostParams::default(), &widgets().object("a", json!({}))).await.unwrap();
    assert_eq!(api.list_metadata(&Default::default()).await.unwrap().items.len(), 1);
    let maps = Api::<ConfigMap>::default_namespaced(harness.server.client());
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(json!({ "metadata": { "name": "m" } })).unwrap(),
    )
    .await
    .unwrap();
    assert_eq!(maps.list(&Default::default()).await.unwrap().items.len(), 1);
    let groups = harness.server.client().list_api_groups().await.unwrap();
    assert!(groups.groups.iter().any(|group| group.name == "x.test"));
    harness.server.client().apiserver_version().await.unwrap();
}
