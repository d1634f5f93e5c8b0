//! Objects of a measurement: parent types, parents, controllers and foreign objects.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use pilotlight::{
    meta::{self, api::CompositeController},
    testing::CrdBuilder,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{hooks::Hooks, noise::noise};

/// Namespace of parents and children.
pub(crate) const OWN: &str = "own";
/// Namespace of foreign objects.
pub(crate) const FOREIGN: &str = "foreign";
const GROUP: &str = "scale.pilotlight.test";
/// Number of concurrent writes of the bench.
const WRITES: usize = 16;
/// Limit of waits for the server.
const PATIENCE: Duration = Duration::from_secs(120);

/// Objects that exist on a server; created on demand.
pub(crate) struct Objects {
    client: Client,
    types: usize,
    foreign: usize,
    controllers: Vec<Declared>,
    // Counter of changes, so that each differs; shared with the load.
    changes: Arc<AtomicUsize>,
}

/// Declared controller.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) name: String,
    /// Parent type.
    pub(crate) kind: usize,
    /// Label of its parents, if controllers share the type.
    pub(crate) label: Option<String>,
    pub(crate) hook: String,
    pub(crate) resync_seconds: Option<u32>,
}

/// Size of a parent's children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Children {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Objects {
    /// Installs our CRDs and creates the namespaces.
    pub(crate) async fn create(client: Client) -> Self {
        let namespaces = Api::<Namespace>::all(client.clone());
        for name in [OWN, FOREIGN] {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let namespace = Namespace { metadata, ..Namespace::default() };
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        install(&client, meta::crds()).await;
        let controllers = Vec::new();
        Self { client, types: 0, foreign: 0, controllers, changes: Arc::default() }
    }

    /// Installs parent types until there are so many.
    pub(crate) async fn types(&mut self, count: usize) {
        if count > self.types {
            let missing = self.types..count;
            install(&self.client, missing.map(|kind| parent_type(kind).build()).collect()).await;
            for kind in self.types..count {
                wait_served(&self.parent_api(kind)).await;
            }
            self.types = count;
        }
    }

    /// Creates foreign objects until there are so many, of about `bytes` each.
    pub(crate) async fn foreign(&mut self, count: usize, bytes: usize) {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), FOREIGN);
        all((self.foreign..count).map(|index| {
            let data = BTreeMap::from([("text".to_owned(), noise(bytes, &foreign(index)))]);
            let metadata = ObjectMeta { name: Some(foreign(index)), ..ObjectMeta::default() };
            let object = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            let api = api.clone();
            async move { api.create(&PostParams::default(), &object).await }
        }))
        .await;
        self.foreign = self.foreign.max(count);
    }

    /// Creates parents of one type, or replaces their specs.
    pub(crate) async fn parents(
        &self,
        kind: usize,
        names: Vec<(String, Option<String>)>,
        size: Children,
    ) {
        let api = self.parent_api(kind);
        all(names.into_iter().map(|(name, label)| {
            let spec = json!({"children": size.count, "bytes": size.bytes});
            let mut object = parent_type(kind).object(&name, spec);
            object.metadata.labels =
                label.map(|label| BTreeMap::from([("controller".to_owned(), label)]));
            let api = api.clone();
            async move { api.patch(&name, &by_bench(), &Patch::Apply(&object)).await }
        }))
        .await;
    }

    /// Declares exactly these controllers; those of a name are assumed to be equal.
    pub(crate) async fn controllers(&mut self, wanted: Vec<Declared>) {
        let api = self.controller_api();
        let is_in = |list: &[Declared], name: &str| list.iter().any(|it| it.name == name);
        for declared in &self.controllers {
            if !is_in(&wanted, &declared.name) {
                api.delete(&declared.name, &DeleteParams::default()).await.unwrap();
            }
        }
        let known = std::mem::take(&mut self.controllers);
        let missing = wanted.iter().filter(|declared| !is_in(&known, &declared.name));
        all(missing.map(|declared| {
            let (api, object) = (api.clone(), declared.object());
            async move { api.create(&PostParams::default(), &object).await }
        }))
        .await;
        self.controllers = wanted;
    }

    /// Declares one more controller.
    pub(crate) async fn also(&mut self, declared: Declared) {
        let mut wanted = self.controllers.clone();
        wanted.push(declared);
        self.controllers(wanted).await;
    }

    /// Deletes all foreign objects.
    pub(crate) async fn no_foreign(&mut self) {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), FOREIGN);
        all((0..self.foreign).map(|index| {
            let api = api.clone();
            async move { api.delete(&foreign(index), &DeleteParams::default()).await }
        }))
        .await;
        self.foreign = 0;
    }

    /// Sets the hook of a controller.
    pub(crate) async fn set_hook(&self, controller: &str, url: &str) {
        let patch = json!({"spec": {"hooks": {"sync": {"webhook": {"url": url}}}}});
        let params = PatchParams::default();
        self.controller_api().patch(controller, &params, &Patch::Merge(&patch)).await.unwrap();
    }

    /// Changes so many foreign objects, one after the other in `concurrent` tasks.
    pub(crate) async fn change_foreign(&self, count: usize, concurrent: usize) {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), FOREIGN);
        let from = self.changes.fetch_add(count, Ordering::Relaxed);
        let objects = self.foreign;
        let changes = (from..from + count).map(|number| {
            let api = api.clone();
            async move { change(&api, &foreign(number % objects), number).await }
        });
        stream::iter(changes).buffer_unordered(concurrent).for_each(async |()| {}).await;
    }

    /// Returns a future that changes foreign objects without end.
    pub(crate) fn load(&self, concurrent: usize) -> impl Future<Output = ()> + Send + use<> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), FOREIGN);
        let (counter, objects) = (Arc::clone(&self.changes), self.foreign);
        let changes = std::iter::repeat_with(move || {
            let (api, number) = (api.clone(), counter.fetch_add(1, Ordering::Relaxed));
            async move { change(&api, &foreign(number % objects), number).await }
        });
        stream::iter(changes).buffer_unordered(concurrent).for_each(async |()| {})
    }

    /// Adds a field to a child that its hook does not know: the parent is synced, and nothing is
    /// written.
    pub(crate) async fn change_child(&self, parent: &str) {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        change(&self.children(), &format!("{parent}-0"), number).await;
    }

    /// Returns the API of children.
    pub(crate) fn children(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), OWN)
    }

    pub(crate) fn parent_api(&self, kind: usize) -> Api<DynamicObject> {
        let resource = parent_type(kind).api_resource("v1");
        Api::namespaced_with(self.client.clone(), OWN, &resource)
    }

    fn controller_api(&self) -> Api<CompositeController> {
        Api::all(self.client.clone())
    }
}

