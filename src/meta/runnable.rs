//! Runnable of a declared controller: its sources, predicates and lifecycle.

mod current;
mod release;
mod swap;

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use tokio::time::timeout;

use self::{
    current::CurrentSync,
    release::{Cleanup, warn_of},
};
use crate::{
    controller::{
        Backoff, BuildError, Builder, Cluster, Controller, ControllerDefaults, Handler, Predicate,
    },
    informer::{Delta, Header, Object},
    manager::{
        ConditionalRunnable, ControllerName, Epoch, Readiness, RunResult, Runnable, Subresource,
        all_of, always, some_of, subresource_served_if_crd, type_served,
    },
    meta::{
        api::controller_kind::ControllerKind,
        definition::{ChildRule, Definition, ParentRule, ParentType, finalizer::Finalizer},
        hooks::{counted::Hooks, rule::HookKind},
        options::MetaOptions,
        parent::health::Health,
        parents::Parents,
        recorder::EventRecorder,
        related::RelatedObjects,
        rollout::{REVISIONS, RevisionInput, RolloutObserver},
        sync::ParentReconciler,
    },
};

/// Maximum number of concurrent syncs of a controller, unless it has more workers. Syncs that write
/// have released their worker, and count too.
const MOST_SYNCS: usize = 50;

/// Time for which a swap waits for the first list of revisions.
const REVISIONS_TIMEOUT: Duration = Duration::from_secs(2);

/// Runnable of a declared controller.
pub(crate) struct DeclaredRunnable {
    controller: Controller,
    cluster: Cluster,
    parents: Arc<Parents>,
    current: CurrentSync,
}

impl DeclaredRunnable {
    /// Builds the runnable of a definition. Starts nothing.
    pub(crate) fn new(
        name: ControllerName,
        definition: Arc<Definition>,
        hooks: Hooks,
        cluster: &Cluster,
        recorder: EventRecorder,
        options: &Arc<MetaOptions>,
        health_changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let mut parents = Parents::new(health_changed);
        parents.related = Arc::new(RelatedObjects::new(Arc::clone(options)));
        let parents = Arc::new(parents);
        let current = CurrentSync::new(ParentReconciler::new(
            Arc::clone(&definition),
            hooks,
            recorder,
            Arc::clone(&parents),
            Arc::clone(options),
            cluster.namespace.clone(),
            cluster.types.clone(),
        ));
        let mut builder = Controller::builder(name)
            // A resync is due regardless of the back-off.
            .backoff(Backoff::default())
            .max_concurrent_reconciles(current.get().workers())
            .most_running(MOST_SYNCS);
        builder = add_parents(builder, &definition, &current);
        builder = add_children(builder, &definition, &current, &parents);
        // Inputs and limits are those of the declaration.
        let own = cluster.clone().with_defaults(ControllerDefaults::default());
        let controller = builder.build(&own, current.clone())?;
        let runnable = Self { controller, cluster: cluster.clone(), parents, current };
        runnable.follow_rollouts();
        Ok(runnable)
    }

    /// Adds what rolling child types need, if the current definition has any, and removes it
    /// otherwise: the input of revisions, with its condition, and the report of rollouts.
    fn follow_rollouts(&self) {
        let (current, parents) = (self.current.get(), &self.parents);
        let is_rolling = current.definition.is_rolling();
        let observer = is_rolling.then(|| rollout_observer(&current.hooks, parents));
        parents.rollouts.report_to(observer);
        parents.revisions.follow(is_rolling, &self.controller.inputs());
    }

    /// Returns whether a definition has rolling child types and the current one has none.
    fn begins_to_roll(&self, definition: &Definition) -> bool {
        definition.is_rolling() && !self.current.get().definition.is_rolling()
    }

    /// Returns the condition of a definition on the type of revisions, before it is swapped in.
    pub(crate) fn revisions_served(&self, definition: &Definition) -> Readiness {
        match self.begins_to_roll(definition) {
            true => RevisionInput::served(&self.cluster.types),
            false => always(),
        }
    }

