//! Resyncs: the time that a response requests, and the period of all parents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use pilotlight::{
    meta::HookError,
    testing::{Action, Reply, Rule, Verb},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::{SimulatedHarness, redeclare, sized};

/// Number of calls within a second around this time.
fn calls_at(harness: &SimulatedHarness, at: Instant) -> usize {
    let near = at - Duration::from_millis(100)..at + Duration::from_secs(1);
    harness.hook.calls().iter().filter(|(called, _)| near.contains(called)).count()
}

#[tokio::test(start_paused = true)]
async fn resync_that_a_response_requests_survives_a_failed_sync_and_an_event() {
    let harness = SimulatedHarness::start().await;
    let failures = Arc::new(Mutex::new(3));
    harness.hook.answers(move |request: Value| {
        let mut answer = sized(&request);
        let is_first = request["parent"]["spec"]["text"] == "one";
        let mut left = failures.lock().unwrap();
        let fails = !is_first && *left > 0;
        *left -= i32::from(fails);
        if is_first {
            answer["resyncAfterSeconds"] = json!(100);
        }
        let failed = HookError::Status { code: 400, body: String::new(), proxy: None };
        std::future::ready(if fails { Err(failed) } else { Ok(answer) })
    });
    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "one").await;
    sleep(Duration::from_secs(1)).await;
    let due = harness.hook.calls().last().unwrap().0 + Duration::from_secs(100);

    sleep(Duration::from_secs(10)).await;
    harness.parent("p", 1, "two");
    harness.settled(&["p"], 1, "two").await;
    sleep(Duration::from_secs(300)).await;

    assert_eq!(calls_at(&harness, due), 1, "the timer of the first answer fires");
    harness.end().await;
}

/// Lets the hook request a resync after 20 s in each response.
fn resync_every_20_seconds(harness: &SimulatedHarness) {
    harness.hook.answers(async |request: Value| {
        let mut answer = sized(&request);
        answer["resyncAfterSeconds"] = json!(20);
        Ok(answer)
    });
}

#[track_caller]
fn assert_called_every_20_seconds(harness: &SimulatedHarness) {
    let calls = harness.hook.calls();
    let late = calls.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap();
    assert!(late <= Duration::from_secs(21), "{late:?} between two calls");
}

#[tokio::test(start_paused = true)]
async fn resync_that_a_response_requests_survives_failures_of_a_child() {
    let harness = SimulatedHarness::start().await;
    resync_every_20_seconds(&harness);
    let refusal = Action::Reply(Reply::status(403, "Forbidden", "no"));
    harness.faults.add(Rule::new(refusal).verb(Verb::Create).resource("", "configmaps"));

    harness.parent("p", 1, "one");
    sleep(Duration::from_secs(7200)).await;

    assert_called_every_20_seconds(&harness);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn resync_that_a_response_requests_survives_the_refusal_of_a_child() {
    let harness = SimulatedHarness::start().await;
    harness.hook.answers(async |request: Value| {
        let mut answer = sized(&request);
        answer["resyncAfterSeconds"] = json!(20);
        answer["children"][0]["metadata"]["namespace"] = json!("other");
        Ok(answer)
    });

    harness.parent("p", 1, "one");
    sleep(Duration::from_secs(7200)).await;

    assert_eq!(harness.children(), BTreeMap::new(), "the response is refused");
    assert_called_every_20_seconds(&harness);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn resync_that_a_response_requests_survives_failures_of_the_status() {
    let harness = SimulatedHarness::start().await;
    resync_every_20_seconds(&harness);
    let refusal = Action::Reply(Reply::status(403, "Forbidden", "no"));
    let status = Rule::new(refusal).verb(Verb::Update).resource("harness.test", "widgets");
    let rule = harness.faults.add(status.subresource("status"));

    harness.parent("p", 1, "one");
    sleep(Duration::from_secs(7200)).await;

    assert!(harness.faults.hits(rule) > 10, "the status is refused again and again");
    assert_called_every_20_seconds(&harness);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_are_resynced_once_in_each_period_and_spread_over_it() {
    const PERIOD: u64 = 600;
    let harness = SimulatedHarness::start().await;
    redeclare(&harness, |spec| spec["resyncPeriodSeconds"] = json!(PERIOD)).await;
    let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    for name in &names {
        harness.parent(name, 1, "one");
    }
    harness.settled(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1, "one").await;
    sleep(Duration::from_secs(1)).await;
    let begin = Instant::now();

    sleep(Duration::from_secs(2 * PERIOD)).await;

    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut minutes = BTreeSet::new();
    for (at, name) in harness.hook.calls() {
        if at >= begin {
            *counts.entry(name).or_default() += 1;
            minutes.insert((at - begin).as_secs() % PERIOD / 60);
        }
    }
    assert!(counts.len() == names.len() && counts.values().all(|count| *count == 2), "{counts:?}");
    assert!(minutes.len() >= 5, "in a wave: {minutes:?}");
    harness.end().await;
}
