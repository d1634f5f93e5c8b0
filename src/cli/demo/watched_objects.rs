//! Plain watcher of kube, as the reference for the demo's times.

use std::{collections::BTreeMap, fmt::Debug, pin::Pin};

use anyhow::bail;
use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

type WatchEvents<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;

/// Watcher with the current objects.
pub(super) struct WatchedObjects<K> {
    events: WatchEvents<K>,
    objects: BTreeMap<String, K>,
}

impl<K> WatchedObjects<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// Starts a watcher and waits for its initial list, so that later changes arrive at once.
    pub(super) async fn begin(api: Api<K>) -> anyhow::Result<Self> {
        let mut watched = Self {
            events: Box::pin(watcher(api, watcher::Config::default())),
            objects: BTreeMap::new(),
        };
        while !matches!(watched.next().await?, Event::InitDone) {}
        Ok(watched)
    }

    /// Waits until an object fulfils `wanted`; returns the time.
    pub(super) async fn until(
        &mut self,
        name: &str,
        wanted: impl Fn(&K) -> bool,
    ) -> anyhow::Result<Instant> {
        while !self.objects.get(name).is_some_and(&wanted) {
            self.next().await?;
        }
        Ok(Instant::now())
    }

    /// Waits until an object is gone; returns the time.
    pub(super) async fn gone(&mut self, name: &str) -> anyhow::Result<Instant> {
        while self.objects.contains_key(name) {
            self.next().await?;
        }
        Ok(Instant::now())
    }

    async fn next(&mut self) -> anyhow::Result<Event<K>> {
        let Some(event) = self.events.next().await else { bail!("the watcher ended") };
        let event = event?;
        match &event {
            Event::Apply(object) | Event::InitApply(object) => {
                self.objects.insert(object.name_any(), object.clone());
            }
            Event::Delete(object) => drop(self.objects.remove(&object.name_any())),
            Event::Init => self.objects.clear(),
            Event::InitDone => {}
        }
        Ok(event)
    }
}
