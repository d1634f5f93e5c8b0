//! Customize hook of a parent: its rules, from a call or an earlier response, and related objects.

use std::sync::Arc;

use super::{CountedHook, ParentReconciler, RevisionCall, SyncError};
use crate::{
    controller::Context,
    informer::Object,
    meta::{
        HookKind,
        children::Parent,
        customize::{self, RelatedRule},
        fingerprint::Fingerprint,
        hook_metrics::CallOutcome,
        protocol,
        related::{RelatedError, RelatedGroup},
        rollout::OlderParent,
    },
};

impl ParentReconciler {
    /// Reads the objects that the customize hook relates to a parent, and to the parent as of each
    /// older revision; none without such a hook.
    pub(super) async fn related(
        &self,
        parent: &Parent,
        object: &Object,
        older: &[OlderParent],
        context: &Context,
    ) -> Result<(Vec<RelatedGroup>, Vec<Vec<RelatedGroup>>), SyncError> {
        let Some(hook) = self.hooks.get(HookKind::Customize) else {
            // An earlier definition may have declared the hook.
            self.parents.related.leave(&parent.key, context);
            return Ok((Vec::new(), vec![Vec::new(); older.len()]));
        };
        let latest = RevisionCall { json: object.json(), name: None, digest: 0 };
        let all = [latest].into_iter().chain(older.iter().map(OlderParent::call));
        let mut rules = Vec::with_capacity(older.len() + 1);
        for call in all {
            rules.push(self.rules(hook, parent, call, context).await?);
        }
        // The parent has one set of interests, whichever revision they are of.
        let mut wanted: Vec<RelatedRule> = Vec::new();
        for rule in rules.iter().flat_map(|rules| rules.iter()) {
            if !wanted.contains(rule) {
                wanted.push(rule.clone());
            }
        }
        let related = &self.parents.related;
        let mut groups = Vec::with_capacity(rules.len());
        for rules in &rules {
            let read = related.read(&parent.key, rules, &wanted, &self.types, context).await;
            groups.push(read.map_err(|error| match error {
                RelatedError::Cancelled => SyncError::Cancelled,
                // The parent is enqueued when the type is listed.
                RelatedError::NotListed(why) => {
                    SyncError::Outdated(format!("related objects: {why}"))
                }
                RelatedError::Invalid(wrong) => {
                    related.forget_response(&parent.key);
                    hook.hook.forget(&parent.key);
                    SyncError::response(hook.kind, format!("hook response is unusable: {wrong}"))
                }
            })?);
        }
        let older = groups.split_off(1);
        Ok((groups.pop().unwrap_or_default(), older))
    }

    /// Returns the rules of a parent. Calls the hook if the parent's declaration has changed since
    /// the last response, or if that response is old.
    async fn rules(
        &self,
        hook: &CountedHook,
        parent: &Parent,
        called: RevisionCall<'_>,
        context: &Context,
    ) -> Result<Arc<[RelatedRule]>, SyncError> {
        let declared = Fingerprint::of_declared(called.json)
            .map_err(|_error| SyncError::Failed("the parent cannot be decoded".to_owned()))?;
        let related = &self.parents.related;
        let revised = &called.parent(parent);
        if let Some(rules) = related.response(&parent.key, &revised.uid, declared) {
            return Ok(rules);
        }
        let controller = &self.definition.controller;
        let bytes = controller.len() + called.json.len() + 256;
        let room = self.reserve(bytes, context).await?;
        let request = protocol::customize_request(controller, called.json);
        let (body, call) = self.exchange(hook, revised, request, room, context).await?;
        let rules = {
            let _permit = self.budget.decode_permit(body.len()).await;
            let (version, namespace) = (hook.rule.version, parent.key.namespace.as_ref());
            customize::related_rules(&body, hook.rule.strict, version, namespace)
        };
        call.end(if rules.is_ok() { CallOutcome::Answered } else { CallOutcome::Invalid });
        let rules: Arc<[RelatedRule]> = rules.map(Arc::from).map_err(|message| {
            hook.hook.forget(&parent.key);
            SyncError::response(hook.kind, message)
        })?;
        related.keep_response(&parent.key, &revised.uid, declared, &rules);
        Ok(rules)
    }
}

impl OlderParent {
    /// Returns the call of a hook for the parent as of this revision.
    fn call(&self) -> RevisionCall<'_> {
        RevisionCall { json: &self.json, name: Some(&self.revision.key.name), digest: 0 }
    }
}
