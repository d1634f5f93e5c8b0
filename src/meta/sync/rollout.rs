//! Rollout of one parent in a sync: a call of the hook for each live revision, and the plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    SyncError,
    customize::LatestRelated,
    hook_call::{CheckedResponse, HookResponse, RevisionCall, SyncCaller},
    revisions::{Revisions, RolloutSync},
};
use crate::{
    informer::ObjectKey,
    kind::{GroupKind, TypeName, TypeRef},
    meta::{
        apply::Apply,
        children::{Child, ChildContext, DesiredChild, PlannedChild},
        definition::{ChildRule, apply_strategy::ApplyStrategy},
        hooks::rule::HookKind,
        recorder::Severity,
        rollout::{
            AssignedRevision, ChildId, ChildState, ChildTypeMode, OlderRevision, Plan,
            RecordedProgress, Revision, RolloutProgress, RolloutWait, UpdatedCondition, ids, plan,
            readiness,
        },
    },
};

/// Planned rollout of one parent.
pub(super) struct PlannedRollout<'a> {
    revisions: Revisions<'a>,
    plan: Plan,
}

/// Rolling children of a response; `None` for one that is observed and cannot be written.
type DesiredById<'a> = BTreeMap<ChildId, Option<&'a DesiredChild>>;

/// Returns the children that a response names. One with a generated name has another name in each
/// response, and belongs to a revision once it is observed.
fn named(desired: &[DesiredChild]) -> impl Iterator<Item = &DesiredChild> {
    desired.iter().filter(|desired| desired.generate_name.is_none())
}

impl<'a> Revisions<'a> {
    /// Calls the hook for the older revisions, and plans the rollout. Completes the response for
    /// the latest revision: children, status, resync and end of finalizing are those of all.
    pub(super) async fn roll(
        self,
        calls: &SyncCaller<'_>,
        related: &LatestRelated<'_>,
        response: &mut CheckedResponse,
    ) -> Result<PlannedRollout<'a>, SyncError> {
        let rules = &calls.observed.rules();
        let rolling = RollingChildren::new(self.sync, rules);
        let latest = rolling.wanted(response);
        let ended: Vec<_> = {
            let _permit = rolling.decode_permit(response).await;
            let is_sync = calls.hook.kind == HookKind::Sync;
            let older = self.older.iter();
            older.map(|older| is_sync && rolling.has_ended(&older.revision, &latest)).collect()
        };
        let live = self.older.iter().zip(&ended).filter(|(_, has_ended)| !**has_ended);
        let live: Vec<_> = live.map(|(older, _)| older).collect();
        let related = related.older(&live).await?;
        let mut related = related.iter();
        let mut older_responses = Vec::with_capacity(self.older.len());
        for (older, has_ended) in self.older.iter().zip(ended) {
            if has_ended {
                older_responses.push(None);
                continue;
            }
            let related = related.next().map_or(&[][..], Vec::as_slice);
            let called = calls.call(RevisionCall::Older(older), related, None).await;
            match called.map_err(|error| error.about_revision(&older.revision.key))? {
                HookResponse::Checked(response) => older_responses.push(Some(response)),
                // Without an earlier record, no response is unchanged.
                HookResponse::Unchanged(_) => return Err(SyncError::Cancelled),
            }
        }
        let older: Vec<_> =
            older_responses.iter().map(|older| rolling.wanted_by(older.as_deref())).collect();
        let planned = {
            let _permit = rolling.decode_permit(response).await;
            rolling.plan(&self, response, &latest, &older)
        };
        let condition = UpdatedCondition::new(&planned.progress, &self.latest.key.name);
        // A response without a status leaves that of a type without a CRD.
        if let Ok(status) = &mut response.status
            && (status.is_some() || rules.parent.served.is_of_crd())
        {
            *status = Some(condition.within(status.as_ref()).map_err(SyncError::Failed)?);
        }
        // A revision that is no longer used is deleted in this sync, and its hook is called no more.
        response.finalized &= older_responses.iter().flatten().all(|older| older.finalized);
        let used =
            older_responses.iter().zip(&planned.older).filter(|(_, children)| !children.is_empty());
        for older in used.filter_map(|(older, _)| older.as_ref()) {
            let resync = &mut response.record.resync_after;
            *resync = resync.iter().chain(&older.record.resync_after).min().copied();
        }
        let (desired, held) = rolling.assign(&response.children.desired, &older, &planned);
        response.children.desired = desired;
        response.children.held.extend(held);
        for older in older_responses.into_iter().flatten() {
            response.children.unusable.extend(older.children.unusable);
        }
        Ok(PlannedRollout { revisions: self, plan: planned })
    }
}

