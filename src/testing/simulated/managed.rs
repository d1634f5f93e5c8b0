//! Who owns which fields, and server-side apply.
//!
//! Maps are merged field by field and lists are owned as a whole, as the real server does for
//! types without a schema; finalizers and owner references are merged everywhere. The lists of
//! built-in types that the real server merges by a key are not: they are owned as a whole too.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{object, refusal::Refusal};

type Path = Vec<String>;
type Set = BTreeSet<Path>;

/// Who writes, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) api_version: &'a str,
    /// Empty for the object itself.
    pub(super) subresource: &'a str,
    pub(super) now: &'a str,
}

#[derive(Debug)]
struct Entry {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: Value,
    fields: Set,
}

impl Entry {
    fn is(&self, writer: Writer<'_>, operation: &str) -> bool {
        self.manager == writer.manager
            && self.operation == operation
            && self.subresource == writer.subresource
            && (self.api_version == writer.api_version || operation == "Apply")
    }

    fn new(writer: Writer<'_>, operation: &str, fields: Set) -> Self {
        Self {
            manager: writer.manager.to_owned(),
            operation: operation.to_owned(),
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: writer.now.into(),
            fields,
        }
    }
}

/// Records an update: what changed is the writer's now.
pub(super) fn record(before: Option<&Value>, after: &mut Value, writer: Writer<'_>) {
    let mut entries = before.map(read).unwrap_or_default();
    let (old, new) = (before.map(leaves).unwrap_or_default(), leaves(after));
    let was = |path: &Path| before.and_then(|it| find(it, path));
    let changed: Set = new.iter().filter(|it| was(it) != find(after, it)).cloned().collect();
    let removed: Set = old.difference(&new).cloned().collect();
    if !changed.is_empty() || !removed.is_empty() {
        for entry in &mut entries {
            let mine = entry.is(writer, "Update");
            entry.fields.retain(|it| !removed.contains(it) && (mine || !changed.contains(it)));
        }
        if !changed.is_empty() {
            match entries.iter_mut().find(|entry| entry.is(writer, "Update")) {
                Some(entry) => {
                    entry.fields.extend(changed);
                    entry.time = writer.now.into();
                }
                None => entries.push(Entry::new(writer, "Update", changed)),
            }
        }
    }
    write(after, entries);
}

/// Applies a configuration to an object; what nobody wants any longer is removed.
pub(super) fn apply(
    live: &Value,
    wanted: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, Refusal> {
    let mut entries = read(live);
    let fields = leaves(wanted);
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|entry| !entry.is(writer, "Apply")) {
        let differs = |path: &&Path| find(live, path) != find(wanted, path);
        let theirs = entry.fields.intersection(&fields).filter(differs).cloned();
        let theirs: Vec<Path> = theirs.collect();
        if force {
            entry.fields.retain(|path| !theirs.contains(path));
        } else {
            conflicts.extend(theirs.into_iter().map(|path| (described(entry), dotted(&path))));
        }
    }
    if !conflicts.is_empty() {
        return Err(refuse(&conflicts));
    }
    let mut merged = live.clone();
    merge(&mut merged, wanted, &mut Vec::new());
    let before = entries.iter().position(|entry| entry.is(writer, "Apply"));
    let before = before.map(|at| entries.remove(at));
    for path in before.iter().flat_map(|entry| entry.fields.difference(&fields)) {
        let kept = |entry: &Entry| entry.fields.iter().any(|it| it.starts_with(path));
        let is_above = fields.iter().any(|it| it.starts_with(path));
        if !is_above && !entries.iter().any(kept) {
            remove(&mut merged, path);
        }
    }
    let mut entry = Entry::new(writer, "Apply", fields);
    if let Some(before) = before
        && before.fields == entry.fields
    {
        entry.time = before.time;
    }
    entries.push(entry);
    write(&mut merged, entries);
    Ok(merged)
}

