//! What becomes of the children and the status of one parent, with scripted hooks.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Event, LimitRange},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    manager::{Manager, ManagerOptions, RunnableOptions},
    meta::{
        Blueprint, CompositeController, Hook, HookError, LAST_APPLIED, MetaOptions, SUPERVISOR,
        StatusCondition, Supervisor,
    },
    testing::{AuditEvent, AuditMark, ControlPlane, ControlPlaneOptions, CrdBuilder, TestScope},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Only bounds tests that fail.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = Box<dyn Fn(&Value) -> Result<Value, HookError> + Send + Sync>;

/// Answers as the test says, and remembers what it was asked.
struct Scripted {
    answer: Mutex<Answer>,
    asked: Mutex<VecDeque<Value>>,
}

impl Hook for Scripted {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let answer = self.answer.lock().unwrap()(&request);
        self.asked.lock().unwrap().push_back(request);
        Box::pin(std::future::ready(answer.map(|answer| match answer.as_str() {
            // For bodies that are no JSON.
            Some(raw) => raw.to_owned().into(),
            None => answer.to_string().into(),
        })))
    }
}

/// A control plane with one manager in it, for all tests of this module: a CompositeController is
/// everybody's who sees it.
struct Shared {
    plane: ControlPlane,
    hooks: Arc<Mutex<HashMap<String, Arc<Scripted>>>>,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let plane = ControlPlane::start_blocking(ControlPlaneOptions::default()).unwrap();
        let hooks = Arc::<Mutex<HashMap<String, Arc<Scripted>>>>::default();
        let (config, scripted) = (plane.config(), Arc::clone(&hooks));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // It runs until the process ends.
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let client = kube::Client::try_from(config).unwrap();
                for crd in pilotlight::meta::crds() {
                    Api::all(client.clone()).create(&PostParams::default(), &crd).await.unwrap();
                }
                manage(client, scripted).await;
            });
        });
        Shared { plane, hooks }
    })
}

async fn manage(client: kube::Client, hooks: Arc<Mutex<HashMap<String, Arc<Scripted>>>>) {
    let (cluster, runs) = Cluster::new(client, ClusterOptions::default());
    let mut manager = Manager::new(ManagerOptions::default());
    let options = MetaOptions {
        hooks: Some(Arc::new(move |blueprint: &Blueprint| {
            hooks.lock().unwrap().get(&blueprint.name).unwrap().clone()
        })),
        ..MetaOptions::default()
    };
    let supervisor = Supervisor::new(&cluster, manager.handle(), options).unwrap();
    manager.add_runnable("cluster", Arc::new(runs), RunnableOptions::default()).unwrap();
    manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default()).unwrap();
    manager.run(CancellationToken::new()).await.unwrap();
}

/// A controller of Things, whose children are ConfigMaps.
struct Rig {
    scope: TestScope,
    crd: CrdBuilder,
    hook: Arc<Scripted>,
}

impl Rig {
    async fn start(
        name: &str,
        method: &str,
        answer: impl Fn(&Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let scope = shared().plane.scope(name).await.unwrap();
        let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");
        scope.install_crd(&crd).await.unwrap();
        scope.wait_served(&crd, "v1").await.unwrap();
        Self::start_with(scope, crd, json!({"method": method}), answer).await
    }

    async fn start_with(
        scope: TestScope,
        crd: CrdBuilder,
        update_strategy: Value,
        answer: impl Fn(&Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        Self::start_of(scope, crd, ("v1", "configmaps"), update_strategy, answer).await
    }

    async fn start_of(
        scope: TestScope,
        crd: CrdBuilder,
        (api_version, resource): (&str, &str),
        update_strategy: Value,
        answer: impl Fn(&Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let hook = Arc::new(Scripted {
            answer: Mutex::new(Box::new(move |request| Ok(answer(request)))),
            asked: Mutex::default(),
        });
        let name = &scope.namespace;
        shared().hooks.lock().unwrap().insert(name.clone(), hook.clone());
        let object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {"name": name},
            "spec": {
                "parentResource": {
                    "apiVersion": format!("{}/v1", scope.group), "resource": "things"
                },
                "childResources": [{
                    "apiVersion": api_version, "resource": resource,
                    "updateStrategy": update_strategy
                }],
                "hooks": {"sync": {"webhook": {"url": "http://scripted/"}}}
            }
        });
        let object: CompositeController = serde_json::from_value(object).unwrap();
        let controllers = Api::all(scope.client());
        eventually("our own type", async || {
            controllers.create(&PostParams::default(), &object).await.ok()
        })
        .await;
        Self { scope, crd, hook }
    }

    fn controllers(&self) -> Api<CompositeController> {
        Api::all(self.scope.client())
    }

    fn answers(&self, answer: impl Fn(&Value) -> Result<Value, HookError> + Send + Sync + 'static) {
        *self.hook.answer.lock().unwrap() = Box::new(answer);
    }

    fn things(&self) -> Api<DynamicObject> {
        self.scope.api(&self.crd, "v1")
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.scope.client(), &self.scope.namespace)
    }

