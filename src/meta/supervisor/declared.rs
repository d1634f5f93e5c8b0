//! State of the declared controllers that the supervisor keeps, and the changes that it has yet to
//! handle.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::status::{Acceptance, View};
use crate::{
    kind::TypeRef,
    manager::RunnableStatus,
    meta::{
        api::ControllerStatus, definition::Definition, parent::health::Health, recorder::Severity,
        runnable::DeclaredRunnable,
    },
};

/// Maximum number of pending Events of one controller; beyond it the oldest is dropped, as in a
/// crash loop.
const EVENTS: usize = 32;

/// State of one declared controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeclaredState {
    /// uid of the object.
    pub(crate) uid: Arc<str>,
    /// Run that the manager received last.
    pub(crate) run: Option<Run>,
    /// Previous run; continues while `run` waits for its types.
    pub(crate) before: Option<Run>,
    /// Parent types whose objects may have the finalizer of the controller.
    pub(crate) finalizes: Vec<TypeRef>,
    /// uid of the CRD under which the object was last seen.
    pub(crate) seen_under: Option<Arc<str>>,
    /// Time since which the object is missing under another CRD.
    pub(crate) missing_since: Option<Instant>,
    /// Rejection that the last Event reported.
    pub(crate) rejected: Option<String>,
    /// Event about waiting that was published last.
    pub(crate) waits: Option<ControllerEvent>,
    /// Time at which the object was first seen without a status.
    pub(crate) seen: Option<Instant>,
    /// Status that was written last, and when.
    pub(crate) written: Option<(ControllerStatus, Instant)>,
    /// Present if the server dropped fields of the written status.
    pub(crate) pruned: Option<PrunedStatus>,
    /// Result of the last check of the object.
    pub(crate) checked: Option<CheckedObject>,
}

/// Status that the schema of the CRD has no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrunedStatus {
    /// Generation of the CRD when the status was written; `None` if it was not known.
    pub(crate) crd_generation: Option<i64>,
    /// Time until the status is written again.
    pub(crate) retry: Duration,
}

/// Result of checking one generation of an object.
#[derive(Clone, Debug)]
pub(crate) struct CheckedObject {
    /// The acceptance.
    pub(crate) acceptance: Acceptance,
    /// Generation of the object.
    pub(crate) generation: i64,
    /// Plural and `apiVersion` of each parent type that it names.
    pub(crate) parents: Vec<(String, String)>,
}

impl DeclaredState {
    /// Returns the state of another object of the same name, which takes over the runnable, but not
    /// the recorded status and Events.
    pub(crate) fn taken_over_by(self, uid: Arc<str>) -> Self {
        let Self { run, before, finalizes, .. } = self;
        Self { uid, run, before, finalizes, ..Self::default() }
    }

    /// Records the parent types of a definition with a finalize hook.
    pub(crate) fn note_finalizes(&mut self, definition: &Definition) {
        if definition.finalize.is_some() {
            self.note_finalized_types(definition.parent_types().cloned());
        }
    }

    /// Records parent types that may have the finalizer.
    pub(crate) fn note_finalized_types(&mut self, parents: impl IntoIterator<Item = TypeRef>) {
        for parent in parents {
            if !self.finalizes.iter().any(|known| has_same_objects(known, &parent)) {
                self.finalizes.push(parent);
            }
        }
    }

    /// Returns the types of [`DeclaredState::finalizes`] that the run does not have, at any version.
    pub(crate) fn earlier_parents(&self) -> Vec<TypeRef> {
        let Some(run) = &self.run else { return Vec::new() };
        let is_current = |known: &TypeRef| {
            run.definition.parent_types().any(|parent| has_same_objects(known, parent))
        };
        self.finalizes.iter().filter(|known| !is_current(known)).cloned().collect()
    }

