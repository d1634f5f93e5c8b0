//! Transfer of a child's fields after a change of the apply strategy: requests.

use serde_json::Value;

use super::{
    Apply, WrittenChild,
    dry_run_apply::{DryRunApply, dry_run_apply},
    field_transfer,
};
use crate::{
    informer::ObjectKey,
    kind::VersionOrder,
    meta::{
        children::{DynamicApplyReturn, WriteStep},
        json::go_json,
        parent::sync_error::SyncError,
        resource::{Resource, ServerObject, StoredObject, is_gone},
    },
    redaction,
};

impl Apply {
    /// Hands the fields of a child over. Returns the write that is due instead: any step but a
    /// transfer, or that of a child without fields to transfer.
    pub(super) async fn transfer_fields(
        &self,
        target: &WrittenChild<'_>,
        step: WriteStep,
    ) -> Result<Option<WriteStep>, SyncError> {
        let WriteStep::TransferFields { group, key, uid, back } = step else {
            return Ok(Some(step));
        };
        let resource = target.resource(group);
        let doing = format!("reading {}", target.what);
        let live = match resource.get(&key).await {
            Ok(live) if live.is(&uid) && !live.is_terminating() => decoded(&live, &doing)?,
            Ok(_) => return Err(SyncError::Outdated(format!("{doing}: the cache is behind"))),
            Err(error) if is_gone(&error) => {
                return Err(SyncError::Outdated(format!("{doing}: the object no longer exists")));
            }
            Err(error) => return Err(SyncError::of_write(&doing, &error)),
        };
        if target.is_halted() {
            return Ok(None);
        }
        let manager = &self.rule.manager;
        let patch = match back {
            None => field_transfer::to_server_side(&live, manager.as_str()),
            Some(back) => {
                let DynamicApplyReturn { applied, remembered, otherwise } = *back;
                let Some(fields) = field_transfer::applied(&live, manager.as_str()) else {
                    return Ok(Some(otherwise));
                };
                // The server knows whether values that are spelled differently mean the same.
                let served = &target.rules.groups[group].served;
                let mut is_as_desired = false;
                if served.version_order == VersionOrder::Comparable {
                    let response = resource.dry_run_apply(&key, applied, manager).await;
                    let text = live.to_string();
                    let compared = dry_run_apply(text.as_bytes(), &response, &target.what)?;
                    is_as_desired = compared == DryRunApply::Unchanged;
                }
                let last = if is_as_desired { None } else { Some(&fields.last) };
                let remembered = last.map_or(remembered, go_json::encode);
                Some(fields.into_dynamic(&live, &remembered))
            }
        };
        let Some(patch) = patch else {
            return Err(SyncError::Outdated(format!("{doing}: the cache is behind")));
        };
        if !target.is_halted() {
            self.send_transfer(target, &resource, &key, &patch).await?;
        }
        Ok(None)
    }

    /// Sends the patch of a transfer.
    pub(super) async fn send_transfer(
        &self,
        target: &WrittenChild<'_>,
        resource: &Resource<'_>,
        key: &ObjectKey,
        patch: &Value,
    ) -> Result<(), SyncError> {
        let doing = format!("transferring the fields of {}", target.what);
        match self.parents.patches.merge::<StoredObject>(resource, key, patch).await {
            Ok(_) => {
                tracing::debug!(name = %key, "fields of a child transferred");
                target.rules.parent.state.wrote(&target.what);
                Ok(())
            }
            Err(error) => Err(SyncError::of_write(&doing, &error)),
        }
    }
}

fn decoded(live: &ServerObject, doing: &str) -> Result<Value, SyncError> {
    serde_json::from_slice(live.json())
        .map_err(|error| SyncError::Failed(format!("{doing}: {}", redaction::decoding(error))))
}
