//! Each fault is logged within ten seconds, with its type or controller and at a bounded rate:
//! under paused time, on the simulated server.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use pilotlight::{
    meta::HookError,
    testing::{Action, CrdBuilder, Reply, RequestInfo, Rule, Verb, simulated::Delays},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support::{Line, Logs, SimulatedHarness};

/// Deadline for the first log line of a fault.
const REPORT_DEADLINE: Duration = Duration::from_secs(10);
/// Duration of each fault.
const LASTS: Duration = Duration::from_secs(600);

/// Fault and its expected log lines.
struct Case {
    what: &'static str,
    /// Starts the fault.
    begin: fn(&SimulatedHarness),
    /// Message of the line, and a part of its error.
    message: &'static str,
    error: &'static str,
    /// Fields of the line.
    fields: &'static [(&'static str, &'static str)],
    /// Deadline for the first line.
    within: Duration,
    /// Largest number of warnings and errors during the whole fault.
    most: usize,
}

/// Fields of a line of the informer of the controller's parents.
const OF_THE_TYPE: &[(&str, &str)] =
    // No controller: several may share the informer.
    &[
        ("group", "harness.test"),
        ("version", "v1"),
        ("resource", "widgets"),
        ("controller", ""),
    ];
/// Fields of a line about one reconcile.
const OF_THE_PARENT: &[(&str, &str)] = &[
    ("controller", "CompositeController-a"),
    ("group", "harness.test"),
    ("kind", "Widget"),
    ("namespace", "default"),
    ("name", "p"),
    ("epoch", "1"),
];

fn of_parents(action: Action, verb: Verb) -> Rule {
    Rule::new(action).verb(verb).resource("harness.test", "widgets")
}

fn status(code: u16, reason: &str, message: &str) -> Action {
    Action::Reply(Reply::status(code, reason, message))
}

/// Ends the watches of the parents, so that the next ones meet the fault.
fn cut(harness: &SimulatedHarness) {
    let of_parents = |info: &RequestInfo| info.verb == Verb::Watch && info.resource == "widgets";
    assert_eq!(harness.faults.cut_open(of_parents), 1);
}

/// Makes the next watch expired, so that a list follows; the server refuses streaming lists.
fn list_again(harness: &SimulatedHarness) {
    let invalid = status(422, "Invalid", "sendInitialEvents is forbidden");
    harness.faults.add(of_parents(invalid, Verb::Watch).query_contains("sendInitialEvents"));
    let expired = status(410, "Expired", "too old resource version");
    harness.faults.add(of_parents(expired, Verb::Watch).times(1));
    cut(harness);
}

/// Replaces the first line of the next watch.
fn watch_line(harness: &SimulatedHarness, line: Vec<u8>) {
    let garbage = Action::Garbage { line: Some(1), bytes: line.into() };
    harness.faults.add(of_parents(garbage, Verb::Watch).times(1));
    cut(harness);
    // Causes the line that is replaced.
    harness.parent("q", 0, "one");
}

fn cases() -> Vec<Case> {
    let mut cases = cases_of_types();
    cases.extend(cases_of_parents());
    cases.push(case_of_events());
    cases
}

/// Sends an event whose object has labels of a wrong type.
fn unreadable_object(harness: &SimulatedHarness) {
    // Version of the object that is written next.
    let version = harness.server.resource_version() + 1;
    let object = json!({
        "apiVersion": "harness.test/v1", "kind": "Widget",
        "metadata": {
            "name": "q", "namespace": "default", "uid": "of-q",
            "resourceVersion": version.to_string(), "labels": ["no", "map"],
        },
    });
    let event = json!({ "type": "ADDED", "object": object });
    watch_line(harness, event.to_string().into_bytes());
}

