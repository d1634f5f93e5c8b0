//! A type goes.

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
    World,
    change::{StatusWriter, watched_again},
    world::{InProcessHook, one_config_map},
};
use crate::{
    flaps::install_as_soon_as_possible,
    rig::{
        Act, Carrier, Embedded, PATIENCE, Recorder, RigOptions, Server, about, eventually, type_of,
        until,
    },
    unknown::hits,
};

scenarios! {
    11 a_type_that_goes_takes_its_cache_and_its_reconciles_along both:
        "runs and sees every deletion while the type terminates; once it is gone, reconciles are \
         asked to stop, those that do not are aborted after the grace, the cache and its indexes \
         are empty whatever was still in them, and done comes exactly once, after the last of them";
    12 a_controller_finishes_its_finalizers_before_its_type_goes both:
        "Running while the type terminates, until the last finalizer is removed; the CRD goes, \
         without a deadlock";
    13 a_type_whose_hook_is_down_stays_terminating pending("finalize"):
        "the CRD stays Terminating, the status says which objects block it, and no finalizer is \
         removed by force";
    14 a_type_that_went_unseen_is_gone_at_the_next_look both:
        "Running while nobody knows better; done for TypeGone once the CRDs are listed again";
    15 a_type_that_was_replaced_is_another_type both:
        "a full stop and a new epoch, by the uid; the old cache is empty, and no object of the old \
         type is seen by the new epoch";
    16 a_type_that_flaps_leaves_its_last_state both:
        "one epoch at a time, as many as the bucket of flaps allows; the last state holds";
    17 a_type_of_another_scope_is_asked_for_at_its_own_paths both:
        "nothing of the old type is known while it is away; a new epoch lists, watches and writes \
         at the new paths: no request in a namespace to a type without any";
    18 a_kind_under_another_plural_is_bound_anew both:
        "whoever wants the kind runs on the new plural, whoever wants the plural waits for \
         TypeAbsent";
    19 a_hook_call_is_given_up_when_its_type_goes both:
        "the call of 30 s is cancelled at once, and nothing is written after done";
    20 a_controller_that_waits_for_its_first_list_is_removed_at_once both:
        "removed at once, with everything that it began";
    21 a_controller_that_never_led_registers_nothing_later pending("leader election"):
        "stopped before the leader's start ever ran, it registers nothing later";
    22 a_watch_that_joins_while_its_controller_stops_belongs_to_nobody_dead both:
        "an optional type that comes while the other one goes is watched by the next epoch or not \
         at all: no informer has a dead subscriber";
}

/// Asserts that a cache of objects in this namespace holds nothing any more, in no index either.
fn assert_emptied(store: &Store, namespace: &str) {
    assert_eq!((store.len(), store.bytes()), (0, 0), "the cache is emptied");
    let indexed = [store.in_namespace(namespace), store.orphans(None), store.list()];
    assert!(indexed.iter().all(Vec::is_empty), "an index keeps {indexed:?}");
}

/// Asserts that nobody remembers how to talk to a type that is gone.
fn assert_forgotten(world: &World, crd: &CrdBuilder) {
    let (type_ref, name) = (type_of(crd, "v1"), crd.name());
    let informers = world.cluster.informers.types().borrow().clone();
    let mut informers = informers.keys().map(|it| it.group_resource().to_string());
    assert!(informers.all(|it| it != name), "an informer of it is counted");
    let status = world.cluster.types.get(&type_ref);
    assert!(status.state == TypeState::Absent && status.served.is_none(), "{status:?}");
    let rows = world.cluster.types.report().into_iter().filter(|row| row.name == name);
    for row in rows {
        let known = (row.uid.is_some(), row.scope.is_some(), row.served_versions.len());
        assert_eq!(known, (false, false, 0), "{row:?}");
    }
    let metrics = crate::rig::metrics_text(&world.metrics);
    let group = format!("group=\"{}\"", world.scope.group);
    let mut cached = metrics
        .lines()
        .filter(|line| line.starts_with("pilotlight_informer_") && line.contains(&group));
    assert_eq!(cached.next(), None, "series of its informers");
}