    /// Waits for the first list of revisions, before a definition that needs it is swapped in.
    /// Returns whether the swap may follow.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped wait leaves the input.
    pub(crate) async fn revisions_listed(&self, definition: &Definition) -> bool {
        if !self.begins_to_roll(definition) {
            return true;
        }
        let added = self.parents.revisions.add(&self.controller.inputs());
        let listed = timeout(REVISIONS_TIMEOUT, added.started()).await;
        let is_listed = matches!(listed, Ok(Ok(())));
        if !is_listed {
            self.follow_rollouts();
        }
        is_listed
    }

    /// Returns the health of the hook, and each later change.
    pub(crate) fn health(&self) -> tokio::sync::watch::Receiver<Health> {
        self.parents.hook.subscribe()
    }
}

/// Adds the types of the parents, whose changes sync them.
fn add_parents(mut builder: Builder, definition: &Definition, current: &CurrentSync) -> Builder {
    for (primary, parent) in definition.parents.iter().enumerate() {
        let keeps_managed_fields = current.get().options.strictness.managed_fields;
        let current = current.clone();
        builder =
            builder.for_type(parent.type_ref.clone()).predicate(Predicate::new(move |delta| {
                let current = current.get();
                let parent = current.definition.parents.get(primary);
                parent.is_some_and(|parent| triggers_sync(delta, parent, &current.finalizer))
            }));
        builder = match definition.kind {
            ControllerKind::Composite => builder.conditional(),
            // Any one of the types is enough: see `ready`.
            ControllerKind::Decorator => builder.optional(),
        };
        if keeps_managed_fields {
            builder = builder.managed_fields();
        }
    }
    builder
}

/// Adds the types of the children, whose changes sync the parents that they concern.
fn add_children(
    mut builder: Builder,
    definition: &Definition,
    current: &CurrentSync,
    parents: &Arc<Parents>,
) -> Builder {
    for (child, rule) in definition.children.iter().enumerate() {
        let current = current.clone();
        let keeps_managed_fields = current.get().options.strictness.managed_fields;
        let handler = Handler::delta(move |delta, enqueue| {
            let current = current.get();
            let rule = current.definition.children.get(child);
            let is_ignored = rule.is_some_and(|rule| !child_triggers_sync(delta, rule));
            if is_claimable(delta) && !is_ignored {
                delta.interests.iter().for_each(|parent| enqueue.add(&**parent));
            }
        });
        // A new watch delivers only what concerns the parents that are synced after it began.
        let parents = Arc::clone(parents);
        builder = builder.claims_type(rule.type_ref.clone(), handler).on_synced(move |enqueue| {
            parents.states.keys().into_iter().for_each(|parent| enqueue.add(parent));
        });
        builder = if rule.optional { builder.optional() } else { builder.conditional() };
        if keeps_managed_fields {
            builder = builder.managed_fields();
        }
    }
    builder
}

/// Returns the observer of rollouts, which reports them in the health of the hook and in metrics.
fn rollout_observer(hooks: &Hooks, parents: &Parents) -> RolloutObserver {
    let all = [HookKind::Sync, HookKind::Finalize];
    let hook = all.into_iter().find_map(|kind| hooks.get(kind));
    let series = hook.map(|hook| hook.series.unregistered_copy());
    let health = Arc::clone(&parents.hook);
    Box::new(move |rollouts| {
        health.rolled(rollouts);
        if let Some(series) = &series {
            series.rollouts(rollouts.pending, rollouts.since);
        }
    })
}

impl Runnable for DeclaredRunnable {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let parents = Arc::clone(&self.parents);
        let cleanup = Cleanup::new(parents, self.current.clone(), epoch.clone());
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

    /// Fills caches and queue before this replica leads; its workers wait.
    fn warms_up(&self) -> bool {
        self.controller.warms_up()
    }

    fn keeps_grace(&self) -> bool {
        self.controller.keeps_grace()
    }

