//! What is told of a declared controller: while its hook is busy, while the server refuses what
//! its hook wants, while nobody takes its Events.

use std::time::Duration;

use pilotlight::testing::{Action, Rule, Verb};
use serde_json::json;
use tokio::time::Instant;

use crate::rig::{Answer, Stage, condition, config_map, status_of};

#[tokio::test]
async fn a_hook_that_is_always_busy_is_told_of_in_the_status() {
    let stage = Stage::start("always-busy").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|_| Answer::Status(429, vec![("Retry-After", "1".to_owned())]));
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;

    rig.create(&crd, "gear", 1).await;

    let busy = |status: &_| condition(status, "HooksHealthy").reason == "HookBusy";
    let status = stage.status("a", "says that the hook is busy", busy).await;
    assert_eq!(status.state.as_deref(), Some("Running"));
    assert!(condition(&status, "HooksHealthy").message.contains("gear"), "{status:#?}");
    stage.hook.answers(|request| Answer::Json(json!({ "status": status_of(request) })));
    let answers = |status: &_| condition(status, "HooksHealthy").status == "True";
    stage.status("a", "says that the hook answers", answers).await;
    stage.end().await;
}

#[tokio::test]
async fn a_child_that_the_server_refuses_is_seen_in_the_status_of_its_controller() {
    let stage = Stage::start("refused-status").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.hook.answers(|request| {
        let mut child = config_map(request);
        child["metadata"]["name"] = json!("No_Name");
        Answer::Json(json!({ "status": status_of(request), "children": [child] }))
    });
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;

    rig.create(&crd, "gear", 1).await;

    stage.event("gear", "SyncError", "No_Name").await;
    let told = |status: &_| {
        let running = condition(status, "Running");
        running.status == "True" && running.message.contains("No_Name")
    };
    stage.status("a", "tells the last error", told).await;
    stage.end().await;
}

#[tokio::test]
async fn events_that_nobody_takes_hold_up_no_declared_controller() {
    let stage = Stage::start("events-hang").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.install(&crd).await;
    rig.faults.add(Rule::new(Action::Hang).verb(Verb::Create).resource("", "events"));
    let names: Vec<_> = (0..40).map(|number| format!("c{number}")).collect();
    let begin = Instant::now();
    for name in &names {
        stage.declare(name, stage.spec(&crd)).await;
    }

    for name in &names {
        rig.running(&stage.runnable(name), 1).await;
    }

    let took = begin.elapsed();
    // A request that is never answered is given up after thirty seconds.
    assert!(took < Duration::from_secs(25), "{took:?}");
    stage.end().await;
}