    /// Status that the object should have now, given that of its runnable.
    pub(crate) fn status(
        &self,
        checked: &CheckedObject,
        run: Option<&RunnableStatus>,
        previous: &ControllerStatus,
        now: Timestamp,
    ) -> ControllerStatus {
        let waits = run.is_some_and(|run| run.pending.is_some());
        // Hook health is that of the run whose hooks are called: the previous one while an edit
        // waits.
        let shown = self.before.as_ref().filter(|_| waits).or(self.run.as_ref());
        let health = shown.map(|run| run.health.borrow().clone());
        View {
            generation: checked.generation,
            acceptance: &checked.acceptance,
            definition: shown.map(|run| &*run.definition),
            run,
            health: &health.unwrap_or_default(),
            previous,
            now,
        }
        .status()
    }
}

/// Returns whether two references name one resource, which has the same objects at all versions.
fn has_same_objects(one: &TypeRef, other: &TypeRef) -> bool {
    (&one.group, &one.name) == (&other.group, &other.name)
}

/// Severity, reason and text of an Event of a controller.
pub(crate) type ControllerEvent = (Severity, &'static str, String);

/// Specification and runnable that the manager received.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Executable specification.
    pub(crate) definition: Arc<Definition>,
    /// Health of the hook.
    pub(crate) health: watch::Receiver<Health>,
    /// Runnable of the definition, as the manager has it.
    pub(crate) runnable: Arc<DeclaredRunnable>,
}

/// All declared controllers, and the names of those with unhandled changes.
///
/// The work queue runs no two reconciles of one name at the same time. An entry can therefore be
/// copied, changed and put back without losing a concurrent change.
#[derive(Debug, Default)]
pub(crate) struct DeclaredStates {
    state: Mutex<ChangeSet>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct ChangeSet {
    declared: BTreeMap<Arc<str>, DeclaredState>,
    changed: BTreeSet<Arc<str>>,
    events: BTreeMap<Arc<str>, Vec<ControllerEvent>>,
}

impl DeclaredStates {
    /// Names of all declared controllers.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.lock().declared.keys().cloned().collect()
    }

    /// Enqueues a controller whose object or runnable has changed.
    pub(crate) fn enqueue(&self, name: &str) {
        self.lock().changed.insert(name.into());
        self.notify.notify_one();
    }

    /// Returns the next enqueued controller. Cancel safe.
    pub(crate) async fn next(&self) -> Arc<str> {
        loop {
            let notified = self.notify.notified();
            let next = self.lock().changed.pop_first();
            if let Some(name) = next {
                return name;
            }
            notified.await;
        }
    }

    /// Stores an Event, to be written by the next reconcile.
    pub(crate) fn note_event(&self, name: &str, event: ControllerEvent) {
        let mut state = self.lock();
        if !state.declared.contains_key(name) {
            return;
        }
        let events = state.events.entry(name.into()).or_default();
        if events.len() == EVENTS {
            events.remove(0);
        }
        events.push(event);
        drop(state);
        self.enqueue(name);
    }

    /// Removes and returns the stored Events, in their order.
    pub(crate) fn take_events(&self, name: &str) -> Vec<ControllerEvent> {
        self.lock().events.remove(name).unwrap_or_default()
    }

    /// Returns the state of a controller; adds an empty one if there is none.
    pub(crate) fn state(&self, name: &Arc<str>) -> DeclaredState {
        self.lock().declared.entry(name.clone()).or_default().clone()
    }

    /// Returns the state of a controller, if there is one.
    pub(crate) fn known(&self, name: &str) -> Option<DeclaredState> {
        self.lock().declared.get(name).cloned()
    }

    /// Stores the state of a controller.
    pub(crate) fn put(&self, name: &Arc<str>, declared: DeclaredState) {
        let replaced = self.lock().declared.insert(name.clone(), declared);
        // Without the lock: a run may hold an endpoint, whose drop locks the credentials.
        drop(replaced);
    }

