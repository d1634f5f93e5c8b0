//! Input of the revisions of one controller: present while its definition has a rolling child type.
//!
//! The definition of a running controller may be replaced. Therefore the input is added and removed
//! by name, with the condition on its type.

use std::{collections::BTreeSet, mem::take, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    controller::{Builder, Context, Handler, InputHandle, InputState, Inputs, Request},
    discovery::TypeRegistry,
    informer::{MovingInterests, Store},
    kind::{ServedType, TypeRef},
    manager::{Readiness, Verdict, publish, some_of, type_served},
    meta::{api::ControllerRevision, parent::sync_error::SyncError},
};

/// Name of the input.
pub(crate) const REVISIONS: &str = "revisions";
/// Time for which a sync waits for the first list.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Input of the revisions of one controller.
#[derive(Debug)]
pub(crate) struct RevisionInput {
    // `None` while no child type is rolling.
    handle: Mutex<Option<InputHandle>>,
    // Met while no child type is rolling.
    unneeded: watch::Sender<Verdict>,
    // Parents whose sync found no list, to be enqueued when it is complete.
    waiting: Arc<Mutex<BTreeSet<Request>>>,
}

/// Listed revisions.
pub(crate) struct RevisionCache {
    pub(crate) served: Arc<ServedType>,
    pub(crate) store: Store,
    pub(crate) moving: Option<MovingInterests>,
}

impl Default for RevisionInput {
    fn default() -> Self {
        let unneeded = watch::Sender::new(Verdict::Met(Vec::new()));
        Self { handle: Mutex::default(), unneeded, waiting: Arc::default() }
    }
}

impl RevisionInput {
    /// Returns the condition that revisions are served. No epoch depends on their identity: the
    /// input follows that within the epoch.
    pub(crate) fn served(types: &TypeRegistry) -> Readiness {
        some_of([type_served(types, &TypeRef::of::<ControllerRevision>())])
    }

    /// Returns the condition that revisions are served, or no child type of the current definition
    /// is rolling.
    pub(crate) fn ready(&self, types: &TypeRegistry) -> Readiness {
        some_of([Readiness::published(self.unneeded.subscribe()), Self::served(types)])
    }

    /// Adds the input, unless it is there.
    pub(crate) fn add(&self, inputs: &Inputs) -> InputHandle {
        let mut handle = self.handle.lock();
        let add = || {
            let added =
                inputs.add(REVISIONS, |builder| describe(builder, Arc::clone(&self.waiting)));
            added.expect("one type under a name of its own is a valid input")
        };
        handle.get_or_insert_with(add).clone()
    }

    /// Adds or removes the input for the current definition.
    pub(crate) fn follow(&self, is_rolling: bool, inputs: &Inputs) {
        let unneeded = if is_rolling {
            let _added = self.add(inputs);
            // The reasons are those of the type.
            Verdict::Unmet(Vec::new())
        } else {
            if self.handle.lock().take().is_some() {
                inputs.remove_now(REVISIONS);
            }
            Verdict::Met(Vec::new())
        };
        publish(&self.unneeded, unneeded);
    }

    /// Returns the listed revisions. Waits a moment for the first list; after that the parent is
    /// enqueued when the list is complete.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn cache(
        &self,
        parent: &Request,
        context: &Context,
    ) -> Result<RevisionCache, SyncError> {
        // Without an input, another definition has just replaced the one of this sync, and the parent
        // is synced again.
        let handle = self.handle.lock().clone().ok_or(SyncError::Cancelled)?;
        if let Some(listed) = listed(&handle, context) {
            return Ok(listed);
        }
        self.waiting.lock().insert(parent.clone());
        tokio::select! {
            biased;
            started = handle.started() => started.map_err(|_ended| SyncError::Cancelled)?,
            () = context.cancelled() => return Err(SyncError::Cancelled),
            () = tokio::time::sleep(LIST_TIMEOUT) => {}
        }
        if let Some(listed) = listed(&handle, context) {
            self.waiting.lock().remove(parent);
            return Ok(listed);
        }
        let message = "ControllerRevisions are not listed".to_owned();
        Err(match (handle.state(), context.input_error(REVISIONS)) {
            (InputState::Pending(_), Some(error)) => {
                SyncError::Failed(format!("{message}: {error}"))
            }
            (InputState::Pending(why), None) => SyncError::Outdated(format!("{message}: {why}")),
            (InputState::Started | InputState::Ended, _) => SyncError::Outdated(message),
        })
    }

    /// Removes the interests of a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, parent: &Request, context: &Context) {
        if let Ok((_, Some(moving))) = context.claimed(REVISIONS) {
            moving.remove(parent);
        }
    }

    /// Forgets all parents at the end of an epoch.
    pub(crate) fn clear(&self) {
        self.waiting.lock().clear();
    }
}

/// Returns the revisions, if their list is complete.
fn listed(handle: &InputHandle, context: &Context) -> Option<RevisionCache> {
    let store =
        context.store_of(REVISIONS).ok().filter(|_| handle.state() == InputState::Started)?;
    let (served, moving) = context.claimed(REVISIONS).ok()?;
    Some(RevisionCache { served, store, moving })
}

/// Describes the input. Its changes sync no parent: own writes cause them, and each sync reads them.
fn describe(builder: Builder, waiting: Arc<Mutex<BTreeSet<Request>>>) -> Builder {
    let silent = Handler::delta(|_, _| {});
    // A revision without an owner is recognized by its content.
    let builder = builder.claims_type(TypeRef::of::<ControllerRevision>(), silent);
    let builder = builder.whole().optional();
    builder.on_synced(move |enqueue| {
        for parent in take(&mut *waiting.lock()) {
            enqueue.add(parent);
        }
    })
}
