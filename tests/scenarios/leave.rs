//! Scenarios 11 to 22: types are removed.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::api::{Patch, PatchParams};
use pilotlight::{
    controller::{Context, Controller, Outcome, ReconcileError, Reconciler, Request},
    discovery::TypeState,
    informer::Store,
    kind::{Scope, TypeRef},
    manager::{ControllerState, DoneReason, RestartBackoff, RunnableOptions},
    testing::{Action, CrdBuilder, RequestInfo, Rule, RuleId, Verb, simulated::Delays},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{self, Instant, timeout},
};

use super::{
    Testbed,
    change::{StatusWriter, watched_again},
    testbed::{InProcessHook, one_config_map},
};
use crate::{
    flaps::install_as_soon_as_possible,
    support::{
        Act, Carrier, Embedded, HarnessOptions, PATIENCE, Recorder, Server, about, eventually,
        type_of, until,
    },
    unknown::hits,
};

scenarios! {
    11 a_removed_type_ends_its_cache_and_its_reconciles both:
        "runs and sees every deletion while the type terminates; after the removal, reconciles \
         are cancelled, late ones are aborted after the grace, the cache and its indexes are \
         empty, and done is announced exactly once, after the last reconcile";
    12 a_controller_finishes_its_finalizers_before_its_type_is_removed both:
        "Running while the type terminates, until the last finalizer is removed; the CRD goes, \
         without a deadlock";
    13 a_type_whose_hook_is_down_stays_terminating pending("finalize"):
        "the CRD stays Terminating, the status says which objects block it, and no finalizer is \
         removed by force";
    14 a_type_removed_while_unwatched_is_absent_after_the_next_list both:
        "Running until the CRDs are listed again; then done for TypeGone";
    15 a_type_that_was_replaced_is_another_type both:
        "a full stop and a new epoch, by the uid; the old cache is empty, and the new epoch sees \
         no object of the old type";
    16 a_type_that_flaps_leaves_its_last_state both:
        "one epoch at a time, and no more than the limit of flaps allows; the last state holds";
    17 a_type_with_another_scope_is_requested_at_its_new_paths both:
        "nothing of the old type is known while it is absent; a new epoch lists, watches and \
         writes at the new paths, and sends no request in a namespace to a cluster-scoped type";
    18 a_kind_with_another_plural_is_bound_again both:
        "a controller that names the kind runs on the new plural; a controller that names the old \
         plural waits for TypeAbsent";
    19 a_hook_call_is_cancelled_when_its_type_is_removed both:
        "the call of 30 s is cancelled at once, and nothing is written after done";
    20 a_controller_that_waits_for_its_first_list_is_removed_at_once both:
        "removed at once, with its tasks, watches and requests";
    21 a_controller_that_never_led_registers_nothing_later pending("leader election"):
        "stopped before the leader's start has run, it registers nothing afterwards";
    22 a_watch_that_joins_during_a_stop_belongs_to_no_ended_epoch both:
        "an optional type that is installed while another one is removed is watched by the next \
         epoch or not at all: no informer has a subscriber of a finished epoch";
}

/// Asserts that the cache is empty, including its indexes for this namespace.
fn assert_emptied(store: &Store, namespace: &str) {
    assert_eq!((store.len(), store.bytes()), (0, 0), "the cache is emptied");
    let indexed = [store.in_namespace(namespace), store.orphans(None), store.list()];
    assert!(indexed.iter().all(Vec::is_empty), "an index keeps {indexed:?}");
}

/// Asserts that no informer, registry entry or metric series of a removed type is left.
fn assert_forgotten(testbed: &Testbed, crd: &CrdBuilder) {
    let (type_ref, name) = (type_of(crd, "v1"), crd.name());
    let informers = testbed.cluster.informers.types().borrow().clone();
    let mut informers = informers.keys().map(|it| it.group_resource().to_string());
    assert!(informers.all(|it| it != name), "an informer of the type is counted");
    let status = testbed.cluster.types.get(&type_ref);
    assert!(status.state == TypeState::Absent && status.served.is_none(), "{status:?}");
    let rows = testbed.cluster.types.report().into_iter().filter(|row| row.name == name);
    for row in rows {
        let known = (row.uid.is_some(), row.scope.is_some(), row.served_versions.len());
        assert_eq!(known, (false, false, 0), "{row:?}");
    }
    let metrics = crate::support::metrics_text(&testbed.metrics);
    let group = format!("group=\"{}\"", testbed.scope.group);
    let mut cached = metrics
        .lines()
        .filter(|line| line.starts_with("pilotlight_informer_") && line.contains(&group));
    assert_eq!(cached.next(), None, "series of its informers");
}

