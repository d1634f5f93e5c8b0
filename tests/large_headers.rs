//! Objects with more labels than a cache keeps, on both servers: memory stays small, and other
//! objects are served.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use pilotlight::{
    informer::{
        InformerKey, InformerOptions, InformerSet, Interest, Interests, ObjectKey, Subscription,
    },
    kind::{Scope, ServedType},
};
use serde_json::json;

use crate::support::Server;

/// Number of objects with large labels. Without a limit, a cache would keep 24 MB of them.
const LARGE: usize = 24;
/// Labels of such an object: about as many as the API server stores.
const LABELS: usize = 15_000;

#[tokio::test]
async fn objects_of_large_labels_take_no_memory_on_the_simulated_server() {
    objects_of_large_labels_take_no_memory(Server::simulated(), "large-labels-simulated").await;
}

#[tokio::test]
async fn objects_of_large_labels_take_no_memory_on_a_real_server() {
    objects_of_large_labels_take_no_memory(Server::real(), "large-labels").await;
}

async fn objects_of_large_labels_take_no_memory(server: Server<'static>, name: &str) {
    let scope = server.scope(name).await;
    let maps = Api::<ConfigMap>::namespaced(scope.client(), &scope.namespace);
    for number in 0..LARGE {
        create(&maps, &format!("large-{number}"), LABELS).await;
    }
    create(&maps, "small", 1).await;

    // Most of the large objects concern no subscriber.
    let set = InformerSet::new(scope.client(), InformerOptions::default());
    let served = ServedType::of::<ConfigMap>(Scope::Namespaced);
    let mut key = InformerKey::new(served.identity.clone());
    key.namespace = Some(scope.namespace.as_str().into());
    let of_name = |name: &str| Interest::Named(ObjectKey::namespaced(&*scope.namespace, name));
    let deliver = vec![of_name("small"), of_name("large-0")];
    let interests = Interests { deliver, whole: Vec::new() };
    let mut subscription = set.subscribe_to(&served, key, interests);
    assert_eq!(&*subscription.next().await.unwrap().key.name, "small");
    subscription.drained().await;

    let status = set.status().remove(0);
    assert!(status.accounted < 1 << 20, "{} bytes", status.accounted);
    assert_eq!(status.quarantined.len(), LARGE);
    let error = &status.quarantined[0];
    assert_eq!(error.field, "metadata");
    assert!(error.reason.starts_with("labels"), "{error}");

    // By the watch as well.
    create(&maps, "late", LABELS).await;
    shorten(&maps, "small").await;
    assert_eq!(changed(&mut subscription).await, "small");
    let status = set.status().remove(0);
    assert!(status.accounted < 1 << 20, "{} bytes", status.accounted);
    assert_eq!(status.quarantined.len(), LARGE + 1);

    shorten(&maps, "large-0").await;
    assert_eq!(changed(&mut subscription).await, "large-0");
    assert_eq!(set.status()[0].quarantined.len(), LARGE);
}

async fn create(maps: &Api<ConfigMap>, name: &str, labels: usize) {
    let value = "v".repeat(63);
    let labels: BTreeMap<_, _> =
        (0..labels).map(|number| (format!("k{number}"), value.clone())).collect();
    let metadata =
        ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() };
    let map = ConfigMap { metadata, ..Default::default() };
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// Removes the labels of an object.
async fn shorten(maps: &Api<ConfigMap>, name: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "labels": null } }));
    maps.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Returns the name of the next object that changes.
async fn changed(subscription: &mut Subscription) -> String {
    subscription.next().await.unwrap().key.name.to_string()
}
