//! Call of a hook for one parent: request within the budget, and check of the response.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;

use super::{SyncError, observation::ObservedChildren};
use crate::{
    controller::Context,
    informer::Object,
    meta::{
        apply::ApplyResult,
        children::{CheckedChildren, log_text},
        definition::Definition,
        hooks,
        hooks::{
            budget::{ControllerBudget, Reservation},
            counted::CountedHook,
            metrics::{CallOutcome, CountedCall},
            rule::HookKind,
        },
        options::MetaOptions,
        parent::{
            Parent,
            health::{Failure, HookHealth},
            sync_record::{ObservedDigest, SettledSync},
        },
        protocol::{self, StringChanges},
        related::RelatedGroup,
        rollout::OlderParent,
    },
};

/// Target of bodies in the log, which may hold secrets: the binary logs it only if a flag enables
/// it.
const BODIES: &str = "hook_bodies";

/// Response of the hook.
pub(super) enum HookResponse {
    /// Response of a sync that equals the last one, which left this record.
    Unchanged(SettledSync),
    /// Response that is to be executed.
    Checked(Box<CheckedResponse>),
}

/// Response of the hook, checked part by part. Its parts are slices of the response.
pub(super) struct CheckedResponse {
    /// Kind of the hook.
    pub(super) hook: HookKind,
    /// Desired children.
    pub(super) children: CheckedChildren,
    /// Status of the parent; an error if it cannot be written.
    pub(super) status: Result<Option<Bytes>, String>,
    /// Changes of the labels of a decorated object.
    pub(super) labels: StringChanges,
    /// Changes of its annotations.
    pub(super) annotations: StringChanges,
    /// Record of this sync.
    pub(super) record: SettledSync,
    /// True if the hook has finished finalizing the parent.
    pub(super) finalized: bool,
}

impl CheckedResponse {
    /// Returns whether each part of the response can be written.
    pub(super) fn is_usable(&self) -> bool {
        self.children.unusable.is_empty() && self.status.is_ok()
    }
}

/// Adds the parts of a response that cannot be written to the result of the writes of the others.
/// The sync fails as if the API server had refused them.
pub(super) fn with_unusable(
    hook: HookKind,
    unusable: Option<String>,
    managed: Result<ApplyResult, SyncError>,
) -> Result<ApplyResult, SyncError> {
    let Some(unusable) = unusable else { return managed };
    let partly = format!("hook response is partly unusable: {unusable}");
    let message = match managed {
        Err(SyncError::Failed(refused) | SyncError::TooDeep(refused)) => {
            format!("{partly}; {refused}")
        }
        Err(SyncError::Hook(Failure { message, .. })) => format!("{message}; {unusable}"),
        Err(error @ (SyncError::Cancelled | SyncError::Throttled { .. })) => return Err(error),
        Ok(_)
        | Err(
            SyncError::Conflict(_)
            | SyncError::Outdated(_)
            | SyncError::Busy(..)
            | SyncError::HookDown(..),
        ) => partly,
    };
    Err(SyncError::response(hook, message))
}

/// Parent that a hook is called for, as of one revision. The JSON of a cached object is restored for
/// each use, since it may be long, and a call waits.
#[derive(Clone, Copy)]
pub(super) enum RevisionCall<'a> {
    /// The current parent, as cached.
    Latest(&'a Object),
    /// The parent as of an older revision.
    Older(&'a OlderParent),
}

impl<'a> RevisionCall<'a> {
    /// Returns the length of the JSON, in bytes.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Latest(object) => object.json_len(),
            Self::Older(older) => older.json.len(),
        }
    }

    /// Returns the JSON of the parent.
    pub(super) fn json(self) -> Cow<'a, [u8]> {
        match self {
            Self::Latest(object) => object.json(),
            Self::Older(older) => (&*older.json).into(),
        }
    }

    /// Returns the uid of the parent, another one for each revision, so that a response kept for one
    /// revision is not used for another.
    pub(super) fn uid(self, parent: &Parent) -> Arc<str> {
        match self {
            Self::Latest(_) => parent.uid.clone(),
            Self::Older(older) => format!("{}/{}", parent.uid, older.revision.key.name).into(),
        }
    }
}

/// Caller of the hooks for one parent, in one sync.
#[derive(Clone, Copy)]
pub(super) struct HookCaller<'a> {
    pub(super) definition: &'a Definition,
    pub(super) options: &'a MetaOptions,
    pub(super) budget: &'a ControllerBudget,
    pub(super) health: &'a HookHealth,
    pub(super) parent: &'a Parent,
    pub(super) context: &'a Context,
}

