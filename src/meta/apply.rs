//! Apply: executes the plan for the children of one parent.
//!
//! This module does not decide on ownership: `ChildContext` of `children` sets owners, and claiming
//! labels or annotations.

mod dry_run_apply;
mod dry_run_create;
mod dry_run_update;
mod field_transfer;
mod left_behind;
mod order;
mod quota;
mod refusal;
mod server_side;
mod service_allocation;
mod transfer_fields;

use std::{
    mem::take,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready},
    poll,
    stream::FuturesUnordered,
};

use self::{
    dry_run_create::dry_run_create,
    dry_run_update::differs,
    order::{Stage, WriteOrder},
    refusal::{ExistingObject, explain_existing, with_other_writer},
};
pub(crate) use self::{left_behind::is_alive, order::most_at_once};
use crate::{
    controller::Context,
    kind::VersionOrder,
    meta::{
        children::{ChildContext, DesiredChild, Write, WriteStep},
        definition::apply_strategy::{ApplyRule, ApplyStrategy},
        hooks::budget::{ControllerBudget, Reservation},
        options::MetaOptions,
        parent::{
            Parent,
            failures::Failures,
            sync_error::SyncError,
            sync_record::{ChildDigest, ChildDigests},
        },
        parents::Parents,
        resource::{
            Resource, StoredObject, is_already_there, is_conflict, is_gone, is_other_object,
        },
    },
};

/// Executor of the plans of one controller.
pub(crate) struct Apply {
    /// Apply strategy of the children.
    pub(crate) rule: ApplyRule,
    /// Budget of decoded children and of large writes.
    pub(crate) budget: ControllerBudget,
    /// Parents with the limits of their writes.
    pub(crate) parents: Arc<Parents>,
    /// Options of the process.
    pub(crate) options: Arc<MetaOptions>,
}

/// Results of the writes for one parent.
#[derive(Debug, Default)]
struct Results {
    failed: Failures,
    // Write that another client preceded.
    conflict: Option<String>,
    behind: Option<String>,
    // Reason why no further write may begin: a cancellation, or the longest throttle.
    halted: Option<SyncError>,
    // True if a child needed a write or a dry run, or its write was held back.
    differed: bool,
    // Children that are as desired.
    equal: Vec<ChildDigest>,
    // True if a request showed that a child is as desired.
    confirmed: bool,
}

/// Result for a parent whose children are not managed now.
pub(crate) const NOTHING: ApplyResult = ApplyResult { as_desired: true, confirmed: false };

/// Result of an execution without errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApplyResult {
    /// True if all children were as desired before.
    pub(crate) as_desired: bool,
    /// True if a request showed that a child is as desired. No event need follow it.
    pub(crate) confirmed: bool,
}

/// Child that is written.
struct WrittenChild<'a> {
    rules: &'a ChildContext<'a>,
    // Kind and key of the child.
    what: String,
    digests: ChildDigests,
    context: &'a Context,
    halted: &'a AtomicBool,
}

/// Writes of one parent, in order.
struct Execution<'a> {
    apply: &'a Apply,
    rules: &'a ChildContext<'a>,
    context: &'a Context,
    order: WriteOrder,
    // True if no further request may be sent, also for a write that is under way.
    halted: &'a AtomicBool,
    under_way: FuturesUnordered<BoxFuture<'a, Result<Option<ChildDigest>, SyncError>>>,
    results: Results,
}

impl Apply {
    /// Applies the desired children in their order. A failure of one child does not stop the
    /// others; a throttle and a cancellation do, and the writes under way are awaited. Returns
    /// whether all children are as desired, without a write or a dry run, and without a delayed
    /// write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the writes under way, whose outcome is then unknown.
    pub(crate) async fn execute(
        &self,
        rules: &ChildContext<'_>,
        desired: Vec<DesiredChild>,
        context: &Context,
    ) -> Result<ApplyResult, SyncError> {
        let halted = AtomicBool::new(false);
        let mut execution = Execution {
            apply: self,
            rules,
            context,
            order: WriteOrder::after(context.attempt()),
            halted: &halted,
            under_way: FuturesUnordered::new(),
            results: Results::default(),
        };
        execution.run(desired).await;
        execution.results.end()
    }
}

