//! Priority of the manager's requests at the API server.

use kube::client::Body;

use super::*;

/// Uid of the FlowSchema that the API server applied to a request of this client.
async fn schema_of(client: &Client, path: &str) -> String {
    let request = http::Request::get(path).body(Body::empty()).unwrap();
    let response = client.send(request).await.unwrap();
    response.headers()["x-kubernetes-pf-flowschema-uid"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn lease_has_the_priority_of_elections_and_other_requests_have_their_own() {
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/pilotlight/leases/metacontroller";
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()) {
        apply(&client, &path).await;
    }
    let gvk = GroupVersionKind::gvk("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema");
    let (resource, _) = discovery::pinned_kind(&client, &gvk).await.unwrap();
    let schemas = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let election = schemas.get("pilotlight-leader-election").await.unwrap();
    let others = schemas.get("pilotlight").await.unwrap();
    let token = plane.service_account_token(NAMESPACE, "pilotlight").await.unwrap();
    let manager = Client::try_from(plane.token_config(&token)).unwrap();

    // The API server takes up new schemas by a watch.
    let applied = async {
        while schema_of(&manager, LEASE).await != election.uid().unwrap() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, applied).await.expect("the schema of the lease applies");

    for path in ["/api/v1/configmaps", "/api/v1/namespaces/hooks/configmaps", "/apis"] {
        assert_eq!(schema_of(&manager, path).await, others.uid().unwrap(), "{path}");
    }
    let of_another = LEASE.replace("pilotlight", "hooks");
    assert_eq!(schema_of(&manager, &of_another).await, others.uid().unwrap());
    let levels = [&election, &others]
        .map(|schema| schema.data["spec"]["priorityLevelConfiguration"]["name"].clone());
    assert_eq!(levels, ["leader-election", "workload-high"]);
    plane.stop().await;
}
