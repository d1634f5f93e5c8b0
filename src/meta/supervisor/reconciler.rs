//! Keeps each runnable as its object declares it, from the first look to the last.

use std::{sync::Arc, time::Duration};

use http::Method;
use kube::Client;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::{MetaOptions, PAUSED, own_type, runnable_name};
use crate::{
    controller::{Cluster, Context, Outcome, ReconcileError, Reconciler, Request},
    discovery::TypeState,
    guard,
    informer::Object,
    manager::{AddError, ManagerHandle},
    meta::{
        CompositeController, Definition, Rejected, Webhook,
        composite::{CompositeRunnable, CountedHook},
        declared::{Changes, Declared, Judged, Run},
        recorder::{EventRecorder, Severity, Subject},
        resource::{self, Live, is_forbidden, is_gone},
        status::Judgement,
    },
    redaction,
};

/// How long a controller whose object is missing after the CRD came back is given.
pub(super) const MISSING_GRACE: Duration = Duration::from_secs(60);
/// How long a stop is waited for before the status says that it lasts.
const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// How soon one that the manager did not take is offered again.
const NOT_TAKEN: Duration = Duration::from_millis(200);
/// How long a deletion that may be the CRD's is left open.
const ECHO: Duration = Duration::from_secs(5);

/// Keeps runnables as their objects declare them.
pub(super) struct DeclarationReconciler {
    pub(super) cluster: Cluster,
    pub(super) manager: ManagerHandle,
    pub(super) options: MetaOptions,
    pub(super) recorder: EventRecorder,
    pub(super) changes: Arc<Changes>,
}

impl Reconciler for DeclarationReconciler {
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

impl DeclarationReconciler {
    /// Brings the runnable to what the object declares, and the object's status to what is.
    async fn keep(&self, object: &Object, context: &Context) -> Result<Outcome, ReconcileError> {
        let name = &object.key().name;
        let header = object.header();
        let crd_uid = context.served(&own_type()).and_then(|served| served.identity.uid.clone());
        let mut declared = self.changes.take(name);
        let another = declared.uid != header.uid;
        if another {
            // What it runs is matched up, what was said of the other one is not.
            declared = Declared {
                uid: header.uid.clone(),
                run: declared.run,
                before: declared.before,
                ..Declared::default()
            };
        }
        declared.seen_under = crd_uid;
        declared.missing_since = None;
        if !self.waits(name) {
            // The edit has taken over.
            declared.before = None;
        }
        let mut again = None;
        let judgement = if header.annotations.get(PAUSED) == Some("true") {
            Judgement::Paused
        } else {
            match Definition::parse(object.json()) {
                Ok(definition) => {
                    let definition = definition.or_resync(self.options.resync_period);
                    let (judgement, wait) = self.execute(name, definition, &mut declared).await;
                    again = wait;
                    judgement
                }
                Err(rejected) => Judgement::Rejected(rejected),
            }
        };
        let nothing_declared = match &judgement {
            Judgement::Accepted => false,
            Judgement::Paused => true,
            // An edit that is rejected leaves what ran; what another object declared has gone
            // with that object.
            Judgement::Rejected(_) => another || declared.run.is_none(),
        };
        if !nothing_declared && matches!(judgement, Judgement::Rejected(_)) && self.waits(name) {
            // An earlier edit is declared no more: what it was to replace goes on without it.
            again = self.take_back(name, &mut declared).await;
        }
        if nothing_declared {
            (declared.run, declared.before) = (None, None);
        }
        let generation = header.generation;
        let judged = Judged { judgement, generation, parent: parent_of(object) };
        declared.judged = Some(judged.clone());
        // Before anything else is waited for: what runs must not be forgotten.
        self.changes.put(name, declared.clone());
        if nothing_declared
            && self.manager.status_of(runnable_name(name)).is_some()
            && self.stop(name).await.is_err()
        {
            again = Some(STOP_PATIENCE);
        }
        let subject = subject(name, &header.uid);
        self.publish(name, &subject, &judged.judgement, &mut declared, context);
        let written = self.write_status(object, &judged, &mut declared, context).await;
        self.changes.put(name, declared);
        match (written?, again) {
            (Some(one), Some(other)) => Ok(Outcome::RequeueAfter(one.min(other))),
            (Some(wait), None) | (None, Some(wait)) => Ok(Outcome::RequeueAfter(wait)),
            (None, None) => Ok(Outcome::Done),
        }
    }

