//! Desired child as an object: completed as the hook does not send it, with the namespace, the claim
//! and the owner of its parent.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, value::RawValue};

use super::{
    ChildContext, DesiredChild, DynamicApplyReturn, MAX_REMEMBERED_BYTES, Write, WriteStep,
    last_applied::{self, SYSTEM_FIELDS},
    owner_reference,
    server_side::encoded,
};
use crate::{
    meta::{
        json::{digest::JsonDigest, go_json, rewrite},
        parent::Parent,
    },
    redaction,
};

/// Desired child of a parent, completed on demand.
#[derive(Clone, Copy)]
pub(super) struct DesiredObject<'a> {
    pub(super) rules: &'a ChildContext<'a>,
    pub(super) desired: &'a DesiredChild,
}

impl<'a> DesiredObject<'a> {
    /// Returns the child as it is created: with its owner reference and last-applied annotation.
    pub(super) fn created(self) -> Result<Write, String> {
        let object = self.remembered()?;
        let remembered = go_json::encode(&object);
        let owners = owners_with(&object, self.rules.parent);
        let mut object = last_applied::into_desired_fields(object);
        last_applied::write_text(&mut object, remembered);
        object["metadata"]["ownerReferences"] = owners.into();
        let mut body = go_json::encode(&object).into_bytes();
        let content = JsonDigest::of_applied_tree(&object, &SYSTEM_FIELDS);
        drop(object);
        // The status is copied without being decoded, since its decoded size is not bounded.
        if let Some(status) = self.parts()?.remove("status").filter(|status| status.get() != "null")
            && body.pop().is_some()
        {
            body.extend_from_slice(b",\"status\":");
            let written = rewrite::rewrite(status.get().as_bytes(), &mut body);
            written.map_err(|error| self.unreadable(error))?;
            body.push(b'}');
        }
        Ok(self.write(body.into(), None, content))
    }

    /// Returns the write of this child.
    pub(super) fn write(
        self,
        body: Bytes,
        replaces: Option<String>,
        content: Option<JsonDigest>,
    ) -> Write {
        let DesiredChild { group, key, generate_name, .. } = self.desired.clone();
        Write { group, key, generate_name, body, replaces, content }
    }

    /// Returns the child as its annotation records it: as the hook sent it, with namespace
    /// and the label or annotation that claims it. A status that the annotation has no room for is
    /// left out.
    pub(super) fn remembered(self) -> Result<Value, String> {
        let desired = self.desired;
        if desired.json.len() <= MAX_REMEMBERED_BYTES {
            let object = rewrite::text(&desired.json).and_then(serde_json::from_str);
            let object = object.map_err(|error| self.unreadable(error))?;
            return Ok(self.completed(object));
        }
        let all = self.parts()?;
        let total: usize = all.values().map(|part| part.get().len()).sum();
        let remembered =
            all.iter().filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status"));
        let text: usize = remembered.clone().map(|(_, part)| part.get().len()).sum();
        if text > MAX_REMEMBERED_BYTES {
            // Whitespace is not sent and not counted.
            let sizes = remembered.map(|(_, part)| rewrite::size(part.get().as_bytes()));
            let bytes: usize = sizes.map(Result::unwrap_or_default).sum();
            if bytes > MAX_REMEMBERED_BYTES {
                return Err(format!(
                    "{} {} has {bytes} bytes, too many for its annotation {}; the limit is \
                     {MAX_REMEMBERED_BYTES}",
                    self.kind(),
                    desired.key,
                    last_applied::LAST_APPLIED
                ));
            }
        }
        let with_status = total <= MAX_REMEMBERED_BYTES;
        self.decided(all, |field| with_status || field != "status")
    }

