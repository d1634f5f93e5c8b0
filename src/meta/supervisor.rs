//! The controller of declared controllers: each CompositeController becomes a runnable of the
//! manager, and what the manager says of it becomes its status.
//!
//! It waits for its own CRD like any other controller. While that is gone, what was declared goes
//! on as declared; when it is back, objects and runnables are matched by name.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    Blueprint, CompositeController, CompositeControllerStatus, Hook, HookMetrics, Selector,
    Webhook,
    blueprint::same_spec,
    composite::CompositeRunnable,
    declared::{Changes, Declared, Run},
    manager_source::{ManagerSource, PREFIX},
    recorder::{Recorder, Severity, Subject},
    resource::{self, Resource, explain, is_forbidden, is_not_found},
    roster::Health,
    status::{Judgement, View},
};
use crate::{
    controller::{
        BuildError, Cluster, Context, Controller, Outcome, Predicate, ReconcileError, Reconciler,
        Request,
    },
    discovery::TypeState,
    informer::Object,
    kind::TypeRef,
    manager::{
        AddError, ConditionalRunnable, ControllerName, Epoch, ManagerHandle, Readiness, RunResult,
        Runnable, RunnableOptions,
    },
};

/// Annotation that stops a declared controller while it is `"true"`.
pub const PAUSED: &str = "pilotlight.dev/paused";

/// Name under which the supervisor itself is best added to the manager.
pub const SUPERVISOR: &str = "compositecontrollers";

/// How long a controller whose object is missing after the CRD came back is given.
const MISSING_GRACE: Duration = Duration::from_secs(60);
/// How long a stop is waited for before the status says that it lasts.
const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// The shortest time between two writes of one status.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
/// How long our own write is given to come back through the watch.
const ECHO: Duration = Duration::from_secs(5);

/// Makes the hook of a declared controller.
pub type HookFactory = Arc<dyn Fn(&Blueprint) -> Arc<dyn Hook> + Send + Sync>;

/// How declared controllers are run.
#[derive(Clone)]
pub struct MetaOptions {
    /// Parents of one controller that are synced at the same time; 5.
    pub workers: usize,
    /// How each runnable is supervised.
    pub runnable: RunnableOptions,
    /// Where hook calls are counted; register it with the process's registry.
    pub metrics: HookMetrics,
    /// Makes hooks; `None` asks the declared webhook.
    pub hooks: Option<HookFactory>,
    /// Only the CompositeControllers that it selects are run, and only their status is written;
    /// all. One that stops matching is stopped.
    pub target: Selector,
}

impl Default for MetaOptions {
    fn default() -> Self {
        Self {
            workers: 5,
            runnable: RunnableOptions::default(),
            metrics: HookMetrics::default(),
            hooks: None,
            target: Selector::default(),
        }
    }
}

impl fmt::Debug for MetaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetaOptions")
            .field("workers", &self.workers)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// Runs every CompositeController of a cluster; to be added to the manager that it drives.
#[derive(Debug)]
pub struct Supervisor {
    controller: Controller,
}

impl Supervisor {
    /// A supervisor that adds what is declared to `manager`. Starts nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError`], when the options leave no workers.
    pub fn new(
        cluster: &Cluster,
        manager: ManagerHandle,
        options: MetaOptions,
    ) -> Result<Self, BuildError> {
        if options.workers == 0 {
            return Err(BuildError::NoWorkers(SUPERVISOR.into()));
        }
        let changes = Arc::new(Changes::default());
        let target = options.target.clone();
        let source = ManagerSource { manager: manager.clone(), changes: Arc::clone(&changes) };
        let keeper = Keeper {
            cluster: cluster.clone(),
            manager,
            options,
            recorder: Recorder::default(),
            changes,
        };
        let controller = Controller::builder(SUPERVISOR)
            .for_type(own_type())
            .conditional()
            .predicate(Predicate::new(move |delta| {
                // One that stops matching passes once more.
                let mut looks = delta.old.iter().chain(&delta.new);
                looks.any(|object| target.matches(&object.header().labels))
            }))
            .source(source)
            // Stopping one may take its grace, and holds up nobody else.
            .max_concurrent_reconciles(16)
            .build(cluster, keeper)?;
        Ok(Self { controller })
    }
}

impl Runnable for Supervisor {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        self.controller.start(epoch)
    }

    fn reports_running(&self) -> bool {
        self.controller.reports_running()
    }

    fn keeps_grace(&self) -> bool {
        self.controller.keeps_grace()
    }
}

