//! Replacement of objects with immutable fields.

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::fixture::*;
use crate::{
    apply::{Adopt, Applier},
    testing::simulated::SimulatedServer,
};

/// Returns a client to a server on which the field `data.v` of ConfigMaps is immutable, and has no
/// value `invalid`.
fn strict_client(server: &SimulatedServer) -> kube::Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let server = server.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
            let name = sent["metadata"]["name"].as_str().unwrap_or_default();
            let live = server.get("v1", "ConfigMap", "default", name).unwrap_or_default();
            let (wanted, found) = (&sent["data"]["v"], &live["data"]["v"]);
            let is_immutable = head.method == "PATCH" && wanted.is_string() && wanted != found;
            if is_immutable || wanted == "invalid" {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
                    "reason": "Invalid", "message": "data.v: Invalid value: field is immutable",
                });

                let body = kube::client::Body::from(status.to_string().into_bytes());
                return Ok(http::Response::builder().status(422).body(body).unwrap());
            }
            let request = http::Request::from_parts(head, kube::client::Body::from(body));
            let response = server.service("system:admin").oneshot(request).await?;
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes().to_vec();
            Ok::<_, tower::BoxError>(http::Response::from_parts(
                head,
                kube::client::Body::from(body),
            ))
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn immutable_field_is_replaced_only_where_the_set_asks_for_it() {
    let fixture = Fixture::new();
    let applier = Applier::new(strict_client(&fixture.server), MANAGER);
    let fixture = Fixture { applier, ..fixture };
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    let uid = || fixture.map("default", "a").unwrap()["metadata"]["uid"].clone();
    let before = uid();

    let refused = fixture.apply(fixture.maps(&[("a", "2")])).await;
    assert_eq!((verb(&refused, "a"), uid()), ("failed", before.clone()));
    let set = || fixture.maps(&[("a", "2")]).replace_immutable();
    let plan = fixture.plan(set()).await;
    assert_eq!(uid(), before);
    let replaced = fixture.apply(set()).await;

    let expected = ["replaced ConfigMap default/a: a field is immutable"];
    assert_eq!(lines(&replaced), expected);
    assert_eq!(plan_lines(&plan), expected);
    assert_ne!(uid(), before);
    assert_eq!(verb(&fixture.apply(set()).await, "a"), "unchanged");
}

#[tokio::test(start_paused = true)]
async fn object_that_is_to_be_adopted_is_never_replaced() {
    let fixture = Fixture::new();
    let applier = Applier::new(strict_client(&fixture.server), MANAGER);
    let fixture = Fixture { applier, ..fixture };
    fixture.server.apply(json_map("default", "a", "theirs")).unwrap();
    let uid = || fixture.map("default", "a").unwrap()["metadata"]["uid"].clone();
    let before = uid();

    let adopting = fixture.maps(&[("a", "ours")]).adopt(Adopt::Unowned).replace_immutable();
    let refused = fixture.apply(adopting).await;

    assert_eq!((verb(&refused, "a"), uid()), ("failed", before));
}

#[tokio::test(start_paused = true)]
async fn object_that_is_invalid_by_itself_replaces_nothing() {
    let fixture = Fixture::new();
    let applier = Applier::new(strict_client(&fixture.server), MANAGER);
    let fixture = Fixture { applier, ..fixture };
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);

    let outcome = fixture.apply(fixture.maps(&[("a", "invalid")]).replace_immutable()).await;

    assert_eq!(verb(&outcome, "a"), "failed");
    assert_eq!(fixture.map("default", "a").unwrap()["data"]["v"], "1");
    assert_eq!(fixture.deletions(), [""; 0]);
}
