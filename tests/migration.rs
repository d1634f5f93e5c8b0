//! The way from Metacontroller and back: the objects that it has left, and those that it would
//! find.
//!
//! `tests/migration/metacontroller-4.17.2.json` has four controllers, the responses of their hook,
//! and the parents and children that Metacontroller 4.17.2 made of them on kube-apiserver. It ran
//! in place of Pilotlight in the steps of [`objects_are_those_that_metacontroller_makes`]; values
//! that differ in each run were replaced by constants. When the file was made, Metacontroller
//! changed neither its own objects again, nor those that Pilotlight had made in these steps.
//!
//! `tests/migration/metacontroller-4.17.2-server-side-apply.json` has the objects of the same
//! controllers with `--apply-strategy=server-side-apply`, made in the same way, with their managed
//! fields.

mod rollouts;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use pilotlight::{
    meta::{APPLY_STRATEGY, ApplyStrategy},
    testing::CrdBuilder,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Answer, Supervised, constant, of_run};

const FILE: &str = "tests/migration/metacontroller-4.17.2.json";
/// Objects of server-side apply.
const APPLIED: &str = "tests/migration/metacontroller-4.17.2-server-side-apply.json";

/// Parents and their kinds. A decorator has the last one.
const PARENTS: [(&str, &str); 4] =
    [("Widget", "gear"), ("Gadget", "cam"), ("Frame", "frame"), ("Sprocket", "sprocket")];

/// Data file in the namespace of a run.
#[derive(Deserialize)]
struct Left {
    /// Specs of CompositeControllers by their names.
    controllers: BTreeMap<String, Value>,
    /// Specs of DecoratorControllers by their names.
    decorators: BTreeMap<String, Value>,
    /// Answers by the names of parents.
    answers: BTreeMap<String, Value>,
    /// Parents, then children.
    objects: Vec<Value>,
}

