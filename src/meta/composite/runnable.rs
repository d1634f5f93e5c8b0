//! Runnable of a declared composite controller: its sources, predicates and lifecycle.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    Composite,
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
        ControllerBudget, Definition, Hook, HookSeries, Parents, Selector,
        credentials::HookEndpoint, hook_health::Health, recorder::EventRecorder,
    },
};

/// Runnable of a declared composite controller.
pub(crate) struct CompositeRunnable {
    controller: Controller,
    parent: TypeRef,
    cluster: Cluster,
    parents: Arc<Parents>,
    hook: Arc<dyn Hook>,
    endpoint: Option<Arc<HookEndpoint>>,
}

/// Hook of a controller, with the metrics of its calls and the budget of its responses.
pub(crate) struct CountedHook {
    pub(crate) hook: Arc<dyn Hook>,
    pub(crate) series: HookSeries,
    pub(crate) budget: ControllerBudget,
    /// Endpoint of the hook, if it is declared.
    pub(crate) endpoint: Option<Arc<HookEndpoint>>,
}

impl CompositeRunnable {
    /// Builds the runnable of a definition. Starts nothing.
    pub(crate) fn new(
        name: ControllerName,
        definition: Arc<Definition>,
        hook: CountedHook,
        cluster: &Cluster,
        recorder: EventRecorder,
        workers: usize,
        health_changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let CountedHook { hook, series, budget, endpoint } = hook;
        let parents = Arc::new(Parents::new(health_changed));
        let (selector, ignore) =
            (definition.parent_selector.clone(), definition.ignore_status_changes);
        let backoff = backoff(definition.resync_period);
        let mut builder = Controller::builder(name)
            .for_type(definition.parent.clone())
            .conditional()
            .predicate(Predicate::new(move |delta| triggers_sync(delta, &selector, ignore)))
            .backoff(backoff)
            .max_concurrent_reconciles(workers);
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
        }
        let reconciler = Composite {
            definition: Arc::clone(&definition),
            hook: Arc::clone(&hook),
            series,
            budget,
            recorder,
            parents: Arc::clone(&parents),
            backoff,
            restricted: cluster.namespace.clone(),
        };
        Ok(Self {
            controller: builder.build(cluster, reconciler)?,
            parent: definition.parent.clone(),
            cluster: cluster.clone(),
            parents,
            hook,
            endpoint,
        })
    }

    /// Returns the health of the hook, and each later change.
    pub(crate) fn health(&self) -> tokio::sync::watch::Receiver<Health> {
        self.parents.hook.subscribe()
    }
}

impl Runnable for CompositeRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let cleanup =
            Cleanup::new(Arc::clone(&self.parents), Arc::clone(&self.hook), epoch.clone());
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
        let endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.ready());
        all_of([parent, self.controller.ready()].into_iter().chain(endpoint))
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
/// The change that makes a parent stop matching passes, so that the reconciler forgets it.
fn triggers_sync(delta: &Delta, selector: &Selector, ignore_status_changes: bool) -> bool {
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

#[cfg(test)]
mod tests;
