//! Managed fields and server-side apply.
//!
//! Maps are merged field by field and lists are owned as a whole, as the real server does for types
//! without a schema. Finalizers and owner references are merged for every type. Lists of built-in
//! types that the real server merges by a key are owned as a whole here. A map stays while a
//! manager owns a field in it, and a map that the schema names always stays.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{object, refusal::Refusal};

type Path = Vec<String>;
type Set = BTreeSet<Path>;

/// Field manager of a write, with its operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) api_version: &'a str,
    /// Subresource; empty for the object itself.
    pub(super) subresource: &'a str,
    pub(super) now: &'a str,
}

#[derive(Debug)]
struct ManagedEntry {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: Value,
    fields: Set,
}

impl ManagedEntry {
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

/// Returns the managed fields after an update. An update may replace them, and clears them by a
/// list with one empty entry. Without the field they are unchanged.
pub(super) fn given(live: &Value, object: &Value) -> Option<Value> {
    let text = |it: &Value| it["metadata"].get("managedFields").cloned();
    match text(object).as_ref().and_then(Value::as_array).map(Vec::as_slice) {
        Some([one]) if one.as_object().is_some_and(Map::is_empty) => None,
        Some([_, ..]) => text(object),
        Some([]) | None => text(live),
    }
}

/// Records an update: its changed fields belong to the writer. An object whose record was cleared
/// has none until the next apply.
pub(super) fn record(before: Option<&Value>, after: &mut Value, writer: Writer<'_>) {
    let mut entries = read(after);
    if before.is_some() && entries.is_empty() {
        return;
    }
    let (old, new) = (before.map(members).unwrap_or_default(), members(after));
    let changed: Set = new.iter().filter(|it| differs(before, after, it)).cloned().collect();
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
                None => entries.push(ManagedEntry::new(writer, "Update", changed)),
            }
        }
    }
    write(after, entries);
}

/// Applies a configuration to an object, and removes the fields that no manager owns any longer.
pub(super) fn apply(
    live: &Value,
    wanted: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, Refusal> {
    let mut entries = read(live);
    if entries.is_empty() {
        // Fields without a recorded manager belong to an unknown one.
        let mut rest = members(live);
        rest.retain(|path| path[0] != "f:status");
        let unknown = Writer { manager: "before-first-apply", subresource: "", ..writer };
        entries
            .push(ManagedEntry { time: Value::Null, ..ManagedEntry::new(unknown, "Update", rest) });
    }
    let mut merged = live.clone();
    merge(&mut merged, wanted, &mut Vec::new());
    let changed: Set =
        members(&merged).into_iter().filter(|it| differs(Some(live), &merged, it)).collect();
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|entry| !entry.is(writer, "Apply")) {
        let theirs: Vec<Path> = entry.fields.intersection(&changed).cloned().collect();
        if force {
            entry.fields.retain(|path| !theirs.contains(path));
        } else {
            conflicts.extend(theirs.into_iter().map(|path| (described(entry), dotted(&path))));
        }
    }
    if !conflicts.is_empty() {
        return Err(refuse(&conflicts));
    }
    let before = entries.iter().position(|entry| entry.is(writer, "Apply"));
    let before = before.map(|at| entries.remove(at));
    let (named, mut emptied) = (members(wanted), Set::new());
    for path in before.iter().flat_map(|entry| with_those_above(&entry.fields)) {
        let is_below = |it: &Path| it.starts_with(&path);
        let others = entries.iter().flat_map(|entry| &entry.fields);
        if !others.chain(&named).any(is_below) {
            remove(&mut merged, &path, &named, &mut emptied);
        }
    }
    // An emptied map counts as removed, and keeps its manager.
    let is_gone = |path: &Path| find(&merged, path).is_none() && find(live, path).is_some();
    let stays = |path: &Path| !is_gone(path) || emptied.contains(path);
    entries.iter_mut().for_each(|entry| entry.fields.retain(stays));
    let fields = named.into_iter().filter(|path| !is_of_the_schema(wanted, path)).collect();
    let mut entry = ManagedEntry::new(writer, "Apply", fields);
    if let Some(before) = before
        && before.fields == entry.fields
    {
        entry.time = before.time;
    }
    entries.push(entry);
    write(&mut merged, entries);
    Ok(merged)
}

/// Returns true if a field was added or changed. Maps are compared by their members, not as a
/// whole.
fn differs(before: Option<&Value>, after: &Value, path: &Path) -> bool {
    match (before.and_then(|it| find(it, path)), find(after, path)) {
        (Some(Value::Object(_)), Some(Value::Object(_))) => false,
        (Some(Value::Array(_)), Some(Value::Array(_))) if is_merged(path) => false,
        (before, after) => before != after,
    }
}

/// Adds the parents of each field, outermost first.
fn with_those_above(fields: &Set) -> Set {
    let above = fields.iter().flat_map(|path| (1..=path.len()).map(|it| path[..it].to_vec()));
    above.filter(|path| path != &["f:metadata"]).collect()
}

/// Returns true for a map or merged list that the schema of every object has. An apply does not own
/// these by naming a field in them.
fn is_of_the_schema(object: &Value, path: &Path) -> bool {
    let holds = find(object, path).is_some_and(|it| match it {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(_) => is_merged(path),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    });
    holds && (path.len() == 1 || path.len() == 2 && path[0] == "f:metadata")
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

fn described(entry: &ManagedEntry) -> String {
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

/// Metadata fields without an owner.
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

/// Paths that can be owned: values, and each map in addition to its members.
fn members(object: &Value) -> Set {
    let mut found = Set::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind") {
            collect(value, &mut vec![format!("f:{name}")], &mut found);
        }
    }
    found
}

