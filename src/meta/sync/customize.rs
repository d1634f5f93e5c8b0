//! Customize hook of a parent: its rules, from a call or an earlier response, and related objects.

use std::sync::Arc;

use super::{CountedHook, ParentReconciler, SyncError};
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
    },
};

impl ParentReconciler {
    /// Reads the objects that the customize hook relates to a parent; none without such a hook.
    pub(super) async fn related(
        &self,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<Vec<RelatedGroup>, SyncError> {
        let Some(hook) = self.hooks.get(HookKind::Customize) else {
            // An earlier definition may have declared the hook.
            self.parents.related.leave(&parent.key, context);
            return Ok(Vec::new());
        };
        let rules = self.rules(hook, parent, object, context).await?;
        let related = &self.parents.related;
        related.read(&parent.key, &rules, &self.types, context).await.map_err(|error| match error {
            RelatedError::Cancelled => SyncError::Cancelled,
            // The parent is enqueued when the type is listed.
            RelatedError::NotListed(why) => SyncError::Behind(format!("related objects: {why}")),
            RelatedError::Invalid(wrong) => {
                related.forget_answer(&parent.key);
                hook.hook.forget(&parent.key);
                SyncError::response(hook.kind, format!("hook response is unusable: {wrong}"))
            }
        })
    }

    /// Returns the rules of a parent. Calls the hook if the parent's declaration has changed since
    /// the last response, or if that response is old.
    async fn rules(
        &self,
        hook: &CountedHook,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<Arc<[RelatedRule]>, SyncError> {
        let declared = Fingerprint::of_declared(object.json())
            .map_err(|_error| SyncError::Failed("the parent cannot be decoded".to_owned()))?;
        let related = &self.parents.related;
        if let Some(rules) = related.response(&parent.key, &parent.uid, declared) {
            return Ok(rules);
        }
        let controller = &self.definition.controller;
        let bytes = controller.len() + object.json().len() + 256;
        let room = self.room(bytes, context).await?;
        let request = protocol::customize_request(controller, object.json());
        let (body, call) = self.exchange(hook, parent, request, room, context).await?;
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
        related.keep_answer(&parent.key, &parent.uid, declared, &rules);
        Ok(rules)
    }
}
