//! Absence needs proof: no response of a server or network stops or purges anything, and everything
//! recovers afterwards.

use std::time::Duration;

use futures::future::join_all;
use kube::api::{DeleteParams, Patch, PatchParams};
use pilotlight::{
    discovery::{DiscoveryMode, DiscoveryOptions, TypeState},
    informer::InformerOptions,
    kind::TypeRef,
    manager::{ControllerState, DoneReason, TransitionKind},
    testing::{
        Action, ControlPlane, ControlPlaneOptions, CrdBuilder, Faults, Reply, RequestInfo, Rule,
        RuleId, Verb, simulated::SimulatedServer,
    },
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::support::{
    Act, ControllerVariant, Embedded, Harness, HarnessOptions, Listening, PATIENCE,
    RecordingReconciler, Server, about, counted, eventually, type_of,
};

/// Responses that a healthy server does not give.
fn bad_answers() -> Vec<(&'static str, Action)> {
    let status = |code, reason: &str| Action::Reply(Reply::status(code, reason, "by a fault"));
    vec![
        ("Plain404", Action::Reply(Reply::text(404, "404 page not found\n"))),
        ("NotFound", status(404, "NotFound")),
        ("Forbidden", status(403, "Forbidden")),
        ("Unauthorized", status(401, "Unauthorized")),
        ("Gone", status(410, "Gone")),
        ("Throttled", Action::Reply(Reply::status(429, "TooManyRequests", "").retry_after(1))),
        ("Broken", status(500, "InternalError")),
        ("Unavailable", Action::Reply(Reply::text(503, "no backend"))),
        ("Nonsense", Action::Reply(Reply::text(200, "<html>log in here</html>"))),
        ("Refused", Action::Fail("connection refused".to_owned())),
        ("Silent", Action::Hang),
    ]
}

/// Waits until a fault was hit `count` times.
pub(crate) async fn hits(harness: &Harness<'_>, rule: RuleId, count: usize) {
    let met = harness.faults.wait_until(|faults| faults.hits(rule) >= count);
    assert!(
        timeout(PATIENCE, met).await.is_ok(),
        "the fault is hit {} times",
        harness.faults.hits(rule)
    );
}

/// Asserts that a runnable is in its first epoch and has entered no other state.
pub(crate) fn assert_undisturbed(harness: &Harness<'_>, name: &str) {
    let steps: Vec<_> = harness.life(name).into_iter().map(|step| step.kind).collect();
    let stops = steps.iter().filter(|step| {
        matches!(step, TransitionKind::Done(_) | TransitionKind::Entered(ControllerState::Stopping))
    });
    assert_eq!(stops.count(), 0, "{name}: {steps:?}");
    let status = harness.status(name);
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1), "{status:#?}");
}

#[tokio::test]
async fn no_response_about_a_type_stops_its_controller_or_empties_its_cache() {
    let informers =
        InformerOptions { request_deadline: Duration::from_secs(2), ..InformerOptions::default() };
    let harness =
        Harness::with("unknown-type", HarnessOptions { informers, ..HarnessOptions::default() })
            .await;

    let cases = bad_answers().into_iter().map(|(name, fault)| {
        let harness = &harness;
        async move {
            let crd = CrdBuilder::new(&harness.scope.group, name);
            let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
            recorder.act("kept", Act::Again(Duration::from_millis(100)));
            Embedded.add(harness, name, &recorder).await;
            harness.scope.install_crd(&crd).await.unwrap();
            harness.running(name, 1).await;
            let kept = harness.create(&crd, "kept", 1).await;
            harness.create(&crd, "deleted-meanwhile", 1).await;
            recorder.saw("kept", 1).await;
            recorder.saw("deleted-meanwhile", 1).await;

            let api_resource = crd.api_resource("v1");
            let rule = Rule::new(fault)
                .verb(Verb::List)
                .verb(Verb::Watch)
                .resource(&api_resource.group, &api_resource.plural);
            let rule = harness.faults.add(rule);
            assert_eq!(harness.faults.cut_open(about(&crd)), 1);
            hits(harness, rule, 2).await;
            let reported = harness
                .until(name, "is stale", |it| it.report.stale || !it.report.forbidden.is_empty());
            let reported = reported.await;
            assert_ne!(reported.reason, "Running", "{name}: {reported:#?}");
            // Reconciles continue with the cache, flagged stale.
            recorder.clear();
            let stale = recorder.until("a stale reconcile", |seen| seen.stale).await;
            assert_eq!(stale.uid.as_ref(), Some(&kept), "{name}: the cache is kept");
            let api = harness.scope.api(&crd, "v1");
            let change = Patch::Merge(json!({ "spec": { "size": 2 } }));
            api.patch("kept", &PatchParams::default(), &change).await.unwrap();
            harness.create(&crd, "created-meanwhile", 1).await;
            api.delete("deleted-meanwhile", &DeleteParams::default()).await.unwrap();
            let is_served =
                harness.cluster.types.get(recorder.type_ref()).state == TypeState::Served;
            assert!(is_served, "{name}: an answer about objects does not change the type");
            harness.faults.remove(rule);

            recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
            recorder.saw("created-meanwhile", 1).await;
            recorder
                .until("the deletion", |it| it.name == "deleted-meanwhile" && it.uid.is_none())
                .await;
            harness.until(name, "is current again", |it| it.reason == "Running").await;
            let purged = recorder.all().into_iter().filter(|it| it.name == "kept");
            assert!(purged.into_iter().all(|seen| seen.uid.as_ref() == Some(&kept)), "{name}");
            assert_undisturbed(harness, name);
        }
    });
    join_all(cases).await;

    harness.end().await.unwrap();
}

