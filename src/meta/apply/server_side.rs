//! Server-side apply of one child.
//!
//! A child that is not observed is read first, so that a foreign object is not taken over. An object
//! without a controller is taken over, as in Metacontroller, unless the process is strict. An
//! observed child is applied with its uid, so that a deleted child is not created again.
//!
//! Semantics: `pkg/controller/common/manage_children.go` of Metacontroller, except that
//! Metacontroller always sets `force`.

use std::{mem::take, sync::atomic::Ordering};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    Apply, WrittenChild,
    dry_run_apply::{DryRunApply, dry_run_apply},
    dry_run_create::dry_run_create,
    field_transfer,
    refusal::{ExistingObject, explain_existing},
};
use crate::{
    informer::ObjectKey,
    kind::VersionOrder,
    meta::{
        children::{Write, WriteStep, adoption::Adoption, with_uid},
        json::digest::JsonDigest,
        parent::{Parent, sync_error::SyncError, sync_record::ChildDigest},
        resource::{Resource, StoredObject, is_conflict, is_gone, is_other_uid},
    },
    redaction,
};

/// Number of fields that an Event names.
const MOST_FIELDS: usize = 8;

impl Apply {
    /// Writes one child. Returns its digest if it is as desired from now on.
    pub(super) async fn apply(
        &self,
        target: &WrittenChild<'_>,
        step: WriteStep,
    ) -> Result<Option<ChildDigest>, SyncError> {
        match step {
            WriteStep::Delete { .. } => self.update(target, step).await,
            WriteStep::TransferFields { .. } => Ok(None),
            WriteStep::Create(write) => self.apply_new(target, write).await,
            WriteStep::Update(write) => self.apply_to(target, write).await,
            WriteStep::Recreate { uid, created, observed, merged } => {
                let (group, key) = (created.group, created.key.clone());
                let served = &target.rules.groups[group].served;
                let resource = Resource::new(target.context.requester(), served);
                let parent = target.rules.parent;
                let mut is_invalid = false;
                // An aggregated server may ignore `dryRun`, and carry the apply out.
                if served.version_order == VersionOrder::Comparable {
                    let manager = &self.rule.manager;
                    let response = resource.dry_run_apply(&key, merged, manager).await;
                    match dry_run_apply(&observed, &response, &target.what)? {
                        DryRunApply::Unchanged => return Ok(target.digests.observed),
                        DryRunApply::Changed => {}
                        DryRunApply::Invalid => is_invalid = true,
                        DryRunApply::Refused(why) => {
                            parent.state.contest(target.what.clone(), why, None);
                            return Ok(None);
                        }
                    }
                }
                if target.is_halted() {
                    return Ok(None);
                }
                // The dry run of the creation tells an invalid object from an immutable field.
                if is_invalid || !self.options.recreate_without_dry_run {
                    let refused_for = || parent.state.refused_for(&target.what);
                    dry_run_create(&resource, served, &created, &observed, refused_for).await?;
                }
                self.update(target, WriteStep::Delete { group, key, uid }).await
            }
        }
    }

    /// Returns whether an object without a controller is taken over in place of a new child.
    /// The children of a parent that is being deleted are deleted with it.
    fn takes_over(&self, parent: &Parent) -> bool {
        // An object that no controller has written is not proven to be ours.
        let needs_no_proof = self.options.adoption == Adoption::Selected;
        needs_no_proof && !self.options.strictness.strict && !parent.terminating
    }

    /// Creates a child, unless there is an object of that name. An object without a controller is
    /// taken over if that is allowed.
    async fn apply_new(
        &self,
        target: &WrittenChild<'_>,
        mut write: Write,
    ) -> Result<Option<ChildDigest>, SyncError> {
        let rules = target.rules;
        let resource = target.resource(write.group);
        let doing = format!("creating {}", target.what);
        match explain_existing(rules, write.group, &resource, &write.key, &doing).await {
            ExistingObject::Absent => {}
            ExistingObject::Passing(error) => return Err(error),
            ExistingObject::LeftBehind(child) => {
                return Err(self.delete_left_behind(target, &child, &resource, &write.key).await);
            }
            ExistingObject::NotOurs { free: Some(uid), .. } if self.takes_over(rules.parent) => {
                if target.is_halted() {
                    return Ok(None);
                }
                // The uid prevents a create if the object was deleted since the read.
                write.body = with_uid(&write.body, &uid).map_err(SyncError::Failed)?;
                return self.apply_to(target, write).await;
            }
            ExistingObject::NotOurs { message, owner, .. } => {
                let what = target.what.clone();
                rules.parent.state.contest(what, message, owner);
                return Ok(None);
            }
        }
        if target.is_halted() {
            return Ok(None);
        }
        // Not forced: an object that was created since the read may be foreign.
        let manager = &self.rule.manager;
        let applied = resource.apply(&write.key, take(&mut write.body), manager, false).await;
        let response = applied.map_err(|error| SyncError::of_write(&doing, &error))?;
        let stored = stored(&response, &doing)?;
        let step = WriteStep::Create(write);
        let _is_equal = self.record(rules.parent, &target.what, &step, Some(stored));
        Ok(target.digest_of(&response))
    }

