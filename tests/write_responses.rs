//! Responses of the API server to writes and their effects, under paused time on the simulated
//! server.

mod owners;

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pilotlight::testing::{Action, Reply, RequestInfo, Rule, Verb, simulated::SimulatedRequest};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support::{Logs, SimulatedHarness, redeclare, sized};

fn reply(code: u16, reason: &str, message: &str) -> Action {
    Action::Reply(Reply::status(code, reason, message))
}

/// Rule for requests for ConfigMaps.
fn children(action: Action, verb: Verb) -> Rule {
    Rule::new(action).verb(verb).resource("", "configmaps")
}

/// Largest number of these moments within any window of this length.
fn most_within(span: Duration, moments: &[Instant]) -> usize {
    let from = |begin: Instant| moments.iter().filter(move |at| (begin..begin + span).contains(at));
    moments.iter().map(|begin| from(*begin).count()).max().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_change_costs_one_write_of_the_status() {
    let harness = SimulatedHarness::start().await;
    let is_status = |info: &RequestInfo| {
        let writes = Verb::MUTATING.contains(&info.verb);
        writes && info.subresource == "status" && info.resource == "widgets"
    };
    let written = || harness.requests().iter().filter(|(_, info)| is_status(info)).count();

    for size in 1..=3 {
        let before = written();
        harness.parent("p", size, "text");
        harness.settled(&["p"], size, "text").await;
        sleep(Duration::from_secs(60)).await;

        assert_eq!(written() - before, 1, "size {size}");
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_writer_is_opposed_less_than_once_a_second_and_is_named() {
    // Installed before any span begins, because a span's fields are captured at its start.
    let logs = Logs::capture();
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "ours");
    harness.settled(&["p"], 1, "ours").await;
    let maps = Api::<ConfigMap>::namespaced(harness.server.client_as("rival"), "default");
    let by = PatchParams { field_manager: Some("rival".to_owned()), ..PatchParams::default() };
    let conflict = "the object has been modified";
    let rule = harness.faults.add(children(reply(409, "Conflict", conflict), Verb::Update));

    for number in 0..1000 {
        let change = json!({ "data": { "text": format!("theirs {number}") } });
        maps.patch("p-0", &by, &Patch::Merge(change)).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }

    let tries = harness.sent(Verb::Update);
    assert!(tries.len() > 10, "retries continue: {}", tries.len());
    let later = &tries[10..];
    assert!(most_within(Duration::from_secs(1), later) <= 1, "{:?}", tries.len());
    assert_eq!(harness.events("SyncError"), [""; 0], "conflicts alone");
    let is_warning = |event: &serde_json::Value| event["type"] == "Warning";
    assert!(!harness.list("v1", "Event").iter().any(is_warning));
    assert!(logs.troubles().is_empty(), "{:#?}", logs.troubles());
    let events = harness.events("SyncDelayed").concat();
    assert!(events.contains(conflict) && events.contains("rival keeps writing it"), "{events}");
    harness.faults.remove(rule);
    drop(maps);
    let took = harness.settled(&["p"], 1, "ours").await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn conflict_of_a_status_is_retried_with_a_fresh_read() {
    let harness = SimulatedHarness::start().await;
    let conflict = Rule::new(reply(409, "Conflict", "modified")).verb(Verb::Update);
    let rule = harness.faults.add(conflict.resource("harness.test", "widgets").times(2));

    harness.parent("p", 1, "one");
    let has_status = |harness: &SimulatedHarness| {
        harness.list("harness.test/v1", "Widget").iter().any(|it| it["status"]["size"] == 1)
    };
    harness.until("the status is written", has_status).await;

    assert_eq!(harness.faults.hits(rule), 2);
    let of_parent = |(_, info): &(Instant, RequestInfo)| info.path.contains("/widgets/p");
    let sent: Vec<_> = harness.requests().into_iter().filter(of_parent).collect();
    let verbs: Vec<_> = sent.iter().map(|(_, info)| info.verb).collect();
    assert_eq!(verbs, [Verb::Update, Verb::Get, Verb::Update, Verb::Get, Verb::Update]);
    assert_eq!(harness.events("SyncError"), [""; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn conflict_without_an_event_is_retried_less_than_once_a_second() {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "one").await;
    let rule = harness.faults.add(children(reply(409, "Conflict", "modified"), Verb::Update));

    harness.parent("p", 1, "two");
    sleep(Duration::from_secs(120)).await;

    let tries = harness.sent(Verb::Update);
    assert!((10..=52).contains(&tries.len()), "ten, then every 3 s: {}", tries.len());
    assert!(most_within(Duration::from_secs(1), &tries[10..]) <= 1);
    harness.faults.remove(rule);
    harness.settled(&["p"], 1, "two").await;
    harness.end().await;
}

/// Meaning of a response to a create for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// The object was not created: retried with a growing back-off.
    Refused,
    /// The object may have been created: same back-off, with a read of the object before each
    /// retry.
    Perhaps,
    /// The object was not created, and the retry waits at least this many seconds.
    NotBefore(u64),
}

/// For each pair of successive creates, whether the object was read by its name in between.
fn looked_before_each(harness: &SimulatedHarness) -> Vec<bool> {
    let requests = harness.requests();
    let is = |info: &RequestInfo, verb| info.resource == "configmaps" && info.verb == verb;
    let between = requests.split(|(_, info)| is(info, Verb::Create)).skip(1);
    let mut looked: Vec<_> = between
        .map(|between| {
            between
                .iter()
                .any(|(_, info)| is(info, Verb::List) && info.query.contains("metadata.name%3Dp-0"))
        })
        .collect();
    // Requests after the last create.
    looked.pop();
    looked
}

#[tokio::test(start_paused = true)]
async fn each_response_to_a_create_decides_when_the_next_one_is_sent() {
    // Any response may carry `Retry-After`, but only these two reasons make it a pause.
    let (throttled, unavailable) = ("TooManyRequests", "ServiceUnavailable");
    for (code, reason, after, means) in [
        (400, "BadRequest", Some(600), Means::Refused),
        (403, "Forbidden", Some(600), Means::Refused),
        (413, "RequestEntityTooLarge", Some(600), Means::Refused),
        (415, "UnsupportedMediaType", Some(600), Means::Refused),
        (422, "Invalid", Some(600), Means::Refused),
        (429, throttled, None, Means::Refused),
        (429, throttled, Some(20), Means::NotBefore(20)),
        (429, throttled, Some(600), Means::NotBefore(300)),
        (500, "InternalError", Some(600), Means::Perhaps),
        (502, "BadGateway", Some(600), Means::Perhaps),
        (503, unavailable, None, Means::Perhaps),
        (503, unavailable, Some(20), Means::NotBefore(20)),
        (503, unavailable, Some(600), Means::NotBefore(300)),
        (504, "Timeout", Some(600), Means::Perhaps),
    ] {
        let what = format!("{code}, Retry-After {after:?}");
        let harness = SimulatedHarness::start().await;
        let refusal = Reply::status(code, reason, "not this one");
        let refusal = Reply { retry_after: after, ..refusal };
        let rule = harness.faults.add(children(Action::Reply(refusal), Verb::Create));
        harness.parent("p", 1, "one");

        sleep(Duration::from_secs(30)).await;

        let tries = harness.sent(Verb::Create);
        let events = harness.events("SyncError");
        if let Means::NotBefore(seconds) = means {
            assert_eq!(tries.len(), if seconds < 30 { 2 } else { 1 }, "{what}");
            assert_eq!(events, [] as [&str; 0], "{what}");
        } else {
            // Back-off from 5 ms, doubling; an event in between causes a sync within a second.
            let gaps: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let last = gaps.iter().rev().take(3).collect::<Vec<_>>();
            assert!((11..=14).contains(&tries.len()), "{what}: {gaps:?}");
            assert!(last.windows(2).all(|two| *two[0] > *two[1] * 3 / 2), "{what}: {gaps:?}");
            assert!(events.len() == 1 && events[0].contains("not this one"), "{what}: {events:?}");
        }
        let looked = looked_before_each(&harness);
        // A throttled request was not carried out. A 503 with `Retry-After` is no proof of that,
        // because a proxy may send it for a request that it has already forwarded.
        let wanted = means == Means::Perhaps || code == 503;
        assert!(looked.iter().all(|looked| *looked == wanted), "{what}: {looked:?}");
        assert!(harness.children().is_empty(), "{what}");
        harness.faults.remove(rule);
        let took = harness.settled(&["p"], 1, "one").await;
        let longest = match means {
            Means::Refused | Means::Perhaps => 60,
            // Jitter adds up to a quarter, so that retries do not coincide.
            Means::NotBefore(seconds) => seconds * 5 / 4,
        };
        assert!(took < Duration::from_secs(longest), "{what}: {took:?}");
        if means == Means::NotBefore(300) {
            let gap = harness.sent(Verb::Create)[1] - tries[0];
            assert!(gap >= Duration::from_secs(300), "{what}: {gap:?}");
        }
        assert!(harness.sent(Verb::Delete).is_empty(), "{what}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn create_with_an_unknown_outcome_is_read_before_it_is_sent_again() {
    let harness = SimulatedHarness::start().await;
    harness.faults.add(children(reply(504, "Timeout", "request timed out"), Verb::Create).times(3));

    harness.parent("p", 1, "one");
    harness.settled(&["p"], 1, "one").await;

    let requests = harness.requests();
    let creates = requests
        .iter()
        .enumerate()
        .filter(|(_, (_, info))| info.verb == Verb::Create && info.resource == "configmaps");
    let creates: Vec<_> = creates.map(|(number, _)| number).collect();
    assert_eq!(creates.len(), 4);
    for pair in creates.windows(2) {
        let looked = requests[pair[0]..pair[1]].iter().any(|(_, info)| {
            info.resource == "configmaps" && info.query.contains("metadata.name%3Dp-0")
        });
        assert!(looked, "{:#?}", &requests[pair[0]..pair[1]]);
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn write_is_not_repeated_before_its_retry_after() {
    // Responses of the filter in front of all requests, and of the registries behind it.
    let filter = |code: u16| Reply::text(code, "Too many requests, please try again later.\n");
    let registry = |code: u16, reason: &str, seconds: u64| {
        let mut reply = Reply::json(&json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "later", "reason": reason, "code": code,
            "details": { "retryAfterSeconds": seconds },
        }));
        reply.code = code;
        reply
    };
    // `taken` creates succeed first; their watch events wake the parent.
    for (taken, reply, seconds) in [
        (0, filter(429).retry_after(20), 20),
        (1, filter(429).retry_after(20), 20),
        (0, registry(429, "TooManyRequests", 20), 20),
        (0, registry(503, "ServiceUnavailable", 20).retry_after(20), 20),
        (0, filter(503).retry_after(20), 20),
        (0, filter(429).retry_after(3600), 300),
    ] {
        let harness = SimulatedHarness::start().await;
        let refuses = children(Action::Reply(reply.clone()), Verb::Create);
        let rule = harness.faults.add(refuses.skip(taken).times(1));
        harness.parent("p", 2, "one");
        harness.until("the create is refused", |harness| harness.faults.hits(rule) == 1).await;
        let refused = Instant::now();
        let begun = harness.requests().len();

        let took = harness.settled(&["p"], 2, "one").await;

        let (least, most) = (Duration::from_secs(seconds), Duration::from_secs(seconds * 5 / 4));
        assert!((least..=most).contains(&took), "{reply:?}: {took:?}");
        let own = |info: &RequestInfo| {
            let resources = ["configmaps", "events", "widgets"];
            // Events about the declared controller itself may still be in flight.
            resources.contains(&&*info.resource)
                && info.namespace != "default"
                && !matches!(info.verb, Verb::List | Verb::Watch)
        };
        let requests = harness.requests();
        let is_early = |(at, info): &&(Instant, RequestInfo)| own(info) && *at < refused + least;
        let early: Vec<_> = requests[begun..].iter().filter(is_early).collect();
        assert!(early.is_empty(), "{reply:?}: early writes or reads: {early:#?}");
        assert_eq!(harness.events("SyncError"), [] as [&str; 0], "{reply:?}");
        assert_eq!(harness.sent(Verb::Create).len(), 3, "{reply:?}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn throttling_server_gets_fewer_requests_and_nothing_is_lost() {
    let harness = SimulatedHarness::start().await;
    harness.parent("first", 1, "one");
    harness.settled(&["first"], 1, "one").await;
    let throttled = Reply::text(429, "Too many requests, please try again later.\n").retry_after(1);
    let rule = harness.faults.add(Rule::new(Action::Reply(throttled)));
    for number in 0..200 {
        harness.parent(&format!("p{number}"), 1, "one");
    }

    let begin = Instant::now();
    sleep(Duration::from_secs(120)).await;

    let requests = harness.requests();
    let within = |from: u64, to: u64| {
        let (from, to) = (Duration::from_secs(from), Duration::from_secs(to));
        requests.iter().filter(|(at, _)| *at >= begin + from && *at < begin + to).count()
    };
    let rates: Vec<_> = (0..12).map(|ten| within(ten * 10, ten * 10 + 10)).collect();
    assert!(rates[0] <= 250, "one request for each, and a few: {rates:?}");
    assert!(rates[1..].iter().all(|it| *it <= 20), "two a second: {rates:?}");
    harness.faults.remove(rule);
    let took = harness.until("all children exist", |harness| harness.children().len() == 201).await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(harness.events("SyncError"), [] as [&str; 0]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn throttled_controller_stops_at_once() {
    let harness = SimulatedHarness::start().await;
    let throttled = Reply::text(429, "later").retry_after(300);
    harness.faults.add(Rule::new(Action::Reply(throttled)).mutating());
    harness.parent("p", 1, "one");
    harness.until("the create is refused", |harness| !harness.sent(Verb::Create).is_empty()).await;

    let stopping = Instant::now();
    harness.end().await;

    assert!(stopping.elapsed() < Duration::from_secs(1), "{:?}", stopping.elapsed());
}

#[tokio::test(start_paused = true)]
async fn refused_child_does_not_affect_the_other_four() {
    for (code, reason, message) in [
        (422, "Invalid", "ConfigMap \"p-2\" is invalid: data: Invalid value"),
        (403, "Forbidden", "configmaps \"p-2\" is forbidden: exceeded quota: small"),
        (400, "Forbidden", "admission webhook \"a.test\" denied the request: no"),
    ] {
        let harness = SimulatedHarness::start().await;
        harness.parent("p", 5, "one");
        harness.settled(&["p"], 5, "one").await;
        let refused = children(reply(code, reason, message), Verb::Update).name("p-2");
        let rule = harness.faults.add(refused);

        harness.parent("p", 5, "two");
        harness
            .until("the others are written", |harness| {
                harness.children().values().filter(|text| *text == "two").count() == 4
            })
            .await;

        sleep(Duration::from_secs(30)).await;
        assert_eq!(harness.children()["p-2"], "one", "{code}: the old child stays");
        assert!(harness.sent(Verb::Delete).is_empty(), "{code}");
        assert!(harness.events("SyncError").concat().contains(message), "{code}");
        harness.faults.remove(rule);
        harness.settled(&["p"], 5, "two").await;
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_admission_delays_only_its_own_parent() {
    let harness = SimulatedHarness::start().await;
    let slow = Action::Delay(Duration::from_secs(25));
    let rule = harness.faults.add(children(slow, Verb::Create).times(1));

    harness.parent("slow", 1, "one");
    harness
        .until("the request of the slow parent is sent", |harness| harness.faults.hits(rule) == 1)
        .await;
    harness.parent("quick", 3, "one");
    let took = harness.settled(&["quick"], 3, "one").await;

    assert!(took < Duration::from_secs(1), "{took:?}");
    let took = harness.settled(&["slow"], 1, "one").await;
    assert!(took < Duration::from_secs(26), "{took:?}");
    assert_eq!(harness.sent(Verb::Create).len(), 4, "nothing is sent twice");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn replacement_that_the_cache_has_not_seen_is_not_deleted() {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "ours");
    harness.settled(&["p"], 1, "ours").await;
    let unseen = Rule::new(Action::Hang).verb(Verb::Watch).resource("", "configmaps");
    let unseen = harness.faults.add(unseen);
    let is_watch = |info: &RequestInfo| info.verb == Verb::Watch && info.resource == "configmaps";
    assert_eq!(harness.faults.cut_open(is_watch), 1);
    harness.server.remove("v1", "ConfigMap", "default", "p-0").unwrap();
    let theirs = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "p-0", "namespace": "default" }, "data": { "text": "theirs" },
    });
    let theirs = harness.server.apply(theirs).unwrap();

    harness.parent("p", 0, "ours");
    harness
        .until("the old child is deleted", |harness| !harness.sent(Verb::Delete).is_empty())
        .await;
    sleep(Duration::from_secs(10)).await;

    let deleted = harness.server.requests();
    let deleted = deleted.iter().filter(|request| {
        let SimulatedRequest { info, user, .. } = request;
        info.verb == Verb::Delete && info.resource == "configmaps" && user == "pilotlight"
    });
    let codes: Vec<_> = deleted.map(|request| request.code).collect();
    assert!(codes.iter().all(|code| *code == Some(409)), "each deletion names the uid: {codes:?}");
    harness.faults.remove(unseen);
    sleep(Duration::from_secs(60)).await;
    let found = harness.server.get("v1", "ConfigMap", "default", "p-0").unwrap();
    assert_eq!(found["metadata"]["uid"], theirs["metadata"]["uid"]);
    assert_eq!(
        harness.sent(Verb::Delete).len(),
        codes.len(),
        "no deletion once the new object is seen"
    );
    assert_eq!(harness.events("SyncError"), [""; 0], "an absent object counts as deleted");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_whose_children_are_all_refused_gets_its_status() {
    let harness = SimulatedHarness::start().await;
    harness.faults.add(children(reply(422, "Invalid", "no such thing"), Verb::Create));

    harness.parent("p", 1, "one");
    let has_status = |harness: &SimulatedHarness| {
        let widgets = harness.list("harness.test/v1", "Widget");
        widgets.first().is_some_and(|widget| widget["status"]["size"] == 1)
    };
    let took = harness.until("the status is written", has_status).await;

    assert!(took < Duration::from_secs(1), "with the first try: {took:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_that_is_no_longer_selected_keeps_its_finalizer_until_no_child_is_refused() {
    let harness = SimulatedHarness::start().await;
    redeclare(&harness, |spec| {
        spec["parentResource"]["labelSelector"] = json!({ "matchLabels": { "on": "yes" } });
        spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
    })
    .await;
    harness.hook.answers(|request| async move {
        Ok(match request["finalizing"] == true {
            true => json!({ "status": {}, "children": [], "finalized": true }),
            false => sized(&request),
        })
    });
    let parent = |on: &str| {
        json!({
            "apiVersion": "harness.test/v1", "kind": "Widget",
            "metadata": { "name": "p", "namespace": "default", "labels": { "on": on } },
            "spec": { "size": 1, "text": "one" },
        })
    };
    harness.server.apply(parent("yes")).unwrap();
    harness.settled(&["p"], 1, "one").await;
    let rule = harness.faults.add(children(reply(403, "Forbidden", "not now"), Verb::Delete));

    harness.server.merge(&parent("no")).unwrap();
    sleep(Duration::from_secs(60)).await;

    let finalizers = |harness: &SimulatedHarness| {
        let parent = harness.server.get("harness.test/v1", "Widget", "default", "p").unwrap();
        parent["metadata"]["finalizers"].clone()
    };
    assert_eq!(finalizers(&harness), json!(["metacontroller.io/compositecontroller-a"]));
    assert!(harness.faults.hits(rule) > 1, "the deletion is retried");
    assert!(harness.events("SyncError").concat().contains("not now"));
    harness.faults.remove(rule);
    harness.until("the parent is freed", |harness| finalizers(harness).is_null()).await;
    assert!(harness.children().is_empty());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_write_of_a_hook_response_is_sent_after_a_stop() {
    let harness = SimulatedHarness::start().await;
    harness.faults.add(children(Action::Delay(Duration::from_secs(1)), Verb::Create));
    harness.parent("p", 20, "one");
    harness.until("eight creates are sent", |harness| harness.sent(Verb::Create).len() == 8).await;

    harness
        .server
        .remove("metacontroller.k8s.io/v1alpha1", "CompositeController", "", "a")
        .unwrap();
    sleep(Duration::from_secs(10)).await;

    // The writes may end within their grace; no other begins.
    assert_eq!(harness.sent(Verb::Create).len(), 8);
    harness.end().await;
}
