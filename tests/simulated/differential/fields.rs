//! What becomes of the fields of built-in types: unknown, twice, of a wrong type, and in protobuf.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, CRDS, MAPS, WIDGETS, agree, crd, map, with_widgets};
use crate::simulated::sequence::{APPLY, MERGE, STRATEGIC, Step, delete, get, patch, post, put};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/$ns/deployments";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/$ns";

/// The answers to one request under each of the three modes.
fn in_each_mode(step: impl Fn(&str) -> Step) -> impl Iterator<Item = Step> {
    ["?fieldValidation=Strict", "?fieldValidation=Ignore", "?fieldValidation=Warn", ""]
        .into_iter()
        .map(step)
}

fn deployment(name: &str, container: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "template": {
                "metadata": { "labels": { "app": "a" } }, "spec": { "containers": [container] } },
        },
    })
}

#[tokio::test]
async fn unknown_fields_of_built_in_types_are_dropped_warned_of_or_refused() {
    let mut odd = map("odd", json!({ "k": "1" }));
    odd["dta"] = json!({ "a": "b" });
    odd["metadata"]["label"] = json!({ "a": "b" });
    let text = r#"{ "metadata": { "name": "odd", "nam": 1, "labels": {"a": "1", "a": "2"} },
        "dta": { "a": 1, "a": 2 }, "Data": {}, "data": { "k": "1", "k": "2" }, "dta": 1,
        "apiVersion": "v1", "kind": "ConfigMap", "kind": "ConfigMap" }"#;
    let path = format!("{MAPS}/odd");
    let container = json!({ "name": "a", "image": "a", "imag": "a", "env": [{ "nam": "a" }] });
    let mut steps = Vec::new();
    for body in [odd.clone(), text.into()] {
        steps.extend(in_each_mode(|mode| post(&format!("{MAPS}{mode}"), body.clone())));
        steps.extend(in_each_mode(|mode| put(&format!("{path}{mode}"), body.clone())));
        steps.push(get(&path));
        steps.push(delete(&path, Value::Null).brief());
    }
    steps.push(post(MAPS, map("odd", json!({ "k": "1" }))));
    for kind in [MERGE, STRATEGIC] {
        let change = json!({ "dta": { "a": "b" }, "data": { "m": "1" } });
        let patched = |mode: &str| patch(kind, &format!("{path}{mode}"), change.clone());
        // The whole object is in the message.
        steps.extend(in_each_mode(patched).enumerate().map(|(at, step)| match at {
            0 => step.brief(),
            _ => step,
        }));
    }
    let applied = format!("{path}?fieldManager=x&force=true");
    steps.extend([
        // It tells one or all of several, and names items of lists by their keys.
        patch(APPLY, &applied, odd).brief(),
        patch(
            APPLY,
            &applied,
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "dta": 1,
                "metadata": { "name": "odd", "namespace": "$ns" } }),
        ),
        patch(
            APPLY,
            &applied,
            json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "odd", "label": {} } }),
        ),
        patch(
            APPLY,
            &format!("{DEPLOYMENTS}/a?fieldManager=x"),
            deployment("a", container.clone()),
        )
        .brief(),
        get(&path),
        // In a deployment, the defaults of the real server would differ.
        post(&format!("{DEPLOYMENTS}?fieldValidation=Strict"), deployment("a", container)),
    ]);
    agree("differential-odd-fields", steps).await;
}

#[tokio::test]
async fn values_of_another_type_than_their_field_are_refused() {
    let of_container = |container: Value| post(DEPLOYMENTS, deployment("a", container)).brief();
    let mut labels = map("a", json!({}));
    labels["metadata"]["labels"] = json!({ "a": 1 });
    let path = format!("{MAPS}/a");
    let steps = vec![
        post(MAPS, map("a", json!({ "k": 1 }))).brief(),
        post(MAPS, map("a", json!([]))).brief(),
        post(MAPS, labels).brief(),
        post(
            "/api/v1/namespaces/$ns/secrets",
            json!({
            "metadata": { "name": "a" }, "data": { "k": "not base64" } }),
        )
        .brief(),
        of_container(json!({ "name": "a", "image": "a", "env": [{ "name": "a", "value": 1 }] })),
        of_container(json!({ "name": "a", "image": "a", "tty": "yes" })),
        of_container(json!({ "name": "a", "image": "a", "ports": [{ "containerPort": 1.5 }] })),
        of_container(json!("a")),
        post(MAPS, map("a", Value::Null)),
        put(&path, map("a", json!({ "k": 1 }))).brief(),
        patch(MERGE, &path, json!({ "data": { "k": 1 } })).brief(),
        patch(MERGE, &path, json!({ "data": [] })).brief(),
        patch(APPLY, &format!("{path}?fieldManager=x"), map("a", json!({ "k": 1 }))).brief(),
        get(&path),
    ];
    agree("differential-wrong-types", steps).await;
}

