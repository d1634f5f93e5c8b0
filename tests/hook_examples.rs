//! Examples with hooks in other languages, by the steps of their READMEs. The very files of the
//! hooks run; the tests write statuses in place of kubelets and other controllers.

mod blue_green;
mod configmap_propagation;
mod crd_roles;
mod indexed_job;
mod ordered_pods;
mod service_per_pod;
mod tenant;

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, WatchEvent, WatchParams},
};
use tokio::time::timeout;

use crate::support::{PATIENCE, until};

/// Waits until an object is deleted.
async fn gone(api: &Api<DynamicObject>, name: &str) {
    until(&format!("{name} is deleted"), async || match api.get_opt(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// Names of the first objects with these labels that were deleted since a version, in order.
async fn deleted(
    api: &Api<DynamicObject>,
    labels: &str,
    since: &str,
    number: usize,
) -> Vec<String> {
    let watch = api.watch(&WatchParams::default().labels(labels), since).await.unwrap();
    let deleted = watch.try_filter_map(async |event| match event {
        WatchEvent::Deleted(object) => Ok(Some(object.name_any())),
        WatchEvent::Added(_)
        | WatchEvent::Modified(_)
        | WatchEvent::Bookmark(_)
        | WatchEvent::Error(_) => Ok(None),
    });
    timeout(PATIENCE, deleted.take(number).try_collect()).await.unwrap().unwrap()
}
