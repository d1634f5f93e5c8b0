//! Reconciler of declared controllers: adds, replaces and removes runnables as their objects
//! declare.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::Method;
use kube::Client;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{
    PAUSED,
    declared::{CheckedObject, DeclaredState, DeclaredStates, Run},
    freed_parents::{FreedParents, ParentRelease},
    hook_builder::HookBuilder,
    status::Acceptance,
};
use crate::{
    controller::{Cluster, Context, Outcome, ReconcileError, Reconciler, Request},
    discovery::TypeState,
    informer::Object,
    kind::TypeRef,
    manager::{AddError, ControllerState, ManagerHandle, RunnableOptions, RunnableStatus},
    meta::{
        api::{
            controller_kind::ControllerKind,
            rejection::{Problems, Rejection},
        },
        definition::{
            Definition,
            edit_effect::{EditEffect, edit_effect},
            finalizer::Finalizer,
            lacks_only_hooks, type_ref,
        },
        hooks::{
            counted::Hooks,
            credentials::{HOOK_CREDENTIALS, HookCredentials},
        },
        options::MetaOptions,
        recorder::{EventRecorder, Severity, Subject},
        resource::{self, ServerObject, is_forbidden, is_gone},
        runnable::DeclaredRunnable,
    },
};

/// Time for which a controller keeps running after its CRD returned without its object.
pub(super) const MISSING_GRACE: Duration = Duration::from_secs(60);
/// Time to wait for a stop before the status reports that it lasts.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay until a runnable that the manager refused is offered again.
const REFUSED_RETRY: Duration = Duration::from_millis(200);
/// Delay until a deletion that may be caused by the CRD's is checked again.
const RECHECK: Duration = Duration::from_secs(5);
/// Delay between two searches of a standby for parents with the finalizer. Each search lists the
/// parent types, so it is rare.
const STANDBY_RECHECK: Duration = Duration::from_secs(30);

/// Reconciler of declared controllers.
pub(super) struct DeclarationReconciler {
    pub(super) kind: ControllerKind,
    pub(super) cluster: Cluster,
    pub(super) manager: ManagerHandle,
    pub(super) options: Arc<MetaOptions>,
    pub(super) recorder: EventRecorder,
    pub(super) changes: Arc<DeclaredStates>,
    pub(super) credentials: HookCredentials,
    /// True once the missing status of a CRD was logged, for any kind.
    pub(super) logged_pruning: Arc<AtomicBool>,
}

impl Reconciler for DeclarationReconciler {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let object =
            context.store(&self.kind.type_ref()).ok().and_then(|store| store.get(&request));
        match object {
            Some(object) if self.options.target.matches(&object.header().labels) => {
                self.reconcile_object(&object, &context).await
            }
            Some(_) => Ok(self.remove_untargeted(&request.name).await),
            None => self.reconcile_missing(&request.name, &context).await,
        }
    }
}