impl HookCaller<'_> {
    /// Reserves room for a request of a hook, and waits until it is free.
    pub(super) async fn reserve(&self, bytes: usize) -> Result<Option<Reservation>, SyncError> {
        let token = self.context.epoch().token();
        let room = token.run_until_cancelled(self.budget.request(bytes)).await;
        room.ok_or(SyncError::Cancelled)
    }

    /// Sends a request to a hook, and returns its response. The room is released with the request.
    pub(super) async fn exchange<'h>(
        &self,
        hook: &'h CountedHook,
        called: RevisionCall<'_>,
        request: Vec<u8>,
        room: Option<Reservation>,
    ) -> Result<(Bytes, CountedCall<'h>), SyncError> {
        let key = &self.parent.key;
        let request = match room {
            Some(room) => room.hold_all(request),
            None => request.into(),
        };
        if tracing::enabled!(target: BODIES, tracing::Level::TRACE) {
            tracing::trace!(target: BODIES, body = log_text::body(&request), "request to the hook");
        }
        let (body, call) = hooks::call(
            &*hook.hook,
            &hook.series,
            self.budget,
            self.context.epoch(),
            key,
            &called.uid(self.parent),
            request,
        )
        .await
        .map_err(|error| SyncError::of_hook(hook.kind, error))?;
        if tracing::enabled!(target: BODIES, tracing::Level::TRACE) {
            tracing::trace!(target: BODIES, body = log_text::body(&body), "response of the hook");
        }
        for waiting in self.health.responded(hook.kind, key) {
            self.context.enqueue(waiting);
        }
        Ok((body, call))
    }
}

/// Caller of the sync or finalize hook for observed children.
pub(super) struct SyncCaller<'a> {
    pub(super) caller: HookCaller<'a>,
    pub(super) hook: &'a CountedHook,
    pub(super) observed: &'a ObservedChildren<'a>,
    /// Digest of the observed revisions; 0 without any.
    pub(super) digest: u64,
}

impl SyncCaller<'_> {
    /// Calls the hook, and checks its response unless nothing has changed since the last sync.
    pub(super) async fn call(
        &self,
        called: RevisionCall<'_>,
        related: &[RelatedGroup],
        last: Option<SettledSync>,
    ) -> Result<HookResponse, SyncError> {
        let Self { hook, observed, caller: HookCaller { definition, budget, parent, .. }, .. } =
            *self;
        let controller = &definition.controller;
        let objects = observed.objects(related);
        let bytes = protocol::sync_request_bytes(controller, called.len(), objects);
        let room = self.caller.reserve(bytes).await?;
        let request = protocol::sync_request(
            definition.kind,
            hook.kind,
            hook.rule.version,
            controller,
            parent,
            &called.json(),
            objects,
        );
        let types = observed.groups.iter().map(|group| &*group.served);
        let digest = ObservedDigest::of(&request, types, &observed.missing, self.digest);
        let (body, call) = self.caller.exchange(hook, called, request, room).await?;
        let record = SettledSync::new(digest, &body);
        if let Some(last) = record.unchanged_since(last) {
            call.end(CallOutcome::Answered);
            return Ok(HookResponse::Unchanged(last));
        }
        let checked = {
            // Decodes the metadata of one child at a time.
            let _permit = budget.decode_permit(body.len()).await;
            self.check(&body, matches!(called, RevisionCall::Latest(_)), record)
        };
        // Status and children hold their slices of the response.
        drop(body);
        let is_usable = checked.as_ref().is_ok_and(CheckedResponse::is_usable);
        call.end(if is_usable { CallOutcome::Answered } else { CallOutcome::Invalid });
        if !is_usable {
            // A kept response would be confirmed by its ETag again and stay unusable.
            hook.hook.forget(&parent.key);
        }
        let checked = checked.map_err(|message| SyncError::response(hook.kind, message))?;
        Ok(HookResponse::Checked(Box::new(checked)))
    }

    /// Checks a response. A resync that the latest revision requests counts even if the response is
    /// refused.
    fn check(
        &self,
        body: &Bytes,
        is_latest: bool,
        mut record: SettledSync,
    ) -> Result<CheckedResponse, String> {
        let Self { hook, observed, caller, .. } = self;
        let MetaOptions { max_children, strictness, .. } = caller.options;
        if strictness.strict {
            protocol::refuse_null(body)?;
        }
        let kind = caller.definition.kind;
        let response = protocol::sync_response_within(kind, body, hook.rule.strict, *max_children)?;
        record.resync_after = response.resync_after;
        if is_latest {
            caller.parent.state.resync_after(record.resync_after);
        }
        let children = observed.rules().check_all(response.children, strictness.strict);
        let children = children.map_err(|wrong| format!("hook response is unusable: {wrong}"))?;
        // In the response of a sync it would remove the finalizer, which the next sync adds again.
        let finalized = response.finalized && hook.kind == HookKind::Finalize;
        Ok(CheckedResponse {
            hook: hook.kind,
            children,
            status: response.status,
            labels: response.labels,
            annotations: response.annotations,
            record,
            finalized,
        })
    }
}
