//! Scenarios 23 to 28: types change while controllers use them.

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

use super::{Testbed, testbed::InProcessHook};
use crate::{
    support::{ControllerVariant, Embedded, RecordingReconciler, Server, about, type_of, until},
    unknown::{assert_undisturbed, hits},
};

scenarios! {
    23 a_schema_edit_is_no_lifecycle_event both:
        "nothing stops or starts and no status changes; three controllers of the type cost one \
         relist, and reconcile only the objects that have changed meanwhile";
    24 a_version_that_is_no_longer_served_stops_its_controller both:
        "a controller of that version stops and waits for VersionNotServed, which names the \
         served versions; a controller of any version starts again at the other version, or moves \
         there without a stop if its watch is plain; no event is missed, and no request is sent \
         to the removed version";
    25 a_switch_of_the_stored_version_is_no_lifecycle_event both:
        "nothing stops or starts; the migration of the stored objects costs at most one reconcile \
         of each";
    26 a_new_status_subresource_is_used_by_the_next_write both:
        "an embedded controller writes the next status through the subresource, and without it \
         again when it is removed, in the same epoch; a declared one waits for SubresourceMissing \
         while it is missing, and starts when it is added";
    27 frequent_metadata_changes_of_a_crd_cause_no_work both:
        "no transition, no change of a status, no reconcile, no request";
    28 printer_columns_cause_no_work both:
        "no transition, no change of a status, no reconcile, though the server ends the watch";
}

