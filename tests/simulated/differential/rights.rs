//! Answers to a user without rights.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, CRD, CRDS, MAPS, WIDGETS, agree, map, widget, with_widgets};
use crate::simulated::sequence::{MERGE, Right, Step, delete, get, grant, patch, post, put};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn right(verbs: &[&'static str], resources: &[&'static str]) -> Right {
    let (verbs, resources) = (verbs.to_vec(), resources.to_vec());
    Right { verbs, group: "$group", resources, namespaced: false }
}

fn everything_of_a_type() -> Vec<Step> {
    let path = format!("{WIDGETS}/a");
    vec![
        get(&path),
        get(WIDGETS),
        get(ALL_WIDGETS),
        get(&format!("{WIDGETS}?watch=true&timeoutSeconds=1")),
        get(&format!("{ALL_WIDGETS}?watch=true&timeoutSeconds=1")),
        get(&format!("{path}/status")),
        post(WIDGETS, widget("b", json!({}))),
        put(&path, widget("a", json!({}))),
        patch(MERGE, &path, json!({ "spec": { "size": 2 } })),
        patch(MERGE, &format!("{path}/status"), json!({ "status": { "size": 2 } })),
        patch(MERGE, &format!("{path}/scale"), json!({ "spec": { "replicas": 2 } })),
        delete(&path, Value::Null),
        delete(WIDGETS, Value::Null),
        delete(CRD, Value::Null),
        get(CRD),
        get(CRDS),
    ]
}

fn allowed(review: Value, _: &str) -> Value {
    review["status"]["allowed"].clone()
}

#[tokio::test]
async fn users_without_rights_are_refused_with_the_same_messages() {
    let review = |attributes: Value| {
        post(
            REVIEWS,
            json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": attributes }),
        )
        .only(allowed)
        .by("alice")
    };
    let mut steps = vec![post(WIDGETS, widget("a", json!({ "size": 1 }))).brief()];
    steps.extend(everything_of_a_type().into_iter().map(|step| step.by("alice")));
    steps.extend([
        get("/apis/nowhere.test/v1/things").by("alice"),
        get("/apis/apps/v1/namespaces/$ns/nothings/a").by("alice"),
        get("/api/v1/namespaces/$ns").by("alice"),
        get("/api/v1/namespaces").by("alice"),
        delete("/api/v1/namespaces/$ns", Value::Null).by("alice"),
        post("/api/v1/namespaces", json!({ "metadata": { "name": "$ns-b" } })).by("alice"),
        post(MAPS, map("a", json!({ "k": "1" }))).by("alice"),
        get(&format!("{MAPS}/a")).by("alice"),
        get("/metrics").by("alice"),
        get("/nothing").by("alice"),
        post("/nothing", json!({})).by("alice"),
        get("/healthz").by("alice"),
        get("/apis/$group/v1").by("alice").only(|list, _| list["kind"].clone()),
        review(json!({ "resourceAttributes": { "verb": "list", "group": "$group", "resource": "widgets" } })),
        review(json!({ "nonResourceAttributes": { "verb": "get", "path": "/apis" } })),
    ]);
    agree("differential-powerless", with_widgets(steps)).await;
}

#[tokio::test]
async fn a_right_has_the_same_extent() {
    let path = format!("{WIDGETS}/a");
    let steps = vec![
        post(WIDGETS, widget("a", json!({ "size": 1 }))).brief(),
        // In one namespace.
        grant(vec![Right { namespaced: true, ..right(&["get", "list", "watch"], &["widgets"]) }]),
        get(WIDGETS).by("alice").until(200),
        get(&path).by("alice"),
        get(ALL_WIDGETS).by("alice"),
        get("/apis/$group/v1/namespaces/default/widgets").by("alice"),
        get("/apis/$group/v1/namespaces/nowhere/widgets/a").by("alice"),
        get(&format!("{path}/status")).by("alice"),
        post(WIDGETS, widget("b", json!({}))).by("alice"),
        // Everywhere.
        grant(vec![right(&["list", "create"], &["widgets"])]),
        get(ALL_WIDGETS).by("alice").until(200),
        get(ALL_WIDGETS).by("alice"),
        get(&path).by("alice").until(403),
        get(&format!("{ALL_WIDGETS}?watch=true&timeoutSeconds=1")).by("alice"),
        post("/apis/$group/v1/namespaces/nowhere/widgets", widget("b", json!({}))).by("alice"),
        // A subresource without its resource.
        grant(vec![right(&["patch"], &["widgets/status"])]),
        patch(MERGE, &format!("{path}/status"), json!({ "status": { "size": 3 } }))
            .by("alice")
            .until(200),
        patch(MERGE, &path, json!({ "spec": { "size": 3 } })).by("alice"),
        get(&path).by("alice"),
        // No right any more.
        grant(Vec::new()),
        patch(MERGE, &format!("{path}/status"), json!({ "status": { "size": 4 } }))
            .by("alice")
            .until(403),
        patch(MERGE, &format!("{path}/status"), json!({ "status": { "size": 4 } })).by("alice"),
    ];
    agree("differential-granted", with_widgets(steps)).await;
}

#[tokio::test]
async fn a_watch_outlives_the_right_to_it() {
    use crate::simulated::sequence::{ends, opens};

    let path = format!("{WIDGETS}/a");
    let steps = vec![
        post(WIDGETS, widget("a", json!({ "size": 1 }))).keep("a").brief(),
        grant(vec![right(&["get", "watch"], &["widgets"])]),
        get(&path).by("alice").until(200),
        opens("watch", &format!("{WIDGETS}?resourceVersion=$version.a&timeoutSeconds=5"))
            .by("alice"),
        grant(Vec::new()),
        get(&path).by("alice").until(403),
        patch(MERGE, &path, json!({ "spec": { "size": 2 } })).brief(),
        get(&format!("{WIDGETS}?watch=true")).by("alice"),
        ends("watch"),
    ];
    agree("differential-revoked", with_widgets(steps)).await;
}
