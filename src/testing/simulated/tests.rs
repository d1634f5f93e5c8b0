//! The server as a client meets it.

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::{Instant, advance};
use tower::ServiceExt;

use super::*;
use crate::testing::CrdBuilder;

const WIDGETS: &str = "/apis/x.test/v1/namespaces/default/widgets";
const ALL_WIDGETS: &str = "/apis/x.test/v1/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A server with widgets, without delays, and one who asks.
struct Asker {
    server: SimulatedServer,
}

impl Asker {
    fn new() -> Self {
        let options = SimulatedOptions { delays: Delays::none(), ..SimulatedOptions::default() };
        Self { server: SimulatedServer::with(options) }
    }

    fn with_widgets() -> Self {
        let asker = Self::new();
        asker.server.install(&widgets().build()).unwrap();
        asker
    }

    async fn ask(&self, method: &str, path: &str, kind: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .header(header::USER_AGENT, "asker/1")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = self.server.service("alice").oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, "", Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask("POST", path, "application/json", body).await
    }

    async fn delete(&self, path: &str, options: Value) -> (u16, Value) {
        self.ask("DELETE", path, "application/json", options).await
    }

    async fn patch(&self, path: &str, kind: &str, body: Value) -> (u16, Value) {
        self.ask("PATCH", path, kind, body).await
    }