fn text(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Returns the objects that Metacontroller made with a strategy.
fn objects_of_metacontroller(strategy: ApplyStrategy) -> Value {
    match strategy {
        ApplyStrategy::DynamicApply => {
            serde_json::from_str::<Value>(&text(FILE)).unwrap()["objects"].take()
        }
        ApplyStrategy::ServerSideApply => serde_json::from_str(&text(APPLIED)).unwrap(),
    }
}

impl Left {
    /// Reads the file, and installs the types in it.
    async fn start(supervised: &Supervised<'_>, strategy: ApplyStrategy) -> Self {
        let mut answers = text(FILE);
        if strategy == ApplyStrategy::ServerSideApply {
            // Metacontroller sends this character to the server's YAML decoder, which refuses it.
            answers = answers.replace('\u{7f}', "");
        }
        let mut left: Self = serde_json::from_str(&of_run(supervised, &answers)).unwrap();
        let objects = objects_of_metacontroller(strategy).to_string();
        left.objects = serde_json::from_str(&of_run(supervised, &objects)).unwrap();
        let group = &supervised.harness.scope.group;
        for kind in ["Widget", "Gadget", "Cog", "Sprocket"] {
            supervised.install(&CrdBuilder::new(group, kind)).await;
        }
        supervised.install(&CrdBuilder::new(group, "Frame").cluster_scoped()).await;
        let answers = left.answers.clone();
        supervised.hook.answers(move |request| {
            let parent = request.get("parent").unwrap_or(&request["object"]);
            Answer::Json(answers[parent["metadata"]["name"].as_str().unwrap()].clone())
        });
        left
    }

    async fn declare(&self, supervised: &Supervised<'_>, strategy: ApplyStrategy) {
        let annotations = json!({ APPLY_STRATEGY: strategy.name() });
        let kinds =
            [("CompositeController", &self.controllers), ("DecoratorController", &self.decorators)];
        for (kind, declared) in kinds {
            for (name, spec) in declared {
                supervised.declare_with(kind, name, spec.clone(), annotations.clone()).await;
            }
        }
    }
}

/// Waits until each parent was synced twice: its hook is called every second.
async fn synced(supervised: &Supervised<'_>) {
    let before = PARENTS.map(|(_, parent)| (parent, supervised.hook.count(parent)));
    for (parent, before) in before {
        supervised.hook.called_again(parent, before + 2).await;
    }
}

/// Returns the API of an object's type in its namespace.
fn api(supervised: &Supervised<'_>, object: &Value) -> Api<DynamicObject> {
    let (api_version, kind) = (&object["apiVersion"], &object["kind"]);
    let (api_version, kind) = (api_version.as_str().unwrap(), kind.as_str().unwrap());
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let client = supervised.harness.scope.client();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// Returns the parents and their children, as in the file. The file of server-side apply has the
/// managed fields of children.
async fn objects(supervised: &Supervised<'_>, strategy: ApplyStrategy) -> Value {
    let scope = &supervised.harness.scope;
    let (client, own) = (scope.client(), format!("{}/v1", scope.group));
    let types = [
        (own.as_str(), "Widget"),
        (own.as_str(), "Gadget"),
        (own.as_str(), "Frame"),
        (own.as_str(), "Cog"),
        (own.as_str(), "Sprocket"),
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
        ("v1", "Service"),
        ("apps/v1", "Deployment"),
    ];
    let mut found = Vec::new();
    for (api_version, kind) in types {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        for mut object in api.list(&ListParams::default()).await.unwrap() {
            let is_ours = api_version == own
                || object.owner_references().iter().any(|owner| owner.api_version == own);
            if is_ours {
                let is_applied = strategy == ApplyStrategy::ServerSideApply;
                let is_parent = object.owner_references().is_empty();
                let fields = object.metadata.managed_fields.take();
                object.metadata.managed_fields = fields.filter(|_| is_applied && !is_parent);
                let mut json = serde_json::to_value(&object).unwrap();
                json["apiVersion"] = json!(api_version);
                json["kind"] = json!(kind);
                found.push(json);
            }
        }
    }
    let mut found = constant(supervised, &json!(found));
    for object in found.as_array_mut().unwrap() {
        let entries = object["metadata"].get_mut("managedFields").and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            entry["time"] = json!("2026-01-02T03:04:05Z");
        }
    }
    found
}

/// Returns the resourceVersions of the children of a run.
async fn versions(supervised: &Supervised<'_>) -> Vec<Option<String>> {
    let api = Api::<ConfigMap>::namespaced(
        supervised.harness.scope.client(),
        &supervised.harness.scope.namespace,
    );
    let all = api.list(&ListParams::default()).await.unwrap();
    // The controller manager writes one of its own to each namespace.
    let ours = all.into_iter().filter(|object| object.name_any() != "kube-root-ca.crt");
    ours.map(|object| object.resource_version()).collect()
}

/// Creates an object of the file, as far as a client may, and returns its uid.
async fn restore(supervised: &Supervised<'_>, object: &Value) -> String {
    let api = api(supervised, object);
    let mut created = object.clone();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        created["metadata"].as_object_mut().unwrap().remove(field);
    }
    let group = &supervised.harness.scope.group;
    let is_parent = object["apiVersion"].as_str().unwrap().starts_with(group);
    let is_edited = is_parent && object["metadata"]["generation"] == 2;
    let spec = if is_edited { created["spec"].take() } else { Value::Null };
    let created: DynamicObject = serde_json::from_value(created).unwrap();
    let created = api.create(&PostParams::default(), &created).await.unwrap();
    if is_edited {
        // The server counts generations: this is the second one.
        let edit = Patch::Merge(json!({ "spec": spec }));
        api.patch(&created.name_any(), &PatchParams::default(), &edit).await.unwrap();
    }
    if is_parent && object["status"].is_object() {
        let status = Patch::Merge(json!({ "status": object["status"] }));
        let name = created.name_any();
        api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
    }
    if object["metadata"]["managedFields"].is_array() {
        let fields =
            json!({ "metadata": { "managedFields": object["metadata"]["managedFields"] } });
        let (name, by) = (created.name_any(), PatchParams::default());
        api.patch(&name, &by, &Patch::Merge(fields)).await.unwrap();
    }
    created.uid().unwrap()
}

/// Creates the objects of a file, owners first.
async fn restore_all(supervised: &Supervised<'_>, objects: Vec<Value>) {
    let mut uids = BTreeMap::<String, String>::new();
    let (mut names, mut restored) = (Vec::new(), Vec::new());
    for mut object in objects {
        // Labels, owner references and annotations have the uids of parents.
        let mut text = object.to_string();
        let left = object["metadata"]["uid"].as_str().unwrap().to_owned();
        for (left, uid) in &uids {
            text = text.replace(left, uid);
        }
        object = serde_json::from_str(&text).unwrap();
        if object["kind"] == "ControllerRevision" {
            let name = revision_name(&object);
            names.push((object["metadata"]["name"].as_str().unwrap().to_owned(), name.clone()));
            object["metadata"]["name"] = json!(name);
        }
        uids.insert(left, restore(supervised, &object).await);
        restored.push(object);
    }
    // The status of a parent names its latest revision.
    for object in restored {
        let mut text = object["status"].to_string();
        for (left, name) in &names {
            text = text.replace(left, name);
        }
        let status: Value = serde_json::from_str(&text).unwrap();
        if status != object["status"] {
            let (name, status) = (&object["metadata"]["name"], json!({ "status": status }));
            let api = api(supervised, &object);
            let (name, patch) = (name.as_str().unwrap(), Patch::Merge(status));
            api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        }
    }
}

