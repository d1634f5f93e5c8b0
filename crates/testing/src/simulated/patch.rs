//! Patches.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    call::{Call, CallResult, HttpReply},
    cluster::SimulatedCluster,
    decode::Body,
    history::NamespacedName,
    managed, metadata, object,
    refusal::{FieldFault, Refusal},
    render::{render, stored},
    resource::SimulatedResource,
    scale,
    update::require_version,
    write::writer,
};

impl SimulatedCluster {
    pub(super) fn patch(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        let shape = call.shape(resource)?;
        let key = Self::key_of(resource, call);
        let media_type = call.content_type.split(';').next().unwrap_or_default().trim();
        let (code, patched) = match media_type {
            "application/apply-patch+yaml" => self.apply_patch(resource, &key, call)?,
            "application/json-patch+json"
            | "application/merge-patch+json"
            | "application/strategic-merge-patch+json"
                if !(resource.custom && media_type.contains("strategic")) =>
            {
                let live = self.live(resource, &key)?;
                let is_scale = call.info.subresource == "scale";
                let mut object = if is_scale {
                    scale::scale_of(resource, &live)?
                } else {
                    render(resource, &live, super::render::Shape::Whole)
                };
                // A patch without a version applies to the live one.
                let patch = call.json().map_err(undecodable)?;
                match media_type {
                    "application/json-patch+json" => json_patch(&mut object, patch)?,
                    "application/merge-patch+json" => merge(&mut object, &patch)?,
                    _ => strategic(&mut object, &patch)?,
                }
                let object = if is_scale {
                    scale::scaled(resource, &live, &object)?
                } else {
                    self.prune(resource, &mut object, Vec::new(), call)?;
                    self.check_identity(resource, &live, &object, &key)?;
                    stored(resource, object)
                };
                (200, self.replace(resource, &live, object, call, None)?)
            }
            _ => return Err(unsupported(resource)),
        };
        let shown = if call.info.subresource == "scale" {
            scale::scale_of(resource, &patched)?
        } else {
            render(resource, &patched, shape)
        };
        Ok(CallResult::Done(HttpReply::json(code, &shown)))
    }

    fn check_identity(
        &self,
        resource: &SimulatedResource,
        live: &Value,
        object: &Value,
        key: &NamespacedName,
    ) -> Result<(), Refusal> {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (group, kind) = (resource.group.as_str(), resource.kind.as_str());
        let wrong = |group: &str, kind: &str, field: &str, value: &str, why: &str| {
            let fault = FieldFault::invalid(field, &value.into(), why);
            Err(Refusal::invalid(group, kind, &key.1, &[fault]))
        };
        let wanted = resource.api_version();
        let given = text("apiVersion");
        if !resource.custom && (given != wanted || text("kind") != kind) {
            let why = format!("no kind {:?} is registered for version {given:?}", text("kind"));
            return wrong(group, kind, "patch", &object.to_string(), &why);
        }
        if given != wanted {
            let group = given.split_once('/').map_or("", |(group, _)| group);
            return wrong(group, kind, "apiVersion", given, &format!("must be {wanted}"));
        }
        if text("kind") != kind {
            return wrong(group, text("kind"), "kind", text("kind"), &format!("must be {kind}"));
        }
        let uid = object::uid(object);
        if !uid.is_empty() && uid != object::uid(live) {
            let fault = FieldFault::invalid("metadata.uid", &uid.into(), "field is immutable");
            // The rules of each type repeat the general ones, which were checked before.
            return Err(Refusal::invalid(group, kind, &key.1, &[fault.clone(), fault]));
        }
        require_version(resource, object::text(object, "resourceVersion"), &key.1)?;
        if object::name(object) != key.1 {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                object::name(object),
                key.1
            )));
        }
        if object::namespace(object) != key.0 {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the \
                 request",
            ));
        }
        Ok(())
    }

    /// Refuses fields in an apply that the schema does not declare, since their merge is undefined.
    fn check_declared(
        &self,
        resource: &SimulatedResource,
        wanted: &Value,
        key: &NamespacedName,
    ) -> Result<(), Refusal> {
        let wrong_type = metadata::wrong_type(&resource.kind, wanted);
        let unknown = self.prune_unknown(resource, &mut wanted.clone());
        let unknown: Vec<_> = wrong_type.into_iter().chain(unknown).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let undeclared = |finding: &String| match finding.strip_prefix("unknown field ") {
            Some(path) => format!(".{}: field not declared in schema", path.trim_matches('"')),
            None => finding.clone(),
        };
        let unknown: Vec<_> = unknown.iter().map(undeclared).collect();
        let said = match unknown.as_slice() {
            [one] => one.clone(),
            many => format!("errors:\n  {}", many.join("\n  ")),
        };
        let slash = if resource.group.is_empty() { "/" } else { "" };
        let message = format!(
            "failed to create typed patch object ({}/{}; {slash}{}, Kind={}): {said}",
            object::namespace(wanted),
            key.1,
            resource.api_version(),
            resource.kind
        );
        Err(Refusal::new(500, "", message))
    }

    fn apply_patch(
        &mut self,
        resource: &Arc<SimulatedResource>,
        key: &NamespacedName,
        call: &Call,
    ) -> Result<(u16, Arc<Value>), Refusal> {
        if call.info.subresource == "scale" {
            return Err(Refusal::not_simulated("server-side apply to a scale"));
        }
        let mut wanted = call
            .json()
            .map_err(|_| Refusal::not_simulated("a configuration in YAML that is no JSON"))?;
        let text = |field: &str| wanted[field].as_str().unwrap_or_default();
        if (text("apiVersion"), text("kind")) != (&resource.api_version(), &resource.kind) {
            let (group, version) =
                text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
            return Err(Refusal::bad_request(format!(
                "invalid object type: {group}/{version}, Kind={}",
                text("kind")
            )));
        }
        self.check_declared(resource, &wanted, key)?;
        if !wanted["metadata"]["managedFields"].is_null() {
            return Err(Refusal::bad_request("metadata.managedFields must be nil"));
        }
        let metadata = object::metadata(&mut wanted);
        let given = metadata.entry("name").or_insert_with(|| key.1.as_str().into());
        if given.as_str() != Some(&key.1) {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                given.as_str().unwrap_or_default(),
                key.1
            )));
        }
        if resource.namespaced {
            metadata.entry("namespace").or_insert_with(|| key.0.as_str().into());
        }
        let is_status = call.info.subresource == "status";
        if is_status || resource.status {
            // The main resource does not write the status, and the reverse.
            let fields = object::fields(&mut wanted);
            let kept = |name: &str| (name == "status") == is_status;
            fields.retain(|name, _| {
                matches!(name.as_str(), "apiVersion" | "kind" | "metadata") || kept(name)
            });
        }
        let (now, api_version) = (self.timestamp(), resource.api_version());
        let writer = writer(call, &api_version, &now);
        let wanted = stored(resource, wanted);
        let Some(live) = self.history.get(&resource.storage, key).cloned() else {
            if is_status {
                return Err(Refusal::not_found(resource, &key.1));
            }
            let uid = object::uid(&wanted);
            if !uid.is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing \
                     object was found"
                );
                return Err(Refusal::conflict(resource, &key.1, &why));
            }
            let empty = json!({});
            let mut object = managed::apply(&empty, &wanted, writer, true)?;
            let managed = object::metadata(&mut object).remove("managedFields");
            let created = self.create_as(resource, Body::from(object), call, managed)?;
            return Ok((201, created));
        };
        let force = call.flag("force") == Some(true);
        let mut object = managed::apply(&live, &wanted, writer, force)?;
        let managed = object::metadata(&mut object).remove("managedFields").unwrap_or_default();
        if wanted["metadata"].get("resourceVersion").is_none() {
            object::metadata(&mut object).remove("resourceVersion");
        }
        Ok((200, self.replace(resource, &live, object, call, Some(managed))?))
    }
}

