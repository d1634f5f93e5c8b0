//! A type comes.

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
    manager::{ControllerState, DoneReason, RunnableStatus, Unmet},
    testing::{Action, AuditEvent, CrdBuilder, Reply, RequestInfo, Rule, Verb, simulated::Delays},
};
use serde_json::{Value, json};
use tokio::{
    select,
    time::{self, Instant, timeout},
};

use super::{
    World,
    change::{change_crd, watched_again},
    many::most_lists_at_once,
};
use crate::rig::{
    Carrier, Embedded, PATIENCE, Recorder, Server, eventually, metrics_text, type_of,
};

scenarios! {
    1 a_type_that_is_absent_is_waited_for both:
        "Waiting for TypeAbsent, the manager ready; no request about the type";
    2 a_type_that_appears_starts_its_controller both:
        "Running once the type is established; each object that is there is reconciled once";
    3 a_type_that_is_established_late_starts_its_controller_once
        alone("--apiserver-count=3"):
        "Waiting for NotEstablished through the hold of 5 s of a server with replicas; 404s of a \
         replica that lags are retried within milliseconds: no status tells of an error, no \
         failure, no restart, never taken for a removal";
    4 a_type_whose_names_are_taken_starts_when_they_are_free both:
        "Waiting for NamesNotAccepted with the conflict's text; starts without a restart when it \
         is resolved";
    5 a_type_with_an_invalid_bundle_starts_when_that_is_fixed
        both:
        "Waiting for InvalidCABundle with the server's message, nothing asked about the type; \
         starts on the fix";
    6 a_version_that_is_not_served_is_waited_for both:
        "Waiting for VersionNotServed, naming the versions that are served; whoever accepts any \
         version runs at once";
    7 a_thousand_types_in_one_burst_start_in_turn
        alone:
        "1000 (40 on the real server): each starts once and is listed once, in the order in which \
         they came, 16 at once and no more, so that the last one waits for its turn alone; the \
         types are judged anew once for a burst of events; no request to discovery";
    8 a_controller_of_three_types_starts_after_the_last both:
        "starts once, after the last type; if one leaves while it starts, the start is given up \
         and leaves nothing running";
    9 an_optional_type_joins_a_running_controller both:
        "Running and Degraded without the optional type; when it comes one watch is added, \
         without a restart";
    10 a_type_that_goes_during_its_first_list_is_given_up both:
        "the start is given up at once, leaves nothing running, and is Waiting again";
}