/// Returns the name that Metacontroller gives a revision: a hash of the owner's uid and the patch.
fn revision_name(revision: &Value) -> String {
    let uid = revision["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap();
    let patch = revision["parentPatch"].to_string();
    // Go escapes these characters.
    let patch = patch.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{uid}{patch}").as_bytes());
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let (type_name, _) = revision["metadata"]["name"].as_str().unwrap().rsplit_once('-').unwrap();
    format!("{type_name}-{hash}")
}

#[tokio::test]
async fn objects_are_those_that_metacontroller_makes() {
    makes_the_same("migration-back", ApplyStrategy::DynamicApply).await;
}

#[tokio::test]
async fn objects_of_server_side_apply_are_those_that_metacontroller_makes() {
    makes_the_same("migration-back-applied", ApplyStrategy::ServerSideApply).await;
}

async fn makes_the_same(name: &str, strategy: ApplyStrategy) {
    let supervised = Supervised::decorating(name).await;
    let left = Left::start(&supervised, strategy).await;
    left.declare(&supervised, strategy).await;
    let scope = &supervised.harness.scope;
    for (kind, name) in PARENTS {
        let parent = json!({
            "apiVersion": format!("{}/v1", scope.group),
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": (kind != "Frame").then_some(&scope.namespace),
                "labels": { "gone": "yes" },
                "annotations": { "app": name },
            },
            "spec": { "selector": { "matchLabels": { "app": name } } },
        });
        let object: DynamicObject = serde_json::from_value(parent.clone()).unwrap();
        api(&supervised, &parent).create(&PostParams::default(), &object).await.unwrap();
    }

    synced(&supervised).await;

    let found = objects(&supervised, strategy).await;
    assert_eq!(found, objects_of_metacontroller(strategy), "the run has {found:#}");
    supervised.end().await;
}

#[tokio::test]
async fn objects_that_metacontroller_left_are_not_written() {
    changes_nothing("migration", ApplyStrategy::DynamicApply).await;
}

#[tokio::test]
async fn objects_that_metacontroller_applied_are_not_changed() {
    changes_nothing("migration-applied", ApplyStrategy::ServerSideApply).await;
}

async fn changes_nothing(name: &str, strategy: ApplyStrategy) {
    let supervised = Supervised::decorating(name).await;
    let harness = &supervised.harness;
    let mut left = Left::start(&supervised, strategy).await;
    restore_all(&supervised, std::mem::take(&mut left.objects)).await;
    let (before, versions) = (objects(&supervised, strategy).await, versions(&supervised).await);
    let position = harness.position();

    left.declare(&supervised, strategy).await;
    synced(&supervised).await;

    let mut writes = harness.events(position).await;
    writes.retain(|event| {
        !matches!(event.verb.as_str(), "get" | "list" | "watch")
            && !matches!(
                event.resource.as_str(),
                "compositecontrollers" | "decoratorcontrollers" | "events"
            )
    });
    // After a start, one apply of a child is allowed, if it changes nothing.
    let applies: Vec<_> = writes.iter().map(|event| (&event.resource, &event.name)).collect();
    let distinct: BTreeSet<_> = applies.iter().collect();
    assert_eq!(applies.len(), distinct.len(), "{writes:#?}");
    assert!(strategy == ApplyStrategy::ServerSideApply || writes.is_empty(), "{writes:#?}");
    assert_eq!(objects(&supervised, strategy).await, before);
    assert_eq!(self::versions(&supervised).await, versions);
    for (_, parent) in PARENTS {
        let calls = supervised.hook.calls().into_iter().filter(|call| call.parent() == parent);
        let field = if parent == "sprocket" { "attachments" } else { "children" };
        let first = calls.map(|call| call.body[field].clone()).next().unwrap();
        let count = |groups: &Value| -> usize {
            groups.as_object().unwrap().values().map(|group| group.as_object().unwrap().len()).sum()
        };
        assert_eq!(count(&first), left.answers[parent][field].as_array().unwrap().len());
    }
    supervised.end().await;
}