/// Asks of a few objects more than of the others.
struct Stubborn {
    recorder: Recorder,
    /// What its reconciles did at their end: by whom, and when.
    ends: Arc<Mutex<Vec<(&'static str, Instant)>>>,
}

/// Notes when it is dropped: by its own hand, or by another's.
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

async fn a_type_that_goes_takes_its_cache_and_its_reconciles_along(server: Server<'static>) {
    let grace = Duration::from_secs(1);
    let objects = if server.is_simulated() { 10_000 } else { 300 };
    let script = server.script().cloned();
    let world = World::on(server, "leave-busy").await;
    let crd = world.widgets();
    let recorder = Recorder::new(type_of(&crd, "v1"));
    let ends = Arc::default();
    let stubborn = Stubborn { recorder: recorder.clone(), ends: Arc::clone(&ends) };
    let controller = Controller::builder("busy")
        .for_type(type_of(&crd, "v1"))
        .conditional()
        .max_concurrent_reconciles(4)
        .build(&world.cluster, stubborn)
        .unwrap();
    let options = RunnableOptions { grace, ..RunnableOptions::default() };
    world.manager.add("busy", Arc::new(controller), options).await.unwrap();
    world.install(&crd).await;
    world.running("busy", 1).await;
    for name in ["polite", "deaf"] {
        world.create(&crd, name, 1).await;
    }
    world.create_held(&crd, "held", "pilotlight.test/another").await;
    let many = stream::iter(0..objects).map(|number| {
        let (world, crd) = (&world, &crd);
        async move { world.create(crd, &format!("object-{number}"), 1).await }
    });
    many.buffer_unordered(32).for_each(|_| async {}).await;
    recorder.count(objects + 3, |seen| seen.uid.is_some()).await;
    let store = recorder.store(1).unwrap();
    assert_eq!(store.len(), objects + 3);
    assert_eq!(store.in_namespace(&world.scope.namespace).len(), objects + 3);

    world.scope.delete_crd(&crd).await.unwrap();
    // All but one are deleted, and that one keeps the type there.
    recorder.count(objects, |seen| seen.uid.is_none()).await;
    assert_eq!(world.status("busy").state, ControllerState::Running, "it terminates");
    assert!(ends.lock().unwrap().is_empty(), "nobody is asked to stop");
    eventually("only what is held is left", || match store.len() {
        1 => Ok(()),
        left => Err(format!("{left} objects")),
    })
    .await;
    // Its own deletion is not seen, so that there is something to free.
    hears_no_more(&world, &crd).await;
    world.edit(&crd, "held", json!({ "metadata": { "finalizers": null } })).await;
    world.scope.wait_gone(&crd).await.unwrap();
    let gone = Instant::now();

    assert_eq!(world.done("busy", 1).await, DoneReason::TypeGone);
    let done = Instant::now();
    let absence = world.assert_absent(&crd, world.tasks()).await;
    assert_emptied(&store, &world.scope.namespace);
    assert_forgotten(&world, &crd);
    let ends = ends.lock().unwrap().clone();
    let [("polite", polite), ("deaf", deaf)] = ends[..] else { panic!("{ends:?}") };
    assert!(polite <= deaf && deaf <= done, "done comes after the last of them");
    if script.is_some() {
        assert!(polite - gone < Duration::from_millis(10), "asked at once: {:?}", polite - gone);
        assert_eq!((deaf - polite).as_secs(), grace.as_secs(), "aborted after the grace");
        assert_eq!(done, deaf, "and then it is done");
    }
    world.until("busy", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(world.assert_orderly("busy"), 1, "done once");
    absence.end(&world).await;
    drop(store);
    world.finish().await;
}

async fn a_controller_finishes_its_finalizers_before_its_type_goes(server: Server<'static>) {
    let world = World::on(server, "leave-finalizer").await;
    let crd = world.widgets();
    let recorder = world.controller("finisher", &crd).await;
    world.install(&crd).await;
    world.create_held(&crd, "held", "pilotlight.test/hold").await;
    recorder.saw("held", 1).await;

    world.scope.delete_crd(&crd).await.unwrap();

    let terminating = |state: &TypeState| *state == TypeState::Terminating;
    world.type_state(recorder.type_ref(), "terminates", terminating).await;
    // The server deletes every object, and this one stays with a deletion timestamp.
    until("the object is being deleted", async || {
        let api = world.scope.api(&crd, "v1");
        let held = api.get("held").await.map_err(|error| error.to_string())?;
        held.metadata.deletion_timestamp.map(drop).ok_or_else(|| "it is not".to_owned())
    })
    .await;
    // What is changed now is seen: the watch is open.
    world.resize(&crd, "held", 2).await;
    recorder.until("a change while terminating", |seen| seen.size == Some(2)).await;
    let status = world.status("finisher");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));

