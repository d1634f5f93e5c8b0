//! Scenarios 1 to 10: types are installed.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::{
    ByteString,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceConversion, WebhookClientConfig, WebhookConversion,
    },
};
use kube::api::PostParams;
use pilotlight::{
    controller::{Controller, Handler},
    discovery::TypeState,
    manager::{ControllerState, DoneReason, RunnableStatus, UnmetRequirement},
    testing::{Action, AuditEvent, CrdBuilder, Reply, RequestInfo, Rule, Verb, simulated::Delays},
};
use serde_json::{Value, json};
use tokio::{
    select,
    time::{self, Instant, timeout},
};

use super::{
    Testbed,
    change::{change_crd, watched_again},
    many::most_lists_at_once,
};
use crate::support::{
    ControllerVariant, Embedded, PATIENCE, RecordingReconciler, Server, eventually, metrics_text,
    type_of,
};

scenarios! {
    1 a_controller_waits_for_an_absent_type both:
        "Waiting for TypeAbsent, the manager ready; no request about the type";
    2 a_type_that_appears_starts_its_controller both:
        "Running once the type is established; each existing object is reconciled once";
    3 a_type_that_is_established_late_starts_its_controller_once
        alone("--apiserver-count=3"):
        "Waiting for NotEstablished during the 5 s in which a server with replicas delays it; \
         404s of a late replica are retried within milliseconds: no status reports an error, no \
         failure, no restart, and no 404 counts as a removal";
    4 a_type_whose_names_are_taken_starts_when_they_are_free both:
        "Waiting for NamesNotAccepted with the text of the conflict; starts without a restart \
         when the names are free";
    5 a_type_with_an_invalid_bundle_starts_when_that_is_fixed
        both:
        "Waiting for InvalidCABundle with the server's message, and no request for the type; \
         starts when the bundle is fixed";
    6 a_controller_waits_for_an_unserved_version both:
        "Waiting for VersionNotServed, which names the served versions; a controller of any \
         version runs at once";
    7 a_thousand_types_in_one_burst_start_in_turn
        alone:
        "1000 (40 on the real server): each starts once and is listed once, in the order of \
         arrival, at most 16 at a time, so that only the queue of lists delays the last one; the \
         types are evaluated once for a burst of events; no request to discovery";
    8 a_controller_of_three_types_starts_after_the_last both:
        "starts once, after the last type; if a type is removed during the start, the start is \
         cancelled and leaves nothing running";
    9 an_optional_type_joins_a_running_controller both:
        "Running and Degraded without the optional type; when it is installed, one watch is added \
         without a restart";
    10 a_type_removed_during_its_first_list_cancels_the_start both:
        "the start is cancelled at once, leaves nothing running, and the controller is Waiting \
         again";
}