impl<'a> Execution<'a> {
    async fn run(&mut self, desired: Vec<DesiredChild>) {
        let (rules, apply) = (self.rules, self.apply);
        for planned in rules.plan(desired) {
            let is_halted = self.is_halted();
            let digests = rules.digests(&planned, &apply.rule);
            if rules.was_equal(&planned, digests) {
                self.results.equal.extend(digests.observed);
                continue;
            }
            if is_halted {
                // The digests of the children that follow are kept.
                continue;
            }
            let stage = Stage::of(&planned, rules.groups);
            let permit = self.beside_writes(apply.budget.decode_permit(planned.size())).await;
            if self.is_halted() {
                continue;
            }
            let step = match apply.rule.strategy {
                ApplyStrategy::DynamicApply => rules.step(planned),
                ApplyStrategy::ServerSideApply => rules.apply_step(planned),
            };
            drop(permit);
            match step {
                Ok(None) => self.results.equal.extend(digests.observed),
                Ok(Some(step)) => {
                    self.results.wrote(&step, digests.desired);
                    self.write(stage, step, digests).await;
                }
                Err(message) => self.add(Err(SyncError::Failed(message))),
            }
        }
        while self.ended().await {}
        if !self.is_halted() {
            rules.parent.state.end_replacements();
        }
        rules.parent.state.record().replace_equal(take(&mut self.results.equal));
    }

    /// Begins a write when the order admits it.
    async fn write(&mut self, stage: Stage, step: WriteStep, digests: ChildDigests) {
        self.results.differed = true;
        let bytes = step.size();
        while !self.order.admits(stage, bytes) && self.ended().await {}
        self.beside_writes(ready(())).await;
        if self.is_halted() {
            return;
        }
        let what = self.rules.name(&step);
        // Deletions are not limited.
        let is_limited = !matches!(step, WriteStep::Delete { .. });
        if is_limited && !self.apply.may_write(self.rules.parent, &what) {
            return;
        }
        // No other write of this parent is under way if this one has to wait.
        let room = self.apply.budget.request(bytes);
        let Some(room) = self.context.epoch().token().run_until_cancelled(room).await else {
            return self.halt(SyncError::Cancelled);
        };
        self.order.begun(stage, bytes);
        self.context.release_slot();
        let (rules, context, halted) = (self.rules, self.context, self.halted);
        let target = WrittenChild { rules, what, digests, context, halted };
        let write = self.apply.write(target, step, room);
        let mut write = write.boxed();
        // Begins before the result of another write is taken, so that none begins after a throttle.
        if let Poll::Ready(result) = poll!(&mut write) {
            self.end(result);
        } else {
            self.under_way.push(write);
        }
    }

    /// Waits while the writes under way proceed. Takes the results that have arrived first, so that no
    /// write begins after a throttle.
    async fn beside_writes<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        loop {
            tokio::select! {
                biased;
                Some(result) = self.under_way.next() => self.end(result),
                done = &mut wait => return done,
            }
        }
    }

    /// Waits for the end of a write; `false` without one under way.
    async fn ended(&mut self) -> bool {
        let Some(result) = self.under_way.next().await else { return false };
        self.end(result);
        true
    }

    fn end(&mut self, result: Result<Option<ChildDigest>, SyncError>) {
        self.order.ended(result.is_ok());
        self.add(result);
    }

    fn add(&mut self, result: Result<Option<ChildDigest>, SyncError>) {
        self.results.add(result);
        self.halted.store(self.results.halted.is_some(), Ordering::Relaxed);
    }

    fn halt(&mut self, error: SyncError) {
        self.results.halt(error);
        self.halted.store(true, Ordering::Relaxed);
    }

    /// Returns whether no further write may begin.
    fn is_halted(&mut self) -> bool {
        if self.context.is_cancelled() {
            self.halt(SyncError::Cancelled);
        }
        self.results.halted.is_some()
    }
}

