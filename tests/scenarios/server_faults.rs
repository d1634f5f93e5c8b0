//! Scenarios 32, 33, 36 and 38 to 40: the server answers wrongly, incompletely or not at all.

use std::time::Duration;

use pilotlight::{
    discovery::{DiscoveryMode, DiscoveryOptions, TypeState},
    informer::InformerProgress,
    kind::TypeRef,
    manager::ControllerState,
    testing::{Action, CrdBuilder, Reply, RequestInfo, Rule, Verb},
};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use super::{
    Testbed,
    change::{assert_unmoved, lists, watched_again, watches},
    testbed::{InProcessHook, one_config_map},
};
use crate::{
    support::{
        Act, ControllerVariant, Embedded, HarnessOptions, PATIENCE, RecordingReconciler,
        Rule as Right, Server, about, eventually, type_of, until,
    },
    unknown::{assert_undisturbed, hits},
};

scenarios! {
    32 partial_or_empty_discovery_removes_nothing both:
        "served types stay served or become Unknown, an empty response is an error in the health; \
         nothing stops, starts or is listed";
    33 a_transient_404_is_no_proof_of_absence both:
        "the type stays Served, its controller Running over the whole cache and stale; no discovery request; it recovers within three seconds";
    33 a_transient_404_of_everything_is_no_proof_of_absence both:
        "CRDs, discovery and objects at once, as during the start of a server: nothing stops, \
         nothing is purged, and the state is unchanged when it answers again";
    33 a_transient_404_of_a_write_is_no_proof_of_absence both:
        "a status update and a deletion with this response are retried: only a response that names \
         the object proves its absence";
    36 a_streaming_list_without_an_end_is_followed_by_pages both:
        "after 10 s of silence the type is listed by pages; other types are not affected";
    38 a_throttling_server_gets_no_request_before_retry_after both:
        "no request about the type before Retry-After has passed; nothing stops or starts";
    39 revoked_rights_are_reported_and_cost_nothing both:
        "Forbidden at the next watch, with the missing rule; the cache is kept and stale, the \
         request is retried three times and then every 30 s; Running soon after the right is \
         granted";
    40 an_object_that_cannot_be_decoded_is_reported_and_skipped both:
        "the object and the field are named in the informer's status, or in the controller's as \
         the error of the reconcile; every other object is reconciled, and this one when it is \
         fixed";
}

