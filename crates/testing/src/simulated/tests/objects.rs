//! Creates, updates, patches, applies and deletions.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_object_gets_its_metadata_from_the_server() {
    let harness = Harness::with_widgets();

    let created = harness.created(widget("a", json!({ "size": 1 }))).await;
    let mut unnamed = widget("", json!({}));
    unnamed["metadata"] = json!({ "generateName": "a-" });
    let generated = harness.created(unnamed).await;

    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(object::uid(&created).len(), 36);
    assert!(object::text(&created, "creationTimestamp").ends_with('Z'));
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "harness");
    assert!(object::name(&generated).starts_with("a-") && object::name(&generated).len() == 7);
    let (code, refused) = harness.post(WIDGETS, widget("a", json!({}))).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(refused["message"], "widgets.x.test \"a\" already exists");
}

#[tokio::test(start_paused = true)]
async fn invalid_creates_are_refused() {
    let harness = Harness::with_widgets();
    for (path, body, code) in [
        (WIDGETS, widget("A_", json!({})), 422),
        (WIDGETS, widget("", json!({})), 422),
        (WIDGETS, json!({ "apiVersion": "x.test/v2", "kind": "Widget" }), 400),
        ("/apis/x.test/v1/namespaces/nowhere/widgets", widget("a", json!({})), 404),
        ("/apis/x.test/v2/namespaces/default/widgets", widget("a", json!({})), 404),
        ("/apis/x.test/v1/widgets", widget("a", json!({})), 404),
        ("/apis/x.test/v1/namespaces/default/gears", widget("a", json!({})), 404),
    ] {
        let (answered, refused) = harness.post(path, body).await;
        assert_eq!(answered, code, "{path}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unserved_type_is_a_404_in_plain_text() {
    let harness = Harness::new();
    assert_eq!(harness.get(ALL_WIDGETS).await, (404, json!("404 page not found\n")));
    harness.server.install(&widgets().build()).unwrap();
    assert_eq!(harness.get(ALL_WIDGETS).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn an_update_needs_the_version_that_it_changes() {
    let harness = Harness::with_widgets();
    let created = harness.created(widget("a", json!({ "size": 1 }))).await;
    let path = format!("{WIDGETS}/a");
    let put = |body: Value| harness.send_json("PUT", &path, "application/json", body);

    let (code, refused) = put(widget("a", json!({}))).await;
    assert_eq!(code, 422);
    assert!(refused["message"].as_str().unwrap().contains("must be specified for an update"));
    let mut changed = created.clone();
    changed["spec"]["size"] = 2.into();
    let (code, updated) = put(changed.clone()).await;
    assert_eq!((code, &updated["metadata"]["generation"]), (200, &json!(2)));
    let (code, refused) = put(changed).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));

    let version = harness.server.resource_version();
    let (code, same) = put(updated.clone()).await;
    assert_eq!((code, same), (200, updated), "an update without a change is not written");
    assert_eq!(harness.server.resource_version(), version);
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_through_its_subresource() {
    let harness = Harness::with_widgets();
    let mut object = widget("a", json!({ "size": 1 }));
    object["status"] = json!({ "ready": true });
    let created = harness.created(object).await;
    assert!(created.get("status").is_none());
    let path = format!("{WIDGETS}/a");

    let both = json!({ "spec": { "size": 2 }, "status": { "ready": true } });
    let (_, status) = harness.patch(&format!("{path}/status"), MERGE, both.clone()).await;
    assert_eq!((&status["spec"]["size"], &status["status"]["ready"]), (&json!(1), &json!(true)));
    assert_eq!(status["metadata"]["generation"], 1);
    let (_, main) =
        harness.patch(&path, MERGE, json!({ "spec": { "size": 2 }, "status": {} })).await;
    assert_eq!((&main["spec"]["size"], &main["status"]["ready"]), (&json!(2), &json!(true)));
    assert_eq!(main["metadata"]["generation"], 2);
    assert_eq!(harness.patch(&format!("{path}/scale"), MERGE, both).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn patches_of_each_kind_are_applied_or_refused() {
    let harness = Harness::with_widgets();
    harness.created(widget("a", json!({ "size": 1, "color": "red" }))).await;
    let path = format!("{WIDGETS}/a");
    const JSON: &str = "application/json-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";

    let (code, merged) = harness.patch(&path, MERGE, json!({ "spec": { "color": null } })).await;
    assert_eq!((code, &merged["spec"]), (200, &json!({ "size": 1 })));
    let operations = json!([
        { "op": "test", "path": "/spec/size", "value": 1 },
        { "op": "replace", "path": "/spec/size", "value": 3 }]);
    let (code, patched) = harness.patch(&path, JSON, operations.clone()).await;
    assert_eq!((code, &patched["spec"]["size"]), (200, &json!(3)));
    assert_eq!(harness.patch(&path, JSON, operations).await.0, 422);
    assert_eq!(harness.patch(&path, STRATEGIC, json!({})).await.0, 415);
    let missing = format!("{WIDGETS}/b");
    assert_eq!(harness.patch(&missing, MERGE, json!({})).await.0, 404);
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "spec": { "size": 4 } });
    assert_eq!(harness.patch(&path, MERGE, stale).await.0, 409);
}

#[tokio::test(start_paused = true)]
async fn apply_creates_merges_and_conflicts() {
    let harness = Harness::with_widgets();
    let path = format!("{WIDGETS}/a");
    let by = |manager: &str| format!("{path}?fieldManager={manager}");
    let wanted = widget("a", json!({ "size": 1 }));

    assert_eq!(harness.patch(&path, APPLY, wanted.clone()).await.0, 422, "who applies?");
    assert_eq!(harness.patch(&by("alice"), APPLY, wanted.clone()).await.0, 201);
    let version = harness.server.resource_version();
    assert_eq!(harness.patch(&by("alice"), APPLY, wanted).await.0, 200);
    assert_eq!(harness.server.resource_version(), version, "an equal apply is not written");
    let other = widget("a", json!({ "size": 2 }));
    let (code, refused) = harness.patch(&by("bob"), APPLY, other.clone()).await;
    assert_eq!(code, 409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"alice\": .spec.size"
    );
    let (code, forced) = harness.patch(&format!("{}&force=true", by("bob")), APPLY, other).await;
    assert_eq!((code, &forced["spec"]["size"]), (200, &json!(2)));
    let absent = json!({
        "apiVersion": "x.test/v1", "kind": "Widget", "metadata": { "name": "b", "uid": "gone" },
    });
    let path = format!("{WIDGETS}/b?fieldManager=alice");
    let (code, refused) = harness.patch(&path, APPLY, absent).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn finalizers_delay_a_deletion() {
    let harness = Harness::with_widgets();
    let mut object = widget("a", json!({}));
    object["metadata"]["finalizers"] = json!(["x.test/hold"]);
    harness.created(object).await;
    let path = format!("{WIDGETS}/a");

    let (code, held) = harness.delete(&path, Value::Null).await;
    assert_eq!(code, 200);
    assert!(object::is_deleting(&held));
    assert_eq!(held["metadata"]["generation"], 2);
    let more = json!({ "metadata": { "finalizers": ["x.test/hold", "x.test/more"] } });
    assert_eq!(harness.patch(&path, MERGE, more).await.0, 422);
    let none = json!({ "metadata": { "finalizers": null } });
    assert_eq!(harness.patch(&path, MERGE, none).await.0, 200);
    let (code, gone) = harness.get(&path).await;
    assert_eq!((code, &gone["message"]), (404, &json!("widgets.x.test \"a\" not found")));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_may_have_preconditions_of_uid_and_version() {
    let harness = Harness::with_widgets();
    let created = harness.created(widget("a", json!({}))).await;
    let path = format!("{WIDGETS}/a");
    let preconditions = |uid: &str, version: &str| json!({ "preconditions": { "uid": uid, "resourceVersion": version } });
    let (uid, version) = (object::uid(&created), object::text(&created, "resourceVersion"));

    assert_eq!(harness.delete(&path, preconditions("other", version)).await.0, 409);
    assert_eq!(harness.delete(&path, preconditions(uid, "1")).await.0, 409);
    let (code, _) = harness.delete(&format!("{path}?dryRun=All"), Value::Null).await;
    assert_eq!((code, harness.get(&path).await.0), (200, 200));
    let (code, status) = harness.delete(&path, preconditions(uid, version)).await;
    assert_eq!((code, &status["status"]), (200, &json!("Success")));
    assert_eq!(status["details"]["uid"], uid);
}