async fn a_controller_waits_for_an_absent_type(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-absent").await;
    let crd = testbed.widgets();

    testbed.controller("patient", &crd).await;

    let waiting = testbed.until("patient", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert_eq!(waiting.unmet[0].type_ref.as_ref(), Some(&type_of(&crd, "v1")));
    assert_eq!(testbed.status("cluster").state, ControllerState::Running);
    assert!(testbed.requests(&crd, testbed.begin).await.is_empty(), "no request for the type");
    assert_eq!(testbed.assert_orderly("patient"), 0);
    testbed.finish().await;
}

async fn a_type_that_appears_starts_its_controller(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-comes").await;
    let crd = testbed.widgets();
    let early = testbed.controller("early", &crd).await;

    testbed.install(&crd).await;
    testbed.at_once(testbed.running("early", 1)).await;
    for name in ["a", "b"] {
        testbed.create(&crd, name, 1).await;
    }
    let late = testbed.controller("late", &crd).await;

    testbed.at_once(testbed.running("late", 1)).await;
    for recorder in [early, late] {
        recorder.count(2, |seen| seen.uid.is_some()).await;
        let mut names: Vec<_> = recorder.all().into_iter().map(|seen| seen.name).collect();
        names.sort();
        assert_eq!(names, ["a", "b"], "each once");
    }
    assert_eq!(testbed.open_watches(&crd).await, 1, "they share a watch");
    testbed.finish().await;
}

async fn a_type_that_is_established_late_starts_its_controller_once(server: Server<'static>) {
    let hold = Duration::from_secs(5);
    if let Some(script) = server.script() {
        script.set_delays(Delays { established: hold, ..Delays::default() });
    }
    let testbed = Testbed::on(server, "appear-late").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("late", &crd).await;
    // Responses of a late replica that does not serve the CRD yet.
    let lags = [Verb::List, Verb::Watch].map(|verb| {
        let not_found = Action::Reply(Reply::text(404, "404 page not found\n"));
        testbed.faults.add(Rule::new(not_found).group(&testbed.scope.group).verb(verb).times(2))
    });

    let life = async {
        let begun = Instant::now();
        testbed.scope.install_crd(&crd).await.unwrap();
        let waits = |it: &RunnableStatus| it.unmet.iter().any(is_not_established);
        let waiting = testbed.until("late", "waits", waits).await;
        assert_eq!(waiting.state, ControllerState::Waiting);
        testbed.scope.wait_established(&crd).await.unwrap();
        assert!(begun.elapsed() >= hold, "established before the delay ended");
        testbed.at_once(testbed.running("late", 1)).await;
        watched_again(&testbed, &crd, 2).await;
    };
    select! {
        () = life => {}
        failed = until_error(&testbed, "late") => panic!("{failed:#?}"),
    }

    assert_eq!(lags.map(|lag| testbed.faults.hits(lag)), [2, 2], "all faults were hit");
    let state = testbed.cluster.types.get(recorder.type_ref()).state;
    assert_eq!(state, TypeState::Served, "a 404 counted as a removal");
    let status = testbed.status("late");
    assert_eq!((status.epoch, status.failures), (1, 0));
    assert_eq!(testbed.assert_orderly("late"), 0, "no epoch has ended");
    testbed.create(&crd, "gear", 1).await;
    recorder.saw("gear", 1).await;
    testbed.finish().await;
}

/// Waits for a status with an error and returns it.
async fn until_error(testbed: &Testbed, name: &str) -> Arc<RunnableStatus> {
    let mut snapshots = testbed.manager.watch();
    loop {
        let status = snapshots.borrow_and_update().get(&name.into()).cloned();
        let is_bad = |it: &Arc<RunnableStatus>| {
            let report = &it.report;
            let watches = report.watches.iter().any(|watch| watch.error.is_some());
            watches || report.stale || it.last_error().is_some() || it.failures > 0
        };
        // While it is Waiting, the errors of its watches are the reason for which it waits.
        let begun = status.filter(|it| it.state != ControllerState::Waiting && it.epoch > 0);
        if let Some(bad) = begun.filter(is_bad) {
            return bad;
        }
        snapshots.changed().await.expect("the manager runs");
    }
}

async fn a_type_whose_names_are_taken_starts_when_they_are_free(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-names").await;
    let first = testbed.widgets();
    let second = testbed.widgets().plural("gadgets");
    testbed.install(&first).await;
    let recorder = testbed.controller("second", &second).await;

    testbed.scope.install_crd(&second).await.unwrap();

    let refused = "NamesNotAccepted";
    let waiting = testbed.until("second", "waits", |it| it.reason == refused).await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("already in use"), "{}", waiting.message);
    assert!(testbed.requests(&second, testbed.begin).await.is_empty(), "no request for the type");

    testbed.uninstall(&first).await;
    testbed.scope.wait_established(&second).await.unwrap();
    testbed.at_once(testbed.running("second", 1)).await;

    assert_eq!(testbed.assert_orderly("second"), 0, "no epoch has ended");
    testbed.create(&second, "gear", 1).await;
    recorder.saw("gear", 1).await;
    testbed.finish().await;
}