/// Rule for reads of a CRD's objects.
fn reads(action: Action, crd: &CrdBuilder) -> Rule {
    let resource = crd.api_resource("v1");
    let rule = Rule::new(action).verb(Verb::List).verb(Verb::Watch);
    rule.resource(resource.group, resource.plural)
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Action {
    Action::Reply(Reply::status(code, reason, message))
}

/// Installs the type, adds a controller of it that requeues its object every 100 ms, and waits
/// until it runs.
async fn at_work(testbed: &Testbed, name: &str, crd: &CrdBuilder) -> RecordingReconciler {
    testbed.install(crd).await;
    testbed.create(crd, "kept", 1).await;
    let recorder = RecordingReconciler::new(type_of(crd, "v1"));
    recorder.act("kept", Act::Again(Duration::from_millis(100)));
    Embedded.add(testbed, name, &recorder).await;
    testbed.running(name, 1).await;
    recorder.saw("kept", 1).await;
    watched_again(testbed, crd, 0).await;
    recorder
}

/// Type without faults, with assertions that its controller works.
pub(super) struct Bystander {
    crd: CrdBuilder,
    recorder: RecordingReconciler,
    status: std::sync::Arc<pilotlight::manager::RunnableStatus>,
}

impl Bystander {
    pub(super) async fn arrives(testbed: &Testbed) -> Self {
        let crd = CrdBuilder::new(&testbed.scope.group, "Bystander");
        testbed.install(&crd).await;
        let recorder = testbed.controller("bystander", &crd).await;
        let status = testbed.running("bystander", 1).await;
        watched_again(testbed, &crd, 0).await;
        Self { crd, recorder, status }
    }

    pub(super) async fn is_served(&self, testbed: &Testbed, name: &str) {
        testbed.create(&self.crd, name, 1).await;
        self.recorder.saw(name, 1).await;
        assert_unmoved(testbed, "bystander", &self.status);
    }
}

/// Waits until a reconcile has read a cached object and is flagged stale.
pub(super) async fn reconciles_stale(recorder: &RecordingReconciler) {
    recorder.clear();
    let stale = recorder.until("a stale reconcile", |seen| seen.stale).await;
    assert!(stale.uid.is_some(), "the cache is kept");
}

pub(super) fn assert_nothing_purged(recorder: &RecordingReconciler) {
    let purged: Vec<_> = recorder.all().into_iter().filter(|seen| seen.uid.is_none()).collect();
    assert!(purged.is_empty(), "{purged:#?}");
}

async fn partial_or_empty_discovery_removes_nothing(server: Server<'static>) {
    let answers = [
        ("partial", Action::Partial { missing: vec!["apps".to_owned()], stale: Vec::new() }),
        ("stale", Action::Partial { missing: Vec::new(), stale: vec!["apps".to_owned()] }),
        ("empty", Action::edit(|answer| answer["items"] = json!([]))),
        ("missing", Action::Reply(Reply::text(404, "404 page not found\n"))),
        ("unavailable", status(503, "ServiceUnavailable", "")),
    ];
    let backstop = Duration::from_millis(100);
    let discovery = DiscoveryOptions { backstop, ..DiscoveryOptions::default() };
    let options = HarnessOptions { discovery, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "faults-discovery", options).await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    let types = [
        ("widgets", type_of(&crd, "v1")),
        ("configmaps", TypeRef::resource("", "v1", "configmaps")),
        ("deployments", TypeRef::resource("apps", "v1", "deployments")),
    ];
    let mut running = Vec::new();
    for (name, type_ref) in &types {
        Embedded.add(&testbed, name, &RecordingReconciler::new(type_ref.clone())).await;
        running.push((*name, testbed.running(name, 1).await));
    }
    watched_again(&testbed, &crd, 0).await;
    let position = testbed.position();

    for (fault, action) in answers {
        let rule = testbed.faults.add(Rule::new(action).verb(Verb::Get).path_is("/apis"));
        hits(&testbed, rule, 4).await;

        for (name, type_ref) in &types {
            let state = testbed.cluster.types.get(type_ref).state;
            // A CRD itself states what it serves, and the core group is not part of `/apis`.
            let may_be_unknown = *name == "deployments";
            let is_unknown =
                matches!(&state, TypeState::Unknown(Some(last)) if **last == TypeState::Served);
            let is_known = state == TypeState::Served || may_be_unknown && is_unknown;
            assert!(is_known, "{fault}: {name} is {state:?}");
            assert_undisturbed(&testbed, name);
        }
        if fault == "empty" {
            let health = testbed.cluster.types.health().discovery;
            assert!(health.error.is_some(), "{fault}: no error is reported: {health:?}");
        }
        testbed.faults.remove(rule);
        let served = |state: &TypeState| *state == TypeState::Served;
        testbed.type_state(&types[2].1, "is served again", served).await;
    }
    for (name, status) in &running {
        assert_undisturbed(&testbed, name);
        assert_eq!(testbed.status(name).since, status.since, "{name}");
    }
    let health = eventually("discovery is current", || {
        let health = testbed.cluster.types.health().discovery;
        if health.error.is_none() { Ok(()) } else { Err(format!("{health:?}")) }
    });
    health.await;
    assert!(testbed.requests(&crd, position).await.is_empty(), "no new list or watch");
    testbed.finish().await;
}

async fn a_transient_404_is_no_proof_of_absence(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-404").await;
    let crd = testbed.widgets();
    let recorder = at_work(&testbed, "widgets", &crd).await;
    let bystander = Bystander::arrives(&testbed).await;
    let requests_discovery = |info: &RequestInfo| info.path == "/apis" || info.path == "/api";
    let position = testbed.position();

    let missing = Action::Reply(Reply::text(404, "404 page not found\n"));
    let rule = testbed.faults.add(reads(missing, &crd));
    assert_eq!(testbed.faults.cut_open(about(&crd)), 1);
    testbed.faults.forget_seen();
    testbed.until("widgets", "is stale", |it| it.report.stale).await;
    reconciles_stale(&recorder).await;
    assert_eq!(testbed.cluster.types.get(recorder.type_ref()).state, TypeState::Served);
    bystander.is_served(&testbed, "meanwhile").await;
    testbed.resize(&crd, "kept", 2).await;
    // Back-off from 5 ms, doubling.
    hits(&testbed, rule, 6).await;
    let requests = testbed.faults.hits(rule);
    assert!(requests < 30, "{requests} requests");
    if testbed.server.is_simulated() {
        let discovered = testbed.faults.seen().into_iter().filter(requests_discovery).count();
        assert_eq!(discovered, 0, "its CRD proves that the type exists");
    }

    testbed.faults.remove(rule);
    let change = recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale);
    let recovers = async {
        change.await;
        testbed.until("widgets", "is current", |it| it.reason == "Running").await
    };
    testbed.within(Duration::from_secs(3), recovers).await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&testbed, "widgets");
    assert_eq!(lists(&testbed, &crd, position).await, 0, "the watch resumes where it ended");
    testbed.finish().await;
}

