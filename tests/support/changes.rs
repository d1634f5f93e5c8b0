//! Changes of the ConfigMaps of a namespace, in order.

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::timeout,
};

use super::PATIENCE;

/// Changes from the moment of [`Changes::watch`] on, such as `deleted boat-1`.
pub(crate) struct Changes {
    maps: Api<ConfigMap>,
    // Unbounded: a test has few changes, and must not delay the watch.
    seen: UnboundedReceiver<String>,
    _watch: JoinSet<()>,
}

impl Changes {
    pub(crate) async fn watch(client: Client, namespace: &str) -> Self {
        let maps = Api::<ConfigMap>::namespaced(client, namespace);
        let from = maps.list_metadata(&ListParams::default()).await.unwrap().metadata;
        let ((sender, seen), watched) = (unbounded_channel(), maps.clone());
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let version = from.resource_version.unwrap();
            let events = watched.watch(&WatchParams::default(), &version).await.unwrap();
            pin_mut!(events);
            while let Some(event) = events.next().await {
                let (act, child) = match event.unwrap() {
                    WatchEvent::Added(child) => ("added", child),
                    WatchEvent::Modified(child) => ("modified", child),
                    WatchEvent::Deleted(child) => ("deleted", child),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(error) => panic!("{error}"),
                };
                drop(sender.send(format!("{act} {}", child.name_any())));
            }
        });
        Self { maps, seen, _watch: watch }
    }

    /// Returns all changes that the server has made so far.
    pub(crate) async fn all(mut self) -> Vec<String> {
        let last = format!("last-{:x}", fastrand::u64(..));
        let metadata = ObjectMeta { name: Some(last.clone()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        self.maps.create(&PostParams::default(), &map).await.unwrap();
        let mut all = Vec::new();
        loop {
            let change = timeout(PATIENCE, self.seen.recv()).await.unwrap().unwrap();
            if change == format!("added {last}") {
                return all;
            }
            all.push(change);
        }
    }
}