#[tokio::test]
async fn a_watch_that_breaks_or_expires_is_resumed() {
    let harness = Harness::start("unknown-watch").await;
    let expired = json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
        "reason": "Expired", "message": "too old resource version: 1 (2)",
    } });
    let faults = [
        ("Expired", Action::Reply(Reply::json(&expired)), 1),
        ("Ended", Action::End { after_bytes: 0 }, 3),
        ("Cut", Action::Cut { after_bytes: 0 }, 3),
        ("Torn", Action::Cut { after_bytes: 20 }, 1),
    ];

    let cases = faults.into_iter().map(|(name, fault, times)| {
        let harness = &harness;
        async move {
            let crd = CrdBuilder::new(&harness.scope.group, name);
            let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
            Listening.add(harness, name, &recorder).await;
            harness.scope.install_crd(&crd).await.unwrap();
            harness.running(name, 1).await;
            harness.create(&crd, "before", 1).await;
            recorder.saw("before", 1).await;

            let resource = crd.api_resource("v1");
            let rule = Rule::new(fault)
                .verb(Verb::Watch)
                .resource(&resource.group, &resource.plural)
                .times(times);
            let rule = harness.faults.add(rule);
            harness.faults.cut_open(about(&crd));
            // For the watch that breaks in the middle of a line.
            harness.create(&crd, "meanwhile", 1).await;
            hits(harness, rule, times).await;

            recorder.saw("meanwhile", 1).await;
            harness.create(&crd, "after", 1).await;
            recorder.saw("after", 1).await;
            assert!(recorder.all().iter().all(|seen| seen.uid.is_some()), "{name}: no deletion");
            assert_undisturbed(harness, name);
        }
    });
    join_all(cases).await;

    harness.end().await.unwrap();
}

#[tokio::test]
async fn no_response_about_crds_stops_a_controller() {
    let cases = bad_answers().into_iter().map(|(name, fault)| async move {
        let harness = Harness::start(&format!("unknown-crds-{name}")).await;
        let widgets = harness.widgets();
        let gone = CrdBuilder::new(&harness.scope.group, "Goner");
        let late = CrdBuilder::new(&harness.scope.group, "Latecomer");
        let [kept, going, coming] =
            [&widgets, &gone, &late].map(|it| RecordingReconciler::new(type_of(it, "v1")));
        Embedded.add(&harness, "kept", &kept).await;
        Embedded.add(&harness, "going", &going).await;
        Embedded.add(&harness, "coming", &coming).await;
        harness.scope.install_crd(&widgets).await.unwrap();
        harness.scope.install_crd(&gone).await.unwrap();
        harness.running("kept", 1).await;
        harness.running("going", 1).await;
        let is_refusal = name == "Forbidden";
        let is_silent = matches!(fault, Action::Hang);
        let is_crds = |info: &RequestInfo| info.resource == "customresourcedefinitions";

        let rule = Rule::new(fault)
            .verb(Verb::List)
            .verb(Verb::Watch)
            .resource("apiextensions.k8s.io", "customresourcedefinitions");
        let rule = harness.faults.add(rule);
        assert_eq!(harness.faults.cut_open(is_crds), 1);
        hits(&harness, rule, if is_silent { 1 } else { 4 }).await;
        if is_refusal {
            // The refusal is lasting, so that types are polled from now on.
            let mut mode = harness.cluster.types.mode();
            let polled = mode.wait_for(|mode| matches!(mode, DiscoveryMode::Static(_)));
            timeout(PATIENCE, polled).await.expect("polled in time").unwrap();
        }
        let health = harness.cluster.types.health().crds;
        assert!(is_silent || health.error.is_some(), "{name}: no error is reported: {health:?}");
        harness.scope.delete_crd(&gone).await.unwrap();
        harness.scope.wait_gone(&gone).await.unwrap();
        harness.scope.install_crd(&late).await.unwrap();
        harness.scope.wait_established(&widgets).await.unwrap();
        harness.create(&widgets, "meanwhile", 1).await;
        kept.saw("meanwhile", 1).await;
        assert_undisturbed(&harness, "kept");
        harness.faults.remove(rule);

        assert_eq!(harness.done("going", 1).await, DoneReason::TypeGone, "{name}");
        harness.state("coming", ControllerState::Running).await;
        let health = eventually("CRDs are current", || {
            let health = harness.cluster.types.health().crds;
            if health.stale_since.is_none() { Ok(health) } else { Err(format!("{health:?}")) }
        });
        assert_eq!(health.await.error, None);
        let mut mode = harness.cluster.types.mode();
        let watching = mode.wait_for(|mode| *mode == DiscoveryMode::Watching);
        timeout(PATIENCE, watching).await.expect("watched again in time").unwrap();
        assert_undisturbed(&harness, "kept");
        harness.end().await.unwrap();
    });
    join_all(cases).await;
}