    async fn created(&self, object: Value) -> Value {
        let (code, created) = self.post(WIDGETS, object).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    async fn watch(&self, path: &str) -> BoxStream<'static, Value> {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let answer = self.server.service("alice").oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let lines = answer.into_body().into_data_stream();
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

fn told(event: &Value) -> (&str, &str) {
    (event["type"].as_str().unwrap(), object::name(&event["object"]))
}

#[tokio::test(start_paused = true)]
async fn an_object_gets_its_metadata_from_the_server() {
    let asker = Asker::with_widgets();

    let created = asker.created(widget("a", json!({ "size": 1 }))).await;
    let mut unnamed = widget("", json!({}));
    unnamed["metadata"] = json!({ "generateName": "a-" });
    let generated = asker.created(unnamed).await;

    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(object::uid(&created).len(), 36);
    assert!(object::text(&created, "creationTimestamp").ends_with('Z'));
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "asker");
    assert!(object::name(&generated).starts_with("a-") && object::name(&generated).len() == 7);
    let (code, refused) = asker.post(WIDGETS, widget("a", json!({}))).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(refused["message"], "widgets.x.test \"a\" already exists");
}

#[tokio::test(start_paused = true)]
async fn creates_that_make_no_sense_are_refused() {
    let asker = Asker::with_widgets();
    for (path, body, code) in [
        (WIDGETS, widget("A_", json!({})), 422),
        (WIDGETS, widget("", json!({})), 422),
        (WIDGETS, json!({ "apiVersion": "x.test/v2", "kind": "Widget" }), 400),
        ("/apis/x.test/v1/namespaces/nowhere/widgets", widget("a", json!({})), 404),
        ("/apis/x.test/v2/namespaces/default/widgets", widget("a", json!({})), 404),
        ("/apis/x.test/v1/widgets", widget("a", json!({})), 404),
        ("/apis/x.test/v1/namespaces/default/gears", widget("a", json!({})), 404),
    ] {
        let (answered, refused) = asker.post(path, body).await;
        assert_eq!(answered, code, "{path}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_served_is_a_404_in_plain_text() {
    let asker = Asker::new();
    assert_eq!(asker.get(ALL_WIDGETS).await, (404, json!("404 page not found\n")));
    asker.server.install(&widgets().build()).unwrap();
    assert_eq!(asker.get(ALL_WIDGETS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn an_update_needs_the_version_that_it_changes() {
    let asker = Asker::with_widgets();
    let created = asker.created(widget("a", json!({ "size": 1 }))).await;
    let path = format!("{WIDGETS}/a");
    let put = |body: Value| asker.ask("PUT", &path, "application/json", body);

    let (code, refused) = put(widget("a", json!({}))).await;
    assert_eq!(code, 422);
    assert!(refused["message"].as_str().unwrap().contains("must be specified for an update"));
    let mut changed = created.clone();
    changed["spec"]["size"] = 2.into();
    let (code, updated) = put(changed.clone()).await;
    assert_eq!((code, &updated["metadata"]["generation"]), (200, &json!(2)));
    let (code, refused) = put(changed).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));

    let version = asker.server.resource_version();
    let (code, same) = put(updated.clone()).await;
    assert_eq!((code, same), (200, updated), "what changes nothing writes nothing");
    assert_eq!(asker.server.resource_version(), version);
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_apart() {
    let asker = Asker::with_widgets();
    let mut object = widget("a", json!({ "size": 1 }));
    object["status"] = json!({ "ready": true });
    let created = asker.created(object).await;
    assert!(created.get("status").is_none());
    let path = format!("{WIDGETS}/a");

    let both = json!({ "spec": { "size": 2 }, "status": { "ready": true } });
    let (_, status) = asker.patch(&format!("{path}/status"), MERGE, both.clone()).await;
    assert_eq!((&status["spec"]["size"], &status["status"]["ready"]), (&json!(1), &json!(true)));
    assert_eq!(status["metadata"]["generation"], 1);
    let (_, main) = asker.patch(&path, MERGE, json!({ "spec": { "size": 2 }, "status": {} })).await;
    assert_eq!((&main["spec"]["size"], &main["status"]["ready"]), (&json!(2), &json!(true)));
    assert_eq!(main["metadata"]["generation"], 2);
    assert_eq!(asker.patch(&format!("{path}/scale"), MERGE, both).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn patches_of_each_kind_are_applied_or_refused() {
    let asker = Asker::with_widgets();
    asker.created(widget("a", json!({ "size": 1, "color": "red" }))).await;
    let path = format!("{WIDGETS}/a");
    const JSON: &str = "application/json-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";

    let (code, merged) = asker.patch(&path, MERGE, json!({ "spec": { "color": null } })).await;
    assert_eq!((code, &merged["spec"]), (200, &json!({ "size": 1 })));
    let operations = json!([
        { "op": "test", "path": "/spec/size", "value": 1 },
        { "op": "replace", "path": "/spec/size", "value": 3 }]);
    let (code, patched) = asker.patch(&path, JSON, operations.clone()).await;
    assert_eq!((code, &patched["spec"]["size"]), (200, &json!(3)));
    assert_eq!(asker.patch(&path, JSON, operations).await.0, 422);
    assert_eq!(asker.patch(&path, STRATEGIC, json!({})).await.0, 415);
    let missing = format!("{WIDGETS}/b");
    assert_eq!(asker.patch(&missing, MERGE, json!({})).await.0, 404);
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "spec": { "size": 4 } });
    assert_eq!(asker.patch(&path, MERGE, stale).await.0, 409);
}

#[tokio::test(start_paused = true)]
async fn apply_creates_merges_and_conflicts() {
    let asker = Asker::with_widgets();
    let path = format!("{WIDGETS}/a");
    let by = |manager: &str| format!("{path}?fieldManager={manager}");
    let wanted = widget("a", json!({ "size": 1 }));

    assert_eq!(asker.patch(&path, APPLY, wanted.clone()).await.0, 422, "who applies?");
    assert_eq!(asker.patch(&by("alice"), APPLY, wanted.clone()).await.0, 201);
    let version = asker.server.resource_version();
    assert_eq!(asker.patch(&by("alice"), APPLY, wanted).await.0, 200);
    assert_eq!(asker.server.resource_version(), version, "the same again changes nothing");
    let other = widget("a", json!({ "size": 2 }));
    let (code, refused) = asker.patch(&by("bob"), APPLY, other.clone()).await;
    assert_eq!(code, 409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"alice\": .spec.size"
    );
    let (code, forced) = asker.patch(&format!("{}&force=true", by("bob")), APPLY, other).await;
    assert_eq!((code, &forced["spec"]["size"]), (200, &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_what_is_deleted() {
    let asker = Asker::with_widgets();
    let mut object = widget("a", json!({}));
    object["metadata"]["finalizers"] = json!(["x.test/hold"]);
    asker.created(object).await;
    let path = format!("{WIDGETS}/a");

    let (code, held) = asker.delete(&path, Value::Null).await;
    assert_eq!(code, 200);
    assert!(object::is_deleting(&held));
    assert_eq!(held["metadata"]["generation"], 2);
    let more = json!({ "metadata": { "finalizers": ["x.test/hold", "x.test/more"] } });
    assert_eq!(asker.patch(&path, MERGE, more).await.0, 422);
    let none = json!({ "metadata": { "finalizers": null } });
    assert_eq!(asker.patch(&path, MERGE, none).await.0, 200);
    let (code, gone) = asker.get(&path).await;
    assert_eq!((code, &gone["message"]), (404, &json!("widgets.x.test \"a\" not found")));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_may_demand_an_identity_and_a_version() {
    let asker = Asker::with_widgets();
    let created = asker.created(widget("a", json!({}))).await;
    let path = format!("{WIDGETS}/a");
    let preconditions = |uid: &str, version: &str| json!({ "preconditions": { "uid": uid, "resourceVersion": version } });
    let (uid, version) = (object::uid(&created), object::text(&created, "resourceVersion"));

    assert_eq!(asker.delete(&path, preconditions("other", version)).await.0, 409);
    assert_eq!(asker.delete(&path, preconditions(uid, "1")).await.0, 409);
    let (code, _) = asker.delete(&format!("{path}?dryRun=All"), Value::Null).await;
    assert_eq!((code, asker.get(&path).await.0), (200, 200));
    let (code, status) = asker.delete(&path, preconditions(uid, version)).await;
    assert_eq!((code, &status["status"]), (200, &json!("Success")));
    assert_eq!(status["details"]["uid"], uid);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_cut_into_pages_of_one_moment() {
    let asker = Asker::with_widgets();
    for name in ["a", "b", "c", "d", "e"] {
        asker.created(widget(name, json!({}))).await;
    }

    let (_, first) = asker.get(&format!("{ALL_WIDGETS}?limit=2")).await;
    asker.delete(&format!("{WIDGETS}/c"), Value::Null).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = asker.get(&format!("{ALL_WIDGETS}?limit=2&continue={token}")).await;

    assert_eq!((names(&first), names(&second)), (vec!["a", "b"], vec!["c", "d"]));
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    asker.server.compact();
    let (code, expired) = asker.get(&format!("{ALL_WIDGETS}?limit=2&continue={token}")).await;
    assert_eq!((code, &expired["reason"]), (410, &json!("Expired")));
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = asker.get(&format!("{ALL_WIDGETS}?continue={token}")).await;
    assert_eq!((code, names(&rest)), (200, vec!["d", "e"]));
}

#[tokio::test(start_paused = true)]
async fn a_list_is_of_the_version_that_is_asked_for() {
    let asker = Asker::with_widgets();
    asker.created(widget("a", json!({}))).await;
    let then = asker.server.resource_version();
    asker.created(widget("b", json!({}))).await;
    let list = async |query: String| {
        let (code, list) = asker.get(&format!("{ALL_WIDGETS}?{query}")).await;
        (code, list["items"].as_array().map_or(0, Vec::len))
    };

    assert_eq!(list(format!("resourceVersion={then}&resourceVersionMatch=Exact")).await, (200, 1));
    assert_eq!(
        list(format!("resourceVersion={then}&resourceVersionMatch=NotOlderThan")).await,
        (200, 2)
    );
    assert_eq!(list("resourceVersion=0&limit=1".into()).await, (200, 2), "caches know no pages");
    assert_eq!(list("resourceVersionMatch=Exact".into()).await, (422, 0));
    assert_eq!(list("resourceVersion=x".into()).await, (400, 0));
    let begin = Instant::now();
    assert_eq!(list("resourceVersion=99999".into()).await, (504, 0));
    assert_eq!(begin.elapsed().as_secs(), 3);
    asker.server.compact();
    assert_eq!(list(format!("resourceVersion={then}&resourceVersionMatch=Exact")).await, (410, 0));
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_happens_after_a_version() {
    let asker = Asker::with_widgets();
    asker.created(widget("a", json!({}))).await;
    let then = asker.server.resource_version();
    asker.created(widget("b", json!({}))).await;
    let mut watch = asker.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;

    asker.patch(&format!("{WIDGETS}/a"), MERGE, json!({ "spec": { "size": 1 } })).await;
    asker.delete(&format!("{WIDGETS}/b"), Value::Null).await;

    assert_eq!(told(&watch.next().await.unwrap()), ("ADDED", "b"));
    assert_eq!(told(&watch.next().await.unwrap()), ("MODIFIED", "a"));
    let deleted = watch.next().await.unwrap();
    assert_eq!(told(&deleted), ("DELETED", "b"));
    let version = asker.server.resource_version().to_string();
    assert_eq!(object::text(&deleted["object"], "resourceVersion"), version);
    assert_eq!(asker.server.open_watches()["widgets.x.test"], 1);
    drop(watch);
    assert!(asker.server.open_watches().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_stops_matching_a_selector_is_deleted_for_the_watch() {
    let asker = Asker::with_widgets();
    let mut watch = asker.watch(&format!("{ALL_WIDGETS}?watch=1&labelSelector=app%3Dx")).await;
    let mut object = widget("a", json!({}));
    object["metadata"]["labels"] = json!({ "app": "x" });
    asker.created(object).await;
    let path = format!("{WIDGETS}/a");

    asker.patch(&path, MERGE, json!({ "metadata": { "labels": { "app": "y" } } })).await;
    asker.patch(&path, MERGE, json!({ "metadata": { "labels": { "app": "x" } } })).await;

    assert_eq!(told(&watch.next().await.unwrap()), ("ADDED", "a"));
    let left = watch.next().await.unwrap();
    assert_eq!(told(&left), ("DELETED", "a"));
    assert_eq!(left["object"]["metadata"]["labels"]["app"], "x");
    assert_eq!(told(&watch.next().await.unwrap()), ("ADDED", "a"));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_ends_with_the_annotated_bookmark() {
    let asker = Asker::with_widgets();
    asker.created(widget("a", json!({}))).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut watch = asker.watch(&format!("{ALL_WIDGETS}?{query}&allowWatchBookmarks=true")).await;

    assert_eq!(told(&watch.next().await.unwrap()), ("ADDED", "a"));
    let end = watch.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    let annotations = &end["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    let (code, _) = asker.get(&format!("{ALL_WIDGETS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!(code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_watch_gets_bookmarks_and_ends_at_its_time() {
    let asker = Asker::with_widgets();
    let query = "watch=1&allowWatchBookmarks=true&timeoutSeconds=100";
    let watch = asker.watch(&format!("{ALL_WIDGETS}?{query}")).await;
    let begin = Instant::now();

    let events: Vec<_> =
        watch.map(|event| (event["type"].clone(), begin.elapsed().as_secs())).collect().await;

    assert_eq!(events, [(json!("BOOKMARK"), 60), (json!("BOOKMARK"), 98)]);
    assert_eq!(begin.elapsed().as_secs(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_what_was_compacted_fails_inside_the_stream() {
    let asker = Asker::with_widgets();
    asker.created(widget("a", json!({}))).await;
    let then = asker.server.resource_version();
    asker.created(widget("b", json!({}))).await;
    asker.server.compact();

    let watch = asker.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;

    let events: Vec<_> = watch.collect().await;
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["type"], &events[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
}

#[tokio::test(start_paused = true)]
async fn any_change_of_a_crds_spec_ends_its_watches() {
    let asker = Asker::with_widgets();
    let then = asker.server.resource_version();
    let watch = asker.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.x.test", "labels": { "a": "b" } } });
    asker.server.merge(&crd).unwrap();
    assert_eq!(asker.server.open_watches()["widgets.x.test"], 1, "metadata do not matter");
    let mut crd = crd;
    crd["spec"] = json!({ "names": { "shortNames": ["wd"] } });
    asker.server.merge(&crd).unwrap();

    assert_eq!(watch.collect::<Vec<_>>().await.len(), 0);
    let again = asker.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;
    assert_eq!(again.collect::<Vec<_>>().await[0]["object"]["code"], 410);
}

#[tokio::test(start_paused = true)]
async fn a_crd_is_served_once_its_names_are_accepted_and_held_after_it_is_established() {
    let begin = Some("2026-01-01T00:00:00Z".parse().unwrap());
    let delays = Delays { established: std::time::Duration::from_secs(5), ..Delays::default() };
    let options = SimulatedOptions { delays, begin, ..SimulatedOptions::default() };
    let asker = Asker { server: SimulatedServer::with(options) };
    asker.server.install(&widgets().build()).unwrap();
    assert_eq!(asker.get(ALL_WIDGETS).await.0, 404);

    advance(std::time::Duration::from_millis(10)).await;
    let paged = format!("{ALL_WIDGETS}?limit=500");
    assert_eq!(asker.get(&paged).await.0, 200);
    let (code, busy) = asker.get(ALL_WIDGETS).await;
    assert_eq!((code, &busy["message"]), (429, &json!("storage is (re)initializing")));
    advance(std::time::Duration::from_millis(10)).await;
    assert_eq!(asker.get(ALL_WIDGETS).await.0, 200);
    assert_eq!(asker.get("/apis/x.test/v1").await.0, 404, "discovery waits for Established");

    asker.server.wait_established("widgets.x.test").await;
    assert_eq!(asker.get("/apis/x.test/v1").await.0, 200);
    let begin = Instant::now();
    asker.created(widget("a", json!({}))).await;
    assert_eq!(begin.elapsed().as_secs(), 2);
    let begin = Instant::now();
    asker.created(widget("b", json!({}))).await;
    assert_eq!(begin.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_a_conflict_until_it_is_free() {
    let asker = Asker::with_widgets();
    let mut other = widgets().plural("wodgets").build();
    other.metadata.name = Some("wodgets.x.test".to_owned());
    asker.server.install(&other).unwrap();
    let condition = |kind: &str| {
        let crd = asker
            .server
            .get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "wodgets.x.test")
            .unwrap();
        let all = crd["status"]["conditions"].as_array().unwrap().clone();
        let found = all.into_iter().find(|it| it["type"] == kind).unwrap();
        (found["status"].clone(), found["reason"].clone())
    };

    assert_eq!(condition("NamesAccepted"), (json!("False"), json!("ListKindConflict")));
    assert_eq!(condition("Established"), (json!("False"), json!("NotAccepted")));
    asker.server.uninstall("widgets.x.test").unwrap();
    assert_eq!(condition("NamesAccepted").0, "True");
    assert_eq!(condition("Established").0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_crd_terminates_until_its_instances_are_gone() {
    let asker = Asker::with_widgets();
    let mut held = widget("a", json!({}));
    held["metadata"]["finalizers"] = json!(["x.test/hold"]);
    asker.created(held).await;
    asker.created(widget("b", json!({}))).await;
    let watch = asker.watch(&format!("{ALL_WIDGETS}?watch=1")).await;
    let uid = || {
        let crd = asker.server.get(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "",
            "widgets.x.test",
        );
        crd.map(|crd| object::uid(&crd).to_owned())
    };
    let before = uid().unwrap();

    asker.server.uninstall("widgets.x.test").unwrap();
    assert_eq!(asker.get(ALL_WIDGETS).await.1["items"].as_array().unwrap().len(), 1);
    let (code, refused) = asker.post(WIDGETS, widget("c", json!({}))).await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    let free = json!({ "metadata": { "finalizers": null } });
    assert_eq!(asker.patch(&format!("{WIDGETS}/a"), MERGE, free).await.0, 200);
    assert_eq!(asker.get(ALL_WIDGETS).await.0, 200, "it is looked every 5 s");
    asker.server.wait_gone("widgets.x.test").await;

    assert_eq!(asker.get(ALL_WIDGETS).await, (404, json!("404 page not found\n")));
    let events: Vec<_> = watch.collect().await;
    let told: Vec<_> = events.iter().map(told).collect();
    let expected =
        [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "a")];
    assert_eq!(told, expected);
    asker.server.install(&widgets().build()).unwrap();
    assert_ne!(uid().unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owner() {
    let asker = Asker::with_widgets();
    let owner = asker.created(widget("a", json!({}))).await;
    let reference = json!({
        "apiVersion": "x.test/v1", "kind": "Widget", "name": "a", "uid": object::uid(&owner),
        "blockOwnerDeletion": true });
    let dependent =
        |name: &str| json!({ "metadata": { "name": name, "ownerReferences": [reference] } });
    let dangling = json!({ "metadata": { "name": "dangling", "ownerReferences": [
        { "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "no" }] } });
    asker.post(MAPS, dependent("child")).await;
    asker.post(MAPS, dangling).await;
    assert_eq!(names(&asker.get(MAPS).await.1), ["child"]);

    let orphan = json!({ "propagationPolicy": "Orphan" });
    asker.delete(&format!("{WIDGETS}/a"), orphan).await;
    let child = asker.get(&format!("{MAPS}/child")).await;
    assert_eq!(asker.get(&format!("{WIDGETS}/a")).await.0, 404);
    assert_eq!((child.0, &child.1["metadata"]["ownerReferences"]), (200, &Value::Null));

    for policy in ["Background", "Foreground"] {
        let owner = asker.created(widget("a", json!({}))).await;
        let mut dependent = dependent(policy.to_lowercase().as_str());
        dependent["metadata"]["ownerReferences"][0]["uid"] = owner["metadata"]["uid"].clone();
        dependent["metadata"]["finalizers"] = json!(["x.test/hold"]);
        assert_eq!(asker.post(MAPS, dependent).await.0, 201);
        let path = format!("{MAPS}/{}", policy.to_lowercase());
        let options = json!({ "propagationPolicy": policy });
        asker.delete(&format!("{WIDGETS}/a"), options).await;
        assert!(object::is_deleting(&asker.get(&path).await.1), "{policy}");
        let owner_waits = asker.get(&format!("{WIDGETS}/a")).await.0 == 200;
        assert_eq!(owner_waits, policy == "Foreground");
        asker.patch(&path, MERGE, json!({ "metadata": { "finalizers": null } })).await;
        assert_eq!(asker.get(&path).await.0, 404);
        assert_eq!(asker.get(&format!("{WIDGETS}/a")).await.0, 404);
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_ends_after_what_is_in_it() {
    let asker = Asker::with_widgets();
    asker.post("/api/v1/namespaces", json!({ "metadata": { "name": "n" } })).await;
    let maps = "/api/v1/namespaces/n/configmaps";
    let held = json!({ "metadata": { "name": "held", "finalizers": ["x.test/hold"] } });
    asker.post(maps, held).await;
    asker.post(maps, json!({ "metadata": { "name": "free" } })).await;

    let (code, ending) = asker.delete("/api/v1/namespaces/n", Value::Null).await;
    assert_eq!((code, &ending["status"]["phase"]), (200, &json!("Terminating")));
    advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(names(&asker.get(maps).await.1), ["held"]);
    let (code, refused) = asker.post(maps, json!({ "metadata": { "name": "late" } })).await;
    assert_eq!(code, 403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    asker
        .patch(&format!("{maps}/held"), MERGE, json!({ "metadata": { "finalizers": null } }))
        .await;
    advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(asker.get("/api/v1/namespaces/n").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn rules_forbid_in_the_servers_words() {
    let asker = Asker::with_widgets();
    let rule = AccessRule::deny().users(["alice"]).resources(["widgets.x.test"]).verbs(["list"]);
    asker.server.set_rbac([rule]);

    let (code, refused) = asker.get(ALL_WIDGETS).await;

    assert_eq!(code, 403);
    assert_eq!(
        refused["message"],
        "widgets.x.test is forbidden: User \"alice\" cannot list resource \"widgets\" in API group \
         \"x.test\" at the cluster scope"
    );
    let question = json!({ "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": { "resourceAttributes": { "group": "x.test", "resource": "widgets", "verb": "list" } } });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let (code, review) = asker.post(path, question).await;
    assert_eq!((code, &review["status"]["allowed"]), (201, &json!(false)));
    assert_eq!(asker.get(MAPS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_api_answers_while_its_service_does() {
    let asker = Asker::new();
    let name = "v1.y.test";
    let gears = CrdBuilder::new("y.test", "Gear");
    asker.server.back_api_service(name, &[gears]);
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": name },
        "spec": { "group": "y.test", "version": "v1", "service": { "name": "s", "namespace": "default" },
            "groupPriorityMinimum": 10, "versionPriority": 10 } });
    asker.server.apply(service).unwrap();
    let path = "/apis/y.test/v1/gears";

    assert_eq!(asker.get(path).await, (503, json!("service unavailable\n")));
    asker.server.set_available(name, true);
    assert_eq!(asker.get(path).await.0, 200);
    assert_eq!(asker.get("/apis/y.test/v1").await.1["resources"][0]["kind"], "Gear");
    asker.server.set_available(name, false);
    assert_eq!(asker.get("/apis/y.test/v1").await.0, 503);
    assert_eq!(asker.get("/apis").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_restart_breaks_watches_and_loses_their_past() {
    let asker = Asker::with_widgets();
    asker.created(widget("a", json!({}))).await;
    let then = asker.server.resource_version();
    asker.created(widget("b", json!({}))).await;
    let request = Request::get(format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}"));
    let request = request.body(Full::new(Bytes::new())).unwrap();
    let answer = asker.server.service("alice").oneshot(request).await.unwrap();

    asker.server.restart();

    assert!(answer.into_body().collect().await.is_err());
    let again = asker.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;
    assert_eq!(again.collect::<Vec<_>>().await[0]["object"]["code"], 410);
    asker.server.stop();
    let request = Request::get(ALL_WIDGETS).body(Full::new(Bytes::new())).unwrap();
    assert!(asker.server.service("alice").oneshot(request).await.is_err());
    asker.server.start();
    assert_eq!(asker.get(ALL_WIDGETS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn every_request_is_on_record() {
    let asker = Asker::with_widgets();
    asker.get(ALL_WIDGETS).await;
    let watch = asker.watch(&format!("{ALL_WIDGETS}?watch=1")).await;
    asker.get("/apis/x.test/v3/widgets").await;

    let requests = asker.server.requests();

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
    asker.server.forget_requests();
    assert!(asker.server.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_simulated_is_refused_with_a_sentence() {
    let asker = Asker::new();
    let pod = "/api/v1/namespaces/default/pods";
    asker.post(pod, json!({ "metadata": { "name": "p" } })).await;
    let list = json!({ "metadata": { "finalizers": ["x.test/a"] } });
    let strategic = "application/strategic-merge-patch+json";
    for (code, refused) in [
        asker.get(&format!("{pod}/p/log")).await,
        asker.get("/metrics").await,
        asker.patch(&format!("{pod}/p"), strategic, list).await,
    ] {
        assert_eq!(code, 501, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("real control plane"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_kube_client_is_content() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DynamicObject, PostParams},
    };

    let asker = Asker::with_widgets();
    let api: Api<DynamicObject> =
        Api::default_namespaced_with(asker.server.client(), &widgets().api_resource("v1"));
    api.create(&PostParams::default(), &widgets().object("a", json!({}))).await.unwrap();
    assert_eq!(api.list_metadata(&Default::default()).await.unwrap().items.len(), 1);
    let maps = Api::<ConfigMap>::default_namespaced(asker.server.client());
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(json!({ "metadata": { "name": "m" } })).unwrap(),
    )
    .await
    .unwrap();
    assert_eq!(maps.list(&Default::default()).await.unwrap().items.len(), 1);
    let groups = asker.server.client().list_api_groups().await.unwrap();
    assert!(groups.groups.iter().any(|group| group.name == "x.test"));
    asker.server.client().apiserver_version().await.unwrap();
}