impl DeclarationReconciler {
    /// Makes the runnable match the object, then writes the object's status.
    async fn reconcile_object(
        &self,
        object: &Object,
        context: &Context,
    ) -> Result<Outcome, ReconcileError> {
        let name = &object.key().name;
        let header = object.header();
        let (mut declared, another) = self.take_state(object, context);
        let mut again = None;
        let acceptance = if header.annotations.get(PAUSED) == Some("true") {
            Acceptance::Paused
        } else {
            match self.definition(object) {
                Ok(definition) => {
                    let (acceptance, wait) = self.execute(name, definition, &mut declared).await;
                    again = wait;
                    acceptance
                }
                Err(rejected) => Acceptance::Rejected(rejected),
            }
        };
        // The hooks of the previous run are not called any more, and its parents are freed.
        let has_no_hook = match &acceptance {
            Acceptance::Rejected(rejected) => lacks_only_hooks(rejected),
            Acceptance::Accepted | Acceptance::Paused => false,
        };
        let has_no_runnable = match &acceptance {
            Acceptance::Accepted => false,
            Acceptance::Paused => true,
            // A rejected edit leaves the previous run in place, but only if the same object
            // declared it.
            Acceptance::Rejected(_) => another || declared.run.is_none() || has_no_hook,
        };
        if !has_no_runnable && matches!(acceptance, Acceptance::Rejected(_)) && self.waits(name) {
            // The earlier edit that still waits is no longer declared. The previous run continues.
            again = self.withdraw_edit(name, &mut declared).await;
        }
        if has_no_runnable {
            (declared.run, declared.before) = (None, None);
            self.note_finalizes(object, &mut declared);
        }
        let generation = header.generation;
        let checked = CheckedObject { acceptance, generation, parents: parents_of(object) };
        declared.checked = Some(checked.clone());
        // Stored before the next await, so that a cancelled reconcile forgets no running
        // controller.
        self.changes.put(name, declared.clone());
        if has_no_runnable
            && self.manager.status_of(self.kind.runnable_name(name)).is_some()
            && self.stop(name).await.is_err()
        {
            again = Some(STOP_TIMEOUT);
        }
        if !context.epoch().leads() {
            // Written when this replica leads.
            drop(self.changes.take_events(name));
            self.changes.put(name, declared);
            return Ok(again.map_or(Outcome::Done, Outcome::RequeueAfter));
        }
        let subject = subject(self.kind, name, &header.uid);
        self.publish(name, &subject, &checked.acceptance, &mut declared, context);
        let written = self.write_status(object, &checked, &mut declared, context).await;
        // Last, so that the status and the Events do not depend on the parents.
        let types = self.freed_types(name, &declared, has_no_hook);
        let release = self.release(name, context);
        let freed = release.free_parents(&types, FreedParents::All, &mut declared.finalizes).await;
        self.changes.put(name, declared);
        let written = written?;
        freed?;
        let next = written.into_iter().chain(again).min();
        Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Takes the state of the object, and returns whether another object of its name had it.
    fn take_state(&self, object: &Object, context: &Context) -> (DeclaredState, bool) {
        let (name, uid) = (&object.key().name, &object.header().uid);
        let mut declared = self.changes.state(name);
        let another = declared.uid != *uid;
        if another {
            declared = declared.taken_over_by(uid.clone());
        }
        declared.seen_under = context
            .served(&self.kind.type_ref())
            .ok()
            .and_then(|served| served.identity.uid.clone());
        declared.missing_since = None;
        if !self.waits(name) {
            // The new specification has replaced the previous one.
            declared.before = None;
        }
        (declared, another)
    }

    fn release<'a>(&'a self, name: &'a str, context: &'a Context) -> ParentRelease<'a> {
        let Self { kind, cluster, recorder, .. } = self;
        let finalizer = Finalizer::of(*kind, name, false);
        ParentRelease { kind: *kind, name, cluster, recorder, context, finalizer }
    }

    /// Returns the types whose parents are to be freed: all types, once the run of a controller
    /// without a hook has ended, or earlier types, once no run uses them.
    fn freed_types(&self, name: &str, declared: &DeclaredState, has_no_hook: bool) -> Vec<TypeRef> {
        let is_settled = |run: &RunnableStatus| {
            run.pending.is_none()
                && matches!(run.state, ControllerState::Running | ControllerState::Waiting)
        };
        match self.manager.status_of(self.kind.runnable_name(name)) {
            None if has_no_hook => declared.finalizes.clone(),
            Some(run) if !has_no_hook && is_settled(&run) => declared.earlier_parents(),
            None | Some(_) => Vec::new(),
        }
    }

    /// Records the parent types of an object without a runnable. Parents may have the finalizer
    /// from a time before this process.
    fn note_finalizes(&self, object: &Object, declared: &mut DeclaredState) {
        match self.definition(object) {
            Ok(definition) => declared.note_finalizes(&definition),
            Err(_) if declares_finalize_hook(object) => {
                let parents = parents_of(object);
                let parents = parents.iter().filter_map(|(resource, api_version)| {
                    type_ref("", api_version, resource, &mut Problems::default())
                });
                declared.note_finalized_types(parents);
            }
            Err(_) => {}
        }
    }

    /// Returns the definition of an object, with the defaults of the process.
    fn definition(&self, object: &Object) -> Result<Definition, Rejection> {
        let definition = Definition::parse(self.kind, &object.json())?;
        let (strategy, manager) = (self.options.apply_strategy, &self.options.field_manager);
        Ok(definition.or_apply(strategy, manager).or_resync(self.options.resync_period))
    }

    /// Adds or replaces the runnable, unless it already has this definition. Returns the time until
    /// the next attempt, if the manager refused it.
    async fn execute(
        &self,
        name: &str,
        definition: Definition,
        declared: &mut DeclaredState,
    ) -> (Acceptance, Option<Duration>) {
        let runnable = self.kind.runnable_name(name);
        let there = self.manager.status_of(runnable.clone()).is_some();
        let waits = self.waits(name);
        let effect = self.effect(name, declared, &definition);
        if effect == EditEffect::Keep {
            return (Acceptance::Accepted, None);
        }
        let before = if waits { declared.before.clone() } else { declared.run.clone() };
        let withdrawn =
            |run: &Run| waits && edit_effect(&run.definition, &definition) == EditEffect::Keep;
        if declared.before.as_ref().is_some_and(withdrawn) {
            return (Acceptance::Accepted, self.withdraw_edit(name, declared).await);
        }
        let definition = Arc::new(definition);
        let mut hooks = match self.hooks(&definition) {
            Ok(hooks) => hooks,
            Err(rejected) => return (Acceptance::Rejected(rejected), None),
        };
        if hooks.all().any(|hook| hook.endpoint.is_some()) {
            self.read_credentials().await;
        }
        if let EditEffect::Swap(syncs) = effect {
            match self.swap(name, &definition, hooks, syncs, declared).await {
                Ok(()) => return (Acceptance::Accepted, None),
                Err(unready) => hooks = unready,
            }
        }
        let changed = {
            // A weak reference: the callback is part of the run, which `changes` holds.
            let (name, changes) = (Arc::<str>::from(name), Arc::downgrade(&self.changes));
            move || changes.upgrade().into_iter().for_each(|changes| changes.enqueue(&name))
        };
        let built = DeclaredRunnable::new(
            runnable.clone(),
            Arc::clone(&definition),
            hooks,
            &self.cluster,
            self.recorder.with_own_outbox(),
            &self.options,
            changed,
        );
        let built = match built {
            Ok(built) => Arc::new(built),
            Err(error) => {
                let rejected = Rejection::Unbuildable(error.to_string());
                return (Acceptance::Rejected(rejected), None);
            }
        };
        let (health, kept) = (built.health(), built.clone());
        let options = self.options.runnable.clone();
        let mut taken = if there {
            self.manager.replace(runnable.clone(), built.clone(), options.clone()).await.map(drop)
        } else {
            self.manager.add(runnable.clone(), built.clone(), options.clone()).await
        };
        // The runnable was added or removed since the status was read.
        taken = match taken {
            Err(AddError::AlreadyThere(_)) => {
                self.manager.replace(runnable, built, options).await.map(drop)
            }
            Err(AddError::NotThere(_)) => self.manager.add(runnable, built, options).await,
            other => other,
        };
        let again = match taken {
            Ok(()) => {
                tracing::info!(name, "declared controller accepted");
                declared.note_finalizes(&definition);
                declared.before = before;
                declared.run = Some(Run { definition, health, runnable: kept });
                None
            }
            Err(error) => refused(name, &error),
        };
        (Acceptance::Accepted, again)
    }

    /// Withdraws an edit that waits: offers the previous run again. Returns the time until the next
    /// attempt, if the manager refused it.
    async fn withdraw_edit(&self, name: &str, declared: &mut DeclaredState) -> Option<Duration> {
        let before = declared.before.clone()?;
        let (same, options) = (before.runnable.clone(), self.options.runnable.clone());
        match self.manager.replace(self.kind.runnable_name(name), same, options).await {
            Ok(_) => {
                declared.run = Some(before);
                None
            }
            Err(error) => refused(name, &error),
        }
    }

    /// Returns whether an edit waits for its types while the previous specification runs.
    fn waits(&self, name: &str) -> bool {
        self.manager
            .status_of(self.kind.runnable_name(name))
            .is_some_and(|status| status.pending.is_some())
    }

    fn hooks(&self, definition: &Definition) -> Result<Hooks, Rejection> {
        let Self { options, credentials, changes, .. } = self;
        let name = self.kind.runnable_name(&definition.name);
        let budget = options.responses.controller(name.as_str());
        HookBuilder { definition, options, credentials, changes, budget }.build()
    }

    /// Adds the runnable that reads credentials, if it was not added yet.
    async fn read_credentials(&self) {
        if self.manager.status_of(HOOK_CREDENTIALS).is_none() {
            let runnable = Arc::new(self.credentials.clone());
            let options = RunnableOptions::default();
            // An error means that another controller has added it, or that the manager is stopping.
            drop(self.manager.add_runnable(HOOK_CREDENTIALS, runnable, options).await);
        }
    }

    /// Removes the runnable; an error if that takes longer than [`STOP_TIMEOUT`].
    async fn stop(&self, name: &str) -> Result<(), tokio::time::error::Elapsed> {
        // The manager finishes the removal even if this wait ends first.
        timeout(STOP_TIMEOUT, self.manager.remove(self.kind.runnable_name(name))).await
    }

    /// Removes the runnable of an object that no longer matches the target selector. The object
    /// belongs to another instance and is left alone.
    async fn remove_untargeted(&self, name: &str) -> Outcome {
        if self.changes.known(name).is_none() {
            return Outcome::Done;
        }
        if self.stop(name).await.is_err() {
            return Outcome::RequeueAfter(STOP_TIMEOUT);
        }
        tracing::info!(name, "declared controller no longer matches the target selector");
        self.changes.remove(name);
        Outcome::Done
    }

    /// Removes the runnable of an object that is missing, if the object was deleted.
    async fn reconcile_missing(
        &self,
        name: &str,
        context: &Context,
    ) -> Result<Outcome, ReconcileError> {
        let Some(mut declared) = self.changes.known(name) else { return Ok(Outcome::Done) };
        if !matches!(self.cluster.types.get(&self.kind.type_ref()).state, TypeState::Served) {
            // The object may be missing because its CRD is. If the epoch ends, the next one checks
            // again.
            return Ok(Outcome::RequeueAfter(RECHECK));
        }
        let crd_uid = context
            .served(&self.kind.type_ref())
            .ok()
            .and_then(|served| served.identity.uid.clone());
        let mut crd_is_unread = false;
        if declared.seen_under == crd_uid {
            match crd_is_deleted(self.kind, context.client()).await {
                Ok(true) => return Ok(Outcome::RequeueAfter(RECHECK)),
                Ok(false) => {}
                // Without the right to read CRDs, the runnable of a missing object stops.
                Err(error) if is_forbidden(&error) => crd_is_unread = true,
                // The object may be missing because its CRD is, and nothing stops without proof.
                Err(error) => return Err(error.into()),
            }
        } else {
            // The CRD was created again, and the object may still be restored.
            if let Some(wait) = self.missing_wait(name, &mut declared) {
                return Ok(Outcome::RequeueAfter(wait));
            }
        }
        let subject = subject(self.kind, name, &declared.uid);
        let state = self.manager.status_of(self.kind.runnable_name(name)).map(|run| run.state);
        if context.epoch().leads()
            && matches!(state, Some(ControllerState::Starting | ControllerState::Running))
        {
            // The transition is reported too late: the state of the controller is removed.
            let text = format!("Stopping controller: {name}");
            self.recorder.publish(context, &subject, Severity::Normal, "Stopping", &text);
        }
        if self.stop(name).await.is_err() {
            return Ok(Outcome::RequeueAfter(STOP_TIMEOUT));
        }
        if crd_is_unread && !declared.finalizes.is_empty() {
            // The deletion of the CRD deletes the object before the type is gone, and only time
            // distinguishes that from a deletion of the object.
            if let Some(wait) = self.missing_wait(name, &mut declared) {
                return Ok(Outcome::RequeueAfter(wait));
            }
            if !object_is_deleted(self.kind, context.client(), name).await? {
                return Ok(Outcome::RequeueAfter(RECHECK));
            }
        }
        let release = self.release(name, context);
        if !context.epoch().leads() {
            // The leader frees the parents; this replica does if it leads before they are free.
            let has_parents = release.has_parents(&declared.finalizes).await?;
            if !context.epoch().leads() {
                if has_parents {
                    return Ok(Outcome::RequeueAfter(STANDBY_RECHECK));
                }
                self.changes.remove(name);
                return Ok(Outcome::Done);
            }
        }
        let types = declared.finalizes.clone();
        let which = FreedParents::NotTerminating;
        let freed = release.free_parents(&types, which, &mut declared.finalizes).await;
        self.changes.update(name, |known| known.finalizes = declared.finalizes);
        freed?;
        tracing::info!(name, "declared controller removed");
        let text = format!("Stopped controller: {name}");
        self.changes.remove(name);
        self.recorder.publish(context, &subject, Severity::Normal, "Stopped", &text);
        Ok(Outcome::Done)
    }

    /// Returns the rest of [`MISSING_GRACE`], if the object is not missing for that long.
    fn missing_wait(&self, name: &str, declared: &mut DeclaredState) -> Option<Duration> {
        let since = *declared.missing_since.get_or_insert_with(Instant::now);
        self.changes.update(name, |known| known.missing_since = Some(since));
        MISSING_GRACE.checked_sub(since.elapsed()).filter(|wait| !wait.is_zero())
    }
}

