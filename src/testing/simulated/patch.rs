//! Patches.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    call::{Answer, Call, Reply},
    cluster::Cluster,
    history::Key,
    managed, object,
    refusal::{FieldFault, Refusal},
    render::{render, stored},
    resource::Resource,
    scale,
    write::writer,
};

impl Cluster {
    pub(super) fn patch(
        &mut self,
        resource: &Arc<Resource>,
        call: &Call,
    ) -> Result<Answer, Refusal> {
        let shape = call.shape(resource.custom)?;
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
                    render(resource, &live, super::call::Shape::Whole)
                };
                // Only what the patch itself says of the version guards the write.
                object::metadata(&mut object).remove("resourceVersion");
                let patch = call.json()?;
                match media_type {
                    "application/json-patch+json" => json_patch(&mut object, patch)?,
                    "application/merge-patch+json" => merge(&mut object, &patch)?,
                    _ => strategic(&mut object, &patch)?,
                }
                let object = if is_scale {
                    scale::scaled(resource, &live, &object)?
                } else {
                    self.check_identity(&object, &key)?;
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
        Ok(Answer::Done(Reply::json(code, &shown)))
    }

    fn check_identity(&self, object: &Value, key: &Key) -> Result<(), Refusal> {
        if object::name(object) != key.1 {
            return Err(Refusal::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                object::name(object),
                key.1
            )));
        }
        if object::namespace(object) != key.0 {
            return Err(Refusal::bad_request(
                "the namespace of the object does not match the namespace on the URL",
            ));
        }
        Ok(())
    }

    fn apply_patch(
        &mut self,
        resource: &Arc<Resource>,
        key: &Key,
        call: &Call,
    ) -> Result<(u16, Arc<Value>), Refusal> {
        if call.info.subresource == "scale" {
            return Err(Refusal::not_simulated("server-side apply to a scale"));
        }
        if call.param("fieldManager").is_empty() {
            let fault = FieldFault::required("fieldManager", "is required for apply patch");
            return Err(Refusal::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
        }
        let mut wanted = call.json()?;
        for (field, expected) in
            [("apiVersion", resource.api_version()), ("kind", resource.kind.clone())]
        {
            if wanted[field].as_str() != Some(&expected) {
                return Err(Refusal::bad_request(format!(
                    "the {field} of the configuration must be {expected:?}"
                )));
            }
        }
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
            // The other half is not this request's business.
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
            let empty = json!({});
            let mut object = managed::apply(&empty, &wanted, writer, true)?;
            let managed = object::metadata(&mut object).remove("managedFields");
            let created = self.create_as(resource, object, call, managed)?;
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

fn unsupported(resource: &Resource) -> Refusal {
    let strategic = if resource.custom { "" } else { ", application/strategic-merge-patch+json" };
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json{strategic}, \
         application/apply-patch+yaml"
    );
    Refusal::new(415, "UnsupportedMediaType", message)
}

fn json_patch(object: &mut Value, patch: Value) -> Result<(), Refusal> {
    let patch: json_patch::Patch = serde_json::from_value(patch)
        .map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))?;
    json_patch::patch(object, &patch).map_err(|_error| {
        let message = "the server rejected our request due to an error in our request";
        let mut refusal = Refusal::new(422, "Invalid", message);
        refusal.details = Some(json!({}));
        refusal
    })
}

fn merge(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    if !patch.is_object() {
        return Err(Refusal::bad_request("a merge patch has to be a JSON object"));
    }
    json_patch::merge(object, patch);
    Ok(())
}

/// Strategic merge, as far as it is a plain merge.
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
