//! What became of objects: counted, without I/O.

use std::{collections::BTreeMap, fmt};

use kube::{
    ResourceExt,
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

/// An object, whatever its uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Plural name of the type and its group, `configmaps` or `widgets.example.com`.
    pub of_type: String,
    /// Empty for what has none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.of_type, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.of_type, self.name),
        }
    }
}

/// What became of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// How often it was created.
    pub creates: usize,
    /// How often it was changed.
    pub updates: usize,
    /// How often it went.
    pub deletes: usize,
    /// What it is in the end; nothing when it is gone.
    pub end: Option<Value>,
}

/// What became of all objects that were watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// By object.
    pub objects: BTreeMap<ObjectKey, History>,
    /// The latest version that was seen of each.
    pub(super) seen: BTreeMap<ObjectKey, u64>,
}

impl Recording {
    /// It was there before.
    pub(super) fn existed(&mut self, resource: &ApiResource, object: &DynamicObject) {
        self.history(resource, object).end = json(object);
    }

    /// It was created or changed.
    pub(super) fn applied(&mut self, resource: &ApiResource, object: &DynamicObject) {
        let history = self.history(resource, object);
        let end = json(object);
        match &history.end {
            None => history.creates += 1,
            // Another one of that name: the event of the first one's end was missed.
            Some(before) if uid(before) != object.metadata.uid.as_deref() => {
                history.deletes += 1;
                history.creates += 1;
            }
            Some(before) if Some(before) == end.as_ref() => {}
            Some(_) => history.updates += 1,
        }
        history.end = end;
    }

    /// It is gone.
    pub(super) fn deleted(&mut self, resource: &ApiResource, object: &DynamicObject) {
        let history = self.history(resource, object);
        if history.end.take().is_some() {
            history.deletes += 1;
        }
    }

    /// These are all there are of a type.
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

    /// Whether it is as recent as this list of that version, or more so.
    pub(super) fn shows(
        &self,
        resource: &ApiResource,
        listed: &[DynamicObject],
        list_version: u64,
    ) -> bool {
        let of_type = of_type(resource);
        let keys: Vec<_> = listed.iter().map(|object| key(resource, object)).collect();
        let seen = |key: &ObjectKey| self.seen.get(key).copied().unwrap_or_default();
        // What is there and not on the list has gone, which is yet to be seen, or is newer.
        let mut here = self.objects.iter().filter(|(key, history)| {
            key.of_type == of_type && history.end.is_some() && !keys.contains(key)
        });
        listed.iter().zip(&keys).all(|(object, key)| seen(key) >= version_of(object))
            && here.all(|(key, _)| seen(key) > list_version)
    }

    /// The same with other names for what has another name in every run.
    pub(super) fn renamed(self, aliases: &[(String, String)]) -> Self {
        if aliases.is_empty() {
            return self;
        }
        let rename = |text: &str| {
            aliases.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        };
        let objects = self.objects.into_iter().map(|(key, history)| {
            let key = ObjectKey {
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

fn key(resource: &ApiResource, object: &DynamicObject) -> ObjectKey {
    ObjectKey {
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

/// Versions of a server are numbers, and grow.
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
        // The same once more, after a lost watch.
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
    fn what_was_missed_is_found_by_comparing() {
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
    fn names_of_one_run_are_those_of_every_run() {
        let (types, mut recording) = (widgets(), Recording::default());
        recording.applied(&types, &widget("uid-of-a", 1));

        let renamed = recording.renamed(&[("x.test".to_owned(), "GROUP".to_owned())]);

        assert_eq!(renamed.objects.keys().next().unwrap().of_type, "widgets.GROUP");
    }
}
