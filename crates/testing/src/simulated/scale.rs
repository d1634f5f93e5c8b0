//! Scale subresource.

use serde_json::{Value, json};

use super::{object, refusal::Refusal, resource::SimulatedResource};

/// Returns the scale of an object.
pub(super) fn scale_of(resource: &SimulatedResource, object: &Value) -> Result<Value, Refusal> {
    let scale = resource.scale.as_ref().ok_or_else(Refusal::no_such_path)?;
    let mut metadata = serde_json::Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64);
    let default = if resource.custom { 0 } else { 1 };
    let mut shown = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {},
        "status": { "replicas": number(&scale.status).unwrap_or(0) },
    });
    let replicas = number(&scale.spec).unwrap_or(default);
    if replicas != 0 {
        shown["spec"]["replicas"] = replicas.into();
    }
    if let Some(selector) = scale.selector.as_deref().and_then(|path| object.pointer(path)) {
        let text = selector.as_str().map_or_else(|| selector_text(selector), str::to_owned);
        if !text.is_empty() {
            shown["status"]["selector"] = text.into();
        }
    }
    Ok(shown)
}

/// Returns the object with the replicas of a scale.
pub(super) fn scaled(
    resource: &SimulatedResource,
    live: &Value,
    wanted: &Value,
) -> Result<Value, Refusal> {
    let scale = resource.scale.as_ref().ok_or_else(Refusal::no_such_path)?;
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    let mut object = live.clone();
    let metadata = object::metadata(&mut object);
    // Both guard the update, as they do in the object itself.
    for field in ["resourceVersion", "uid"] {
        match wanted["metadata"][field].as_str().filter(|it| !it.is_empty()) {
            Some(value) => metadata.insert(field.to_owned(), value.into()),
            None => metadata.remove(field),
        };
    }
    let mut parts: Vec<_> = scale.spec.split('/').filter(|part| !part.is_empty()).collect();
    let last = parts.pop().ok_or_else(Refusal::no_such_path)?;
    let mut at = &mut object;
    for part in parts {
        at = object::fields(at).entry(part).or_insert_with(|| json!({}));
    }
    object::fields(at).insert(last.to_owned(), replicas.into());
    Ok(object)
}

fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten().map(|it| {
        let key = it["key"].as_str().unwrap_or_default();
        let values = it["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let values: Vec<_> = values.collect();
        match it["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}