async fn a_type_that_is_absent_is_waited_for(server: Server<'static>) {
    let world = World::on(server, "appear-absent").await;
    let crd = world.widgets();

    world.controller("patient", &crd).await;

    let waiting = world.until("patient", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert_eq!(waiting.unmet[0].type_ref.as_ref(), Some(&type_of(&crd, "v1")));
    assert_eq!(world.status("cluster").state, ControllerState::Running);
    assert!(world.requests(&crd, world.begin).await.is_empty(), "nothing is asked about it");
    assert_eq!(world.assert_orderly("patient"), 0);
    world.finish().await;
}

async fn a_type_that_appears_starts_its_controller(server: Server<'static>) {
    let world = World::on(server, "appear-comes").await;
    let crd = world.widgets();
    let early = world.controller("early", &crd).await;

    world.install(&crd).await;
    world.at_once(world.running("early", 1)).await;
    for name in ["a", "b"] {
        world.create(&crd, name, 1).await;
    }
    let late = world.controller("late", &crd).await;

    world.at_once(world.running("late", 1)).await;
    for recorder in [early, late] {
        recorder.count(2, |seen| seen.uid.is_some()).await;
        let mut names: Vec<_> = recorder.all().into_iter().map(|seen| seen.name).collect();
        names.sort();
        assert_eq!(names, ["a", "b"], "each once");
    }
    assert_eq!(world.open_watches(&crd).await, 1, "they share a watch");
    world.finish().await;
}

async fn a_type_that_is_established_late_starts_its_controller_once(server: Server<'static>) {
    let hold = Duration::from_secs(5);
    if let Some(script) = server.script() {
        script.set_delays(Delays { established: hold, ..Delays::default() });
    }
    let world = World::on(server, "appear-late").await;
    let crd = world.widgets();
    let recorder = world.controller("late", &crd).await;
    // Answers of a replica that has not heard of the CRD.
    let lags = [Verb::List, Verb::Watch].map(|verb| {
        let unheard = Action::Reply(Reply::text(404, "404 page not found\n"));
        world.faults.add(Rule::new(unheard).group(&world.scope.group).verb(verb).times(2))
    });

    let life = async {
        let begun = Instant::now();
        world.scope.install_crd(&crd).await.unwrap();
        let waits = |it: &RunnableStatus| it.unmet.iter().any(is_not_established);
        let waiting = world.until("late", "waits", waits).await;
        assert_eq!(waiting.state, ControllerState::Waiting);
        world.scope.wait_established(&crd).await.unwrap();
        assert!(begun.elapsed() >= hold, "it is not established before");
        world.at_once(world.running("late", 1)).await;
        watched_again(&world, &crd, 2).await;
    };
    select! {
        () = life => {}
        told = tells_of_an_error(&world, "late") => panic!("{told:#?}"),
    }

    assert_eq!(lags.map(|lag| world.faults.hits(lag)), [2, 2], "all were met");
    let state = world.cluster.types.get(recorder.type_ref()).state;
    assert_eq!(state, TypeState::Served, "never taken for a removal");
    let status = world.status("late");
    assert_eq!((status.epoch, status.failures), (1, 0));
    assert_eq!(world.assert_orderly("late"), 0, "no epoch has ended");
    world.create(&crd, "gear", 1).await;
    recorder.saw("gear", 1).await;
    world.finish().await;
}

/// Waits for a status that tells of an error.
async fn tells_of_an_error(world: &World, name: &str) -> Arc<RunnableStatus> {
    let mut snapshots = world.manager.watch();
    loop {
        let status = snapshots.borrow_and_update().get(&name.into()).cloned();
        let is_bad = |it: &Arc<RunnableStatus>| {
            let report = &it.report;
            let watches = report.watches.iter().any(|watch| watch.error.is_some());
            watches || report.stale || it.last_error().is_some() || it.failures > 0
        };
        // While it waits, its watch says for what.
        let begun = status.filter(|it| it.state != ControllerState::Waiting && it.epoch > 0);
        if let Some(bad) = begun.filter(is_bad) {
            return bad;
        }
        snapshots.changed().await.expect("the manager runs");
    }
}

async fn a_type_whose_names_are_taken_starts_when_they_are_free(server: Server<'static>) {
    let world = World::on(server, "appear-names").await;
    let first = world.widgets();
    let second = world.widgets().plural("gadgets");
    world.install(&first).await;
    let recorder = world.controller("second", &second).await;

    world.scope.install_crd(&second).await.unwrap();

    let refused = "NamesNotAccepted";
    let waiting = world.until("second", "waits", |it| it.reason == refused).await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("already in use"), "{}", waiting.message);
    assert!(world.requests(&second, world.begin).await.is_empty(), "nothing is asked about it");

    world.uninstall(&first).await;
    world.scope.wait_established(&second).await.unwrap();
    world.at_once(world.running("second", 1)).await;

    assert_eq!(world.assert_orderly("second"), 0, "no epoch has ended");
    world.create(&second, "gear", 1).await;
    recorder.saw("gear", 1).await;
    world.finish().await;
}

