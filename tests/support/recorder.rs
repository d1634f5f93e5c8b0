//! Reconciler that records its objects and acts as scripted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Api,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams},
};
use pilotlight::{
    controller::{Context, Outcome, ReconcileError, Reconciler, Request},
    informer::{Object, Store},
    kind::TypeRef,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::PATIENCE;

/// Object as the reconciler saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) controller: String,
    pub(crate) epoch: u64,
    pub(crate) name: String,
    /// `None` if the object is gone.
    pub(crate) uid: Option<String>,
    /// `spec.size`, if it exists and is a number.
    pub(crate) size: Option<i64>,
    pub(crate) stale: bool,
    pub(crate) at: Instant,
}

/// Action of a reconcile after it has recorded its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Panic,
    /// Requeues the object after this time.
    Again(Duration),
    /// Removes the finalizers of an object that is being deleted, with the epoch's client.
    Release,
}

/// Records seen objects. Clones share the record.
#[derive(Clone, Debug)]
pub(crate) struct RecordingReconciler {
    type_ref: TypeRef,
    seen: watch::Sender<Vec<Seen>>,
    acts: Arc<Mutex<BTreeMap<String, Act>>>,
    stores: Arc<Mutex<BTreeMap<u64, Store>>>,
}

/// Typed object of the tests' CRDs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Widget {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: WidgetSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WidgetSpec {
    pub(crate) size: Option<i64>,
}

impl RecordingReconciler {
    /// Creates a recorder for objects of this type.
    pub(crate) fn new(type_ref: TypeRef) -> Self {
        Self {
            type_ref,
            seen: watch::Sender::default(),
            acts: Arc::default(),
            stores: Arc::default(),
        }
    }

    pub(crate) fn type_ref(&self) -> &TypeRef {
        &self.type_ref
    }

    /// Performs `act` in each later reconcile of the object with this name.
    pub(crate) fn act(&self, name: &str, act: Act) {
        self.acts.lock().unwrap().insert(name.to_owned(), act);
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    pub(crate) fn clear(&self) {
        self.seen.send_modify(Vec::clear);
    }

    /// Waits until an object that satisfies `wanted` was seen, and returns it.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.subscribe();
        let found = seen.wait_for(|all| all.iter().any(&wanted));
        match timeout(PATIENCE, found).await {
            Ok(all) => all.unwrap().iter().find(|seen| wanted(seen)).unwrap().clone(),
            Err(_) => panic!("{what}: not seen in time, but {:#?}", self.all()),
        }
    }

    /// Waits until `count` records satisfy `wanted`, and returns them.
    pub(crate) async fn count(&self, count: usize, wanted: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let mut seen = self.seen.subscribe();
        let found = seen.wait_for(|all| all.iter().filter(|seen| wanted(seen)).count() >= count);
        match timeout(PATIENCE, found).await {
            Ok(all) => all.unwrap().iter().filter(|seen| wanted(seen)).cloned().collect(),
            Err(_) => {
                let all = self.all();
                let found = all.iter().filter(|seen| wanted(seen)).count();
                let last = &all[all.len().saturating_sub(100)..];
                panic!("not {count} seen in time, but {found} of {}, at last {last:#?}", all.len())
            }
        }
    }

    /// Waits until an existing object was seen in this epoch.
    pub(crate) async fn saw(&self, name: &str, epoch: u64) -> Seen {
        let wanted = |seen: &Seen| seen.name == name && seen.epoch == epoch && seen.uid.is_some();
        self.until(&format!("{name} in epoch {epoch}"), wanted).await
    }

    /// Cache that an epoch read from.
    pub(crate) fn store(&self, epoch: u64) -> Option<Store> {
        self.stores.lock().unwrap().get(&epoch).cloned()
    }

    pub(crate) fn keep_store(&self, epoch: u64, store: &Store) {
        self.stores.lock().unwrap().entry(epoch).or_insert_with(|| store.clone());
    }

    pub(crate) fn record(
        &self,
        controller: &str,
        epoch: u64,
        name: &str,
        object: Option<&Object>,
        stale: bool,
    ) {
        let widget = object.map(|object| object.decode::<Widget>().unwrap());
        self.push(controller, epoch, name, widget, stale);
    }

    /// Records an existing object, as a hook request contains it.
    #[cfg(feature = "cli")]
    pub(crate) fn note(&self, controller: &str, epoch: u64, widget: Widget) {
        let name = widget.metadata.name.clone().unwrap();
        self.push(controller, epoch, &name, Some(widget), false);
    }

    fn push(&self, controller: &str, epoch: u64, name: &str, widget: Option<Widget>, stale: bool) {
        let seen = Seen {
            controller: controller.to_owned(),
            epoch,
            name: name.to_owned(),
            uid: widget.as_ref().and_then(|widget| widget.metadata.uid.clone()),
            size: widget.and_then(|widget| widget.spec.size),
            stale,
            at: Instant::now(),
        };
        self.seen.send_modify(|all| all.push(seen));
    }
}

impl RecordingReconciler {
    async fn release(
        &self,
        request: &Request,
        object: Option<&Object>,
        context: &Context,
    ) -> Result<(), kube::Error> {
        let deleted = object.is_some_and(|it| it.header().deletion_timestamp.is_some());
        let (true, Ok(served)) = (deleted, context.served(&self.type_ref)) else {
            return Ok(());
        };
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let (client, resource) = (context.client().clone(), served.api_resource());
        let api = Api::<DynamicObject>::namespaced_with(client, namespace, &resource);
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        api.patch(&request.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

impl Reconciler for RecordingReconciler {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let epoch = context.epoch();
        let store = context.store(&self.type_ref)?;
        self.keep_store(epoch.number(), &store);
        let object = store.get(&request);
        let (controller, stale) = (epoch.controller().as_str(), context.stale());
        self.record(controller, epoch.number(), &request.name, object.as_ref(), stale);
        let act = self.acts.lock().unwrap().get(&*request.name).copied();
        match act {
            None => {}
            Some(Act::Again(after)) => return Ok(Outcome::RequeueAfter(after)),
            Some(Act::Panic) => panic!("injected panic at {request}"),
            Some(Act::Release) => self.release(&request, object.as_ref(), &context).await?,
        }
        Ok(Outcome::Done)
    }
}
