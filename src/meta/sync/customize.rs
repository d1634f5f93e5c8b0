//! Customize hook of a parent: its rules, from a call or an earlier response, and related objects.

use std::sync::Arc;

use super::{CountedHook, ParentJson, ParentReconciler, RevisionCall, SyncError};
use crate::{
    controller::Context,
    informer::Object,
    meta::{
        hooks::{metrics::CallOutcome, rule::HookKind},
        json::fingerprint::Fingerprint,
        parent::Parent,
        protocol,
        related::{
            RelatedError, RelatedGroup, RulesToRead,
            customize::{self, RelatedRule},
        },
        rollout::OlderParent,
    },
};

/// Rules of one response.
type SharedRules = Arc<[RelatedRule]>;

impl ParentReconciler {
    /// Reads the objects that the customize hook relates to a parent; returns them with the rules,
    /// both empty without such a hook. The last rules of older revisions stay in use, even if they
    /// are outdated. [`Self::related_to_older`] requests them anew only after the sync hook was
    /// called, and until then their types would lose their caches.
    pub(super) async fn related(
        &self,
        parent: &Parent,
        object: &Object,
        older: &[OlderParent],
        context: &Context,
    ) -> Result<(SharedRules, Vec<RelatedGroup>), SyncError> {
        let related = &self.parents.related;
        let Some(hook) = self.hooks.get(HookKind::Customize) else {
            // An earlier definition may have declared the hook.
            related.leave(&parent.key, context);
            return Ok((Arc::default(), Vec::new()));
        };
        let uids: Vec<_> = older.iter().map(|older| older.call().parent(parent).uid).collect();
        let kept = related.rules_of_older(&parent.key, &parent.uid, &uids);
        let latest = RevisionCall { json: ParentJson::Cached(object), name: None, digest: 0 };
        let rules = self.rules(hook, parent, latest, context).await?;
        let mut all = vec![Arc::clone(&rules)];
        all.extend(kept);
        let all = union(&all);
        let mut read = self.read_related(parent, &rules, &all, &all, context).await;
        if let Err(RelatedError::NotListed(_) | RelatedError::Unreadable(_)) = read {
            // Outdated rules may name a type that cannot be listed. That must not delay the call
            // that replaces them.
            let current = union(&self.current_rules(parent, &rules, older)?);
            if current != all {
                read = self.read_related(parent, &rules, &current, &all, context).await;
            }
        }
        let read = read.map_err(|error| self.related_error(hook, parent, error))?;
        Ok((rules, read))
    }

    /// Returns the rules of the latest revision, and those of older ones that are not outdated.
    fn current_rules(
        &self,
        parent: &Parent,
        latest: &SharedRules,
        older: &[OlderParent],
    ) -> Result<Vec<SharedRules>, SyncError> {
        let mut current = vec![Arc::clone(latest)];
        for older in older {
            current.extend(self.known_rules(parent, older.call())?.1);
        }
        Ok(current)
    }

    /// Reads the objects that the customize hook relates to a parent as of each older revision.
    /// `latest` are its rules for the parent as it is.
    pub(super) async fn related_to_older(
        &self,
        parent: &Parent,
        latest: &SharedRules,
        older: &[&OlderParent],
        context: &Context,
    ) -> Result<Vec<Vec<RelatedGroup>>, SyncError> {
        let Some(hook) = self.hooks.get(HookKind::Customize) else {
            return Ok(vec![Vec::new(); older.len()]);
        };
        let mut all = vec![Arc::clone(latest)];
        for older in older {
            let rules = self.rules(hook, parent, older.call(), context).await;
            all.push(rules.map_err(|error| error.about_revision(&older.revision.key))?);
        }
        let wanted = union(&all);
        let mut related = Vec::with_capacity(older.len());
        for rules in &all[1..] {
            let read = self.read_related(parent, rules, &wanted, &wanted, context).await;
            related.push(read.map_err(|error| self.related_error(hook, parent, error))?);
        }
        Ok(related)
    }

