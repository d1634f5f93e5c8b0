//! The examples work as documented while their type is installed, removed and installed again.

mod multi;
mod operators;

use std::{
    ffi::OsStr,
    fmt::Debug,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
    runtime::wait::await_condition,
};
use pilotlight::testing::ControlPlane;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
    time::timeout,
};

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(60);

/// Process of an example, with its log.
struct Example {
    process: Child,
    log: Lines<BufReader<ChildStdout>>,
}

/// Builds the examples; a no-op if they were built with the tests.
fn build() {
    let status = Command::new(env!("CARGO")).args(["build", "--quiet", "--examples"]).status();
    assert!(status.unwrap().success(), "the examples do not build");
}

fn example(name: &str) -> Command {
    let directory = Path::new(env!("CARGO_BIN_EXE_pilotlight")).parent().unwrap();
    Command::new(directory.join("examples").join(name))
}

impl Example {
    fn start(name: &str, kubeconfig: &Path) -> Self {
        Self::with(name, kubeconfig, &[], "127.0.0.1:0")
    }

    /// Starts an example with arguments, whose server has this address if it has a server.
    fn with(name: &str, kubeconfig: &Path, arguments: &[&OsStr], address: &str) -> Self {
        let mut command = tokio::process::Command::from(example(name));
        command.env("KUBECONFIG", kubeconfig).env("NO_COLOR", "1").kill_on_drop(true);
        command.env("ADDRESS", address).args(arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, log }
    }

    /// Reads the log until a line contains all parts.
    async fn says(&mut self, parts: &[&str]) {
        let said = async {
            loop {
                let line =
                    self.log.next_line().await.unwrap().expect("the example ended too early");
                if parts.iter().all(|part| line.contains(part)) {
                    return;
                }
            }
        };
        timeout(DEADLINE, said).await.unwrap_or_else(|_| panic!("no line with {parts:?} in time"));
    }

    /// Sends this signal and asserts that the example drains and exits without an error.
    async fn end_by(mut self, signal: &str) {
        let id = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        while self.log.next_line().await.unwrap().is_some() {}
        assert!(self.process.wait().await.unwrap().success());
    }
}

/// Returns the CRD that an example prints.
fn crd_of(name: &str) -> CustomResourceDefinition {
    let printed = example(name).arg("crd").output().unwrap();
    serde_json::from_slice(&printed.stdout).unwrap()
}

async fn install(client: &Client, crd: &CustomResourceDefinition) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    crds.create(&PostParams::default(), crd).await.unwrap();
}

async fn remove(client: &Client, crd: &CustomResourceDefinition) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    drop(crds.delete(&crd.name_any(), &DeleteParams::default()).await.unwrap());
}

/// Returns the API of a kind of the examples in a namespace.
fn api(client: &Client, kind: &str, plural: &str, namespace: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("example.com", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Creates an object of the examples with this specification.
async fn create(api: &Api<DynamicObject>, kind: &str, name: &str, spec: Value) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", kind));
    let object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// Waits until an object satisfies this, within the deadline.
async fn until<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(Option<&K>) -> bool)
where
    K: Clone + Debug + Send + Resource + DeserializeOwned + 'static,
{
    let held = await_condition(api.clone(), name, holds);
    match timeout(DEADLINE, held).await {
        Ok(held) => drop(held.unwrap()),
        Err(_) => panic!("{name}: {what}: {:?}", api.get_opt(name).await),
    }
}

/// Creates a widget and waits for its ConfigMaps, of the embedded and of the adopted controller.
async fn greeted(client: &Client, namespace: &str, name: &str) {
    let widgets = api(client, "Widget", "widgets", namespace);
    create(&widgets, "Widget", name, json!({"greeting": "Hello"})).await;
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let there = |config_map: Option<&ConfigMap>| {
        let data = config_map.and_then(|config_map| config_map.data.as_ref());
        data.is_some_and(|data| data.values().eq(["Hello"]))
    };
    for suffix in ["greeting", "adopted"] {
        let name = format!("{name}-{suffix}");
        until(&config_maps, &name, "greets", there).await;
    }
}

#[tokio::test]
async fn examples_start_stop_and_start_again_with_their_type() {
    build();
    let plane = ControlPlane::shared();
    let client = plane.client().unwrap();
    let scope = plane.scope("examples").await.unwrap();
    let mut crd = crd_of("embed");
    // Rule of the example `dynamic`.
    crd.spec.names.categories = Some(vec!["census".to_owned()]);
    let mut embed = Example::start("embed", plane.kubeconfig());
    let mut adopt = Example::start("adopt", plane.kubeconfig());
    let mut dynamic = Example::start("dynamic", plane.kubeconfig());
    let mut runnable = Example::start("runnable", plane.kubeconfig());
    embed.says(&["running", "controller=cluster"]).await;
    adopt.says(&["running", "controller=cluster"]).await;
    dynamic.says(&["running", "controller=types"]).await;
    runnable.says(&["running", "controller=cluster"]).await;

    for (epoch, name) in [("epoch=1", "first"), ("epoch=2", "second")] {
        install(&client, &crd).await;
        embed.says(&["running", "controller=widgets", epoch]).await;
        adopt.says(&["running", "controller=greeters", epoch]).await;
        dynamic.says(&["running", "controller=census-widgets.example.com"]).await;
        greeted(&client, &scope.namespace, name).await;
        dynamic.says(&["counted", name, "exists=true"]).await;
        runnable.says(&["counted", epoch]).await;

        remove(&client, &crd).await;
        embed.says(&["done", "controller=widgets", epoch, "TypeGone"]).await;
        dynamic.says(&["done", "controller=census-widgets.example.com"]).await;
        adopt.says(&["done", "controller=greeters", epoch, "TypeGone"]).await;
        runnable.says(&["done", "controller=census", epoch, "TypeGone"]).await;
    }

    embed.end_by("-TERM").await;
    adopt.end_by("-TERM").await;
    dynamic.end_by("-TERM").await;
    runnable.end_by("-INT").await;
}
