//! Reconciler of the parents of one declared controller. Each reconcile reads the parent, and is one
//! sync of it (`parent_sync`).
//!
//! The values of a sync keep its steps in order: a reader returns what was observed, with which the
//! hook is called; the call returns a checked response, which is planned and written.

mod adopt;
mod children_writes;
mod composite;
mod customize;
mod decorated_object;
mod decoration;
mod decorator;
mod hook_call;
mod observation;
mod owner_chain;
mod parent_sync;
mod parent_writes;
mod report;
mod revision_writes;
mod revisions;
mod rollout;

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::parent_sync::ParentSync;
use crate::{
    controller::{Context, ObjectGone, Outcome, PostponedError, ReconcileError, Request},
    discovery::{TypeRegistry, TypeState},
    kind::TypeRef,
    meta::{
        api::controller_kind::ControllerKind,
        apply::Apply,
        definition::{Definition, finalizer::Finalizer},
        hooks::counted::Hooks,
        options::MetaOptions,
        parent::{Parent, resync, sync_error::SyncError},
        parents::Parents,
        recorder::EventRecorder,
    },
    redaction,
};

/// Delay before a request whose type is not listed yet is retried.
const NOT_LISTED_AGAIN: Duration = Duration::from_secs(5);

/// Reconciler of the parents of one declared controller.
pub(crate) struct ParentReconciler {
    pub(crate) definition: Arc<Definition>,
    pub(crate) finalizer: Finalizer,
    pub(crate) hooks: Hooks,
    pub(crate) apply: Apply,
    pub(crate) recorder: EventRecorder,
    pub(crate) parents: Arc<Parents>,
    /// Options of the process.
    pub(crate) options: Arc<MetaOptions>,
    /// Namespace that is watched, if only one is.
    pub(crate) restricted: Option<Arc<str>>,
    pub(crate) types: TypeRegistry,
    /// Syncs that run.
    pub(crate) running: TaskTracker,
}

/// Request for an object whose type has no cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UncachedReason {
    /// The type is proven missing, and its objects with it.
    Gone,
    /// The epoch is about to stop: a composite needs its parent type.
    TypeStopping,
    /// The type of a decorator is not listed yet.
    NotListed,
}

impl UncachedReason {
    fn of(kind: ControllerKind, state: &TypeState) -> Self {
        match kind {
            _ if state.is_missing() => Self::Gone,
            ControllerKind::Composite => Self::TypeStopping,
            ControllerKind::Decorator => Self::NotListed,
        }
    }
}

impl ParentReconciler {
    pub(crate) fn new(
        definition: Arc<Definition>,
        hooks: Hooks,
        recorder: EventRecorder,
        parents: Arc<Parents>,
        options: Arc<MetaOptions>,
        restricted: Option<Arc<str>>,
        types: TypeRegistry,
    ) -> Self {
        let has_finalize = definition.finalize.is_some();
        let budget = hooks.budget.clone();
        let rule = definition.apply_rule();
        Self {
            finalizer: Finalizer::of(definition.kind, &definition.name, has_finalize),
            apply: Apply { rule, budget, parents: parents.clone(), options: options.clone() },
            definition,
            hooks,
            recorder,
            parents,
            options,
            restricted,
            types,
            running: TaskTracker::new(),
        }
    }

    /// Returns the reconciler of another definition of the same controller, which shares the state
    /// of the parents.
    pub(crate) fn with(&self, definition: Arc<Definition>, hooks: Hooks) -> Self {
        Self::new(
            definition,
            hooks,
            self.recorder.clone(),
            Arc::clone(&self.parents),
            Arc::clone(&self.options),
            self.restricted.clone(),
            self.types.clone(),
        )
    }

    /// Returns the maximum number of concurrent hook calls.
    pub(crate) fn workers(&self) -> usize {
        self.definition.workers.unwrap_or(self.options.workers)
    }