fn unsupported(resource: &SimulatedResource) -> Refusal {
    if resource.custom {
        return Refusal::unsupported(
            "application/json-patch+json, application/merge-patch+json, \
             application/apply-patch+yaml",
        );
    }
    let mut refusal = Refusal::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    refusal.details = Some(json!({}));
    refusal
}

fn undecodable(why: impl std::fmt::Display) -> Refusal {
    Refusal::bad_request(format!("error decoding patch: {why}"))
}

fn json_patch(object: &mut Value, patch: Value) -> Result<(), Refusal> {
    let rejected = || {
        let message = "the server rejected our request due to an error in our request";
        let mut refusal = Refusal::new(422, "Invalid", message);
        refusal.details = Some(json!({}));
        refusal
    };
    if !patch.is_array() {
        let wanted = "Go value of type []handlers.jsonPatchOp";
        return Err(undecodable(format!(
            "json: cannot unmarshal {} into {wanted}",
            kind_of(&patch)
        )));
    }
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|_| rejected())?;
    for operation in patch.0 {
        // For kube-apiserver an absent field equals null.
        if let json_patch::PatchOperation::Test(test) = &operation
            && test.value.is_null()
            && test.path.parent().is_some_and(|parent| parent.resolve(object).is_ok())
            && test.path.resolve(object).is_err()
        {
            continue;
        }
        json_patch::patch(object, &[operation]).map_err(|_| rejected())?;
    }
    Ok(())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn merge(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    if !patch.is_object() {
        let wanted = "Go value of type map[string]interface {}";
        return Err(undecodable(format!(
            "json: cannot unmarshal {} into {wanted}",
            kind_of(patch)
        )));
    }
    json_patch::merge(object, patch);
    Ok(())
}

/// Applies a strategic merge patch without lists.
fn strategic(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let mut lists = Vec::new();
    find_lists(patch, "", &mut lists);
    if let Some(list) = lists.first() {
        return Err(Refusal::not_simulated(format!("a strategic merge of the list {list}")));
    }
    merge(object, patch)
}

fn find_lists(value: &Value, path: &str, found: &mut Vec<String>) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        if inner.is_array() || name.starts_with('$') {
            found.push(format!("{path}.{name}"));
        }
        find_lists(inner, &format!("{path}.{name}"), found);
    }
}
