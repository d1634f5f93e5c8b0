//! `deploy/` on a real API server with RBAC: the binary runs with a token of its service account.

mod manifests;
mod priority;
mod rights;
mod users;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use axum::{Json, Router, routing::post};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Event, Pod},
        rbac::v1::ClusterRole,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams, TypeMeta},
    core::GroupVersionKind,
    discovery,
    runtime::wait::await_condition,
};
use pilotlight::{
    meta::api::{CompositeController, ControllerStatus, DecoratorController, WatchStatus},
    testing::{ControlPlane, ControlPlaneOptions, CrdBuilder},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStderr, Command},
    task::JoinSet,
    time::timeout,
};

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "pilotlight";

/// Files of a kustomization, in its order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(directory.join("kustomization.yaml")).unwrap();
    let kustomization: Value = serde_saphyr::from_str(&text).unwrap();
    let resources = kustomization["resources"].as_array().unwrap();
    let paths = resources.iter().map(|name| directory.join(name.as_str().unwrap()));
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Manifests that are applied first and outlive the manager.
pub(crate) fn crds() -> Vec<PathBuf> {
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crds"))
}

/// Files of the base.
pub(crate) fn base() -> Vec<PathBuf> {
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy"))
}

#[test]
fn deleting_the_manager_deletes_no_crd_and_so_no_controller() {
    let kinds = |paths: Vec<PathBuf>| -> Vec<Value> {
        paths.iter().flat_map(|path| read(path)).map(|object| object["kind"].clone()).collect()
    };

    let (of_crds, of_base) = (kinds(crds()), kinds(base()));

    assert_eq!(of_crds, ["CustomResourceDefinition"; 3]);
    assert!(of_base.iter().any(|kind| kind == "Deployment"));
    assert!(!of_base.iter().any(|kind| kind == "CustomResourceDefinition"), "{of_base:?}");
}

pub(crate) fn read(path: &Path) -> Vec<Value> {
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) async fn apply(client: &Client, path: &Path) {
    for object in read(path) {
        apply_object(client, object).await;
    }
}

