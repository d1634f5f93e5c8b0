//! Slow and failing hooks, and their effect on their callers.

use std::time::Duration;

use pilotlight::{meta::HookError, testing::Verb};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::support::{
    Answer, SimulatedHarness, Supervised, config_map, one_config_map, sized, until,
};

/// Default number of concurrent hook calls.
const WORKERS: usize = 5;

/// Hook that answers with an error during the failure; it takes as long as a healthy one.
async fn down_while(failure: watch::Receiver<bool>, request: Value) -> Result<Value, HookError> {
    sleep(Duration::from_millis(200)).await;
    match *failure.borrow() {
        true => Err(HookError::Status { code: 500, body: "down".to_owned(), proxy: None }),
        false => Ok(sized(&request)),
    }
}

/// Waits until a thousand parents have their children, and returns the elapsed time.
async fn thousand(simulated: &SimulatedHarness) -> Duration {
    let begin = Instant::now();
    while simulated.children().len() < 1000 {
        sleep(Duration::from_millis(500)).await;
        assert!(begin.elapsed() < Duration::from_secs(3600), "{}", simulated.children().len());
    }
    begin.elapsed()
}

fn a_thousand_parents(simulated: &SimulatedHarness) {
    for number in 0..1000 {
        simulated.parent(&format!("p{number}"), 1, "one");
    }
}

#[tokio::test(start_paused = true)]
async fn thousand_parents_recover_gradually_after_their_hook() {
    let (_well, never) = watch::channel(false);
    let simulated = SimulatedHarness::start().await;
    simulated.hook.answers(move |request| down_while(never.clone(), request));
    a_thousand_parents(&simulated);
    let cold = thousand(&simulated).await;
    simulated.end().await;

    let simulated = SimulatedHarness::start().await;
    let (broken, failure) = watch::channel(true);
    simulated.hook.answers(move |request| down_while(failure.clone(), request));
    a_thousand_parents(&simulated);
    let begin = Instant::now();
    sleep(Duration::from_secs(600)).await;
    let calls = simulated.hook.calls();
    let of_minute = |minute: u32| {
        let from = begin + minute * Duration::from_secs(60);
        let span = from..from + Duration::from_secs(60);
        calls.iter().filter(|(at, _)| span.contains(at)).count()
    };
    broken.send_replace(false);
    let warm = thousand(&simulated).await;

    let of_minutes: Vec<_> = (0..10).map(of_minute).collect();
    assert!(of_minutes[0] < 1200 && of_minutes[1..].iter().all(|it| *it <= 70), "{of_minutes:?}");
    assert!(of_minutes.iter().all(|it| *it >= 50), "probes continue: {of_minutes:?}");
    assert!(warm <= 2 * cold, "{warm:?} after the failure, {cold:?} from the start");
    assert_eq!(simulated.hook.most(), WORKERS, "the limit of concurrent calls holds");
    assert!(!simulated.hook.overlapped());
    let after = simulated.hook.calls().len() - calls.len();
    assert!(after < 1000 * 4, "each parent's own writes cause few calls: {after}");
    simulated.end().await;
}