#[tokio::test]
async fn partial_discovery_stops_nothing() {
    let stale = |answer: &mut Value| {
        for group in answer["items"].as_array_mut().into_iter().flatten() {
            for version in group["versions"].as_array_mut().into_iter().flatten() {
                version["freshness"] = json!("Stale");
                version["resources"] = json!([]);
            }
        }
    };
    let faults = [
        ("stale", Action::edit(stale)),
        ("empty", Action::edit(|answer| answer["items"] = json!([]))),
        ("missing", Action::Reply(Reply::text(404, "404 page not found\n"))),
        ("unavailable", Action::Reply(Reply::status(503, "ServiceUnavailable", ""))),
        ("forbidden", Action::Reply(Reply::status(403, "Forbidden", ""))),
        ("cut", Action::Cut { after_bytes: 1000 }),
    ];
    let cases =
        faults.into_iter().flat_map(|fault| ["/api", "/apis"].map(|path| (fault.clone(), path)));
    let cases = cases.map(|((name, fault), path)| async move {
        let discovery = DiscoveryOptions {
            backstop: Duration::from_millis(100),
            ..DiscoveryOptions::default()
        };
        let options = HarnessOptions { discovery, ..HarnessOptions::default() };
        let harness = Harness::with(&format!("unknown-discovery-{name}"), options).await;
        let crd = harness.widgets();
        harness.scope.install_crd(&crd).await.unwrap();
        let types = [
            ("widgets", type_of(&crd, "v1")),
            ("configmaps", TypeRef::resource("", "v1", "configmaps")),
            ("deployments", TypeRef::resource("apps", "v1", "deployments")),
        ];
        for (name, type_ref) in &types {
            Listening.add(&harness, name, &RecordingReconciler::new(type_ref.clone())).await;
            harness.running(name, 1).await;
        }

        let rule = Rule::new(fault).verb(Verb::Get).path_is(path);
        let rule = harness.faults.add(rule);
        hits(&harness, rule, 6).await;

        for (type_name, type_ref) in &types {
            let state = harness.cluster.types.get(type_ref).state;
            let known = matches!(&state, TypeState::Served)
                || matches!(&state, TypeState::Unknown(Some(last)) if **last == TypeState::Served);
            assert!(known, "{name} {path}: {type_name} is {state:?}");
            assert_undisturbed(&harness, type_name);
        }
        harness.faults.remove(rule);
        for (type_name, type_ref) in &types {
            harness.type_state(type_ref, "is served again", |it| *it == TypeState::Served).await;
            assert_undisturbed(&harness, type_name);
        }
        harness.end().await.unwrap();
    });
    join_all(cases).await;
}