pub(crate) async fn apply_object(client: &Client, object: Value) {
    let types: TypeMeta = serde_json::from_value(object.clone()).unwrap();
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let gvk = GroupVersionKind::try_from(&types).unwrap();
    let served = async {
        loop {
            // A CRD that was applied before is served a moment later.
            match discovery::pinned_kind(client, &gvk).await {
                Ok(found) => return found,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let late = |_| panic!("{gvk:?} is not served in time");
    let (resource, capabilities) = timeout(DEADLINE, served).await.unwrap_or_else(late);
    let api: Api<DynamicObject> = match capabilities.scope {
        discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
        discovery::Scope::Namespaced => {
            let namespace = object.namespace().expect("the manifest names its namespace");
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let by = PatchParams::apply("deploy").force();
    api.patch(&object.name_any(), &by, &Patch::Apply(&object)).await.unwrap();
}

/// Process of the manager, with the flags of the Deployment.
pub(crate) struct Manager {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    probes: SocketAddr,
}

impl Manager {
    pub(crate) async fn start(kubeconfig: &Path, deployment: &Deployment) -> Self {
        let template = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        let container = &template.containers[0];
        let arguments = container.args.clone().unwrap();
        // A pod has all ports to itself; here, any free port is used.
        let arguments = arguments.into_iter().map(|argument| match argument.split_once("=:") {
            Some((flag, _)) => format!("{flag}=127.0.0.1:0"),
            None => argument,
        });
        let mut process = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
            .args(arguments)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            // A pod knows its namespace.
            .arg("--leader-election-namespace=pilotlight")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let first = log.next_line().await.unwrap().expect("the manager logs its start");
        let first: Value = serde_json::from_str(&first).unwrap();
        let probes = first["probes"].as_str().unwrap().parse().unwrap();
        Self { process, log, probes }
    }

    pub(crate) async fn ready(&self) {
        let ready = async {
            while !get(self.probes, "/readyz").await.starts_with("HTTP/1.1 200") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, ready).await.expect("the manager becomes ready");
        assert!(get(self.probes, "/healthz").await.starts_with("HTTP/1.1 200"));
    }

    /// Ends the process as the kubelet does and returns its log.
    async fn terminate(mut self) -> Vec<String> {
        let id = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").arg(&id).status().await.unwrap().success());
        let mut lines = Vec::new();
        while let Some(line) = self.log.next_line().await.unwrap() {
            lines.push(line);
        }
        assert!(self.process.wait().await.unwrap().success());
        lines
    }
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[test]
fn no_rule_has_a_wildcard() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = top.join("deploy/grant-example.yaml");

    let roles = base().into_iter().chain([example]).flat_map(|path| read(&path));
    let roles = roles.filter(|object| object["kind"] == "ClusterRole");

    let mut count = 0;
    for role in roles {
        count += 1;
        let role: ClusterRole = serde_json::from_value(role).unwrap();
        for rule in role.rules.into_iter().flatten() {
            let parts = [rule.api_groups, rule.resources, rule.non_resource_urls, Some(rule.verbs)];
            assert!(parts.into_iter().flatten().flatten().all(|part| !part.contains('*')));
        }
    }
    assert_eq!(count, 5);
}

#[test]
fn role_of_each_example_grants_updates_of_the_finalizers_of_its_parents() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifests = std::fs::read_dir(top.join("examples")).unwrap();
    let manifests = manifests.map(|entry| entry.unwrap().path().join("controller.yaml"));

    let mut count = 0;
    for path in manifests.filter(|path| path.exists()) {
        let objects = read(&path);
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
        let roles: Vec<ClusterRole> =
            roles.map(|role| serde_json::from_value(role.clone()).unwrap()).collect();
        // The example runs outside a cluster.
        if roles.is_empty() {
            continue;
        }
        let parents = objects.iter().flat_map(|object| match object["kind"].as_str() {
            Some("CompositeController") => vec![&object["spec"]["parentResource"]],
            Some("DecoratorController") => {
                object["spec"]["resources"].as_array().unwrap().iter().collect()
            }
            _ => Vec::new(),
        });
        for parent in parents {
            count += 1;
            let (version, plural) = (&parent["apiVersion"], &parent["resource"]);
            let group = version.as_str().unwrap().split_once('/').map_or("", |(group, _)| group);
            let finalizers = format!("{}/finalizers", plural.as_str().unwrap());
            let has = |names: &Option<Vec<String>>, name: &str| {
                names.iter().flatten().any(|other| other == name)
            };
            let rules = || roles.iter().flat_map(|role| role.rules.iter().flatten());
            let is_granted = rules().any(|rule| {
                has(&rule.api_groups, group)
                    && has(&rule.resources, &finalizers)
                    && rule.verbs.iter().any(|verb| verb == "update")
            });
            assert!(is_granted, "{}: {finalizers}", path.display());
        }
    }
    assert_eq!(count, 7);
}

/// Declares a decorator, grants it one more right on the objects, and waits until it has decorated
/// one.
async fn objects_are_decorated(client: &Client, hook: &str, parents: Api<DynamicObject>) {
    let decorators = Api::<DecoratorController>::all(client.clone());
    decorators.create(&PostParams::default(), &decorator(hook)).await.unwrap();
    let roles = Api::<ClusterRole>::all(client.clone());
    let role = json!({
        "metadata": {
            "name": "decorated-greetings",
            "labels": {"pilotlight.dev/aggregate-to-manager": "true"},
        },
        "rules": [{
            "apiGroups": ["demo.pilotlight.dev"], "resources": ["greetings"], "verbs": ["patch"],
        }],
    });
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
    let has_label = |parent: Option<&DynamicObject>| {
        parent.is_some_and(|parent| parent.labels().get("decorated").is_some())
    };
    let decorated = await_condition(parents, "hello", has_label);
    timeout(DEADLINE, decorated).await.expect("the object is decorated").unwrap();
    let reports = |decorator: Option<&DecoratorController>| {
        let status = decorator.and_then(|decorator| decorator.status.as_ref());
        status.is_some_and(|status| status.state.as_deref() == Some("Running"))
    };
    let reported = await_condition(decorators, "greetings", reports);
    timeout(DEADLINE, reported).await.expect("its status is written").unwrap();
}

#[tokio::test]
async fn manager_runs_with_the_rights_of_its_own_service_account() {
    // A separate control plane, because ClusterRoles and CRDs are cluster-scoped.
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()) {
        apply(&client, &path).await;
    }
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("pilotlight").await.unwrap();

    // The namespace accepts restricted pods only.
    let template = deployment.spec.clone().unwrap().template;
    let mut pod =
        Pod { metadata: template.metadata.unwrap(), spec: template.spec, ..Pod::default() };
    pod.metadata.name = Some("like-the-deployment".to_owned());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Api::<Pod>::namespaced(client.clone(), NAMESPACE).create(&dry_run, &pod).await.unwrap();

    let token = plane.service_account_token(NAMESPACE, "pilotlight").await.unwrap();
    let kubeconfig = plane.token_kubeconfig(&token).unwrap();
    let manager = Manager::start(&kubeconfig, &deployment).await;
    manager.ready().await;

    // The base does not grant rights to users' types.
    let greetings = CrdBuilder::new("demo.pilotlight.dev", "Greeting");
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    crds.create(&PostParams::default(), &greetings.build()).await.unwrap();
    let hook = Hook::start().await;
    let controllers = Api::<CompositeController>::all(client.clone());
    controllers.create(&PostParams::default(), &controller(&hook.url)).await.unwrap();
    let forbidden = status(&controllers, |status| {
        let forbidden = |watch: &&WatchStatus| watch.state == "Forbidden";
        status.watches.iter().filter(forbidden).count() == 2
    });
    let forbidden = Box::pin(forbidden).await;
    for (watch, resource) in forbidden.watches.iter().zip(["greetings", "configmaps"]) {
        assert!(watch.message.contains(resource), "the message names the rule: {}", watch.message);
        assert!(watch.message.contains("list"), "the message names the rule: {}", watch.message);
    }

    let grant = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grant-example.yaml");
    apply(&client, &grant).await;
    let running = status(&controllers, |status| status.state.as_deref() == Some("Running"));
    Box::pin(running).await;
    let parents = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        "default",
        &greetings.api_resource("v1"),
    );
    parents.create(&PostParams::default(), &greetings.object("hello", json!({}))).await.unwrap();
    let children = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let child = await_condition(children, "hello", |child: Option<&ConfigMap>| child.is_some());
    timeout(DEADLINE, child).await.expect("the child is created").unwrap();
    let greeted = |parent: Option<&DynamicObject>| {
        parent.is_some_and(|parent| parent.data["status"]["greeted"] == "hello")
    };
    let written = await_condition(parents.clone(), "hello", greeted);
    timeout(DEADLINE, written).await.expect("the parent's status is written").unwrap();

    Box::pin(objects_are_decorated(&client, &hook.url, parents)).await;

    // The base also grants the right to create Events.
    let events = Api::<Event>::namespaced(client, "default");
    let of_controller = ListParams::default().fields("involvedObject.kind=CompositeController");
    let reported = async {
        while events.list(&of_controller).await.unwrap().items.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, reported).await.expect("an Event about the controller exists");

    // The manager lacks no right for its own types.
    let mut refused = manager.terminate().await;
    refused.retain(|line| line.to_lowercase().contains("forbidden"));
    refused.retain(|line| !line.contains("greetings") && !line.contains("configmaps"));
    assert!(refused.is_empty(), "{refused:#?}");
    plane.stop().await;
}

/// Controller of Greetings with ConfigMaps, which the example grants.
fn controller(url: &str) -> CompositeController {
    serde_json::from_value(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": {"name": "greetings"},
        "spec": {
            "generateSelector": true,
            "parentResource": {"apiVersion": "demo.pilotlight.dev/v1", "resource": "greetings"},
            "childResources": [{
                "apiVersion": "v1",
                "resource": "configmaps",
                "updateStrategy": {"method": "InPlace"},
            }],
            "hooks": {"sync": {"webhook": {"url": url}}},
        },
    }))
    .unwrap()
}

