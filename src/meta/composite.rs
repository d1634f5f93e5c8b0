//! A composite controller: parents, their children, and the hook that decides on them.

mod apply;
mod parent_status;

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::{Client, core::Status};
use serde_json::{Value, json};

use super::{
    Blueprint, Hook, HookError, Selector,
    children::{Child, Group, Parent, Rules, owner_reference},
    claim::{self, Claim},
    hook, protocol,
    recorder::{Recorder, Severity, Subject},
    resource::{Resource, explain, is_conflict, is_fenced, is_not_found},
    roster::{Failure, Health, Roster},
};
use crate::{
    controller::{
        BuildError, Cluster, Context, Controller, Handler, Outcome, Predicate, ReconcileError,
        Reconciler, Request,
    },
    informer::{Delta, Object},
    kind::{Scope, TypeRef},
    manager::{
        ConditionalRunnable, ControllerName, Epoch, Readiness, RunResult, Runnable, Subresource,
        all_of, type_served,
    },
};

/// A declared composite controller, as the manager runs it.
pub(crate) struct CompositeRunnable {
    controller: Controller,
    parent: TypeRef,
    cluster: Cluster,
    roster: Arc<Roster>,
    hook: Arc<dyn Hook>,
}

struct Composite {
    blueprint: Arc<Blueprint>,
    hook: Arc<dyn Hook>,
    recorder: Recorder,
    roster: Arc<Roster>,
}

impl CompositeRunnable {
    /// Builds the controller of a blueprint. Starts nothing.
    pub(crate) fn new(
        name: ControllerName,
        blueprint: Arc<Blueprint>,
        hook: Arc<dyn Hook>,
        cluster: &Cluster,
        recorder: Recorder,
        workers: usize,
        health_changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let roster = Arc::new(Roster::new(health_changed));
        let (selector, ignore) =
            (blueprint.parent_selector.clone(), blueprint.ignore_status_changes);
        let mut builder = Controller::builder(name)
            .for_type(blueprint.parent.clone())
            .conditional()
            .predicate(Predicate::new(move |delta| worth_a_sync(delta, &selector, ignore)))
            .max_concurrent_reconciles(workers);
        for rule in &blueprint.children {
            let (roster, known) = (Arc::clone(&roster), Arc::clone(&roster));
            let handler = Handler::delta(move |delta, enqueue| {
                for parent in roster.concerned(delta) {
                    enqueue.add(parent);
                }
            });
            builder = builder.watches_type(rule.type_ref.clone(), handler);
            builder = if rule.optional {
                let roster = Arc::clone(&known);
                // Children of this type were left out as long as it was missing.
                builder.optional().on_synced(move |enqueue| {
                    for parent in roster.parents() {
                        enqueue.add(parent);
                    }
                })
            } else {
                builder.conditional()
            };
        }
        let reconciler = Composite {
            blueprint: Arc::clone(&blueprint),
            hook: Arc::clone(&hook),
            recorder,
            roster: Arc::clone(&roster),
        };
        Ok(Self {
            controller: builder.build(cluster, reconciler)?,
            parent: blueprint.parent.clone(),
            cluster: cluster.clone(),
            roster,
            hook,
        })
    }

    /// Whether its hook answers.
    pub(crate) fn health(&self) -> tokio::sync::watch::Receiver<Health> {
        self.roster.health()
    }
}

impl Runnable for CompositeRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let run = self.controller.start(epoch);
        let (roster, hook) = (Arc::clone(&self.roster), Arc::clone(&self.hook));
        Box::pin(async move {
            let end = run.await;
            roster.clear();
            hook.release().await;
            end
        })
    }

    fn reports_running(&self) -> bool {
        self.controller.reports_running()
    }

    fn keeps_grace(&self) -> bool {
        self.controller.keeps_grace()
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        self.controller.prepare()
    }

    fn unprepare(&self) {
        self.controller.unprepare();
    }
}

impl ConditionalRunnable for CompositeRunnable {
    fn ready(&self) -> Readiness {
        // The status is written through its subresource, so it must be there.
        let parent =
            type_served(&self.cluster.types, &self.parent).with_subresource(Subresource::Status);
        all_of([parent, self.controller.ready()])
    }
}

impl fmt::Debug for CompositeRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompositeRunnable").field("parent", &self.parent).finish_non_exhaustive()
    }
}

/// Whether a change of a parent is a reason to sync it.
///
/// One that stops matching passes once more, so that it is forgotten.
fn worth_a_sync(delta: &Delta, selector: &Selector, ignore_status_changes: bool) -> bool {
    let matches = |object: &Object| selector.matches(&object.header().labels);
    if !delta.old.iter().chain(&delta.new).any(matches) {
        return false;
    }
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) if ignore_status_changes => {
            let (old, new) = (old.header(), new.header());
            old.uid != new.uid
                || old.generation != new.generation
                || old.labels != new.labels
                || old.annotations != new.annotations
                || new.deletion_timestamp.is_some()
        }
        _ => true,
    }
}