impl PlannedRollout<'_> {
    /// Writes the revisions, and reports the progress. Returns the time until the next check of the
    /// rollout.
    pub(super) async fn write(&self) -> Result<Option<Duration>, SyncError> {
        let Self { revisions, plan } = self;
        let RolloutSync { apply: Apply { parents, .. }, reporter, .. } = revisions.sync;
        let parent = reporter.parent;
        revisions.write(plan).await?;
        let recorded = parents.rollouts.record(&parent.key, &plan.progress);
        let RecordedProgress { report, is_completed, recheck } = recorded;
        if is_completed {
            let latest = std::slice::from_ref(&parent.uid);
            parents.related.retain_responses(&parent.key, latest);
        }
        if let Some(wait) = report {
            let text = format!("Rollout waits: {wait}");
            reporter.publish(Severity::Normal, "RolloutWaiting", &text);
        } else if is_completed {
            let text = format!("All children have the revision {}", revisions.latest.key.name);
            reporter.publish(Severity::Normal, "RolloutComplete", &text);
        }
        Ok(recheck)
    }

    /// Returns whether every child has the latest revision, and no revision needs a write.
    pub(super) fn is_complete(&self) -> bool {
        self.plan.progress == RolloutProgress::Complete
            && self.revisions.older.is_empty()
            && !self.revisions.needs_write(&self.plan)
    }

    /// Returns whether a child has moved to the latest revision.
    pub(super) fn has_moved(&self) -> bool {
        matches!(self.plan.progress, RolloutProgress::Updating(_))
    }
}

/// Rolling types of one controller, and the observed children of one parent.
struct RollingChildren<'a> {
    sync: RolloutSync<'a>,
    rules: &'a ChildContext<'a>,
    /// Rule of each group, if it is updated by rolling.
    groups: Vec<(GroupKind, Option<&'a ChildRule>)>,
    /// API groups of rolling types that are not listed.
    unlisted: BTreeSet<&'a str>,
    observed: BTreeMap<ChildId, &'a Child>,
}

impl<'a> RollingChildren<'a> {
    fn new(sync: RolloutSync<'a>, rules: &'a ChildContext<'a>) -> Self {
        let children = &sync.definition.children;
        let rule_of = |index: usize| {
            let identity = &rules.groups[index].served.identity;
            let is_of = |type_ref: &TypeRef| {
                *type_ref.group == *identity.group
                    && type_ref.name == TypeName::Resource(identity.plural.to_string())
            };
            children.iter().find(|rule| is_of(&rule.type_ref)).filter(|it| it.strategy.is_rolling())
        };
        let groups = rules.groups.iter().enumerate();
        let groups: Vec<_> =
            groups.map(|(index, group)| (group.served.group_kind(), rule_of(index))).collect();
        let unlisted = children.iter().filter(|rule| rule.strategy.is_rolling());
        let unlisted = unlisted.filter(|rule| rules.missing.contains(&rule.type_ref));
        // A type that is proven absent has no children.
        let types = sync.reporter.types;
        let unlisted = unlisted.filter(|rule| !types.get(&rule.type_ref).state.is_missing());
        let unlisted = unlisted.map(|rule| rule.type_ref.group.as_str()).collect();
        let observed = BTreeMap::new();
        let mut rolling = Self { sync, rules, groups, unlisted, observed };
        let observed = rules.observed.iter();
        rolling.observed = observed
            .filter_map(|child| Some((rolling.id(child.group, &child.key)?, child)))
            .collect();
        rolling
    }