impl ConditionalRunnable for Supervisor {
    fn ready(&self) -> Readiness {
        self.controller.ready()
    }
}

fn own_type() -> TypeRef {
    TypeRef::of::<CompositeController>()
}

fn runnable_name(name: &str) -> ControllerName {
    format!("{PREFIX}{name}").into()
}

/// Keeps runnables as their objects declare them.
struct Keeper {
    cluster: Cluster,
    manager: ManagerHandle,
    options: MetaOptions,
    recorder: Recorder,
    changes: Arc<Changes>,
}

impl Reconciler for Keeper {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let object = context.store(&own_type()).and_then(|store| store.get(&request));
        match object {
            Some(object) if self.options.target.matches(&object.header().labels) => {
                self.keep(&object, &context).await
            }
            Some(_) => Ok(self.let_go(&request.name).await),
            None => self.retire(&request.name, &context).await,
        }
    }
}

impl Keeper {
    /// Brings the runnable to what the object declares, and the object's status to what is.
    async fn keep(&self, object: &Object, context: &Context) -> Result<Outcome, ReconcileError> {
        let name = &object.key().name;
        let header = object.header();
        let crd_uid = context.served(&own_type()).and_then(|served| served.identity.uid.clone());
        let mut declared = self.changes.take(name);
        if declared.uid != header.uid {
            // Another object of that name: what it runs is matched up, what was said is not.
            declared = Declared {
                uid: header.uid.clone(),
                run: declared.run,
                before: declared.before,
                ..Declared::default()
            };
        }
        declared.seen_under = crd_uid;
        declared.missing_since = None;
        let paused = header.annotations.get(PAUSED) == Some("true");
        let judgement = if paused {
            Judgement::Paused
        } else {
            match Blueprint::parse(object.json()) {
                Ok(blueprint) => self.execute(name, blueprint, &mut declared).await,
                Err(rejected) => Judgement::Rejected(rejected),
            }
        };
        let mut again = None;
        if paused && self.manager.status_of(runnable_name(name)).is_some() {
            (declared.run, declared.before) = (None, None);
            if self.stop(name).await.is_err() {
                again = Some(STOP_PATIENCE);
            }
        }
        let subject = subject(name, &header.uid);
        self.publish(name, &subject, &judgement, &mut declared, context.client()).await;
        let written = self.write_status(object, &judgement, &mut declared, context).await;
        self.changes.put(name, declared);
        match (written?, again) {
            (Some(one), Some(other)) => Ok(Outcome::RequeueAfter(one.min(other))),
            (Some(wait), None) | (None, Some(wait)) => Ok(Outcome::RequeueAfter(wait)),
            (None, None) => Ok(Outcome::Done),
        }
    }

    /// Adds or replaces the runnable, unless it is what the blueprint says already.
    async fn execute(
        &self,
        name: &str,
        blueprint: Blueprint,
        declared: &mut Declared,
    ) -> Judgement {
        let runnable = runnable_name(name);
        let status = self.manager.status_of(runnable.clone());
        let there = status.is_some();
        let waits = status.is_some_and(|status| status.pending.is_some());
        if there && declared.run.as_ref().is_some_and(|run| same_spec(&run.spec, &blueprint.spec)) {
            return Judgement::Accepted;
        }
        let before = if waits { declared.before.clone() } else { declared.run.clone() };
        let taken_back = |before: &&Run| waits && same_spec(&before.spec, &blueprint.spec);
        if let Some(before) = before.as_ref().filter(taken_back) {
            let (same, options) = (before.runnable.clone(), self.options.runnable.clone());
            if let Err(error) = self.manager.replace(runnable, same, options).await {
                tracing::debug!(%error, name, "edit not called off");
            }
            declared.run = Some(before.clone());
            return Judgement::Accepted;
        }
        let blueprint = Arc::new(blueprint);
        let hook = match &self.options.hooks {
            Some(make) => make(&blueprint),
            None => self.webhook(&blueprint),
        };
        let changes = Arc::clone(&self.changes);
        let changed = {
            let name: Arc<str> = name.into();
            move || changes.mark(&name)
        };
        let built = CompositeRunnable::new(
            runnable.clone(),
            Arc::clone(&blueprint),
            hook,
            &self.cluster,
            self.recorder.clone(),
            self.options.workers,
            changed,
        );
        let built = match built {
            Ok(built) => Arc::new(built),
            Err(error) => {
                return Judgement::Rejected(super::Rejected::Unbuildable(error.to_string()));
            }
        };
        let (health, kept) = (built.health(), built.clone());
        let options = self.options.runnable.clone();
        let mut taken = if there {
            self.manager.replace(runnable.clone(), built.clone(), options.clone()).await
        } else {
            self.manager.add(runnable.clone(), built.clone(), options.clone()).await
        };
        // It came or went between the look and the call.
        taken = match taken {
            Err(AddError::AlreadyThere(_)) => self.manager.replace(runnable, built, options).await,
            Err(AddError::NotThere(_)) => self.manager.add(runnable, built, options).await,
            other => other,
        };
        match taken {
            Ok(()) => {
                tracing::info!(name, "declared controller accepted");
                let spec = blueprint.spec.clone();
                declared.before = before;
                declared.run = Some(Run { spec, blueprint, health, runnable: kept });
            }
            // The manager ends, and this with it.
            Err(error) => tracing::debug!(%error, name, "declared controller not taken"),
        }
        Judgement::Accepted
    }

