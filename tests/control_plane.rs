//! The throw-away control plane of the test kit.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, WatchParams},
};
use pilotlight::testing::{
    AuditStage, Binary, ControlPlane, ControlPlaneOptions, CrdBuilder, open_watches,
};
use serde_json::json;
use tokio::time;

/// Deadline of waits; reached only by tests that fail.
const DEADLINE: Duration = Duration::from_secs(60);

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

async fn readyz(client: &Client) -> String {
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    let error = result.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("no answer of the server: {error}") };
    status.code
}

#[tokio::test]
async fn the_api_server_is_ready_and_of_the_pinned_version() {
    let plane = ControlPlane::shared();
    let client = plane.client().unwrap();

    assert_eq!(readyz(&client).await, "ok");
    // Prebuilt binaries may have any version.
    if std::env::var_os("KUBEBUILDER_ASSETS").is_none() {
        let version = client.apiserver_version().await.unwrap();
        assert_eq!(version.git_version, pilotlight::testing::KUBERNETES_VERSION);
    }
}

#[tokio::test]
async fn the_kubeconfig_file_leads_to_the_same_server() {
    let plane = ControlPlane::shared();
    let file = kube::config::Kubeconfig::read_from(plane.kubeconfig()).unwrap();

    let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.unwrap();

    assert_eq!(config.cluster_url, plane.config().cluster_url);
    assert_eq!(readyz(&Client::try_from(config).unwrap()).await, "ok");
}

#[tokio::test]
async fn an_unprivileged_user_is_denied_and_a_group_is_authorized() {
    let plane = ControlPlane::shared();
    let scope = plane.scope("rbac").await.unwrap();
    let alice = Api::<ConfigMap>::namespaced(
        plane.client_as("alice", &["nobodies"]).unwrap(),
        &scope.namespace,
    );
    let root = Api::<ConfigMap>::namespaced(
        plane.client_as("root", &["nobodies", "system:masters"]).unwrap(),
        &scope.namespace,
    );

    assert_eq!(code(alice.list(&ListParams::default()).await), 403);
    root.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_service_account_token_is_accepted() {
    let plane = ControlPlane::shared();
    let scope = plane.scope("token").await.unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(scope.client(), &scope.namespace);
    let account = serde_json::from_value(json!({ "metadata": { "name": "robot" } })).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();

    let token = plane.service_account_token(&scope.namespace, "robot").await.unwrap();
    let robot = Client::try_from(plane.token_config(&token)).unwrap();

    let error = Api::<Namespace>::all(robot).list(&ListParams::default()).await.unwrap_err();
    let expected = format!("system:serviceaccount:{}:robot", scope.namespace);
    assert!(error.to_string().contains(&expected), "{error}");
}

#[tokio::test]
async fn a_crd_is_installed_served_switched_off_and_on_and_deleted() {
    let scope = ControlPlane::shared().scope("crd").await.unwrap();
    let widgets = CrdBuilder::new(&scope.group, "Widget").version("v1").version("v2");

    scope.install_crd(&widgets).await.unwrap();
    scope.wait_established(&widgets).await.unwrap();
    scope.wait_served(&widgets, "v2").await.unwrap();
    let api = scope.api(&widgets, "v1");
    let object = widgets.object("a", json!({ "size": 3 }));
    api.create(&PostParams::default(), &object).await.unwrap();

    scope.set_served(&widgets, "v2", false).await.unwrap();
    let v2 = scope.api(&widgets, "v2");
    eventually("v2 ends", async || v2.list(&ListParams::default()).await.is_err()).await;
    scope.set_served(&widgets, "v2", true).await.unwrap();
    scope.wait_served(&widgets, "v2").await.unwrap();
    assert_eq!(v2.get("a").await.unwrap().data["spec"]["size"], 3);

    scope.delete_crd(&widgets).await.unwrap();
    scope.wait_gone(&widgets).await.unwrap();
    assert_eq!(code(api.list(&ListParams::default()).await), 404);
}

#[tokio::test]
async fn the_audit_log_has_users_requests_and_open_watches() {
    let plane = ControlPlane::shared();
    let audit = plane.audit().unwrap();
    let scope = plane.scope("audit").await.unwrap();
    plane.audit_settled().await.unwrap();
    let position = audit.position().unwrap();
    let user = format!("bob-{}", scope.namespace);
    let bob = Api::<ConfigMap>::namespaced(
        plane.client_as(&user, &["system:masters"]).unwrap(),
        &scope.namespace,
    );
    let of_bob = || {
        let mut events = audit.since(position).unwrap();
        events.retain(|event| event.user == user);
        events
    };

    let missing = code(bob.get("missing").await);
    plane.audit_settled().await.unwrap();

    let events = of_bob();
    assert_eq!(events.len(), 1, "{events:?}");
    let event = &events[0];
    assert!(event.is_about("", "configmaps"));
    assert_eq!((event.verb.as_str(), event.name.as_str()), ("get", "missing"));
    assert_eq!((event.stage, event.code), (AuditStage::ResponseComplete, Some(missing)));

    let watch = bob.watch(&WatchParams::default(), "0").await.unwrap();
    eventually("the watch opens", async || open_watches(&of_bob()).len() == 1).await;
    drop(watch);
    eventually("the watch ends", async || open_watches(&of_bob()).is_empty()).await;
}

#[tokio::test]
async fn a_deleted_namespace_is_removed_with_its_objects() {
    let scope = ControlPlane::shared().scope("namespace").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(scope.client(), &scope.namespace);
    let map = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let namespaces = Api::<Namespace>::all(scope.client());

    namespaces.delete(&scope.namespace, &DeleteParams::default()).await.unwrap();

    eventually("the namespace is deleted", async || {
        namespaces.get_opt(&scope.namespace).await.unwrap().is_none()
    })
    .await;
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_child_is_deleted_with_its_owner() {
    let scope = ControlPlane::shared().scope("garbage").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(scope.client(), &scope.namespace);
    let owner = serde_json::from_value(json!({ "metadata": { "name": "owner" } })).unwrap();
    let owner = maps.create(&PostParams::default(), &owner).await.unwrap();
    let child = json!({ "metadata": { "name": "child", "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
    }] } });
    let child = serde_json::from_value(child).unwrap();
    maps.create(&PostParams::default(), &child).await.unwrap();

    maps.delete("owner", &DeleteParams::background()).await.unwrap();

    eventually("the child is deleted", async || maps.get_opt("child").await.unwrap().is_none())
        .await;
}