async fn a_type_with_an_invalid_bundle_starts_when_that_is_fixed(server: Server<'static>) {
    if let Some(script) = server.script() {
        // As good as never.
        let established = Duration::from_secs(86_400);
        script.set_delays(Delays { established, ..Delays::default() });
    }
    let world = World::on(server, "appear-bundle").await;
    let crd = world.widgets();
    let recorder = world.controller("bundle", &crd).await;

    if world.server.is_simulated() {
        // It knows no conversion, and is told what the real one says.
        world.scope.install_crd(&crd).await.unwrap();
        world.until("bundle", "waits", |it| it.unmet.iter().any(is_not_established)).await;
        world.edit_crd_status(&crd, established_is("False", "InvalidCABundle")).await;
    } else {
        let mut object = crd.build();
        object.spec.conversion = Some(converted_by(Some("no certificate")));
        world.crds().create(&PostParams::default(), &object).await.unwrap();
    }

    let waiting = world.until("bundle", "waits", |it| it.reason == "InvalidCABundle").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    let said = "it is not established: The conversion webhook CABundle is invalid";
    assert!(waiting.message.contains(said), "{}", waiting.message);
    assert!(world.requests(&crd, world.begin).await.is_empty(), "nothing is asked about it");

    if world.server.is_simulated() {
        world.edit_crd_status(&crd, established_is("True", "InitialNamesAccepted")).await;
    } else {
        change_crd(&world, &crd, |crd| crd.spec.conversion = Some(converted_by(None))).await;
    }

    world.at_once(world.running("bundle", 1)).await;
    world.create(&crd, "gear", 1).await;
    recorder.saw("gear", 1).await;
    assert_eq!(world.assert_orderly("bundle"), 0, "no epoch has ended");
    world.finish().await;
}

/// By a webhook whose certificate is signed by this authority; it is never asked.
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

/// A merge of the two conditions that count.
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

fn is_not_established(unmet: &Unmet) -> bool {
    unmet.reason == "NotEstablished"
}

async fn a_version_that_is_not_served_is_waited_for(server: Server<'static>) {
    let world = World::on(server, "appear-version").await;
    let crd = world.widgets().version("v2").unserved_version("v1");
    let strict = world.controller("strict", &crd).await;
    let lenient = Recorder::new(type_of(&crd, "v1").any_version());
    Embedded.add(&world, "lenient", &lenient).await;

    world.scope.install_crd(&crd).await.unwrap();
    world.scope.wait_established(&crd).await.unwrap();
    world.scope.wait_served(&crd, "v2").await.unwrap();
    world.at_once(world.running("lenient", 1)).await;

    let waiting = world.until("strict", "waits", |it| it.reason == "VersionNotServed").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("served are v2"), "{}", waiting.message);
    let object = crd.object("gear", json!({ "size": 1 }));
    world.scope.api(&crd, "v2").create(&PostParams::default(), &object).await.unwrap();
    lenient.saw("gear", 1).await;
    assert!(strict.all().is_empty());
    let sent = world.requests(&crd, world.begin).await;
    assert!(sent.iter().all(|event| event.version == "v2"), "{sent:#?}");

    world.scope.set_served(&crd, "v1", true).await.unwrap();

    world.scope.wait_served(&crd, "v1").await.unwrap();
    world.at_once(world.running("strict", 1)).await;
    strict.saw("gear", 1).await;
    world.finish().await;
}