    recorder.act("held", Act::Release);
    let api = world.scope.api(&crd, "v1");
    let change = Patch::Merge(json!({ "spec": { "size": 3 } }));
    // A reconcile that was already due may have released it.
    api.patch("held", &PatchParams::default(), &change).await.ok();
    drop(api);

    recorder.until("the deletion", |seen| seen.name == "held" && seen.uid.is_none()).await;
    assert_eq!(world.done("finisher", 1).await, DoneReason::TypeGone);
    timeout(PATIENCE, world.scope.wait_gone(&crd)).await.unwrap().unwrap();
    assert_eq!(world.assert_orderly("finisher"), 1);
    world.finish().await;
}

/// Cuts the watch of a type, and nothing is answered any more: what becomes of its objects is not
/// seen.
async fn hears_no_more(world: &World, crd: &CrdBuilder) -> RuleId {
    let resource = crd.api_resource("v1");
    watched_again(world, crd, 0).await;
    let rule = Rule::new(Action::Hang).resource(resource.group, resource.plural);
    let rule = world.faults.add(rule);
    assert_eq!(world.faults.cut_open(about(crd)), 1);
    hits(world, rule, 1).await;
    rule
}

async fn a_type_that_went_unseen_is_gone_at_the_next_look(server: Server<'static>) {
    let simulated = server.is_simulated();
    let world = World::on(server, "leave-unseen").await;
    let crd = world.widgets();
    let recorder = world.controller("unaware", &crd).await;
    world.install(&crd).await;
    world.create(&crd, "gear", 1).await;
    recorder.saw("gear", 1).await;
    let store = recorder.store(1).unwrap();
    let deaf = hears_no_more(&world, &crd).await;
    let unseen = Rule::new(Action::Hang);
    let unseen = unseen.resource("apiextensions.k8s.io", "customresourcedefinitions");
    let unseen = world.faults.add(unseen);
    let is_crds = |info: &RequestInfo| info.resource == "customresourcedefinitions";
    assert!(world.faults.cut_open(is_crds) > 0);

    world.uninstall(&crd).await;
    world.faults.remove(deaf);

    // Its watch has ended, and what the server says of it is no proof.
    world.until("unaware", "is stale", |it| it.report.stale).await;
    let status = world.status("unaware");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    assert_eq!(store.len(), 1, "no deletion has emptied it");
    world.faults.remove(unseen);
    let looked = Instant::now();

    assert_eq!(world.done("unaware", 1).await, DoneReason::TypeGone);
    assert_emptied(&store, &world.scope.namespace);
    drop(store);
    if simulated {
        assert!(looked.elapsed() < Duration::from_secs(2), "{:?}", looked.elapsed());
    }
    let absence = world.assert_absent(&crd, usize::MAX).await;
    world.until("unaware", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(world.assert_orderly("unaware"), 1);
    absence.end(&world).await;
    world.finish().await;
}

async fn a_type_that_was_replaced_is_another_type(server: Server<'static>) {
    let script = server.script().cloned();
    let world = World::on(server, "leave-replaced").await;
    let crd = world.widgets();
    let recorder = world.controller("anew", &crd).await;
    world.install(&crd).await;
    let old = world.create(&crd, "same", 1).await;
    recorder.saw("same", 1).await;
    let before = world.cluster.types.served(recorder.type_ref()).unwrap();
    let store = recorder.store(1).unwrap();
    let deaf = hears_no_more(&world, &crd).await;
    assert_eq!(store.len(), 1);

    match &script {
        // Nobody gets to act in between.
        Some(script) => {
            script.set_delays(Delays::none());
            script.uninstall(&crd.name()).unwrap();
            script.install(&crd.build()).unwrap();
        }
        None => {
            world.scope.delete_crd(&crd).await.unwrap();
            install_as_soon_as_possible(&world, &crd).await;
        }
    }

    assert_eq!(world.done("anew", 1).await, DoneReason::TypeGone);
    assert_emptied(&store, &world.scope.namespace);
    world.faults.remove(deaf);
    world.running("anew", 2).await;
    let after = world.cluster.types.served(recorder.type_ref()).unwrap();
    assert_ne!(before.identity.uid, after.identity.uid);
    let new = world.create(&crd, "same", 2).await;
    assert_eq!(recorder.saw("same", 2).await.uid, Some(new));
    let ghosts = recorder.all().into_iter().filter(|it| it.epoch == 2);
    assert_eq!(ghosts.filter(|it| it.uid.as_ref() == Some(&old)).count(), 0, "no old object");
    assert_eq!(world.assert_orderly("anew"), 1);
    drop(store);
    world.finish().await;
}

async fn a_type_that_flaps_leaves_its_last_state(server: Server<'static>) {
    let (flaps, bucket) = if server.is_simulated() { (100, 10) } else { (20, 5) };
    let script = server.script().cloned();
    let restart_backoff = RestartBackoff { flaps: bucket, ..RestartBackoff::default() };
    let options = RigOptions { restart_backoff, ..RigOptions::default() };
    let world = World::with(server, "leave-flaps", options).await;
    let crd = world.widgets();
    let recorder = world.controller("flapping", &crd).await;
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
                install_as_soon_as_possible(&world, &crd).await;
                world.scope.delete_crd(&crd).await.unwrap();
            }
        }
    }
    install_as_soon_as_possible(&world, &crd).await;
    let flapped = begun.elapsed();

    world.scope.wait_established(&crd).await.unwrap();
    let last = world.create(&crd, "last", 1).await;
    let seen = recorder.until("the last object", |seen| seen.uid.as_ref() == Some(&last)).await;
    let status = world.state("flapping", ControllerState::Running).await;
    assert_eq!(status.epoch, seen.epoch);
    // The burst, one for each second after it, and the last one.
    let allowed = u64::from(bucket) + flapped.as_secs() + 3;
    assert!(status.epoch <= allowed, "{} epochs in {flapped:?}", status.epoch);
    if script.is_some() {
        assert_eq!(flapped.as_secs(), 1, "a hundred flaps in a second");
        assert!(status.epoch > 1, "it did start in between");
    }
    assert_eq!(world.assert_orderly("flapping"), status.epoch - 1, "one at a time");
    assert_eq!(world.open_watches(&crd).await, 1);
    world.finish().await;
}

