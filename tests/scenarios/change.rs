//! A type changes while it is in use.

use std::{sync::Arc, time::Duration};

use http::{Request as HttpRequest, header};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceSubresourceStatus,
    CustomResourceSubresources,
};
use kube::api::PostParams;
use pilotlight::{
    controller::{Context, Controller, Outcome, ReconcileError, Reconciler, Request},
    discovery::TypeState,
    kind::TypeRef,
    manager::{ControllerState, DoneReason, RunnableStatus},
    testing::{Action, CrdBuilder, Rule, Verb},
};
use serde_json::json;
use tokio::{sync::watch, time};

use super::{World, world::InProcessHook};
use crate::{
    rig::{Carrier, Embedded, Recorder, Server, about, type_of, until},
    unknown::{assert_undisturbed, hits},
};

scenarios! {
    23 a_schema_edit_is_no_lifecycle_event both:
        "nothing stops or starts and no status moves; three controllers of the type cost one relist, and reconcile what has changed meanwhile and nothing else";
    24 a_version_that_is_served_no_more_stops_its_controller both:
        "who asked for it stops and waits for VersionNotServed, which names what is served; who asked for any version starts again at the other one, or if its watch is plain moves there without a stop; no event is missed, nothing is asked at the version that is gone";
    25 a_switch_of_the_stored_version_is_no_lifecycle_event both:
        "nothing stops or starts; the migration of the stored objects costs one reconcile of each at most";
    26 a_status_subresource_that_comes_is_used_by_the_next_write both:
        "an embedded controller writes the next status through it, and without it again when it goes, in the same epoch; a declared one waits for SubresourceMissing while it is missing, and starts when it comes";
    27 churn_of_metadata_on_a_crd_causes_no_work both:
        "no transition, no move of a status, no reconcile, no request";
    28 printer_columns_cause_no_work both:
        "no transition, no move of a status, no reconcile, though the server ends the watch";
}

