//! Fields of built-in types: those that nobody knows, and those that come in protobuf.

use super::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn part(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes.to_vec()].concat()
}

fn protobuf(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let about = [part(1, api_version.as_bytes()), part(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), part(1, &about), part(2, message)].concat()
}

fn named(name: &str) -> Vec<u8> {
    part(1, &part(1, name.as_bytes()))
}

#[tokio::test(start_paused = true)]
async fn what_a_typed_client_creates_and_deletes_is_understood() {
    let asker = Asker::new();
    let data = part(2, &[part(1, b"a"), part(2, b"b")].concat());
    let map = protobuf("v1", "ConfigMap", &[named("x"), data].concat());

    let (code, created) = asker.send("POST", MAPS, PROTOBUF, map).await;
    let namespace = protobuf("v1", "Namespace", &named("n"));
    let (founded, namespace) = asker.send("POST", "/api/v1/namespaces", PROTOBUF, namespace).await;
    let options = protobuf("v1", "DeleteOptions", &part(2, &part(1, b"other")));
    let (kept, _) = asker.send("DELETE", &format!("{MAPS}/x"), PROTOBUF, options).await;

    assert_eq!((code, &created["data"]), (201, &json!({ "a": "b" })));
    assert_eq!(created["kind"], "ConfigMap");
    assert_eq!((founded, &namespace["spec"]["finalizers"]), (201, &json!(["kubernetes"])));
    assert_eq!(kept, 409, "another uid was meant");
}

#[tokio::test(start_paused = true)]
async fn who_asks_in_protobuf_what_it_may_do_is_told() {
    let asker = Asker::new();
    asker.server.set_rbac([AccessRule::deny().resources(["pods"])]);
    let review = |resource: &[u8]| {
        let attributes = [part(2, b"create"), part(5, resource)].concat();
        protobuf(
            "authorization.k8s.io/v1",
            "SelfSubjectAccessReview",
            &[part(1, &[]), part(2, &part(1, &attributes)), part(3, &[])].concat(),
        )
    };
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

    let (code, pods) = asker.send("POST", path, PROTOBUF, review(b"pods")).await;
    let (_, maps) = asker.send("POST", path, PROTOBUF, review(b"configmaps")).await;

    assert_eq!((code, &pods["status"]["allowed"]), (201, &json!(false)));
    assert_eq!(maps["status"]["allowed"], true);
    assert_eq!(asker.get(path).await.0, 405);
}

#[tokio::test(start_paused = true)]
async fn a_custom_type_has_no_numbers_for_its_fields() {
    let asker = Asker::with_widgets();
    let widget = protobuf("x.test/v1", "Widget", &named("a"));

    // The real server breaks the connection.
    let (code, refused) = asker.send("POST", WIDGETS, PROTOBUF, widget).await;

    assert_eq!((code, &refused["reason"]), (415, &json!("UnsupportedMediaType")));
}

#[tokio::test(start_paused = true)]
async fn fields_that_no_built_in_type_has_are_dropped_warned_of_or_refused() {
    let asker = Asker::new();
    let odd = json!({ "metadata": { "name": "a" }, "data": { "a": "b" }, "dta": { "a": "b" } });
    let at = |mode: &str| format!("{MAPS}?fieldValidation={mode}");

    let (code, refused) = asker.post(&at("Strict"), odd.clone()).await;
    assert_eq!(code, 400);
    assert_eq!(
        refused["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: \
         unknown field \"dta\""
    );
    let (code, created) = asker.post(&at("Ignore"), odd.clone()).await;
    assert_eq!((code, &created["dta"], &created["data"]["a"]), (201, &Value::Null, &json!("b")));

    let request = Request::put(format!("{MAPS}/a?fieldValidation=Warn"))
        .body(Full::new(Bytes::from(odd.to_string())))
        .unwrap();
    let answer = asker.server.service("alice").oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()[header::WARNING], r#"299 - "unknown field \"dta\"""#);
    let change = json!({ "data": { "a": "c" }, "dta": 1 });
    let (code, _) = asker.patch(&format!("{MAPS}/a?fieldValidation=Strict"), MERGE, change).await;
    assert_eq!(code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_number_where_a_text_has_to_be_is_refused_in_every_mode() {
    let asker = Asker::new();
    let wrong = json!({ "metadata": { "name": "a" }, "data": { "a": 8080 } });

    for mode in ["Strict", "Warn", "Ignore"] {
        let (code, refused) =
            asker.post(&format!("{MAPS}?fieldValidation={mode}"), wrong.clone()).await;
        assert_eq!(code, 400, "{refused}");
    }
    let object = json!({ "metadata": { "name": "a" }, "data": { "a": "1" } });
    assert_eq!(asker.post(MAPS, object).await.0, 201);
    let change = json!({ "data": { "a": 8080 } });
    assert_eq!(asker.patch(&format!("{MAPS}/a"), MERGE, change).await.0, 422);
}