impl Results {
    /// Adds the digests of a write whose content is known before its request.
    fn wrote(&mut self, step: &WriteStep, desired: Option<ChildDigest>) {
        if let WriteStep::Create(write) | WriteStep::Update(write) = step
            && let (Some(desired), Some(content)) = (desired, write.content)
        {
            self.equal.extend([desired, desired.with(content)]);
        }
    }

    fn add(&mut self, result: Result<Option<ChildDigest>, SyncError>) {
        match result {
            Ok(equal) => {
                self.confirmed |= equal.is_some();
                self.equal.extend(equal);
            }
            Err(SyncError::Conflict(message)) => self.conflict = Some(message),
            Err(SyncError::Outdated(message)) => self.behind = Some(message),
            Err(SyncError::Failed(message)) => self.failed.push(message),
            // Further requests would be refused as well, and add to the load.
            Err(
                other @ (SyncError::Throttled { .. }
                | SyncError::Cancelled
                | SyncError::Busy(..)
                | SyncError::HookDown(..)
                | SyncError::TooDeep(_)
                | SyncError::Hook(_)),
            ) => self.halt(other),
        }
    }

    fn halt(&mut self, error: SyncError) {
        let is_longer = match (&self.halted, &error) {
            (
                Some(SyncError::Throttled { after: longest, .. }),
                SyncError::Throttled { after, .. },
            ) => after > longest,
            (halted, _) => !matches!(halted, Some(SyncError::Cancelled)),
        };
        if is_longer {
            self.halted = Some(error);
        }
    }

    fn end(self) -> Result<ApplyResult, SyncError> {
        if let Some(error) = self.halted {
            return Err(error);
        }
        match (self.failed.text(), self.behind, self.conflict) {
            (Some(text), _, _) => Err(SyncError::Failed(text)),
            (None, Some(message), _) => Err(SyncError::Outdated(message)),
            (None, None, Some(message)) => Err(SyncError::Conflict(message)),
            (None, None, None) => {
                Ok(ApplyResult { as_desired: !self.differed, confirmed: self.confirmed })
            }
        }
    }
}

impl Apply {
    /// Returns whether a write of `what` for a parent is admitted now.
    pub(crate) fn may_write(&self, parent: &Parent, what: &str) -> bool {
        self.options.strictness.unlimited_writes || parent.state.may_write(what)
    }

    /// Writes one child. Returns its digest if it is as desired from now on.
    async fn write(
        &self,
        target: WrittenChild<'_>,
        step: WriteStep,
        _room: Option<Reservation>,
    ) -> Result<Option<ChildDigest>, SyncError> {
        let Some(step) = self.transfer_fields(&target, step).await? else { return Ok(None) };
        match self.rule.strategy {
            ApplyStrategy::DynamicApply => self.update(&target, step).await,
            ApplyStrategy::ServerSideApply => self.apply(&target, step).await,
        }
    }

    /// Writes one child by dynamic apply, or deletes it. Returns its digest if the server found that
    /// nothing changes: it stores an equal value (`0.5` and `500m` are one quantity), or drops one.
    async fn update(
        &self,
        target: &WrittenChild<'_>,
        mut step: WriteStep,
    ) -> Result<Option<ChildDigest>, SyncError> {
        let WrittenChild { rules, what, context, digests, .. } = target;
        let parent = rules.parent;
        let (group, key) = step.target();
        let (served, key) = (&rules.groups[group].served, &key.clone());
        let resource = Resource::new(context.requester(), served);
        if target.is_halted() {
            return Ok(None);
        }
        // A body that is sent is not copied.
        let (verb, result) = match &mut step {
            WriteStep::Delete { uid, .. } => {
                ("deleting", resource.delete(key, uid).await.map(|()| None))
            }
            WriteStep::Recreate { uid, created, observed, merged } => {
                // An aggregated server may ignore `dryRun`, and carry the update out.
                let has_dry_runs = served.version_order == VersionOrder::Comparable;
                let is_checked = !self.options.recreate_without_dry_run;
                if is_checked && has_dry_runs {
                    let response = resource.dry_run_update(key, take(merged)).await;
                    if !differs(observed, &response, what, context.attempt())? {
                        return Ok(digests.observed.filter(|_| self.parents.rollouts.is_used()));
                    }
                    if target.is_halted() {
                        return Ok(None);
                    }
                }
                if is_checked {
                    let refused_for = || parent.state.refused_for(what);
                    dry_run_create(&resource, served, created, observed, refused_for).await?;
                    if target.is_halted() {
                        return Ok(None);
                    }
                }
                ("replacing", resource.delete(key, uid).await.map(|()| None))
            }
            WriteStep::Create(Write { body, .. }) => {
                ("creating", resource.create(key, take(body)).await.map(Some))
            }
            WriteStep::Update(Write { body, replaces, .. }) => (
                "updating",
                resource
                    .update(key, take(body))
                    .await
                    .map(|stored| changed(stored, replaces.as_deref())),
            ),
            WriteStep::TransferFields { .. } => return Ok(None),
        };
        let error = match result {
            Ok(changed) => {
                let is_equal = self.record(parent, what, &step, changed);
                return Ok(digests.observed.filter(|_| is_equal));
            }
            Err(error) => error,
        };
        let doing = format!("{verb} {what}");
        self.failed(target, &resource, &step, doing, error).await
    }