fn refuse(conflicts: &[(String, String)]) -> Refusal {
    let causes: Vec<_> = conflicts
        .iter()
        .map(|(whose, field)| {
            let message = format!("conflict with {whose}");
            json!({ "reason": "FieldManagerConflict", "message": message, "field": field })
        })
        .collect();
    let mut managers: Vec<&str> = conflicts.iter().map(|(whose, _)| whose.as_str()).collect();
    managers.dedup();
    let said = match conflicts {
        [(whose, field)] => format!("1 conflict: conflict with {whose}: {field}"),
        many => {
            let each = managers.iter().map(|whose| {
                let fields: Vec<_> = many
                    .iter()
                    .filter(|(it, _)| it == whose)
                    .map(|(_, field)| format!("- {field}"))
                    .collect();
                format!("conflicts with {whose}:\n{}", fields.join("\n"))
            });
            format!("{} conflicts: {}", many.len(), each.collect::<Vec<_>>().join("\n"))
        }
    };
    let mut refusal = Refusal::new(409, "Conflict", format!("Apply failed with {said}"));
    refusal.details = Some(json!({ "causes": causes }));
    refusal
}

fn described(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if entry.operation == "Update" {
        text.push_str(&format!(" using {}", entry.api_version));
        if let Some(time) = entry.time.as_str() {
            text.push_str(&format!(" at {time}"));
        }
    }
    text
}

fn dotted(path: &Path) -> String {
    path.iter()
        .map(|part| match part.split_once(':') {
            Some(("f", field)) => format!(".{field}"),
            Some(("k", key)) => {
                let key: Value = serde_json::from_str(key).unwrap_or_default();
                let pairs = key.as_object().into_iter().flatten();
                let pairs: Vec<_> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
                format!("[{}]", pairs.join(","))
            }
            Some((_, value)) => format!("[={value}]"),
            None => part.clone(),
        })
        .collect()
}

// --- paths

/// Fields of the metadata that nobody owns.
const UNOWNED: [&str; 11] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "clusterName",
];

/// The paths of all that can be owned.
fn leaves(object: &Value) -> Set {
    let mut found = Set::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind") {
            collect(value, &mut vec![format!("f:{name}")], &mut found);
        }
    }
    found
}

fn collect(value: &Value, path: &mut Path, found: &mut Set) {
    if let Some(fields) = value.as_object().filter(|fields| !fields.is_empty()) {
        let is_metadata = path.len() == 1 && path[0] == "f:metadata";
        for (name, value) in fields {
            if is_metadata && UNOWNED.contains(&name.as_str()) {
                continue;
            }
            path.push(format!("f:{name}"));
            collect(value, path, found);
            path.pop();
        }
    } else if let Some(items) = value.as_array().filter(|_| is_merged(path)) {
        for item in items {
            path.push(element(item));
            found.insert(path.clone());
            path.pop();
        }
    } else if path.len() > 1 || path[0] != "f:metadata" {
        found.insert(path.clone());
    }
}

fn is_merged(path: &[String]) -> bool {
    matches!(path, [a, b] if a == "f:metadata" && (b == "f:finalizers" || b == "f:ownerReferences"))
}

/// How an element of a merged list is named.
fn element(item: &Value) -> String {
    if item.is_object() {
        format!("k:{}", json!({ "uid": item["uid"] }))
    } else {
        format!("v:{item}")
    }
}

fn find<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, part| match part.strip_prefix("f:") {
        Some(field) => value.get(field),
        None => value.as_array()?.iter().find(|item| element(item) == *part),
    })
}

fn remove(object: &mut Value, path: &[String]) {
    let Some((last, above)) = path.split_last() else { return };
    let mut value = object;
    for part in above {
        let Some(field) = part.strip_prefix("f:") else { return };
        let Some(inner) = value.get_mut(field) else { return };
        value = inner;
    }
    match last.strip_prefix("f:") {
        Some(field) => {
            if let Some(fields) = value.as_object_mut() {
                fields.remove(field);
            }
        }
        None => {
            if let Some(items) = value.as_array_mut() {
                items.retain(|item| element(item) != *last);
            }
        }
    }
}

fn merge(live: &mut Value, wanted: &Value, path: &mut Path) {
    if let Some(fields) = wanted.as_object() {
        let live = object::fields(live);
        for (name, value) in fields {
            path.push(format!("f:{name}"));
            merge(live.entry(name).or_insert(Value::Null), value, path);
            path.pop();
        }
    } else if let (Some(wanted), Some(live), true) =
        (wanted.as_array(), live.as_array_mut(), is_merged(path))
    {
        for item in wanted {
            match live.iter_mut().find(|it| element(it) == element(item)) {
                Some(found) => *found = item.clone(),
                None => live.push(item.clone()),
            }
        }
    } else {
        *live = wanted.clone();
    }
}

