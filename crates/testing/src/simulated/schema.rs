//! Supported part of OpenAPI schemas: type, required, enum, minimum, maximum, default and pruning.
//! A schema with other validation keywords is refused.

use serde_json::Value;

use super::refusal::FieldFault;

/// Schema keywords that are not simulated.
const REFUSED: [&str; 16] = [
    "allOf",
    "anyOf",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minItems",
    "minLength",
    "minProperties",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "uniqueItems",
    "x-kubernetes-validations",
];

/// Returns the path of the first keyword that is not simulated.
pub(super) fn unsupported_keyword(schema: &Value, path: &str) -> Option<String> {
    let is_either = schema["x-kubernetes-int-or-string"].as_bool() == Some(true);
    let mut refused = REFUSED.iter().filter(|keyword| !is_either || **keyword != "anyOf");
    if let Some(keyword) = refused.find(|keyword| schema.get(**keyword).is_some()) {
        return Some(format!("{path}.{keyword}"));
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut inner = properties
        .map(|(name, schema)| (format!("{path}.properties[{name}]"), schema))
        .chain(["items", "additionalProperties"].map(|it| (format!("{path}.{it}"), &schema[it])));
    inner.find_map(|(path, schema)| {
        schema.is_object().then(|| unsupported_keyword(schema, &path))?
    })
}

/// Sets the defaults of missing fields.
pub(super) fn default(schema: &Value, value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let missing = match fields.get(name) {
                None => true,
                // A null counts as missing unless the field is nullable.
                Some(value) => value.is_null() && inner["nullable"].as_bool() != Some(true),
            };
            if let Some(default) = inner.get("default").filter(|_| missing) {
                fields.insert(name.clone(), default.clone());
            }
        }
        for (name, value) in fields.iter_mut() {
            match schema["properties"].get(name) {
                Some(schema) => default(schema, value),
                None => default(&schema["additionalProperties"], value),
            }
        }
    }
    for item in value.as_array_mut().into_iter().flatten() {
        default(&schema["items"], item);
    }
}

/// Validates an object, without its metadata.
pub(super) fn validate(schema: &Value, object: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    required(schema, object, "", &mut faults);
    let properties = schema["properties"].as_object().into_iter().flatten();
    for (name, schema) in properties {
        if !matches!(name.as_str(), "metadata" | "apiVersion" | "kind")
            && let Some(value) = object.get(name)
        {
            check(schema, value, name, &mut faults);
        }
    }
    faults
}

fn required(schema: &Value, value: &Value, path: &str, faults: &mut Vec<FieldFault>) {
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in names.filter(|name| value.get(name).is_none()) {
        let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        faults.push(FieldFault::required(&field, ""));
    }
}

fn check(schema: &Value, value: &Value, path: &str, faults: &mut Vec<FieldFault>) {
    if value.is_null() && schema["nullable"].as_bool() == Some(true) {
        return;
    }
    let is_either = schema["x-kubernetes-int-or-string"].as_bool() == Some(true);
    let wanted = if is_either { Some("integer,string") } else { schema["type"].as_str() };
    if let Some(wanted) = wanted
        && !wanted.split(',').any(|wanted| is_a(value, wanted))
    {
        let why = format!("{path} in body must be of type {wanted}: {:?}", type_of(value));
        let body = format!("Invalid value: {:?}: {why}", type_of(value));
        let field = path.to_owned();
        faults.push(FieldFault { field, reason: "FieldValueTypeInvalid", body });
    }
    if let Some(known) = schema["enum"].as_array()
        && !known.contains(value)
    {
        let known: Vec<_> = known.iter().map(plain).collect();
        faults.push(FieldFault::not_supported(path, value, &known));
    }
    if let Some(number) = value.as_f64() {
        let below = schema["minimum"].as_f64().filter(|it| number < *it);
        let above = schema["maximum"].as_f64().filter(|it| number > *it);
        if let Some(minimum) = below {
            let why = format!("{path} in body should be greater than or equal to {minimum}");
            faults.push(FieldFault::invalid(path, value, &why));
        }
        if let Some(maximum) = above {
            let why = format!("{path} in body should be less than or equal to {maximum}");
            faults.push(FieldFault::invalid(path, value, &why));
        }
    }
    if value.is_object() {
        required(schema, value, path, faults);
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let schema = match schema["properties"].get(name) {
            Some(schema) => schema,
            None => &schema["additionalProperties"],
        };
        check(schema, inner, &format!("{path}.{name}"), faults);
    }
    for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], inner, &format!("{path}[{at}]"), faults);
    }
}

/// Validates the value of one field.
pub(super) fn validate_field(schema: &Value, value: &Value, path: &str) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    check(schema, value, path, &mut faults);
    faults
}

/// Removes the unknown fields of the value of one field and returns their paths.
pub(super) fn prune_field(schema: &Value, value: &mut Value, path: &str) -> Vec<String> {
    let mut pruned = Vec::new();
    prune_at(schema, value, path, &[], &mut pruned);
    pruned
}

/// Removes unknown fields and returns their paths.
pub(super) fn prune(schema: &Value, object: &mut Value) -> Vec<String> {
    let mut pruned = Vec::new();
    prune_at(schema, object, "", &["apiVersion", "kind", "metadata"], &mut pruned);
    pruned
}