/// Status and reason of a condition of controller `a`.
fn condition(simulated: &SimulatedHarness, type_: &str) -> (String, String) {
    let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
    let object = simulated.server.get(kind.0, kind.1, "", "a").unwrap();
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    let text = |field: &str| found.and_then(|it| it[field].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[tokio::test(start_paused = true)]
async fn a_controller_whose_syncs_have_failed_for_a_minute_is_not_ready_until_one_succeeds() {
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let simulated = SimulatedHarness::start().await;
    let (broken, failure) = watch::channel(true);
    simulated.hook.answers(move |request| down_while(failure.clone(), request));

    simulated.parent("p", 1, "one");
    sleep(Duration::from_secs(55)).await;
    assert_eq!(
        condition(&simulated, "Ready"),
        is("True", "Running"),
        "a short failure is not reported yet"
    );
    assert_eq!(condition(&simulated, "HooksHealthy"), is("False", "HookRefused"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(condition(&simulated, "Ready"), is("False", "HookRefused"));
    assert_eq!(condition(&simulated, "Running"), is("True", "Running"));

    broken.send_replace(false);
    simulated.settled(&["p"], 1, "one").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(condition(&simulated, "Ready"), is("True", "Running"));
    simulated.end().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_parents_make_no_controller_ready_whose_syncs_all_fail() {
    let simulated = SimulatedHarness::start().await;
    let broken = HookError::Status { code: 500, body: String::new(), proxy: None };
    simulated.hook.answers(move |_| std::future::ready(Err(broken.clone())));
    simulated.parent("stays", 1, "one");

    for round in 0..8 {
        let name = format!("brief-{round}");
        simulated.parent(&name, 1, "one");
        sleep(Duration::from_secs(15)).await;
        simulated.server.remove("harness.test/v1", "Widget", "default", &name).unwrap();
    }
    sleep(Duration::from_secs(1)).await;

    assert_eq!(condition(&simulated, "Ready").0, "False");
    simulated.server.remove("harness.test/v1", "Widget", "default", "stays").unwrap();
    let calm = |simulated: &SimulatedHarness| condition(simulated, "Ready").0 == "True";
    simulated.until("no parent fails any more", calm).await;
    simulated.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_of_which_one_parent_fails_is_ready_while_others_succeed() {
    let simulated = SimulatedHarness::start().await;
    simulated.hook.answers(|request| async move {
        match request["parent"]["spec"]["text"] == "broken" {
            true => Err(HookError::Status { code: 500, body: String::new(), proxy: None }),
            false => Ok(sized(&request)),
        }
    });
    simulated.parent("broken", 1, "broken");

    for second in 0..120 {
        simulated.parent("p", 1, &second.to_string());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(condition(&simulated, "Ready").0, "True", "after {second} s");
    }

    assert_eq!(condition(&simulated, "HooksHealthy").0, "False");
    simulated.end().await;
}

#[tokio::test(start_paused = true)]
async fn single_parent_recovers_within_seconds_after_its_hook() {
    let simulated = SimulatedHarness::start().await;
    let (broken, failure) = watch::channel(true);
    simulated.hook.answers(move |request| down_while(failure.clone(), request));

    simulated.parent("p", 1, "one");
    sleep(Duration::from_secs(600)).await;
    let calls = simulated.hook.calls().len();
    broken.send_replace(false);
    let took = simulated.settled(&["p"], 1, "one").await;

    assert!(calls < 90, "{calls}");
    assert!(took <= Duration::from_secs(11), "{took:?}");
    simulated.end().await;
}

#[tokio::test(start_paused = true)]
async fn always_failing_parents_are_not_retried_more_often_when_others_succeed() {
    let simulated = SimulatedHarness::start().await;
    simulated.hook.answers(|request| async move {
        match request["parent"]["spec"]["text"] == "broken" {
            true => Err(HookError::Status { code: 500, body: "a bug".to_owned(), proxy: None }),
            false => Ok(sized(&request)),
        }
    });
    for number in 0..5 {
        simulated.parent(&format!("broken{number}"), 1, "broken");
    }

    for second in 0..600 {
        simulated.parent(&format!("p{}", second % 20), 1, &second.to_string());
        sleep(Duration::from_secs(1)).await;
        let late = simulated.children().values().any(|text| *text == second.to_string());
        assert!(late, "failing parents do not block others");
    }

    for number in 0..5 {
        let name = format!("broken{number}");
        let calls = simulated.hook.calls().iter().filter(|(_, of)| *of == name).count();
        assert!((10..=22).contains(&calls), "back-off from 5 ms, doubling: {calls}");
    }
    simulated.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_parent_has_one_hook_call_at_a_time() {
    let simulated = SimulatedHarness::start().await;
    simulated.hook.answers(|request| async move {
        sleep(Duration::from_secs(2)).await;
        Ok(sized(&request))
    });

    for number in 0..100 {
        simulated.parent("p", 1, &number.to_string());
        simulated.parent("q", 1, &number.to_string());
        sleep(Duration::from_millis(100)).await;
    }
    simulated.settled(&["p", "q"], 1, "99").await;

    assert!(!simulated.hook.overlapped());
    assert_eq!(simulated.hook.most(), 2);
    assert!(simulated.hook.calls().len() < 20, "changes merge: {}", simulated.hook.calls().len());
    simulated.end().await;
}

#[tokio::test]
async fn a_response_after_its_deadline_is_discarded() {
    let supervised = Supervised::start("late").await;
    let crd = supervised.harness.widgets();
    let mut spec = supervised.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("500ms");
    let (answered, late) = watch::channel(false);
    supervised.hook.answers(move |request| {
        let mut child = config_map(request);
        child["metadata"]["name"] = json!("late");
        Answer::Hold(late.clone(), Box::new(Answer::Json(json!({ "children": [child] }))))
    });
    supervised.declare("a", spec).await;
    supervised.install(&crd).await;
    supervised.harness.create(&crd, "gear", 1).await;
    supervised.event("gear", "SyncError", "hook did not answer within 500ms").await;
    until("the hook is called again", async || match supervised.hook.count("gear") {
        0..3 => Err(String::new()),
        _ => Ok(()),
    })
    .await;

    supervised.hook.answers(one_config_map);
    answered.send_replace(true);
    supervised.child("gear", 1).await;

    assert!(supervised.config_maps().get_opt("late").await.unwrap().is_none());
    let calls = supervised.hook.calls();
    for pair in calls.windows(2).take(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(500), "calls do not overlap");
    }
    supervised.end().await;
}

#[tokio::test(start_paused = true)]
async fn slow_hook_delays_no_watch_and_sees_the_last_state() {
    const PARENTS: usize = 100;
    let simulated = SimulatedHarness::start().await;
    simulated.hook.answers(|request| async move {
        sleep(Duration::from_secs(30)).await;
        Ok(sized(&request))
    });
    let name = |number: usize| format!("p{number}");
    for number in 0..PARENTS {
        simulated.parent(&name(number), 1, "first");
    }
    let known =
        |simulated: &SimulatedHarness| simulated.informer().is_some_and(|it| it.objects == PARENTS);
    simulated.until("all parents are cached", known).await;
    let (lists, watches) =
        (simulated.requests_for_parents(Verb::List), simulated.requests_for_parents(Verb::Watch));

    // Five thousand changes a second, for two seconds.
    // Too short to be stored compressed.
    let last = "x".repeat(1500);
    for change in 0..100 {
        let text = if change < 99 { change.to_string() } else { last.clone() };
        for number in 0..PARENTS {
            simulated.parent(&name(number), 1, &text);
        }
        sleep(Duration::from_millis(20)).await;
    }

    let bytes = simulated.informer().unwrap().bytes;
    let all = PARENTS * last.len();
    assert!((all..all * 2).contains(&bytes), "only the last state is cached: {bytes}");
    // The calls in progress end, then each parent is called once: five at a time, 30 s each.
    sleep(u32::try_from(PARENTS / WORKERS + 2).unwrap() * Duration::from_secs(30)).await;
    let children = simulated.children();
    assert_eq!(children.len(), PARENTS);
    assert!(children.values().all(|text| *text == last), "{children:?}");
    assert!(!simulated.hook.overlapped() && simulated.hook.most() <= WORKERS);
    let requests =
        (simulated.requests_for_parents(Verb::List), simulated.requests_for_parents(Verb::Watch));
    // A watch lasts at most ten minutes, and so does the whole test.
    assert!(
        requests.0 == lists && requests.1 <= watches + 3,
        "{requests:?}, before {lists}, {watches}"
    );
    simulated.end().await;
}

#[tokio::test(start_paused = true)]
async fn failing_parent_is_counted_until_its_deletion() {
    let simulated = SimulatedHarness::start().await;
    let broken = HookError::Status { code: 500, body: "broken".to_owned(), proxy: None };
    simulated.hook.answers(move |_| std::future::ready(Err(broken.clone())));
    let healthy = |simulated: &SimulatedHarness| {
        let controllers = simulated.list("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let conditions = controllers.first()?["status"]["conditions"].as_array()?;
        let healthy = conditions.iter().find(|it| it["type"] == "HooksHealthy")?;
        Some(healthy["status"].clone())
    };
    simulated.parent("p", 1, "one");
    simulated
        .until("the hook is reported unhealthy", |simulated| {
            healthy(simulated) == Some(json!("False"))
        })
        .await;

    simulated.server.remove("harness.test/v1", "Widget", "default", "p").unwrap();

    let calm = |simulated: &SimulatedHarness| healthy(simulated) == Some(json!("Unknown"));
    let took = simulated.until("no parent fails any more", calm).await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    simulated.end().await;
}
