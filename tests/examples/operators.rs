//! Examples `echo` and `memcached`: whole operators, as they are compared in `docs/library.md`.

use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::api::{ObjectMeta, Patch, PatchParams};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;

/// Returns a ConfigMap with one entry.
fn config(name: &str, key: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some([(key.to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// Writes the status of a Deployment in the place of its controller.
async fn become_ready(deployments: &Api<Deployment>, name: &str, replicas: i32) {
    let status = json!({"status": {"readyReplicas": replicas, "replicas": replicas}});
    let by = PatchParams::default();
    deployments.patch_status(name, &by, &Patch::Merge(status)).await.unwrap();
}

/// Deletes a Deployment whose owner is gone, unless the garbage collector of the plane has.
async fn collect(deployments: &Api<Deployment>, name: &str) {
    match deployments.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => panic!("{error}"),
    }
    until(deployments, name, "gone", |it| it.is_none()).await;
}

async fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn operator_with_a_finalizer_owns_deployments_and_follows_its_configuration() {
    build();
    let plane = ControlPlane::shared();
    let client = plane.client().unwrap();
    let scope = plane.scope("echo").await.unwrap();
    let echoes = api(&client, "Echo", "echoes", &scope.namespace);
    let deployments = Api::<Deployment>::namespaced(client.clone(), &scope.namespace);
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), &scope.namespace);
    let mut echo = Example::start("echo", plane.kubeconfig());
    for epoch in ["epoch=1", "epoch=2"] {
        install(&client, &crd_of("echo")).await;
        echo.says(&["running", "controller=echoes", epoch]).await;

        create(&echoes, "Echo", "a", json!({"replicas": 2})).await;
        let replicas = |it: Option<&Deployment>| it.and_then(|it| it.spec.as_ref()?.replicas);
        until(&deployments, "a", "two replicas", |it| replicas(it) == Some(2)).await;
        let finalizers = echoes.get("a").await.unwrap().finalizers().to_vec();
        assert_eq!(finalizers, ["example.com/echo"]);

        let image = config("a", "image", "example.com/echo:1");
        config_maps.create(&PostParams::default(), &image).await.unwrap();
        become_ready(&deployments, "a", 1).await;
        let status = json!({"image": "example.com/echo:1", "readyReplicas": 1});
        let has = |it: Option<&DynamicObject>| it.is_some_and(|it| it.data["status"] == status);
        until(&echoes, "a", "the status has image and replicas", has).await;

        drop(echoes.delete("a", &DeleteParams::default()).await.unwrap());
        echo.says(&["cleaned up", "name=\"a\""]).await;
        until(&echoes, "a", "gone", |it| it.is_none()).await;
        collect(&deployments, "a").await;
        drop(config_maps.delete("a", &DeleteParams::default()).await.unwrap());
        remove(&client, &crd_of("echo")).await;
        echo.says(&["done", "controller=echoes", epoch, "TypeGone"]).await;
    }
    echo.end_by("-TERM").await;
}

#[tokio::test]
async fn elected_operator_reports_a_condition_and_serves_probes_and_metrics() {
    build();
    let plane = ControlPlane::shared();
    let client = plane.client().unwrap();
    let scope = plane.scope("memcached").await.unwrap();
    let memcacheds = api(&client, "Memcached", "memcacheds", &scope.namespace);
    let deployments = Api::<Deployment>::namespaced(client.clone(), &scope.namespace);
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), &scope.namespace);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = port.to_string();
    let mut memcached = Example::with("memcached", plane.kubeconfig(), &[], &address);
    for epoch in ["epoch=1", "epoch=2"] {
        install(&client, &crd_of("memcached")).await;
        memcached.says(&["running", "controller=memcacheds", epoch]).await;

        create(&memcacheds, "Memcached", "a", json!({"size": 2})).await;
        let command = |it: Option<&Deployment>| {
            let spec = it.and_then(|it| it.spec.as_ref()?.template.spec.clone());
            spec.and_then(|spec| spec.containers[0].command.clone()).unwrap_or_default()
        };
        until(&deployments, "a", "a command", |it| command(it).len() == 2).await;
        config_maps.create(&PostParams::default(), &config("a", "flags", "-v")).await.unwrap();
        until(&deployments, "a", "its flag", |it| command(it).ends_with(&["-v".into()])).await;

        let available = |expected: &'static str| {
            move |it: Option<&DynamicObject>| {
                let condition = it.map(|it| &it.data["status"]["conditions"][0]);
                condition.is_some_and(|it| it["type"] == "Available" && it["status"] == expected)
            }
        };
        until(&memcacheds, "a", "not available", available("False")).await;
        become_ready(&deployments, "a", 2).await;
        until(&memcacheds, "a", "available", available("True")).await;

        let ready = page(&address, "/readyz?verbose").await;
        assert!(ready.contains("[+]leader-election leads\n"), "{ready}");
        assert!(ready.contains("[+]controller/memcacheds Running"), "{ready}");
        let metrics = page(&address, "/metrics").await;
        assert!(metrics.contains("controller=\"memcacheds\",result=\"success\""), "{metrics}");
        assert!(metrics.contains("rest_client_requests_total{"), "{metrics}");
        let leases = Api::<Lease>::namespaced(client.clone(), "default");
        assert!(
            leases.get("memcached-example").await.unwrap().spec.unwrap().holder_identity.is_some()
        );

        remove(&client, &crd_of("memcached")).await;
        memcached.says(&["done", "controller=memcacheds", epoch, "TypeGone"]).await;
        // Before that, the operator would create the Deployment again.
        collect(&deployments, "a").await;
        drop(config_maps.delete("a", &DeleteParams::default()).await.unwrap());
    }
    memcached.end_by("-TERM").await;
}

/// Reads the table of `docs/library.md`: example, its lines, original, lines of the original.
#[test]
fn operators_are_as_long_as_the_guide_says_and_no_longer_than_their_originals() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(root.join("docs/library.md")).unwrap();
    let mut checked = 0;
    for row in guide.lines() {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (Some(original), Some(file)) = (cells.get(4), cells.get(1)) else { continue };
        let Some((_, file)) = file.split_once("](../") else { continue };
        let (Ok(said), Ok(original)) = (cells[2].parse::<usize>(), original.parse()) else {
            continue;
        };
        let program = std::fs::read_to_string(root.join(file.trim_end_matches(')'))).unwrap();
        assert_eq!(program.lines().count(), said, "{file}");
        assert!(said <= original, "{file} is longer than its original");
        checked += 1;
    }
    assert_eq!(checked, 3, "rows of the table");
}