async fn a_transient_404_of_everything_is_no_proof_of_absence(server: Server<'static>) {
    let discovery = DiscoveryOptions {
        backstop: Duration::from_millis(500),
        static_interval: Duration::from_millis(500),
        ..DiscoveryOptions::default()
    };
    let options = HarnessOptions { discovery, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "faults-404-all", options).await;
    let crd = testbed.widgets();
    let recorder = at_work(&testbed, "widgets", &crd).await;

    let rule =
        testbed.faults.add(Rule::new(Action::Reply(Reply::text(404, "404 page not found\n"))));
    assert!(
        testbed.faults.cut_open(|_| true) >= 3,
        "CRDs, APIServices and the objects are watched"
    );
    testbed.until("widgets", "is stale", |it| it.report.stale).await;
    reconciles_stale(&recorder).await;
    let discovered = |info: &RequestInfo| info.path == "/apis";
    let requests = testbed.faults.seen().into_iter().filter(discovered).count();
    let requested_again = testbed
        .faults
        .wait_until(|faults| faults.seen().into_iter().filter(discovered).count() >= requests + 3);
    time::timeout(PATIENCE, requested_again).await.expect("not requested again in time");
    // A 404 is an error, not a refusal of the right to watch CRDs.
    assert_eq!(*testbed.cluster.types.mode().borrow(), DiscoveryMode::Watching);
    let state = testbed.cluster.types.get(recorder.type_ref()).state;
    let unknown = TypeState::Unknown(Some(Box::new(TypeState::Served)));
    assert!(state == TypeState::Served || state == unknown, "{state:?}");
    assert_undisturbed(&testbed, "widgets");
    testbed.resize(&crd, "kept", 2).await;

    testbed.faults.remove(rule);
    recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
    testbed.until("widgets", "is current", |it| it.reason == "Running").await;
    let served = |state: &TypeState| *state == TypeState::Served;
    testbed.type_state(recorder.type_ref(), "is served", served).await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&testbed, "widgets");
    testbed.finish().await;
}

