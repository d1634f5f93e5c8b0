//! A write may have been carried out though its answer is lost: it is not sent again before the
//! cache shows what it did.

use pilotlight::testing::{Action, Rule, Verb};

use crate::rig::{Stage, eventually};

#[tokio::test]
async fn child_whose_creation_was_not_answered_is_not_created_again() {
    let stage = Stage::start("unknown-outcome").await;
    let rig = &stage.rig;
    let crd = rig.widgets();
    stage.declare("a", stage.spec(&crd)).await;
    stage.install(&crd).await;
    rig.running(&stage.runnable("a"), 1).await;
    // Carried out, but the answer breaks off; and the cache of the children hears of nothing.
    let cut = Rule::new(Action::Cut { after_bytes: 10 }).verb(Verb::Create);
    let cut = rig.faults.add(cut.resource("", "configmaps").times(1));
    let deaf = Rule::new(Action::Hang).verb(Verb::Watch).resource("", "configmaps");
    let deaf = rig.faults.add(deaf);
    rig.faults.cut_open(|info| info.resource == "configmaps");
    rig.faults.wait_until(|faults| faults.hits(deaf) > 0).await;
    let mark = rig.mark();

    rig.create(&crd, "gear", 1).await;
    stage.child("gear", 1).await;

    // It looks again and again, and does nothing else.
    let looks = || {
        let seen = rig.faults.seen();
        seen.iter().filter(|it| it.query.contains("metadata.name%3Dgear")).count()
    };
    eventually("the server is asked for the child", || {
        if looks() >= 8 { Ok(()) } else { Err(format!("{} looks", looks())) }
    })
    .await;
    assert_eq!((rig.faults.hits(cut), stage.hook.count("gear")), (1, 1));
    rig.faults.remove(deaf);
    stage.hook.asked_again("gear", 1).await;
    let call = stage.hook.calls().into_iter().rfind(|call| call.parent() == "gear").unwrap();
    let children = &call.body["children"]["ConfigMap.v1"];
    assert!(children.get("gear").is_some(), "the hook sees the child: {children}");
    let mut sent = rig.events(mark).await;
    sent.retain(|event| event.is_about("", "configmaps"));
    let created = sent.iter().filter(|event| event.verb == "create").count();
    assert_eq!(created, 1, "created once");
    stage.end().await;
}