    /// Returns fields of all parts of a desired child as the hook sent them. Adds the namespace,
    /// and the label or annotation that claims the child.
    fn decided(
        self,
        all: BTreeMap<String, &RawValue>,
        is_kept: impl Fn(&str) -> bool,
    ) -> Result<Value, String> {
        let mut object = Map::new();
        for (field, part) in all.into_iter().filter(|(field, _)| is_kept(field)) {
            let value = serde_json::from_str(part.get());
            object.insert(field, value.map_err(|error| self.unreadable(error))?);
        }
        Ok(self.completed(object))
    }

    /// Adds to a desired child the namespace, and the label or annotation that claims it.
    fn completed(self, mut object: Map<String, Value>) -> Value {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            self.complete(metadata);
        }
        let mut object = Value::Object(object);
        last_applied::remove(&mut object);
        object
    }

    /// Returns the fields of a desired child, not decoded.
    fn parts(self) -> Result<BTreeMap<String, &'a RawValue>, String> {
        serde_json::from_slice(&self.desired.json).map_err(|error| self.unreadable(error))
    }

    fn kind(self) -> &'a str {
        &self.rules.groups[self.desired.group].served.kind
    }

    fn unreadable(self, error: serde_json::Error) -> String {
        format!("{} {}: {}", self.kind(), self.desired.key, redaction::decoding(error))
    }

    /// Completes a child's metadata: the namespace, a generated name, and the label or annotation
    /// that claims the child.
    fn complete(self, metadata: &mut Map<String, Value>) {
        let key = &self.desired.key;
        metadata.insert("name".to_owned(), key.name.as_ref().into());
        match &key.namespace {
            Some(namespace) => {
                metadata.insert("namespace".to_owned(), namespace.as_ref().into());
            }
            None => {
                metadata.remove("namespace");
            }
        }
        for field in ["annotations", "labels"] {
            if let Some(Value::Object(texts)) = metadata.get_mut(field) {
                // As the API server stores it.
                texts.values_mut().filter(|it| it.is_null()).for_each(|it| *it = "".into());
            }
        }
        self.rules.ownership.mark(metadata, &self.rules.parent.uid);
    }

    /// Returns the configuration of server-side apply: the fields that the hook decides, and the
    /// owner.
    pub(super) fn applied(self) -> Result<Value, String> {
        let all = self.parts()?;
        let metadata = all.get("metadata").copied();
        let object = self.decided(all, |field| field != "status")?;
        let owners = owners_with(&object, self.rules.parent);
        let mut object = last_applied::into_desired_fields(object);
        object["metadata"]["ownerReferences"] = owners.into();
        // Metacontroller applies an empty map too, and removes the last-applied annotation from it.
        let sent: Option<Value> = metadata.and_then(|it| serde_json::from_str(it.get()).ok());
        let is_map = |metadata: &Value| metadata.get("annotations").is_some_and(Value::is_object);
        if sent.as_ref().is_some_and(is_map) && !is_map(&object["metadata"]) {
            object["metadata"]["annotations"] = Value::Object(Map::new());
        }
        Ok(object)
    }

    /// Returns the step from server-side apply to dynamic apply for a child without the annotation.
    pub(super) fn to_dynamic_apply(
        self,
        uid: &str,
        otherwise: WriteStep,
    ) -> Result<WriteStep, String> {
        let mut applied = self.applied()?;
        applied["metadata"]["uid"] = uid.into();
        let remembered = go_json::encode(&self.remembered()?);
        let (group, key) = (self.desired.group, self.desired.key.clone());
        let applied = encoded(&applied);
        let back = DynamicApplyReturn { applied, remembered, otherwise };
        Ok(WriteStep::TransferFields { group, key, uid: uid.into(), back: Some(Box::new(back)) })
    }
}

/// Returns the owners of a child in the hook response, and the parent.
fn owners_with(desired: &Value, parent: &Parent) -> Vec<Value> {
    let owners = desired.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut owners = owners.cloned().unwrap_or_default();
    owners.retain(|owner| owner.get("uid").and_then(Value::as_str) != Some(&parent.uid));
    owners.push(owner_reference(parent));
    owners
}
