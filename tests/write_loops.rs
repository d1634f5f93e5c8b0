//! Write limit: loops of a hook are limited, and work is not.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pilotlight::testing::{RequestInfo, Verb, simulated::AccessRule};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::{SimulatedHarness, redeclare, sized};

#[tokio::test(start_paused = true)]
async fn counter_in_a_status_is_written_by_each_resync() {
    let harness = SimulatedHarness::start().await;
    redeclare(&harness, |spec| {
        spec["resyncPeriodSeconds"] = json!(1);
        spec["parentResource"]["ignoreStatusChanges"] = json!(true);
    })
    .await;
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    harness.hook.answers(move |request: Value| {
        let mut answer = sized(&request);
        answer["status"]["count"] = json!(counted.fetch_add(1, Ordering::Relaxed));
        std::future::ready(Ok(answer))
    });
    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "one").await;

    for _ in 0..120 {
        sleep(Duration::from_secs(1)).await;
        let written = harness.list("harness.test/v1", "Widget")[0]["status"]["count"].as_u64();
        let called = count.load(Ordering::Relaxed) as u64;
        assert!(called - written.unwrap() <= 2, "{written:?} of {called} is written");
    }

    assert!(count.load(Ordering::Relaxed) >= 120);
    assert_eq!(harness.events("Flapping"), [""; 0]);
    harness.end().await;
}

/// Answer with the number of ready children, in the status and in a child of its own.
fn rollout(request: &Value) -> Value {
    let mut answer = sized(request);
    let children = request["children"]["ConfigMap.v1"].as_object().unwrap();
    let ready = children.values().filter(|child| child["data"]["ready"] == "yes").count();
    answer["status"]["ready"] = json!(ready);
    let endpoints = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "endpoints" },
        "data": { "text": ready.to_string() },
    });
    answer["children"].as_array_mut().unwrap().push(endpoints);
    answer
}

#[tokio::test(start_paused = true)]
async fn status_and_endpoints_follow_while_a_hundred_children_become_ready() {
    let harness = SimulatedHarness::start().await;
    harness.hook.answers(async |request| Ok(rollout(&request)));
    harness.parent("p", 100, "one");
    harness.settled(&["p"], 100, "one").await;
    sleep(Duration::from_secs(1)).await;

    for number in 0..100 {
        let ready = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "namespace": "default", "name": format!("p-{number}") },
            "data": { "ready": "yes" },
        });
        harness.server.merge(&ready).unwrap();
        sleep(Duration::from_millis(100)).await;
        let ready = harness.list("harness.test/v1", "Widget")[0]["status"]["ready"].as_u64();
        let lag = number + 1 - ready.unwrap();
        assert!(lag <= 2, "the status is {lag} behind at {number}");
    }

    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.children()["endpoints"], "100");
    assert_eq!(harness.events("Flapping"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_that_differs_in_each_answer_is_limited() {
    limits(|answer, count| answer["children"][0]["data"]["text"] = json!(count.to_string())).await;
}

#[tokio::test(start_paused = true)]
async fn status_that_differs_in_each_answer_is_limited() {
    limits(|answer, count| answer["status"]["count"] = json!(count)).await;
}

async fn limits(differ: impl Fn(&mut Value, usize) + Send + Sync + 'static) {
    let harness = SimulatedHarness::start().await;
    let count = AtomicUsize::default();
    harness.hook.answers(move |request: Value| {
        let mut answer = sized(&request);
        differ(&mut answer, count.fetch_add(1, Ordering::Relaxed));
        std::future::ready(Ok(answer))
    });

    harness.parent("p", 1, "one");
    sleep(Duration::from_secs(60)).await;

    // A burst of 400 writes, then one each second. The other object is written once.
    let requests = harness.requests();
    let is_write = |info: &RequestInfo| {
        info.verb == Verb::Update && ["configmaps", "widgets"].contains(&&*info.resource)
    };
    let written = requests.iter().filter(|(_, info)| is_write(info)).count();
    assert!((400..=462).contains(&written), "{written} writes in a minute");
    assert_eq!(harness.events("Flapping").len(), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failures_that_deletions_of_a_child_repeat_do_not_lengthen_the_back_off() {
    let harness = SimulatedHarness::start().await;
    let status = ["widgets/status.harness.test"];
    harness.server.set_rbac([AccessRule::deny().users(["pilotlight"]).resources(status)]);
    harness.parent("p", 1, "one");

    // A garbage collector with an outdated view of the owner does this.
    for number in 0..20 {
        harness.until(&format!("create {number}"), |it| it.children().contains_key("p-0")).await;
        harness.server.remove("v1", "ConfigMap", "default", "p-0").unwrap();
    }
    harness.server.set_rbac([]);

    let took = harness.settled(&["p"], 1, "one").await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_is_replaced_at_once_after_each_of_many_edits_of_its_parent() {
    let harness = SimulatedHarness::start().await;
    redeclare(&harness, |spec| {
        spec["childResources"][0]["updateStrategy"]["method"] = json!("Recreate");
    })
    .await;
    let mut uids = BTreeSet::new();

    for number in 0..60 {
        let text = number.to_string();
        harness.parent("p", 1, &text);
        let took = harness.settled(&["p"], 1, &text).await;
        assert!(took < Duration::from_secs(1), "edit {number}: {took:?}");
        let children = harness.list("v1", "ConfigMap");
        let child = children.iter().find(|child| child["metadata"]["name"] == "p-0").unwrap();
        uids.insert(child["metadata"]["uid"].as_str().unwrap().to_owned());
        sleep(Duration::from_secs(1)).await;
    }

    assert_eq!(uids.len(), 60, "each edit replaces the child");
    assert_eq!(harness.events("Flapping"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_two_parents_want_is_reported_once_to_each() {
    let harness = SimulatedHarness::start().await;
    harness.hook.answers(async |request: Value| {
        let mut answer = sized(&request);
        answer["children"][0]["metadata"]["name"] = json!("shared");
        Ok(answer)
    });
    harness.parent("a", 1, "one");
    harness.until("the child of a", |harness| harness.children().contains_key("shared")).await;
    harness.parent("b", 1, "one");
    sleep(Duration::from_secs(3600)).await;

    let tries = harness.sent(Verb::Create).len();
    assert!((2..=16).contains(&tries), "{tries} tries in an hour");
    let all = harness.list("v1", "Event");
    let messages = |name: &str| {
        let about = all.iter().filter(|event| {
            event["involvedObject"]["kind"] == "Widget" && event["involvedObject"]["name"] == name
        });
        about.map(|event| event["message"].as_str().unwrap()).collect::<Vec<_>>()
    };
    for (name, other) in [("a", "Widget b"), ("b", "Widget a")] {
        let messages = messages(name);
        assert_eq!(messages.len(), 1, "{all:#?}");
        assert!(
            messages[0].contains("ConfigMap default/shared") && messages[0].contains(other),
            "{messages:?}"
        );
    }
    let count = |event: &Value| event["count"].as_u64().unwrap_or(1);
    assert!(all.iter().all(|event| count(event) == 1), "{all:#?}");

    harness.server.remove("harness.test/v1", "Widget", "default", "a").unwrap();
    harness.server.remove("v1", "ConfigMap", "default", "shared").unwrap();
    harness.until("the child of b", |harness| harness.children().contains_key("shared")).await;
    harness.end().await;
}