async fn a_transient_404_of_a_write_is_no_proof_of_absence(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-404-write").await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    // A child for size 1, and none for any other size.
    let hook = InProcessHook::new(|request| async move {
        let mut answer = one_config_map(&request);
        if request["parent"]["spec"]["size"] != 1 {
            answer["children"] = json!([]);
        }
        Ok(answer)
    });
    testbed.supervise(&hook).await;
    testbed.declare("declared", &crd).await;
    let declared = testbed.runnable("declared");
    testbed.running(&declared, 1).await;
    let written = async |size: i64, children: usize| {
        until(&format!("the status says {size}, with {children} children"), async || {
            let gear = testbed.scope.api(&crd, "v1").get("gear").await.unwrap();
            let maps = testbed.config_maps().list(&Default::default()).await.unwrap().items;
            let mine = maps.iter().filter(|map| map.metadata.name.as_deref() == Some("gear"));
            let found = (gear.data["status"]["size"].clone(), mine.count());
            if found == (size.into(), children) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    };
    testbed.create(&crd, "gear", 1).await;
    written(1, 1).await;
    let missing = || Action::Reply(Reply::text(404, "404 page not found\n"));

    let deletion = Rule::new(missing()).verb(Verb::Delete).resource("", "configmaps").times(1);
    let deletion = testbed.faults.add(deletion);
    testbed.resize(&crd, "gear", 2).await;
    hits(&testbed, deletion, 1).await;
    written(2, 0).await;

    let status = Rule::new(missing()).verb(Verb::Update).subresource("status").name("gear");
    let status = testbed.faults.add(status.times(1));
    testbed.resize(&crd, "gear", 3).await;
    hits(&testbed, status, 1).await;
    written(3, 0).await;
    assert_undisturbed(&testbed, &declared);
    testbed.withdraw("declared").await;
    testbed.finish().await;
}

async fn a_streaming_list_without_an_end_is_followed_by_pages(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-stream").await;
    let crd = testbed.widgets();
    let recorder = at_work(&testbed, "widgets", &crd).await;
    let bystander = Bystander::arrives(&testbed).await;
    let resource = crd.api_resource("v1");
    let about_it =
        |action| Rule::new(action).verb(Verb::Watch).resource(&resource.group, &resource.plural);
    let expired = status(410, "Expired", "too old resource version: 1 (2)");
    let endless = about_it(Action::Stall { after_bytes: 0 }).query_contains("sendInitialEvents");
    let endless = testbed.faults.add(endless);
    testbed.faults.add(about_it(expired).times(1));
    let begin = Instant::now();
    assert_eq!(testbed.faults.cut_open(about(&crd)), 1);
    hits(&testbed, endless, 1).await;
    testbed.resize(&crd, "kept", 2).await;
    bystander.is_served(&testbed, "meanwhile").await;

    recorder.until("the change", |seen| seen.size == Some(2)).await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(10), "{took:?}");
    assert!(!testbed.server.is_simulated() || took < Duration::from_secs(13), "{took:?}");
    assert_eq!(testbed.faults.hits(endless), 1, "no second streaming list of this server");
    testbed.until("widgets", "is current", |it| it.reason == "Running").await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&testbed, "widgets");
    bystander.is_served(&testbed, "afterwards").await;
    testbed.finish().await;
}

async fn a_throttling_server_gets_no_request_before_retry_after(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-429").await;
    let crd = testbed.widgets();
    let recorder = at_work(&testbed, "widgets", &crd).await;
    let bystander = Bystander::arrives(&testbed).await;
    let patience = 2;
    let busy = Reply::status(429, "TooManyRequests", "the server is busy").retry_after(patience);
    let rule = testbed.faults.add(reads(Action::Reply(busy), &crd));
    // Taken before the first response, so that a busy machine can only lengthen the measured gap.
    let before = Instant::now();
    assert_eq!(testbed.faults.cut_open(about(&crd)), 1);

    hits(&testbed, rule, 1).await;
    testbed.resize(&crd, "kept", 2).await;
    bystander.is_served(&testbed, "meanwhile").await;
    hits(&testbed, rule, 2).await;

    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(patience), "{waited:?}");
    assert!(!testbed.server.is_simulated() || waited < Duration::from_secs(3), "{waited:?}");
    let status = testbed.status("widgets");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    testbed.faults.remove(rule);
    recorder.until("the change", |seen| seen.size == Some(2)).await;
    testbed.until("widgets", "is current", |it| it.reason == "Running").await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&testbed, "widgets");
    testbed.finish().await;
}