/// Why a sync came to no end.
#[derive(Debug)]
enum SyncError {
    /// The epoch is over.
    Cancelled,
    /// The hook wants to be left alone.
    Busy(Duration),
    /// Somebody else wrote first, or the cache is behind: again soon, and no word about it.
    Behind(String),
    /// The hook gave no usable answer.
    Hook(Failure),
    /// Anything else that somebody has to know.
    Failed(String),
}

impl SyncError {
    fn of_write(doing: &str, error: &kube::Error) -> Self {
        if is_fenced(error) {
            Self::Cancelled
        } else if is_conflict(error) {
            Self::Behind(format!("{doing}: {}", explain(error)))
        } else {
            Self::Failed(format!("{doing}: {}", explain(error)))
        }
    }

    fn answer(message: String) -> Self {
        Self::Hook(Failure { reason: "HookAnswerInvalid", message })
    }
}

impl From<HookError> for SyncError {
    fn from(error: HookError) -> Self {
        match error {
            HookError::Cancelled => Self::Cancelled,
            HookError::Busy(after) => Self::Busy(after),
            HookError::Timeout(_)
            | HookError::Transport(_)
            | HookError::Status { .. }
            | HookError::TooLarge { .. }
            | HookError::Encoded(_) => {
                Self::Hook(Failure { reason: error.reason(), message: error.to_string() })
            }
        }
    }
}

impl Reconciler for Composite {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let parent = &self.blueprint.parent;
        let (Some(served), Some(store)) = (context.served(parent), context.store(parent)) else {
            return Ok(Outcome::Done);
        };
        let object = store
            .get(&request)
            .filter(|object| self.blueprint.parent_selector.matches(&object.header().labels));
        let Some(object) = object else {
            self.roster.forget(&request);
            return Ok(Outcome::Done);
        };
        let parent = Parent {
            key: request,
            uid: object.header().uid.clone(),
            terminating: object.header().deletion_timestamp.is_some(),
            served,
        };
        let message = match self.sync(&parent, &object, &context).await {
            Ok(outcome) => return Ok(outcome),
            Err(SyncError::Cancelled) => return Ok(Outcome::Done),
            Err(SyncError::Busy(after)) => return Ok(Outcome::RequeueAfter(after)),
            Err(SyncError::Behind(message)) => {
                let conflict = Status::failure(&message, "Conflict").with_code(409);
                return Err(ReconcileError::Retry(Box::new(kube::Error::Api(conflict.boxed()))));
            }
            Err(SyncError::Hook(failure)) => {
                let message = failure.message.clone();
                self.roster.failing(&parent.key, failure);
                message
            }
            Err(SyncError::Failed(message)) => message,
        };
        let subject = Subject {
            api_version: parent.served.identity.api_version(),
            kind: parent.served.kind.to_string(),
            namespace: parent.key.namespace.clone(),
            name: parent.key.name.clone(),
            uid: parent.uid.clone(),
        };
        let text = format!("Sync error: {message}");
        self.recorder
            .publish(context.client(), &subject, Severity::Warning, "SyncError", &text)
            .await;
        Err(ReconcileError::Retry(message.into()))
    }
}

