//! Decorators from end to end, on the simulated server.

use super::{
    finalize::{delete_parent, writes},
    responding_hook::{Calls, faulty_with, harness, pass},
    *,
};
use crate::{
    meta::definition::MAX_OWNER_DEPTH,
    testing::{Action, Reply, Rule, Verb, simulated::Delays},
};

const OURS: &str = "metacontroller.io/decoratorcontroller-a";
const MARK: &str = "metacontroller.k8s.io/decorator-controller";

/// Specification that decorates Things and ConfigMaps with a label `decorate`, and attaches
/// Secrets.
fn decorating(hooks: &[&str]) -> Value {
    let hook = || json!({"webhook": {"url": "http://scripted/"}});
    let hooks: serde_json::Map<_, _> =
        hooks.iter().map(|name| ((*name).to_owned(), hook())).collect();
    let selector = || json!({"matchLabels": {"decorate": "yes"}});
    json!({
        "resources": [
            {"apiVersion": "example.com/v1", "resource": "things", "labelSelector": selector()},
            {"apiVersion": "v1", "resource": "configmaps", "labelSelector": selector()},
        ],
        "attachments": [
            {"apiVersion": "v1", "resource": "secrets", "updateStrategy": {"method": "InPlace"}},
        ],
        "hooks": hooks,
    })
}

pub(super) fn declare(harness: &Harness, name: &str, spec: Value) {
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "DecoratorController",
        "metadata": {"name": name}, "spec": spec,
    });
    harness.server.apply(object).unwrap();
}

pub(super) async fn running(harness: &Harness, name: &str) {
    let name = ControllerKind::Decorator.runnable_name(name);
    harness.until(name.as_str(), |it| it.state == ControllerState::Running).await;
}

fn object(api_version: &str, kind: &str, namespace: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": "p", "labels": {"decorate": "yes", "kept": "1", "old": "1"}},
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn thing() -> Value {
    object("example.com/v1", "Thing", None)
}

/// Response that decorates an object and attaches a Secret named after its kind.
fn decorate(kind: HookKind, request: &Value) -> Value {
    let object_kind = request["object"]["kind"].as_str().unwrap().to_lowercase();
    let attachment = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": format!("of-{object_kind}"), "namespace": "default"},
    });
    match kind {
        HookKind::Sync => json!({
            "labels": {"new": "1", "old": null}, "annotations": {"seen": "yes"},
            "status": {"phase": "decorated"}, "attachments": [attachment],
        }),
        HookKind::Finalize => {
            let left = request["attachments"]["Secret.v1"].as_object().unwrap().len();
            json!({"labels": {"new": null}, "attachments": [], "finalized": left == 0})
        }
        HookKind::Customize => panic!("it is not declared"),
    }
}

fn get(harness: &Harness, api_version: &str, kind: &str) -> Option<Value> {
    let namespace = if kind == "Thing" { "" } else { "default" };
    harness.server.get(api_version, kind, namespace, "p").ok()
}

fn secret(harness: &Harness, name: &str) -> Option<Value> {
    harness.server.get("v1", "Secret", "default", name).ok()
}

/// Requests of the controllers for parents and attachments.
fn requests(harness: &Harness) -> usize {
    let all = harness.server.requests();
    let of = |resource: &str| ["things", "configmaps", "secrets"].contains(&resource);
    let single = |verb| !matches!(verb, Verb::List | Verb::Watch);
    all.iter().filter(|it| of(&it.info.resource) && single(it.info.verb)).count()
}

async fn start() -> (Harness, Calls) {
    let (harness, calls) = harness(decorate).await;
    declare(&harness, "a", decorating(&["sync"]));
    running(&harness, "a").await;
    (harness, calls)
}