async fn revoked_rights_are_reported_and_cost_nothing(server: Server<'static>) {
    let mut options = HarnessOptions::unprivileged();
    // For the pooled connections, which are opened before the baseline.
    options.rights.push(Right::to_watch("", "namespaces"));
    let testbed = Testbed::with(server, "faults-rights", options).await;
    let crd = testbed.widgets();
    let rights = [Right::all_of(&testbed.scope.group, "widgets")];
    testbed.grant("widgets", &rights).await;
    testbed.grant("bystanders", &[Right::all_of(&testbed.scope.group, "bystanders")]).await;
    let recorder = at_work(&testbed, "widgets", &crd).await;
    let bystander = Bystander::arrives(&testbed).await;

    testbed.revoke("widgets").await;
    let before = watches(&testbed, &crd);
    assert_eq!(testbed.faults.cut_open(about(&crd)), 1, "an open watch stays open");
    let refused = testbed.until("widgets", "is forbidden", |it| it.reason == "Forbidden").await;
    assert_eq!((refused.state, refused.epoch), (ControllerState::Running, 1));
    assert!(refused.message.contains("grant") && refused.message.contains(&crd.name()));
    assert!(refused.report.stale);
    reconciles_stale(&recorder).await;
    testbed.resize(&crd, "kept", 2).await;
    bystander.is_served(&testbed, "meanwhile").await;
    if let Some(script) = testbed.server.script() {
        time::sleep(Duration::from_secs(300)).await;
        let requests = watches(&testbed, &crd) - before;
        let watched = script.requests().into_iter().filter(|it| about(&crd)(&it.info));
        let times: Vec<_> = watched.map(|it| it.at).collect();
        // The first three come in quick succession.
        let refused = &times[times.len() - requests..];
        let gaps: Vec<_> = refused.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let slow = &gaps[3..];
        assert!(slow.len() >= 8, "retries continue: {gaps:?}");
        assert!(slow.iter().all(|gap| (30..=33).contains(&gap.as_secs())), "{gaps:?}");
    }

    testbed.grant("widgets", &rights).await;
    let recovers = async {
        recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
        testbed.until("widgets", "is current", |it| it.reason == "Running").await;
    };
    testbed.within(Duration::from_secs(34), recovers).await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&testbed, "widgets");
    testbed.finish().await;
}

async fn an_object_that_cannot_be_decoded_is_reported_and_skipped(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-undecodable").await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    for name in ["a", "bad", "c"] {
        testbed.create(&crd, name, 1).await;
    }
    let spoil = |answer: &mut Value| {
        for item in answer["items"].as_array_mut().into_iter().flatten() {
            if item["metadata"]["name"] == "bad" {
                item["metadata"]["labels"] = json!(["not", "a", "map"]);
            }
        }
    };
    let rule = Rule::new(Action::edit(spoil)).verb(Verb::List);
    let resource = crd.api_resource("v1");
    let rule = testbed.faults.add(rule.resource(&resource.group, &resource.plural));

    let recorder = testbed.controller("widgets", &crd).await;
    testbed.running("widgets", 1).await;
    for name in ["a", "c"] {
        recorder.saw(name, 1).await;
    }
    assert_eq!(recorder.all().len(), 2, "{:#?}", recorder.all());
    let informer = || {
        let mut all = testbed.cluster.informers.status();
        all.retain(|it| *it.key.identity.plural == *resource.plural);
        all.remove(0)
    };
    let reported = informer();
    assert_eq!((reported.progress, reported.quarantined.len()), (InformerProgress::Synced, 1));
    let error = &reported.quarantined[0];
    assert_eq!(error.key.as_ref().map(|key| &*key.name), Some("bad"));
    assert_eq!(error.field, "metadata.labels");
    testbed.faults.remove(rule);
    watched_again(&testbed, &crd, 0).await;

    testbed.resize(&crd, "bad", 2).await;
    recorder.until("the fixed object", |seen| seen.name == "bad" && seen.size == Some(2)).await;
    assert!(informer().quarantined.is_empty());

    // Valid for the cache, but not for the typed reconciler.
    testbed.edit(&crd, "c", json!({ "spec": { "size": "large" } })).await;
    let reported =
        testbed.until("widgets", "reports the error", |it| it.last_error().is_some()).await;
    assert_eq!((reported.state, reported.epoch), (ControllerState::Running, 1));
    testbed.resize(&crd, "a", 3).await;
    recorder.until("another", |seen| seen.name == "a" && seen.size == Some(3)).await;
    testbed.resize(&crd, "c", 3).await;
    recorder.until("the fixed object", |seen| seen.name == "c" && seen.size == Some(3)).await;
    assert_undisturbed(&testbed, "widgets");
    testbed.finish().await;
}