    /// Syncs a parent, or takes the step that precedes it.
    pub(crate) async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let Some(parent) = self.definition.parents.get(request.primary) else {
            return Ok(Outcome::Done);
        };
        let type_ref = &parent.type_ref;
        let (Ok(served), Ok(store)) = (context.served(type_ref), context.store(type_ref)) else {
            return self.without_cache(type_ref, &request, &context);
        };
        let found = store.get(&request);
        if found.as_ref().is_some_and(|object| !object.is_whole()) {
            // The cache is that of children of the same type. The parents are not listed yet.
            return self.without_cache(type_ref, &request, &context);
        }
        let found = found.and_then(|object| {
            let header = object.header();
            Some((self.finalizer.first_step(header, parent.selects(header))?, object))
        });
        let Some((step, object)) = found else {
            self.forget(&request, &context);
            return Err(ReconcileError::Terminal(ObjectGone.into()));
        };
        let uid = object.header().uid.clone();
        let parent = Parent {
            state: self.parents.states.begin(&request, &uid),
            key: request,
            uid,
            terminating: object.header().deletion_timestamp.is_some(),
            served,
        };
        let sync = ParentSync::new(self, &parent, &object, &context);
        let synced = AssertUnwindSafe(sync.run(step)).catch_unwind().await;
        self.schedule_resync(&parent, &context);
        let synced = synced.unwrap_or_else(|panic| {
            // The message goes to the status, so it must not quote the values of a panic.
            resume_unwind(Box::new(redaction::panic_message(&*panic).to_owned()))
        });
        if !matches!(synced, Ok(_) | Err(SyncError::HookDown(..) | SyncError::Cancelled)) {
            self.parents.hook.stop_waiting(&parent.key);
        }
        synced.or_else(|error| sync.reporter.failed(error))
    }

    /// Handles a request whose type has no cache. The objects of a type that is proven missing are
    /// gone. A type that is served is not listed yet, or the epoch is about to stop.
    fn without_cache(
        &self,
        type_ref: &TypeRef,
        request: &Request,
        context: &Context,
    ) -> Result<Outcome, ReconcileError> {
        match UncachedReason::of(self.definition.kind, &self.types.get(type_ref).state) {
            UncachedReason::Gone => {
                self.forget(request, context);
                Err(ReconcileError::Terminal(ObjectGone.into()))
            }
            UncachedReason::TypeStopping => Ok(Outcome::Done),
            // Not a success, which would end the failures of the request.
            UncachedReason::NotListed => {
                Err(ReconcileError::RetryAfter(PostponedError.into(), NOT_LISTED_AGAIN))
            }
        }
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    fn forget(&self, key: &Request, context: &Context) {
        let children = self.definition.children.iter().map(|rule| &rule.type_ref);
        for type_ref in children {
            if let Some(moving) = context.moving_interests(type_ref) {
                moving.remove(key);
            }
        }
        self.parents.revisions.forget(key, context);
        self.parents.related.forget(key, context);
        self.parents.forget(key);
        for hook in self.hooks.all() {
            hook.hook.forget(key);
        }
        context.resync(key.clone(), None);
    }

    /// Returns the next end of the period of resyncs of a parent.
    pub(crate) fn next_tick(&self, uid: &str) -> Option<Instant> {
        let period = self.definition.resync_period;
        period.and_then(|period| resync::tick(period, uid, self.parents.begin, Instant::now()))
    }

    /// Sets the time of the next resync, which failures and events do not change.
    fn schedule_resync(&self, parent: &Parent, context: &Context) {
        let tick = self.next_tick(&parent.uid);
        context.resync(parent.key.clone(), parent.state.next_resync(tick));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_whose_type_has_no_cache_ends_by_proof_of_absence_alone() {
        use ControllerKind::{Composite, Decorator};
        use TypeState::{Absent, NotWatchable, Served, Terminating, Unknown};

        let last = |state| Unknown(Some(Box::new(state)));
        for (kind, state, expected) in [
            (Composite, Absent, UncachedReason::Gone),
            (Decorator, Absent, UncachedReason::Gone),
            (Decorator, NotWatchable, UncachedReason::Gone),
            (Decorator, last(Absent), UncachedReason::Gone),
            (Composite, Served, UncachedReason::TypeStopping),
            (Composite, Unknown(None), UncachedReason::TypeStopping),
            (Decorator, Served, UncachedReason::NotListed),
            (Decorator, Terminating, UncachedReason::NotListed),
            (Decorator, last(Served), UncachedReason::NotListed),
            (Decorator, Unknown(None), UncachedReason::NotListed),
        ] {
            assert_eq!(UncachedReason::of(kind, &state), expected, "{kind} {state:?}");
        }
    }
}