#[tokio::test]
async fn an_api_server_that_restarts_stops_nothing() {
    let options = ControlPlaneOptions { controller_manager: false, ..Default::default() };
    let plane = ControlPlane::start(options).await.unwrap();
    let harness = Harness::on(&plane, "unknown-restart", HarnessOptions::default()).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    recorder.act("kept", Act::Again(Duration::from_millis(100)));
    let maps = RecordingReconciler::new(TypeRef::resource("", "v1", "configmaps"));
    Embedded.add(&harness, "widgets", &recorder).await;
    Listening.add(&harness, "maps", &maps).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running("widgets", 1).await;
    harness.running("maps", 1).await;
    let kept = harness.create(&crd, "kept", 1).await;
    recorder.saw("kept", 1).await;

    plane.stop_api_server().await;
    harness.until("widgets", "is stale", |it| it.report.stale).await;
    recorder.clear();
    let stale = recorder.until("a stale reconcile", |seen| seen.stale).await;
    assert_eq!(stale.uid.as_ref(), Some(&kept));
    plane.start_api_server().await.unwrap();

    harness.until("widgets", "is current again", |it| it.reason == "Running").await;
    harness.create(&crd, "after", 1).await;
    recorder.saw("after", 1).await;
    let late = CrdBuilder::new(&harness.scope.group, "Latecomer");
    let latecomers = RecordingReconciler::new(type_of(&late, "v1"));
    Embedded.add(&harness, "late", &latecomers).await;
    harness.scope.install_crd(&late).await.unwrap();
    harness.running("late", 1).await;
    assert_undisturbed(&harness, "widgets");
    assert_undisturbed(&harness, "maps");
    assert!(recorder.all().iter().all(|seen| seen.uid.is_some()), "nothing is purged");
    harness.end().await.unwrap();
    plane.stop().await;
}

#[tokio::test]
async fn types_are_polled_and_reported_without_the_right_to_watch_crds() {
    let discovery =
        DiscoveryOptions { static_interval: Duration::from_millis(500), ..Default::default() };
    let options = HarnessOptions { discovery, ..HarnessOptions::powerless() };
    let harness = Harness::with("unknown-static", options).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    harness
        .grant("widgets", &[crate::support::Rule::all_of(&harness.scope.group, "widgets")])
        .await;
    Embedded.add(&harness, "polled", &recorder).await;

    let mut mode = harness.cluster.types.mode();
    let said =
        timeout(PATIENCE, mode.wait_for(|mode| matches!(mode, DiscoveryMode::Static(_)))).await;
    let DiscoveryMode::Static(reason) = said.expect("in time").unwrap().clone() else {
        unreachable!()
    };
    assert!(reason.contains("customresourcedefinitions") && reason.contains("grant"), "{reason}");
    harness.until("polled", "waits", |it| it.reason == "TypeAbsent").await;

    for epoch in 1..=2 {
        harness.scope.install_crd(&crd).await.unwrap();
        harness.running("polled", epoch).await;
        let uid = harness.create(&crd, "found", 1).await;
        assert_eq!(recorder.saw("found", epoch).await.uid, Some(uid));
        harness.scope.delete_crd(&crd).await.unwrap();
        assert_eq!(harness.done("polled", epoch).await, DoneReason::TypeGone);
        harness.scope.wait_gone(&crd).await.unwrap();
    }
    assert_eq!(harness.assert_orderly("polled"), 2);
    harness.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn controller_survives_a_watch_that_is_cut_at_any_byte_of_an_event() {
    let server = Server::Simulated(SimulatedServer::new());
    let harness = Harness::at(server, "any-byte", HarnessOptions::default()).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    Embedded.add(&harness, "cut", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running("cut", 1).await;
    harness.create(&crd, "w", 0).await;
    recorder.saw("w", 1).await;

    let (is_about, widgets) = (about(&crd), harness.scope.api(&crd, "v1"));
    let of_widgets = crd.api_resource("v1");
    let cut_after = |after_bytes| {
        let cut = Rule::new(Action::Cut { after_bytes }).verb(Verb::Watch).times(1);
        cut.resource(of_widgets.group.as_str(), of_widgets.plural.as_str())
    };
    let watched = |faults: &Faults| {
        let mut open = faults.open().into_iter();
        open.any(|it| it.answered && it.info.verb == Verb::Watch && is_about(&it.info))
    };
    // The loop ends when a cut is too late: a watch sends nothing before its first event.
    let mut cuts = 0;
    while harness.faults.fired().len() == cuts {
        timeout(PATIENCE, harness.faults.wait_until(watched)).await.unwrap();
        // A watch that has lasted is followed by the next without a pause.
        sleep(PATIENCE).await;
        let cut = harness.faults.add(cut_after(cuts));
        harness.faults.cut_open(&is_about);
        hits(&harness, cut, 1).await;
        let size = cuts + 1;
        let change = Patch::Merge(json!({ "spec": { "size": size } }));
        widgets.patch("w", &PatchParams::default(), &change).await.unwrap();

        recorder.until("the change", |seen| seen.size == i64::try_from(size).ok()).await;
        recorder.clear();
        cuts += 1;
    }

    counted(format_args!("bytes of an event after each of which its watch was cut: {}", cuts - 1));
    assert!(cuts > 300, "an event has more bytes: {cuts}");
    assert_undisturbed(&harness, "cut");
    harness.end().await.unwrap();
}