    async fn create_thing(&self, name: &str) -> DynamicObject {
        let thing = self.crd.object(name, json!({"selector": {"matchLabels": {"thing": name}}}));
        self.things().create(&PostParams::default(), &thing).await.unwrap()
    }

    /// Makes the controller look at a parent again.
    async fn touch(&self, name: &str) {
        let patch =
            json!({"metadata": {"annotations": {"touched": fastrand::u64(..).to_string()}}});
        let patch = Patch::Merge(patch);
        self.things().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn config_map(&self, name: &str) -> Option<ConfigMap> {
        self.config_maps().get_opt(name).await.unwrap()
    }

    async fn event(&self, reason: &str, part: &str) -> Event {
        let events = Api::<Event>::namespaced(self.scope.client(), &self.scope.namespace);
        eventually("an Event", async || {
            let events = events.list(&ListParams::default()).await.unwrap();
            events.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.message.as_ref().is_some_and(|message| message.contains(part))
            })
        })
        .await
    }

    /// What an Event of the controller's object says.
    async fn told_of_controller(&self, reason: &str) -> String {
        let events = Api::<Event>::namespaced(self.scope.client(), "default");
        eventually("an Event of the controller", async || {
            let events = events.list(&ListParams::default()).await.unwrap();
            let of_ours = |event: &Event| {
                event.involved_object.name.as_ref() == Some(&self.scope.namespace)
                    && event.reason.as_deref() == Some(reason)
            };
            events.into_iter().find(of_ours).and_then(|event| event.message)
        })
        .await
    }

    /// How often the API server was asked about this type or that of the children since `mark`,
    /// watches and the test's own requests aside.
    async fn requests_since(&self, mark: AuditMark, verb: &str) -> usize {
        shared().plane.audit_settled().await.unwrap();
        let events = shared().plane.audit().unwrap().since(mark).unwrap();
        let ours = |event: &&AuditEvent| {
            event.namespace == self.scope.namespace
                && event.verb == verb
                && (event.is_about(&self.scope.group, "things") || event.is_about("", "configmaps"))
        };
        events.iter().filter(ours).count()
    }

    fn mark() -> AuditMark {
        shared().plane.audit().unwrap().mark().unwrap()
    }

    fn asked(&self) -> usize {
        self.hook.asked.lock().unwrap().len()
    }

    fn last_asked(&self) -> Value {
        self.hook.asked.lock().unwrap().back().cloned().unwrap()
    }

    /// Ends the controller, so that it does not outlive its test.
    async fn stop(self) {
        let (controllers, name) = (self.controllers(), &self.scope.namespace);
        controllers.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

async fn eventually<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = found().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn child(parent: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"thing": parent}},
        "data": {"value": value}
    })
}

fn value(config_map: &ConfigMap) -> Option<&str> {
    config_map.data.as_ref()?.get("value").map(String::as_str)
}

