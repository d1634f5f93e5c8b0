//! The composite example, by the steps of its README.

use std::{path::Path, process::Stdio, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use pilotlight::{
    meta::api::{CompositeController, StatusCondition},
    testing::{ControlPlane, ControlPlaneOptions},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(60);

fn manifest<T: DeserializeOwned>(name: &str, change: impl FnOnce(String) -> String) -> T {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/composite-python");
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    serde_saphyr::from_str(&change(text)).unwrap()
}

/// Starts the hook and returns its port.
async fn hook(port: u16) -> (Child, u16) {
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/composite-python/hook.py");
    let mut process = Command::new("python3")
        .arg(hook)
        .env("PORT", port.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the example's hook needs python3");
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = timeout(DEADLINE, output.next_line()).await.unwrap().unwrap().unwrap();
    let port = line.rsplit(' ').next().unwrap().parse().unwrap();
    (process, port)
}

async fn eventually<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = found().await {
                return found;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Waits for a condition of the declared controller.
async fn condition(client: &Client, type_: &str, status: &str, reason: &str) -> StatusCondition {
    let controllers = Api::<CompositeController>::all(client.clone());
    eventually(&format!("{type_} {status} {reason}"), async || {
        let object = controllers.get("greetings").await.unwrap();
        let conditions = object.status.unwrap_or_default().conditions;
        conditions.into_iter().find(|condition| {
            condition.type_ == type_ && condition.status == status && condition.reason == reason
        })
    })
    .await
}

fn greetings(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("example.com", "v1", "Greeting");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "greetings");
    Api::namespaced_with(client.clone(), "default", &resource)
}

/// Creates the example's Greeting, once its type accepts it.
async fn greet(client: &Client) {
    let greeting: DynamicObject = manifest("greeting.yaml", |text| text);
    eventually("the type", async || {
        greetings(client).create(&PostParams::default(), &greeting).await.ok()
    })
    .await;
}

async fn text(client: &Client, name: &str) -> Option<String> {
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    config_maps.get_opt(name).await.unwrap()?.data?.remove("text")
}

#[tokio::test]
#[ignore = "needs python3, which no other test does; .ci/run runs it"]
async fn the_python_example_greets() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in pilotlight::meta::crds() {
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
    let _manager = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
        .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(plane.kubeconfig())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut process, port) = hook(0).await;
    let url = format!("http://localhost:{port}/");
    let controller: CompositeController =
        manifest("controller.yaml", |text| text.replace("http://localhost:8080/", &url));
    let controllers = Api::<CompositeController>::all(client.clone());
    eventually("our own type", async || {
        controllers.create(&PostParams::default(), &controller).await.ok()
    })
    .await;

    let waiting = condition(&client, "Ready", "False", "TypeAbsent").await;
    assert!(waiting.message.contains("greetings.example.com/v1"), "{}", waiting.message);

    let crd: CustomResourceDefinition = manifest("crd.yaml", |text| text);
    crds.create(&PostParams::default(), &crd).await.unwrap();
    condition(&client, "Ready", "True", "Running").await;
    greet(&client).await;
    let bonjour = eventually("bonjour", async || text(&client, "hello-fr").await).await;
    assert_eq!(bonjour, "Bonjour, world!");
    eventually("the status", async || {
        let status = greetings(&client).get("hello").await.unwrap().data["status"].clone();
        (status["ready"] == 2 && status["wanted"] == 2).then_some(())
    })
    .await;
    condition(&client, "HooksHealthy", "True", "HooksAnswer").await;

    let japanese = Patch::Merge(json!({"spec": {"languages": ["ja"]}}));
    greetings(&client).patch("hello", &PatchParams::default(), &japanese).await.unwrap();
    eventually("konnichiwa", async || text(&client, "hello-ja").await).await;
    eventually("au revoir", async || text(&client, "hello-fr").await.is_none().then_some(())).await;

    process.kill().await.unwrap();
    let german = Patch::Merge(json!({"spec": {"languages": ["de"]}}));
    greetings(&client).patch("hello", &PatchParams::default(), &german).await.unwrap();
    condition(&client, "HooksHealthy", "False", "HookUnreachable").await;
    let events = Api::<Event>::namespaced(client.clone(), "default");
    let listed = events.list(&ListParams::default()).await.unwrap();
    assert!(listed.iter().any(|event| event.reason.as_deref() == Some("SyncError")));
    assert!(text(&client, "hello-ja").await.is_some());
    let (_process, _) = hook(port).await;
    condition(&client, "HooksHealthy", "True", "HooksAnswer").await;
    eventually("hallo", async || text(&client, "hello-de").await).await;

    crds.delete("greetings.example.com", &DeleteParams::default()).await.unwrap();
    condition(&client, "Ready", "False", "TypeAbsent").await;
    crds.create(&PostParams::default(), &crd).await.unwrap();
    condition(&client, "Ready", "True", "Running").await;
    greet(&client).await;
    eventually("bonjour again", async || text(&client, "hello-fr").await).await;
    for reason in ["Starting", "Started", "Stopping", "Stopped"] {
        eventually(reason, async || {
            let listed = events.list(&ListParams::default()).await.unwrap();
            listed.into_iter().find(|event| event.reason.as_deref() == Some(reason))
        })
        .await;
    }
}
