//! Formats of bodies, unknown fields, and values of a wrong type.

use super::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[tokio::test(start_paused = true)]
async fn a_body_in_protobuf_is_refused_with_advice() {
    let harness = Harness::with_widgets();
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let one = format!("{MAPS}/x");

    for (method, path) in [
        ("POST", MAPS),
        ("POST", WIDGETS),
        ("POST", review),
        ("PUT", &one),
        ("PATCH", &one),
        ("DELETE", &one),
        ("DELETE", MAPS),
    ] {
        let (code, refused) = harness.send(method, path, PROTOBUF, b"k8s\0".to_vec()).await;

        assert_eq!((code, &refused["reason"]), (415, &json!("UnsupportedMediaType")), "{method}");
        assert_eq!(refused["kind"], "Status");
        if method != "PATCH" {
            assert!(refused["message"].as_str().unwrap().contains("kubectl apply -f -"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_of_metadata_are_dropped_warned_of_or_refused() {
    let harness = Harness::new();
    let odd = json!({ "metadata": { "name": "a", "nam": "b" }, "data": { "a": "b" } });
    let at = |mode: &str| format!("{MAPS}?fieldValidation={mode}");

    let (code, refused) = harness.post(&at("Strict"), odd.clone()).await;
    assert_eq!(code, 400);
    assert_eq!(
        refused["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: \
         unknown field \"metadata.nam\""
    );
    let (code, created) = harness.post(&at("Ignore"), odd.clone()).await;
    assert_eq!((code, &created["metadata"]["nam"]), (201, &Value::Null));

    let request = Request::put(format!("{MAPS}/a?fieldValidation=Warn"))
        .body(Full::new(Bytes::from(odd.to_string())))
        .unwrap();
    let response = harness.server.service("alice").oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::WARNING], r#"299 - "unknown field \"metadata.nam\"""#);
    let change = json!({ "data": { "a": "c" }, "metadata": { "nam": "b" } });
    let (code, _) = harness.patch(&format!("{MAPS}/a?fieldValidation=Strict"), MERGE, change).await;
    assert_eq!(code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_number_in_place_of_a_string_is_refused_in_every_mode() {
    let harness = Harness::new();
    let wrong = json!({ "metadata": { "name": "a" }, "data": { "a": 8080 } });

    for mode in ["Strict", "Warn", "Ignore"] {
        let (code, refused) =
            harness.post(&format!("{MAPS}?fieldValidation={mode}"), wrong.clone()).await;
        assert_eq!(code, 400, "{refused}");
    }
    let object = json!({ "metadata": { "name": "a" }, "data": { "a": "1" } });
    assert_eq!(harness.post(MAPS, object).await.0, 201);
    let change = json!({ "data": { "a": 8080 } });
    assert_eq!(harness.patch(&format!("{MAPS}/a"), MERGE, change).await.0, 422);
}