async fn a_type_with_an_invalid_bundle_starts_when_that_is_fixed(server: Server<'static>) {
    if let Some(script) = server.script() {
        // Practically never.
        let established = Duration::from_secs(86_400);
        script.set_delays(Delays { established, ..Delays::default() });
    }
    let testbed = Testbed::on(server, "appear-bundle").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("bundle", &crd).await;

    if testbed.server.is_simulated() {
        // The simulated server implements no conversion; the test sets the status that the real
        // server sets.
        testbed.scope.install_crd(&crd).await.unwrap();
        testbed.until("bundle", "waits", |it| it.unmet.iter().any(is_not_established)).await;
        testbed.edit_crd_status(&crd, established_is("False", "InvalidCABundle")).await;
    } else {
        let mut object = crd.build();
        object.spec.conversion = Some(converted_by(Some("no certificate")));
        testbed.crds().create(&PostParams::default(), &object).await.unwrap();
    }

    let waiting = testbed.until("bundle", "waits", |it| it.reason == "InvalidCABundle").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    let said = "it is not established: The conversion webhook CABundle is invalid";
    assert!(waiting.message.contains(said), "{}", waiting.message);
    assert!(testbed.requests(&crd, testbed.begin).await.is_empty(), "no request for the type");

    if testbed.server.is_simulated() {
        testbed.edit_crd_status(&crd, established_is("True", "InitialNamesAccepted")).await;
    } else {
        change_crd(&testbed, &crd, |crd| crd.spec.conversion = Some(converted_by(None))).await;
    }

    testbed.at_once(testbed.running("bundle", 1)).await;
    testbed.create(&crd, "gear", 1).await;
    recorder.saw("gear", 1).await;
    assert_eq!(testbed.assert_orderly("bundle"), 0, "no epoch has ended");
    testbed.finish().await;
}

/// Conversion by a webhook whose certificate is signed by this authority; it is never called.
fn converted_by(authority: Option<&str>) -> CustomResourceConversion {
    CustomResourceConversion {
        strategy: "Webhook".to_owned(),
        webhook: Some(WebhookConversion {
            client_config: Some(WebhookClientConfig {
                url: Some("https://127.0.0.1:1/convert".to_owned()),
                ca_bundle: authority.map(|it| ByteString(it.into())),
                ..WebhookClientConfig::default()
            }),
            conversion_review_versions: vec!["v1".to_owned()],
        }),
    }
}

/// Merge patch of the conditions `NamesAccepted` and `Established`.
fn established_is(status: &str, reason: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "The conversion webhook CABundle is invalid",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let names = condition("NamesAccepted", "True", "NoConflicts");
    json!({ "status": { "conditions": [names, condition("Established", status, reason)] } })
}

fn is_not_established(unmet: &UnmetRequirement) -> bool {
    unmet.reason == "NotEstablished"
}

async fn a_controller_waits_for_an_unserved_version(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-version").await;
    let crd = testbed.widgets().version("v2").unserved_version("v1");
    let strict = testbed.controller("strict", &crd).await;
    let lenient = RecordingReconciler::new(type_of(&crd, "v1").any_version());
    Embedded.add(&testbed, "lenient", &lenient).await;

    testbed.scope.install_crd(&crd).await.unwrap();
    testbed.scope.wait_established(&crd).await.unwrap();
    testbed.scope.wait_served(&crd, "v2").await.unwrap();
    testbed.at_once(testbed.running("lenient", 1)).await;

    let waiting = testbed.until("strict", "waits", |it| it.reason == "VersionNotServed").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("served are v2"), "{}", waiting.message);
    let object = crd.object("gear", json!({ "size": 1 }));
    testbed.scope.api(&crd, "v2").create(&PostParams::default(), &object).await.unwrap();
    lenient.saw("gear", 1).await;
    assert!(strict.all().is_empty());
    let sent = testbed.requests(&crd, testbed.begin).await;
    assert!(sent.iter().all(|event| event.version == "v2"), "{sent:#?}");

    testbed.scope.set_served(&crd, "v1", true).await.unwrap();

    testbed.scope.wait_served(&crd, "v1").await.unwrap();
    testbed.at_once(testbed.running("strict", 1)).await;
    strict.saw("gear", 1).await;
    testbed.finish().await;
}