#[tokio::test]
async fn a_parent_gets_its_children_and_its_status() {
    let rig = Rig::start("composite-first", "InPlace", |request| {
        let seen = request["children"]["ConfigMap.v1"].as_object().unwrap().len();
        json!({"status": {"seen": seen}, "children": [child("a", "a-child", "one")]})
    })
    .await;

    let thing = rig.create_thing("a").await;

    let created = eventually("the child", async || rig.config_map("a-child").await).await;
    let owner = &created.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Thing", &*thing.uid().unwrap()));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    assert!(created.annotations().contains_key(LAST_APPLIED));
    let status = eventually("the status", async || {
        let status = rig.things().get("a").await.unwrap().data["status"].clone();
        (status["seen"] == 1).then_some(status)
    })
    .await;
    assert_eq!(status, json!({"seen": 1, "observedGeneration": 1}));
    let request = rig.last_asked();
    assert_eq!(request["controller"]["metadata"]["name"], rig.scope.namespace);
    assert_eq!(request["controller"]["spec"]["hooks"]["sync"]["version"], "v1");
    assert_eq!(request["parent"]["metadata"]["name"], "a");
    assert_eq!(request["parent"]["kind"], "Thing");
    assert_eq!(request["children"]["ConfigMap.v1"]["a-child"]["data"]["value"], "one");
    assert_eq!(request["related"], json!({}));
    assert_eq!(request["finalizing"], json!(false));
    rig.stop().await;
}

#[tokio::test]
async fn a_parent_that_is_as_wanted_costs_nothing_more() {
    let rig = Rig::start(
        "composite-quiet",
        "InPlace",
        |_| json!({"status": {"n": 1}, "children": [child("a", "a-child", "one")]}),
    )
    .await;
    rig.create_thing("a").await;
    eventually("the child", async || rig.config_map("a-child").await).await;
    eventually("the status", async || {
        rig.things().get("a").await.unwrap().data["status"]["n"].as_i64()
    })
    .await;
    let before = rig.config_map("a-child").await.unwrap().resource_version();

    // Its own child and its own status each concern it once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(rig.asked() <= 3, "asked {} times", rig.asked());
    let (asked, mark) = (rig.asked(), Rig::mark());
    rig.touch("a").await;
    eventually("a sync", async || (rig.asked() > asked).then_some(())).await;

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.asked(), asked + 1);
    for verb in ["get", "list", "create", "update", "delete"] {
        assert_eq!(rig.requests_since(mark, verb).await, 0, "{verb}");
    }
    assert_eq!(rig.config_map("a-child").await.unwrap().resource_version(), before);
    rig.stop().await;
}

#[tokio::test]
async fn in_place_keeps_what_others_wrote_and_removes_what_is_wanted_no_more() {
    let rig = Rig::start(
        "composite-inplace",
        "InPlace",
        |_| json!({"children": [child("a", "one", "old"), child("a", "two", "old")]}),
    )
    .await;
    rig.create_thing("a").await;
    let before = eventually("the child", async || rig.config_map("one").await).await;
    eventually("the other", async || rig.config_map("two").await).await;
    let foreign = Patch::Merge(json!({"data": {"foreign": "kept"}}));
    rig.config_maps().patch("one", &PatchParams::default(), &foreign).await.unwrap();

    rig.answers(|_| Ok(json!({"children": [child("a", "one", "new")]})));
    rig.touch("a").await;

    let after = eventually("the update", async || {
        rig.config_map("one").await.filter(|it| value(it) == Some("new"))
    })
    .await;
    assert_eq!(after.uid(), before.uid());
    assert_eq!(after.data.as_ref().unwrap()["foreign"], "kept");
    eventually("the deletion", async || rig.config_map("two").await.is_none().then_some(())).await;
    rig.stop().await;
}

#[tokio::test]
async fn recreate_replaces_and_on_delete_waits() {
    for (method, replaced) in [("Recreate", true), ("OnDelete", false)] {
        let name = format!("composite-{}", method.to_lowercase());
        let rig =
            Rig::start(&name, method, |_| json!({"children": [child("a", "one", "old")]})).await;
        rig.create_thing("a").await;
        let before = eventually("the child", async || rig.config_map("one").await).await;

        rig.answers(|_| Ok(json!({"children": [child("a", "one", "new")]})));
        rig.touch("a").await;

        if replaced {
            let after = eventually("the new child", async || {
                rig.config_map("one").await.filter(|it| value(it) == Some("new"))
            })
            .await;
            assert_ne!(after.uid(), before.uid());
        } else {
            let asked = rig.asked();
            rig.touch("a").await;
            eventually("a sync", async || (rig.asked() > asked).then_some(())).await;
            assert_eq!(value(&rig.config_map("one").await.unwrap()), Some("old"));
            rig.config_maps().delete("one", &DeleteParams::default()).await.unwrap();
            eventually("the new child", async || {
                rig.config_map("one").await.filter(|it| value(it) == Some("new"))
            })
            .await;
        }
        rig.stop().await;
    }
}