/// Faults of the requests for a type.
fn cases_of_types() -> Vec<Case> {
    let of_the_type = Case {
        what: "",
        begin: |_| {},
        message: "watch failed",
        error: "",
        fields: OF_THE_TYPE,
        within: REPORT_DEADLINE,
        // The end of the watch, then the fault.
        most: 3,
    };
    vec![
        Case {
            what: "the watch is forbidden",
            begin: |harness| {
                harness.faults.add(of_parents(status(403, "Forbidden", "no right"), Verb::Watch));
                cut(harness);
            },
            message: "watch is not permitted",
            error: "grant watch on widgets.harness.test",
            ..of_the_type
        },
        Case {
            what: "the list fails",
            begin: |harness| {
                harness.faults.add(of_parents(status(500, "InternalError", "broken"), Verb::List));
                list_again(harness);
            },
            error: "500 InternalError: broken",
            ..of_the_type
        },
        Case {
            what: "the list is never answered",
            begin: |harness| {
                harness.faults.add(of_parents(Action::Hang, Verb::List));
                list_again(harness);
            },
            error: "within 30s",
            // A hanging request is no fault before its deadline.
            within: Duration::from_secs(30) + REPORT_DEADLINE,
            ..of_the_type
        },
        Case {
            what: "the watch is refused a connection",
            begin: |harness| {
                let refused = Action::Fail("connection refused".to_owned());
                harness.faults.add(of_parents(refused, Verb::Watch));
                cut(harness);
            },
            error: "connection refused",
            ..of_the_type
        },
        Case {
            what: "an object cannot be read",
            begin: unreadable_object,
            message: "object cannot be read and is left out",
            error: "labels",
            ..of_the_type
        },
        Case {
            what: "a line of the watch is longer than any may be",
            begin: |harness| watch_line(harness, vec![b'x'; (16 << 20) + 1]),
            error: "longer than 16777216 bytes",
            ..of_the_type
        },
        Case {
            what: "the API server is down",
            begin: |harness| harness.server.stop(),
            error: "",
            // A line for each type, and the lines of discovery.
            most: 8,
            ..of_the_type
        },
    ]
}

/// Faults of the hook of a parent.
fn cases_of_parents() -> Vec<Case> {
    let of_the_parent = |what, begin, error| Case {
        what,
        begin,
        message: "reconcile failed",
        error,
        fields: OF_THE_PARENT,
        within: REPORT_DEADLINE,
        // Back-off from 5 ms, doubling; from a second on, one line in ten failures.
        most: 80,
    };
    vec![
        of_the_parent(
            "the hook is refused a connection",
            |harness| {
                let refused = "connection refused".to_owned();
                let answer = HookError::Transport(refused);
                harness.hook.answers(move |_| std::future::ready(Err(answer.clone())));
                harness.parent("p", 2, "one");
            },
            "connection refused",
        ),
        of_the_parent(
            "the hook fails",
            |harness| {
                let answer =
                    HookError::Status { code: 500, body: "broken".to_owned(), proxy: None };
                harness.hook.answers(move |_| std::future::ready(Err(answer.clone())));
                harness.parent("p", 2, "one");
            },
            "status 500",
        ),
    ]
}

fn case_of_events() -> Case {
    Case {
        what: "Events are refused",
        begin: |harness| {
            let refusal = status(403, "Forbidden", "no right to tell");
            harness.faults.add(Rule::new(refusal).mutating().resource("", "events"));
            // Failures with an Event each, in two namespaces.
            let answer = HookError::Status { code: 400, body: "never".to_owned(), proxy: None };
            harness.hook.answers(move |_| std::future::ready(Err(answer.clone())));
            harness.parent("p", 2, "one");
        },
        message: "an Event was not written; further failures of this cause are logged at debug",
        error: "no right to tell",
        fields: &[("reason", "SyncError"), ("name", "p")],
        within: REPORT_DEADLINE,
        most: 20,
    }
}

fn matches_case(case: &Case, line: &Line) -> bool {
    let of = |(name, value): &(&str, &str)| line.field(name) == *value;
    line.message == case.message
        && line.field("error").contains(case.error)
        && case.fields.iter().all(of)
}

