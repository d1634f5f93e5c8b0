//! Runnable of a declared composite controller: its sources, predicates and lifecycle.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    Composite, Hooks,
    release::{Cleanup, warn_of},
};
use crate::{
    controller::{Backoff, BuildError, Cluster, Controller, Handler, Predicate},
    informer::{Delta, Object},
    kind::TypeRef,
    manager::{
        ConditionalRunnable, ControllerName, Epoch, Readiness, RunResult, Runnable, Subresource,
        all_of, subresource_served,
    },
    meta::{
        Definition, Hook, Lenience, Parents, Selector, apply::Apply, credentials::HookEndpoint,
        finalizer::Finalizer, hook_health::Health, recorder::EventRecorder, related::Related,
    },
};

/// Maximum number of concurrent syncs of a controller, unless it has more workers: those with a
/// worker, which call the hook, and those that write.
const MOST_SYNCS: usize = 50;

/// Runnable of a declared composite controller.
pub(crate) struct CompositeRunnable {
    controller: Controller,
    parent: TypeRef,
    cluster: Cluster,
    parents: Arc<Parents>,
    hooks: Vec<Arc<dyn Hook>>,
    endpoints: Vec<Arc<HookEndpoint>>,
}

impl CompositeRunnable {
    /// Builds the runnable of a definition. Starts nothing.
    pub(crate) fn new(
        name: ControllerName,
        definition: Arc<Definition>,
        hooks: Hooks,
        cluster: &Cluster,
        recorder: EventRecorder,
        workers: usize,
        health_changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let mut parents = Parents::new(health_changed);
        let Lenience { unlimited_writes, managed_fields, .. } = definition.lenience;
        parents.recreates_at_once = definition.recreates_at_once;
        parents.writes.unlimited = unlimited_writes;
        parents.related = Arc::new(Related::new(managed_fields));
        let parents = Arc::new(parents);
        let (selector, ignore) =
            (definition.parent_selector.clone(), definition.ignore_status_changes);
        let finalizer = Finalizer::composite(&definition.name, definition.finalize.is_some());
        let of_parent = finalizer.clone();
        let backoff = backoff(definition.resync_period);
        let mut builder = Controller::builder(name)
            .for_type(definition.parent.clone())
            .conditional()
            .predicate(Predicate::new(move |delta| {
                triggers_sync(delta, &selector, ignore, &of_parent)
            }))
            .backoff(backoff)
            .max_concurrent_reconciles(workers)
            .most_running(MOST_SYNCS);
        if managed_fields {
            builder = builder.managed_fields();
        }
        for rule in &definition.children {
            let (parents, synced) = (Arc::clone(&parents), Arc::clone(&parents));
            let handler = Handler::delta(move |delta, enqueue| {
                for parent in parents.index.concerned(delta) {
                    enqueue.add(parent);
                }
            });
            // A new watch delivers only what concerns the parents that are synced after it began.
            builder =
                builder.claims_type(rule.type_ref.clone(), handler).on_synced(move |enqueue| {
                    for parent in synced.index.keys() {
                        enqueue.add(parent);
                    }
                });
            builder = if rule.optional { builder.optional() } else { builder.conditional() };
            if managed_fields {
                builder = builder.managed_fields();
            }
        }
        let endpoints = hooks.all().filter_map(|hook| hook.endpoint.clone()).collect();
        let made = hooks.all().map(|hook| Arc::clone(&hook.hook)).collect();
        let reconciler = Composite {
            definition: Arc::clone(&definition),
            finalizer,
            apply: Apply { budget: hooks.budget.clone(), parents: Arc::clone(&parents) },
            budget: hooks.budget.clone(),
            hooks,
            recorder,
            parents: Arc::clone(&parents),
            backoff,
            restricted: cluster.namespace.clone(),
            types: cluster.types.clone(),
        };
        Ok(Self {
            controller: builder.build(cluster, reconciler)?,
            parent: definition.parent.clone(),
            cluster: cluster.clone(),
            parents,
            hooks: made,
            endpoints,
        })
    }

    /// Returns the health of the hook, and each later change.
    pub(crate) fn health(&self) -> tokio::sync::watch::Receiver<Health> {
        self.parents.hook.subscribe()
    }
}

impl Runnable for CompositeRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let cleanup = Cleanup::new(Arc::clone(&self.parents), self.hooks.clone(), epoch.clone());
        let run = self.controller.start(epoch.clone());
        Box::pin(async move {
            let end = run.await;
            match (end, cleanup.run().await) {
                (Ok(()), released) => Ok(released?),
                (failed, Ok(())) => failed,
                (failed, Err(error)) => {
                    warn_of(&epoch, &error);
                    failed
                }
            }
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
        // The status is written through its subresource, which must be served.
        let parent = subresource_served(&self.cluster.types, &self.parent, Subresource::Status);
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.ready());
        all_of([parent, self.controller.ready()].into_iter().chain(endpoints))
    }
}

impl fmt::Debug for CompositeRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompositeRunnable").field("parent", &self.parent).finish_non_exhaustive()
    }
}

/// Back-off of failed syncs, at most as long as the resync period.
fn backoff(resync_period: Option<Duration>) -> Backoff {
    let longest = Backoff::default().max;
    Backoff { max: resync_period.unwrap_or(longest).min(longest), ..Backoff::default() }
}

/// Returns whether a change of a parent triggers a sync.
///
/// A parent with the finalizer of the controller passes even if it does not match. The change that
/// ends both passes, so that the reconciler forgets the parent.
fn triggers_sync(
    delta: &Delta,
    selector: &Selector,
    ignore_status_changes: bool,
    finalizer: &Finalizer,
) -> bool {
    let matches = |object: &Object| {
        selector.matches(&object.header().labels) || finalizer.is_on(object.header())
    };
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
                || finalizer.is_on(old) != finalizer.is_on(new)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests;