#[tokio::test]
async fn an_orphan_that_matches_is_adopted_and_a_child_that_does_not_is_released() {
    let rig = Rig::start("composite-claim", "OnDelete", |request| {
        // Whatever there is, is wanted.
        let children = request["children"]["ConfigMap.v1"].as_object().unwrap();
        json!({"children": children.values().collect::<Vec<_>>()})
    })
    .await;
    let thing = rig.create_thing("a").await;
    eventually("a sync", async || (rig.asked() > 0).then_some(())).await;

    let orphan: ConfigMap = serde_json::from_value(child("a", "orphan", "x")).unwrap();
    rig.config_maps().create(&PostParams::default(), &orphan).await.unwrap();

    eventually("the adoption", async || {
        let owners = rig.config_map("orphan").await?.owner_references().to_vec();
        (owners.first()?.uid == thing.uid()?).then_some(())
    })
    .await;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"thing": "other"}}}));
    rig.config_maps().patch("orphan", &PatchParams::default(), &patch).await.unwrap();
    eventually("the release", async || {
        rig.config_map("orphan").await?.owner_references().is_empty().then_some(())
    })
    .await;
    rig.stop().await;
}

#[tokio::test]
async fn somebody_elses_object_is_reported_and_holds_up_no_other() {
    let rig = Rig::start(
        "composite-alien",
        "InPlace",
        |_| json!({"children": [child("a", "alien", "mine"), child("a", "other", "mine")]}),
    )
    .await;
    let alien = serde_json::from_value(json!({
        "metadata": {"name": "alien", "labels": {"thing": "nobody"}}
    }));
    rig.config_maps().create(&PostParams::default(), &alien.unwrap()).await.unwrap();

    rig.create_thing("a").await;

    let event = rig.event("SyncError", "creating ConfigMap").await;
    assert!(event.message.unwrap().contains("does not match the parent's selector"));
    assert_eq!(event.source.unwrap().component.as_deref(), Some("metacontroller"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    eventually("the other child", async || rig.config_map("other").await).await;
    assert_eq!(value(&rig.config_map("alien").await.unwrap()), None);
    rig.stop().await;
}

#[tokio::test]
async fn an_unusable_answer_deletes_nothing_and_is_told() {
    let rig =
        Rig::start("composite-bad", "InPlace", |_| json!({"children": [child("a", "kept", "x")]}))
            .await;
    let before = {
        rig.create_thing("a").await;
        eventually("the child", async || rig.config_map("kept").await).await
    };
    let mut nameless = child("a", "x", "x");
    nameless["metadata"]["name"] = json!("");
    let mut wrong_kind = child("a", "x", "x");
    wrong_kind["kind"] = json!("Secret");
    let good = || child("a", "another", "x");
    for (answer, part) in [
        (json!(""), "empty body"),
        (json!("null"), "hook answer is unusable"),
        (json!("{\"children\":["), "EOF"),
        (json!({"children": "x"}), "children: "),
        (json!({"children": [good(), null]}), "children[1]: is null"),
        (json!({"children": [good(), nameless]}), "children[1].metadata.name: is required"),
        (json!({"children": [good(), wrong_kind]}), "children[1]: Secret of v1 is not declared"),
        (json!({"children": [good(), good()]}), "children[1]: ConfigMap"),
    ] {
        rig.answers(move |_| Ok(answer.clone()));
        rig.touch("a").await;

        rig.event("SyncError", part).await;
    }
    assert_eq!(rig.config_map("kept").await.unwrap().uid(), before.uid());
    assert!(rig.config_map("another").await.is_none());
    rig.answers(|_| Ok(json!({"children": [child("a", "kept", "x"), child("a", "another", "x")]})));
    rig.touch("a").await;
    eventually("recovery", async || rig.config_map("another").await).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_failure_that_goes_on_is_one_event_with_a_count() {
    let rig = Rig::start("composite-repeat", "InPlace", |_| json!("")).await;

    rig.create_thing("a").await;

    let event = eventually("a count", async || {
        let event = rig.event("SyncError", "empty body").await;
        event.count.filter(|count| *count >= 3).map(|_| event)
    })
    .await;
    let events = Api::<Event>::namespaced(rig.scope.client(), &rig.scope.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].name_any(), event.name_any());
    rig.stop().await;
}

#[tokio::test]
async fn a_busy_hook_is_asked_again_without_an_event() {
    let rig = Rig::start("composite-busy", "InPlace", |_| json!({})).await;
    let calls = Mutex::new(0);
    rig.answers(move |_| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        if *calls < 4 {
            return Err(HookError::Busy(Duration::from_millis(50)));
        }
        Ok(json!({"status": {"done": true}}))
    });

    rig.create_thing("a").await;

    eventually("the answer", async || {
        rig.things().get("a").await.unwrap().data["status"]["done"].as_bool()
    })
    .await;
    let events = Api::<Event>::namespaced(rig.scope.client(), &rig.scope.namespace);
    assert!(events.list(&ListParams::default()).await.unwrap().items.is_empty());
    rig.stop().await;
}

#[tokio::test]
async fn a_parent_that_is_being_deleted_keeps_its_children_and_gets_its_status() {
    let rig = Rig::start("composite-going", "InPlace", |request| {
        let going = request["parent"]["metadata"]["deletionTimestamp"].is_string();
        let children = if going { json!([]) } else { json!([child("a", "kept", "x")]) };
        json!({"status": {"going": going}, "children": children})
    })
    .await;
    rig.create_thing("a").await;
    eventually("the child", async || rig.config_map("kept").await).await;
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["test.example.com/hold"]}}));
    rig.things().patch("a", &PatchParams::default(), &hold).await.unwrap();

    rig.things().delete("a", &DeleteParams::background()).await.unwrap();

    eventually("the status", async || {
        rig.things().get("a").await.unwrap().data["status"]["going"]
            .as_bool()
            .filter(|going| *going)
    })
    .await;
    assert!(rig.config_map("kept").await.unwrap().metadata.deletion_timestamp.is_none());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    rig.things().patch("a", &PatchParams::default(), &release).await.unwrap();
    rig.stop().await;
}

