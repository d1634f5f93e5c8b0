//! Children without a name: they have the beginning of one.

use super::{
    responding_hook::{faulty_with, harness, pass},
    *,
};
use crate::{
    meta::definition::UpdateMethod,
    testing::{Action, Rule, Verb},
};

fn unnamed() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generateName": "run-", "namespace": "default"},
    })
}

/// Response with the observed children, or with a child without a name while there is none.
fn one(_kind: HookKind, request: &Value) -> Value {
    let observed = request["children"]["ConfigMap.v1"].as_object().unwrap();
    let mut children: Vec<_> = observed.values().cloned().collect();
    if children.is_empty() {
        children.push(unnamed());
    }
    json!({"children": children, "status": {"count": observed.len()}})
}

async fn declare(harness: &Harness, method: UpdateMethod) {
    let mut spec = good();
    spec["childResources"] = json!([{
        "apiVersion": "v1", "resource": "configmaps",
        "updateStrategy": {"method": format!("{method:?}")},
    }]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    let parent =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"}});
    harness.server.apply(parent).unwrap();
}

fn names(harness: &Harness) -> Vec<String> {
    let found = harness.server.list("v1", "ConfigMap").unwrap();
    let name = |found: &Value| found["metadata"]["name"].as_str().unwrap().to_owned();
    found.iter().map(name).filter(|name| name.starts_with("run-")).collect()
}

fn creates(harness: &Harness) -> usize {
    let requests = harness.server.requests();
    let is_create = |info: &crate::testing::RequestInfo| {
        info.verb == Verb::Create && info.resource == "configmaps"
    };
    requests.iter().filter(|request| is_create(&request.info)).count()
}

#[tokio::test(start_paused = true)]
async fn child_without_a_name_is_created_once_and_stays() {
    for method in [UpdateMethod::OnDelete, UpdateMethod::InPlace, UpdateMethod::Recreate] {
        let (harness, calls) = harness(one).await;
        declare(&harness, method).await;
        pass().await;

        let first = names(&harness);
        assert_eq!(first.len(), 1, "{method:?}: {first:?}");
        assert_eq!(first[0].len(), "run-".len() + 5, "{first:?}");
        let stored = harness.server.get("v1", "ConfigMap", "default", &first[0]).unwrap();
        assert_eq!(stored["metadata"]["generateName"], "run-");
        let called = calls.lock().unwrap().len();
        let edit = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
            "spec": {"n": 1},
        });
        harness.server.merge(&edit).unwrap();
        pass().await;

        assert!(calls.lock().unwrap().len() > called);
        assert_eq!((names(&harness), creates(&harness)), (first, 1), "{method:?}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_of_a_create_makes_no_second_child() {
    for action in [Action::Lose, Action::Withhold] {
        let (harness, faults) = faulty_with(one).await;
        let rule = Rule::new(action).verb(Verb::Create).resource("", "configmaps").times(1);
        let rule = faults.add(rule);
        declare(&harness, UpdateMethod::InPlace).await;
        sleep(Duration::from_secs(120)).await;

        assert_eq!(faults.hits(rule), 1);
        assert_eq!(names(&harness).len(), 1);
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn child_that_is_always_returned_without_a_name_is_limited() {
    let (harness, _) = harness(|_, request| {
        json!({"children": [unnamed()], "status": {"at": request["children"]["ConfigMap.v1"]}})
    })
    .await;
    declare(&harness, UpdateMethod::InPlace).await;
    sleep(Duration::from_secs(60)).await;

    let created = creates(&harness);
    assert!((2..=462).contains(&created), "{created}");
    assert!(names(&harness).len() < 3, "the others are deleted: {:?}", names(&harness));
    let events = harness.server.list("v1", "Event").unwrap();
    let flapping = events.iter().filter(|event| event["reason"] == "Flapping");
    let flapping: Vec<_> = flapping.map(|it| it["message"].as_str().unwrap()).collect();
    assert!(flapping.iter().any(|text| text.contains("ConfigMap default/run-*")), "{flapping:?}");
    harness.end().await;
}