// --- the wire format

fn read(object: &Value) -> Vec<Entry> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    entries
        .map(|entry| {
            let mut fields = Set::new();
            decode(&entry["fieldsV1"], &mut Vec::new(), &mut fields);
            Entry {
                manager: text(entry, "manager"),
                operation: text(entry, "operation"),
                api_version: text(entry, "apiVersion"),
                subresource: text(entry, "subresource"),
                time: entry["time"].clone(),
                fields,
            }
        })
        .collect()
}

fn decode(fields: &Value, path: &mut Path, found: &mut Set) {
    for (part, inner) in fields.as_object().into_iter().flatten() {
        if part == "." {
            continue;
        }
        path.push(part.clone());
        if inner.as_object().is_none_or(|inner| inner.keys().all(|key| key == ".")) {
            found.insert(path.clone());
        } else {
            decode(inner, path, found);
        }
        path.pop();
    }
}

fn write(object: &mut Value, entries: Vec<Entry>) {
    let entries = entries.into_iter().filter(|entry| !entry.fields.is_empty());
    let written: Vec<_> = entries
        .map(|entry| {
            let mut fields = Value::Object(Map::new());
            for path in &entry.fields {
                let mut at = &mut fields;
                for part in path {
                    at =
                        object::fields(at).entry(part).or_insert_with(|| Value::Object(Map::new()));
                }
            }
            let mut written = json!({
                "manager": entry.manager,
                "operation": entry.operation,
                "apiVersion": entry.api_version,
                "time": entry.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            });
            if !entry.subresource.is_empty() {
                written["subresource"] = entry.subresource.into();
            }
            written
        })
        .collect();
    object::metadata(object).insert("managedFields".to_owned(), written.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(manager: &str) -> Writer<'_> {
        Writer { manager, api_version: "x.test/v1", subresource: "", now: "2026-01-01T00:00:00Z" }
    }

    fn created(manager: &str, object: Value) -> Value {
        let mut object = object;
        record(None, &mut object, writer(manager));
        object
    }

    #[test]
    fn what_another_manager_set_differently_conflicts_unless_forced() {
        let live = created("alice", json!({ "spec": { "size": 1, "color": "red" } }));
        let wanted = json!({ "spec": { "size": 2, "color": "red" } });

        let refused = apply(&live, &wanted, writer("bob"), false).unwrap_err();
        let forced = apply(&live, &wanted, writer("bob"), true).unwrap();

        assert_eq!(
            refused.message,
            "Apply failed with 1 conflict: conflict with \"alice\" using x.test/v1 at \
             2026-01-01T00:00:00Z: .spec.size"
        );
        assert_eq!(forced["spec"], wanted["spec"]);
    }

    #[test]
    fn what_is_applied_no_longer_goes_unless_somebody_else_owns_it() {
        let first =
            json!({ "metadata": { "finalizers": ["x.test/a"] }, "spec": { "a": 1, "b": 1 } });
        let live = apply(&json!({}), &first, writer("alice"), false).unwrap();
        let shared = json!({ "spec": { "b": 1 } });
        let live = apply(&live, &shared, writer("bob"), false).unwrap();

        let end = apply(&live, &json!({ "spec": { "c": 1 } }), writer("alice"), false).unwrap();

        assert_eq!(end["spec"], json!({ "b": 1, "c": 1 }));
        assert_eq!(end["metadata"]["finalizers"], json!([]));
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let wanted = json!({ "spec": { "list": [1, 2], "map": {} } });
        let live = apply(&json!({}), &wanted, writer("alice"), false).unwrap();

        assert_eq!(apply(&live, &wanted, writer("alice"), false).unwrap(), live);
    }

    #[test]
    fn an_update_takes_the_fields_that_it_changes() {
        let mut live =
            apply(&json!({}), &json!({ "spec": { "a": 1 } }), writer("alice"), false).unwrap();
        let before = live.clone();
        live["spec"]["a"] = 2.into();
        record(Some(&before), &mut live, writer("bob"));

        let managers: Vec<_> = live["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| &it["manager"])
            .collect();
        assert_eq!(managers, ["bob"]);
    }
}