    fn prepare(&self) -> BoxFuture<'static, RunResult> {
        let prepared = self.controller.prepare();
        if !self.current.get().definition.is_rolling() {
            return prepared;
        }
        let revisions = self.controller.prepare_input(REVISIONS);
        async move {
            prepared.await?;
            revisions.await
        }
        .boxed()
    }

    fn unprepare(&self) {
        self.controller.unprepare();
    }

    fn debug(&self) -> Option<serde_json::Value> {
        self.controller.debug()
    }
}

impl ConditionalRunnable for DeclaredRunnable {
    fn ready(&self) -> Readiness {
        let current = self.current.get();
        let (types, parents) = (&self.cluster.types, current.definition.parent_types());
        let parents = match current.definition.kind {
            // The status is written through its subresource, which a CRD must have. Of another type
            // without one no status is written.
            ControllerKind::Composite => {
                all_of(parents.map(|it| subresource_served_if_crd(types, it, Subresource::Status)))
            }
            ControllerKind::Decorator => some_of(parents.map(|it| type_served(types, it))),
        };
        let revisions = self.parents.revisions.ready(types);
        all_of([parents, self.controller.ready(), current.hooks.ready(), revisions])
    }
}

impl fmt::Debug for DeclaredRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredRunnable")
            .field("name", &self.current.get().definition.name)
            .finish_non_exhaustive()
    }
}

/// Returns whether a change of a parent triggers a sync, by one of the rules that select it.
///
/// All rules count for a parent that none selects, while it has the finalizer of the controller.
/// The change that ends both passes, so that the reconciler forgets the parent.
fn triggers_sync(delta: &Delta, parent: &ParentType, finalizer: &Finalizer) -> bool {
    let versions = || delta.old.iter().chain(&delta.new).map(|object| object.header());
    let wants = |rule: &ParentRule| {
        !rule.ignore_status_changes || changes_more_than_status(delta, finalizer)
    };
    let mut selecting =
        parent.rules.iter().filter(|rule| versions().any(|it| rule.selects(it))).peekable();
    if selecting.peek().is_some() {
        return selecting.any(wants);
    }
    versions().any(|it| finalizer.is_on(it)) && parent.rules.iter().any(wants)
}

/// Returns whether a change of a parent is more than one of its status.
fn changes_more_than_status(delta: &Delta, finalizer: &Finalizer) -> bool {
    changes_beside_status(delta, |old, new| {
        new.deletion_timestamp.is_some() || finalizer.is_on(old) != finalizer.is_on(new)
    })
}

/// Returns whether a change of a child triggers syncs of the parents that it concerns.
fn child_triggers_sync(delta: &Delta, rule: &ChildRule) -> bool {
    let ignored = rule.ignore_status_changes && !rule.strategy.is_rolling();
    !ignored
        || changes_beside_status(delta, |old, new| {
            old.deletion_timestamp != new.deletion_timestamp || old.owners != new.owners
        })
}

/// Returns whether a parent may own a version of a child, or adopt it. An orphan that is deleted, or
/// being deleted, cannot be adopted.
fn is_claimable(delta: &Delta) -> bool {
    let mut versions = delta.old.iter().chain(&delta.new).map(Object::header);
    versions.any(|version| {
        let is_deleted = delta.new.is_none() || version.deletion_timestamp.is_some();
        !version.owners.is_empty() || !is_deleted
    })
}

/// Returns whether an object was created or deleted, or differs in its generation, labels,
/// annotations or the fields that `differs` compares. Without generations, as of a ConfigMap, any
/// change counts.
fn changes_beside_status(delta: &Delta, differs: impl Fn(&Header, &Header) -> bool) -> bool {
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) => {
            let (old, new) = (old.header(), new.header());
            old.generation != new.generation
                || new.generation == 0
                || old.labels != new.labels
                || old.annotations != new.annotations
                || differs(old, new)
        }
        (None, _) | (_, None) => true,
    }
}

#[cfg(test)]
mod tests;
