//! Rollouts that Metacontroller has begun or finished.
//!
//! `tests/migration/metacontroller-4.17.2-rollouts.json` has two controllers, and the objects that
//! Metacontroller 4.17.2 left with each apply strategy on kube-apiserver 1.36: it ran with the hook
//! [`sized`], the four parents were created with the text `<one>`, and then given the text
//! `<two> & é`. Metacontroller finished the parents with one child. Of the parents with three
//! children it rolled the first child, and then waited: it looks for that child by a name without
//! its namespace. It was stopped 12 seconds after the edit; a second look 4 seconds later had found
//! nothing changed. Times and resourceVersions were replaced by constants, and so was the hook's
//! address; uids are as they were, since the names of revisions are hashes of them.

use pilotlight::meta::api::ControllerRevision;

use super::*;
use crate::support::{Changes, until};

const ROLLOUTS: &str = "tests/migration/metacontroller-4.17.2-rollouts.json";
/// Text of the parents' last edit.
const TEXT: &str = "<two> & é";

/// Controllers by their last names, and the objects of each strategy.
#[derive(Deserialize)]
struct Rollouts {
    controllers: BTreeMap<String, Value>,
    #[serde(flatten)]
    objects: BTreeMap<String, Vec<Value>>,
}

/// Answer with `spec.size` ConfigMaps that have labels and text of the parent's template; with none
/// for a parent that is being deleted.
fn sized(request: &Value) -> Answer {
    let parent = &request["parent"];
    let (name, spec) = (parent["metadata"]["name"].as_str().unwrap(), &parent["spec"]);
    let size = spec["size"].as_i64().unwrap();
    let is_finalizing = request["finalizing"] == true;
    let count = if is_finalizing { 0 } else { size };
    let child = |number: i64| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": format!("{name}-{number}"),
                "labels": spec["template"]["metadata"]["labels"],
            },
            "data": { "text": spec["template"]["text"] },
        })
    };
    let children: Vec<_> = (0..count).map(child).collect();
    Answer::Json(
        json!({ "status": { "size": size }, "children": children, "finalized": is_finalizing }),
    )
}

#[tokio::test]
async fn rollout_that_metacontroller_began_continues_one_child_at_a_time() {
    rollouts_continue("migration-rollouts", ApplyStrategy::DynamicApply).await;
}

#[tokio::test]
async fn rollout_that_metacontroller_applied_continues_one_child_at_a_time() {
    rollouts_continue("migration-rollouts-applied", ApplyStrategy::ServerSideApply).await;
}

async fn rollouts_continue(name: &str, strategy: ApplyStrategy) {
    let supervised = Supervised::start(name).await;
    supervised.hook.answers(sized);
    let group = &supervised.harness.scope.group;
    for kind in ["Ship", "Boat"] {
        supervised.install(&CrdBuilder::new(group, kind)).await;
    }
    let mut left: Rollouts = serde_json::from_str(&of_run(&supervised, &text(ROLLOUTS))).unwrap();
    restore_all(&supervised, left.objects.remove(strategy.name()).unwrap()).await;
    let finished = finished(&supervised).await;
    assert_eq!(finished.len(), 6, "{finished:#?}");
    let scope = &supervised.harness.scope;
    let changes = Changes::watch(scope.client(), &scope.namespace).await;
    let position = supervised.harness.position();

    let annotations = json!({ APPLY_STRATEGY: strategy.name() });
    for (name, spec) in left.controllers {
        supervised.declare_with("CompositeController", &name, spec, annotations.clone()).await;
    }
    for (kind, parent) in [("Ship", "ship"), ("Boat", "boat")] {
        rolled(&supervised, kind, parent).await;
    }

    let by_one = |parent: &str, acts: &[&str]| -> Vec<String> {
        let of = |number| acts.iter().map(move |act| format!("{act} {parent}-{number}"));
        [1, 2].into_iter().flat_map(of).collect()
    };
    let changes = changes.all().await;
    let of = |parent: &str| -> Vec<String> {
        changes.iter().filter(|it| it.contains(parent)).cloned().collect()
    };
    assert_eq!(of(" ship-"), by_one("ship", &["modified"]));
    assert_eq!(of(" boat-"), by_one("boat", &["deleted", "added"]));
    assert_eq!(changes.len(), 6, "only these change: {changes:?}");
    assert_eq!(self::finished(&supervised).await, finished);
    let mut writes = supervised.harness.events(position).await;
    writes.retain(|event| {
        let is_read = matches!(event.verb.as_str(), "get" | "list" | "watch");
        let is_finished = finished.contains_key(&event.name);
        // After a start, one apply of a child is allowed, if it changes nothing.
        let is_apply = strategy == ApplyStrategy::ServerSideApply && event.resource == "configmaps";
        !is_read && is_finished && !is_apply
    });
    assert!(writes.is_empty(), "{writes:#?}");
    supervised.end().await;
}

/// Returns the resourceVersions of the finished parents, their children and their revisions.
async fn finished(supervised: &Supervised<'_>) -> BTreeMap<String, String> {
    let scope = &supervised.harness.scope;
    let mut found = BTreeMap::new();
    for (kind, parent) in [("Ship", "sloop"), ("Boat", "barge")] {
        let resource = CrdBuilder::new(&scope.group, kind).api_resource("v1");
        let parents =
            Api::<DynamicObject>::namespaced_with(scope.client(), &scope.namespace, &resource);
        let parent = parents.get(parent).await.unwrap();
        let child = supervised.config_maps().get(&format!("{}-0", parent.name_any())).await;
        let revisions = revisions(supervised, &parent.name_any()).await;
        let revisions = revisions.into_iter().map(|it| it.metadata);
        let metadata = [parent.metadata, child.unwrap().metadata].into_iter().chain(revisions);
        found.extend(metadata.map(|it| (it.name.unwrap(), it.resource_version.unwrap())));
    }
    found
}

/// Revisions whose owner has this name.
async fn revisions(supervised: &Supervised<'_>, owner: &str) -> Vec<ControllerRevision> {
    let scope = &supervised.harness.scope;
    let api = Api::<ControllerRevision>::namespaced(scope.client(), &scope.namespace);
    let mut all = api.list(&ListParams::default()).await.unwrap().items;
    all.retain(|revision| revision.owner_references().iter().any(|it| it.name == owner));
    all
}

/// Waits until all three children of a parent have the text, and one revision has all of them.
async fn rolled(supervised: &Supervised<'_>, kind: &str, parent: &str) {
    let scope = &supervised.harness.scope;
    let resource = CrdBuilder::new(&scope.group, kind).api_resource("v1");
    let parents =
        Api::<DynamicObject>::namespaced_with(scope.client(), &scope.namespace, &resource);
    until(&format!("{parent} is rolled"), async || {
        let mut texts = Vec::new();
        for number in 0..3 {
            let child = supervised.config_maps().get_opt(&format!("{parent}-{number}")).await;
            texts.extend(child.unwrap().and_then(|child| child.data?.remove("text")));
        }
        let revisions = revisions(supervised, parent).await;
        let names: Vec<_> = revisions.iter().map(|it| it.children[0].names.len()).collect();
        let status = parents.get(parent).await.unwrap().data["status"].take();
        let is_right = texts == [TEXT; 3]
            && names == [3]
            && status["conditions"][0]["reason"] == "OnLatestRevision";
        if is_right { Ok(()) } else { Err(format!("{texts:?} {names:?} {status}")) }
    })
    .await;
}