async fn a_type_of_another_scope_is_asked_for_at_its_own_paths(server: Server<'static>) {
    // Limited to a namespace, lists and watches show the scope as writes do.
    let options = RigOptions { restricted: true, ..RigOptions::default() };
    let world = World::with(server, "leave-scope", options).await;
    let namespaced = world.widgets();
    let cluster_scoped = world.widgets().cluster_scoped();
    let recorder = world.controller("scope", &namespaced).await;
    let (settled, mut written) = watch::channel(0);
    let writer = StatusWriter { type_ref: recorder.type_ref().clone(), settled };
    let controller = Controller::builder("writer").for_type(recorder.type_ref().clone());
    let controller = controller.conditional().build(&world.cluster, writer).unwrap();
    world.add("writer", Arc::new(controller)).await;
    let mut writes = async |size: i64| {
        let settled = timeout(PATIENCE, written.wait_for(|it| *it == size)).await;
        drop(settled.expect("its status is written in time").unwrap());
    };
    world.install(&namespaced).await;
    world.create(&namespaced, "gear", 1).await;
    recorder.saw("gear", 1).await;
    writes(1).await;
    let sent = world.requests(&namespaced, world.begin).await;
    assert!(sent.iter().all(|event| event.namespace == world.scope.namespace), "{sent:#?}");

    world.uninstall(&namespaced).await;
    for name in ["scope", "writer"] {
        assert_eq!(world.done(name, 1).await, DoneReason::TypeGone);
        world.until(name, "waits", |it| it.reason == "TypeAbsent").await;
    }
    assert_forgotten(&world, &namespaced);
    let mark = world.mark();
    world.install(&cluster_scoped).await;

    for name in ["scope", "writer"] {
        world.running(name, 2).await;
    }
    let served = world.cluster.types.served(recorder.type_ref()).unwrap();
    assert_eq!(served.identity.scope, Scope::Cluster);
    let created = world.create(&cluster_scoped, "gear", 2).await;
    let seen = recorder.saw("gear", 2).await;
    assert_eq!(seen.uid, Some(created));
    writes(2).await;
    let sent = world.requests(&cluster_scoped, mark).await;
    let verbs: BTreeSet<_> = sent.iter().map(|event| event.verb.as_str()).collect();
    assert!(verbs.is_superset(&["list", "patch", "watch"].into()), "{verbs:?}");
    assert!(sent.iter().all(|event| event.namespace.is_empty()), "{sent:#?}");
    world.finish().await;
}