async fn a_thousand_types_in_one_burst_start_in_turn(server: Server<'static>) {
    const LISTS: usize = 16;
    let is_simulated = server.is_simulated();
    let (early, late) = if is_simulated { (900, 100) } else { (30, 10) };
    let types = early + late;
    let latency = Duration::from_millis(10);
    let testbed = Testbed::on(server, "appear-burst").await;
    if let Some(script) = testbed.server.script() {
        script.set_delays(Delays { latency, ..Delays::default() });
    }
    // Ten types per group, because each group version also has an APIService.
    let crd = |number: usize| {
        let group = format!("g{}.{}", number / 10, testbed.scope.group);
        CrdBuilder::new(group, format!("Widget{number}"))
    };
    let name = |number: usize| format!("burst-{number}");
    for number in 0..types {
        testbed.controller(&name(number), &crd(number)).await;
    }
    testbed.cluster.types.synced().await;
    let (position, updates) = (testbed.position(), updates(&testbed));

    let is_widget = |info: &RequestInfo| info.resource.starts_with("widget");
    let burst = async {
        install_all(&testbed, (0..early).map(crd)).await;
        // The first lists are running, and more lists are queued than may run.
        time::sleep(latency * 10).await;
        install_all(&testbed, (early..types).map(crd)).await;
        let begun = Instant::now();
        for number in 0..types {
            testbed.running(&name(number), 1).await;
        }
        begun.elapsed()
    };
    let (took, most) = most_lists_at_once(&testbed.faults, is_widget, burst).await;

    assert!(most <= LISTS, "{most} lists at once");
    let mut events = testbed.events(position).await;
    let discovery: Vec<_> = events.iter().filter(|event| event.resource.is_empty()).collect();
    assert!(discovery.is_empty(), "{discovery:#?}");
    events.retain(|event| event.verb == "list" && event.resource.starts_with("widget"));
    if !is_simulated {
        // On the real server a type may answer 404 although it is established.
        events.retain(|event| event.code == Some(200));
    }
    events.sort_by(|a, b| (&a.audit_id, a.received.0).cmp(&(&b.audit_id, b.received.0)));
    events.dedup_by(|a, b| a.audit_id == b.audit_id);
    assert_eq!(events.len(), types, "each is listed once");
    if is_simulated {
        assert_eq!(most, LISTS, "the cap is reached");
        let begin = |is_late: bool| {
            let number = |event: &&AuditEvent| {
                event.resource.trim_matches(char::is_alphabetic).parse::<usize>().unwrap()
            };
            let those = events.iter().filter(move |it| (number(it) >= early) == is_late);
            those.map(|event| event.received.0).collect::<Vec<_>>()
        };
        let (last, first) = (begin(false).into_iter().max(), begin(true).into_iter().min());
        assert!(last <= first, "lists start in the order of arrival: {last:?}, {first:?}");
        let turns = u32::try_from(types.div_ceil(LISTS)).unwrap();
        assert!(took < latency * turns, "{took:?}: only the queue of lists delays the last one");
        // Each CRD causes three events: creation, accepted names, establishment. One burst holds
        // 64.
        let bursts = u64::try_from(types * 3 / 64).unwrap();
        let more = self::updates(&testbed) - updates;
        assert!(more <= bursts * 2, "{more} times");
    }
    for number in 0..types {
        assert_eq!(testbed.assert_orderly(&name(number)), 0, "no epoch has ended");
    }
    testbed.finish().await;
}

/// Installs all CRDs at once.
async fn install_all(testbed: &Testbed, crds: impl Iterator<Item = CrdBuilder>) {
    match testbed.server.script() {
        Some(script) => crds.for_each(|crd| drop(script.install(&crd.build()).unwrap())),
        None => {
            let crds: Vec<_> = crds.collect();
            join_all(crds.iter().map(|crd| testbed.scope.install_crd(crd))).await;
        }
    }
}

/// Number of evaluations of the types.
fn updates(testbed: &Testbed) -> u64 {
    let text = metrics_text(&testbed.metrics);
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("pilotlight_discovery_updates_total "));
    line.unwrap().parse().unwrap()
}

