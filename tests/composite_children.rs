//! Children and status of one parent, with scripted hooks.

mod changes;
mod trouble;

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
        Definition, Hook, HookError, LAST_APPLIED, MetaOptions, SUPERVISOR, Supervisor,
        api::{CompositeController, StatusCondition},
    },
    testing::{
        AuditEvent, AuditPosition, ControlPlane, ControlPlaneOptions, CrdBuilder, TestScope,
    },
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Deadline of waits; reached only by tests that fail.
const PATIENCE: Duration = Duration::from_secs(60);

type RespondToCall = Box<dyn Fn(&Value) -> Result<Value, HookError> + Send + Sync>;

/// Hook with a scripted answer; records its requests.
struct Scripted {
    answer: Mutex<RespondToCall>,
    calls: Mutex<VecDeque<Value>>,
}

impl Hook for Scripted {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let answer = self.answer.lock().unwrap()(&request);
        self.calls.lock().unwrap().push_back(request);
        Box::pin(std::future::ready(answer.map(|answer| match answer.as_str() {
            // For a body that is not JSON.
            Some(raw) => raw.to_owned().into(),
            None => answer.to_string().into(),
        })))
    }
}

/// Control plane with one manager, shared by all tests of this module: every manager that sees a
/// CompositeController runs it.
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
        // The thread runs until the process ends.
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
        hooks: Some(Arc::new(move |definition: &Definition, _| {
            hooks.lock().unwrap().get(definition.name()).unwrap().clone()
        })),
        ..MetaOptions::default()
    };
    let supervisor = Supervisor::new(&cluster, manager.handle(), options).unwrap();
    manager.add_runnable("cluster", Arc::new(runs), RunnableOptions::default()).unwrap();
    manager.add(SUPERVISOR, Arc::new(supervisor), RunnableOptions::default()).unwrap();
    manager.run(CancellationToken::new()).await.unwrap();
}

/// Controller of Things, whose children are ConfigMaps.
struct Harness {
    scope: TestScope,
    crd: CrdBuilder,
    hook: Arc<Scripted>,
}

impl Harness {
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
            calls: Mutex::default(),
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

    /// Causes another sync of a parent.
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

    /// Message of an Event about the controller's object.
    async fn event_of_controller(&self, reason: &str) -> String {
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

    /// Number of requests with this verb since `position` for the parents' type and the children's
    /// type.
    async fn requests_since(&self, position: AuditPosition, verb: &str) -> usize {
        shared().plane.audit_settled().await.unwrap();
        let events = shared().plane.audit().unwrap().since(position).unwrap();
        let ours = |event: &&AuditEvent| {
            event.namespace == self.scope.namespace
                && event.verb == verb
                && (event.is_about(&self.scope.group, "things") || event.is_about("", "configmaps"))
        };
        events.iter().filter(ours).count()
    }

    fn position() -> AuditPosition {
        shared().plane.audit().unwrap().position().unwrap()
    }

    fn call_count(&self) -> usize {
        self.hook.calls.lock().unwrap().len()
    }

    /// Waits until no call has reached the hook for a second.
    async fn quiet(&self) {
        let (mut calls, mut since) = (self.call_count(), Instant::now());
        eventually("a second without a call", async || {
            if self.call_count() != calls {
                (calls, since) = (self.call_count(), Instant::now());
            }
            (since.elapsed() >= Duration::from_secs(1)).then_some(())
        })
        .await;
    }

    fn last_call(&self) -> Value {
        self.hook.calls.lock().unwrap().back().cloned().unwrap()
    }

    /// Deletes the controller, so that it does not outlive its test.
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
    let harness = Harness::start("composite-first", "InPlace", |request| {
        let seen = request["children"]["ConfigMap.v1"].as_object().unwrap().len();
        json!({"status": {"seen": seen}, "children": [child("a", "a-child", "one")]})
    })
    .await;

    let thing = harness.create_thing("a").await;

    let created = eventually("the child", async || harness.config_map("a-child").await).await;
    let owner = &created.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Thing", &*thing.uid().unwrap()));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    assert!(created.annotations().contains_key(LAST_APPLIED));
    let status = eventually("the status", async || {
        let status = harness.things().get("a").await.unwrap().data["status"].clone();
        (status["seen"] == 1).then_some(status)
    })
    .await;
    assert_eq!(status, json!({"seen": 1, "observedGeneration": 1}));
    let request = harness.last_call();
    assert_eq!(request["controller"]["metadata"]["name"], harness.scope.namespace);
    assert_eq!(request["controller"]["spec"]["hooks"]["sync"]["version"], "v1");
    assert_eq!(request["parent"]["metadata"]["name"], "a");
    assert_eq!(request["parent"]["kind"], "Thing");
    assert_eq!(request["children"]["ConfigMap.v1"]["a-child"]["data"]["value"], "one");
    assert_eq!(request["related"], json!({}));
    assert_eq!(request["finalizing"], json!(false));
    harness.stop().await;
}

#[tokio::test]
async fn parent_in_its_desired_state_causes_no_request() {
    let harness = Harness::start(
        "composite-quiet",
        "InPlace",
        |_| json!({"status": {"n": 1}, "children": [child("a", "a-child", "one")]}),
    )
    .await;
    harness.create_thing("a").await;
    eventually("the child", async || harness.config_map("a-child").await).await;
    eventually("the status", async || {
        harness.things().get("a").await.unwrap().data["status"]["n"].as_i64()
    })
    .await;
    let before = harness.config_map("a-child").await.unwrap().resource_version();

    // The child and the status that the sync writes cause one more sync each.
    harness.quiet().await;
    assert!(harness.call_count() <= 3, "called {} times", harness.call_count());
    let (calls, position) = (harness.call_count(), Harness::position());
    harness.touch("a").await;
    eventually("a sync", async || (harness.call_count() > calls).then_some(())).await;

    harness.quiet().await;
    assert_eq!(harness.call_count(), calls + 1);
    for verb in ["get", "list", "create", "update", "delete"] {
        assert_eq!(harness.requests_since(position, verb).await, 0, "{verb}");
    }
    assert_eq!(harness.config_map("a-child").await.unwrap().resource_version(), before);
    harness.stop().await;
}

#[tokio::test]
async fn an_object_can_be_edited_right_after_it_was_created() {
    let harness = Harness::start("composite-edited", "OnDelete", |_| json!({})).await;
    let mut other = harness.controllers().get(&harness.scope.namespace).await.unwrap();
    other.metadata = kube::core::ObjectMeta {
        name: Some(format!("{}-other", harness.scope.namespace)),
        ..Default::default()
    };
    other.status = None;
    let name = other.name_any();
    shared().hooks.lock().unwrap().insert(name.clone(), harness.hook.clone());

    for _ in 0..5 {
        let created = harness.controllers().create(&PostParams::default(), &other).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let replaced = harness.controllers().replace(&name, &PostParams::default(), &created).await;
        harness.controllers().delete(&name, &DeleteParams::default()).await.unwrap();
        eventually("the controller is gone", async || {
            harness.controllers().get_opt(&name).await.unwrap().is_none().then_some(())
        })
        .await;
        replaced.expect("no write in between");
    }
    harness.stop().await;
}