    /// Changes the state of a controller, if there is one.
    pub(crate) fn update(&self, name: &str, change: impl FnOnce(&mut DeclaredState)) {
        if let Some(declared) = self.lock().declared.get_mut(name) {
            change(declared);
        }
    }

    /// Removes the state of a controller.
    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.lock();
        let removed = state.declared.remove(name);
        state.events.remove(name);
        state.changed.remove(name);
        drop(state);
        // Without the lock, as in `put`.
        drop(removed);
    }

    fn lock(&self) -> MutexGuard<'_, ChangeSet> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kube::Client;
    use serde_json::json;

    use super::*;
    use crate::{
        controller::{Cluster, ClusterOptions},
        meta::{
            api::controller_kind::ControllerKind,
            hooks::{budget::ResponseBudget, counted::Hooks},
            recorder::{EventLimit, EventRecorder},
        },
    };

    /// Records at its drop whether the changes were locked.
    struct DropProbe {
        changes: Arc<DeclaredStates>,
        locked: Arc<Mutex<Vec<bool>>>,
    }

    impl Drop for DropProbe {
        fn drop(&mut self) {
            self.locked.lock().push(self.changes.state.is_locked());
        }
    }

    /// State with a run that holds the probe.
    fn declared(probe: DropProbe) -> DeclaredState {
        let object = json!({
            "metadata": {"name": "a"},
            "spec": {
                "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
                "hooks": {"sync": {"webhook": {"url": "http://scripted/"}}},
            },
        });
        let object = Bytes::from(object.to_string());
        let definition = Arc::new(Definition::parse(ControllerKind::Composite, &object).unwrap());
        let service = tower::service_fn(|_request: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let (cluster, _) = Cluster::new(Client::new(service, "default"), ClusterOptions::default());
        let recorder = EventRecorder::new(cluster.unfenced_client().clone(), EventLimit::default());
        let hooks = Hooks::new(Vec::new(), ResponseBudget::default().controller("a"));
        let changed = move || drop(probe.changes.names());
        let runnable = DeclaredRunnable::new(
            "a".into(),
            Arc::clone(&definition),
            hooks,
            &cluster,
            recorder,
            &Arc::default(),
            changed,
        );
        let runnable = Arc::new(runnable.unwrap());
        let run = Run { definition, health: runnable.health(), runnable };
        DeclaredState { run: Some(run), ..DeclaredState::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_and_removed_runs_are_dropped_without_the_lock() {
        let (changes, locked) = (Arc::new(DeclaredStates::default()), Arc::default());
        let probe = || DropProbe { changes: Arc::clone(&changes), locked: Arc::clone(&locked) };

        changes.put(&"a".into(), declared(probe()));
        changes.put(&"a".into(), declared(probe()));
        changes.remove("a");

        assert_eq!(*locked.lock(), [false, false], "a run may hold an endpoint, which has a lock");
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_is_delivered_once_and_never_lost() {
        let changes = DeclaredStates::default();
        changes.enqueue("b");
        changes.enqueue("a");
        changes.enqueue("a");

        assert_eq!(&*changes.next().await, "a");
        assert_eq!(&*changes.next().await, "b");
        let mut next = Box::pin(changes.next());
        assert!(futures::poll!(&mut next).is_pending());
        changes.enqueue("c");
        assert_eq!(&*next.await, "c");
    }

    #[test]
    fn events_of_a_crash_loop_are_bounded() {
        let changes = DeclaredStates::default();
        changes.put(&"a".into(), DeclaredState::default());

        for index in 0..100 {
            changes.note_event("a", (Severity::Normal, "Started", index.to_string()));
            changes.note_event("stranger", (Severity::Normal, "Started", String::new()));
        }

        let events = changes.take_events("a");
        assert_eq!(events.len(), EVENTS);
        assert_eq!(events.last().unwrap().2, "99");
        assert!(changes.take_events("a").is_empty());
        assert!(changes.take_events("stranger").is_empty());
    }
}
