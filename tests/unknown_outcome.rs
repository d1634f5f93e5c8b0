//! A write is not repeated before the cache shows its effect, whether its response arrives or is
//! lost.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pilotlight::testing::{Action, Rule, Verb};
use tokio::time::sleep;

use crate::support::{SimulatedHarness, Supervised, sized};

#[tokio::test]
async fn child_whose_creation_was_not_answered_is_not_created_again() {
    let supervised = Supervised::start("unknown-outcome").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.running(&supervised.runnable("a"), 1).await;
    // The create is carried out, but its response breaks off; and the watch of the children is
    // held.
    let cut = Rule::new(Action::Cut { after_bytes: 10 }).verb(Verb::Create);
    let cut = harness.faults.add(cut.resource("", "configmaps").times(1));
    let held = Rule::new(Action::Hang).verb(Verb::Watch).resource("", "configmaps");
    let held = harness.faults.add(held);
    harness.faults.cut_open(|info| info.resource == "configmaps");
    harness.faults.wait_until(|faults| faults.hits(held) > 0).await;
    let position = harness.position();

    harness.create(&crd, "gear", 1).await;
    supervised.child("gear", 1).await;

    // The controller reads the child, and waits while the watch is down.
    harness
        .faults
        .wait_until(|faults| {
            faults.seen().iter().any(|it| it.query.contains("metadata.name%3Dgear"))
        })
        .await;
    assert_eq!(harness.faults.hits(cut), 1);
    harness.faults.remove(held);
    harness.faults.cut_open(|info| info.resource == "configmaps");
    supervised.hook.called_again("gear", 1).await;
    let call = supervised.hook.calls().into_iter().rfind(|call| call.parent() == "gear").unwrap();
    let children = &call.body["children"]["ConfigMap.v1"];
    assert!(children.get("gear").is_some(), "the hook sees the child: {children}");
    let mut sent = harness.events(position).await;
    sent.retain(|event| event.is_about("", "configmaps"));
    let created = sent.iter().filter(|event| event.verb == "create").count();
    assert_eq!(created, 1, "created once");
    supervised.end().await;
}

#[tokio::test(start_paused = true)]
async fn hook_is_not_called_before_a_watch_is_back_that_shows_its_last_response() {
    let simulated = SimulatedHarness::start().await;
    // Children in each request.
    let calls = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&calls);
    simulated.hook.answers(move |request| {
        let children = request["children"]["ConfigMap.v1"].as_object().unwrap().len();
        log.lock().unwrap().push(children);
        std::future::ready(Ok(sized(&request)))
    });
    let silence = Rule::new(Action::Stall { after_bytes: 0 }).verb(Verb::Watch);
    let silence = simulated.faults.add(silence.resource("", "configmaps"));
    simulated.parent("p", 3, "x");
    simulated.settled(&["p"], 3, "x").await;

    simulated.parent("p", 3, "y");
    simulated.parent("p", 2, "y");
    sleep(Duration::from_secs(600)).await;

    assert_eq!(*calls.lock().unwrap(), [0]);
    simulated.faults.remove(silence);
    simulated.faults.cut_open(|info| info.resource == "configmaps");
    sleep(Duration::from_secs(30)).await;
    simulated.settled(&["p"], 2, "y").await;
    assert_eq!(calls.lock().unwrap()[1], 3);
    let created = simulated.faults.seen().into_iter().filter(|it| it.verb == Verb::Create);
    let created = created.filter(|it| it.resource == "configmaps").count();
    assert_eq!(created, 3, "none is created twice");
    simulated.end().await;
}