    /// Reads the objects of some of the rules of a parent. `wanted` are those of all its revisions,
    /// and `kept` are these and others whose types stay cached.
    async fn read_related(
        &self,
        parent: &Parent,
        read: &[RelatedRule],
        wanted: &[RelatedRule],
        kept: &[RelatedRule],
        context: &Context,
    ) -> Result<Vec<RelatedGroup>, RelatedError> {
        let (optional, restricted) =
            (&self.definition.optional_related, self.restricted.as_deref());
        let rules = RulesToRead { read, wanted, kept, optional, restricted };
        self.parents.related.read(&parent.key, rules, &self.types, context).await
    }

    /// Returns the error of a sync without all its related objects. The parent is enqueued when a
    /// type that could not be read is listed.
    fn related_error(&self, hook: &CountedHook, parent: &Parent, error: RelatedError) -> SyncError {
        match error {
            RelatedError::Cancelled => SyncError::Cancelled,
            RelatedError::NotListed(why) => SyncError::Outdated(format!("related objects: {why}")),
            RelatedError::Unreadable(why) => {
                // The rule may name the wrong type, and the hook be corrected meanwhile.
                self.parents.related.forget_response(&parent.key);
                SyncError::Failed(format!("related objects: {why}"))
            }
            RelatedError::Invalid(wrong) => {
                self.parents.related.forget_response(&parent.key);
                hook.hook.forget(&parent.key);
                SyncError::response(hook.kind, format!("hook response is unusable: {wrong}"))
            }
        }
    }

    /// Returns the rules of a parent from an earlier response, if that is current, and the
    /// fingerprint of its declaration.
    fn known_rules(
        &self,
        parent: &Parent,
        called: RevisionCall<'_>,
    ) -> Result<(Fingerprint, Option<SharedRules>), SyncError> {
        let declared = Fingerprint::of_declared(&called.json.text())
            .map_err(|_error| SyncError::Failed("the parent cannot be decoded".to_owned()))?;
        let uid = called.parent(parent).uid;
        Ok((declared, self.parents.related.response(&parent.key, &uid, declared)))
    }

    /// Returns the rules of a parent. Calls the hook if the parent's declaration has changed since
    /// the last response, or if that response is old.
    async fn rules(
        &self,
        hook: &CountedHook,
        parent: &Parent,
        called: RevisionCall<'_>,
        context: &Context,
    ) -> Result<SharedRules, SyncError> {
        let (declared, known) = self.known_rules(parent, called)?;
        if let Some(rules) = known {
            return Ok(rules);
        }
        let revised = &called.parent(parent);
        let controller = &self.definition.controller;
        let bytes = controller.len() + called.json.len() + 256;
        let room = self.reserve(bytes, context).await?;
        let request = protocol::customize_request(controller, &called.json.text());
        let (body, call) = self.exchange(hook, revised, request, room, context).await?;
        let rules = {
            let _permit = self.budget.decode_permit(body.len()).await;
            let (version, namespace) = (hook.rule.version, parent.key.namespace.as_ref());
            let limits = &self.options.customize;
            let checked = match self.options.strictness.strict {
                true => protocol::refuse_null(&body),
                false => Ok(()),
            };
            checked.and_then(|()| {
                customize::related_rules(&body, hook.rule.strict, version, namespace, limits)
            })
        };
        call.end(if rules.is_ok() { CallOutcome::Answered } else { CallOutcome::Invalid });
        let rules: SharedRules = rules.map(Arc::from).map_err(|message| {
            hook.hook.forget(&parent.key);
            SyncError::response(hook.kind, message)
        })?;
        self.parents.related.keep_response(&parent.key, &revised.uid, declared, &rules);
        Ok(rules)
    }
}

/// Returns each rule once. A parent has one set of interests, whichever revision they are of.
fn union(all: &[SharedRules]) -> Vec<RelatedRule> {
    let mut union: Vec<RelatedRule> = Vec::new();
    for rule in all.iter().flat_map(|rules| rules.iter()) {
        if !union.contains(rule) {
            union.push(rule.clone());
        }
    }
    union
}

impl OlderParent {
    /// Returns the call of a hook for the parent as of this revision.
    fn call(&self) -> RevisionCall<'_> {
        let json = ParentJson::Older(&self.json);
        RevisionCall { json, name: Some(&self.revision.key.name), digest: 0 }
    }
}