    fn webhook(&self, blueprint: &Blueprint) -> Arc<dyn Hook> {
        let url = blueprint.sync.url.to_string();
        let series = self.options.metrics.series(&blueprint.name, "CompositeController", &url);
        Arc::new(Webhook::new(blueprint.sync.url.clone(), blueprint.sync.timeout).series(series))
    }

    /// Removes the runnable; an error when that lasts.
    async fn stop(&self, name: &str) -> Result<(), tokio::time::error::Elapsed> {
        // It is removed all the same when nobody waits any more.
        timeout(STOP_PATIENCE, self.manager.remove(runnable_name(name))).await
    }

    /// The object is another instance's now: removes the runnable and leaves the object alone.
    async fn let_go(&self, name: &str) -> Outcome {
        if self.changes.peek(name).is_none() {
            return Outcome::Done;
        }
        if self.stop(name).await.is_err() {
            return Outcome::RequeueAfter(STOP_PATIENCE);
        }
        tracing::info!(name, "declared controller is no target any more");
        self.changes.remove(name);
        Outcome::Done
    }

    /// The object is not there: removes the runnable, if that is because it was deleted.
    async fn retire(&self, name: &str, context: &Context) -> Result<Outcome, ReconcileError> {
        let Some(mut declared) = self.changes.peek(name) else { return Ok(Outcome::Done) };
        if !matches!(self.cluster.types.get(&own_type()).state, TypeState::Served) {
            // Deleted with its CRD perhaps, which says nothing of the object. If the epoch ends,
            // the next one looks again.
            return Ok(Outcome::RequeueAfter(ECHO));
        }
        let crd_uid = context.served(&own_type()).and_then(|served| served.identity.uid.clone());
        if declared.seen_under == crd_uid {
            match crd_is_going(context.client()).await {
                Ok(true) => return Ok(Outcome::RequeueAfter(ECHO)),
                // Who may not read CRDs knows no better than that the object is gone.
                Ok(false) => {}
                Err(error) if is_forbidden(&error) => {}
                // It may have gone with its CRD, and nothing stops without proof.
                Err(error) => return Err(error.into()),
            }
        } else {
            // The CRD is another one, and the object may still be restored.
            let since = *declared.missing_since.get_or_insert_with(Instant::now);
            let waited = since.elapsed();
            self.changes.update(name, |known| known.missing_since = Some(since));
            if waited < MISSING_GRACE {
                return Ok(Outcome::RequeueAfter(MISSING_GRACE - waited));
            }
        }
        if self.stop(name).await.is_err() {
            return Ok(Outcome::RequeueAfter(STOP_PATIENCE));
        }
        tracing::info!(name, "declared controller removed");
        let subject = subject(name, &declared.uid);
        let text = format!("Stopped controller: {name}");
        self.changes.remove(name);
        self.recorder.publish(context.client(), &subject, Severity::Normal, "Stopped", &text).await;
        Ok(Outcome::Done)
    }

    async fn publish(
        &self,
        name: &str,
        subject: &Subject,
        judgement: &Judgement,
        declared: &mut Declared,
        client: &Client,
    ) {
        for (reason, message) in self.changes.take_events(name) {
            self.recorder.publish(client, subject, Severity::Normal, reason, &message).await;
        }
        let rejected = match judgement {
            Judgement::Rejected(rejected) => Some(rejected.to_string()),
            Judgement::Accepted | Judgement::Paused => None,
        };
        if declared.rejected != rejected {
            if let Some(rejected) = &rejected {
                let text = format!("Cannot create new controller: {rejected}");
                tracing::warn!(name, error = rejected, "declared controller rejected");
                self.recorder
                    .publish(client, subject, Severity::Warning, "CreateError", &text)
                    .await;
            }
            declared.rejected = rejected;
        }
    }

