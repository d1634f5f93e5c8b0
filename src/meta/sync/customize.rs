//! Customize hook of a parent: its rules, from a call or an earlier response, and related objects.

use std::sync::Arc;

use super::{
    SyncError,
    hook_call::{HookCaller, RevisionCall},
};
use crate::{
    discovery::TypeRegistry,
    informer::Object,
    meta::{
        hooks::{counted::CountedHook, metrics::CallOutcome},
        json::digest::JsonDigest,
        protocol,
        related::{
            RelatedError, RelatedGroup, RelatedObjects, RulesToRead,
            customize::{self, RelatedRule},
        },
        rollout::OlderParent,
    },
};

/// Rules of one response.
type SharedRules = Arc<[RelatedRule]>;

/// Objects that the customize hook relates to the current parent, with its rules.
pub(super) struct LatestRelated<'a> {
    reader: RelatedReader<'a>,
    rules: SharedRules,
    pub(super) groups: Vec<RelatedGroup>,
}

/// Reader of the objects that the customize hook relates to one parent, for one sync.
pub(super) struct RelatedReader<'a> {
    pub(super) caller: HookCaller<'a>,
    /// The customize hook, if it is declared.
    pub(super) hook: Option<&'a CountedHook>,
    pub(super) related: &'a Arc<RelatedObjects>,
    pub(super) types: &'a TypeRegistry,
    pub(super) restricted: Option<&'a str>,
}

impl<'a> RelatedReader<'a> {
    /// Reads the objects that the customize hook relates to the current parent; none without such a
    /// hook. The last rules of older revisions stay in use, even if they are outdated.
    /// [`LatestRelated::older`] requests them anew only after the sync hook was called, and until
    /// then their types would lose their caches.
    pub(super) async fn latest(
        self,
        object: &Object,
        older: &[OlderParent],
    ) -> Result<LatestRelated<'a>, SyncError> {
        let related = self.related;
        let HookCaller { parent, context, .. } = self.caller;
        let Some(hook) = self.hook else {
            // An earlier definition may have declared the hook.
            related.leave(&parent.key, context);
            return Ok(LatestRelated { reader: self, rules: Arc::default(), groups: Vec::new() });
        };
        let uids: Vec<_> = older.iter().map(|it| RevisionCall::Older(it).uid(parent)).collect();
        let kept = related.rules_of_older(&parent.key, &parent.uid, &uids);
        let rules = self.rules(hook, RevisionCall::Latest(object)).await?;
        let mut all = vec![Arc::clone(&rules)];
        all.extend(kept);
        let all = union(&all);
        let mut read = self.read(&rules, &all, &all).await;
        if let Err(RelatedError::NotListed(_) | RelatedError::Unreadable(_)) = read {
            // Outdated rules may name a type that cannot be listed. That must not delay the call
            // that replaces them.
            let mut current = vec![Arc::clone(&rules)];
            for older in older {
                current.extend(self.known_rules(RevisionCall::Older(older))?.1);
            }
            let current = union(&current);
            if current != all {
                read = self.read(&rules, &current, &all).await;
            }
        }
        let groups = read.map_err(|error| self.error(hook, error))?;
        Ok(LatestRelated { reader: self, rules, groups })
    }

    /// Reads the objects of some of the rules of a parent. `wanted` are those of all its revisions,
    /// and `kept` are these and others whose types stay cached.
    async fn read(
        &self,
        read: &[RelatedRule],
        wanted: &[RelatedRule],
        kept: &[RelatedRule],
    ) -> Result<Vec<RelatedGroup>, RelatedError> {
        let HookCaller { definition, parent, context, .. } = self.caller;
        let (optional, restricted) = (&definition.optional_related, self.restricted);
        let rules = RulesToRead { read, wanted, kept, optional, restricted };
        self.related.read(&parent.key, rules, self.types, context).await
    }

    /// Returns the error of a sync without all its related objects. The parent is enqueued when a
    /// type that could not be read is listed.
    fn error(&self, hook: &CountedHook, error: RelatedError) -> SyncError {
        let key = &self.caller.parent.key;
        match error {
            RelatedError::Cancelled => SyncError::Cancelled,
            RelatedError::NotListed(why) => SyncError::Outdated(format!("related objects: {why}")),
            RelatedError::Unreadable(why) => {
                // The rule may name the wrong type, and the hook be corrected meanwhile.
                self.related.forget_response(key);
                SyncError::Failed(format!("related objects: {why}"))
            }
            RelatedError::Invalid(wrong) => {
                self.related.forget_response(key);
                hook.hook.forget(key);
                SyncError::response(hook.kind, format!("hook response is unusable: {wrong}"))
            }
        }
    }

    /// Returns the rules of a parent from an earlier response, if that is current, and the
    /// digest of its declaration.
    fn known_rules(
        &self,
        called: RevisionCall<'_>,
    ) -> Result<(JsonDigest, Option<SharedRules>), SyncError> {
        let declared = JsonDigest::of_declared(&called.json())
            .map_err(|_error| SyncError::Failed("the parent cannot be decoded".to_owned()))?;
        let parent = self.caller.parent;
        Ok((declared, self.related.response(&parent.key, &called.uid(parent), declared)))
    }

    /// Returns the rules of a parent. Calls the hook if the parent's declaration has changed since
    /// the last response, or if that response is old.
    async fn rules(
        &self,
        hook: &CountedHook,
        called: RevisionCall<'_>,
    ) -> Result<SharedRules, SyncError> {
        let (declared, known) = self.known_rules(called)?;
        if let Some(rules) = known {
            return Ok(rules);
        }
        let HookCaller { definition, options, budget, parent, .. } = self.caller;
        let controller = &definition.controller;
        let room = self.caller.reserve(controller.len() + called.len() + 256).await?;
        let request = protocol::customize_request(controller, &called.json());
        let (body, call) = self.caller.exchange(hook, called, request, room).await?;
        let rules = {
            let _permit = budget.decode_permit(body.len()).await;
            let (version, namespace) = (hook.rule.version, parent.key.namespace.as_ref());
            let limits = &options.customize;
            let checked =
                if options.strictness.strict { protocol::refuse_null(&body) } else { Ok(()) };
            checked.and_then(|()| {
                customize::related_rules(&body, hook.rule.strict, version, namespace, limits)
            })
        };
        call.end(if rules.is_ok() { CallOutcome::Answered } else { CallOutcome::Invalid });
        let rules: SharedRules = rules.map(Arc::from).map_err(|message| {
            hook.hook.forget(&parent.key);
            SyncError::response(hook.kind, message)
        })?;
        self.related.keep_response(&parent.key, &called.uid(parent), declared, &rules);
        Ok(rules)
    }
}

impl LatestRelated<'_> {
    /// Reads the objects that the customize hook relates to a parent as of each older revision.
    pub(super) async fn older(
        &self,
        older: &[&OlderParent],
    ) -> Result<Vec<Vec<RelatedGroup>>, SyncError> {
        let Self { reader, rules: latest, .. } = self;
        let Some(hook) = reader.hook else { return Ok(vec![Vec::new(); older.len()]) };
        let mut all = vec![Arc::clone(latest)];
        for older in older {
            let rules = reader.rules(hook, RevisionCall::Older(older)).await;
            all.push(rules.map_err(|error| error.about_revision(&older.revision.key))?);
        }
        let wanted = union(&all);
        let mut related = Vec::with_capacity(older.len());
        for rules in &all[1..] {
            let read = reader.read(rules, &wanted, &wanted).await;
            related.push(read.map_err(|error| reader.error(hook, error))?);
        }
        Ok(related)
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