impl Composite {
    async fn sync(
        &self,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<Outcome, SyncError> {
        let blueprint = &*self.blueprint;
        let selector = claim::selector_of(object.json(), &parent.uid, blueprint.generate_selector)
            .map_err(SyncError::Failed)?;
        // Before any child is read: a change from now on finds its parent.
        self.roster.enrol(&parent.key, &parent.uid, &selector);
        let (mut groups, mut stores, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for rule in &blueprint.children {
            match (context.served(&rule.type_ref), context.store(&rule.type_ref)) {
                (Some(served), Some(store)) => {
                    groups.push(Group { served, strategy: rule.strategy });
                    stores.push(store);
                }
                _ if rule.optional => missing.push(rule.type_ref.clone()),
                // A required type is gone: the epoch is about to stop.
                _ => return Err(SyncError::Cancelled),
            }
        }
        let mut candidates = Vec::new();
        for (group, store) in stores.iter().enumerate() {
            let own = parent.key.namespace.as_deref();
            if own.is_some() && groups[group].served.identity.scope == Scope::Cluster {
                continue;
            }
            let owned = store.controlled_by(&parent.uid).into_iter();
            let owned = owned.filter(|child| own.is_none_or(|own| in_namespace(child, own)));
            candidates.extend(owned.map(|child| (group, child)));
            if !parent.terminating {
                candidates.extend(store.orphans(own).into_iter().map(|child| (group, child)));
            }
        }
        let observed = self.claim(parent, &selector, &groups, candidates, context).await?;
        let request = protocol::sync_request(
            blueprint.sync.version,
            &blueprint.controller,
            parent,
            object.json(),
            &groups,
            &observed,
        );
        let answer = hook::call(&*self.hook, context.epoch(), request).await?;
        let response =
            protocol::sync_response(&answer, blueprint.sync.strict).map_err(SyncError::answer)?;
        let rules = Rules {
            parent,
            groups: &groups,
            missing: &missing,
            selector: &selector,
            generate_selector: blueprint.generate_selector,
            observed: &observed,
        };
        let desired = rules
            .check(response.children)
            .map_err(|wrong| SyncError::answer(format!("hook answer is unusable: {wrong}")))?;
        self.roster.healthy(&parent.key);
        let managed = if parent.terminating {
            Ok(())
        } else {
            self.execute(parent, &selector, &groups, rules.plan(desired), context).await
        };
        // Also when children failed: the status is what tells of it.
        if !matches!(managed, Err(SyncError::Cancelled)) {
            let status = response.status.unwrap_or_default();
            let written = self.write_status(parent, object, status, context).await;
            managed.and(written)?;
        } else {
            managed?;
        }
        let resync = [response.resync_after, blueprint.resync_period].into_iter().flatten().min();
        Ok(resync.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Sorts out which candidates are children; adopts and releases.
    async fn claim(
        &self,
        parent: &Parent,
        selector: &Selector,
        groups: &[Group],
        candidates: Vec<(usize, Object)>,
        context: &Context,
    ) -> Result<Vec<Child>, SyncError> {
        let mut children = Vec::new();
        // Asked once, and only when there is something to adopt.
        let mut alive = None;
        for (group, object) in candidates {
            let served = &groups[group].served;
            let resource = Resource::new(context.client(), served);
            let decision = claim::claim(object.header(), &parent.uid, parent.terminating, selector);
            match decision {
                Claim::Ignore => {}
                Claim::Owned => children.push(Child::new(group, &object)),
                Claim::Release => {
                    let patch = owners_patch(&object, |owners| {
                        owners.retain(|owner| owner["uid"] != *parent.uid);
                    });
                    match resource.merge_patch(object.key(), None, &patch).await {
                        Err(error) if !is_not_found(&error) => {
                            let doing = format!("releasing {} {}", served.kind, object.key());
                            return Err(SyncError::of_write(&doing, &error));
                        }
                        Ok(_) | Err(_) => {}
                    }
                }
                Claim::Adopt => {
                    let alive = match alive {
                        Some(alive) => alive,
                        None => *alive.insert(is_alive(parent, context.client()).await?),
                    };
                    if !alive {
                        continue;
                    }
                    let patch =
                        owners_patch(&object, |owners| owners.push(owner_reference(parent)));
                    match resource.merge_patch(object.key(), None, &patch).await {
                        Ok(adopted) => {
                            let adopted = Object::from_json(adopted.to_string(), served);
                            let adopted = adopted.map_err(|error| {
                                SyncError::Failed(format!("adopted {}: {error}", served.kind))
                            })?;
                            children.push(Child::new(group, &adopted));
                        }
                        Err(error) if is_not_found(&error) => {}
                        Err(error) => {
                            let doing = format!("adopting {} {}", served.kind, object.key());
                            return Err(SyncError::of_write(&doing, &error));
                        }
                    }
                }
            }
        }
        Ok(children)
    }
}

fn in_namespace(object: &Object, namespace: &str) -> bool {
    object.key().namespace.as_deref() == Some(namespace)
}

/// Reads the parent from the server: what the cache says may be over.
async fn is_alive(parent: &Parent, client: &Client) -> Result<bool, SyncError> {
    match Resource::new(client, &parent.served).get(&parent.key).await {
        Ok(live) => Ok(live.pointer("/metadata/uid") == Some(&json!(parent.uid))
            && live.pointer("/metadata/deletionTimestamp").is_none()),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(SyncError::of_write("reading the parent", &error)),
    }
}

/// A change of the owners alone, of exactly the object that was looked at.
fn owners_patch(object: &Object, change: impl FnOnce(&mut Vec<Value>)) -> Value {
    let json: Value = serde_json::from_slice(object.json()).unwrap_or_default();
    let mut owners = match json.pointer("/metadata/ownerReferences") {
        Some(Value::Array(owners)) => owners.clone(),
        _ => Vec::new(),
    };
    change(&mut owners);
    json!({
        "metadata": {
            "uid": object.header().uid,
            "resourceVersion": object.header().resource_version,
            "ownerReferences": owners,
        }
    })
}