    /// Applies to an observed child; takes over fields of other managers.
    async fn apply_to(
        &self,
        target: &WrittenChild<'_>,
        mut write: Write,
    ) -> Result<Option<ChildDigest>, SyncError> {
        let (parent, key) = (target.rules.parent, write.key.clone());
        let manager = &self.rule.manager;
        let resource = target.resource(write.group);
        let doing = format!("applying {}", target.what);
        let body = take(&mut write.body);
        let mut applied = resource.apply(&key, body.clone(), manager, false).await;
        // An object that no longer exists is a conflict too, which is not forced.
        if let Err(error) = &applied
            && let Some(text) = taken_over(&target.what, error)
        {
            if target.is_halted() {
                return Ok(None);
            }
            applied = resource.apply(&key, body, manager, true).await;
            if applied.is_ok() {
                parent.state.note("FieldsTakenOver", text);
            }
        }
        let response = match applied {
            Ok(response) => response,
            Err(error) if is_gone(&error) || is_other_uid(&error) => {
                return Err(SyncError::Outdated(format!("{doing}: the object no longer exists")));
            }
            Err(error) => {
                if is_conflict(&error) {
                    parent.state.conflicted(&target.what);
                }
                return Err(SyncError::of_write(&doing, &error));
            }
        };
        let stored = stored(&response, &doing)?;
        if stored.version() == write.replaces.as_deref() {
            return Ok(target.digest_of(&response));
        }
        let step = WriteStep::Update(write);
        let _is_equal = self.record(parent, &target.what, &step, Some(stored));
        if self.take_over_dynamic(target, &resource, &key, &response).await? {
            // The next sync removes the fields that are desired no longer.
            return Ok(None);
        }
        Ok(target.digest_of(&response))
    }

    /// Takes fields over that dynamic apply owns, after a write that was due anyway: Metacontroller
    /// leaves them when it changes its strategy. Returns whether there were any.
    async fn take_over_dynamic(
        &self,
        target: &WrittenChild<'_>,
        resource: &Resource<'_>,
        key: &ObjectKey,
        response: &RawValue,
    ) -> Result<bool, SyncError> {
        #[derive(Deserialize)]
        struct AppliedHead {
            metadata: Value,
        }
        let Ok(AppliedHead { metadata }) = serde_json::from_str(response.get()) else {
            return Ok(false);
        };
        let live = json!({ "metadata": metadata });
        if !field_transfer::is_owned_by_dynamic(&live) {
            return Ok(false);
        }
        let manager = self.rule.manager.as_str();
        let Some(patch) = field_transfer::to_server_side(&live, manager) else { return Ok(false) };
        if target.is_halted() {
            return Ok(true);
        }
        self.send_transfer(target, resource, key, &patch).await?;
        Ok(true)
    }
}

impl<'a> WrittenChild<'a> {
    /// Returns whether no further request may be sent: another write was throttled, or the sync was
    /// cancelled.
    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Returns access to the objects of a group.
    pub(super) fn resource(&self, group: usize) -> Resource<'a> {
        Resource::new(self.context.requester(), &self.rules.groups[group].served)
    }

    /// Returns the digest of the child as the server has stored it.
    fn digest_of(&self, response: &RawValue) -> Option<ChildDigest> {
        let declared = JsonDigest::of_declared(response.get().as_bytes()).ok()?;
        Some(self.digests.desired?.with(declared))
    }
}

fn stored(response: &RawValue, doing: &str) -> Result<StoredObject, SyncError> {
    StoredObject::without_status(response.get().as_bytes())
        .map_err(|error| SyncError::Failed(format!("{doing}: {}", redaction::decoding(error))))
}

/// Returns the text about the fields that are to be taken over, with their managers; `None` if no
/// other manager owns a field. A manager's name is in the messages of the causes: `conflict with
/// "x" using v1 at 2000-01-01T00:00:00Z`.
fn taken_over(what: &str, error: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut fields: Vec<String> = causes
        .filter(|cause| status.code == 409 && cause.reason == redaction::FIELD_CONFLICT)
        .map(|cause| {
            let manager = cause.message.strip_prefix("conflict with ").unwrap_or_default();
            let manager = manager.split(" using ").next().unwrap_or_default();
            let of = if manager.is_empty() { String::new() } else { format!(" of {manager}") };
            let field = if cause.field.is_empty() { "a field" } else { &cause.field };
            format!("{field}{of}")
        })
        .collect();
    if fields.is_empty() {
        return None;
    }
    let more = fields.len().saturating_sub(MOST_FIELDS);
    fields.truncate(MOST_FIELDS);
    let fields = fields.join(", ");
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    Some(format!("Took over fields of {what}: {fields}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflict_names_the_other_managers_and_their_fields() {
        let text = |causes: Value| {
            let status = json!({
                "code": 409, "reason": "Conflict", "message": "m", "details": {"causes": causes},
            });
            let status = serde_json::from_value::<kube::core::Status>(status).unwrap();
            taken_over("ConfigMap ns/a", &kube::Error::Api(status.boxed()))
        };
        let cause = |message: &str, field: &str| json!({ "reason": "FieldManagerConflict", "message": message, "field": field });
        let edited = "conflict with \"kubectl-edit\" using v1 at 2000-01-01T00:00:00Z";

        assert_eq!(
            text(json!([cause(edited, ".data.a"), cause("conflict with \"b\"", ".data.b")]))
                .unwrap(),
            "Took over fields of ConfigMap ns/a: .data.a of \"kubectl-edit\", .data.b of \"b\""
        );
        let redacted = text(json!([cause("", ".data.a"), cause("conflict with \"b\"", "")]));
        assert_eq!(
            redacted.unwrap(),
            "Took over fields of ConfigMap ns/a: .data.a, a field of \"b\""
        );
        assert_eq!(text(json!([])), None);
        assert_eq!(text(json!([{ "reason": "Other", "field": ".data.a" }])), None);
        let many = text(json!(vec![cause(edited, ".x"); 20])).unwrap();
        assert!(many.ends_with(", and 12 more"), "{many}");
    }
}
