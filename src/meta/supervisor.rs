//! The controller of CompositeControllers: turns each object into a controller of the manager's,
//! and what becomes of it into the object's status.
//!
//! It is a controller like any other, conditional on its own CRD. When that is missing it waits;
//! when it is deleted, the controllers that were declared go on with their last specification.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    Blueprint, CompositeController, CompositeControllerStatus, Rejected,
    blueprint::same_spec,
    declared::Declared,
    news::{News, PREFIX},
    recorder::{Recorder, Severity, Subject},
    status::Facts,
};
use crate::{
    controller::{
        BuildError, Cluster, Context, Controller, Outcome, ReconcileError, Reconciler, Request,
    },
    informer::Object,
    kind::TypeRef,
    manager::{
        AddError, BoxError, ConditionalRunnable, ControllerName, ManagerHandle, RunnableOptions,
    },
};

/// Set to `true` on a declared controller, stops it until the annotation goes.
pub const PAUSED: &str = "pilotlight.dev/paused";

/// How long a declared controller outlives its object when their CRD was away and came back
/// without it: whoever restored the CRD may be about to restore the objects.
const RETURN: Duration = Duration::from_secs(60);

/// How many declared controllers may be changed at once; one that drains holds up only itself.
const WORKERS: usize = 8;

/// Turns a specification into something that runs.
pub(crate) type Build =
    Arc<dyn Fn(Blueprint) -> Result<Arc<dyn ConditionalRunnable>, BoxError> + Send + Sync>;

struct Supervisor {
    cluster: Cluster,
    manager: ManagerHandle,
    build: Build,
    declared: Arc<Declared>,
    events: Recorder,
}

/// The controller of CompositeControllers.
///
/// # Errors
///
/// None that a caller can cause: see [`BuildError`].
pub(crate) fn supervisor(
    cluster: &Cluster,
    manager: &ManagerHandle,
    events: Recorder,
    build: Build,
) -> Result<Controller, BuildError> {
    let declared = Arc::<Declared>::default();
    let supervisor = Supervisor {
        cluster: cluster.clone(),
        manager: manager.clone(),
        build,
        declared: declared.clone(),
        events,
    };
    Controller::builder("compositecontrollers")
        .for_type(own_type())
        .conditional()
        .source(News { manager: manager.clone(), declared })
        .max_concurrent_reconciles(WORKERS)
        .build(cluster, supervisor)
}

fn own_type() -> TypeRef {
    TypeRef::of::<CompositeController>()
}

fn controller_name(name: &str) -> ControllerName {
    format!("{PREFIX}{name}").into()
}

fn subject(object: &Object) -> Subject {
    let header = object.header();
    Subject {
        api_version: "metacontroller.k8s.io/v1alpha1".to_owned(),
        kind: "CompositeController".to_owned(),
        namespace: None,
        name: header.key.name.clone(),
        uid: header.uid.clone(),
    }
}

impl Reconciler for Supervisor {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let object = context.store(&own_type()).and_then(|store| store.get(&request));
        match object {
            Some(object) => self.present(&object, &context).await,
            None => self.absent(&request.name, &context).await,
        }
    }
}

impl Supervisor {
    async fn present(&self, object: &Object, context: &Context) -> Result<Outcome, ReconcileError> {
        let header = object.header();
        let name = &*header.key.name;
        self.declared.change(name, |known| {
            known.seen_in = context.epoch().number();
            known.missed_since = None;
        });
        let paused = header.annotations.get(PAUSED) == Some("true");
        let rejected = if paused {
            self.pause(name).await;
            None
        } else {
            match Blueprint::parse(object.json()) {
                Ok(blueprint) => {
                    self.declare(&header.uid, blueprint).await?;
                    None
                }
                Err(rejected) => Some(rejected),
            }
        };
        self.write_status(object, context, rejected.as_ref(), paused).await?;
        self.tell(object, context, rejected.as_ref()).await;
        Ok(Outcome::Done)
    }

