//! Writes a parent's status as the hook wants it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use bytes::Bytes;
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

/// Name of a parent's status in its write limit.
const STATUS: &str = "the status";
/// Number of attempts to write a status before a conflict is retried by the work queue.
const STATUS_ATTEMPTS: u32 = 4;

impl Composite {
    /// Replaces the parent's status by the hook's, if they differ.
    ///
    /// No decoded status is held across a request: after a conflict it is decoded again from its
    /// text.
    pub(super) async fn write_status(
        &self,
        parent: &Parent,
        object: &Object,
        status: Option<Bytes>,
        context: &Context,
    ) -> Result<(), SyncError> {
        let text = status.as_deref().unwrap_or(b"{}");
        let (mut body, digest_wanted) = {
            let _turn = self.budget.turn(text.len().max(object.json().len())).await;
            let cached: Value = serde_json::from_slice(object.json()).map_err(|error| {
                let error = redaction::decoding(error);
                SyncError::Failed(format!("parent is unreadable: {error}"))
            })?;
            let wanted = wanted(text, object.header().generation)?;
            if has(&cached, &wanted) {
                return Ok(());
            }
            let digest_wanted = digest(Some(&wanted));
            let known = digest(cached.get("status"));
            // The schema prunes the status, so writing it again would change nothing.
            if self.parents.writes.status_settled(&parent.key, digest_wanted, known) {
                return Ok(());
            }
            (with_status(cached, wanted), digest_wanted)
        };
        // A status that differs on every call would trigger the next sync itself.
        if !self.parents.writes.may_write(&parent.key, STATUS) {
            return Ok(());
        }
        let resource = Resource::new(context.client(), &parent.served);
        let mut other = None;
        for attempt in 0..STATUS_ATTEMPTS {
            if attempt > 0 {
                sleep(Duration::from_millis(10 * 5_u64.pow(attempt - 1))).await;
                let live = match resource.get(&parent.key).await {
                    Ok(live) if live.pointer("/metadata/uid") == Some(&json!(parent.uid)) => live,
                    Ok(_) => return Ok(()),
                    Err(error) if is_gone(&error) => return Ok(()),
                    Err(error) => return Err(SyncError::of_write("reading the parent", &error)),
                };
                other = rival(&live).map(str::to_owned);
                let _turn = self.budget.turn(text.len()).await;
                let wanted = wanted(text, object.header().generation)?;
                if has(&live, &wanted) {
                    return Ok(());
                }
                body = with_status(live, wanted);
            }
            match resource.update_status(&parent.key, body.clone()).await {
                Ok(stored) => {
                    self.parents.writes.wrote(&parent.key, STATUS.to_owned());
                    let stored = digest(stored.get("status"));
                    self.parents.writes.settle_status(&parent.key, digest_wanted, stored);
                    return Ok(());
                }
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(SyncError::of_write("writing the status", &error)),
            }
        }
        let rival = other.as_deref().unwrap_or("another client");
        Err(SyncError::Behind(format!("writing the status: {rival} keeps writing the parent")))
    }
}

/// Returns the status to be written.
fn wanted(text: &[u8], generation: i64) -> Result<Value, SyncError> {
    let mut wanted: Map<String, Value> = serde_json::from_slice(text).map_err(|error| {
        SyncError::Failed(format!("status is unreadable: {}", redaction::decoding(error)))
    })?;
    wanted.insert("observedGeneration".to_owned(), generation.into());
    Ok(Value::Object(wanted))
}

fn has(parent: &Value, wanted: &Value) -> bool {
    last_applied::same(parent.get("status").unwrap_or(&Value::Null), wanted)
}

/// Returns the encoded parent with another status.
fn with_status(mut parent: Value, wanted: Value) -> Bytes {
    parent["status"] = wanted;
    last_applied::encode(&parent).into()
}

fn digest(value: Option<&Value>) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.map(last_applied::encode).hash(&mut hasher);
    hasher.finish()
}
