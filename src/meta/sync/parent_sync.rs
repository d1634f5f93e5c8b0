//! Sync of one parent, the same for both kinds of controllers: finalizer, related objects, claim,
//! hook and check. The writes after the response differ: see `composite` and `decorator`.

use std::time::Duration;

use super::{
    ParentReconciler, SyncError,
    children_writes::ChildWriter,
    customize::RelatedReader,
    hook_call::{HookCaller, HookResponse, RevisionCall, SyncCaller},
    observation::{ChildReader, ObservedChildren},
    parent_writes::ParentWriter,
    report::SyncReporter,
    revisions::{Revisions, RolloutSync},
};
use crate::{
    controller::{Context, Outcome},
    discovery::TypeChange,
    informer::Object,
    kind::TypeRef,
    meta::{
        api::controller_kind::ControllerKind,
        children::{adoption::AdoptionRule, claim, ownership::Ownership},
        definition::finalizer::FirstStep,
        hooks::{counted::CountedHook, rule::HookKind},
        parent::Parent,
    },
};

/// Sync of one parent: the reconcile that runs, and the parts that its steps share.
pub(super) struct ParentSync<'a> {
    controller: &'a ParentReconciler,
    pub(super) parent: &'a Parent,
    /// The parent as cached.
    pub(super) object: &'a Object,
    context: &'a Context,
    pub(super) reporter: SyncReporter<'a>,
    pub(super) writer: ParentWriter<'a>,
    caller: HookCaller<'a>,
}

impl<'a> ParentSync<'a> {
    pub(super) fn new(
        controller: &'a ParentReconciler,
        parent: &'a Parent,
        object: &'a Object,
        context: &'a Context,
    ) -> Self {
        let ParentReconciler { definition, finalizer, apply, recorder, options, types, .. } =
            controller;
        let health = &*controller.parents.hook;
        let budget = &controller.hooks.budget;
        let reporter = SyncReporter { recorder, health, types, parent, context };
        let writer = ParentWriter { finalizer, apply, parent, context };
        let caller = HookCaller { definition, options, budget, health, parent, context };
        Self { controller, parent, object, context, reporter, writer, caller }
    }

    /// Runs the first step. After a change of the finalizer, the parent is reconciled again with its
    /// new version.
    pub(super) async fn run(&self, step: FirstStep) -> Result<Outcome, SyncError> {
        let header = self.object.header();
        match step {
            FirstStep::Add => self.writer.add_finalizer(header).await?,
            FirstStep::Remove => drop(self.writer.remove_finalizer(header).await?),
            FirstStep::Call(kind) => {
                return match self.controller.hooks.get(kind) {
                    Some(hook) => self.sync(hook).await,
                    // Only the finalize hook is declared, and nothing is to be finalized.
                    None => Ok(Outcome::Done),
                };
            }
        }
        Ok(Outcome::RequeueAfter(Duration::ZERO))
    }

