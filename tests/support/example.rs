//! Example with a hook in another language: its hook, its manifests, and the manager with the
//! rights that they grant.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams, TypeMeta},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use pilotlight::testing::ControlPlane;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::{PATIENCE, install_own_crds, until};

/// Addresses of hooks in the manifests end with it.
const DOMAIN: &str = "hooks.svc";

/// Running example. Its processes end when it is dropped.
pub(crate) struct Example {
    pub(crate) client: Client,
    directory: PathBuf,
    /// Address of the hook in the manifests, and that of the process.
    urls: (String, String),
    /// Label that selects the controllers of the example.
    label: (String, String),
    _hook: Child,
    _manager: Child,
}

impl Example {
    /// Starts an example whose hook is a file of `examples/NAME` for this interpreter.
    pub(crate) async fn start(name: &str, interpreter: &str, hook: &str) -> Self {
        let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).join(hook);
        let mut command = Command::new(interpreter);
        command.arg(hook);
        Self::with(name, command).await
    }

    /// Starts an example whose hook is an example of this package.
    pub(crate) async fn of_package(name: &str) -> Self {
        // A no-op if it was built with the tests.
        let mut build = Command::new(env!("CARGO"));
        let built = build.args(["build", "--quiet", "--example", name]).status().await;
        assert!(built.unwrap().success(), "the example {name} does not build");
        let binary = Path::new(env!("CARGO_BIN_EXE_pilotlight"));
        let directory = binary.parent().expect("a file is in a directory");
        Self::with(name, Command::new(directory.join("examples").join(name))).await
    }

    /// Starts the hook of `examples/NAME` and the manager, and applies `controller.yaml` and
    /// `hook.yaml`. The manager has the rights of `deploy/` and of `controller.yaml`, and no
    /// others.
    async fn with(name: &str, hook: Command) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = root.join("examples").join(name);
        let plane = ControlPlane::shared();
        install_own_crds(plane).await;
        let client = plane.client().unwrap();
        let (process, port) = start_hook(hook).await;
        let user = format!("example-{name}");
        let own = read(&root.join("deploy/rbac.yaml")).into_iter().find(|object| {
            object["kind"] == "ClusterRole" && object["metadata"]["name"] == "pilotlight"
        });
        apply(&client, own.expect("deploy/ has the role of the manager")).await;
        for role in ["pilotlight".to_owned(), format!("pilotlight-{name}")] {
            bind(&client, &user, &role).await;
        }
        let label = ("pilotlight.test/example".to_owned(), name.to_owned());
        let manager = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
            .args(["run", "--metrics-address=0", "--health-probe-bind-address=0"])
            .arg(format!("--target-label-selector={}={}", label.0, label.1))
            .arg("--kubeconfig")
            .arg(plane.user_kubeconfig(&user, &[]).unwrap())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let urls = (format!("http://{name}.{DOMAIN}/"), format!("http://localhost:{port}/"));
        let example = Self { client, directory, urls, label, _hook: process, _manager: manager };
        example.apply("../hooks.yaml").await;
        example.apply("hook.yaml").await;
        example.apply("controller.yaml").await;
        example
    }

    /// Applies the objects of a file. Controllers get the address of the hook's process.
    pub(crate) async fn apply(&self, file: &str) {
        for mut object in read(&self.directory.join(file)) {
            if object["apiVersion"] == "metacontroller.k8s.io/v1alpha1" {
                let text = object.to_string();
                assert!(text.contains(&self.urls.0), "the hook is at {}", self.urls.0);
                object = serde_json::from_str(&text.replace(&self.urls.0, &self.urls.1)).unwrap();
                object["metadata"]["labels"][&self.label.0] = json!(self.label.1);
            }
            apply(&self.client, object).await;
        }
    }

    /// Waits until a JSON pointer into an object has this value.
    pub(crate) async fn has(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        pointer: &str,
        value: Value,
    ) -> DynamicObject {
        until(&format!("{name} has {value} at {pointer}"), async || {
            let object = api.get(name).await.map_err(|error| error.to_string())?;
            let json = serde_json::to_value(&object).unwrap();
            match json.pointer(pointer) == Some(&value) {
                true => Ok(object),
                false => Err(format!("{json:#}")),
            }
        })
        .await
    }

    /// Returns the API of a type, in a namespace unless it is cluster-scoped.
    pub(crate) async fn api(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
    ) -> Api<DynamicObject> {
        api(&self.client, api_version, kind, namespace).await
    }

    /// Writes the status of an object, as the kubelet or a controller of the cluster would.
    pub(crate) async fn set_status(&self, api: &Api<DynamicObject>, name: &str, status: Value) {
        let by = PatchParams::default();
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &by, &status).await.unwrap();
    }
}

/// Starts a hook and returns its port.
async fn start_hook(mut command: Command) -> (Child, u16) {
    let mut process = command
        .env("PORT", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("the hook needs {:?}: {error}", command.as_std()));
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, output.next_line()).await.unwrap().unwrap();
    let line = line.expect("the hook prints its port");
    (process, line.rsplit(' ').next().unwrap().parse().unwrap())
}

fn read(path: &Path) -> Vec<Value> {
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

async fn bind(client: &Client, user: &str, role: &str) {
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": format!("{user}-{role}") },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role,
        },
        "subjects": [
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user },
        ],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
}

/// Returns the API of a type once it is served.
async fn api(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: &str,
) -> Api<DynamicObject> {
    let types = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let gvk = GroupVersionKind::try_from(&types).unwrap();
    until(&format!("{kind} of {api_version} is served"), async || {
        let found = discovery::pinned_kind(client, &gvk).await;
        let (resource, capabilities) = found.map_err(|error| error.to_string())?;
        Ok(match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        })
    })
    .await
}

async fn apply(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let types = object.types.clone().unwrap();
    let namespace = object.namespace().unwrap_or_default();
    let api = api(client, &types.api_version, &types.kind, &namespace).await;
    let by = PatchParams::apply("example").force();
    let name = object.name_any();
    until(&format!("{} {name} is applied", types.kind), async || {
        let applied = api.patch(&name, &by, &Patch::Apply(&object)).await;
        applied.map_err(|error| error.to_string())
    })
    .await;
}