    /// Makes the manager run this specification, if it does not already.
    async fn declare(&self, uid: &str, blueprint: Blueprint) -> Result<(), ReconcileError> {
        let name = blueprint.name.clone();
        let running = self.declared.get(&name).and_then(|known| known.running);
        if let Some((old_uid, old_spec)) = &running
            && old_uid == uid
            && same_spec(old_spec, &blueprint.spec)
        {
            return Ok(());
        }
        let spec = blueprint.spec.clone();
        let runnable = (self.build)(blueprint).map_err(ReconcileError::Retry)?;
        let options = RunnableOptions::default();
        let added = match running {
            Some(_) => {
                info!(name, "specification changed");
                self.manager.replace(controller_name(&name), runnable, options).await
            }
            None => self.manager.add(controller_name(&name), runnable, options).await,
        };
        match added {
            Ok(()) => {}
            // The manager stops, and this controller with it.
            Err(AddError::Stopping) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.declared.change(&name, |known| known.running = Some((uid.to_owned(), spec)));
        Ok(())
    }

    async fn pause(&self, name: &str) {
        if self.declared.change(name, |known| known.running.take()).is_some() {
            info!(name, "paused");
            self.manager.remove(controller_name(name)).await;
        }
    }

    /// There is no object of this name. It was deleted, or it went with its CRD.
    async fn absent(&self, name: &str, context: &Context) -> Result<Outcome, ReconcileError> {
        let Some(known) = self.declared.get(name) else { return Ok(Outcome::Done) };
        if known.seen_in == context.epoch().number() {
            if self.own_crd_is_going(context).await? {
                info!(name, "its CRD is being deleted: it keeps its last specification");
                return Ok(Outcome::Done);
            }
        } else {
            // Its CRD was away and is back, or another look at its objects began.
            let since = self
                .declared
                .change(name, |known| *known.missed_since.get_or_insert_with(Instant::now));
            let left = RETURN.saturating_sub(since.elapsed());
            if !left.is_zero() {
                return Ok(Outcome::RequeueAfter(left));
            }
        }
        self.manager.remove(controller_name(name)).await;
        self.declared.forget(name);
        info!(name, "removed");
        Ok(Outcome::Done)
    }

    /// Asked of the server itself, because an object's deletion may be seen before its CRD's.
    async fn own_crd_is_going(&self, context: &Context) -> Result<bool, ReconcileError> {
        let crds: Api<CustomResourceDefinition> = Api::all(context.client().clone());
        match crds.get_metadata_opt("compositecontrollers.metacontroller.k8s.io").await {
            Ok(Some(crd)) => Ok(crd.metadata.deletion_timestamp.is_some()),
            Ok(None) => Ok(true),
            // Who may not read CRDs knows no better than that the object is gone.
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells in Events what happened to the controller, each step and each rejection once.
    async fn tell(&self, object: &Object, context: &Context, rejected: Option<&Rejected>) {
        let name = &*object.header().key.name;
        let runnable = self.manager.status_of(controller_name(name));
        let rejection = rejected.map(ToString::to_string);
        let (news, reasons) = self.declared.change(name, |known| {
            let news = known.rejection != rejection;
            known.rejection.clone_from(&rejection);
            let (reasons, told) = known.told.next(runnable.as_deref());
            known.told = told;
            (news, reasons)
        });
        let subject = subject(object);
        for reason in reasons {
            let message = format!("{reason} controller: {name}");
            let client = context.client();
            self.events.publish(client, &subject, Severity::Normal, reason, &message).await;
        }
        if let Some(message) = rejection.filter(|_| news) {
            warn!(name, error = message, "specification is not executed");
            let message = format!("Cannot create controller: {message}");
            let client = context.client();
            self.events.publish(client, &subject, Severity::Warning, "CreateError", &message).await;
        }
    }

    async fn write_status(
        &self,
        object: &Object,
        context: &Context,
        rejected: Option<&Rejected>,
        paused: bool,
    ) -> Result<(), ReconcileError> {
        #[derive(serde::Deserialize)]
        struct Stored {
            #[serde(default)]
            status: Option<CompositeControllerStatus>,
        }
        let header = object.header();
        let name = &*header.key.name;
        // A status of another shape is overwritten.
        let stored = object.decode::<Stored>().ok().and_then(|stored| stored.status);
        let written = self.declared.get(name).and_then(|known| known.written);
        let written = written.filter(|(uid, _)| **uid == *header.uid).map(|(_, status)| status);
        let before = written.as_ref().or(stored.as_ref()).cloned().unwrap_or_default();
        let runnable = self.manager.status_of(controller_name(name));
        let status = Facts {
            generation: header.generation,
            rejected: rejected.map(|rejected| (rejected.reason(), rejected.to_string())),
            paused,
            runnable: runnable.as_deref(),
            before: &before,
        }
        .status(Timestamp::now());
        if written.as_ref() == Some(&status) || stored.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<CompositeController> = Api::all(context.client().clone());
        let patch = Patch::Merge(json!({"metadata": {"uid": &*header.uid}, "status": &status}));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => {
                debug!(name, state = status.state, "status written");
                self.declared.change(name, |known| {
                    known.written = Some((header.uid.to_string(), status));
                });
                Ok(())
            }
            // Gone, or another one of its name: its own events follow.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
