//! Aggregated APIs, as far as a server without pods can have them.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, WIDGETS, agree, discovery, widget};
use crate::simulated::sequence::{MERGE, Step, Wanted, delete, get, patch, post};

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.$group";
const SERVICES: &str = "/api/v1/namespaces/$ns/services";

fn api_service(version: &str, port: u16) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": format!("{version}.$group") },
        "spec": {
            "group": "$group", "version": version,
            "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": { "namespace": "$ns", "name": "widgets", "port": port },
        },
    })
}

fn condition(service: Value, _: &str) -> Value {
    service["status"]["conditions"].clone()
}

fn because(reason: Wanted) -> Step {
    get(API_SERVICE).settled(reason).only(condition)
}

fn reason(service: &Value) -> &str {
    service["status"]["conditions"][0]["reason"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn an_api_without_its_service_is_unavailable() {
    let steps = vec![
        post(API_SERVICES, api_service("v1", 443)).only(|it, _| it["spec"].clone()),
        because(|it, _| reason(it) == "ServiceNotFound"),
        get(ALL_WIDGETS).until(503),
        get(ALL_WIDGETS),
        get(&format!("{ALL_WIDGETS}?watch=true")),
        get(&format!("{WIDGETS}/a")),
        post(WIDGETS, widget("a", json!({}))),
        patch(MERGE, &format!("{WIDGETS}/a/status"), json!({})),
        delete(&format!("{WIDGETS}/a"), Value::Null),
        get("/apis/$group/v1"),
        get("/apis/$group/v2"),
        get("/apis/$group/v2/widgets"),
        get("/apis/$group"),
        get("/apis").only(discovery::legacy),
        get("/apis").accept(discovery::V2).settled(discovery::is_stale).only(discovery::ours),
        // The service is created, without endpoints.
        post(
            SERVICES,
            json!({
            "metadata": { "name": "widgets" }, "spec": { "ports": [{ "port": 80 }] } }),
        )
        .brief(),
        because(|it, _| reason(it) == "ServicePortError"),
        patch(MERGE, API_SERVICE, json!({ "spec": { "service": { "port": 80 } } })).brief(),
        because(|it, _| reason(it) == "EndpointsNotFound"),
        get(ALL_WIDGETS),
        get("/apis/$group/v1"),
        delete(&format!("{SERVICES}/widgets"), Value::Null).brief(),
        because(|it, _| reason(it) == "ServiceNotFound"),
        // A second version, whose types are unknown too.
        post(API_SERVICES, api_service("v2", 443)).brief(),
        get("/apis/$group/v2/widgets").until(503),
        get("/apis/$group"),
        delete(API_SERVICE, Value::Null).only(|it, _| it["status"].clone()),
        get(ALL_WIDGETS).until(404),
        get(ALL_WIDGETS),
        get("/apis/$group/v1"),
        get("/apis/$group"),
        delete(&format!("{API_SERVICES}/v2.$group"), Value::Null).brief(),
        get("/apis/$group/v2/widgets").until(404),
        get("/apis/$group").until(404),
        get("/apis/$group"),
        get("/apis").accept(discovery::V2).settled(discovery::is_gone).only(discovery::ours),
    ];
    agree("differential-unavailable", steps).await;
}
