//! Children of a parent that was deleted and created again, before the garbage collector is there.

use super::{
    responding_hook::{faulty_with, pass},
    *,
};
use crate::{
    meta::definition::apply_strategy::ApplyStrategy,
    testing::{Action, Faults, RequestInfo, Rule, Verb, simulated::Delays},
};

/// Harness whose garbage collector is late, with a parent `p` and its child `c`.
async fn at_work(kind: &str, strategy: ApplyStrategy) -> (Harness, Faults) {
    let (harness, faults) = faulty_with(|_, request| {
        let child = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "default"}, "data": {"a": "b"},
        });
        let is_composite = request["controller"]["kind"] == "CompositeController";
        json!({if is_composite { "children" } else { "attachments" }: [child]})
    })
    .await;
    let late = Duration::from_secs(24 * 3600);
    harness.server.set_delays(Delays { garbage_collection: late, ..Delays::default() });
    declare(&harness, kind, strategy);
    harness.server.apply(thing(None)).unwrap();
    pass().await;
    assert_eq!(owner(&harness), uid_of(&harness, ""), "{kind}");
    (harness, faults)
}

fn declare(harness: &Harness, kind: &str, strategy: ApplyStrategy) {
    let rules = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    let hooks = json!({"sync": {"webhook": {"url": "http://scripted/"}}});
    let things = json!({"apiVersion": "example.com/v1", "resource": "things"});
    let spec = match kind {
        "CompositeController" => json!({
            "generateSelector": true, "parentResource": things, "childResources": rules,
            "hooks": hooks,
        }),
        _ => json!({"resources": [things], "attachments": rules, "hooks": hooks}),
    };
    let annotations =
        json!({crate::meta::definition::apply_strategy::APPLY_STRATEGY: strategy.name()});
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind,
        "metadata": {"name": "a", "annotations": annotations}, "spec": spec,
    });
    harness.server.apply(object).unwrap();
}

fn thing(namespace: Option<&str>) -> Value {
    let mut thing =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"}});
    if let Some(namespace) = namespace {
        thing["metadata"]["namespace"] = json!(namespace);
    }
    thing
}

fn child(harness: &Harness) -> Value {
    harness.server.get("v1", "ConfigMap", "default", "c").unwrap()
}

/// Returns the uid of the child's owner.
fn owner(harness: &Harness) -> Value {
    child(harness)["metadata"]["ownerReferences"][0]["uid"].clone()
}

fn uid_of(harness: &Harness, namespace: &str) -> Value {
    let thing = harness.server.get("example.com/v1", "Thing", namespace, "p").unwrap();
    thing["metadata"]["uid"].clone()
}

/// Removes the type of the parents with its objects, installs it again, and waits for its run.
async fn replace_type(harness: &Harness, kind: &str, types: &CrdBuilder) {
    let run = format!("{kind}-a");
    let is = |state: ControllerState| move |status: &RunnableStatus| status.state == state;
    harness.server.uninstall(&types.name()).unwrap();
    harness.until(&run, is(ControllerState::Waiting)).await;
    pass().await;
    harness.server.install(&types.build()).unwrap();
    harness.until(&run, is(ControllerState::Running)).await;
    pass().await;
}

