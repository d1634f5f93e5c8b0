//! What a hook may do to those who ask it.

use std::time::Duration;

use pilotlight::meta::HookError;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::rig::{Answer, Bench, Stage, config_map, one_config_map, sized, until};

/// Asked about at the same time, unless said otherwise.
const WORKERS: usize = 5;

#[tokio::test(start_paused = true)]
async fn a_thousand_parents_come_back_after_an_outage_without_a_stampede() {
    let bench = Bench::start().await;
    let (broken, outage) = watch::channel(true);
    bench.hook.answers(move |request| {
        let outage = outage.clone();
        async move {
            sleep(Duration::from_millis(5)).await;
            match *outage.borrow() {
                true => Err(HookError::Status { code: 500, body: "down".to_owned() }),
                false => Ok(sized(&request)),
            }
        }
    });
    for number in 0..1000 {
        bench.parent(&format!("p{number}"), 1, "one");
    }

    sleep(Duration::from_secs(600)).await;
    let asked = bench.hook.calls().len();
    broken.send_replace(false);
    let recovered = Instant::now();
    while bench.children().len() < 1000 {
        sleep(Duration::from_secs(10)).await;
        assert!(recovered.elapsed() < Duration::from_secs(700), "the back-off and no longer");
    }

    assert!(asked < 1000 * 20, "5 ms doubled: {asked}");
    assert_eq!(bench.hook.most(), WORKERS, "no more are asked about at once");
    assert!(!bench.hook.overlapped());
    let after = bench.hook.calls().iter().filter(|(at, _)| *at >= recovered).count();
    assert!(after < 1000 * 4, "its children and its status are a reason to ask again: {after}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_parent_is_asked_about_twice_at_once_however_often_it_changes() {
    let bench = Bench::start().await;
    bench.hook.answers(|request| async move {
        sleep(Duration::from_secs(2)).await;
        Ok(sized(&request))
    });

    for number in 0..100 {
        bench.parent("p", 1, &number.to_string());
        bench.parent("q", 1, &number.to_string());
        sleep(Duration::from_millis(100)).await;
    }
    bench.settled(&["p", "q"], 1, "99").await;

    assert!(!bench.hook.overlapped());
    assert_eq!(bench.hook.most(), 2);
    assert!(bench.hook.calls().len() < 20, "changes merge: {}", bench.hook.calls().len());
    bench.end().await;
}

#[tokio::test]
async fn an_answer_after_its_deadline_is_discarded() {
    let stage = Stage::start("late").await;
    let crd = stage.rig.widgets();
    let mut spec = stage.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("500ms");
    let (answered, late) = watch::channel(false);
    stage.hook.answers(move |request| {
        let mut child = config_map(request);
        child["metadata"]["name"] = json!("late");
        Answer::Hold(late.clone(), Box::new(Answer::Json(json!({ "children": [child] }))))
    });
    stage.declare("a", spec).await;
    stage.install(&crd).await;
    stage.rig.create(&crd, "gear", 1).await;
    stage.event("gear", "SyncError", "hook did not answer within 500ms").await;
    until("it is asked again", async || match stage.hook.count("gear") {
        0..3 => Err(String::new()),
        _ => Ok(()),
    })
    .await;

    stage.hook.answers(one_config_map);
    answered.send_replace(true);
    stage.child("gear", 1).await;

    assert!(stage.config_maps().get_opt("late").await.unwrap().is_none());
    let calls = stage.hook.calls();
    for pair in calls.windows(2).take(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(500), "one after the other");
    }
    stage.end().await;
}
