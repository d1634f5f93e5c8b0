//! A write may have been carried out although its answer is lost: it is not repeated before the
//! cache shows its effect.

use pilotlight::testing::{Action, Rule, Verb};

use crate::support::{Supervised, eventually};

#[tokio::test]
async fn child_whose_creation_was_not_answered_is_not_created_again() {
    let supervised = Supervised::start("unknown-outcome").await;
    let harness = &supervised.harness;
    let crd = harness.widgets();
    supervised.declare("a", supervised.spec(&crd)).await;
    supervised.install(&crd).await;
    harness.running(&supervised.runnable("a"), 1).await;
    // The create is carried out, but its answer breaks off; and the watch of the children is held.
    let cut = Rule::new(Action::Cut { after_bytes: 10 }).verb(Verb::Create);
    let cut = harness.faults.add(cut.resource("", "configmaps").times(1));
    let held = Rule::new(Action::Hang).verb(Verb::Watch).resource("", "configmaps");
    let held = harness.faults.add(held);
    harness.faults.cut_open(|info| info.resource == "configmaps");
    harness.faults.wait_until(|faults| faults.hits(held) > 0).await;
    let position = harness.position();

    harness.create(&crd, "gear", 1).await;
    supervised.child("gear", 1).await;

    // The controller reads the child repeatedly and does nothing else.
    let looks = || {
        let seen = harness.faults.seen();
        seen.iter().filter(|it| it.query.contains("metadata.name%3Dgear")).count()
    };
    eventually("the child is read from the server", || {
        if looks() >= 8 { Ok(()) } else { Err(format!("{} looks", looks())) }
    })
    .await;
    assert_eq!((harness.faults.hits(cut), supervised.hook.count("gear")), (1, 1));
    harness.faults.remove(held);
    supervised.hook.asked_again("gear", 1).await;
    let call = supervised.hook.calls().into_iter().rfind(|call| call.parent() == "gear").unwrap();
    let children = &call.body["children"]["ConfigMap.v1"];
    assert!(children.get("gear").is_some(), "the hook sees the child: {children}");
    let mut sent = harness.events(position).await;
    sent.retain(|event| event.is_about("", "configmaps"));
    let created = sent.iter().filter(|event| event.verb == "create").count();
    assert_eq!(created, 1, "created once");
    supervised.end().await;
}
