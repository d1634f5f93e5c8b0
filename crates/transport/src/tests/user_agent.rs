//! `User-Agent` of each sort of request.

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ConfigMap},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, WatchParams};
use serde_json::json;

use super::*;
use crate::server::Received;

/// Lists, watches, writes, renews a lease and discovers; the requests that the server received.
async fn requests(product: Option<&str>) -> Vec<Received> {
    let server = Server::start(H2, 100).await;
    let product = product.map(str::to_owned);
    let options = TransportOptions { product, ..TransportOptions::default() };
    let client = client(server.config(), options).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "a");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "a");
    let map = ConfigMap {
        metadata: ObjectMeta { name: Some("b".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let patch = Patch::Merge(json!({}));

    // The responses of this server are no objects.
    drop(maps.list(&ListParams::default()).await);
    drop(maps.watch(&WatchParams::default(), "0").await);
    drop(maps.create(&Default::default(), &map).await);
    drop(maps.patch("b", &PatchParams::default(), &patch).await);
    drop(maps.delete("b", &Default::default()).await);
    drop(leases.patch("c", &PatchParams::default(), &patch).await);
    drop(Api::<CustomResourceDefinition>::all(client.clone()).list(&ListParams::default()).await);
    drop(client.list_api_groups().await);
    server.received()
}

#[tokio::test]
async fn each_kind_of_request_has_both_products_in_its_user_agent() {
    let library = format!("pilotlight/{} (", env!("CARGO_PKG_VERSION"));
    for (product, expected) in
        [(None, library.clone()), (Some("myoperator/1.0"), format!("myoperator/1.0 {library}"))]
    {
        let received = requests(product).await;

        for sort in [
            "GET /api/v1/namespaces/a/configmaps?",
            "GET /api/v1/namespaces/a/configmaps?&watch=true",
            "POST /api/v1/namespaces/a/configmaps",
            "PATCH /api/v1/namespaces/a/configmaps/b",
            "DELETE /api/v1/namespaces/a/configmaps/b",
            "PATCH /apis/coordination.k8s.io/v1/namespaces/a/leases/c",
            "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "GET /apis",
        ] {
            let is_sent = received.iter().any(|received| received.line.starts_with(sort));
            assert!(is_sent, "{sort} is not sent: {received:#?}");
        }
        for received in received {
            assert!(received.user_agent.starts_with(&expected), "{received:?}");
        }
    }
}
