//! A sync that finds nothing changed does no work after the response of the hook.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pilotlight::{meta::HookError, testing::Verb};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::support::{SimulatedHarness, metrics_text, sized};

/// Period of the syncs that each response requests, in seconds.
const PERIOD: u64 = 60;

/// Number of syncs that ended after the response, of all controllers.
fn unchanged(metrics: &Registry) -> u64 {
    let text = metrics_text(metrics);
    let series =
        text.lines().filter(|line| line.starts_with("pilotlight_composite_unchanged_syncs_total{"));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Answer with a request for the next sync.
fn periodic(request: &Value) -> Value {
    let mut answer = sized(request);
    answer["resyncAfterSeconds"] = json!(PERIOD);
    answer
}

/// Waits until `count` further syncs found nothing changed.
async fn further(harness: &SimulatedHarness, count: u64) {
    let enough = unchanged(&harness.metrics) + count;
    let counted = async {
        while unchanged(&harness.metrics) < enough {
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(Duration::from_secs(3600), counted).await.expect("a sync that finds nothing changed");
}

/// Asserts that the next syncs find nothing changed, and waits for them.
async fn quiet(harness: &SimulatedHarness) {
    let calls = harness.hook.calls().len();
    let before = unchanged(&harness.metrics);
    further(harness, 3).await;
    let (calls, unchanged) =
        (harness.hook.calls().len() - calls, unchanged(&harness.metrics) - before);
    // The first call may be the one that makes the record.
    assert!(calls as u64 <= unchanged + 2, "{calls} calls, {unchanged} of them unchanged");
}

#[tokio::test(start_paused = true)]
async fn sync_with_an_unchanged_response_does_nothing_and_is_repeated_as_the_response_requests() {
    let harness = SimulatedHarness::start().await;
    harness.hook.answers(async |request| Ok(periodic(&request)));
    harness.parent("p", 2, "one");
    harness.settled(&["p"], 2, "one").await;
    further(&harness, 1).await;
    let (calls, counted) = (harness.hook.calls().len(), unchanged(&harness.metrics));
    let requests = harness.requests().len();

    further(&harness, 5).await;

    let later = harness.hook.calls().split_off(calls);
    assert_eq!(later.len() as u64, unchanged(&harness.metrics) - counted, "each sync is unchanged");
    for pair in later.windows(2) {
        assert_eq!((pair[1].0 - pair[0].0).as_secs(), PERIOD);
    }
    let written = harness.requests().split_off(requests);
    let writes = written.iter().filter(|(_, info)| {
        matches!(&*info.resource, "configmaps" | "widgets") && info.verb != Verb::Watch
    });
    assert_eq!(writes.count(), 0, "{written:#?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_change_runs_the_whole_sync() {
    let harness = SimulatedHarness::start().await;
    harness.hook.answers(async |request| Ok(periodic(&request)));
    harness.parent("p", 2, "one");
    harness.settled(&["p"], 2, "one").await;
    quiet(&harness).await;

    let mut child = harness.server.get("v1", "ConfigMap", "default", "p-0").unwrap();
    child["data"]["text"] = json!("foreign");
    harness.server.apply(child).unwrap();
    harness.settled(&["p"], 2, "one").await;
    quiet(&harness).await;

    harness.server.remove("v1", "ConfigMap", "default", "p-1").unwrap();
    harness.settled(&["p"], 2, "one").await;
    quiet(&harness).await;

    let widget = json!({
        "apiVersion": "harness.test/v1",
        "kind": "Widget",
        "metadata": { "name": "p", "namespace": "default" },
        "status": { "size": 7, "observedGeneration": 7 },
    });
    harness.server.merge(&widget).unwrap();
    harness.settled(&["p"], 2, "one").await;
    quiet(&harness).await;

    // The parent is the same, and the response another.
    harness.hook.answers(async |mut request: Value| {
        request["parent"]["spec"]["text"] = json!("two");
        Ok(periodic(&request))
    });
    harness.settled(&["p"], 2, "two").await;
    quiet(&harness).await;

    harness.parent("p", 3, "one");
    harness.settled(&["p"], 3, "two").await;
    quiet(&harness).await;

    let uid = harness.list("harness.test/v1", "Widget")[0]["metadata"]["uid"].clone();
    let orphan = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "orphan", "namespace": "default", "labels": { "controller-uid": uid },
        },
    });
    harness.server.apply(orphan).unwrap();
    let released = |harness: &SimulatedHarness| !harness.children().contains_key("orphan");
    harness.until("the orphan is adopted and, as it is not desired, deleted", released).await;
    quiet(&harness).await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn sync_after_a_failed_one_is_whole() {
    let harness = SimulatedHarness::start().await;
    // Number of unchanged syncs before each call.
    let before: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (noted, metrics) = (Arc::clone(&before), Arc::clone(&harness.metrics));
    harness.hook.answers(move |request| {
        let mut noted = noted.lock().unwrap();
        noted.push(unchanged(&metrics));
        let failed = noted.len() == 10;
        std::future::ready(if failed {
            Err(HookError::Status { code: 400, body: String::new(), proxy: None })
        } else {
            Ok(periodic(&request))
        })
    });
    harness.parent("p", 2, "one");
    further(&harness, 12).await;

    let before = before.lock().unwrap().clone();
    let is_unchanged: Vec<bool> = before.windows(2).map(|pair| pair[1] > pair[0]).collect();
    assert_eq!(is_unchanged[7..13], [true, true, false, false, true, true], "{is_unchanged:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn write_that_was_held_back_is_made_by_a_later_sync() {
    let harness = SimulatedHarness::start().await;
    let calls = Arc::<Mutex<usize>>::default();
    harness.hook.answers(move |mut request: Value| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        // The limit admits 400 writes at once.
        let text = if *calls <= 450 { calls.to_string() } else { "last".to_owned() };
        request["parent"]["spec"]["text"] = json!(text);
        std::future::ready(Ok(periodic(&request)))
    });
    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "last").await;
    assert!(!harness.events("Flapping").is_empty(), "a write was held back");
    quiet(&harness).await;
    harness.end().await;
}
