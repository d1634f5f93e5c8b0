//! Scenarios 11 to 14 and 19 to 22: types are removed.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::api::{Patch, PatchParams};
use pilotlight::{
    controller::{Context, Controller, Outcome, ReconcileError, Reconciler, Request},
    discovery::TypeState,
    informer::{Store, StoreReadError},
    manager::{ControllerState, DoneReason, RunnableOptions},
    meta::HookError,
    testing::{Action, CrdBuilder, RequestInfo, Rule, RuleId, Verb},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{self, Instant, timeout},
};

use super::{
    Testbed,
    change::watched_again,
    testbed::{InProcessHook, one_config_map},
};
use crate::{
    support::{Act, PATIENCE, RecordingReconciler, Server, about, eventually, type_of, until},
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
    13 a_type_whose_hook_is_down_stays_terminating both:
        "the CRD stays Terminating, the status says which objects block it, and no finalizer is \
         removed by force";
    14 a_type_removed_while_unwatched_is_absent_after_the_next_list both:
        "Running until the CRDs are listed again; then done for TypeGone";
    19 a_hook_call_is_cancelled_when_its_type_is_removed both:
        "the call of 30 s is cancelled at once, and nothing is written after done";
    20 a_controller_that_waits_for_its_first_list_is_removed_at_once both:
        "removed at once, with its tasks, watches and requests";
    22 a_watch_that_joins_during_a_stop_belongs_to_no_ended_epoch both:
        "an optional type that is installed while another one is removed is watched by the next \
         epoch or not at all: no informer has a subscriber of a finished epoch";
}

/// Asserts that the cache is empty, including its indexes for this namespace.
pub(super) fn assert_emptied(store: &Store, namespace: &str) {
    assert_eq!((store.len(), store.bytes()), (0, 0), "the cache is emptied");
    let indexed = [store.in_namespace(namespace), store.list()];
    assert!(indexed.iter().all(|read| matches!(read, Err(StoreReadError::Gone))), "{indexed:?}");
}

/// Asserts that no informer, registry entry or metric series of a removed type is left.
pub(super) fn assert_forgotten(testbed: &Testbed, crd: &CrdBuilder) {
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
struct DelaysItsEnd {
    recorder: RecordingReconciler,
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

impl Reconciler for DelaysItsEnd {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let name = request.name.clone();
        let at_work = context.store(self.recorder.type_ref()).is_ok_and(|store| {
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
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    let ends = Arc::default();
    let stubborn = DelaysItsEnd { recorder: recorder.clone(), ends: Arc::clone(&ends) };
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
    assert_eq!(store.in_namespace(&testbed.scope.namespace).unwrap().len(), objects + 3);

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

async fn a_type_whose_hook_is_down_stays_terminating(server: Server<'static>) {
    let simulated = server.is_simulated();
    let testbed = Testbed::on(server, "leave-down").await;
    let crd = testbed.widgets();
    let (up, is_up) = watch::channel(false);
    let hook = InProcessHook::new(move |request| {
        let is_up = *is_up.borrow();
        async move {
            match request["finalizing"].as_bool() {
                Some(true) if is_up => Ok(json!({ "finalized": true })),
                Some(true) => {
                    Err(HookError::Status { code: 503, body: String::new(), proxy: None })
                }
                Some(false) | None => Ok(one_config_map(&request)),
            }
        }
    });
    testbed.supervise(&hook).await;
    let finalize = |spec: &mut Value| spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
    testbed.declare_with("down", &crd, finalize).await;
    testbed.install(&crd).await;
    let down = testbed.runnable("down");
    testbed.running(&down, 1).await;
    testbed.create(&crd, "gear", 1).await;
    let finalizers = async || {
        let gear = testbed.scope.api(&crd, "v1").get("gear").await;
        gear.map(|gear| gear.metadata.finalizers.unwrap_or_default()).map_err(|it| it.to_string())
    };
    until("the finalizer is added", async || match finalizers().await?.len() {
        1 => Ok(()),
        count => Err(format!("{count} finalizers")),
    })
    .await;

    testbed.scope.delete_crd(&crd).await.unwrap();

    until("the status names the object that blocks the type", async || {
        let declared = testbed.declarations().get_status(&testbed.declared_name("down")).await;
        let status = declared.map_err(|error| error.to_string())?.data["status"].to_string();
        let is_named = status.contains("/gear: ") && status.contains("503");
        if is_named { Ok(()) } else { Err(status) }
    })
    .await;
    if simulated {
        time::sleep(Duration::from_secs(600)).await;
    }
    let terminating = |state: &TypeState| *state == TypeState::Terminating;
    testbed.type_state(&type_of(&crd, "v1"), "terminates", terminating).await;
    assert_eq!(finalizers().await.unwrap().len(), 1, "no finalizer is removed by force");
    let status = testbed.status(&down);
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));

    up.send_replace(true);

    assert_eq!(testbed.done(&down, 1).await, DoneReason::TypeGone);
    timeout(PATIENCE, testbed.scope.wait_gone(&crd)).await.unwrap().unwrap();
    testbed.withdraw("down").await;
    testbed.finish().await;
}

/// Cuts the watch of a type and holds every later request, so that changes of its objects stay
/// unseen.
pub(super) async fn hide_changes(testbed: &Testbed, crd: &CrdBuilder) -> RuleId {
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
    hook.called("gear", 1).await;

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
    // The epoch is done, so the late response is ignored.
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
    let stopped = Instant::now();

    timeout(PATIENCE, testbed.manager.remove("unsynced")).await.unwrap();

    if simulated {
        assert!(stopped.elapsed() < Duration::from_millis(10), "{:?}", stopped.elapsed());
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
