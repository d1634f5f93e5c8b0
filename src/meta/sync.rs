//! Sync of one parent, the same for both kinds of controllers: finalizer, related objects, claim,
//! hook and check. The writes after the response differ: see `composite` and `decorator`.

mod adopt;
mod composite;
mod customize;
mod decorated_object;
mod decoration;
mod decorator;
mod hook_call;
mod observation;
mod owner_chain;
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

use self::{
    customize::RelatedReader,
    hook_call::{HookCaller, HookResponse, RevisionCall, SyncCaller},
    observation::ChildReader,
    parent_writes::ParentWriter,
    report::SyncReporter,
    revisions::RolloutSync,
};
use crate::{
    controller::{Context, ObjectGone, Outcome, PostponedError, ReconcileError, Request},
    discovery::{TypeChange, TypeRegistry, TypeState},
    informer::Object,
    kind::TypeRef,
    meta::{
        api::controller_kind::ControllerKind,
        apply::Apply,
        children::{
            CheckedChildren, ChildContext, adoption::AdoptionRule, claim, ownership::Ownership,
        },
        definition::{
            Definition,
            finalizer::{Finalizer, FirstStep},
        },
        hooks::{
            budget::ControllerBudget,
            counted::{CountedHook, Hooks},
            rule::HookKind,
        },
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
    pub(crate) budget: ControllerBudget,
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
    /// Returns the reconciler of another definition of the same controller, which shares the state
    /// of the parents.
    pub(crate) fn with(&self, definition: Arc<Definition>, hooks: Hooks) -> Self {
        let (kind, has_finalize) = (definition.kind, definition.finalize.is_some());
        let parents = Arc::clone(&self.parents);
        Self {
            finalizer: Finalizer::of(kind, &definition.name, has_finalize),
            apply: Apply {
                rule: definition.apply_rule(),
                budget: hooks.budget.clone(),
                parents: Arc::clone(&parents),
                options: Arc::clone(&self.options),
            },
            budget: hooks.budget.clone(),
            definition,
            hooks,
            recorder: self.recorder.clone(),
            parents,
            options: Arc::clone(&self.options),
            restricted: self.restricted.clone(),
            types: self.types.clone(),
            running: TaskTracker::new(),
        }
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
        let found = found.map(|object| {
            let header = object.header();
            (self.finalizer.first_step(header, parent.selects(header)), object)
        });
        let (step, object) = match found {
            None | Some((FirstStep::Forget, _)) => {
                self.forget(&request, &context);
                return Err(ReconcileError::Terminal(ObjectGone.into()));
            }
            Some(found) => found,
        };
        let uid = object.header().uid.clone();
        let parent = Parent {
            state: self.parents.states.begin(&request, &uid),
            key: request,
            uid,
            terminating: object.header().deletion_timestamp.is_some(),
            served,
        };
        let synced = AssertUnwindSafe(self.run_step(step, &parent, &object, &context));
        let synced = synced.catch_unwind().await;
        self.schedule_resync(&parent, &context);
        let synced = synced.unwrap_or_else(|panic| {
            // The message goes to the status, so it must not quote the values of a panic.
            resume_unwind(Box::new(redaction::panic_message(&*panic).to_owned()))
        });
        if !matches!(synced, Ok(_) | Err(SyncError::HookDown(..) | SyncError::Cancelled)) {
            self.parents.hook.stop_waiting(&parent.key);
        }
        synced.or_else(|error| self.report(&parent, &context).failed(error))
    }

    fn writer<'a>(&'a self, parent: &'a Parent, context: &'a Context) -> ParentWriter<'a> {
        let (finalizer, apply, patches) = (&self.finalizer, &self.apply, &self.parents.patches);
        ParentWriter { finalizer, patches, apply, parent, context }
    }

    fn caller<'a>(&'a self, parent: &'a Parent, context: &'a Context) -> HookCaller<'a> {
        HookCaller {
            definition: &self.definition,
            options: &self.options,
            budget: &self.budget,
            health: &self.parents.hook,
            parent,
            context,
        }
    }

    fn report<'a>(&'a self, parent: &'a Parent, context: &'a Context) -> SyncReporter<'a> {
        let (recorder, health, types) = (&self.recorder, &*self.parents.hook, &self.types);
        SyncReporter { recorder, health, types, parent, context }
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

    /// Runs the first step of a sync. After a change of the finalizer, the parent is reconciled
    /// again with its new version.
    async fn run_step(
        &self,
        step: FirstStep,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<Outcome, SyncError> {
        match step {
            FirstStep::Forget => Ok(Outcome::Done),
            FirstStep::Add => {
                self.writer(parent, context).add_finalizer(object.header()).await?;
                Ok(Outcome::RequeueAfter(Duration::ZERO))
            }
            FirstStep::Remove => {
                self.writer(parent, context).remove_finalizer(object.header()).await?;
                Ok(Outcome::RequeueAfter(Duration::ZERO))
            }
            FirstStep::Call(kind) => match self.hooks.get(kind) {
                Some(hook) => self.sync(hook, parent, object, context).await,
                // Only the finalize hook is declared, and nothing is to be finalized.
                None => Ok(Outcome::Done),
            },
        }
    }

    /// Syncs a parent: reads related objects and children, calls the hook, and applies its
    /// response.
    async fn sync(
        &self,
        hook: &CountedHook,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<Outcome, SyncError> {
        let ownership = self.ownership(parent, object)?;
        self.report(parent, context).selector(&ownership);
        let last = parent.state.take_record();
        let rolls =
            self.definition.is_rolling() && self.finalizer.manages_children(object.header());
        let namespace = parent.key.namespace.as_ref().or(self.restricted.as_ref());
        let rollout = RolloutSync {
            definition: &self.definition,
            budget: &self.budget,
            apply: &self.apply.rule,
            parents: &self.parents,
            namespace: namespace.unwrap_or(&self.options.revision_namespace),
            reporter: self.report(parent, context),
        };
        let revisions = if rolls { Some(rollout.claim(object).await?) } else { None };
        let older = revisions.as_ref().map_or(&[][..], |revisions| &revisions.older);
        let reader = RelatedReader {
            caller: self.caller(parent, context),
            hook: self.hooks.get(HookKind::Customize),
            related: &self.parents.related,
            types: &self.types,
            restricted: self.restricted.as_deref(),
        };
        let related = reader.latest(object, older).await?;
        let children = ChildReader {
            definition: &self.definition,
            types: &self.types,
            parents: &self.parents,
            restricted: self.restricted.as_deref(),
            parent,
            context,
        };
        let observed = children.observe(ownership).await?;
        let is_unread = |missing: &&TypeRef| !self.types.get(missing).state.is_missing();
        if hook.kind == HookKind::Finalize
            && let Some(unread) = observed.missing.iter().find(is_unread)
        {
            // A hook that sees no children may answer that the parent is finalized.
            return Err(SyncError::Outdated(format!("finalizing: {unread} is not listed")));
        }
        let rules = observed.rules();
        let digest = revisions.as_ref().map_or(0, |revisions| revisions.digest);
        let caller = self.caller(parent, context);
        let calls = SyncCaller { caller, hook, observed: &observed, digest };
        let response = calls.call(RevisionCall::of_latest(object), &related.groups, last).await?;
        if !self.is_served(parent, context) {
            // The type was removed during the call, and other types keep the epoch running.
            return Err(SyncError::Cancelled);
        }
        let recheck = match response {
            HookResponse::Unchanged(record) => {
                hook.series.unchanged_sync();
                parent.state.keep_record(record);
                parent.state.resync_after(record.resync_after);
                self.report(parent, context).flapping()
            }
            HookResponse::Checked(mut response) => {
                self.report(parent, context).repeated(response.children.repeated.as_deref());
                let rollout = match revisions {
                    Some(revisions) => Some(revisions.roll(&calls, &related, &mut response).await?),
                    None => None,
                };
                parent.state.resync_after(response.record.resync_after);
                if response.is_usable() {
                    self.parents.hook.answered(&parent.key);
                }
                match self.definition.kind {
                    ControllerKind::Composite => {
                        self.compose(object, &rules, *response, rollout, context).await?
                    }
                    ControllerKind::Decorator => {
                        self.decorate(object, &rules, *response, context).await?
                    }
                }
            }
        };
        Ok(recheck.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Returns whether the type of a parent is still the one that it was read from.
    fn is_served(&self, parent: &Parent, context: &Context) -> bool {
        let own = self.definition.parents.get(parent.key.primary);
        let served = own.and_then(|own| context.served(&own.type_ref).ok());
        let held = &parent.served.identity;
        served.is_some_and(|now| TypeChange::between(held, &now.identity) == TypeChange::Unchanged)
    }

    /// Returns the claim of a parent on its children.
    fn ownership(&self, parent: &Parent, object: &Object) -> Result<Ownership, SyncError> {
        let definition = &*self.definition;
        match definition.kind {
            ControllerKind::Composite => {
                let generated = definition.generate_selector;
                let selector = claim::selector_of(&object.json(), &parent.uid, generated);
                let selector = selector.map_err(SyncError::Failed)?;
                let manager = definition.apply_rule().manager;
                let rule = AdoptionRule { adoption: self.options.adoption, manager };
                Ok(Ownership::Selected { selector, generated, rule })
            }
            ControllerKind::Decorator => {
                Ok(Ownership::Annotated { controller: definition.name.clone() })
            }
        }
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

    /// Leaves out children of the parent's own type if the chain of owners is too long: each may be a
    /// parent with children of its own. Observed ones stay as they are. Returns whether there are
    /// any.
    ///
    /// # Errors
    ///
    /// [`SyncError::TooDeep`], after they are left out.
    fn check_owners(
        &self,
        object: &Object,
        rules: &ChildContext<'_>,
        children: &mut CheckedChildren,
        context: &Context,
    ) -> Result<bool, SyncError> {
        let &ChildContext { parent, groups, .. } = rules;
        let is_own = |group: usize| owner_chain::is_same_type(&groups[group], parent);
        let Some(own) = self.definition.parents.get(parent.key.primary) else { return Ok(true) };
        let Ok(store) = context.store(&own.type_ref) else { return Ok(true) };
        let CheckedChildren { desired, held, .. } = children;
        if !desired.iter().any(|child| is_own(child.group)) {
            return Ok(false);
        }
        let limit = self.definition.max_owner_depth;
        if owner_chain::depth(parent, object, limit, |key| store.get(key)) < limit {
            return Ok(true);
        }
        desired.retain(|child| !is_own(child.group));
        let observed = rules.observed.iter().filter(|child| is_own(child.group));
        held.extend(observed.map(|child| (child.group, child.key.clone())));
        Err(SyncError::TooDeep(owner_chain::explain(parent, self.definition.kind, limit)))
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
