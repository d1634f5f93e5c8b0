//! Values that differ in each run, replaced by constants: data files have the constants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Supervised;

/// Namespace in data files.
const NAMESPACE: &str = "snapshot";
/// Address of the hook in data files.
const URL: &str = "http://hook.test/sync";

/// Replaces uids, times, resourceVersions, the address of the hook and the name of the namespace.
pub(crate) fn constant(supervised: &Supervised<'_>, json: &Value) -> Value {
    let mut uids = BTreeMap::new();
    note_uids(json, &mut uids);
    let mut text = json.to_string();
    for (uid, constant) in uids {
        text = text.replace(&uid, &constant);
    }
    text = text.replace(&supervised.hook.url, URL);
    text = text.replace(&supervised.harness.scope.namespace, NAMESPACE);
    let mut json = serde_json::from_str(&text).unwrap();
    replace_times(&mut json);
    json
}

/// Returns the text of a data file with the namespace and the hook of this run.
pub(crate) fn of_run(supervised: &Supervised<'_>, text: &str) -> String {
    let namespace = &supervised.harness.scope.namespace;
    text.replace(URL, &supervised.hook.url).replace(NAMESPACE, namespace)
}

/// Constant for the uid of an object.
fn uid_of(object: &Value) -> Option<String> {
    let (kind, name) = (object["kind"].as_str()?, object["metadata"]["name"].as_str()?);
    Some(format!("uid of {kind} {name}"))
}

fn note_uids(value: &Value, uids: &mut BTreeMap<String, String>) {
    if let (Some(uid), Some(constant)) = (value["metadata"]["uid"].as_str(), uid_of(value)) {
        uids.insert(uid.to_owned(), constant);
    }
    let members = value.as_object().into_iter().flat_map(|object| object.values());
    for member in members.chain(value.as_array().into_iter().flatten()) {
        note_uids(member, uids);
    }
}

fn replace_times(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        for (key, member) in object {
            match (key.as_str(), &member) {
                ("creationTimestamp" | "deletionTimestamp", Value::String(_)) => {
                    *member = json!("2026-01-02T03:04:05Z");
                }
                ("resourceVersion", Value::String(_)) => *member = json!("7"),
                _ => replace_times(member),
            }
        }
    } else if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(replace_times);
    }
}