/// Returns the id of a reconcile that is empty, or that two failures of reconciles share.
fn repeated_reconcile(case: &Case, lines: &[Line]) -> Option<String> {
    if case.message != "reconcile failed" {
        return None;
    }
    let failed = lines.iter().filter(|line| matches_case(case, line));
    let mut seen = BTreeSet::from([""]);
    let repeated = failed.map(|line| line.field("reconcile_id")).find(|id| !seen.insert(id));
    repeated.map(|id| format!("reconcile_id {id:?} is empty or repeated"))
}

#[tokio::test(start_paused = true)]
async fn every_fault_is_logged_within_ten_seconds_and_without_a_flood() {
    let mut wrong = Vec::new();
    for case in cases() {
        let what = case.what;
        // Installed before any span begins, because a span's fields are captured at its start.
        let logs = Logs::capture();
        let harness = SimulatedHarness::start().await;
        harness.parent("p", 1, "one");
        harness.settled(&["p"], 1, "one").await;
        // The Events of the start are delivered, whose refusal would be another line.
        sleep(Duration::from_secs(1)).await;
        assert!(logs.troubles().is_empty(), "{what}: {:#?}", logs.troubles());

        (case.begin)(&harness);
        sleep(case.within).await;

        let early = logs.troubles();
        let logged = early.iter().filter(|line| matches_case(&case, line)).count();
        wrong.extend(repeated_reconcile(&case, &early).map(|id| format!("{what}: {id}")));
        // Each reconcile fails on its own, with a growing back-off.
        let repeats = case.message == "reconcile failed";
        if logged == 0 || logged > 1 && !repeats {
            wrong.push(format!("{what}: logged {logged} times: {early:#?}"));
        }
        sleep(LASTS).await;
        let all = logs.troubles();
        let minutes = all.iter().map(|from| from.at..from.at + Duration::from_secs(60));
        let within =
            |minute: Range<Instant>| all.iter().filter(|line| minute.contains(&line.at)).count();
        let in_a_minute = minutes.map(within).max();
        if all.len() > case.most || in_a_minute > Some(20) {
            let all: Vec<_> = all.iter().map(|it| (it.at, &it.message, &it.fields)).collect();
            wrong.push(format!("{what}: {} in all, {in_a_minute:?}: {all:#?}", all.len()));
        }
        harness.server.start();
        harness.faults.clear();
        harness.end().await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn type_that_is_established_late_is_awaited_without_a_warning() {
    let logs = Logs::capture();
    let harness = SimulatedHarness::start().await;
    let late = Duration::from_secs(3);
    harness.server.set_delays(Delays { established: late, ..Delays::default() });
    let crd = CrdBuilder::new("late.test", "Widget");
    harness.declare("late", &crd, "http://function/");
    harness.server.install(&crd.build()).unwrap();
    let installed = Instant::now();
    harness.server.wait_established(&crd.name()).await;
    assert!(installed.elapsed() >= late, "{:?}", installed.elapsed());
    let established = Instant::now();
    harness
        .server
        .apply(json!({
            "apiVersion": "late.test/v1", "kind": "Widget",
            "metadata": { "name": "l", "namespace": "default" },
            "spec": { "size": 1, "text": "late" },
        }))
        .unwrap();

    harness.until("its child is created", |harness| harness.children().contains_key("l-0")).await;

    assert!(established.elapsed() < Duration::from_secs(1), "{:?}", established.elapsed());
    sleep(REPORT_DEADLINE).await;
    assert!(logs.troubles().is_empty(), "{:#?}", logs.troubles());
    let not_found = harness.server.requests().into_iter();
    let not_found: Vec<_> = not_found
        .filter(|request| request.code == Some(404) && request.user == "pilotlight")
        .filter(|request| request.info.group == "late.test")
        .collect();
    assert!(not_found.is_empty(), "requests before the type is served: {not_found:#?}");
    harness.end().await;
}