/// Reconciler that delays its end for a few objects.
struct Stubborn {
    recorder: Recorder,
    /// End of each delayed reconcile: its object and the time.
    ends: Arc<Mutex<Vec<(&'static str, Instant)>>>,
}

/// Records the time of its drop, by the reconcile itself or by its abort.
struct End {
    who: &'static str,
    ends: Arc<Mutex<Vec<(&'static str, Instant)>>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.ends.lock().unwrap().push((self.who, Instant::now()));
    }
}

impl Reconciler for Stubborn {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let name = request.name.clone();
        let at_work = context.store(self.recorder.type_ref()).is_some_and(|store| {
            store.get(&request).is_some_and(|it| it.header().deletion_timestamp.is_none())
        });
        self.recorder.reconcile(request, context.clone()).await?;
        let end = |who| End { who, ends: Arc::clone(&self.ends) };
        match &*name {
            "polite" if at_work => {
                let _end = end("polite");
                context.cancelled().await;
            }
            "deaf" if at_work => {
                let _end = end("deaf");
                std::future::pending::<()>().await;
            }
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

async fn a_removed_type_ends_its_cache_and_its_reconciles(server: Server<'static>) {
    let grace = Duration::from_secs(1);
    let objects = if server.is_simulated() { 10_000 } else { 300 };
    let script = server.script().cloned();
    let testbed = Testbed::on(server, "leave-busy").await;
    let crd = testbed.widgets();
    let recorder = Recorder::new(type_of(&crd, "v1"));
    let ends = Arc::default();
    let stubborn = Stubborn { recorder: recorder.clone(), ends: Arc::clone(&ends) };
    let controller = Controller::builder("busy")
        .for_type(type_of(&crd, "v1"))
        .conditional()
        .max_concurrent_reconciles(4)
        .build(&testbed.cluster, stubborn)
        .unwrap();
    let options = RunnableOptions { grace, ..RunnableOptions::default() };
    testbed.manager.add("busy", Arc::new(controller), options).await.unwrap();
    testbed.install(&crd).await;
    testbed.running("busy", 1).await;
    for name in ["polite", "deaf"] {
        testbed.create(&crd, name, 1).await;
    }
    testbed.create_held(&crd, "held", "pilotlight.test/another").await;
    let many = stream::iter(0..objects).map(|number| {
        let (testbed, crd) = (&testbed, &crd);
        async move { testbed.create(crd, &format!("object-{number}"), 1).await }
    });
    many.buffer_unordered(32).for_each(|_| async {}).await;
    recorder.count(objects + 3, |seen| seen.uid.is_some()).await;
    let store = recorder.store(1).unwrap();
    assert_eq!(store.len(), objects + 3);
    assert_eq!(store.in_namespace(&testbed.scope.namespace).len(), objects + 3);

    testbed.scope.delete_crd(&crd).await.unwrap();
    // All other objects are deleted; the held one keeps the type terminating.
    recorder.count(objects, |seen| seen.uid.is_none()).await;
    assert_eq!(
        testbed.status("busy").state,
        ControllerState::Running,
        "still Running while the type terminates"
    );
    assert!(ends.lock().unwrap().is_empty(), "no reconcile is cancelled");
    eventually("only the held object is left", || match store.len() {
        1 => Ok(()),
        left => Err(format!("{left} objects")),
    })
    .await;
    // The deletion of the held object stays unseen, so that the cache has something to free.
    hide_changes(&testbed, &crd).await;
    testbed.edit(&crd, "held", json!({ "metadata": { "finalizers": null } })).await;
    testbed.scope.wait_gone(&crd).await.unwrap();
    let gone = Instant::now();

    assert_eq!(testbed.done("busy", 1).await, DoneReason::TypeGone);
    let done = Instant::now();
    let absence = testbed.assert_absent(&crd, testbed.tasks()).await;
    assert_emptied(&store, &testbed.scope.namespace);
    assert_forgotten(&testbed, &crd);
    let ends = ends.lock().unwrap().clone();
    let [("polite", polite), ("deaf", deaf)] = ends[..] else { panic!("{ends:?}") };
    assert!(polite <= deaf && deaf <= done, "done follows the last reconcile");
    if script.is_some() {
        assert!(
            polite - gone < Duration::from_millis(10),
            "cancelled at once: {:?}",
            polite - gone
        );
        assert_eq!((deaf - polite).as_secs(), grace.as_secs(), "aborted after the grace");
        assert_eq!(done, deaf, "done follows the abort");
    }
    testbed.until("busy", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(testbed.assert_orderly("busy"), 1, "done once");
    absence.end(&testbed).await;
    drop(store);
    testbed.finish().await;
}

async fn a_controller_finishes_its_finalizers_before_its_type_is_removed(server: Server<'static>) {
    let testbed = Testbed::on(server, "leave-finalizer").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("finisher", &crd).await;
    testbed.install(&crd).await;
    testbed.create_held(&crd, "held", "pilotlight.test/hold").await;
    recorder.saw("held", 1).await;

    testbed.scope.delete_crd(&crd).await.unwrap();

    let terminating = |state: &TypeState| *state == TypeState::Terminating;
    testbed.type_state(recorder.type_ref(), "terminates", terminating).await;
    // The server deletes every object; this one stays, with a deletion timestamp.
    until("the object is being deleted", async || {
        let api = testbed.scope.api(&crd, "v1");
        let held = api.get("held").await.map_err(|error| error.to_string())?;
        held.metadata.deletion_timestamp.map(drop).ok_or_else(|| "not in deletion".to_owned())
    })
    .await;
    // A change is still seen, so the watch is open.
    testbed.resize(&crd, "held", 2).await;
    recorder.until("a change while terminating", |seen| seen.size == Some(2)).await;
    let status = testbed.status("finisher");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));

    recorder.act("held", Act::Release);
    let api = testbed.scope.api(&crd, "v1");
    let change = Patch::Merge(json!({ "spec": { "size": 3 } }));
    // A reconcile that was already due may have removed the finalizer first.
    api.patch("held", &PatchParams::default(), &change).await.ok();
    drop(api);

    recorder.until("the deletion", |seen| seen.name == "held" && seen.uid.is_none()).await;
    assert_eq!(testbed.done("finisher", 1).await, DoneReason::TypeGone);
    timeout(PATIENCE, testbed.scope.wait_gone(&crd)).await.unwrap().unwrap();
    assert_eq!(testbed.assert_orderly("finisher"), 1);
    testbed.finish().await;
}

/// Cuts the watch of a type and holds every later request, so that changes of its objects stay
/// unseen.
async fn hide_changes(testbed: &Testbed, crd: &CrdBuilder) -> RuleId {
    let resource = crd.api_resource("v1");
    watched_again(testbed, crd, 0).await;
    let rule = Rule::new(Action::Hang).resource(resource.group, resource.plural);
    let rule = testbed.faults.add(rule);
    assert_eq!(testbed.faults.cut_open(about(crd)), 1);
    hits(testbed, rule, 1).await;
    rule
}

async fn a_type_removed_while_unwatched_is_absent_after_the_next_list(server: Server<'static>) {
    let simulated = server.is_simulated();
    let testbed = Testbed::on(server, "leave-unseen").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("unaware", &crd).await;
    testbed.install(&crd).await;
    testbed.create(&crd, "gear", 1).await;
    recorder.saw("gear", 1).await;
    let store = recorder.store(1).unwrap();
    let hidden = hide_changes(&testbed, &crd).await;
    let unseen = Rule::new(Action::Hang);
    let unseen = unseen.resource("apiextensions.k8s.io", "customresourcedefinitions");
    let unseen = testbed.faults.add(unseen);
    let is_crds = |info: &RequestInfo| info.resource == "customresourcedefinitions";
    assert!(testbed.faults.cut_open(is_crds) > 0);

    testbed.uninstall(&crd).await;
    testbed.faults.remove(hidden);

    // The watch has ended, but a 404 proves no absence.
    testbed.until("unaware", "is stale", |it| it.report.stale).await;
    let status = testbed.status("unaware");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    assert_eq!(store.len(), 1, "no deletion has emptied the cache");
    testbed.faults.remove(unseen);
    let looked = Instant::now();

    assert_eq!(testbed.done("unaware", 1).await, DoneReason::TypeGone);
    assert_emptied(&store, &testbed.scope.namespace);
    drop(store);
    if simulated {
        assert!(looked.elapsed() < Duration::from_secs(2), "{:?}", looked.elapsed());
    }
    let absence = testbed.assert_absent(&crd, usize::MAX).await;
    testbed.until("unaware", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(testbed.assert_orderly("unaware"), 1);
    absence.end(&testbed).await;
    testbed.finish().await;
}

async fn a_type_that_was_replaced_is_another_type(server: Server<'static>) {
    let script = server.script().cloned();
    let testbed = Testbed::on(server, "leave-replaced").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("anew", &crd).await;
    testbed.install(&crd).await;
    let old = testbed.create(&crd, "same", 1).await;
    recorder.saw("same", 1).await;
    let before = testbed.cluster.types.served(recorder.type_ref()).unwrap();
    let store = recorder.store(1).unwrap();
    let hidden = hide_changes(&testbed, &crd).await;
    assert_eq!(store.len(), 1);

    match &script {
        // Delete and create, with no time for a reaction in between.
        Some(script) => {
            script.set_delays(Delays::none());
            script.uninstall(&crd.name()).unwrap();
            script.install(&crd.build()).unwrap();
        }
        None => {
            testbed.scope.delete_crd(&crd).await.unwrap();
            install_as_soon_as_possible(&testbed, &crd).await;
        }
    }

    assert_eq!(testbed.done("anew", 1).await, DoneReason::TypeGone);
    assert_emptied(&store, &testbed.scope.namespace);
    testbed.faults.remove(hidden);
    testbed.running("anew", 2).await;
    let after = testbed.cluster.types.served(recorder.type_ref()).unwrap();
    assert_ne!(before.identity.uid, after.identity.uid);
    let new = testbed.create(&crd, "same", 2).await;
    assert_eq!(recorder.saw("same", 2).await.uid, Some(new));
    let ghosts = recorder.all().into_iter().filter(|it| it.epoch == 2);
    assert_eq!(ghosts.filter(|it| it.uid.as_ref() == Some(&old)).count(), 0, "no old object");
    assert_eq!(testbed.assert_orderly("anew"), 1);
    drop(store);
    testbed.finish().await;
}

async fn a_type_that_flaps_leaves_its_last_state(server: Server<'static>) {
    let (flaps, bucket) = if server.is_simulated() { (100, 10) } else { (20, 5) };
    let script = server.script().cloned();
    let restart_backoff = RestartBackoff { flaps: bucket, ..RestartBackoff::default() };
    let options = HarnessOptions { restart_backoff, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "leave-flaps", options).await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("flapping", &crd).await;
    let begun = Instant::now();

    for _ in 0..flaps {
        match &script {
            Some(script) => {
                script.set_delays(Delays::none());
                script.install(&crd.build()).unwrap();
                time::sleep(Duration::from_millis(5)).await;
                script.uninstall(&crd.name()).unwrap();
                time::sleep(Duration::from_millis(5)).await;
            }
            None => {
                install_as_soon_as_possible(&testbed, &crd).await;
                testbed.scope.delete_crd(&crd).await.unwrap();
            }
        }
    }
    install_as_soon_as_possible(&testbed, &crd).await;
    let flapped = begun.elapsed();

    testbed.scope.wait_established(&crd).await.unwrap();
    let last = testbed.create(&crd, "last", 1).await;
    let seen = recorder.until("the last object", |seen| seen.uid.as_ref() == Some(&last)).await;
    let status = testbed.state("flapping", ControllerState::Running).await;
    assert_eq!(status.epoch, seen.epoch);
    // The burst, one epoch for each second after it, and the last one.
    let allowed = u64::from(bucket) + flapped.as_secs() + 3;
    assert!(status.epoch <= allowed, "{} epochs in {flapped:?}", status.epoch);
    if script.is_some() {
        assert_eq!(flapped.as_secs(), 1, "a hundred flaps in a second");
        assert!(status.epoch > 1, "the controller started in between");
    }
    assert_eq!(testbed.assert_orderly("flapping"), status.epoch - 1, "one at a time");
    assert_eq!(testbed.open_watches(&crd).await, 1);
    testbed.finish().await;
}

async fn a_type_with_another_scope_is_requested_at_its_new_paths(server: Server<'static>) {
    // With a restriction to a namespace, the paths of lists and watches show the scope, as those of
    // writes do.
    let options = HarnessOptions { restricted: true, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "leave-scope", options).await;
    let namespaced = testbed.widgets();
    let cluster_scoped = testbed.widgets().cluster_scoped();
    let recorder = testbed.controller("scope", &namespaced).await;
    let (settled, mut written) = watch::channel(0);
    let writer = StatusWriter { type_ref: recorder.type_ref().clone(), settled };
    let controller = Controller::builder("writer").for_type(recorder.type_ref().clone());
    let controller = controller.conditional().build(&testbed.cluster, writer).unwrap();
    testbed.add("writer", Arc::new(controller)).await;
    let mut writes = async |size: i64| {
        let settled = timeout(PATIENCE, written.wait_for(|it| *it == size)).await;
        drop(settled.expect("its status is written in time").unwrap());
    };
    testbed.install(&namespaced).await;
    testbed.create(&namespaced, "gear", 1).await;
    recorder.saw("gear", 1).await;
    writes(1).await;
    let sent = testbed.requests(&namespaced, testbed.begin).await;
    assert!(sent.iter().all(|event| event.namespace == testbed.scope.namespace), "{sent:#?}");

    testbed.uninstall(&namespaced).await;
    for name in ["scope", "writer"] {
        assert_eq!(testbed.done(name, 1).await, DoneReason::TypeGone);
        testbed.until(name, "waits", |it| it.reason == "TypeAbsent").await;
    }
    assert_forgotten(&testbed, &namespaced);
    let position = testbed.position();
    testbed.install(&cluster_scoped).await;

    for name in ["scope", "writer"] {
        testbed.running(name, 2).await;
    }
    let served = testbed.cluster.types.served(recorder.type_ref()).unwrap();
    assert_eq!(served.identity.scope, Scope::Cluster);
    let created = testbed.create(&cluster_scoped, "gear", 2).await;
    let seen = recorder.saw("gear", 2).await;
    assert_eq!(seen.uid, Some(created));
    writes(2).await;
    let sent = testbed.requests(&cluster_scoped, position).await;
    let verbs: BTreeSet<_> = sent.iter().map(|event| event.verb.as_str()).collect();
    assert!(verbs.is_superset(&["list", "patch", "watch"].into()), "{verbs:?}");
    assert!(sent.iter().all(|event| event.namespace.is_empty()), "{sent:#?}");
    testbed.finish().await;
}

async fn a_kind_with_another_plural_is_bound_again(server: Server<'static>) {
    let testbed = Testbed::on(server, "leave-plural").await;
    let old = testbed.widgets();
    let new = testbed.widgets().plural("gadgets");
    let by_plural = testbed.controller("plural", &old).await;
    let by_kind = Recorder::new(TypeRef::kind(&testbed.scope.group, "v1", "Widget"));
    Embedded.add(&testbed, "kind", &by_kind).await;
    testbed.install(&old).await;
    testbed.create(&old, "gear", 1).await;
    for recorder in [&by_plural, &by_kind] {
        recorder.saw("gear", 1).await;
    }

    testbed.uninstall(&old).await;
    testbed.install(&new).await;

    for name in ["plural", "kind"] {
        assert_eq!(testbed.done(name, 1).await, DoneReason::TypeGone);
    }
    testbed.running("kind", 2).await;
    let created = testbed.create(&new, "gear", 2).await;
    assert_eq!(by_kind.saw("gear", 2).await.uid, Some(created));
    let waiting = testbed.until("plural", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    assert_eq!((testbed.open_watches(&old).await, testbed.open_watches(&new).await), (0, 1));
    testbed.finish().await;
}

async fn a_hook_call_is_cancelled_when_its_type_is_removed(server: Server<'static>) {
    let simulated = server.is_simulated();
    let testbed = Testbed::on(server, "leave-hook").await;
    let crd = testbed.widgets();
    let (held, free) = watch::channel(false);
    let answered = Arc::new(Mutex::new(Vec::new()));
    let ends = Arc::clone(&answered);
    let hook = InProcessHook::new(move |request| {
        let (mut free, ends) = (free.clone(), Arc::clone(&ends));
        async move {
            let _end = End { who: "call", ends };
            free.wait_for(|free| *free).await.ok();
            Ok(one_config_map(&request))
        }
    });
    testbed.supervise(&hook).await;
    testbed.declare("slow", &crd).await;
    testbed.install(&crd).await;
    let slow = testbed.runnable("slow");
    testbed.running(&slow, 1).await;
    testbed.create(&crd, "gear", 1).await;
    hook.asked("gear", 1).await;

    testbed.scope.delete_crd(&crd).await.unwrap();

    let gone = async {
        testbed.scope.wait_gone(&crd).await.unwrap();
        Instant::now()
    };
    let (gone, reason) = tokio::join!(gone, testbed.done(&slow, 1));
    let done = Instant::now();
    assert_eq!(reason, DoneReason::TypeGone);
    let absence = testbed.assert_absent(&crd, usize::MAX).await;
    let ends = answered.lock().unwrap().clone();
    assert_eq!(ends.len(), 1, "the call has ended: {ends:?}");
    assert!(ends[0].1 <= done, "before done");
    assert!(!hook.calls()[0].answered, "the call was cancelled");
    if simulated {
        assert!(done.saturating_duration_since(gone) < Duration::from_millis(10), "at once");
    }
    // The epoch is done, so the late answer is ignored.
    held.send(true).ok();
    testbed.until(&slow, "waits", |it| it.reason == "TypeAbsent").await;
    assert!(testbed.config_maps().get_opt("gear").await.unwrap().is_none());
    let is_write =
        |info: &&RequestInfo| info.resource == "configmaps" && Verb::MUTATING.contains(&info.verb);
    assert_eq!(testbed.faults.seen().iter().filter(is_write).count(), 0, "no child is written");
    absence.end(&testbed).await;
    testbed.withdraw("slow").await;
    testbed.finish().await;
}

async fn a_controller_that_waits_for_its_first_list_is_removed_at_once(server: Server<'static>) {
    let simulated = server.is_simulated();
    let testbed = Testbed::on(server, "leave-unsynced").await;
    let crd = testbed.widgets();
    let held = Rule::new(Action::Hang).resource(&testbed.scope.group, "widgets");
    let held = testbed.faults.add(held);
    let recorder = testbed.controller("unsynced", &crd).await;
    testbed.install(&crd).await;
    testbed.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(testbed.status("unsynced").state, ControllerState::Starting);
    let asked = Instant::now();

    timeout(PATIENCE, testbed.manager.remove("unsynced")).await.unwrap();

    if simulated {
        assert!(asked.elapsed() < Duration::from_millis(10), "{:?}", asked.elapsed());
    }
    assert_eq!(testbed.done("unsynced", 1).await, DoneReason::Cancelled);
    assert!(testbed.manager.status_of("unsynced").is_none());
    let is_about = about(&crd);
    eventually("no request is open any more", || {
        let open: Vec<_> =
            testbed.faults.open().into_iter().filter(|open| is_about(&open.info)).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    assert!(testbed.cluster.informers.status().is_empty());
    assert!(recorder.all().is_empty(), "no reconcile ran");
    testbed.finish().await;
}

async fn a_watch_that_joins_during_a_stop_belongs_to_no_ended_epoch(server: Server<'static>) {
    let rounds = if server.is_simulated() { 20 } else { 5 };
    let testbed = Testbed::on(server, "leave-joins").await;
    let widgets = testbed.widgets();
    let parts = CrdBuilder::new(&testbed.scope.group, "Part");
    let recorder = testbed.controller_with_optional("joins", &widgets, &parts).await;

    for round in 1..=rounds {
        testbed.install(&widgets).await;
        testbed.running("joins", round).await;

        // The removal of one type overlaps the installation of the other, a little earlier in each
        // round.
        testbed.scope.delete_crd(&widgets).await.unwrap();
        let comes = async {
            time::sleep(Duration::from_millis(round - 1)).await;
            testbed.scope.install_crd(&parts).await.unwrap();
        };
        let ((), reason) = tokio::join!(comes, testbed.done("joins", round));

        assert_eq!(reason, DoneReason::TypeGone);
        let dead: Vec<_> = testbed
            .cluster
            .informers
            .status()
            .into_iter()
            .filter(|it| it.subscribers > 0)
            .collect();
        assert!(dead.is_empty(), "round {round}: {dead:#?}");
        testbed.scope.wait_gone(&widgets).await.unwrap();
        testbed.scope.wait_established(&parts).await.unwrap();
        testbed.uninstall(&parts).await;
    }

    testbed.install(&parts).await;
    testbed.install(&widgets).await;
    testbed.running("joins", rounds + 1).await;
    testbed.create(&parts, "part", 1).await;
    recorder.until("a request about the part", |seen| seen.name == "part").await;
    assert_eq!(testbed.assert_orderly("joins"), rounds);
    testbed.finish().await;
}
