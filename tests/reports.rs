//! Reports about a declared controller whose hook is slow, whose children the server refuses, or
//! whose Events the server does not accept.

use std::time::Duration;

use pilotlight::testing::{Action, Rule, Verb};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{Answer, Supervised, condition, config_map, status_of};

#[tokio::test]
async fn always_busy_hook_is_reported_in_the_status() {
    let supervised = Supervised::start("always-busy").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|_| Answer::Status(429, vec![("Retry-After", "1".to_owned())]));
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;

    harness.create(&crd, "gear", 1).await;

    let busy = |status: &_| condition(status, "HooksHealthy").reason == "HookBusy";
    let status = supervised.status("a", "reports the busy hook", busy).await;
    assert_eq!(status.state.as_deref(), Some("Running"));
    assert!(condition(&status, "HooksHealthy").message.contains("gear"), "{status:#?}");
    supervised.hook.answers(|request| Answer::Json(json!({ "status": status_of(request) })));
    let answers = |status: &_| condition(status, "HooksHealthy").status == "True";
    supervised.status("a", "reports the healthy hook", answers).await;
    supervised.end().await;
}

#[tokio::test]
async fn refused_child_is_reported_in_the_status_of_its_controller() {
    let supervised = Supervised::start("refused-status").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.hook.answers(|request| {
        let mut child = config_map(request);
        child["metadata"]["name"] = json!("No_Name");
        Answer::Json(json!({ "status": status_of(request), "children": [child] }))
    });
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;

    harness.create(&crd, "gear", 1).await;

    supervised.event("gear", "SyncError", "No_Name").await;
    let is_reported = |status: &_| {
        let running = condition(status, "Running");
        running.status == "True" && running.message.contains("No_Name")
    };
    supervised.status("a", "reports the last error", is_reported).await;
    supervised.end().await;
}

#[tokio::test]
async fn refused_events_delay_no_declared_controller() {
    let supervised = Supervised::start("events-hang").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.install(&crd).await;
    harness.faults.add(Rule::new(Action::Hang).verb(Verb::Create).resource("", "events"));
    let names: Vec<_> = (0..40).map(|number| format!("c{number}")).collect();
    let begin = Instant::now();
    for name in &names {
        supervised.declare(name, supervised.spec(&crd)).await;
    }

    for name in &names {
        harness.running(&supervised.runnable(name), 1).await;
    }

    let took = begin.elapsed();
    // A request without a response is cancelled only after thirty seconds.
    assert!(took < Duration::from_secs(25), "{took:?}");
    supervised.end().await;
}