async fn a_kind_under_another_plural_is_bound_anew(server: Server<'static>) {
    let world = World::on(server, "leave-plural").await;
    let old = world.widgets();
    let new = world.widgets().plural("gadgets");
    let by_plural = world.controller("plural", &old).await;
    let by_kind = Recorder::new(TypeRef::kind(&world.scope.group, "v1", "Widget"));
    Embedded.add(&world, "kind", &by_kind).await;
    world.install(&old).await;
    world.create(&old, "gear", 1).await;
    for recorder in [&by_plural, &by_kind] {
        recorder.saw("gear", 1).await;
    }

    world.uninstall(&old).await;
    world.install(&new).await;

    for name in ["plural", "kind"] {
        assert_eq!(world.done(name, 1).await, DoneReason::TypeGone);
    }
    world.running("kind", 2).await;
    let created = world.create(&new, "gear", 2).await;
    assert_eq!(by_kind.saw("gear", 2).await.uid, Some(created));
    let waiting = world.until("plural", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    assert_eq!((world.open_watches(&old).await, world.open_watches(&new).await), (0, 1));
    world.finish().await;
}

async fn a_hook_call_is_given_up_when_its_type_goes(server: Server<'static>) {
    let simulated = server.is_simulated();
    let world = World::on(server, "leave-hook").await;
    let crd = world.widgets();
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
    world.supervise(&hook).await;
    world.declare("slow", &crd).await;
    world.install(&crd).await;
    let slow = world.runnable("slow");
    world.running(&slow, 1).await;
    world.create(&crd, "gear", 1).await;
    hook.asked("gear", 1).await;

    world.scope.delete_crd(&crd).await.unwrap();

    let gone = async {
        world.scope.wait_gone(&crd).await.unwrap();
        Instant::now()
    };
    let (gone, reason) = tokio::join!(gone, world.done(&slow, 1));
    let done = Instant::now();
    assert_eq!(reason, DoneReason::TypeGone);
    let absence = world.assert_absent(&crd, usize::MAX).await;
    let ends = answered.lock().unwrap().clone();
    assert_eq!(ends.len(), 1, "the call has ended: {ends:?}");
    assert!(ends[0].1 <= done, "before done");
    assert!(!hook.calls()[0].answered, "it was given up");
    if simulated {
        assert!(done.saturating_duration_since(gone) < Duration::from_millis(10), "at once");
    }
    // The late answer finds nobody.
    held.send(true).ok();
    world.until(&slow, "waits", |it| it.reason == "TypeAbsent").await;
    assert!(world.config_maps().get_opt("gear").await.unwrap().is_none());
    let is_write =
        |info: &&RequestInfo| info.resource == "configmaps" && Verb::MUTATING.contains(&info.verb);
    assert_eq!(world.faults.seen().iter().filter(is_write).count(), 0, "no child is written");
    absence.end(&world).await;
    world.withdraw("slow").await;
    world.finish().await;
}

async fn a_controller_that_waits_for_its_first_list_is_removed_at_once(server: Server<'static>) {
    let simulated = server.is_simulated();
    let world = World::on(server, "leave-unsynced").await;
    let crd = world.widgets();
    let held = Rule::new(Action::Hang).resource(&world.scope.group, "widgets");
    let held = world.faults.add(held);
    let recorder = world.controller("unsynced", &crd).await;
    world.install(&crd).await;
    world.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(world.status("unsynced").state, ControllerState::Starting);
    let asked = Instant::now();

    timeout(PATIENCE, world.manager.remove("unsynced")).await.unwrap();

    if simulated {
        assert!(asked.elapsed() < Duration::from_millis(10), "{:?}", asked.elapsed());
    }
    assert_eq!(world.done("unsynced", 1).await, DoneReason::Cancelled);
    assert!(world.manager.status_of("unsynced").is_none());
    let is_about = about(&crd);
    eventually("nothing is asked for any more", || {
        let open: Vec<_> =
            world.faults.open().into_iter().filter(|open| is_about(&open.info)).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    assert!(world.cluster.informers.status().is_empty());
    assert!(recorder.all().is_empty(), "it never ran");
    world.finish().await;
}

async fn a_watch_that_joins_while_its_controller_stops_belongs_to_nobody_dead(
    server: Server<'static>,
) {
    let rounds = if server.is_simulated() { 20 } else { 5 };
    let world = World::on(server, "leave-joins").await;
    let widgets = world.widgets();
    let parts = CrdBuilder::new(&world.scope.group, "Part");
    let recorder = world.controller_with_optional("joins", &widgets, &parts).await;

    for round in 1..=rounds {
        world.install(&widgets).await;
        world.running("joins", round).await;

        // One goes while the other one comes, a little earlier each time.
        world.scope.delete_crd(&widgets).await.unwrap();
        let comes = async {
            time::sleep(Duration::from_millis(round - 1)).await;
            world.scope.install_crd(&parts).await.unwrap();
        };
        let ((), reason) = tokio::join!(comes, world.done("joins", round));

        assert_eq!(reason, DoneReason::TypeGone);
        let dead: Vec<_> =
            world.cluster.informers.status().into_iter().filter(|it| it.subscribers > 0).collect();
        assert!(dead.is_empty(), "round {round}: {dead:#?}");
        world.scope.wait_gone(&widgets).await.unwrap();
        world.scope.wait_established(&parts).await.unwrap();
        world.uninstall(&parts).await;
    }

    world.install(&parts).await;
    world.install(&widgets).await;
    world.running("joins", rounds + 1).await;
    world.create(&parts, "part", 1).await;
    recorder.until("a request about the part", |seen| seen.name == "part").await;
    assert_eq!(world.assert_orderly("joins"), rounds);
    world.finish().await;
}