#[tokio::test]
async fn a_type_is_looked_into_as_far_as_on_the_real_server() {
    let at = |mode: &str| format!("{CRDS}?fieldValidation={mode}");
    let mut odd = crd();
    let schema = &mut odd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["propertees"] = json!({});
    schema["properties"]["list"] =
        json!({ "type": "array", "items": { "type": "string", "x": 1 } });
    odd["spec"]["names"]["plurals"] = "x".into();
    let twice = r#"{ "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "a", "nam": 1,
        "ownerReferences": [], "name": "a" }, "spec": { "size": 1, "size": 2 }, "extra": 1 }"#;
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let steps = vec![
        post(&at("Strict"), odd).only(|answer, _| {
            // The whole object is in no message.
            json!([answer["message"], answer["reason"]])
        }),
        post(&strict, twice.into()),
        post(WIDGETS, twice.into()),
        get(ALL_WIDGETS),
    ];
    agree("differential-odd-types", with_widgets(steps)).await;
}

/// One field of a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128);
    let mut field = vec![number << 3 | 2, length.expect("what is longer has a longer length")];
    field.extend_from_slice(bytes);
    field
}

fn text(number: u8, text: &str) -> Vec<u8> {
    field(number, text.as_bytes())
}

fn entry(number: u8, key: &str, value: &str) -> Vec<u8> {
    field(number, &[text(1, key), text(2, value)].concat())
}

fn object(api_version: &str, kind: &str, fields: &[Vec<u8>]) -> Vec<u8> {
    let about = [text(1, api_version), text(2, kind)].concat();
    let parts = [field(1, &about), field(2, &fields.concat()), text(3, ""), text(4, "")];
    [b"k8s\0".to_vec(), parts.concat()].concat()
}

#[tokio::test]
async fn an_object_in_protobuf_is_what_it_is_in_json() {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let metadata = |name: &str| {
        // The time of an object that nobody has created yet is an empty message.
        let parts = [text(1, name), text(2, ""), text(3, ""), field(8, &[])].concat();
        field(1, &[parts, entry(11, "a", "b"), entry(12, "c", "")].concat())
    };
    let map = [
        metadata("a"),
        entry(2, "k", "1"),
        entry(2, "m", ""),
        entry(3, "b", "\u{1}"),
        vec![4 << 3, 0],
    ];
    let secret = [metadata("a"), entry(2, "k", "1"), text(3, "Opaque")];
    let rule = [text(1, "get"), text(1, "list"), text(2, ""), text(3, "pods")].concat();
    let reference = [text(1, RBAC), text(2, "Role"), text(3, "a")].concat();
    let subject = [text(1, "User"), text(2, RBAC), text(3, "u"), text(4, "")].concat();
    let (maps, secrets) = (MAPS, "/api/v1/namespaces/$ns/secrets");
    let accounts = "/api/v1/namespaces/$ns/serviceaccounts";
    let (roles, bindings) = (format!("{ROLES}/roles"), format!("{ROLES}/rolebindings"));
    let rbac = format!("{RBAC}/v1");
    let sent = |path: &str, version: &str, kind: &str, fields: &[Vec<u8>]| {
        post(path, Value::Null).bytes(PROTOBUF, object(version, kind, fields))
    };
    let one = format!("{MAPS}/a");
    let options = |fields: &[Vec<u8>]| {
        delete(&one, Value::Null).bytes(PROTOBUF, object("v1", "DeleteOptions", fields))
    };
    let dry = format!("{MAPS}?dryRun=All&fieldValidation=Strict");
    let steps = vec![
        sent(&dry, "v1", "ConfigMap", &map),
        sent(maps, "v1", "ConfigMap", &map),
        sent(maps, "v1", "ConfigMap", &map),
        sent(secrets, "v1", "Secret", &secret),
        sent(accounts, "v1", "ServiceAccount", &[metadata("a")]),
        sent(&roles, &rbac, "Role", &[metadata("a"), field(2, &rule)]),
        sent(
            &bindings,
            &rbac,
            "RoleBinding",
            &[metadata("a"), field(2, &subject), field(3, &reference)],
        ),
        get(&one),
        get(&format!("{secrets}/a")),
        get(&format!("{roles}/a")),
        get(&format!("{bindings}/a")),
        put(&one, Value::Null).bytes(PROTOBUF, object("v1", "ConfigMap", &[metadata("a")])),
        sent(maps, "v1", "Secret", &secret).brief(),
        sent(maps, "v1", "ConfigMap", &[vec![1 << 3 | 2, 100]]).brief(),
        post(maps, Value::Null).bytes(PROTOBUF, b"k9s".to_vec()).brief(),
        options(&[field(2, &text(1, "other"))]),
        options(&[text(4, "Nothing")]),
        options(&[text(4, "Background")]),
        get(&one),
    ];
    agree("differential-protobuf", steps).await;
}