#[tokio::test]
async fn a_parent_without_a_status_subresource_is_waited_for() {
    let scope = shared().plane.scope("composite-nostatus").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1").without_status();
    scope.install_crd(&crd).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let rig = Rig::start_with(scope, crd, json!({}), |_| json!({"status": {"n": 1}})).await;
    rig.create_thing("a").await;
    eventually("the reason", async || {
        let status = rig.controllers().get(&rig.scope.namespace).await.unwrap().status?;
        (status.reason.as_deref() == Some("SubresourceMissing")).then_some(())
    })
    .await;
    assert_eq!(rig.asked(), 0);
    let told = rig.told_of_controller("SyncError").await;
    assert!(told.contains("does not have subresource 'Status' enabled"), "{told}");

    let crds = Api::<CustomResourceDefinition>::all(rig.scope.client());
    let patch =
        json!([{"op": "add", "path": "/spec/versions/0/subresources", "value": {"status": {}}}]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
    crds.patch(&rig.crd.name(), &PatchParams::default(), &patch).await.unwrap();

    eventually("the status", async || {
        rig.things().get("a").await.unwrap().data["status"]["n"].as_i64()
    })
    .await;
    rig.stop().await;
}

#[tokio::test]
async fn a_status_that_the_schema_prunes_is_not_written_for_ever() {
    let scope = shared().plane.scope("composite-pruned").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");
    let mut pruning = crd.build();
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "status": {"type": "object", "properties": {"kept": {"type": "integer"}}}
    }}});
    pruning.spec.versions[0].schema = serde_json::from_value(schema).unwrap();
    let crds = Api::all(scope.client());
    crds.create(&PostParams::default(), &pruning).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let answer = |_: &Value| json!({"status": {"kept": 1, "pruned": 2}});
    let rig = Rig::start_with(scope, crd, json!({}), answer).await;
    rig.create_thing("a").await;
    eventually("the status", async || {
        rig.things().get("a").await.unwrap().data["status"]["kept"].as_i64()
    })
    .await;

    let mark = Rig::mark();
    for _ in 0..3 {
        let asked = rig.asked();
        rig.touch("a").await;
        eventually("a sync", async || (rig.asked() > asked).then_some(())).await;
    }

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.requests_since(mark, "update").await, 0);
    rig.stop().await;
}