#[tokio::test(start_paused = true)]
async fn object_is_decorated_and_gets_its_attachment_and_then_nothing_is_written() {
    let (harness, calls) = start().await;
    harness.server.apply(thing()).unwrap();
    pass().await;

    let found = get(&harness, "example.com/v1", "Thing").unwrap();
    let labels = json!({"decorate": "yes", "kept": "1", "new": "1"});
    assert_eq!(found["metadata"]["labels"], labels);
    assert_eq!(found["metadata"]["annotations"], json!({"seen": "yes"}));
    assert_eq!(found["status"], json!({"phase": "decorated"}), "no observedGeneration");
    let attached = secret(&harness, "of-thing").expect("it is attached");
    assert_eq!(attached["metadata"]["annotations"][MARK], "a");
    assert_eq!(attached["metadata"]["ownerReferences"][0]["uid"], found["metadata"]["uid"]);

    let (before, called) = (requests(&harness), calls.lock().unwrap().len());
    let edit = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"}, "spec": {"n": 1},
    });
    harness.server.merge(&edit).unwrap();
    pass().await;

    assert!(calls.lock().unwrap().len() > called, "it is synced again");
    assert_eq!(requests(&harness), before, "and nothing is sent");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_two_kinds_with_one_name_are_decorated_apart() {
    let (harness, _calls) = start().await;
    harness.server.apply(thing()).unwrap();
    harness.server.apply(object("v1", "ConfigMap", Some("default"))).unwrap();
    pass().await;

    for (api_version, kind, attached) in
        [("example.com/v1", "Thing", "of-thing"), ("v1", "ConfigMap", "of-configmap")]
    {
        let found = get(&harness, api_version, kind).unwrap();
        assert_eq!(found["metadata"]["labels"]["new"], "1", "{kind}");
        let attached = secret(&harness, attached).unwrap();
        let owner = &attached["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!(kind), &found["metadata"]["uid"]));
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn decorator_runs_while_one_of_its_kinds_comes_and_goes() {
    let (harness, _calls) = harness(decorate).await;
    let mut spec = decorating(&["sync"]);
    let late = json!({"apiVersion": "late.example.com/v1", "resource": "lates"});
    spec["resources"].as_array_mut().unwrap().push(late);
    declare(&harness, "a", spec);
    running(&harness, "a").await;
    let name = ControllerKind::Decorator.runnable_name("a");
    let epoch = || harness.manager.status_of(name.clone()).unwrap().epoch;
    let lates = CrdBuilder::new("late.example.com", "Late").cluster_scoped().build();
    for _ in 0..2 {
        harness.server.install(&lates).unwrap();
        sleep(Duration::from_secs(60)).await;
        harness.server.apply(object("late.example.com/v1", "Late", None)).unwrap();
        pass().await;

        let found = get(&harness, "late.example.com/v1", "Late");
        assert_eq!(found.unwrap()["metadata"]["labels"]["new"], "1");
        harness.server.uninstall(&lates.metadata.name.clone().unwrap()).unwrap();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(epoch(), 1, "the others continue");
    }
    harness.server.apply(thing()).unwrap();
    pass().await;
    assert!(secret(&harness, "of-thing").is_some());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_is_finalized_when_it_is_deleted_and_when_it_is_no_longer_selected() {
    let (harness, _calls) = harness(decorate).await;
    declare(&harness, "a", decorating(&["sync", "finalize"]));
    running(&harness, "a").await;
    for deleted in [true, false] {
        harness.server.apply(thing()).unwrap();
        pass().await;
        let found = get(&harness, "example.com/v1", "Thing").unwrap();
        assert_eq!(found["metadata"]["finalizers"], json!([OURS]));
        assert!(secret(&harness, "of-thing").is_some());

        if deleted {
            harness.server.remove("example.com/v1", "Thing", "", "p").unwrap();
        } else {
            let mut other = thing();
            other["metadata"]["labels"]["decorate"] = json!("no");
            harness.server.merge(&other).unwrap();
        }
        pass().await;

        assert!(secret(&harness, "of-thing").is_none(), "deleted: {deleted}");
        let found = get(&harness, "example.com/v1", "Thing");
        assert_eq!(found.is_none(), deleted);
        if let Some(found) = found {
            assert_eq!(found["metadata"]["finalizers"], Value::Null);
            assert_eq!(
                found["metadata"]["labels"]["new"],
                Value::Null,
                "the answer is carried out"
            );
        }
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalize_only_decorator_acts_when_its_object_is_deleted_or_no_longer_selected() {
    for deleted in [true, false] {
        let (harness, calls) = harness(decorate).await;
        declare(&harness, "a", decorating(&["finalize"]));
        running(&harness, "a").await;
        harness.server.apply(thing()).unwrap();
        pass().await;
        let found = get(&harness, "example.com/v1", "Thing").unwrap();
        assert_eq!(found["metadata"]["finalizers"], json!([OURS]));
        assert!(calls.lock().unwrap().is_empty());

        if deleted {
            harness.server.remove("example.com/v1", "Thing", "", "p").unwrap();
        } else {
            let mut other = thing();
            other["metadata"]["labels"]["decorate"] = json!("no");
            harness.server.merge(&other).unwrap();
        }
        pass().await;

        let found = get(&harness, "example.com/v1", "Thing");
        assert_eq!(found.is_none(), deleted);
        assert!(found.is_none_or(|found| found["metadata"]["finalizers"].is_null()));
        let calls = std::mem::take(&mut *calls.lock().unwrap());
        let is_finalize = |(kind, request): &(HookKind, Value)| {
            *kind == HookKind::Finalize && request["finalizing"] == json!(true)
        };
        assert!(!calls.is_empty() && calls.iter().all(is_finalize), "{calls:?}");
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_freed_and_the_run_ends_when_the_only_hook_is_dropped() {
    let (harness, calls) = harness(decorate).await;
    declare(&harness, "a", decorating(&["finalize"]));
    running(&harness, "a").await;
    harness.server.apply(thing()).unwrap();
    harness.server.apply(object("v1", "ConfigMap", Some("default"))).unwrap();
    pass().await;
    let finalizers = || {
        [("example.com/v1", "Thing"), ("v1", "ConfigMap")].map(|(api_version, kind)| {
            get(&harness, api_version, kind).unwrap()["metadata"]["finalizers"].clone()
        })
    };
    assert_eq!(finalizers(), [json!([OURS]), json!([OURS])]);

    declare(&harness, "a", decorating(&[]));
    pass().await;

    assert_eq!(finalizers(), [Value::Null, Value::Null]);
    let name = ControllerKind::Decorator.runnable_name("a");
    assert!(harness.manager.status_of(name).is_none(), "it has no run");
    let declared = harness
        .server
        .get("metacontroller.k8s.io/v1alpha1", "DecoratorController", "", "a")
        .unwrap();
    assert_eq!(declared["status"]["state"], "Invalid");
    assert!(calls.lock().unwrap().is_empty(), "the dropped hook is not called");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_deleted_in_the_foreground_goes_after_its_attachments_and_its_finalizer() {
    let (harness, _calls) = harness(decorate).await;
    declare(&harness, "a", decorating(&["sync", "finalize"]));
    running(&harness, "a").await;
    harness.server.apply(thing()).unwrap();
    pass().await;
    let minute = Duration::from_secs(60);
    harness.server.set_delays(Delays { garbage_collection: minute, ..Delays::default() });
    harness.server.forget_requests();

    delete_parent(&harness, "Foreground").await;
    pass().await;
    let found = get(&harness, "example.com/v1", "Thing").unwrap();
    assert_eq!(found["metadata"]["finalizers"], json!([OURS, "foregroundDeletion"]));
    assert_eq!(found["metadata"]["labels"]["new"], Value::Null, "the hook is called at once");
    assert!(secret(&harness, "of-thing").is_some(), "the garbage collector deletes it");
    sleep(4 * minute).await;

    assert_eq!(get(&harness, "example.com/v1", "Thing"), None);
    assert_eq!(secret(&harness, "of-thing"), None);
    assert_eq!(writes(&harness, "secrets"), 0);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_of_a_hook_or_a_selector_takes_effect_in_the_running_epoch_without_a_relist() {
    let (harness, calls) = start().await;
    harness.server.apply(thing()).unwrap();
    pass().await;
    let name = ControllerKind::Decorator.runnable_name("a");
    let watches = harness.server.open_watches();
    harness.server.forget_requests();
    let mut spec = decorating(&["sync"]);

    for (pointer, value) in [
        ("/hooks/sync/webhook/url", json!("http://other/")),
        ("/hooks/sync/webhook/timeout", json!("60s")),
        ("/resources/0/annotationSelector", json!({"matchAnnotations": {"seen": "yes"}})),
        ("/resources/0/labelSelector", json!({"matchLabels": {"decorate": "no"}})),
    ] {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[key] = value;
        declare(&harness, "a", spec.clone());
        pass().await;

        let status = harness.manager.status_of(name.clone()).unwrap();
        assert_eq!((status.epoch, status.pending.as_deref()), (1, None), "{pointer}");
        let requests = harness.server.requests();
        assert!(!requests.iter().any(|it| it.info.verb == Verb::List), "{pointer}");
        assert_eq!(harness.server.open_watches(), watches, "{pointer}");
    }
    let synced = std::mem::take(&mut *calls.lock().unwrap());
    let url = |(_, request): &(HookKind, Value)| {
        request["controller"]["spec"]["hooks"]["sync"]["webhook"]["url"].clone()
    };
    assert_eq!(synced.last().map(url), Some(json!("http://other/")), "p is synced by it");
    let mut left_out = thing();
    left_out["metadata"]["name"] = json!("q");
    left_out["metadata"]["annotations"] = json!({"seen": "yes"});
    harness.server.apply(left_out).unwrap();
    let mut selected = thing();
    selected["metadata"]["labels"]["decorate"] = json!("no");
    harness.server.merge(&selected).unwrap();
    pass().await;

    let synced = std::mem::take(&mut *calls.lock().unwrap());
    let is_selected =
        |(_, request): &(HookKind, Value)| request["object"]["metadata"]["name"] == json!("p");
    assert!(!synced.is_empty() && synced.iter().all(is_selected), "{synced:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn decorator_and_composite_of_one_name_do_not_affect_each_other() {
    let (harness, _calls) = start().await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    harness
        .server
        .remove("metacontroller.k8s.io/v1alpha1", "CompositeController", "", "a")
        .unwrap();
    let composite = runnable("a").into();
    harness.until_all("it is removed", |all| all.get(&composite).is_none()).await;
    pass().await;

    running(&harness, "a").await;
    let kinds: Vec<_> = harness.declared.list().iter().map(|declared| declared.kind).collect();
    assert_eq!(kinds, [ControllerKind::Decorator]);
    let status = harness
        .server
        .get("metacontroller.k8s.io/v1alpha1", "DecoratorController", "", "a")
        .unwrap()["status"]
        .clone();
    assert_eq!(status["state"], "Running");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failures_of_objects_are_forgotten_with_their_type() {
    let (harness, _calls) =
        harness(|kind, request| match request["object"]["kind"].as_str() == Some("Late") {
            true => json!({"attachments": 5}),
            false => decorate(kind, request),
        })
        .await;
    let lates = CrdBuilder::new("late.example.com", "Late").cluster_scoped().build();
    harness.server.install(&lates).unwrap();
    let mut spec = decorating(&["sync"]);
    let late = json!({"apiVersion": "late.example.com/v1", "resource": "lates"});
    spec["resources"].as_array_mut().unwrap().push(late);
    declare(&harness, "a", spec);
    running(&harness, "a").await;
    harness.server.apply(object("late.example.com/v1", "Late", None)).unwrap();
    harness.server.apply(thing()).unwrap();
    pass().await;
    let hooks = || {
        let declared = harness.declared.list();
        let conditions = &declared[0].status.conditions;
        conditions.iter().find(|it| it.type_ == "HooksHealthy").unwrap().status.clone()
    };
    assert_eq!(hooks(), "False");

    harness.server.uninstall(&lates.metadata.name.clone().unwrap()).unwrap();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(hooks(), "True");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn decorator_waits_for_the_first_of_its_kinds_and_names_all() {
    let (harness, _calls) = harness(decorate).await;
    let mut spec = decorating(&["sync"]);
    let of = |plural: &str| json!({"apiVersion": "late.example.com/v1", "resource": plural});
    spec["resources"] = json!([of("lates"), of("latests")]);
    declare(&harness, "a", spec);
    let name = ControllerKind::Decorator.runnable_name("a");
    let waits = |it: &RunnableStatus| it.state == ControllerState::Waiting && it.unmet.len() == 2;
    harness.until(name.as_str(), waits).await;

    let lates = CrdBuilder::new("late.example.com", "Late").cluster_scoped();
    harness.server.install(&lates.build()).unwrap();

    running(&harness, "a").await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn missing_crd_delays_its_own_kind_alone() {
    for missing in ControllerKind::ALL {
        let (harness, _calls) = start().await;
        harness.server.uninstall(&missing.crd_name()).unwrap();
        harness.until(missing.plural(), |it| it.state == ControllerState::Waiting).await;

        match missing {
            ControllerKind::Composite => {
                declare(&harness, "b", decorating(&["sync"]));
                running(&harness, "b").await;
            }
            ControllerKind::Decorator => {
                harness.declare("b", good());
                harness.running("b", 1).await;
            }
        }
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn missing_crd_of_revisions_delays_composites_with_rolling_children_alone() {
    let (harness, _calls) = start().await;
    let revisions = "controllerrevisions.metacontroller.k8s.io";
    let crd = crds().into_iter().find(|crd| crd.metadata.name.as_deref() == Some(revisions));
    harness.server.uninstall(revisions).unwrap();
    let with_children = |method: &str| {
        let mut spec = good();
        spec["childResources"] = json!([{
            "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": method},
        }]);
        spec
    };

    harness.declare("rolling", with_children("RollingRecreate"));
    // From now on the type is known to be missing.
    let is_waiting = |status: &RunnableStatus| status.state == ControllerState::Waiting;
    harness.until(&runnable("rolling"), is_waiting).await;
    harness.declare("plain", with_children("Recreate"));
    declare(&harness, "b", decorating(&["sync"]));

    harness.running("plain", 1).await;
    running(&harness, "b").await;
    harness.server.install(&crd.unwrap()).unwrap();
    harness.until(&runnable("rolling"), |it| it.state == ControllerState::Running).await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_whose_status_has_just_lost_its_subresource_is_decorated_later() {
    let (harness, faults) = faulty_with(decorate).await;
    declare(&harness, "a", decorating(&["sync"]));
    running(&harness, "a").await;
    let named = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "things \"p\" not found", "details": {"name": "p", "kind": "things"},
    });
    let missing = Reply { code: 404, ..Reply::json(&named) };
    faults.add(Rule::new(Action::Reply(missing)).path_contains("/things/p/status"));
    harness.server.apply(thing()).unwrap();
    pass().await;
    assert!(secret(&harness, "of-thing").is_some(), "the attachments do not wait");

    faults.clear();
    sleep(Duration::from_secs(60)).await;

    let found = get(&harness, "example.com/v1", "Thing").unwrap();
    assert_eq!(found["metadata"]["labels"]["new"], "1");
    assert_eq!(found["status"], json!({"phase": "decorated"}));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalized_object_is_freed_although_its_attachments_are_too_deep() {
    let (harness, _calls) = harness(|kind, _| {
        let attachment = json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "q"},
        });
        match kind {
            HookKind::Sync => json!({}),
            HookKind::Finalize => json!({"attachments": [attachment], "finalized": true}),
            HookKind::Customize => panic!("it is not declared"),
        }
    })
    .await;
    let mut spec = decorating(&["sync", "finalize"]);
    spec["attachments"] = json!([{"apiVersion": "example.com/v1", "resource": "things"}]);
    let declared = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "DecoratorController",
        "metadata": {"name": "a", "annotations": {MAX_OWNER_DEPTH: "1"}}, "spec": spec,
    });
    harness.server.apply(declared).unwrap();
    running(&harness, "a").await;
    harness.server.apply(thing()).unwrap();
    let root = get(&harness, "example.com/v1", "Thing").unwrap();
    let mut deep = thing();
    deep["metadata"]["name"] = json!("deep");
    deep["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v1", "kind": "Thing", "name": "p", "controller": true,
        "uid": root["metadata"]["uid"],
    }]);
    harness.server.apply(deep).unwrap();
    pass().await;
    let read = || harness.server.get("example.com/v1", "Thing", "", "deep").ok();
    assert_eq!(read().unwrap()["metadata"]["finalizers"], json!([OURS]));

    harness.server.remove("example.com/v1", "Thing", "", "deep").unwrap();
    pass().await;

    assert_eq!(read(), None);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn attachments_of_a_type_that_returned_with_another_kind_are_observed() {
    let (harness, calls) = start().await;
    harness.server.uninstall("things.example.com").unwrap();
    sleep(Duration::from_secs(60)).await;
    let items = CrdBuilder::new("example.com", "Item").plural("things").cluster_scoped();
    harness.server.install(&items.build()).unwrap();
    sleep(Duration::from_secs(60)).await;
    harness.server.apply(object("example.com/v1", "Item", None)).unwrap();
    pass().await;
    assert!(secret(&harness, "of-item").is_some());

    let edit = json!({
        "apiVersion": "example.com/v1", "kind": "Item", "metadata": {"name": "p"}, "spec": {"n": 1},
    });
    harness.server.merge(&edit).unwrap();
    pass().await;

    let calls = std::mem::take(&mut *calls.lock().unwrap());
    let (_, last) = calls.last().unwrap();
    let keys: Vec<_> = last["attachments"]["Secret.v1"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["default/of-item"]);
    harness.end().await;
}