    /// Reads related objects and children, calls the hook, and applies its response.
    async fn sync(&self, hook: &CountedHook) -> Result<Outcome, SyncError> {
        let Self { parent, reporter, .. } = self;
        let ownership = self.ownership()?;
        reporter.selector(&ownership);
        let last = parent.state.record().take_settled();
        let revisions = self.revisions().await?;
        let older = revisions.as_ref().map_or(&[][..], |revisions| &revisions.older);
        let related = self.related_reader().latest(self.object, older).await?;
        let observed = self.child_reader().observe(ownership).await?;
        let types = &self.controller.types;
        let is_unread = |missing: &&TypeRef| !types.get(missing).state.is_missing();
        if hook.kind == HookKind::Finalize
            && let Some(unread) = observed.missing.iter().find(is_unread)
        {
            // A hook that sees no children may answer that the parent is finalized.
            return Err(SyncError::Outdated(format!("finalizing: {unread} is not listed")));
        }
        let digest = revisions.as_ref().map_or(0, |revisions| revisions.digest);
        let calls = SyncCaller { caller: self.caller, hook, observed: &observed, digest };
        let response = calls.call(RevisionCall::Latest(self.object), &related.groups, last);
        let response = response.await?;
        if !self.is_served() {
            // The type was removed during the call, and other types keep the epoch running.
            return Err(SyncError::Cancelled);
        }
        let recheck = match response {
            HookResponse::Unchanged(record) => {
                hook.series.unchanged_sync();
                parent.state.record().settle(record);
                parent.state.resync_after(record.resync_after);
                reporter.flapping()
            }
            HookResponse::Checked(mut response) => {
                reporter.repeated(response.children.repeated.as_deref());
                let rollout = match revisions {
                    Some(revisions) => Some(revisions.roll(&calls, &related, &mut response).await?),
                    None => None,
                };
                parent.state.resync_after(response.record.resync_after);
                if response.is_usable() {
                    self.controller.parents.hook.answered(&parent.key);
                }
                match self.controller.definition.kind {
                    ControllerKind::Composite => {
                        self.compose(&observed, *response, rollout).await?
                    }
                    ControllerKind::Decorator => self.decorate(&observed, *response).await?,
                }
            }
        };
        Ok(recheck.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Claims the revisions of the parent; `None` if its children are not updated one at a time.
    async fn revisions(&self) -> Result<Option<Revisions<'a>>, SyncError> {
        let ParentReconciler { definition, apply, options, restricted, .. } = self.controller;
        if !definition.is_rolling() || !self.writer.finalizer.manages_children(self.object.header())
        {
            return Ok(None);
        }
        let own = self.parent.key.namespace.as_ref().or(restricted.as_ref());
        let namespace = own.unwrap_or(&options.revision_namespace);
        let rollout = RolloutSync { definition, apply, namespace, reporter: self.reporter };
        rollout.claim(self.object).await.map(Some)
    }

    fn related_reader(&self) -> RelatedReader<'a> {
        let ParentReconciler { hooks, parents, types, restricted, .. } = self.controller;
        RelatedReader {
            caller: self.caller,
            hook: hooks.get(HookKind::Customize),
            related: &parents.related,
            types,
            restricted: restricted.as_deref(),
        }
    }

    fn child_reader(&self) -> ChildReader<'a> {
        let Self { controller, parent, context, .. } = *self;
        let ParentReconciler { definition, types, parents, restricted, .. } = controller;
        let restricted = restricted.as_deref();
        ChildReader { definition, types, parents, restricted, parent, context }
    }

    /// Returns the writer of the children, which are observed and checked by then.
    pub(super) fn child_writer<'o>(
        &'o self,
        observed: &'o ObservedChildren<'o>,
    ) -> ChildWriter<'o> {
        let ParentReconciler { definition, finalizer, apply, .. } = self.controller;
        ChildWriter { definition, finalizer, apply, observed, reporter: self.reporter }
    }

    /// Returns whether the type of the parent is still the one that it was read from.
    fn is_served(&self) -> bool {
        let own = self.controller.definition.parents.get(self.parent.key.primary);
        let served = own.and_then(|own| self.context.served(&own.type_ref).ok());
        let held = &self.parent.served.identity;
        served.is_some_and(|now| TypeChange::between(held, &now.identity) == TypeChange::Unchanged)
    }

    /// Returns the claim of the parent on its children.
    fn ownership(&self) -> Result<Ownership, SyncError> {
        let definition = &*self.controller.definition;
        match definition.kind {
            ControllerKind::Composite => {
                let generated = definition.generate_selector;
                let json = self.object.json();
                let selector = claim::selector_of(&json, &self.parent.uid, generated);
                let selector = selector.map_err(SyncError::Failed)?;
                let manager = definition.apply_rule().manager;
                let rule = AdoptionRule { adoption: self.controller.options.adoption, manager };
                Ok(Ownership::Selected { selector, generated, rule })
            }
            ControllerKind::Decorator => {
                Ok(Ownership::Annotated { controller: definition.name.clone() })
            }
        }
    }
}