fn prune_at(
    schema: &Value,
    value: &mut Value,
    path: &str,
    always: &[&str],
    pruned: &mut Vec<String>,
) {
    let is = |extension: &str| schema[extension].as_bool() == Some(true);
    let keeps = is("x-kubernetes-preserve-unknown-fields");
    let embedded: &[&str] = match is("x-kubernetes-embedded-resource") {
        true => &["apiVersion", "kind", "metadata"],
        false => always,
    };
    if let Some(fields) = value.as_object_mut() {
        let additional = &schema["additionalProperties"];
        fields.retain(|name, inner| {
            if embedded.contains(&name.as_str()) {
                return true;
            }
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match schema["properties"].get(name) {
                Some(known) => prune_at(known, inner, &path, &[], pruned),
                None if additional.is_object() => prune_at(additional, inner, &path, &[], pruned),
                None if keeps || additional.as_bool() == Some(true) => {}
                None => {
                    pruned.push(path);
                    return false;
                }
            }
            true
        });
    }
    for (at, inner) in value.as_array_mut().into_iter().flatten().enumerate() {
        if schema["items"].is_object() {
            prune_at(&schema["items"], inner, &format!("{path}[{at}]"), &[], pruned);
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_a(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => true,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: Value, expected: &[&str]) {
        let schema = json!({ "type": "object", "required": ["spec"], "properties": { "spec": {
            "type": "object", "required": ["size"], "properties": {
                "size": { "type": "integer", "minimum": 1, "maximum": 5 },
                "color": { "type": "string", "enum": ["red", "blue"] },
                "tags": { "type": "array", "items": { "type": "string" } },
                "port": { "x-kubernetes-int-or-string": true },
                "extra": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } } });
        let faults = validate(&schema, &json!({ "spec": spec }));
        let fields: Vec<_> = faults.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(fields, expected, "{faults:?}");
    }

    #[test]
    fn unknown_fields_are_pruned() {
        let schema = json!({ "type": "object", "properties": { "spec": { "type": "object",
            "properties": {
                "size": { "type": "integer" },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "map": { "type": "object", "additionalProperties": { "type": "string" } },
                "list": { "type": "array", "items": { "type": "object", "properties": { "a": {} } } },
            } } } });
        let mut object = json!({
            "kind": "Widget", "metadata": { "x": 1 }, "status": {},
            "spec": { "size": 1, "other": 1, "free": { "x": 1 }, "map": { "y": "z" },
                "list": [{ "a": 1, "b": 1 }] } });

        let pruned = prune(&schema, &mut object);

        assert_eq!(pruned, ["spec.list[0].b", "spec.other", "status"]);
        let spec =
            json!({ "size": 1, "free": { "x": 1 }, "map": { "y": "z" }, "list": [{ "a": 1 }] });
        assert_eq!(object["spec"], spec);
        assert_eq!(object["metadata"], json!({ "x": 1 }));
    }

    #[test]
    fn missing_fields_get_their_defaults() {
        let schema = json!({ "type": "object", "properties": { "spec": { "type": "object",
            "properties": {
                "size": { "type": "integer", "default": 3 },
                "inner": { "type": "object", "default": {}, "properties": {
                    "color": { "type": "string", "default": "red" } } },
                "absent": { "type": "object", "properties": {
                    "color": { "type": "string", "default": "red" } } },
                "list": { "type": "array", "items": { "type": "object", "properties": {
                    "a": { "type": "integer", "default": 1 } } } },
            } } } });
        let mut object = json!({ "spec": { "size": null, "list": [{}, { "a": 2 }] } });

        default(&schema, &mut object);

        assert_eq!(
            object,
            json!({ "spec": { "size": 3, "inner": { "color": "red" },
                "list": [{ "a": 1 }, { "a": 2 }] } })
        );
    }

    #[test]
    fn an_unsupported_keyword_is_found() {
        let either = json!({ "x-kubernetes-int-or-string": true,
            "anyOf": [{ "type": "integer" }, { "type": "string" }] });
        let schema = |inner: Value| {
            json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
                "port": either, "list": { "type": "array", "items": inner } } } } })
        };

        assert_eq!(unsupported_keyword(&schema(json!({ "type": "string" })), "schema"), None);
        assert_eq!(
            unsupported_keyword(&schema(json!({ "type": "string", "pattern": "^a$" })), "schema")
                .unwrap(),
            "schema.properties[spec].properties[list].items.pattern"
        );
    }

    #[test]
    fn types_and_limits_are_checked() {
        check(json!({ "size": 1, "extra": { "x": [1, "a"] } }), &[]);
        check(json!({}), &["spec.size"]);
        check(json!({ "size": "1" }), &["spec.size"]);
        check(json!({ "size": 9 }), &["spec.size"]);
        check(json!({ "size": 0, "color": "green" }), &["spec.color", "spec.size"]);
        check(json!({ "size": 1, "tags": ["a", 1] }), &["spec.tags[1]"]);
        check(json!({ "size": 1, "port": 80 }), &[]);
        check(json!({ "size": 1, "port": "http" }), &[]);
        check(json!({ "size": 1, "port": true }), &["spec.port"]);
        check(json!(7), &["spec"]);
    }
}