/// Changes a CRD in place.
pub(super) async fn change_crd(
    world: &World,
    crd: &CrdBuilder,
    change: impl Fn(&mut CustomResourceDefinition),
) {
    loop {
        let mut object = world.crds().get(&crd.name()).await.unwrap();
        change(&mut object);
        match world.crds().replace(&crd.name(), &PostParams::default(), &object).await {
            Ok(_) => return,
            // The server writes the CRD's status at the same time.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until a watch of the type is open, after so many that were asked for before.
pub(super) async fn watched_again(world: &World, crd: &CrdBuilder, before: usize) {
    let is_about = about(crd);
    let watched = world.faults.wait_until(|faults| {
        let is_open = |it: &pilotlight::testing::OpenRequest| {
            it.answered && it.info.verb == Verb::Watch && is_about(&it.info)
        };
        watches(world, crd) > before && faults.open().iter().any(is_open)
    });
    time::timeout(crate::rig::PATIENCE, watched).await.expect("it is watched in time");
}

/// How many watches of the type were asked for.
pub(super) fn watches(world: &World, crd: &CrdBuilder) -> usize {
    let seen = world.faults.seen().into_iter().filter(about(crd));
    seen.filter(|info| info.verb == Verb::Watch).count()
}

/// How many lists of the type the server has answered since, streaming ones included.
pub(super) async fn lists(world: &World, crd: &CrdBuilder, since: crate::rig::Mark) -> usize {
    let events = world.requests(crd, since).await;
    let is_list = |uri: &str, verb: &str| verb == "list" || uri.contains("sendInitialEvents");
    let mut lists: Vec<_> = events
        .into_iter()
        .filter(|event| event.code == Some(200) && is_list(&event.uri, &event.verb))
        .map(|event| event.audit_id)
        .collect();
    lists.sort();
    lists.dedup();
    lists.len()
}

/// Asserts that neither state nor reason of a runnable has moved since, not even for a moment.
pub(super) fn assert_unmoved(world: &World, name: &str, before: &RunnableStatus) {
    let now = world.status(name);
    assert_eq!((now.state, &now.reason, now.since), (before.state, &before.reason, before.since));
    assert_undisturbed(world, name);
}

fn names_of(recorder: &Recorder) -> Vec<String> {
    recorder.all().into_iter().map(|seen| seen.name).collect()
}

async fn a_schema_edit_is_no_lifecycle_event(server: Server<'static>) {
    let world = World::on(server, "change-schema").await;
    let crd = world.widgets();
    world.install(&crd).await;
    for name in ["a", "b", "c"] {
        world.create(&crd, name, 1).await;
    }
    let mut sharers = Vec::new();
    for name in ["one", "two", "three"] {
        let recorder = world.controller(name, &crd).await;
        let status = world.running(name, 1).await;
        recorder.count(3, |seen| seen.uid.is_some()).await;
        sharers.push((name, recorder, status));
    }
    watched_again(&world, &crd, 0).await;
    let mark = world.mark();
    sharers.iter().for_each(|(_, recorder, _)| recorder.clear());

    // The edit ends the watch, and the next one is held back until something has changed.
    let resource = crd.api_resource("v1");
    let away = Rule::new(Action::Hang)
        .verb(Verb::List)
        .verb(Verb::Watch)
        .resource(&resource.group, &resource.plural);
    let away = world.faults.add(away);
    change_crd(&world, &crd, |crd| {
        let schema = crd.spec.versions[0].schema.as_mut().unwrap();
        let schema = schema.open_api_v3_schema.as_mut().unwrap();
        schema.description = Some("what turns in a clock".to_owned());
    })
    .await;
    hits(&world, away, 1).await;
    world.resize(&crd, "b", 2).await;
    world.faults.remove(away);

    for (_, recorder, _) in &sharers {
        recorder.until("the change", |seen| seen.name == "b" && seen.size == Some(2)).await;
    }
    world.create(&crd, "d", 1).await;
    for (name, recorder, status) in &sharers {
        recorder.saw("d", 1).await;
        assert_eq!(names_of(recorder), ["b", "d"], "{name}: nothing else has changed");
        assert_unmoved(&world, name, status);
    }
    let lists = lists(&world, &crd, mark).await;
    assert!(lists <= 1, "{lists} lists for three controllers");
    world.finish().await;
}

/// A controller whose watch is no condition: it goes on while its type is away.
async fn add_plain(world: &World, name: &str, recorder: &Recorder) {
    let controller = Controller::builder(name)
        .for_type(recorder.type_ref().clone())
        .build(&world.cluster, recorder.clone())
        .unwrap();
    world.add(name, Arc::new(controller)).await;
}

async fn a_version_that_is_served_no_more_stops_its_controller(server: Server<'static>) {
    let world = World::on(server, "change-version").await;
    let crd = world.widgets().version("v1").version("v2");
    world.install(&crd).await;
    world.scope.wait_served(&crd, "v2").await.unwrap();
    world.create(&crd, "early", 1).await;
    let pinned = Recorder::new(type_of(&crd, "v2"));
    let any = Recorder::new(type_of(&crd, "v2").any_version());
    let plain = Recorder::new(type_of(&crd, "v2").any_version());
    Embedded.add(&world, "pinned", &pinned).await;
    Embedded.add(&world, "any", &any).await;
    add_plain(&world, "plain", &plain).await;
    for (name, recorder) in [("pinned", &pinned), ("any", &any), ("plain", &plain)] {
        world.running(name, 1).await;
        recorder.saw("early", 1).await;
    }
    let version = || world.cluster.types.served(any.type_ref()).unwrap().identity.version.clone();
    assert_eq!(&*version(), "v2", "the server's best");

    world.scope.set_served(&crd, "v2", false).await.unwrap();
    world.create(&crd, "meanwhile", 1).await;

    assert_eq!(world.done("pinned", 1).await, DoneReason::TypeGone);
    let waiting = world.until("pinned", "waits", |it| it.reason == "VersionNotServed").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(waiting.message.contains("v1"), "it names what is served: {}", waiting.message);
    assert_eq!(world.done("any", 1).await, DoneReason::TypeGone);
    world.running("any", 2).await;
    for name in ["early", "meanwhile"] {
        any.saw(name, 2).await;
    }
    plain.saw("meanwhile", 1).await;
    assert_eq!(&*version(), "v1");
    let mark = world.mark();
    pinned.clear();
    world.resize(&crd, "early", 2).await;
    for recorder in [&any, &plain] {
        recorder.until("a change at the other version", |seen| seen.size == Some(2)).await;
    }
    assert!(plain.all().iter().all(|seen| seen.uid.is_some()), "nothing seemed to be deleted");
    assert_undisturbed(&world, "plain");
    let mut noise = world.requests(&crd, mark).await;
    noise.retain(|event| event.version == "v2");
    assert!(noise.is_empty(), "requests at a version that is not served: {noise:#?}");
    assert!(pinned.all().is_empty(), "who waits is not called");

    world.scope.set_served(&crd, "v2", true).await.unwrap();
    world.running("pinned", 2).await;
    for name in ["early", "meanwhile"] {
        pinned.saw(name, 2).await;
    }
    assert_eq!(&*version(), "v1", "whoever asked for any stays at the one that he has");
    assert_eq!(world.status("any").epoch, 2);
    assert_undisturbed(&world, "plain");
    world.finish().await;
}

async fn a_switch_of_the_stored_version_is_no_lifecycle_event(server: Server<'static>) {
    let world = World::on(server, "change-stored").await;
    let crd = world.widgets().version("v1").version("v2");
    world.install(&crd).await;
    world.scope.wait_served(&crd, "v2").await.unwrap();
    for name in ["a", "b", "c"] {
        world.create(&crd, name, 1).await;
    }
    let mut recorders = Vec::new();
    for version in ["v1", "v2"] {
        let recorder = Recorder::new(type_of(&crd, version));
        Embedded.add(&world, version, &recorder).await;
        let status = world.running(version, 1).await;
        recorder.count(3, |seen| seen.uid.is_some()).await;
        recorder.clear();
        recorders.push((version, recorder, status));
    }

    change_crd(&world, &crd, |crd| {
        for version in &mut crd.spec.versions {
            version.storage = version.name == "v2";
        }
    })
    .await;
    // As the storage migrator does: whatever is stored otherwise is written anew as it is.
    for name in ["a", "b", "c"] {
        let api = world.scope.api(&crd, "v1");
        let old = api.get(name).await.unwrap();
        until(&format!("{name} is stored at the other version"), async || {
            let new = api.replace(name, &PostParams::default(), &old).await.unwrap();
            let (old, new) = (&old.metadata.resource_version, &new.metadata.resource_version);
            if old == new { Err("nothing was written".to_owned()) } else { Ok(()) }
        })
        .await;
    }
    world.create(&crd, "after", 1).await;

    for (version, recorder, status) in &recorders {
        recorder.saw("after", 1).await;
        let mut names = names_of(recorder);
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{version}: each is reconciled once at most");
        assert_undisturbed(&world, version);
        if world.server.is_simulated() {
            assert_unmoved(&world, version, status);
        }
    }
    let stored = world.crds().get(&crd.name()).await.unwrap().status.unwrap().stored_versions;
    assert_eq!(stored.unwrap_or_default(), ["v1", "v2"], "the migrator's own bookkeeping");
    world.finish().await;
}

/// Writes the size of each object into its status, the way that the type has now.
#[derive(Clone)]
pub(super) struct StatusWriter {
    pub(super) type_ref: TypeRef,
    /// The last size that it found in the status as well, so that there was nothing to do.
    pub(super) settled: watch::Sender<i64>,
}

impl Reconciler for StatusWriter {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let (served, store) = (context.served(&self.type_ref), context.store(&self.type_ref));
        let (Some(served), Some(store)) = (served, store) else {
            return Err("the type is no input".into());
        };
        let Some(object) = store.get(&request) else { return Ok(Outcome::Done) };
        let object: serde_json::Value = serde_json::from_slice(object.json())?;
        let size = &object["spec"]["size"];
        if object["status"]["size"] == *size {
            self.settled.send_replace(size.as_i64().unwrap_or_default());
            return Ok(Outcome::Done);
        }
        let collection = served.identity.path(request.namespace.as_deref());
        let tail = if served.subresources.status { "/status" } else { "" };
        let change = json!({ "status": { "size": size } });
        let patch = HttpRequest::patch(format!("{collection}/{}{tail}", request.name))
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(change.to_string().into_bytes())?;
        let answer = context.client().request::<serde_json::Value>(patch).await?;
        // For a moment discovery may be ahead of what the real server does with a write.
        if answer["status"]["size"] != *size {
            return Err("the server dropped the status".into());
        }
        Ok(Outcome::Done)
    }
}

async fn a_status_subresource_that_comes_is_used_by_the_next_write(server: Server<'static>) {
    let world = World::on(server, "change-status").await;
    let crd = world.widgets().without_status();
    world.install(&crd).await;
    world.create(&crd, "gear", 1).await;
    let widgets = type_of(&crd, "v1");
    let (settled, mut at_rest) = watch::channel(0);
    let writer = StatusWriter { type_ref: widgets.clone(), settled };
    let embedded = Controller::builder("embedded").for_type(widgets.clone()).conditional();
    let embedded = embedded.build(&world.cluster, writer).unwrap();
    world.add("embedded", Arc::new(embedded)).await;
    let hook = InProcessHook::one_config_map();
    world.supervise(&hook).await;
    world.declare("declared", &crd).await;
    let declared = world.runnable("declared");
    world.running("embedded", 1).await;
    let written = async |size: i64| {
        let api = world.scope.api(&crd, "v1");
        until(&format!("the status says {size}"), async || {
            let status = api.get("gear").await.unwrap().data["status"].clone();
            if status["size"] == size { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    };
    // Whom the embedded one asks to write, and how.
    let through = |subresource: &str| {
        let seen = world.faults.seen().into_iter().filter(about(&crd));
        seen.filter(|it| it.verb == Verb::Patch && it.subresource == subresource).count()
    };
    written(1).await;
    let missing = async || {
        let why = world.until(&declared, "waits", |it| it.reason == "SubresourceMissing").await;
        assert_eq!(why.state, ControllerState::Waiting);
        assert!(why.message.contains("status"), "{}", why.message);
    };
    missing().await;

    for epoch in 1..=2 {
        set_status(&world, &crd, true).await;
        world.faults.forget_seen();
        world.resize(&crd, "gear", 10 * epoch).await;
        written(10 * epoch).await;
        // The hook's answer is the same one, so that either may have been first.
        assert_eq!(through(""), 0, "a status is not written with its object any more");
        world.running(&declared, u64::try_from(epoch).unwrap()).await;
        hook.asked("gear", 1).await;
        // The hook may have been first, and the embedded one's write still be on its way; if the
        // change below met it, it would be refused and repeated among those counted afterwards.
        let rested = at_rest.wait_for(|size| *size == 10 * epoch);
        time::timeout(crate::rig::PATIENCE, rested).await.expect("it rests in time").unwrap();

        set_status(&world, &crd, false).await;
        let number = u64::try_from(epoch).unwrap();
        assert_eq!(world.done(&declared, number).await, DoneReason::TypeGone);
        missing().await;
        world.faults.forget_seen();
        world.resize(&crd, "gear", 10 * epoch + 1).await;
        written(10 * epoch + 1).await;
        assert_eq!(through("status"), 0, "nothing is sent to what is gone");
        // The real one may refuse a write, or drop its status, while it changes the storage.
        let most = if world.server.is_simulated() { 1 } else { usize::MAX };
        assert!((1..=most).contains(&through("")), "{} writes for one change", through(""));
    }
    assert_undisturbed(&world, "embedded");
    world.withdraw("declared").await;
    world.finish().await;
}

/// Adds the status subresource, or takes it away, and waits until that is known.
async fn set_status(world: &World, crd: &CrdBuilder, there: bool) {
    change_crd(world, crd, |crd| {
        crd.spec.versions[0].subresources = there.then(|| CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(json!({}))),
            scale: None,
        });
    })
    .await;
    let mut status = world.cluster.types.subscribe(&type_of(crd, "v1"));
    let known = status.wait_for(|status| {
        status.served.as_ref().is_some_and(|served| served.subresources.status == there)
    });
    time::timeout(crate::rig::PATIENCE, known).await.expect("known in time").unwrap();
    // The server itself takes a moment to serve what its CRD says.
    let path = format!("/apis/{}/v1", crd.api_resource("v1").group);
    until("the server serves it so", async || {
        let request = HttpRequest::get(&path).body(Vec::new()).unwrap();
        let answer = world.scope.client().request::<serde_json::Value>(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let resources = answer["resources"].as_array().cloned().unwrap_or_default();
        let is_there = resources.iter().any(|it| it["name"] == "widgets/status");
        if is_there == there { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
}

/// A controller of this type that has nothing to do any more, and its status.
async fn calm(world: &World, crd: &CrdBuilder) -> (Recorder, Arc<RunnableStatus>) {
    world.install(crd).await;
    world.create(crd, "gear", 1).await;
    let recorder = world.controller("calm", crd).await;
    let status = world.running("calm", 1).await;
    recorder.saw("gear", 1).await;
    watched_again(world, crd, 0).await;
    (recorder, status)
}

async fn churn_of_metadata_on_a_crd_causes_no_work(server: Server<'static>) {
    let world = World::on(server, "change-churn").await;
    let crd = world.widgets();
    let (recorder, status) = calm(&world, &crd).await;
    let mut type_status = world.cluster.types.subscribe(&type_of(&crd, "v1"));
    type_status.mark_unchanged();
    let mark = world.mark();
    recorder.clear();

    for number in 0..20 {
        let metadata = json!({
            "labels": { "churn": number.to_string() },
            "annotations": { format!("churn-{number}"): "x".repeat(100) },
        });
        world.edit_crd(&crd, json!({ "metadata": metadata })).await;
        time::sleep(Duration::from_millis(100)).await;
    }
    // CRDs are told of in their order.
    let last = CrdBuilder::new(&world.scope.group, "Last");
    world.install(&last).await;
    world.type_state(&type_of(&last, "v1"), "is served", |it| *it == TypeState::Served).await;

    assert!(!type_status.has_changed().unwrap(), "nothing is said of the type");
    assert_unmoved(&world, "calm", &status);
    assert!(recorder.all().is_empty(), "{:#?}", recorder.all());
    let asked = match world.server.is_simulated() {
        true => world.events(mark).await,
        // Others make and delete APIServices there.
        false => world.requests(&crd, mark).await,
    };
    assert!(asked.is_empty(), "{asked:#?}");
    world.finish().await;
}

async fn printer_columns_cause_no_work(server: Server<'static>) {
    let world = World::on(server, "change-columns").await;
    let crd = world.widgets();
    let (recorder, status) = calm(&world, &crd).await;
    let before = watches(&world, &crd);
    let mark = world.mark();
    recorder.clear();

    change_crd(&world, &crd, |crd| {
        crd.spec.versions[0].additional_printer_columns =
            Some(vec![CustomResourceColumnDefinition {
                name: "Size".to_owned(),
                type_: "integer".to_owned(),
                json_path: ".spec.size".to_owned(),
                ..CustomResourceColumnDefinition::default()
            }]);
        crd.spec.names.categories = Some(vec!["all".to_owned()]);
        crd.spec.names.short_names = Some(vec!["wd".to_owned()]);
    })
    .await;
    watched_again(&world, &crd, before).await;
    world.create(&crd, "after", 1).await;

    recorder.saw("after", 1).await;
    assert_eq!(names_of(&recorder), ["after"], "nothing else is reconciled");
    assert_unmoved(&world, "calm", &status);
    let lists = lists(&world, &crd, mark).await;
    // The server accepts the names in a second step, and ends the watch once more.
    assert!(lists <= 2, "{lists} lists");
    world.finish().await;
}