    /// Writes the status if it is another one; returns when to look again.
    async fn write_status(
        &self,
        object: &Object,
        judgement: &Judgement,
        declared: &mut Declared,
        context: &Context,
    ) -> Result<Option<Duration>, ReconcileError> {
        let name = &object.key().name;
        let Some(served) = context.served(&own_type()) else { return Ok(None) };
        let run = self.manager.status_of(runnable_name(name));
        let cached = cached_status(object);
        let healthy = Health::default();
        let waits = run.as_ref().is_some_and(|run| run.pending.is_some());
        // What is said of hooks is said of those that are called.
        let shown = declared.before.as_ref().filter(|_| waits).or(declared.run.as_ref());
        let health = shown.map(|run| run.health.borrow().clone());
        let previous = declared.written.as_ref().map_or(&cached, |(status, _)| status);
        let wanted = View {
            generation: object.header().generation,
            judgement,
            blueprint: shown.map(|run| &*run.blueprint),
            run: run.as_deref(),
            health: health.as_ref().unwrap_or(&healthy),
            previous,
            now: Timestamp::now(),
        }
        .status();
        if cached == wanted {
            declared.written.get_or_insert_with(|| (wanted, Instant::now()));
            return Ok(None);
        }
        if let Some((written, at)) = &declared.written {
            let since = at.elapsed();
            let patience = if *written != wanted {
                STATUS_INTERVAL
            } else if declared.pruned {
                // The schema has no place for it, and will have none the next time.
                return Ok(None);
            } else {
                ECHO
            };
            if since < patience {
                return Ok(Some(patience - since));
            }
        }
        let patch = json!({
            "metadata": {"uid": object.header().uid},
            "status": with_nulls(&wanted, &cached),
        });
        let resource = Resource::new(context.client(), &served);
        match resource.merge_patch(object.key(), Some("status"), &patch).await {
            Ok(stored) => {
                let stored = stored.get("status").cloned().unwrap_or_default();
                let stored = serde_json::from_value::<CompositeControllerStatus>(stored);
                declared.pruned = stored.unwrap_or_default() != wanted;
                declared.written = Some((wanted, Instant::now()));
                Ok(None)
            }
            // The object is gone, or has no status.
            Err(error) if is_not_found(&error) => {
                declared.pruned = true;
                declared.written = Some((wanted, Instant::now()));
                Ok(None)
            }
            Err(error) => Err(ReconcileError::Retry(
                format!("writing the status of {name}: {}", explain(&error)).into(),
            )),
        }
    }
}

fn subject(name: &str, uid: &Arc<str>) -> Subject {
    use kube::Resource as _;
    Subject {
        api_version: CompositeController::api_version(&()).into_owned(),
        kind: CompositeController::kind(&()).into_owned(),
        namespace: None,
        name: name.into(),
        uid: uid.clone(),
    }
}

/// The status as cached; the default when it is not ours.
fn cached_status(object: &Object) -> CompositeControllerStatus {
    #[derive(serde::Deserialize)]
    struct Partial {
        #[serde(default)]
        status: Option<Value>,
    }
    let partial: Option<Partial> = serde_json::from_slice(object.json()).ok();
    let status = partial.and_then(|partial| partial.status).unwrap_or_default();
    serde_json::from_value(status).unwrap_or_default()
}

/// The status as a merge patch: what is there and no longer wanted becomes null.
fn with_nulls(wanted: &CompositeControllerStatus, cached: &CompositeControllerStatus) -> Value {
    let mut patch = json!(wanted);
    let cached = json!(cached);
    if let (Some(patch), Some(cached)) = (patch.as_object_mut(), cached.as_object()) {
        for key in cached.keys() {
            patch.entry(key).or_insert(Value::Null);
        }
    }
    patch
}

/// Whether the CRD of CompositeControllers is gone or being deleted, asked of the server: its
/// watch and that of the objects are two, and either may be ahead.
async fn crd_is_going(client: &Client) -> Result<bool, kube::Error> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/\
                compositecontrollers.metacontroller.k8s.io";
    match resource::send(client, Method::GET, path.to_owned(), "", None).await {
        Ok(crd) => Ok(crd.pointer("/metadata/deletionTimestamp").is_some()),
        Err(error) if is_not_found(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
