//! Loss oracle: finds writes and objects that faults have lost.
//!
//! A [`Recorder`] watches the server with a separate client. A workload runs once without faults
//! and is recorded, then with faults. The result must be the same: each object created and deleted
//! as often, and equal in the end. Values that differ between two runs without faults, such as uids
//! and times, are masked.
//!
//! ```no_run
//! # use pilotlight_testing::{Mask, Recorder, Recording};
//! # async fn example(client: kube::Client, resource: kube::core::ApiResource)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! # async fn workload() {}
//! let mut recordings = Vec::new();
//! for namespace in ["fault-free-1", "fault-free-2", "faulty"] {
//!     let mut recorder = Recorder::new(client.clone()).alias(namespace, "NAMESPACE");
//!     recorder.watch(&resource, Some(namespace)).await?;
//!     workload().await; // The last time with faults.
//!     recordings.push(recorder.finish().await?);
//! }
//! let [expected, again, faulty] = &recordings[..] else { unreachable!() };
//! Mask::default().learn(expected, again).assert_same(expected, faulty);
//! # Ok(())
//! # }
//! ```

mod mask;
mod recording;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
    core::{ApiResource, DynamicObject, ObjectList},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

pub use self::{
    mask::{Mask, RecordingDifference, RecordingDifferences},
    recording::{History, RecordedKey, Recording},
};
use super::Error;

/// Time in which a recorder must see the objects of a list.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between attempts at a server that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Recorder of the changes of objects, from the server's events. It belongs to the runtime that
/// creates it.
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
    /// Creates a recorder with this client, which must not pass through faults.
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

    /// Replaces `from` by `to` in all objects and names: for namespaces and API groups that differ
    /// in every run.
    #[must_use]
    pub fn alias(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.aliases.push((from.into(), to.into()));
        self
    }

    /// Records objects of this type, in one namespace or in all of them. Objects that exist when
    /// this returns do not count as created.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses to list them.
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
            let mut state = self.state.lock();
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

    /// Returns the recording so far.
    pub fn so_far(&self) -> Recording {
        let state = self.state.lock();
        state.clone().renamed(&self.aliases)
    }

    /// Waits until the condition holds for the recording so far; it is evaluated after every event.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Recording) -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition(&self.so_far()) {
            // The sender lives as long as this recorder, so that an error is impossible.
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
                    let state = self.state.lock();
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

/// Lists objects, with retries while the server is not ready: a new type answers 429 for a moment.
async fn list(api: &Api<DynamicObject>, what: String) -> Result<ObjectList<DynamicObject>, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match api.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 429 && Instant::now() < deadline => {
                time::sleep(RETRY_INTERVAL).await;
            }
            listed => return listed.map_err(Error::api(what)),
        }
    }
}

/// Follows a type until it is aborted. After a loss of history the changes since are found by a
/// comparison.
async fn record(
    api: Api<DynamicObject>,
    resource: ApiResource,
    mut version: String,
    state: Arc<Mutex<Recording>>,
    changes: watch::Sender<u64>,
) {
    let change = |change: &dyn Fn(&mut Recording)| {
        change(&mut state.lock());
        changes.send_modify(|count| *count += 1);
    };
    loop {
        let Ok(watch) = api.watch(&WatchParams::default(), &version).await else {
            time::sleep(RETRY_INTERVAL).await;
            // The version may be too old, or the server restarts.
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