/// Decorator of Greetings.
fn decorator(url: &str) -> DecoratorController {
    serde_json::from_value(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "DecoratorController",
        "metadata": {"name": "greetings"},
        "spec": {
            "resources": [{"apiVersion": "demo.pilotlight.dev/v1", "resource": "greetings"}],
            "hooks": {"sync": {"webhook": {"url": url}}},
        },
    }))
    .unwrap()
}

/// Waits until the controller's status satisfies `wanted` and returns it.
async fn status(
    controllers: &Api<CompositeController>,
    wanted: impl Fn(&ControllerStatus) -> bool,
) -> ControllerStatus {
    let as_wanted = |controller: Option<&CompositeController>| {
        controller.and_then(|controller| controller.status.as_ref()).is_some_and(&wanted)
    };
    let seen = await_condition(controllers.clone(), "greetings", as_wanted);
    match timeout(DEADLINE, seen).await {
        Ok(controller) => controller.unwrap().unwrap().status.unwrap(),
        Err(_) => panic!("{:#?}", controllers.get("greetings").await.unwrap().status),
    }
}

/// Hook that returns one ConfigMap of the parent's name, and a label for a decorated object.
struct Hook {
    url: String,
    _serving: JoinSet<io::Result<()>>,
}

impl Hook {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap());
        let sync = async |Json(request): Json<Value>| {
            if request.get("object").is_some() {
                return Json(json!({"labels": {"decorated": "yes"}}));
            }
            let name = &request["parent"]["metadata"]["name"];
            Json(json!({
                "status": {"greeted": name},
                "children": [{
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                }],
            }))
        };
        let router = Router::new().route("/sync", post(sync));
        let mut serving = JoinSet::new();
        serving.spawn(async { axum::serve(listener, router).await });
        Self { url, _serving: serving }
    }
}