#[tokio::test]
async fn a_child_is_not_lost_for_one_that_the_server_refuses() {
    let rig = Rig::start(
        "composite-rehearsal",
        "Recreate",
        |_| json!({"children": [child("a", "one", "old")]}),
    )
    .await;
    rig.create_thing("a").await;
    let before = eventually("the child", async || rig.config_map("one").await).await;

    rig.answers(|_| {
        let mut wrong = child("a", "one", "new");
        wrong["data"]["no/key"] = json!("");
        Ok(json!({"children": [wrong]}))
    });
    rig.touch("a").await;
    let told = rig.event("SyncError", "the old one stays").await;
    assert!(told.message.unwrap().contains("no/key"), "the reason is the server's");
    let kept = rig.config_map("one").await.unwrap();
    assert_eq!((kept.uid(), value(&kept)), (before.uid(), Some("old")));

    rig.answers(|_| Ok(json!({"children": [child("a", "one", "new")]})));
    rig.touch("a").await;
    let replaced = eventually("the new one", async || {
        rig.config_map("one").await.filter(|child| value(child) == Some("new"))
    });
    assert_ne!(replaced.await.uid(), before.uid());
    rig.stop().await;
}

#[tokio::test]
async fn a_hook_that_changes_its_mind_on_every_call_is_held_back() {
    let random = || fastrand::u64(..).to_string();
    let rig = Rig::start("composite-flapping", "InPlace", move |_| {
        let children = [child("a", "one", &random())];
        json!({"status": {"random": random()}, "children": children})
    })
    .await;
    let mark = Rig::mark();

    rig.create_thing("a").await;
    rig.event("Flapping", "another one again and again").await;
    let conditions = eventually("the condition", async || {
        let status = rig.controllers().get(&rig.scope.namespace).await.unwrap().status?;
        let healthy = |it: &StatusCondition| it.type_ == "HooksHealthy" && it.reason == "Flapping";
        status.conditions.iter().any(healthy).then_some(status.conditions)
    });
    conditions.await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The child and the status: twenty at once each, then one every three seconds.
    let written = rig.requests_since(mark, "update").await;
    assert!((20..=50).contains(&written), "{written} writes");

    rig.answers(|_| Ok(json!({"status": {}, "children": [child("a", "one", "fixed")]})));
    eventually("what is wanted at last", async || {
        rig.config_map("one").await.filter(|child| value(child) == Some("fixed"))
    })
    .await;
    rig.stop().await;
}