async fn a_thousand_types_in_one_burst_start_in_turn(server: Server<'static>) {
    const LISTS: usize = 16;
    let is_simulated = server.is_simulated();
    let (early, late) = if is_simulated { (900, 100) } else { (30, 10) };
    let types = early + late;
    let latency = Duration::from_millis(10);
    let world = World::on(server, "appear-burst").await;
    if let Some(script) = world.server.script() {
        script.set_delays(Delays { latency, ..Delays::default() });
    }
    // Ten of a group: each group version is an APIService, too.
    let crd = |number: usize| {
        let group = format!("g{}.{}", number / 10, world.scope.group);
        CrdBuilder::new(group, format!("Widget{number}"))
    };
    let name = |number: usize| format!("burst-{number}");
    for number in 0..types {
        world.controller(&name(number), &crd(number)).await;
    }
    world.cluster.types.heard().await;
    let (mark, updates) = (world.mark(), updates(&world));

    let is_widget = |info: &RequestInfo| info.resource.starts_with("widget");
    let burst = async {
        install_all(&world, (0..early).map(crd)).await;
        // The first are being listed, and more of them wait than can be.
        time::sleep(latency * 10).await;
        install_all(&world, (early..types).map(crd)).await;
        let begun = Instant::now();
        for number in 0..types {
            world.running(&name(number), 1).await;
        }
        begun.elapsed()
    };
    let (took, most) = most_lists_at_once(&world.faults, is_widget, burst).await;

    assert!(most <= LISTS, "{most} lists at once");
    let mut events = world.events(mark).await;
    let discovery: Vec<_> = events.iter().filter(|event| event.resource.is_empty()).collect();
    assert!(discovery.is_empty(), "{discovery:#?}");
    events.retain(|event| event.verb == "list" && event.resource.starts_with("widget"));
    if !is_simulated {
        // Established or not, the real one may not have heard of a type that it is asked for.
        events.retain(|event| event.code == Some(200));
    }
    events.sort_by(|a, b| (&a.audit_id, a.received.0).cmp(&(&b.audit_id, b.received.0)));
    events.dedup_by(|a, b| a.audit_id == b.audit_id);
    assert_eq!(events.len(), types, "each is listed once");
    if is_simulated {
        assert_eq!(most, LISTS, "what may be used is used");
        let begin = |is_late: bool| {
            let number = |event: &&AuditEvent| {
                event.resource.trim_matches(char::is_alphabetic).parse::<usize>().unwrap()
            };
            let those = events.iter().filter(move |it| (number(it) >= early) == is_late);
            those.map(|event| event.received.0).collect::<Vec<_>>()
        };
        let (last, first) = (begin(false).into_iter().max(), begin(true).into_iter().min());
        assert!(last <= first, "nobody is overtaken: {last:?}, {first:?}");
        let turns = u32::try_from(types.div_ceil(LISTS)).unwrap();
        assert!(took < latency * turns, "{took:?}: the last one waits for its turn alone");
        // Of each CRD its creation, its names and its establishment; 64 events at a time.
        let bursts = u64::try_from(types * 3 / 64).unwrap();
        let more = self::updates(&world) - updates;
        assert!(more <= bursts * 2, "{more} times");
    }
    for number in 0..types {
        assert_eq!(world.assert_orderly(&name(number)), 0, "no epoch has ended");
    }
    world.finish().await;
}

/// Installs all of them at once.
async fn install_all(world: &World, crds: impl Iterator<Item = CrdBuilder>) {
    match world.server.script() {
        Some(script) => crds.for_each(|crd| drop(script.install(&crd.build()).unwrap())),
        None => {
            let crds: Vec<_> = crds.collect();
            join_all(crds.iter().map(|crd| world.scope.install_crd(crd))).await;
        }
    }
}

/// How often the types were judged anew.
fn updates(world: &World) -> u64 {
    let text = metrics_text(&world.metrics);
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("pilotlight_discovery_updates_total "));
    line.unwrap().parse().unwrap()
}