async fn a_controller_of_three_types_starts_after_the_last(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-three").await;
    let crds = ["Widget", "Part", "Tool"].map(|kind| CrdBuilder::new(&testbed.scope.group, kind));
    let [widgets, parts, tools] = &crds;
    let recorder = RecordingReconciler::new(type_of(widgets, "v1"));
    let controller = Controller::builder("three")
        .for_type(type_of(widgets, "v1"))
        .conditional()
        .watches_type(type_of(parts, "v1"), Handler::Object)
        .conditional()
        .watches_type(type_of(tools, "v1"), Handler::Object)
        .conditional()
        .build(&testbed.cluster, recorder.clone())
        .unwrap();
    testbed.add("three", Arc::new(controller)).await;
    for crd in [widgets, parts] {
        testbed.install(crd).await;
    }
    let waits_for_tools = |it: &RunnableStatus| {
        it.unmet.len() == 1 && it.unmet[0].type_ref.as_ref() == Some(&type_of(tools, "v1"))
    };
    testbed.until("three", "waits for one more", waits_for_tools).await;
    for crd in &crds {
        assert!(testbed.requests(crd, testbed.begin).await.is_empty(), "no request yet");
    }

    // During the start, one of the types is removed before it has synced.
    let held = Rule::new(Action::Hang).resource(&testbed.scope.group, "widgets");
    let held = testbed.faults.add(held);
    testbed.install(tools).await;
    testbed.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(testbed.status("three").state, ControllerState::Starting);
    testbed.scope.delete_crd(parts).await.unwrap();

    assert_eq!(testbed.done("three", 1).await, DoneReason::TypeGone);
    eventually("nothing is left running", || {
        let open = testbed.faults.open().into_iter();
        let open: Vec<_> = open.filter(|open| open.info.group == testbed.scope.group).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    assert!(testbed.cluster.informers.status().is_empty());
    testbed.scope.wait_gone(parts).await.unwrap();
    testbed.faults.remove(held);
    assert!(recorder.all().is_empty(), "no reconcile ran");

    testbed.install(parts).await;
    testbed.at_once(testbed.running("three", 2)).await;
    testbed.create(widgets, "gear", 1).await;
    recorder.saw("gear", 2).await;
    assert_eq!(testbed.assert_orderly("three"), 1);
    testbed.finish().await;
}

async fn an_optional_type_joins_a_running_controller(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-optional").await;
    let widgets = testbed.widgets();
    let parts = CrdBuilder::new(&testbed.scope.group, "Part");
    let recorder = testbed.controller_with_optional("optional", &widgets, &parts).await;
    testbed.install(&widgets).await;
    testbed.at_once(testbed.running("optional", 1)).await;
    let degraded = testbed.until("optional", "is degraded", |it| it.reason == "Degraded").await;
    assert_eq!((degraded.state, degraded.epoch), (ControllerState::Running, 1));
    assert_eq!(degraded.report.missing, [type_of(&parts, "v1")]);
    testbed.create(&widgets, "gear", 1).await;
    recorder.saw("gear", 1).await;
    let before = testbed.requests(&widgets, testbed.begin).await.len();

    testbed.install(&parts).await;

    testbed
        .at_once(
            testbed.until("optional", "has its optional type", |it| it.report.missing.is_empty()),
        )
        .await;
    testbed.create(&parts, "part", 1).await;
    recorder.until("a request about the part", |seen| seen.name == "part").await;
    assert_eq!(testbed.status("optional").epoch, 1, "no restart");
    assert_eq!(testbed.assert_orderly("optional"), 0, "no epoch has ended");
    assert_eq!(
        testbed.requests(&widgets, testbed.begin).await.len(),
        before,
        "its own watch continues"
    );
    assert_eq!(testbed.open_watches(&parts).await, 1, "one more watch");
    testbed.finish().await;
}

async fn a_type_removed_during_its_first_list_cancels_the_start(server: Server<'static>) {
    let testbed = Testbed::on(server, "appear-list").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("list", &crd).await;
    let held = Rule::new(Action::Hang).resource(&testbed.scope.group, "widgets");
    let held = testbed.faults.add(held);
    testbed.scope.install_crd(&crd).await.unwrap();
    testbed.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(testbed.status("list").state, ControllerState::Starting);

    testbed.scope.delete_crd(&crd).await.unwrap();

    let gone = testbed.type_state(recorder.type_ref(), "goes", |it| *it != TypeState::Served);
    gone.await;
    let reason = testbed.at_once(testbed.done("list", 1)).await;
    assert_eq!(reason, DoneReason::TypeGone);
    let absence = testbed.assert_absent(&crd, testbed.tasks()).await;
    testbed.faults.remove(held);
    let waiting = testbed.until("list", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    assert!(recorder.all().is_empty(), "no reconcile ran");
    timeout(PATIENCE, testbed.scope.wait_gone(&crd)).await.unwrap().unwrap();
    absence.end(&testbed).await;
    testbed.finish().await;
}
