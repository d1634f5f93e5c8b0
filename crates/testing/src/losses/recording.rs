//! Recorded changes of objects: counted, without I/O.

use std::{collections::BTreeMap, fmt};

use kube::{
    ResourceExt,
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

/// Object of a name, at any uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordedKey {
    /// Plural name of the type and its group, `configmaps` or `widgets.example.com`.
    pub of_type: String,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl fmt::Display for RecordedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.of_type, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.of_type, self.name),
        }
    }
}

/// Changes of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Number of creates.
    pub creates: usize,
    /// Number of updates.
    pub updates: usize,
    /// Number of deletes.
    pub deletes: usize,
    /// Final state; `None` once it is deleted.
    pub end: Option<Value>,
}

/// Changes of all watched objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Changes by object.
    pub objects: BTreeMap<RecordedKey, History>,
    /// Latest version seen of each object.
    pub(super) seen: BTreeMap<RecordedKey, u64>,
}

impl Recording {
    /// Records an object that existed before.
    pub(super) fn existed(&mut self, resource: &ApiResource, object: &DynamicObject) {
        self.history(resource, object).end = json(object);
    }

    /// Records a create or an update.
    pub(super) fn applied(&mut self, resource: &ApiResource, object: &DynamicObject) {
        let history = self.history(resource, object);
        let end = json(object);
        match &history.end {
            None => history.creates += 1,
            // A different uid shows that the delete event of the first object was missed.
            Some(before) if uid(before) != object.metadata.uid.as_deref() => {
                history.deletes += 1;
                history.creates += 1;
            }
            Some(before) if Some(before) == end.as_ref() => {}
            Some(_) => history.updates += 1,
        }
        history.end = end;
    }

    /// Records a delete.
    pub(super) fn deleted(&mut self, resource: &ApiResource, object: &DynamicObject) {
        let history = self.history(resource, object);
        if history.end.take().is_some() {
            history.deletes += 1;
        }
    }

    /// Records a complete list of a type.
    pub(super) fn relisted(&mut self, resource: &ApiResource, objects: &[DynamicObject]) {
        for object in objects {
            self.applied(resource, object);
        }
        let listed: Vec<_> = objects.iter().map(|object| key(resource, object)).collect();
        let of_type = of_type(resource);
        for (key, history) in &mut self.objects {
            if key.of_type == of_type && !listed.contains(key) && history.end.take().is_some() {
                history.deletes += 1;
            }
        }
    }

    /// Returns true if the recording is at least as recent as a list of that version.
    pub(super) fn shows(
        &self,
        resource: &ApiResource,
        listed: &[DynamicObject],
        list_version: u64,
    ) -> bool {
        let of_type = of_type(resource);
        let keys: Vec<_> = listed.iter().map(|object| key(resource, object)).collect();
        let seen = |key: &RecordedKey| self.seen.get(key).copied().unwrap_or_default();
        // An object that is not on the list was deleted, which is not seen yet, or is newer.
        let mut here = self.objects.iter().filter(|(key, history)| {
            key.of_type == of_type && history.end.is_some() && !keys.contains(key)
        });
        listed.iter().zip(&keys).all(|(object, key)| seen(key) >= version_of(object))
            && here.all(|(key, _)| seen(key) > list_version)
    }

    /// Renames everything that has a different name in every run.
    pub(super) fn renamed(self, aliases: &[(String, String)]) -> Self {
        if aliases.is_empty() {
            return self;
        }
        let rename = |text: &str| {
            aliases.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        };
        let objects = self.objects.into_iter().map(|(key, history)| {
            let key = RecordedKey {
                of_type: rename(&key.of_type),
                namespace: rename(&key.namespace),
                name: rename(&key.name),
            };
            let end = history.end.map(|end| renamed(end, &rename));
            (key, History { end, ..history })
        });
        Self { objects: objects.collect(), ..Self::default() }
    }

    fn history(&mut self, resource: &ApiResource, object: &DynamicObject) -> &mut History {
        let key = key(resource, object);
        self.seen.insert(key.clone(), version_of(object));
        self.objects.entry(key).or_default()
    }
}

fn renamed(value: Value, rename: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(rename(&text)),
        Value::Array(items) => items.into_iter().map(|item| renamed(item, rename)).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (rename(&name), renamed(value, rename)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn key(resource: &ApiResource, object: &DynamicObject) -> RecordedKey {
    RecordedKey {
        of_type: of_type(resource),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

fn of_type(resource: &ApiResource) -> String {
    match resource.group.as_str() {
        "" => resource.plural.clone(),
        group => format!("{}.{group}", resource.plural),
    }
}

/// Returns the resource version, which is an increasing number.
pub(super) fn version_of(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn uid(object: &Value) -> Option<&str> {
    object.pointer("/metadata/uid").and_then(Value::as_str)
}

fn json(object: &DynamicObject) -> Option<Value> {
    serde_json::to_value(object).ok()
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;
    use serde_json::json;

    use super::*;

    fn widgets() -> ApiResource {
        let gvk = GroupVersionKind::gvk("x.test", "v1", "Widget");
        ApiResource::from_gvk_with_plural(&gvk, "widgets")
    }

    fn widget(uid: &str, version: u64) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {
                "name": "w",
                "namespace": "a",
                "uid": uid,
                "resourceVersion": version.to_string(),
            },
        }))
        .unwrap()
    }

    #[track_caller]
    fn check(recording: &Recording, expected: (usize, usize, usize), is_there: bool) {
        let history = recording.objects.values().next().unwrap();
        assert_eq!((history.creates, history.updates, history.deletes), expected);
        assert_eq!(history.end.is_some(), is_there);
    }

    #[test]
    fn creations_changes_and_ends_are_counted() {
        let (types, mut recording) = (widgets(), Recording::default());
        recording.applied(&types, &widget("1", 1));
        recording.applied(&types, &widget("1", 2));
        // The same event is repeated after a lost watch.
        recording.applied(&types, &widget("1", 2));
        check(&recording, (1, 1, 0), true);

        recording.deleted(&types, &widget("1", 3));
        recording.deleted(&types, &widget("1", 3));
        check(&recording, (1, 1, 1), false);
        recording.applied(&types, &widget("2", 4));
        check(&recording, (2, 1, 1), true);
        assert_eq!(recording.objects.keys().next().unwrap().to_string(), "widgets.x.test a/w");
    }

    #[test]
    fn missed_changes_are_found_by_comparison() {
        let (types, mut recording) = (widgets(), Recording::default());
        recording.existed(&types, &widget("1", 1));
        check(&recording, (0, 0, 0), true);
        recording.relisted(&types, &[widget("2", 2)]);
        check(&recording, (1, 0, 1), true);
        assert!(recording.shows(&types, &[widget("2", 2)], 9));
        assert!(!recording.shows(&types, &[widget("2", 3)], 9));
        assert!(!recording.shows(&types, &[], 9));
        assert!(recording.shows(&types, &[], 1), "created since");

        recording.relisted(&types, &[]);

        check(&recording, (1, 0, 2), false);
        assert!(recording.shows(&types, &[], 9));
        assert!(!recording.shows(&types, &[widget("3", 4)], 9), "created again");
    }

    #[test]
    fn types_are_renamed_for_comparison_between_runs() {
        let (types, mut recording) = (widgets(), Recording::default());
        recording.applied(&types, &widget("uid-of-a", 1));

        let renamed = recording.renamed(&[("x.test".to_owned(), "GROUP".to_owned())]);

        assert_eq!(renamed.objects.keys().next().unwrap().of_type, "widgets.GROUP");
    }
}