    /// Explains a write that failed. Returns nothing if the child needs no other write.
    async fn failed(
        &self,
        target: &WrittenChild<'_>,
        resource: &Resource<'_>,
        step: &WriteStep,
        doing: String,
        error: kube::Error,
    ) -> Result<Option<ChildDigest>, SyncError> {
        let WrittenChild { rules, what, context, .. } = target;
        let (parent, key) = (rules.parent, step.target().1);
        let (gone, conflict) = (is_gone(&error), is_conflict(&error));
        let replaced = is_other_object(&error);
        Err(match step {
            // Deleted already, or replaced by another object of that name.
            WriteStep::Delete { .. } | WriteStep::Recreate { .. } if gone || replaced => {
                return Ok(None);
            }
            _ if is_already_there(&error) => {
                match explain_existing(rules, step.target().0, resource, key, &doing).await {
                    ExistingObject::Absent => {
                        let why = "the object existed and was deleted meanwhile";
                        SyncError::Outdated(format!("{doing}: {why}"))
                    }
                    ExistingObject::Passing(error) => error,
                    ExistingObject::LeftBehind(child) => {
                        self.delete_left_behind(target, &child, resource, key).await
                    }
                    // Retried slowly, since nothing that this parent does changes it.
                    ExistingObject::NotOurs { message, owner, .. } => {
                        parent.state.contest(what.clone(), message, owner);
                        return Ok(None);
                    }
                }
            }
            WriteStep::Update(_) if gone => {
                SyncError::Outdated(format!("{doing}: the object no longer exists"))
            }
            WriteStep::Update(_) if conflict => {
                parent.state.conflicted(what);
                let error = SyncError::of_write(&doing, &error);
                with_other_writer(error, resource, key, context.attempt()).await
            }
            WriteStep::Delete { .. }
            | WriteStep::Recreate { .. }
            | WriteStep::Create(_)
            | WriteStep::Update(_)
            | WriteStep::TransferFields { .. } => SyncError::of_write(&doing, &error),
        })
    }
}

/// Returns the stored object unless it has the version that was replaced.
fn changed(stored: StoredObject, replaced: Option<&str>) -> Option<StoredObject> {
    Some(stored).filter(|stored| stored.version() != replaced)
}

impl Apply {
    /// Records a write that succeeded, with the stored object if that changed. Returns whether the
    /// server found nothing to change, and a rollout waits for that.
    fn record(
        &self,
        parent: &Parent,
        what: &str,
        step: &WriteStep,
        stored: Option<StoredObject>,
    ) -> bool {
        let is_versioned = matches!(step, WriteStep::Update(write) if write.replaces.is_some());
        // Other writes are repeated in each sync: a webhook that reverted a field may be gone.
        let is_equal = is_versioned && stored.is_none() && self.parents.rollouts.is_used();
        if stored.is_some() {
            parent.state.wrote(what);
        }
        is_equal
    }
}

#[cfg(test)]
mod tests;
