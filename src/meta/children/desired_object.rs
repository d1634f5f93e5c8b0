//! Desired child as an object: completed as the hook does not send it, with the namespace, the claim
//! and the owner of its parent.

use std::collections::BTreeMap;

use serde_json::{Map, Value, value::RawValue};

use super::{
    ChildContext, DesiredChild, DynamicApplyReturn, MAX_REMEMBERED_BYTES, Write, WriteStep,
    last_applied::{self, SYSTEM_FIELDS},
    owner_reference,
    server_side::encoded,
};
use crate::{
    informer::ObjectKey,
    meta::{
        json::{fingerprint::Fingerprint, go_json, rewrite},
        parent::Parent,
    },
    redaction,
};

impl ChildContext<'_> {
    /// Returns a child as it is created: with its owner reference and last-applied annotation.
    pub(super) fn new_child(&self, desired: DesiredChild) -> Result<Write, String> {
        let object = self.complete_object(&desired)?;
        let remembered = go_json::encode(&object);
        let owners = owners_with(&object, self.parent);
        let mut object = last_applied::into_desired_fields(object);
        last_applied::write_text(&mut object, remembered);
        object["metadata"]["ownerReferences"] = owners.into();
        let mut body = go_json::encode(&object).into_bytes();
        let content = Fingerprint::of_applied_tree(&object, &SYSTEM_FIELDS);
        drop(object);
        let DesiredChild { group, key, generate_name, json } = desired;
        let unreadable = |error: serde_json::Error| {
            format!("{} {key}: {}", self.groups[group].served.kind, redaction::decoding(error))
        };
        // The status is copied without being decoded, since its decoded size is not bounded.
        let mut parts: BTreeMap<String, &RawValue> =
            serde_json::from_slice(&json).map_err(unreadable)?;
        if let Some(status) = parts.remove("status").filter(|status| status.get() != "null")
            && body.pop().is_some()
        {
            body.extend_from_slice(b",\"status\":");
            rewrite::rewrite(status.get().as_bytes(), &mut body).map_err(unreadable)?;
            body.push(b'}');
        }
        Ok(Write { group, key, generate_name, body: body.into(), replaces: None, content })
    }

    /// Returns a desired child as its annotation records it: as the hook sent it, with namespace
    /// and the label or annotation that claims it. A status that the annotation has no room for is
    /// left out.
    pub(super) fn complete_object(&self, desired: &DesiredChild) -> Result<Value, String> {
        if desired.json.len() <= MAX_REMEMBERED_BYTES {
            let object = rewrite::text(&desired.json).and_then(serde_json::from_str);
            let object = object.map_err(|error| self.unreadable(desired, error))?;
            return Ok(self.completed(desired, object));
        }
        let all = self.parts(desired)?;
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
                    self.groups[desired.group].served.kind,
                    desired.key,
                    last_applied::LAST_APPLIED
                ));
            }
        }
        let with_status = total <= MAX_REMEMBERED_BYTES;
        self.decided(desired, all, |field| with_status || field != "status")
    }

    /// Returns fields of all parts of a desired child as the hook sent them. Adds the namespace,
    /// and the label or annotation that claims the child.
    fn decided(
        &self,
        desired: &DesiredChild,
        all: BTreeMap<String, &RawValue>,
        is_kept: impl Fn(&str) -> bool,
    ) -> Result<Value, String> {
        let mut object = Map::new();
        for (field, part) in all.into_iter().filter(|(field, _)| is_kept(field)) {
            let value = serde_json::from_str(part.get());
            object.insert(field, value.map_err(|error| self.unreadable(desired, error))?);
        }
        Ok(self.completed(desired, object))
    }

    /// Adds to a desired child the namespace, and the label or annotation that claims it.
    fn completed(&self, desired: &DesiredChild, mut object: Map<String, Value>) -> Value {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            self.complete(metadata, &desired.key);
        }
        let mut object = Value::Object(object);
        last_applied::remove(&mut object);
        object
    }

    /// Returns the fields of a desired child, not decoded.
    fn parts<'a>(
        &self,
        desired: &'a DesiredChild,
    ) -> Result<BTreeMap<String, &'a RawValue>, String> {
        serde_json::from_slice(&desired.json).map_err(|error| self.unreadable(desired, error))
    }

    fn unreadable(&self, desired: &DesiredChild, error: serde_json::Error) -> String {
        let kind = &self.groups[desired.group].served.kind;
        format!("{kind} {}: {}", desired.key, redaction::decoding(error))
    }

    /// Completes a child's metadata: the namespace, a generated name, and the label or annotation
    /// that claims the child.
    fn complete(&self, metadata: &mut Map<String, Value>, key: &ObjectKey) {
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
        self.ownership.mark(metadata, &self.parent.uid);
    }

    /// Returns the configuration of a desired child: the fields that the hook decides, and the
    /// owner.
    pub(super) fn applied(&self, desired: &DesiredChild) -> Result<Value, String> {
        let all = self.parts(desired)?;
        let metadata = all.get("metadata").copied();
        let object = self.decided(desired, all, |field| field != "status")?;
        let owners = owners_with(&object, self.parent);
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
        &self,
        desired: &DesiredChild,
        uid: &str,
        otherwise: WriteStep,
    ) -> Result<WriteStep, String> {
        let mut applied = self.applied(desired)?;
        applied["metadata"]["uid"] = uid.into();
        let remembered = go_json::encode(&self.complete_object(desired)?);
        let (group, key) = (desired.group, desired.key.clone());
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