async fn a_controller_of_three_types_starts_after_the_last(server: Server<'static>) {
    let world = World::on(server, "appear-three").await;
    let crds = ["Widget", "Part", "Tool"].map(|kind| CrdBuilder::new(&world.scope.group, kind));
    let [widgets, parts, tools] = &crds;
    let recorder = Recorder::new(type_of(widgets, "v1"));
    let controller = Controller::builder("three")
        .for_type(type_of(widgets, "v1"))
        .conditional()
        .watches_type(type_of(parts, "v1"), Handler::Object)
        .conditional()
        .watches_type(type_of(tools, "v1"), Handler::Object)
        .conditional()
        .build(&world.cluster, recorder.clone())
        .unwrap();
    world.add("three", Arc::new(controller)).await;
    for crd in [widgets, parts] {
        world.install(crd).await;
    }
    let waits_for_tools = |it: &RunnableStatus| {
        it.unmet.len() == 1 && it.unmet[0].type_ref.as_ref() == Some(&type_of(tools, "v1"))
    };
    world.until("three", "waits for one more", waits_for_tools).await;
    for crd in &crds {
        assert!(world.requests(crd, world.begin).await.is_empty(), "nothing is asked yet");
    }

    // It starts, and one of them leaves before it is synced.
    let held = Rule::new(Action::Hang).resource(&world.scope.group, "widgets");
    let held = world.faults.add(held);
    world.install(tools).await;
    world.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(world.status("three").state, ControllerState::Starting);
    world.scope.delete_crd(parts).await.unwrap();

    assert_eq!(world.done("three", 1).await, DoneReason::TypeGone);
    eventually("nothing is left running", || {
        let open = world.faults.open().into_iter();
        let open: Vec<_> = open.filter(|open| open.info.group == world.scope.group).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    assert!(world.cluster.informers.status().is_empty());
    world.scope.wait_gone(parts).await.unwrap();
    world.faults.remove(held);
    assert!(recorder.all().is_empty(), "it never ran");

    world.install(parts).await;
    world.at_once(world.running("three", 2)).await;
    world.create(widgets, "gear", 1).await;
    recorder.saw("gear", 2).await;
    assert_eq!(world.assert_orderly("three"), 1);
    world.finish().await;
}

async fn an_optional_type_joins_a_running_controller(server: Server<'static>) {
    let world = World::on(server, "appear-optional").await;
    let widgets = world.widgets();
    let parts = CrdBuilder::new(&world.scope.group, "Part");
    let recorder = world.controller_with_optional("optional", &widgets, &parts).await;
    world.install(&widgets).await;
    world.at_once(world.running("optional", 1)).await;
    let degraded = world.until("optional", "is degraded", |it| it.reason == "Degraded").await;
    assert_eq!((degraded.state, degraded.epoch), (ControllerState::Running, 1));
    assert_eq!(degraded.report.missing, [type_of(&parts, "v1")]);
    world.create(&widgets, "gear", 1).await;
    recorder.saw("gear", 1).await;
    let before = world.requests(&widgets, world.begin).await.len();

    world.install(&parts).await;

    world.at_once(world.until("optional", "is whole", |it| it.report.missing.is_empty())).await;
    world.create(&parts, "part", 1).await;
    recorder.until("a request about the part", |seen| seen.name == "part").await;
    assert_eq!(world.status("optional").epoch, 1, "no restart");
    assert_eq!(world.assert_orderly("optional"), 0, "no epoch has ended");
    assert_eq!(world.requests(&widgets, world.begin).await.len(), before, "its own watch goes on");
    assert_eq!(world.open_watches(&parts).await, 1, "one watch more");
    world.finish().await;
}

async fn a_type_that_goes_during_its_first_list_is_given_up(server: Server<'static>) {
    let world = World::on(server, "appear-list").await;
    let crd = world.widgets();
    let recorder = world.controller("list", &crd).await;
    let held = Rule::new(Action::Hang).resource(&world.scope.group, "widgets");
    let held = world.faults.add(held);
    world.scope.install_crd(&crd).await.unwrap();
    world.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(world.status("list").state, ControllerState::Starting);

    world.scope.delete_crd(&crd).await.unwrap();

    let gone = world.type_state(recorder.type_ref(), "goes", |it| *it != TypeState::Served);
    gone.await;
    let reason = world.at_once(world.done("list", 1)).await;
    assert_eq!(reason, DoneReason::TypeGone);
    let absence = world.assert_absent(&crd, world.tasks()).await;
    world.faults.remove(held);
    let waiting = world.until("list", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    assert!(recorder.all().is_empty(), "it never ran");
    timeout(PATIENCE, world.scope.wait_gone(&crd)).await.unwrap().unwrap();
    absence.end(&world).await;
    world.finish().await;
}