impl Declared {
    pub(crate) fn new(name: &str, kind: usize, hooks: &Hooks) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            label: None,
            hook: hooks.url("0"),
            resync_seconds: None,
        }
    }

    fn object(&self) -> CompositeController {
        let mut parent = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "resource": parent_plural(self.kind),
        });
        if let Some(label) = &self.label {
            parent["labelSelector"] = json!({"matchLabels": {"controller": label}});
        }
        let mut spec = json!({
            "parentResource": parent,
            "childResources": [{
                "apiVersion": "v1",
                "resource": "configmaps",
                "updateStrategy": {"method": "InPlace"},
            }],
            "generateSelector": true,
            "hooks": {"sync": {"webhook": {"url": self.hook, "timeout": "60s"}}},
        });
        if let Some(seconds) = self.resync_seconds {
            spec["resyncPeriodSeconds"] = seconds.into();
        }
        let object: Value = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {"name": self.name},
            "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }
}

/// Returns the name of a parent.
pub(crate) fn parent(index: usize) -> String {
    format!("parent-{index}")
}

/// Installs CRDs, and waits until they can be used.
pub(crate) async fn install(client: &Client, crds: Vec<CustomResourceDefinition>) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    all(crds.into_iter().map(|crd| {
        let api = api.clone();
        async move {
            api.create(&PostParams::default(), &crd).await?;
            let name = crd.metadata.name.unwrap();
            let established = await_condition(api, &name, is_crd_established());
            timeout(PATIENCE, established).await.expect("the CRD is established").unwrap();
            Ok::<_, kube::Error>(())
        }
    }))
    .await;
}

/// Builds the CRD of a parent type.
pub(crate) fn parent_type(kind: usize) -> CrdBuilder {
    CrdBuilder::new(GROUP, format!("Widget{kind}")).plural(parent_plural(kind))
}

/// Builds the CRD of a type that no controller needs.
pub(crate) fn other_type(kind: usize) -> CrdBuilder {
    CrdBuilder::new(format!("group{}.{GROUP}", kind % 50), format!("Other{kind}"))
}

fn parent_plural(kind: usize) -> String {
    format!("widget{kind}s")
}

fn foreign(index: usize) -> String {
    format!("foreign-{index}")
}

fn by_bench() -> PatchParams {
    PatchParams::apply("bench").force()
}

async fn change(api: &Api<ConfigMap>, name: &str, number: usize) {
    let patch = json!({"data": {"changed": number.to_string()}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// Awaits all, some at the same time.
async fn all<T, E: Debug>(futures: impl Iterator<Item = impl Future<Output = Result<T, E>>>) {
    stream::iter(futures)
        .buffer_unordered(WRITES)
        .for_each(async |result| drop(result.unwrap()))
        .await;
}

/// Waits until a list of the type succeeds.
async fn wait_served(api: &Api<DynamicObject>) {
    let served = async {
        while api.list(&kube::api::ListParams::default().limit(1)).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, served).await.expect("the type is served");
}