/// Returns the time until a runnable that the manager refused is offered again: the previous one of
/// the same name may still be stopping.
fn refused(name: &str, error: &AddError) -> Option<Duration> {
    tracing::debug!(%error, name, "the manager refused a declared controller");
    match error {
        // The manager itself is stopping.
        AddError::Stopping => None,
        AddError::AlreadyThere(_)
        | AddError::NotThere(_)
        | AddError::OtherName { .. }
        | AddError::NameMissing
        | AddError::RunsOnce(_)
        | AddError::ConditionOfRunsOnce(_) => Some(REFUSED_RETRY),
    }
}

/// Returns whether an object declares a finalize hook, regardless of its errors.
fn declares_finalize_hook(object: &Object) -> bool {
    let object = object.decode::<Value>().unwrap_or_default();
    object.pointer("/spec/hooks/finalize/webhook").is_some_and(Value::is_object)
}

/// Plural and `apiVersion` of each parent type that an object names, regardless of its other
/// errors.
fn parents_of(object: &Object) -> Vec<(String, String)> {
    #[derive(Deserialize)]
    struct DeclaringObject {
        spec: DeclaringSpec,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct DeclaringSpec {
        parent_resource: Option<DeclaredParent>,
        #[serde(default)]
        resources: Vec<DeclaredParent>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct DeclaredParent {
        api_version: String,
        resource: String,
    }
    let Ok(DeclaringObject { spec }) = object.decode() else { return Vec::new() };
    let named = spec.parent_resource.into_iter().chain(spec.resources);
    let mut parents = Vec::new();
    for DeclaredParent { api_version, resource } in named {
        let parent = (resource, api_version);
        if !parents.contains(&parent) {
            parents.push(parent);
        }
    }
    parents
}

fn subject(kind: ControllerKind, name: &str, uid: &Arc<str>) -> Subject {
    Subject {
        api_version: ControllerKind::api_version(),
        kind: kind.kind().to_owned(),
        namespace: None,
        name: name.into(),
        uid: uid.clone(),
    }
}

/// Returns whether the CRD of a kind is gone or being deleted. Reads from the server,
/// because the CRDs and the objects have separate watches and either may be ahead.
async fn crd_is_deleted(kind: ControllerKind, client: &Client) -> Result<bool, kube::Error> {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let path = format!("{crds}/{}", kind.crd_name());
    match resource::send::<ServerObject>(client, Method::GET, path, "", None).await {
        Ok(crd) => Ok(crd.is_terminating()),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns whether a declared controller is gone: the server serves the type and names the object
/// that it did not find.
async fn object_is_deleted(
    kind: ControllerKind,
    client: &Client,
    name: &str,
) -> Result<bool, kube::Error> {
    let path = format!("/apis/{}/{}/{name}", ControllerKind::api_version(), kind.plural());
    match resource::send::<ServerObject>(client, Method::GET, path, "", None).await {
        Ok(_) => Ok(false),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
