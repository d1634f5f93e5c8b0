//! Writes the status that a hook gives a parent.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{Composite, SyncError};
use crate::{
    controller::Context,
    informer::Object,
    meta::{
        children::Parent,
        last_applied,
        resource::{Resource, is_conflict, is_gone, rival},
    },
    redaction,
};

/// What a parent's status is called among the things that are written for it.
const STATUS: &str = "the status";
/// How often a status is written before the conflicting writer is left to go first.
const STATUS_ATTEMPTS: u32 = 4;

impl Composite {
    /// Puts the hook's status in the place of the parent's, if it is another one.
    pub(super) async fn write_status(
        &self,
        parent: &Parent,
        object: &Object,
        mut wanted: Map<String, Value>,
        context: &Context,
    ) -> Result<(), SyncError> {
        wanted.insert("observedGeneration".to_owned(), object.header().generation.into());
        let wanted = Value::Object(wanted);
        let cached: Value = serde_json::from_slice(object.json()).map_err(|error| {
            SyncError::Failed(format!("parent is unreadable: {}", redaction::decoding(error)))
        })?;
        let is_wanted = |object: &Value| {
            last_applied::same(object.get("status").unwrap_or(&Value::Null), &wanted)
        };
        let digest_wanted = digest(Some(&wanted));
        if is_wanted(&cached)
            // Its schema keeps something else of it.
            || self.roster.status_settled(&parent.key, digest_wanted, digest(cached.get("status")))
        {
            return Ok(());
        }
        // A hook that says something else each time would be asked again by its own status.
        if !self.roster.may_write(&parent.key, STATUS) {
            return Ok(());
        }
        let resource = Resource::new(context.client(), &parent.served);
        let mut object = cached;
        for attempt in 0..STATUS_ATTEMPTS {
            if attempt > 0 {
                sleep(Duration::from_millis(10 * 5_u64.pow(attempt - 1))).await;
                object = match resource.get(&parent.key).await {
                    Ok(live) if live.pointer("/metadata/uid") == Some(&json!(parent.uid)) => live,
                    Ok(_) => return Ok(()),
                    Err(error) if is_gone(&error) => return Ok(()),
                    Err(error) => return Err(SyncError::of_write("reading the parent", &error)),
                };
                if is_wanted(&object) {
                    return Ok(());
                }
            }
            object["status"] = wanted.clone();
            match resource.update_status(&parent.key, &object).await {
                Ok(stored) => {
                    self.roster.wrote(&parent.key, STATUS.to_owned());
                    let stored = digest(stored.get("status"));
                    self.roster.settle_status(&parent.key, digest_wanted, stored);
                    return Ok(());
                }
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(SyncError::of_write("writing the status", &error)),
            }
        }
        let rival = rival(&object).unwrap_or("somebody else");
        Err(SyncError::Behind(format!("writing the status: {rival} keeps writing the parent")))
    }
}

fn digest(value: Option<&Value>) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.map(last_applied::encode).hash(&mut hasher);
    hasher.finish()
}