/// Returns the Events with this reason about the child of an earlier parent.
fn deletions(harness: &Harness) -> Vec<String> {
    let events = harness.server.list("v1", "Event").unwrap();
    let events = events.iter().filter(|event| event["reason"] == "ChildOfEarlierParentDeleted");
    events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn child_of_an_earlier_parent_is_replaced_within_a_second() {
    let things = CrdBuilder::new("example.com", "Thing").cluster_scoped();
    for kind in ["CompositeController", "DecoratorController"] {
        for strategy in ApplyStrategy::ALL {
            let (harness, _) = at_work(kind, strategy).await;
            let earlier = owner(&harness);
            replace_type(&harness, kind, &things).await;
            assert_eq!(owner(&harness), earlier, "the collector is late");

            harness.server.apply(thing(None)).unwrap();
            sleep(Duration::from_secs(1)).await;

            assert_eq!(owner(&harness), uid_of(&harness, ""), "{kind} {strategy}");
            assert_ne!(owner(&harness), earlier);
            let deletions = deletions(&harness);
            let [message] = &deletions[..] else { panic!("{deletions:?}") };
            assert!(message.contains("ConfigMap default/c"), "{message}");
            assert!(message.contains(earlier.as_str().unwrap()), "{message}");
            harness.end().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn child_of_a_new_parent_outlives_a_cache_that_has_the_earlier_parent() {
    let of_things = |info: &RequestInfo| info.resource == "things";
    for kind in ["CompositeController", "DecoratorController"] {
        for strategy in ApplyStrategy::ALL {
            let (harness, faults) = at_work(kind, strategy).await;
            faults.add(Rule::new(Action::Hang).verb(Verb::Watch).resource("example.com", "things"));
            faults.add(Rule::new(Action::Hang).verb(Verb::List).resource("example.com", "things"));
            faults.cut_open(of_things);
            harness.server.remove("example.com/v1", "Thing", "", "p").unwrap();
            harness.server.apply(thing(None)).unwrap();
            let new = uid_of(&harness, "");
            let mut child_of_new = child(&harness);
            let metadata = child_of_new["metadata"].as_object_mut().unwrap();
            metadata.retain(|field, _| {
                ["name", "namespace", "labels", "annotations"].contains(&&**field)
            });
            let owner = json!({
                "apiVersion": "example.com/v1", "kind": "Thing", "name": "p", "uid": new,
                "controller": true, "blockOwnerDeletion": true,
            });
            metadata.insert("ownerReferences".to_owned(), json!([owner]));

            // The deletion of its child syncs the parent that is cached.
            harness.server.remove("v1", "ConfigMap", "default", "c").unwrap();
            let stored = harness.server.apply(child_of_new).unwrap();
            sleep(Duration::from_secs(60)).await;

            let now = child(&harness);
            assert_eq!(now["metadata"]["uid"], stored["metadata"]["uid"], "{kind} {strategy}");
            assert_eq!(now["metadata"]["deletionTimestamp"], Value::Null);
            assert_eq!(deletions(&harness), [""; 0]);
            let requests = harness.server.requests();
            let is_read = |it: &RequestInfo| it.verb == Verb::Get && it.resource == "things";
            assert!(requests.iter().any(|it| is_read(&it.info)), "the parent is read live");
            harness.end().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn child_is_replaced_once_while_the_cache_of_children_is_behind() {
    let things = CrdBuilder::new("example.com", "Thing").cluster_scoped();
    let of_children = |info: &RequestInfo| info.resource == "configmaps";
    let kind = "CompositeController";
    let (harness, faults) = at_work(kind, ApplyStrategy::DynamicApply).await;
    replace_type(&harness, kind, &things).await;
    let behind = Rule::new(Action::Hang).verb(Verb::Watch).resource("", "configmaps");
    let behind = faults.add(behind);
    faults.cut_open(of_children);

    harness.server.apply(thing(None)).unwrap();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(deletions(&harness).len(), 1, "the cache still has the child");
    faults.remove(behind);
    faults.cut_open(of_children);
    sleep(Duration::from_secs(60)).await;
    let replaced = child(&harness);
    assert_eq!(owner(&harness), uid_of(&harness, ""));
    sleep(Duration::from_secs(600)).await;

    assert_eq!(child(&harness)["metadata"]["uid"], replaced["metadata"]["uid"]);
    assert_eq!(deletions(&harness).len(), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_of_a_parent_of_another_scope_is_left_to_the_collector() {
    let kind = "CompositeController";
    let (harness, _) = at_work(kind, ApplyStrategy::DynamicApply).await;
    let before = child(&harness);
    replace_type(&harness, kind, &CrdBuilder::new("example.com", "Thing")).await;

    harness.server.apply(thing(Some("default"))).unwrap();
    sleep(Duration::from_secs(600)).await;

    assert_eq!(child(&harness)["metadata"], before["metadata"]);
    assert_eq!(deletions(&harness), [""; 0]);
    let events = harness.server.list("v1", "Event").unwrap();
    let event = events.iter().find(|event| event["reason"] == "SyncDelayed").unwrap();
    assert!(event["message"].as_str().unwrap().contains("in another scope"), "{event}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn child_with_another_owner_is_retried_until_the_collector_has_deleted_it() {
    let things = CrdBuilder::new("example.com", "Thing").cluster_scoped();
    let kind = "CompositeController";
    for strategy in ApplyStrategy::ALL {
        let (harness, _) = at_work(kind, strategy).await;
        let mut shared = child(&harness);
        let other = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"});
        shared["metadata"]["ownerReferences"].as_array_mut().unwrap().push(other);
        harness.server.apply(shared).unwrap();
        replace_type(&harness, kind, &things).await;

        harness.server.apply(thing(None)).unwrap();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(deletions(&harness), [""; 0], "another owner may exist");
        let events = harness.server.list("v1", "Event").unwrap();
        let named = |reason: &str| events.iter().find(|event| event["reason"] == reason);
        let message = named("SyncDelayed").unwrap()["message"].as_str().unwrap();
        assert!(message.contains("garbage collector"), "{message}");
        assert_eq!(named("SyncError"), None);

        harness.server.remove("v1", "ConfigMap", "default", "c").unwrap();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(owner(&harness), uid_of(&harness, ""), "{strategy}");
        harness.end().await;
    }
}