#[tokio::test]
async fn a_child_that_the_server_spells_differently_is_not_called_flapping() {
    let rig = Rig::start("composite-spelling", "InPlace", |_| {
        let mut spelled = child("a", "one", "same");
        // The server keeps an empty text.
        spelled["data"]["none"] = Value::Null;
        json!({"status": {}, "children": [spelled]})
    })
    .await;
    rig.create_thing("a").await;
    let before = eventually("the child", async || rig.config_map("one").await).await;
    let mark = Rig::mark();

    for _ in 0..25 {
        let asked = rig.asked();
        rig.touch("a").await;
        eventually("a sync", async || (rig.asked() > asked).then_some(())).await;
    }
    rig.answers(|_| Ok(json!({"status": {}, "children": [child("a", "one", "new")]})));
    rig.touch("a").await;
    let changed = eventually("the change", async || {
        rig.config_map("one").await.filter(|child| value(child) == Some("new"))
    })
    .await;

    assert_ne!(changed.resource_version(), before.resource_version());
    assert!(rig.requests_since(mark, "update").await > 20, "each sync tried");
    let events: Api<Event> = Api::namespaced(rig.scope.client(), &rig.scope.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    assert!(events.iter().all(|event| event.reason.as_deref() != Some("Flapping")), "{events:?}");
    rig.stop().await;
}

#[tokio::test]
async fn a_child_that_the_server_spells_differently_is_not_recreated() {
    let scope = shared().plane.scope("composite-respelling").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");
    scope.install_crd(&crd).await.unwrap();
    scope.wait_served(&crd, "v1").await.unwrap();
    let limited = |cpu: &str| {
        json!({"status": {}, "children": [{
            "apiVersion": "v1", "kind": "LimitRange",
            "metadata": {"name": "one", "labels": {"thing": "a"}},
            // The server keeps "500m", and fills in the default and the request.
            "spec": {"limits": [{"type": "Container", "max": {"cpu": cpu}, "default": null}]}
        }]})
    };
    let strategy = json!({"method": "Recreate"});
    let children = ("v1", "limitranges");
    let rig = Rig::start_of(scope, crd, children, strategy, move |_| limited("0.5")).await;
    let limits = Api::<LimitRange>::namespaced(rig.scope.client(), &rig.scope.namespace);
    rig.create_thing("a").await;
    let before = eventually("the child", async || limits.get_opt("one").await.unwrap()).await;
    let max = before.spec.as_ref().unwrap().limits[0].max.as_ref().unwrap();
    assert_eq!(max["cpu"].0, "500m", "it is spelled differently");

    for _ in 0..25 {
        let asked = rig.asked();
        rig.touch("a").await;
        eventually("a sync", async || (rig.asked() > asked).then_some(())).await;
    }
    let kept = limits.get("one").await.unwrap();
    assert_eq!((kept.uid(), kept.resource_version()), (before.uid(), before.resource_version()));

    rig.answers(move |_| Ok(limited("0.25")));
    rig.touch("a").await;
    let replaced = eventually("another value", async || {
        limits.get_opt("one").await.unwrap().filter(|child| child.uid() != before.uid())
    })
    .await;
    assert_eq!(replaced.spec.unwrap().limits[0].max.as_ref().unwrap()["cpu"].0, "250m");
    rig.stop().await;
}

#[tokio::test]
async fn a_child_whose_fields_cannot_be_changed_is_recreated() {
    let fixed = |value: &str| {
        let mut child = child("a", "one", value);
        child["immutable"] = json!(true);
        json!({"status": {}, "children": [child]})
    };
    let rig = Rig::start("composite-immutable", "Recreate", move |_| fixed("old")).await;
    rig.create_thing("a").await;
    let before = eventually("the child", async || rig.config_map("one").await).await;

    rig.answers(move |_| Ok(fixed("new")));
    rig.touch("a").await;

    let after = eventually("the new child", async || {
        rig.config_map("one").await.filter(|child| value(child) == Some("new"))
    });
    assert_ne!(after.await.uid(), before.uid());
    rig.stop().await;
}

#[tokio::test]
async fn a_controller_that_waits_says_so_in_an_event() {
    let scope = shared().plane.scope("composite-waiting").await.unwrap();
    let crd = CrdBuilder::new(&scope.group, "Thing").version("v1");

    let rig = Rig::start_with(scope, crd, json!({}), |_| json!({})).await;

    let told = rig.told_of_controller("Waiting").await;
    assert!(told.contains(&rig.crd.name()) && told.contains("is not installed"), "{told}");
    rig.stop().await;
}

#[tokio::test]
async fn an_object_can_be_edited_right_after_it_was_created() {
    let rig = Rig::start("composite-edited", "OnDelete", |_| json!({})).await;
    let mut other = rig.controllers().get(&rig.scope.namespace).await.unwrap();
    other.metadata = kube::core::ObjectMeta {
        name: Some(format!("{}-other", rig.scope.namespace)),
        ..Default::default()
    };
    other.status = None;
    let name = other.name_any();
    shared().hooks.lock().unwrap().insert(name.clone(), rig.hook.clone());

    for _ in 0..5 {
        let created = rig.controllers().create(&PostParams::default(), &other).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let replaced = rig.controllers().replace(&name, &PostParams::default(), &created).await;
        rig.controllers().delete(&name, &DeleteParams::default()).await.unwrap();
        eventually("it is gone", async || {
            rig.controllers().get_opt(&name).await.unwrap().is_none().then_some(())
        })
        .await;
        replaced.expect("nobody wrote in between");
    }
    rig.stop().await;
}
