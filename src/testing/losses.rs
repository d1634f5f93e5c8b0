//! What is lost: the loss oracle.
//!
//! A [`Recorder`] watches the server from outside, with a plain client of its own. A workload runs
//! once without faults and is recorded, then with faults; both times the same must have come of it:
//! each object created and deleted as often, and the same in the end. What differs between two runs
//! without faults, such as uids and times, is masked.
//!
//! ```no_run
//! # use pilotlight::testing::{Mask, Recorder, Recording};
//! # async fn example(client: kube::Client, resource: kube::core::ApiResource)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # async fn workload() {}
//! let mut recordings = Vec::new();
//! for namespace in ["calm-1", "calm-2", "stormy"] {
//!     let mut recorder = Recorder::new(client.clone()).alias(namespace, "NAMESPACE");
//!     recorder.watch(&resource, Some(namespace)).await?;
//!     workload().await; // The last time with faults.
//!     recordings.push(recorder.finish().await?);
//! }
//! let [calm, again, stormy] = &recordings[..] else { unreachable!() };
//! Mask::default().learn(calm, again).assert_same(calm, stormy);
//! # Ok(())
//! # }
//! ```

mod mask;
mod recording;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
    core::{ApiResource, DynamicObject, ObjectList},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

pub use self::{
    mask::{Difference, Differences, Mask},
    recording::{History, ObjectKey, Recording},
};
use super::Error;

/// How long a recorder waits until it has seen what a list shows.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts at a server that does not answer.
const BREATH: Duration = Duration::from_millis(50);

/// Records what becomes of objects, as the server tells it. It belongs to the runtime in which it
/// is made.
pub struct Recorder {
    client: Client,
    aliases: Vec<(String, String)>,
    state: Arc<Mutex<Recording>>,
    changes: watch::Sender<u64>,
    watched: Vec<(Api<DynamicObject>, ApiResource)>,
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let types: Vec<_> = self.watched.iter().map(|(_, resource)| &resource.plural).collect();
        f.debug_struct("Recorder").field("types", &types).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that asks through this client, which no fault may touch.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            aliases: Vec::new(),
            state: Arc::default(),
            changes: watch::Sender::default(),
            watched: Vec::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Writes `to` wherever an object or its name says `from`: for namespaces and API groups that
    /// are others in every run.
    #[must_use]
    pub fn alias(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.aliases.push((from.into(), to.into()));
        self
    }

    /// Records objects of this type, in one namespace or in all of them. What exists when this
    /// returns does not count as created.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server does not let them be listed.
    pub async fn watch(
        &mut self,
        resource: &ApiResource,
        namespace: Option<&str>,
    ) -> Result<(), Error> {
        let client = self.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let listed = list(&api, format!("listing {} to record them", resource.plural)).await?;
        let version = listed.metadata.resource_version.unwrap_or_default();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for object in &listed.items {
                state.existed(resource, object);
            }
        }
        let (state, changes) = (Arc::clone(&self.state), self.changes.clone());
        let (watching, of_type) = (api.clone(), resource.clone());
        self.tasks.spawn(async move { record(watching, of_type, version, state, changes).await });
        self.watched.push((api, resource.clone()));
        Ok(())
    }

    /// What was recorded so far.
    pub fn so_far(&self) -> Recording {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone().renamed(&self.aliases)
    }

    /// Waits until this holds of what was recorded so far; it is asked after every event.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Recording) -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition(&self.so_far()) {
            // Never an error: the sender lives as long as this recorder.
            changes.changed().await.ok();
        }
    }

    /// Ends the recording once it has everything that the server shows now.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server does not answer, [`Error::Timeout`] when the recorder's watch
    /// does not catch up within 30 s.
    pub async fn finish(mut self) -> Result<Recording, Error> {
        for (api, resource) in &self.watched {
            let what = format!("listing {} at the end of a recording", resource.plural);
            let listed = list(api, what).await?;
            let version = listed.metadata.resource_version.as_deref();
            let version = version.and_then(|it| it.parse().ok()).unwrap_or_default();
            let caught_up = async {
                let mut changes = self.changes.subscribe();
                let behind = || {
                    let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    !state.shows(resource, &listed.items, version)
                };
                while behind() {
                    changes.changed().await.ok();
                }
            };
            let late = |_| Error::Timeout {
                what: format!("the last event of {}", resource.plural),
                waited: PATIENCE,
            };
            time::timeout(PATIENCE, caught_up).await.map_err(late)?;
        }
        self.tasks.shutdown().await;
        Ok(self.so_far())
    }
}

/// Lists, also where the server is not ready yet: a type that has just begun to be served answers
/// 429 for a moment.
async fn list(api: &Api<DynamicObject>, what: String) -> Result<ObjectList<DynamicObject>, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match api.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 429 && Instant::now() < deadline => {
                time::sleep(BREATH).await;
            }
            listed => return listed.map_err(Error::api(what)),
        }
    }
}

/// Follows a type until it is aborted. When history is lost, what happened meanwhile is found by
/// comparing.
async fn record(
    api: Api<DynamicObject>,
    resource: ApiResource,
    mut version: String,
    state: Arc<Mutex<Recording>>,
    changes: watch::Sender<u64>,
) {
    let change = |change: &dyn Fn(&mut Recording)| {
        change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        changes.send_modify(|count| *count += 1);
    };
    loop {
        let Ok(watch) = api.watch(&WatchParams::default(), &version).await else {
            time::sleep(BREATH).await;
            // Too old, perhaps, or the server is restarting.
            if let Ok(listed) = api.list(&ListParams::default()).await {
                change(&|state| state.relisted(&resource, &listed.items));
                version = listed.metadata.resource_version.unwrap_or_default();
            }
            continue;
        };
        let mut watch = watch.boxed();
        while let Ok(Some(event)) = watch.try_next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.resource_version().unwrap_or(version);
                    change(&|state| state.applied(&resource, &object));
                }
                WatchEvent::Deleted(object) => {
                    version = object.resource_version().unwrap_or(version);
                    change(&|state| state.deleted(&resource, &object));
                }
                WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                WatchEvent::Error(_) => {
                    if let Ok(listed) = api.list(&ListParams::default()).await {
                        change(&|state| state.relisted(&resource, &listed.items));
                        version = listed.metadata.resource_version.unwrap_or_default();
                    }
                    break;
                }
            }
        }
    }
}