    /// Adds or replaces the runnable, unless it is what the definition says already. Returns when
    /// to try again, if it was not taken.
    async fn execute(
        &self,
        name: &str,
        definition: Definition,
        declared: &mut Declared,
    ) -> (Judgement, Option<Duration>) {
        let runnable = runnable_name(name);
        let there = self.manager.status_of(runnable.clone()).is_some();
        let waits = self.waits(name);
        if there
            && declared.run.as_ref().is_some_and(|run| run.definition.declares_same(&definition))
        {
            return (Judgement::Accepted, None);
        }
        let before = if waits { declared.before.clone() } else { declared.run.clone() };
        let taken_back = |before: &Run| waits && before.definition.declares_same(&definition);
        if declared.before.as_ref().is_some_and(taken_back) {
            return (Judgement::Accepted, self.take_back(name, declared).await);
        }
        let definition = Arc::new(definition);
        let hook = match self.hook(&definition) {
            Ok(hook) => hook,
            Err(rejected) => return (Judgement::Rejected(rejected), None),
        };
        let changed = {
            // What it tells of its health remembers it: it must not keep that alive in turn.
            let (name, changes) = (Arc::<str>::from(name), Arc::downgrade(&self.changes));
            move || changes.upgrade().into_iter().for_each(|changes| changes.mark(&name))
        };
        let built = CompositeRunnable::new(
            runnable.clone(),
            Arc::clone(&definition),
            hook,
            &self.cluster,
            self.recorder.apart(),
            self.options.workers,
            changed,
        );
        let built = match built {
            Ok(built) => Arc::new(built),
            Err(error) => {
                let rejected = Rejected::Unbuildable(error.to_string());
                return (Judgement::Rejected(rejected), None);
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
        let again = match taken {
            Ok(()) => {
                tracing::info!(name, "declared controller accepted");
                declared.before = before;
                declared.run = Some(Run { definition, health, runnable: kept });
                None
            }
            Err(error) => not_taken(name, &error),
        };
        (Judgement::Accepted, again)
    }

    /// Takes an edit back that waits. Returns when to try again, if that was not taken.
    async fn take_back(&self, name: &str, declared: &mut Declared) -> Option<Duration> {
        let before = declared.before.clone()?;
        let (same, options) = (before.runnable.clone(), self.options.runnable.clone());
        match self.manager.replace(runnable_name(name), same, options).await {
            Ok(()) => {
                declared.run = Some(before);
                None
            }
            Err(error) => not_taken(name, &error),
        }
    }

    /// Whether an edit waits for its types, while the old specification goes on.
    fn waits(&self, name: &str) -> bool {
        self.manager.status_of(runnable_name(name)).is_some_and(|status| status.pending.is_some())
    }

    fn hook(&self, definition: &Definition) -> Result<CountedHook, Rejected> {
        let sync = &definition.sync;
        let budget = self.options.answers.controller(&definition.name);
        let url = redaction::url(&sync.url);
        let series = || self.options.metrics.series(&definition.name, "CompositeController", &url);
        let hook = match &self.options.hooks {
            Some(make) => guard::run(|| make(definition))
                .map_err(|panic| Rejected::Unbuildable(format!("its hook panicked: {panic}")))?,
            None => {
                let hook = Webhook::new(sync.url.clone(), sync.timeout).budget(budget.clone());
                let hook = hook.error_excerpts(self.options.hook_error_excerpts);
                let hook = hook.user_agent(self.options.user_agent.clone());
                Arc::new(hook.etag(sync.etag).series(series()))
            }
        };
        Ok(CountedHook { hook, series: series(), budget })
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
        self.recorder.publish(context, &subject, Severity::Normal, "Stopped", &text);
        Ok(Outcome::Done)
    }
}

/// When a runnable is offered again that the manager did not take: the one before is on its way
/// out under the same name.
fn not_taken(name: &str, error: &AddError) -> Option<Duration> {
    tracing::debug!(%error, name, "declared controller not taken");
    match error {
        // This ends with the manager.
        AddError::Stopping => None,
        AddError::AlreadyThere(_) | AddError::NotThere(_) => Some(NOT_TAKEN),
    }
}

/// Plural and `apiVersion` of the parent type that an object names, whatever else is wrong with it.
fn parent_of(object: &Object) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Declaring {
        spec: Spec,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        parent_resource: Parent,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Parent {
        api_version: String,
        resource: String,
    }
    let declaring: Declaring = object.decode().ok()?;
    let Parent { api_version, resource } = declaring.spec.parent_resource;
    Some((resource, api_version))
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

/// Whether the CRD of CompositeControllers is gone or being deleted, asked of the server: its
/// watch and that of the objects are two, and either may be ahead.
async fn crd_is_going(client: &Client) -> Result<bool, kube::Error> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/\
                compositecontrollers.metacontroller.k8s.io";
    match resource::send::<Live>(client, Method::GET, path.to_owned(), "", None).await {
        Ok(crd) => Ok(crd.is_going()),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