#[tokio::test]
async fn an_api_server_that_returns_has_the_same_address_and_data() {
    let options = ControlPlaneOptions { controller_manager: false, ..Default::default() };
    let plane = ControlPlane::start(options).await.unwrap();
    let scope = plane.scope("restart").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(scope.client(), &scope.namespace);
    let map = serde_json::from_value(json!({ "metadata": { "name": "kept" } })).unwrap();
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    let mut watch = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    crate::added(&mut watch).await;

    plane.stop_api_server().await;
    while let Some(Ok(_)) = watch.next().await {}
    assert!(maps.get("kept").await.is_err());
    plane.start_api_server().await.unwrap();

    let kept = maps.get("kept").await.unwrap();
    assert_eq!(kept.metadata.uid, created.metadata.uid);
    plane.stop().await;
}

#[tokio::test]
async fn a_controller_manager_restarts_and_works() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let before = plane.processes();

    plane.restart_controller_manager().await.unwrap();

    let after = plane.processes();
    let collector = |processes: &[(Binary, u32)]| {
        processes.iter().find(|(part, _)| *part == Binary::KubeControllerManager).unwrap().1
    };
    assert_ne!(collector(&before), collector(&after));
    let scope = plane.scope("collector").await.unwrap();
    let namespaces = Api::<Namespace>::all(scope.client());
    namespaces.delete(&scope.namespace, &DeleteParams::default()).await.unwrap();
    eventually("the namespace is deleted", async || {
        namespaces.get_opt(&scope.namespace).await.unwrap().is_none()
    })
    .await;
    plane.stop().await;
}

#[tokio::test]
async fn stop_leaves_no_process_and_no_data() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let processes: Vec<_> = plane.processes().into_iter().map(|(_, id)| id).collect();
    let data = plane.data();
    assert_eq!(processes.len(), 3);
    assert!(processes.iter().all(|id| is_running(*id)));

    plane.stop().await;

    assert!(!processes.iter().any(|id| is_running(*id)));
    assert!(!data.exists());
}

/// Environment variable of the process that is killed.
const VICTIM: &str = "PILOTLIGHT_TEST_VICTIM";
const VICTIM_TEST: &str = "control_plane::victim";

#[tokio::test]
async fn a_killed_parent_leaves_no_process_and_no_data() {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([VICTIM_TEST, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let described = tokio::task::spawn_blocking(move || {
        lines.filter_map(|line| line.split_once("victim: ").map(|(_, it)| it.to_owned())).next()
    });
    let described = time::timeout(DEADLINE * 2, described).await.unwrap().unwrap().unwrap();
    let (data, processes) = described.split_once('|').unwrap();
    let data = PathBuf::from(data);
    let processes: Vec<u32> = processes.split(',').map(|id| id.parse().unwrap()).collect();
    assert_eq!(processes.len(), 3);
    assert!(processes.iter().all(|id| is_running(*id)) && data.exists());

    victim.kill().unwrap();
    victim.wait().unwrap();

    eventually("processes and data are gone", async || {
        !processes.iter().any(|id| is_running(*id)) && !data.exists()
    })
    .await;
}

/// Child process of [`a_killed_parent_leaves_no_process_and_no_data`].
#[tokio::test]
#[ignore = "runs inside another test, which kills it"]
async fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let plane = ControlPlane::shared();
    let processes: Vec<_> = plane.processes().into_iter().map(|(_, id)| id.to_string()).collect();
    writeln!(io::stdout(), "victim: {}|{}", plane.data().display(), processes.join(",")).unwrap();
    std::future::pending::<()>().await;
}

/// Returns whether a process runs. A zombie, which has ended but was not waited for, does not.
fn is_running(id: u32) -> bool {
    let Ok(stat) = fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")) else {
        return false;
    };
    stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
