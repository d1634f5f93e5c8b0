//! Writes that an admission webhook denies.

use super::{
    responding_hook::{faulty_with, pass},
    *,
};
use crate::testing::{Action, Reply, Rule, Verb};

/// Response with the ConfigMaps that the parent names.
fn named(_kind: HookKind, request: &Value) -> Value {
    let names = request["parent"]["spec"]["names"].as_array().cloned().unwrap_or_default();
    let child = |name: &Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
        })
    };
    json!({"children": names.iter().map(child).collect::<Vec<_>>()})
}

fn parent(names: &[&str]) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
        "spec": {"names": names},
    })
}

fn events_with(harness: &Harness, part: &str) -> Vec<Value> {
    let events = harness.server.list("v1", "Event").unwrap();
    let has = |event: &Value| event["message"].as_str().is_some_and(|it| it.contains(part));
    events.into_iter().filter(has).collect()
}

#[tokio::test(start_paused = true)]
async fn denied_deletion_is_reported_once_and_repeated_until_it_is_allowed() {
    for (code, reason) in [
        (409, "Conflict"),
        (409, "AlreadyExists"),
        (404, "NotFound"),
        (403, "Forbidden"),
        (400, ""),
    ] {
        let (harness, faults) = faulty_with(named).await;
        let mut spec = good();
        spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
        harness.declare("a", spec);
        harness.running("a", 1).await;
        harness.server.apply(parent(&["kept", "left"])).unwrap();
        pass().await;
        let text = "admission webhook \"guard.x.y\" denied the request: it is in use";
        let denial = Action::Reply(Reply::status(code, reason, text));
        let rule = faults.add(Rule::new(denial).verb(Verb::Delete).resource("", "configmaps"));

        harness.server.apply(parent(&["kept"])).unwrap();
        sleep(Duration::from_secs(30)).await;

        assert!(faults.hits(rule) > 2, "{code} {reason}: it is repeated");
        let told = events_with(&harness, "it is in use");
        assert_eq!(told.len(), 1, "{code} {reason}: {told:#?}");
        assert_eq!(told[0]["type"], "Warning", "{code} {reason}");
        assert_eq!(told[0]["reason"], "SyncError", "{code} {reason}");
        let text = told[0]["message"].as_str().unwrap();
        assert!(text.contains("deleting ConfigMap default/left"), "{text}");
        faults.remove(rule);
        sleep(Duration::from_secs(1000)).await;
        assert!(
            harness.server.get("v1", "ConfigMap", "default", "left").is_err(),
            "{code} {reason}"
        );
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_of_a_child_that_was_replaced_meanwhile_is_no_failure() {
    let (harness, faults) = faulty_with(named).await;
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    harness.server.apply(parent(&["left"])).unwrap();
    pass().await;
    let text = "Operation cannot be fulfilled on configmaps \"left\": Precondition failed: UID in \
                precondition: a, UID in object meta: b";
    let conflict = Action::Reply(Reply::status(409, "Conflict", text));
    let rule = faults.add(Rule::new(conflict).verb(Verb::Delete).resource("", "configmaps"));

    harness.server.apply(parent(&[])).unwrap();
    sleep(Duration::from_secs(30)).await;

    // The write of the status causes another sync.
    assert!(faults.hits(rule) <= 2, "the object of this uid is gone");
    assert!(events_with(&harness, "recondition").is_empty());
    harness.end().await;
}
