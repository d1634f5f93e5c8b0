//! Changes of fields between two states of an object.

use std::fmt;

use serde_json::Value;

/// Metadata that only the server writes.
const OF_SERVER: [&str; 5] =
    ["managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"];

/// Text in place of a value of a Secret.
const HIDDEN: &str = "(value of a Secret)";

/// Change of one field.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FieldChange {
    /// Path of the field, such as `.spec.replicas`.
    pub path: String,
    /// Value before; `None` if the field is added.
    pub before: Option<Value>,
    /// Value after; `None` if the field is removed.
    pub after: Option<Value>,
}

/// Formats as `.spec.replicas: 1 -> 2`.
impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{before} -> {after}"),
            (None, Some(after)) => write!(f, "+ {after}"),
            (Some(before), None) => write!(f, "- {before}"),
            (None, None) => Ok(()),
        }
    }
}

impl FieldChange {
    /// Returns the changes of an object, without those of metadata that only the server writes. The
    /// values of a Secret are hidden.
    pub(in crate::apply) fn between(before: &Value, after: &Value, is_secret: bool) -> Vec<Self> {
        let mut changes = Vec::new();
        compare(Some(before), Some(after), String::new(), &mut changes);
        changes.retain(|change| {
            let of_metadata = change.path.strip_prefix(".metadata.");
            !of_metadata.is_some_and(|field| OF_SERVER.iter().any(|it| is_below(field, it)))
        });
        if is_secret {
            // An annotation may hold the whole object, as that of `kubectl apply` does.
            let is_shown = |it: &Self| {
                is_below(&it.path, ".metadata") && !is_below(&it.path, ".metadata.annotations")
            };
            for change in changes.iter_mut().filter(|it| !is_shown(it)) {
                change.before = change.before.take().map(|_| HIDDEN.into());
                change.after = change.after.take().map(|_| HIDDEN.into());
            }
        }
        changes
    }
}

fn is_below(path: &str, field: &str) -> bool {
    path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn compare(
    before: Option<&Value>,
    after: Option<&Value>,
    path: String,
    changes: &mut Vec<FieldChange>,
) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let added = after.keys().filter(|field| !before.contains_key(*field));
            for field in before.keys().chain(added) {
                let path = format!("{path}.{field}");
                compare(before.get(field), after.get(field), path, changes);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                compare(Some(before), Some(after), format!("{path}[{index}]"), changes);
            }
        }
        (before, after) => {
            changes.push(FieldChange { path, before: before.cloned(), after: after.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(before: &Value, after: &Value, is_secret: bool) -> Vec<String> {
        let changes = FieldChange::between(before, after, is_secret);
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changes_name_the_fields_and_leave_out_those_of_the_server() {
        let before = json!({
            "metadata": { "resourceVersion": "1", "managedFields": [1], "labels": { "a": "b" } },
            "spec": { "size": 1, "list": [{ "x": 1 }, { "x": 2 }], "old": true },
        });
        let after = json!({
            "metadata": { "resourceVersion": "2", "managedFields": [], "labels": { "a": "c" } },
            "spec": { "size": 2, "list": [{ "x": 1 }, { "x": 3 }], "new": [] },
        });

        let expected = [
            ".metadata.labels.a: \"b\" -> \"c\"",
            ".spec.list[1].x: 2 -> 3",
            ".spec.old: - true",
            ".spec.size: 1 -> 2",
            ".spec.new: + []",
        ];
        assert_eq!(shown(&before, &after, false), expected);
        assert_eq!(shown(&before, &before, false), [""; 0]);
    }

    #[test]
    fn values_of_a_secret_are_hidden() {
        let secret = |value: &str| {
            json!({
                "metadata": { "labels": { "a": value }, "annotations": { "last": value } },
                "data": { "k": value },
            })
        };

        let shown = shown(&secret("hush"), &secret("shh"), true);

        let expected = [
            ".data.k: \"(value of a Secret)\" -> \"(value of a Secret)\"",
            ".metadata.annotations.last: \"(value of a Secret)\" -> \"(value of a Secret)\"",
            ".metadata.labels.a: \"hush\" -> \"shh\"",
        ];
        assert_eq!(shown, expected);
    }
}