    /// Returns the name of a child in revisions; `None` if its type is not updated by rolling.
    fn id(&self, group: usize, key: &ObjectKey) -> Option<ChildId> {
        let (type_, rule) = &self.groups[group];
        rule.as_ref()?;
        let name = match (&self.rules.parent.key.namespace, &key.namespace) {
            (None, Some(namespace)) => format!("{namespace}/{}", key.name),
            (Some(_), _) | (None, None) => key.name.to_string(),
        };
        Some(ChildId { type_: type_.clone(), name })
    }

    /// Returns the children of a response; none without it.
    fn wanted_by<'d>(&self, response: Option<&'d CheckedResponse>) -> DesiredById<'d> {
        response.map(|response| self.wanted(response)).unwrap_or_default()
    }

    fn wanted<'d>(&self, response: &'d CheckedResponse) -> DesiredById<'d> {
        let desired = named(&response.children.desired);
        let desired = desired.map(|desired| (self.id(desired.group, &desired.key), Some(desired)));
        let held = response.children.held.iter().map(|(group, key)| (self.id(*group, key), None));
        desired.chain(held).filter_map(|(id, desired)| Some((id?, desired))).collect()
    }

    /// Waits for the permit to decode children, observed and desired, one at a time.
    async fn decode_permit(&self, response: &CheckedResponse) -> Option<OwnedSemaphorePermit> {
        let observed = self.rules.observed.iter().map(|child| child.object.json_len());
        let desired = response.children.desired.iter().map(|desired| desired.json.len());
        let largest = observed.max().unwrap_or_default() + desired.max().unwrap_or_default();
        self.sync.apply.budget.decode_permit(largest).await
    }

    fn mode_of(&self, type_: &GroupKind) -> ChildTypeMode {
        match self.groups.iter().find(|(known, _)| known == type_) {
            Some((_, Some(_))) => ChildTypeMode::Rolling,
            Some((_, None)) => ChildTypeMode::Other,
            None if self.unlisted.contains(type_.group.as_str()) => ChildTypeMode::Unlisted,
            None => ChildTypeMode::Other,
        }
    }

    fn plan(
        &self,
        revisions: &Revisions<'_>,
        response: &CheckedResponse,
        latest: &DesiredById<'_>,
        older: &[DesiredById<'_>],
    ) -> Plan {
        let desired =
            named(&response.children.desired).map(|desired| (desired.group, &desired.key));
        let held = response.children.held.iter().map(|(group, key)| (*group, key));
        let wanted = desired.chain(held);
        let wanted: Vec<_> = wanted.filter_map(|(group, key)| self.id(group, key)).collect();
        let all_older = revisions.older.iter().zip(older);
        let all_older: Vec<_> = all_older
            .map(|(known, response)| OlderRevision {
                children: &known.revision.children,
                wanted: response.keys().cloned().collect(),
            })
            .collect();
        let overdue = self.sync.apply.parents.rollouts.overdue(&self.rules.parent.key);
        let mut planned = plan(
            &revisions.latest.children,
            &all_older,
            &wanted,
            overdue.as_ref(),
            |type_| self.mode_of(type_),
            |id, assigned| self.observe(id, assigned, latest, older),
        );
        // The rollout has passed the children that cannot be written, and waits for them at its end.
        let unusable = response.children.held.iter().find_map(|(group, key)| self.id(*group, key));
        if let Some(child) = unusable.filter(|_| planned.progress == RolloutProgress::Complete) {
            planned.progress = RolloutProgress::Waiting(RolloutWait::unusable(&child));
        }
        planned
    }

    fn observe(
        &self,
        id: &ChildId,
        assigned: AssignedRevision,
        latest: &DesiredById<'_>,
        older: &[DesiredById<'_>],
    ) -> ChildState {
        let Some(child) = self.observed.get(id) else { return ChildState::Missing };
        if child.terminating {
            return ChildState::Deleting;
        }
        let is_own = match assigned {
            // A child that cannot be compared has an error of its own when it is written.
            AssignedRevision::Older(at) => self.is_as(child, id, &older[at], true).unwrap_or(true),
            AssignedRevision::Latest | AssignedRevision::Unassigned => true,
        };
        let rule = self.groups[child.group].1;
        let ready =
            match rule.map(|rule| (rule, serde_json::from_slice::<Value>(&child.object.json()))) {
                Some((rule, Ok(json))) => readiness(&json, rule.strategy, &rule.checks),
                Some((_, Err(_))) => Err("is unreadable".to_owned()),
                None => Ok(()),
            };
        // The child may have been updated while children were not updated one at a time.
        let is_newer = match assigned {
            AssignedRevision::Older(at) => !is_own || self.includes(id, latest, &older[at]),
            AssignedRevision::Latest | AssignedRevision::Unassigned => false,
        };
        let is_latest = self.is_as(child, id, latest, is_newer);
        ChildState::Present { is_latest, is_own, ready }
    }

    /// Returns whether an observed child is as these desired children have it. By server-side apply,
    /// an earlier apply decides. With `or_contained`, a child that has all fields counts too.
    fn is_as(
        &self,
        child: &Child,
        id: &ChildId,
        wanted: &DesiredById<'_>,
        or_contained: bool,
    ) -> Result<bool, String> {
        let Some(Some(desired)) = wanted.get(id) else { return Ok(false) };
        let rule = &self.sync.apply.rule;
        let planned = PlannedChild::Compare(child, (*desired).clone());
        if self.rules.was_equal(&planned, self.rules.digests(&planned, rule)) {
            return Ok(true);
        }
        match rule.strategy {
            ApplyStrategy::DynamicApply => self.rules.step(planned).map(|step| step.is_none()),
            ApplyStrategy::ServerSideApply if or_contained => {
                self.rules.contains_desired(child, desired)
            }
            ApplyStrategy::ServerSideApply => Ok(false),
        }
    }

    /// Returns whether the latest form of a child has all fields of an older one.
    fn includes(&self, id: &ChildId, latest: &DesiredById<'_>, older: &DesiredById<'_>) -> bool {
        match (latest.get(id), older.get(id)) {
            (Some(Some(latest)), Some(Some(older))) => self.rules.includes(latest, older),
            (_, None | Some(None)) | (None | Some(None), _) => false,
        }
    }

    /// Returns whether each child that an older revision records is as the latest one desires it. The
    /// hook is not called for such a revision: it might not know the parent that it describes, after
    /// an edit of `revisionHistory.fieldPaths`.
    fn has_ended(&self, older: &Revision, latest: &DesiredById<'_>) -> bool {
        let has_ended = |id: ChildId| {
            let child = self.observed.get(&id).filter(|child| !child.terminating);
            child.is_some_and(|child| self.is_as(child, &id, latest, false) == Ok(true))
        };
        !older.children.is_empty() && ids(&older.children).all(has_ended)
    }

    /// Returns the desired children, each in the form of its revision, and the children that are
    /// left as they are.
    fn assign(
        &self,
        latest: &[DesiredChild],
        older: &[DesiredById<'_>],
        plan: &Plan,
    ) -> (Vec<DesiredChild>, BTreeSet<(usize, ObjectKey)>) {
        let (mut desired, mut held) = (Vec::with_capacity(latest.len()), BTreeSet::new());
        for child in latest {
            let id = self.id(child.group, &child.key);
            let assigned = id.as_ref().and_then(|id| plan.not_latest.get(id)).copied();
            // `None` for a child that is to be left as it is.
            let form = match assigned.unwrap_or(AssignedRevision::Latest) {
                AssignedRevision::Latest => Some(child),
                AssignedRevision::Older(at) => {
                    let old = id.as_ref().and_then(|id| older[at].get(id)).copied();
                    old.unwrap_or(Some(child))
                }
                AssignedRevision::Unassigned => None,
            };
            match form {
                Some(form) => desired.push(form.clone()),
                None => {
                    held.insert((child.group, child.key.clone()));
                }
            }
        }
        (desired, held)
    }
}