fn collect(value: &Value, path: &mut Path, found: &mut Set) {
    let is_metadata = path.len() == 1 && path[0] == "f:metadata";
    if !is_metadata {
        found.insert(path.clone());
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        if is_metadata && UNOWNED.contains(&name.as_str()) {
            continue;
        }
        path.push(format!("f:{name}"));
        collect(value, path, found);
        path.pop();
    }
    for item in value.as_array().filter(|_| is_merged(path)).into_iter().flatten() {
        path.push(element(item));
        found.insert(path.clone());
        path.pop();
    }
}

fn is_merged(path: &[String]) -> bool {
    matches!(path, [a, b] if a == "f:metadata" && (b == "f:finalizers" || b == "f:ownerReferences"))
}

/// Path segment of an element in a merged list.
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

/// Removes a field, and the maps that become empty, except for the named ones.
fn remove(object: &mut Value, path: &[String], named: &Set, emptied: &mut Set) {
    let Some((last, above)) = path.split_last() else { return };
    let mut value = &mut *object;
    for part in above {
        let Some(field) = part.strip_prefix("f:") else { return };
        let Some(inner) = value.get_mut(field) else { return };
        value = inner;
    }
    match (last.strip_prefix("f:"), value) {
        (Some(field), Value::Object(fields)) => {
            let is_emptied = fields.remove(field).is_some() && fields.is_empty();
            if is_emptied && !named.contains(above) && above != ["f:metadata"] {
                emptied.insert(above.to_vec());
                remove(object, above, named, emptied);
            }
        }
        (None, Value::Array(items)) => items.retain(|item| element(item) != *last),
        (
            _,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_),
        ) => {}
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

fn read(object: &Value) -> Vec<ManagedEntry> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    entries
        .map(|entry| {
            let mut fields = Set::new();
            decode(&entry["fieldsV1"], &mut Vec::new(), &mut fields);
            ManagedEntry {
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
        if inner.as_object().is_none_or(|inner| inner.is_empty() || inner.contains_key(".")) {
            found.insert(path.clone());
        }
        decode(inner, path, found);
        path.pop();
    }
}

fn encode(fields: &Set) -> Value {
    let mut encoded = Value::Object(Map::new());
    for path in fields {
        let mut at = &mut encoded;
        for part in path {
            at = object::fields(at).entry(part).or_insert_with(|| Value::Object(Map::new()));
        }
    }
    for path in fields {
        let at = path.iter().try_fold(&mut encoded, |at, part| at.get_mut(part));
        if let Some(inner) = at.and_then(Value::as_object_mut).filter(|inner| !inner.is_empty()) {
            inner.insert(".".to_owned(), Value::Object(Map::new()));
        }
    }
    encoded
}

fn write(object: &mut Value, mut entries: Vec<ManagedEntry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    let order = |it: &ManagedEntry| {
        let time = it.time.as_str().unwrap_or_default().to_owned();
        let names = (it.manager.clone(), it.api_version.clone(), it.subresource.clone());
        (it.operation.clone(), time, names)
    };
    entries.sort_by_cached_key(order);
    if entries.is_empty() {
        object::metadata(object).remove("managedFields");
        return;
    }
    let written: Vec<_> = entries
        .into_iter()
        .map(|entry| {
            let mut written = json!({
                "manager": entry.manager,
                "operation": entry.operation,
                "apiVersion": entry.api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": encode(&entry.fields),
            });
            if !entry.time.is_null() {
                written["time"] = entry.time;
            }
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
    fn a_different_value_of_another_manager_conflicts_unless_forced() {
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
    fn a_field_that_is_no_longer_applied_is_removed_unless_another_manager_owns_it() {
        let first =
            json!({ "metadata": { "finalizers": ["x.test/a"] }, "spec": { "a": 1, "b": 1 } });
        let live = apply(&json!({}), &first, writer("alice"), false).unwrap();
        let shared = json!({ "spec": { "b": 1 } });
        let live = apply(&live, &shared, writer("bob"), false).unwrap();

        let end = apply(&live, &json!({ "spec": { "c": 1 } }), writer("alice"), false).unwrap();

        assert_eq!(end["spec"], json!({ "b": 1, "c": 1 }));
        assert_eq!(end["metadata"]["finalizers"], Value::Null);
    }

    #[test]
    fn map_without_fields_is_removed_with_its_last_one() {
        let first = json!({ "spec": { "a": { "b": { "c": 1 } }, "kept": {} } });
        let live = apply(&json!({}), &first, writer("alice"), false).unwrap();

        let second = json!({ "spec": { "kept": {} } });
        let end = apply(&live, &second, writer("alice"), false).unwrap();

        assert_eq!(end["spec"], second["spec"]);
    }

    #[test]
    fn an_empty_map_does_not_change_the_owners_of_its_fields() {
        let live = created("alice", json!({ "spec": { "a": { "b": 1 } } }));

        let end = apply(&live, &json!({ "spec": { "a": {} } }), writer("bob"), false).unwrap();

        assert_eq!(end["spec"], live["spec"]);
    }

    #[test]
    fn a_value_in_place_of_a_map_conflicts_with_its_owner() {
        let live =
            apply(&json!({}), &json!({ "spec": { "a": { "b": 1 } } }), writer("alice"), false);
        let (live, wanted) = (live.unwrap(), json!({ "spec": { "a": 5 } }));

        let refused = apply(&live, &wanted, writer("bob"), false).unwrap_err();
        let forced = apply(&live, &wanted, writer("bob"), true).unwrap();
        let back = apply(&forced, &live, writer("alice"), false).unwrap_err();

        let said =
            |whose| format!("Apply failed with 1 conflict: conflict with {whose:?}: .spec.a");
        assert_eq!((refused.message, back.message), (said("alice"), said("bob")));
        assert_eq!(forced["spec"], wanted["spec"]);
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