/// Edits a CRD in place and retries on a conflict.
pub(super) async fn change_crd(
    testbed: &Testbed,
    crd: &CrdBuilder,
    change: impl Fn(&mut CustomResourceDefinition),
) {
    loop {
        let mut object = testbed.crds().get(&crd.name()).await.unwrap();
        change(&mut object);
        match testbed.crds().replace(&crd.name(), &PostParams::default(), &object).await {
            Ok(_) => return,
            // The server writes the status of the CRD at the same time.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until a watch of the type is open that is newer than the first `before` watches.
pub(super) async fn watched_again(testbed: &Testbed, crd: &CrdBuilder, before: usize) {
    let is_about = about(crd);
    let watched = testbed.faults.wait_until(|faults| {
        let is_open = |it: &pilotlight::testing::OpenRequest| {
            it.answered && it.info.verb == Verb::Watch && is_about(&it.info)
        };
        watches(testbed, crd) > before && faults.open().iter().any(is_open)
    });
    time::timeout(crate::support::PATIENCE, watched).await.expect("the watch did not open in time");
}

/// Number of watch requests for the type.
pub(super) fn watches(testbed: &Testbed, crd: &CrdBuilder) -> usize {
    let seen = testbed.faults.seen().into_iter().filter(about(crd));
    seen.filter(|info| info.verb == Verb::Watch).count()
}

/// Number of lists of the type that the server has answered since the position, including streaming
/// lists.
pub(super) async fn lists(
    testbed: &Testbed,
    crd: &CrdBuilder,
    since: crate::support::Position,
) -> usize {
    let events = testbed.requests(crd, since).await;
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

/// Asserts that state and reason of a runnable have not changed since, not even temporarily.
pub(super) fn assert_unmoved(testbed: &Testbed, name: &str, before: &RunnableStatus) {
    let now = testbed.status(name);
    assert_eq!((now.state, &now.reason, now.since), (before.state, &before.reason, before.since));
    assert_undisturbed(testbed, name);
}

fn names_of(recorder: &RecordingReconciler) -> Vec<String> {
    recorder.all().into_iter().map(|seen| seen.name).collect()
}

async fn a_schema_edit_is_no_lifecycle_event(server: Server<'static>) {
    let testbed = Testbed::on(server, "change-schema").await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    for name in ["a", "b", "c"] {
        testbed.create(&crd, name, 1).await;
    }
    let mut sharers = Vec::new();
    for name in ["one", "two", "three"] {
        let recorder = testbed.controller(name, &crd).await;
        let status = testbed.running(name, 1).await;
        recorder.count(3, |seen| seen.uid.is_some()).await;
        sharers.push((name, recorder, status));
    }
    watched_again(&testbed, &crd, 0).await;
    let position = testbed.position();
    sharers.iter().for_each(|(_, recorder, _)| recorder.clear());

    // The edit ends the watch; the next watch is held until an object has changed.
    let resource = crd.api_resource("v1");
    let away = Rule::new(Action::Hang)
        .verb(Verb::List)
        .verb(Verb::Watch)
        .resource(&resource.group, &resource.plural);
    let away = testbed.faults.add(away);
    change_crd(&testbed, &crd, |crd| {
        let schema = crd.spec.versions[0].schema.as_mut().unwrap();
        let schema = schema.open_api_v3_schema.as_mut().unwrap();
        schema.description = Some("what turns in a clock".to_owned());
    })
    .await;
    hits(&testbed, away, 1).await;
    testbed.resize(&crd, "b", 2).await;
    testbed.faults.remove(away);

    for (_, recorder, _) in &sharers {
        recorder.until("the change", |seen| seen.name == "b" && seen.size == Some(2)).await;
    }
    testbed.create(&crd, "d", 1).await;
    for (name, recorder, status) in &sharers {
        recorder.saw("d", 1).await;
        assert_eq!(names_of(recorder), ["b", "d"], "{name}: nothing else has changed");
        assert_unmoved(&testbed, name, status);
    }
    let lists = lists(&testbed, &crd, position).await;
    assert!(lists <= 1, "{lists} lists for three controllers");
    testbed.finish().await;
}

/// Adds a controller with an unconditional watch, which keeps running while its type is absent.
async fn add_plain(testbed: &Testbed, name: &str, recorder: &RecordingReconciler) {
    let controller = Controller::builder(name)
        .for_type(recorder.type_ref().clone())
        .build(&testbed.cluster, recorder.clone())
        .unwrap();
    testbed.add(name, Arc::new(controller)).await;
}

async fn a_version_that_is_no_longer_served_stops_its_controller(server: Server<'static>) {
    let testbed = Testbed::on(server, "change-version").await;
    let crd = testbed.widgets().version("v1").version("v2");
    testbed.install(&crd).await;
    testbed.scope.wait_served(&crd, "v2").await.unwrap();
    testbed.create(&crd, "early", 1).await;
    let pinned = RecordingReconciler::new(type_of(&crd, "v2"));
    let any = RecordingReconciler::new(type_of(&crd, "v2").any_version());
    let plain = RecordingReconciler::new(type_of(&crd, "v2").any_version());
    Embedded.add(&testbed, "pinned", &pinned).await;
    Embedded.add(&testbed, "any", &any).await;
    add_plain(&testbed, "plain", &plain).await;
    for (name, recorder) in [("pinned", &pinned), ("any", &any), ("plain", &plain)] {
        testbed.running(name, 1).await;
        recorder.saw("early", 1).await;
    }
    let version = || testbed.cluster.types.served(any.type_ref()).unwrap().identity.version.clone();
    assert_eq!(&*version(), "v2", "the server's preferred version");

    testbed.scope.set_served(&crd, "v2", false).await.unwrap();
    testbed.create(&crd, "meanwhile", 1).await;

    assert_eq!(testbed.done("pinned", 1).await, DoneReason::TypeGone);
    let waiting = testbed.until("pinned", "waits", |it| it.reason == "VersionNotServed").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert!(
        waiting.message.contains("v1"),
        "the message names the served version: {}",
        waiting.message
    );
    assert_eq!(testbed.done("any", 1).await, DoneReason::TypeGone);
    testbed.running("any", 2).await;
    for name in ["early", "meanwhile"] {
        any.saw(name, 2).await;
    }
    plain.saw("meanwhile", 1).await;
    assert_eq!(&*version(), "v1");
    let position = testbed.position();
    pinned.clear();
    testbed.resize(&crd, "early", 2).await;
    for recorder in [&any, &plain] {
        recorder.until("a change at the other version", |seen| seen.size == Some(2)).await;
    }
    assert!(plain.all().iter().all(|seen| seen.uid.is_some()), "no object appeared deleted");
    assert_undisturbed(&testbed, "plain");
    let mut noise = testbed.requests(&crd, position).await;
    noise.retain(|event| event.version == "v2");
    assert!(noise.is_empty(), "requests at a version that is not served: {noise:#?}");
    assert!(pinned.all().is_empty(), "a waiting controller does not reconcile");

    testbed.scope.set_served(&crd, "v2", true).await.unwrap();
    testbed.running("pinned", 2).await;
    for name in ["early", "meanwhile"] {
        pinned.saw(name, 2).await;
    }
    assert_eq!(&*version(), "v1", "a controller of any version keeps its version");
    assert_eq!(testbed.status("any").epoch, 2);
    assert_undisturbed(&testbed, "plain");
    testbed.finish().await;
}

async fn a_switch_of_the_stored_version_is_no_lifecycle_event(server: Server<'static>) {
    let testbed = Testbed::on(server, "change-stored").await;
    let crd = testbed.widgets().version("v1").version("v2");
    testbed.install(&crd).await;
    testbed.scope.wait_served(&crd, "v2").await.unwrap();
    for name in ["a", "b", "c"] {
        testbed.create(&crd, name, 1).await;
    }
    let mut recorders = Vec::new();
    for version in ["v1", "v2"] {
        let recorder = RecordingReconciler::new(type_of(&crd, version));
        Embedded.add(&testbed, version, &recorder).await;
        let status = testbed.running(version, 1).await;
        recorder.count(3, |seen| seen.uid.is_some()).await;
        recorder.clear();
        recorders.push((version, recorder, status));
    }

    change_crd(&testbed, &crd, |crd| {
        for version in &mut crd.spec.versions {
            version.storage = version.name == "v2";
        }
    })
    .await;
    // Like the storage migrator: rewrites each object unchanged.
    for name in ["a", "b", "c"] {
        let api = testbed.scope.api(&crd, "v1");
        let old = api.get(name).await.unwrap();
        until(&format!("{name} is stored at the other version"), async || {
            let new = api.replace(name, &PostParams::default(), &old).await.unwrap();
            let (old, new) = (&old.metadata.resource_version, &new.metadata.resource_version);
            if old == new { Err("nothing was written".to_owned()) } else { Ok(()) }
        })
        .await;
    }
    testbed.create(&crd, "after", 1).await;

    for (version, recorder, status) in &recorders {
        recorder.saw("after", 1).await;
        let mut names = names_of(recorder);
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{version}: each is reconciled once at most");
        assert_undisturbed(&testbed, version);
        if testbed.server.is_simulated() {
            assert_unmoved(&testbed, version, status);
        }
    }
    let stored = testbed.crds().get(&crd.name()).await.unwrap().status.unwrap().stored_versions;
    assert_eq!(stored.unwrap_or_default(), ["v1", "v2"], "the migrator's own bookkeeping");
    testbed.finish().await;
}

/// Writes the size of each object into its status, by the path that the type supports now.
#[derive(Clone)]
pub(super) struct StatusWriter {
    pub(super) type_ref: TypeRef,
    /// Last size that the status already held, so that no write was needed.
    pub(super) settled: watch::Sender<i64>,
}

impl Reconciler for StatusWriter {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let (served, store) = (context.served(&self.type_ref), context.store(&self.type_ref));
        let (Ok(served), Ok(store)) = (served, store) else {
            return Err("the controller does not watch the type".into());
        };
        let Some(object) = store.get(&request) else { return Ok(Outcome::Done) };
        let object: serde_json::Value = serde_json::from_slice(&object.json())?;
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
        // Discovery may briefly be ahead of the real server's handling of writes.
        if answer["status"]["size"] != *size {
            return Err("the server dropped the status".into());
        }
        Ok(Outcome::Done)
    }
}

async fn a_new_status_subresource_is_used_by_the_next_write(server: Server<'static>) {
    let testbed = Testbed::on(server, "change-status").await;
    let crd = testbed.widgets().without_status();
    testbed.install(&crd).await;
    testbed.create(&crd, "gear", 1).await;
    let widgets = type_of(&crd, "v1");
    let (settled, mut at_rest) = watch::channel(0);
    let writer = StatusWriter { type_ref: widgets.clone(), settled };
    let embedded = Controller::builder("embedded").for_type(widgets.clone()).conditional();
    let embedded = embedded.build(&testbed.cluster, writer).unwrap();
    testbed.add("embedded", Arc::new(embedded)).await;
    let hook = InProcessHook::one_config_map();
    testbed.supervise(&hook).await;
    testbed.declare("declared", &crd).await;
    let declared = testbed.runnable("declared");
    testbed.running("embedded", 1).await;
    let written = async |size: i64| {
        let api = testbed.scope.api(&crd, "v1");
        until(&format!("the status says {size}"), async || {
            let status = api.get("gear").await.unwrap().data["status"].clone();
            if status["size"] == size { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    };
    // Number of status patches through this subresource.
    let through = |subresource: &str| {
        let seen = testbed.faults.seen().into_iter().filter(about(&crd));
        seen.filter(|it| it.verb == Verb::Patch && it.subresource == subresource).count()
    };
    written(1).await;
    let missing = async || {
        let why = testbed.until(&declared, "waits", |it| it.reason == "SubresourceMissing").await;
        assert_eq!(why.state, ControllerState::Waiting);
        assert!(why.message.contains("status"), "{}", why.message);
    };
    missing().await;

    for epoch in 1..=2 {
        set_status(&testbed, &crd, true).await;
        testbed.faults.forget_seen();
        testbed.resize(&crd, "gear", 10 * epoch).await;
        written(10 * epoch).await;
        // The hook answers with the same status, so that either controller may have written first.
        assert_eq!(through(""), 0, "the status is not written through its object any more");
        testbed.running(&declared, u64::try_from(epoch).unwrap()).await;
        hook.called("gear", 1).await;
        // If the hook wrote first, the embedded controller's write may still be in flight. A write
        // that met the change below would be refused, retried and counted afterwards.
        let rested = at_rest.wait_for(|size| *size == 10 * epoch);
        time::timeout(crate::support::PATIENCE, rested)
            .await
            .expect("the writer did not settle in time")
            .unwrap();

        set_status(&testbed, &crd, false).await;
        let number = u64::try_from(epoch).unwrap();
        assert_eq!(testbed.done(&declared, number).await, DoneReason::TypeGone);
        missing().await;
        testbed.faults.forget_seen();
        testbed.resize(&crd, "gear", 10 * epoch + 1).await;
        written(10 * epoch + 1).await;
        assert_eq!(through("status"), 0, "no request to the removed subresource");
        // The real server may refuse a write, or drop its status, while it changes the storage.
        let most = if testbed.server.is_simulated() { 1 } else { usize::MAX };
        assert!((1..=most).contains(&through("")), "{} writes for one change", through(""));
    }
    assert_undisturbed(&testbed, "embedded");
    testbed.withdraw("declared").await;
    testbed.finish().await;
}

/// Adds or removes the status subresource and waits until discovery reports it.
async fn set_status(testbed: &Testbed, crd: &CrdBuilder, there: bool) {
    change_crd(testbed, crd, |crd| {
        crd.spec.versions[0].subresources = there.then(|| CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(json!({}))),
            scale: None,
        });
    })
    .await;
    let mut status = testbed.cluster.types.subscribe(&type_of(crd, "v1"));
    let known = status.wait_for(|status| {
        status.served.as_ref().is_some_and(|served| served.subresources.status == there)
    });
    time::timeout(crate::support::PATIENCE, known).await.expect("known in time").unwrap();
    // The server needs a moment to serve the new version of its CRD.
    let path = format!("/apis/{}/v1", crd.api_resource("v1").group);
    until("the server serves the new version", async || {
        let request = HttpRequest::get(&path).body(Vec::new()).unwrap();
        let answer = testbed.scope.client().request::<serde_json::Value>(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let resources = answer["resources"].as_array().cloned().unwrap_or_default();
        let is_there = resources.iter().any(|it| it["name"] == "widgets/status");
        if is_there == there { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
}

/// Adds a controller of this type without pending work; returns its recorder and its status.
async fn calm(testbed: &Testbed, crd: &CrdBuilder) -> (RecordingReconciler, Arc<RunnableStatus>) {
    testbed.install(crd).await;
    testbed.create(crd, "gear", 1).await;
    let recorder = testbed.controller("calm", crd).await;
    let status = testbed.running("calm", 1).await;
    recorder.saw("gear", 1).await;
    watched_again(testbed, crd, 0).await;
    (recorder, status)
}

async fn frequent_metadata_changes_of_a_crd_cause_no_work(server: Server<'static>) {
    let testbed = Testbed::on(server, "change-metadata").await;
    let crd = testbed.widgets();
    let (recorder, status) = calm(&testbed, &crd).await;
    let mut type_status = testbed.cluster.types.subscribe(&type_of(&crd, "v1"));
    type_status.mark_unchanged();
    let position = testbed.position();
    recorder.clear();

    for number in 0..20 {
        let metadata = json!({
            "labels": { "revision": number.to_string() },
            "annotations": { format!("revision-{number}"): "x".repeat(100) },
        });
        testbed.edit_crd(&crd, json!({ "metadata": metadata })).await;
        time::sleep(Duration::from_millis(100)).await;
    }
    // Events about CRDs arrive in order, so that the last CRD marks the end of the earlier ones.
    let last = CrdBuilder::new(&testbed.scope.group, "Last");
    testbed.install(&last).await;
    testbed.type_state(&type_of(&last, "v1"), "is served", |it| *it == TypeState::Served).await;

    assert!(!type_status.has_changed().unwrap(), "the status of the type is unchanged");
    assert_unmoved(&testbed, "calm", &status);
    assert!(recorder.all().is_empty(), "{:#?}", recorder.all());
    let sent = match testbed.server.is_simulated() {
        true => testbed.events(position).await,
        // Other tests create and delete APIServices on this server.
        false => testbed.requests(&crd, position).await,
    };
    assert!(sent.is_empty(), "{sent:#?}");
    testbed.finish().await;
}

async fn printer_columns_cause_no_work(server: Server<'static>) {
    let testbed = Testbed::on(server, "change-columns").await;
    let crd = testbed.widgets();
    let (recorder, status) = calm(&testbed, &crd).await;
    let before = watches(&testbed, &crd);
    let position = testbed.position();
    recorder.clear();

    change_crd(&testbed, &crd, |crd| {
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
    watched_again(&testbed, &crd, before).await;
    testbed.create(&crd, "after", 1).await;

    recorder.saw("after", 1).await;
    assert_eq!(names_of(&recorder), ["after"], "nothing else is reconciled");
    assert_unmoved(&testbed, "calm", &status);
    let lists = lists(&testbed, &crd, position).await;
    // The server accepts the names in a second step and ends the watch once more.
    assert!(lists <= 2, "{lists} lists");
    testbed.finish().await;
}
