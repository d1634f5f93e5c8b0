//! Changes in mid-rollout: edits, rollbacks, deletions, scales, and what Metacontroller left.

use std::sync::atomic::AtomicBool;

use super::*;

const CHECKED: Variant = Variant { has_checks: true, ..PLAIN };

impl RolloutFixture {
    /// Starts with three ready children, edits the parent, and waits until the first child is
    /// updated and not ready.
    async fn in_mid_rollout(variant: Variant) -> Self {
        let fixture = Self::start(variant).await;
        fixture.roll_to("two");
        fixture.rests("RolloutWaiting").await;
        assert_eq!(fixture.texts(), ["two", "one", "one"]);
        fixture
    }

    /// Waits until the condition has this reason and nothing changes any more.
    async fn rests(&self, reason: &str) {
        for _ in 0..100 {
            sleep(Duration::from_millis(50)).await;
            if self.updated().0 == reason {
                run_until_idle().await;
                run_until_idle().await;
                return;
            }
        }
        panic!("{:?} {:?} {:?}", self.texts(), self.revisions(), self.updated());
    }
}

#[tokio::test(start_paused = true)]
async fn rollout_waits_for_the_status_of_each_updated_child_and_reports_it_once() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;

    let (_, message) = fixture.updated();
    let expected = "child Part c00 with RollingInPlace update strategy hasn't observed latest spec";
    assert_eq!(message, expected);
    fixture.make_ready("c00", false);
    run_until_idle().await;
    let expected = "child Part c00 failed status check: \"Ready\" condition status is \"False\" \
                    (want \"True\")";
    assert_eq!(fixture.updated(), ("RolloutWaiting".to_owned(), expected.to_owned()));
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(fixture.texts(), ["two", "one", "one"], "it waits for ever");
    let events = fixture.harness.server.list("v1", "Event").unwrap();
    let waits = events.iter().filter(|event| event["reason"] == "RolloutWaiting");
    let waits: Vec<_> = waits.map(|event| event["message"].as_str().unwrap()).collect();
    assert_eq!(waits, [format!("Rollout waits: {expected}")]);
    fixture.make_ready("c00", true);
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_in_mid_rollout_rolls_the_children_of_all_revisions() {
    for method in ["RollingInPlace", "RollingRecreate"] {
        let fixture = RolloutFixture::in_mid_rollout(Variant { method, ..CHECKED }).await;
        assert_eq!(fixture.revisions()["one"], ["c01", "c02"]);
        // The first child is ready, and the second one is being updated.
        fixture.make_ready("c00", true);
        fixture.rests("RolloutWaiting").await;
        assert_eq!(fixture.texts(), ["two", "two", "one"]);

        fixture.roll_to("three");
        fixture.rests("RolloutWaiting").await;

        assert_eq!(fixture.texts(), ["two", "three", "one"], "the unavailable child is first");
        assert_eq!(fixture.revisions().len(), 3);
        fixture.done("three").await;
        fixture.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn rollback_in_mid_rollout_rolls_the_updated_children_back() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;
    fixture.wire.take_writes();

    fixture.roll_to("one");
    fixture.done("one").await;

    assert_eq!(fixture.wire.child_writes(), ["PUT c00"], "no other child is touched");
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_that_is_deleted_in_mid_rollout_returns_at_its_own_revision() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;
    let server = &fixture.harness.server;

    server.remove(GROUP, "Part", "default", "c02").unwrap();
    run_until_idle().await;
    server.remove(GROUP, "Part", "default", "c00").unwrap();
    run_until_idle().await;

    assert_eq!(fixture.texts(), ["two", "one", "one"]);
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_whose_deletion_takes_long_returns_at_its_own_revision() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;
    let server = &fixture.harness.server;
    let mut child = server.get(GROUP, "Part", "default", "c02").unwrap();
    child["metadata"]["finalizers"] = json!(["example.com/held"]);
    server.merge(&child).unwrap();
    server.remove(GROUP, "Part", "default", "c02").unwrap();
    fixture.make_ready("c00", true);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.updated().1, "child Part c02 is being deleted");
    fixture.wire.take_writes();

    let mut child = server.get(GROUP, "Part", "default", "c02").unwrap();
    child["metadata"]["finalizers"] = json!([]);
    server.merge(&child).unwrap();
    fixture.done("two").await;

    let writes = fixture.wire.child_writes();
    assert_eq!(
        writes,
        ["POST", "PUT c02", "PUT c01"],
        "created as of \"one\", updated in its turn"
    );
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn scale_in_mid_rollout_creates_at_the_latest_revision_and_deletes_at_once() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;

    fixture.edit(json!({"size": 5}));
    fixture.rests("RolloutWaiting").await;
    assert_eq!(fixture.texts(), ["two", "one", "one", "two", "two"]);
    fixture.edit(json!({"size": 2}));
    fixture.rests("RolloutWaiting").await;
    assert_eq!(fixture.texts(), ["two", "one"]);
    assert_eq!(fixture.revisions()["one"], ["c01"]);

    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn change_outside_the_fields_of_revisions_reaches_all_children_at_once() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;

    fixture.edit(json!({"all": "yes"}));
    run_until_idle().await;

    let all = fixture.children().into_iter().map(|child| child["spec"]["all"].clone());
    assert_eq!(all.collect::<Vec<_>>(), ["yes", "yes", "yes"]);
    assert_eq!(fixture.texts(), ["two", "one", "one"]);
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn hook_is_called_once_for_each_live_revision_and_one_that_is_busy_stops_the_sync() {
    let server = SimulatedServer::new();
    let busy = Arc::new(AtomicBool::new(false));
    let is_busy = Arc::clone(&busy);
    let response = move |kind: HookKind, request: &Value| {
        let is_old = request["parent"]["spec"]["template"]["text"] == "one";
        match is_old && is_busy.load(Ordering::SeqCst) {
            true => Value::Null,
            false => CHECKED.answer(kind, request),
        }
    };
    let fixture = RolloutFixture::process(&server, CHECKED, None, response).await;
    fixture.declare();
    fixture.done("one").await;
    fixture.calls.lock().unwrap().clear();
    fixture.wire.take_writes();
    busy.store(true, Ordering::SeqCst);

    fixture.roll_to("two");
    run_until_idle().await;

    assert_eq!(*fixture.calls.lock().unwrap(), ["two", "one"], "the latest first");
    assert_eq!(fixture.wire.take_writes(), [""; 0]);
    busy.store(false, Ordering::SeqCst);
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_that_of_the_latest_revision_and_the_shortest_resync_counts() {
    let server = SimulatedServer::new();
    let response = |kind: HookKind, request: &Value| {
        let mut response = CHECKED.answer(kind, request);
        let text = &request["parent"]["spec"]["template"]["text"];
        response["status"] = json!({"of": text});
        response["resyncAfterSeconds"] = json!(if text == "one" { 60 } else { 600 });
        response
    };
    let fixture = RolloutFixture::process(&server, CHECKED, None, response).await;
    fixture.declare();
    fixture.done("one").await;
    fixture.roll_to("two");
    fixture.rests("RolloutWaiting").await;
    sleep(Duration::from_secs(31)).await;
    fixture.calls.lock().unwrap().clear();

    assert_eq!(fixture.parent()["status"]["of"], "two");
    sleep(Duration::from_secs(61)).await;
    assert_eq!(*fixture.calls.lock().unwrap(), ["two", "one"]);
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn rollout_that_stopped_half_done_continues() {
    for generates in [false, true] {
        let variant = Variant { generates, ..CHECKED };
        let fixture = RolloutFixture::in_mid_rollout(variant).await;
        let server = fixture.harness.server.clone();
        fixture.end().await;
        let response = move |kind: HookKind, request: &Value| variant.answer(kind, request);
        let fixture = RolloutFixture::process(&server, variant, None, response).await;

        fixture.done("two").await;

        assert_eq!(fixture.wire.child_writes(), ["PUT c01", "PUT c02"], "one is up to date");
        fixture.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn revision_that_was_released_for_its_labels_is_adopted_by_its_name() {
    let fixture = RolloutFixture::start(Variant { generates: false, ..PLAIN }).await;
    let server = &fixture.harness.server;
    let mut revision = server.list(REVISIONS.0, REVISIONS.1).unwrap().remove(0);
    let labels = revision["metadata"]["labels"].as_object_mut().unwrap();
    assert_eq!(labels.remove("app"), Some(json!("x")), "a label of the selector");
    revision["metadata"]["ownerReferences"] = json!([]);
    let uid = revision["metadata"]["uid"].clone();
    server.apply(revision).unwrap();

    fixture.edit(json!({"all": "yes"}));
    fixture.done("one").await;

    let revision = server.list(REVISIONS.0, REVISIONS.1).unwrap().remove(0);
    assert_eq!(revision["metadata"]["uid"], uid);
    assert_eq!(revision["metadata"]["ownerReferences"][0]["name"], "p");
    fixture.roll_to("two");
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn older_revision_that_was_released_in_mid_rollout_is_adopted_by_its_name() {
    let fixture = RolloutFixture::in_mid_rollout(Variant { generates: false, ..CHECKED }).await;
    let server = &fixture.harness.server;
    let older = || {
        let revisions = server.list(REVISIONS.0, REVISIONS.1).unwrap();
        let is_older = |it: &Value| it["parentPatch"]["spec"]["template"]["text"] == "one";
        revisions.into_iter().find(is_older).expect("children of the older revision are left")
    };
    let mut revision = older();
    revision["metadata"]["labels"].as_object_mut().unwrap().remove("app");
    revision["metadata"]["ownerReferences"] = json!([]);
    server.apply(revision).unwrap();

    server.remove(GROUP, "Part", "default", "c02").unwrap();
    fixture.rests("RolloutWaiting").await;

    assert_eq!(older()["metadata"]["ownerReferences"][0]["name"], "p");
    assert_eq!(fixture.texts(), ["two", "one", "one"]);
    fixture.make_ready("c00", true);
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn children_without_a_revision_are_updated_one_at_a_time() {
    let fixture = RolloutFixture::start(CHECKED).await;
    let server = fixture.harness.server.clone();
    fixture.end().await;
    let revision = server.list(REVISIONS.0, REVISIONS.1).unwrap().remove(0);
    let name = revision["metadata"]["name"].as_str().unwrap();
    server.remove(REVISIONS.0, REVISIONS.1, "default", name).unwrap();
    let response = |kind: HookKind, request: &Value| CHECKED.answer(kind, request);
    let fixture = RolloutFixture::process(&server, CHECKED, None, response).await;

    fixture.roll_to("two");
    fixture.rests("RolloutWaiting").await;

    assert_eq!(fixture.texts(), ["two", "one", "one"]);
    fixture.done("two").await;
    fixture.end().await;
}

impl RolloutFixture {
    /// Value of a gauge of the controller.
    fn gauge(&self, name: &str) -> Option<i64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.harness.metrics).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Condition `RolledOut` of the controller: status and reason.
    fn rolled_out(&self) -> (String, String) {
        let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        let controller = self.harness.server.get(kind.0, kind.1, "", "roll").unwrap();
        let conditions = controller["status"]["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|it| it["type"] == "RolledOut").unwrap();
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        (text("status"), text("reason"))
    }
}

#[tokio::test(start_paused = true)]
async fn rollout_is_in_the_metrics_and_in_the_condition_of_its_controller_until_it_is_done() {
    const PENDING: &str = "pilotlight_composite_pending_rollouts";
    const SINCE: &str = "pilotlight_composite_rollout_waiting_since_timestamp_seconds";
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;
    let begin = k8s_openapi::jiff::Timestamp::now().as_second();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.rolled_out(), ("False".to_owned(), "RolloutProgressing".to_owned()));
    sleep(Duration::from_secs(3600)).await;

    assert_eq!(fixture.gauge(PENDING), Some(1));
    let since = fixture.gauge(SINCE).unwrap();
    assert!((begin - 60..=begin + 60).contains(&since), "{since}, not about {begin}");
    assert_eq!(fixture.rolled_out(), ("False".to_owned(), "RolloutWaiting".to_owned()));

    fixture.done("two").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!((fixture.gauge(PENDING), fixture.gauge(SINCE)), (Some(0), Some(0)));
    assert_eq!(fixture.rolled_out(), ("True".to_owned(), "NoRollout".to_owned()));
    let events = fixture.harness.server.list("v1", "Event").unwrap();
    let complete = events.iter().filter(|event| event["reason"] == "RolloutComplete");
    assert_eq!(complete.count(), 1);
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_is_freed_only_when_all_its_live_revisions_agree() {
    let fixture = RolloutFixture::in_mid_rollout(CHECKED).await;
    fixture.edit(json!({"opposed": "one"}));
    fixture.rests("RolloutWaiting").await;
    fixture.wire.take_writes();

    fixture.harness.server.remove(GROUP, "Widget", "default", "p").unwrap();
    sleep(Duration::from_secs(60)).await;

    assert!(fixture.harness.server.get(GROUP, "Widget", "default", "p").is_err());
    let writes = fixture.wire.take_writes();
    let first = |part: &str| writes.iter().position(|write| write.contains(part)).unwrap();
    let freed = writes.iter().rposition(|write| write.ends_with("/widgets/p")).unwrap();
    assert!(first("DELETE") < freed && first("/controllerrevisions/") < freed, "{writes:?}");
    fixture.end().await;
}

/// Parent whose revisions are in the namespace `system`, at its first revision.
async fn cluster_scoped() -> RolloutFixture {
    let variant = Variant { is_cluster_scoped: true, revision_namespace: "system", ..PLAIN };
    let server = SimulatedServer::new();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "system"}});
    server.apply(namespace).unwrap();
    let fixture = RolloutFixture::process(&server, variant, None, move |kind, request| {
        variant.answer(kind, request)
    })
    .await;
    fixture.declare();
    fixture.done("one").await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn revisions_of_cluster_scoped_parents_are_in_the_namespace_of_the_option() {
    let fixture = cluster_scoped().await;

    fixture.roll_to("two");
    fixture.done("two").await;

    let revisions = fixture.harness.server.list(REVISIONS.0, REVISIONS.1).unwrap();
    let namespaces: Vec<_> = revisions.iter().map(|it| &it["metadata"]["namespace"]).collect();
    assert_eq!(namespaces, ["system"]);
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_is_freed_although_its_namespace_admits_no_new_revision() {
    let fixture = cluster_scoped().await;
    let server = &fixture.harness.server;
    fixture.wire.take_writes();

    // Another program holds the older revision back.
    let mut revision = server.list(REVISIONS.0, REVISIONS.1).unwrap().remove(0);
    revision["metadata"]["finalizers"] = json!(["example.com/held"]);
    server.merge(&revision).unwrap();

    fixture.roll_to("two");
    server.remove("v1", "Namespace", "", "system").unwrap();
    server.remove(GROUP, "Thing", "", "p").unwrap();
    sleep(Duration::from_secs(60)).await;

    assert!(server.get(GROUP, "Thing", "", "p").is_err(), "{:#}", fixture.parent());
    let writes = fixture.wire.take_writes();
    let refused =
        writes.iter().filter(|it| it.starts_with("POST") && it.contains("/controllerrev"));
    assert!(refused.count() > 0, "the namespace refuses the latest revision: {writes:?}");
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn hook_without_a_status_rolls_all_children() {
    let server = SimulatedServer::new();
    let fixture = RolloutFixture::process(&server, PLAIN, None, |kind, request| {
        let mut response = PLAIN.answer(kind, request);
        response.as_object_mut().unwrap().remove("status");
        response
    })
    .await;
    fixture.declare();
    fixture.done("one").await;

    fixture.roll_to("two");
    fixture.done("two").await;

    assert_eq!(fixture.updated().0, "OnLatestRevision");
    fixture.end().await;
}
