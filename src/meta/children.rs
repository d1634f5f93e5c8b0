//! Children: what a hook wants of them, checked as a whole, and the steps that lead there.
//!
//! Nothing here writes. An answer with one unusable child is refused altogether, so that no
//! mistake in it deletes anything.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{Selector, UpdateMethod, claim::UID_LABEL, last_applied, merge};
use crate::{
    informer::{Object, ObjectKey, StringMap},
    kind::{Scope, ServedType, TypeRef},
};

/// The parent, as far as its children are concerned.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    /// How to talk to its type.
    pub(crate) served: Arc<ServedType>,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// uid.
    pub(crate) uid: Arc<str>,
    /// It is being deleted.
    pub(crate) terminating: bool,
}

/// A declared type of children that is served now.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// How to talk to it.
    pub(crate) served: Arc<ServedType>,
    /// How existing children are updated.
    pub(crate) strategy: UpdateMethod,
}

/// An observed child.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// Which of the groups.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// uid.
    pub(crate) uid: Arc<str>,
    /// It is being deleted.
    pub(crate) terminating: bool,
    /// The object.
    pub(crate) json: Bytes,
}

impl Child {
    /// A cached object as a child.
    pub(crate) fn new(group: usize, object: &Object) -> Self {
        Self {
            group,
            key: object.key().clone(),
            uid: object.header().uid.clone(),
            terminating: object.header().deletion_timestamp.is_some(),
            json: object.json().clone(),
        }
    }
}

/// A wanted child that can be worked with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Desired {
    /// Which of the groups.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// The object.
    pub(crate) object: Value,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Delete the object with this uid.
    Delete {
        /// Which of the groups.
        group: usize,
        /// Namespace and name.
        key: ObjectKey,
        /// The one object that is meant.
        uid: Arc<str>,
    },
    /// Create this object.
    Create(Desired),
    /// Replace the observed object with this one.
    Update(Desired),
}

impl Step {
    /// Which of the groups, and which object.
    pub(crate) fn target(&self) -> (usize, &ObjectKey) {
        match self {
            Self::Delete { group, key, .. } => (*group, key),
            Self::Create(desired) | Self::Update(desired) => (desired.group, &desired.key),
        }
    }
}

/// What wanted children are checked against.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    /// The parent.
    pub(crate) parent: &'a Parent,
    /// Declared types that are served.
    pub(crate) groups: &'a [Group],
    /// Declared optional types that are not served now.
    pub(crate) missing: &'a [TypeRef],
    /// What children must match.
    pub(crate) selector: &'a Selector,
    /// The label with the parent's uid is added.
    pub(crate) generate_selector: bool,
    /// Children that there are.
    pub(crate) observed: &'a [Child],
}

impl Rules<'_> {
    /// Checks a hook's children and completes them: the namespace, the generated label.
    ///
    /// Children of an optional type that is not served are left out.
    ///
    /// # Errors
    ///
    /// Names the first field that is wrong, as in `children[3].metadata.name`.
    pub(crate) fn check(&self, children: Vec<Value>) -> Result<Vec<Desired>, String> {
        let observed: HashMap<_, _> =
            self.observed.iter().map(|child| ((child.group, &child.key), child)).collect();
        let mut first: HashMap<(usize, ObjectKey), usize> = HashMap::new();
        let mut desired = Vec::with_capacity(children.len());
        for (index, child) in children.into_iter().enumerate() {
            let checked = self
                .check_child(child, &observed)
                .map_err(|Wrong { field, message }| format!("children[{index}]{field}: {message}"));
            let Some(child) = checked? else { continue };
            if let Some(first) = first.insert((child.group, child.key.clone()), index) {
                return Err(format!(
                    "children[{index}]: {} {} is there twice, first as children[{first}]",
                    self.groups[child.group].served.kind, child.key
                ));
            }
            desired.push(child);
        }
        Ok(desired)
    }

    fn check_child(
        &self,
        mut child: Value,
        observed: &HashMap<(usize, &ObjectKey), &Child>,
    ) -> Result<Option<Desired>, Wrong> {
        let Some(object) = child.as_object_mut() else {
            return Err(wrong("", format!("is {} and no object", word(&child))));
        };
        let api_version = text(object, "apiVersion", "")?.to_owned();
        let kind = text(object, "kind", "")?.to_owned();
        let group = self.groups.iter().position(|group| {
            *group.served.kind == *kind && group.served.identity.api_version() == api_version
        });
        let Some(group) = group else {
            if self.missing.iter().any(|missing| same_api_version(missing, &api_version)) {
                tracing::debug!(kind, version = api_version, "child of a type that is not served");
                return Ok(None);
            }
            return Err(wrong(
                "",
                format!("{kind} of {api_version} is not declared in spec.childResources"),
            ));
        };
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err(wrong(".metadata", "must be an object"));
        };
        let name = text(metadata, "name", ".metadata")?.to_owned();
        if !is_name(&name) {
            let shown: String = name.chars().take(64).collect();
            return Err(wrong(".metadata.name", format!("{shown:?} is no name of an object")));
        }
        if metadata.get("generateName").is_some_and(|value| !value.is_null()) {
            return Err(wrong(
                ".metadata.generateName",
                "cannot be used: a child is recognised by its name",
            ));
        }
        let namespace = self.namespace(metadata, &self.groups[group].served)?;
        let key = ObjectKey { namespace, name: name.into() };
        self.check_identity(metadata, observed.get(&(group, &key)).copied())?;
        if self.generate_selector {
            let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
            if labels.is_null() {
                *labels = Value::Object(Map::new());
            }
            if let Some(labels) = labels.as_object_mut() {
                labels.entry(UID_LABEL).or_insert_with(|| self.parent.uid.as_ref().into());
            }
        }
        let labels = texts(metadata, "labels")?;
        texts(metadata, "annotations")?;
        if !self.selector.matches(&labels) {
            return Err(wrong(
                ".metadata.labels",
                format!("do not match the parent's selector {}", self.selector),
            ));
        }
        Ok(Some(Desired { group, key, object: child }))
    }

    /// Where the child belongs; written into it.
    fn namespace(
        &self,
        metadata: &mut Map<String, Value>,
        served: &ServedType,
    ) -> Result<Option<Arc<str>>, Wrong> {
        const FIELD: &str = ".metadata.namespace";
        let wanted = match metadata.get("namespace") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => {
                return Err(wrong(FIELD, format!("is {} and no text", word(other))));
            }
        };
        match (served.identity.scope, &self.parent.key.namespace, wanted) {
            (Scope::Cluster, Some(_), _) => Err(wrong(
                "",
                format!(
                    "{} is cluster-scoped, and a parent in a namespace has children in its own \
                     alone",
                    served.kind
                ),
            )),
            (Scope::Cluster, None, Some(_)) => {
                Err(wrong(FIELD, format!("must be empty: {} is cluster-scoped", served.kind)))
            }
            (Scope::Cluster, None, None) => {
                metadata.remove("namespace");
                Ok(None)
            }
            (Scope::Namespaced, Some(own), wanted) => {
                if let Some(wanted) = wanted.filter(|wanted| **wanted != **own) {
                    return Err(wrong(
                        FIELD,
                        format!("{wanted:?} is not the parent's, which is {own:?}"),
                    ));
                }
                metadata.insert("namespace".to_owned(), own.as_ref().into());
                Ok(Some(own.clone()))
            }
            (Scope::Namespaced, None, None) => {
                Err(wrong(FIELD, "is required: the parent is cluster-scoped"))
            }
            (Scope::Namespaced, None, Some(wanted)) => {
                let valid = wanted.len() <= 63
                    && wanted.bytes().all(|byte| {
                        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
                    });
                if valid {
                    Ok(Some(wanted.into()))
                } else {
                    Err(wrong(FIELD, "is no name of a namespace"))
                }
            }
        }
    }

    /// Identity and ownership are the server's and ours. A hook may send back what it was shown.
    fn check_identity(
        &self,
        metadata: &Map<String, Value>,
        observed: Option<&Child>,
    ) -> Result<(), Wrong> {
        match metadata.get("uid") {
            None | Some(Value::Null) => {}
            Some(Value::String(uid)) if observed.is_some_and(|observed| *observed.uid == **uid) => {
            }
            Some(_) => return Err(wrong(".metadata.uid", "must not be set: the server does")),
        }
        match metadata.get("ownerReferences") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Array(owners)) => {
                let foreign = owners.iter().position(|owner| {
                    owner.get("uid").and_then(Value::as_str) != Some(&*self.parent.uid)
                });
                match foreign {
                    None => Ok(()),
                    Some(_) if observed.is_some_and(|child| owners_shown(child, owners)) => Ok(()),
                    Some(index) => Err(wrong(
                        &format!(".metadata.ownerReferences[{index}]"),
                        "must not be set: the parent is the owner",
                    )),
                }
            }
            Some(other) => {
                Err(wrong(".metadata.ownerReferences", format!("is {} and no list", word(other))))
            }
        }
    }

    /// The writes that lead from what is observed to what is desired, in their order: deletes,
    /// then creates and updates, each by type.
    pub(crate) fn plan(&self, desired: Vec<Desired>) -> Vec<Step> {
        let mut deletes = Vec::new();
        let mut writes = Vec::new();
        let mut wanted: BTreeMap<(usize, ObjectKey), (usize, Desired)> = desired
            .into_iter()
            .enumerate()
            .map(|(order, desired)| ((desired.group, desired.key.clone()), (order, desired)))
            .collect();
        for child in self.observed {
            let target = (child.group, child.key.clone());
            let Some((order, desired)) = wanted.remove(&target) else {
                if !child.terminating {
                    deletes.push(delete(child));
                }
                continue;
            };
            if child.terminating {
                continue;
            }
            let Ok(observed) = serde_json::from_slice::<Value>(&child.json) else { continue };
            let merged = merge::apply(&observed, &desired.object);
            if last_applied::same(&merged, &observed) {
                continue;
            }
            match self.groups[child.group].strategy {
                UpdateMethod::OnDelete => {}
                UpdateMethod::Recreate => deletes.push(delete(child)),
                UpdateMethod::InPlace => {
                    writes.push((order, Step::Update(Desired { object: merged, ..desired })));
                }
            }
        }
        for (order, desired) in wanted.into_values() {
            let object = self.new_child(&desired.object);
            writes.push((order, Step::Create(Desired { object, ..desired })));
        }
        let rank = |step: &Step| {
            let identity = &self.groups[step.target().0].served;
            (
                identity.identity.group.clone(),
                identity.identity.version.clone(),
                identity.kind.clone(),
            )
        };
        deletes.sort_by_cached_key(|step| (rank(step), step.target().1.clone()));
        writes.sort_by_cached_key(|(order, step)| (rank(step), *order));
        deletes.into_iter().chain(writes.into_iter().map(|(_, step)| step)).collect()
    }

    /// A child as it is created: owned, and remembering what was wanted.
    fn new_child(&self, desired: &Value) -> Value {
        let essence = last_applied::essence(desired);
        let mut object = essence.clone();
        if let (Some(object), Some(status)) = (object.as_object_mut(), desired.get("status")) {
            object.insert("status".to_owned(), status.clone());
        }
        last_applied::write(&mut object, &essence);
        object["metadata"]["ownerReferences"] = json!([owner_reference(self.parent)]);
        object
    }
}

/// The reference by which a child names its parent.
pub(crate) fn owner_reference(parent: &Parent) -> Value {
    json!({
        "apiVersion": parent.served.identity.api_version(),
        "kind": parent.served.kind,
        "name": parent.key.name,
        "uid": parent.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn delete(child: &Child) -> Step {
    Step::Delete { group: child.group, key: child.key.clone(), uid: child.uid.clone() }
}

fn owners_shown(child: &Child, owners: &[Value]) -> bool {
    serde_json::from_slice::<Value>(&child.json).is_ok_and(|observed| {
        let shown = observed.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        shown.is_some_and(|shown| shown == owners)
    })
}

fn same_api_version(type_ref: &TypeRef, api_version: &str) -> bool {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    type_ref.group == group && type_ref.version.as_deref().is_none_or(|asked| asked == version)
}

/// What the API server accepts as a name in a path, and a little less: what would change a URL.
fn is_name(name: &str) -> bool {
    name.len() <= 253
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%?#\\".contains(&byte))
}

struct Wrong {
    field: String,
    message: String,
}

fn wrong(field: &str, message: impl Into<String>) -> Wrong {
    Wrong { field: field.to_owned(), message: message.into() }
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn text<'a>(object: &'a Map<String, Value>, field: &str, path: &str) -> Result<&'a str, Wrong> {
    let path = format!("{path}.{field}");
    match object.get(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        None | Some(Value::Null | Value::String(_)) => Err(wrong(&path, "is required")),
        Some(other) => Err(wrong(&path, format!("is {} and no text", word(other)))),
    }
}

fn texts(metadata: &Map<String, Value>, field: &str) -> Result<StringMap, Wrong> {
    let path = format!(".metadata.{field}");
    match metadata.get(field) {
        None | Some(Value::Null) => Ok(StringMap::default()),
        Some(Value::Object(entries)) => entries
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) => Ok((key.as_str(), text.as_str())),
                other => Err(wrong(
                    &format!("{path}[{key:?}]"),
                    format!("is {} and no text", word(other)),
                )),
            })
            .collect(),
        Some(other) => Err(wrong(&path, format!("is {} and no object", word(other)))),
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;
    use crate::kind::{Subresources, TypeIdentity};

    pub(crate) fn served(group: &str, plural: &str, kind: &str, scope: Scope) -> Arc<ServedType> {
        Arc::new(ServedType {
            identity: TypeIdentity {
                group: group.into(),
                version: "v1".into(),
                plural: plural.into(),
                scope,
                uid: None,
            },
            kind: kind.into(),
            list_kind: format!("{kind}List").into(),
            subresources: Subresources { status: true, scale: false },
        })
    }

    pub(crate) fn parent(namespace: Option<&str>) -> Parent {
        let scope = if namespace.is_some() { Scope::Namespaced } else { Scope::Cluster };
        Parent {
            served: served("example.com", "things", "Thing", scope),
            key: ObjectKey { namespace: namespace.map(Into::into), name: "p".into() },
            uid: "parent-uid".into(),
            terminating: false,
        }
    }

    pub(crate) fn groups(strategy: UpdateMethod) -> Vec<Group> {
        [
            served("", "configmaps", "ConfigMap", Scope::Namespaced),
            served("apps", "deployments", "Deployment", Scope::Namespaced),
            served("", "namespaces", "Namespace", Scope::Cluster),
        ]
        .map(|served| Group { served, strategy })
        .into()
    }

    pub(crate) fn child(group: usize, name: &str, object: Value) -> Child {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        Child {
            group,
            key: ObjectKey {
                namespace: text("/metadata/namespace").map(Into::into),
                name: name.into(),
            },
            uid: text("/metadata/uid").unwrap_or(name).into(),
            terminating: object.pointer("/metadata/deletionTimestamp").is_some(),
            json: serde_json::to_vec(&object).unwrap().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{fixtures::*, *};

    fn config_map(name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"app": "x"}}
        })
    }

    fn selector() -> Selector {
        Selector::label("app", "x")
    }

    fn checked(
        parent: &Parent,
        observed: &[Child],
        children: Vec<Value>,
    ) -> Result<Vec<Desired>, String> {
        let (groups, selector) = (groups(UpdateMethod::InPlace), selector());
        let missing = [TypeRef::resource("late.example.com", "v1", "lates")];
        Rules {
            parent,
            groups: &groups,
            missing: &missing,
            selector: &selector,
            generate_selector: false,
            observed,
        }
        .check(children)
    }

    #[track_caller]
    fn check_refused(pointer: &str, value: Value, expected: &str) {
        let mut children = vec![config_map("a"), config_map("b")];
        match pointer {
            "" => children[1] = value,
            pointer => {
                let (object, key) = pointer.rsplit_once('/').unwrap();
                children[1].pointer_mut(object).unwrap()[key] = value;
            }
        }

        let error = checked(&parent(Some("ns")), &[], children).unwrap_err();

        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn an_unusable_child_is_refused_by_the_path_of_its_field() {
        check_refused("", json!(null), "children[1]: is null");
        check_refused("", json!([]), "children[1]: is a list");
        check_refused("/apiVersion", json!(null), "children[1].apiVersion: is required");
        check_refused("/kind", json!(""), "children[1].kind: is required");
        check_refused("/kind", json!(1), "children[1].kind: is a number");
        check_refused("/kind", json!("Pod"), "children[1]: Pod of v1 is not declared");
        check_refused("/apiVersion", json!("v2"), "children[1]: ConfigMap of v2 is not declared");
        check_refused("/metadata", json!(null), "children[1].metadata: must be an object");
        check_refused("/metadata/name", json!(null), "children[1].metadata.name: is required");
        check_refused("/metadata/name", json!("x".repeat(254)), "children[1].metadata.name: ");
        check_refused("/metadata/name", json!("../secrets/x"), "children[1].metadata.name: ");
        check_refused("/metadata/name", json!(".."), "children[1].metadata.name: ");
        check_refused("/metadata/generateName", json!("x-"), "children[1].metadata.generateName: ");
        check_refused("/metadata/namespace", json!("other"), "children[1].metadata.namespace: ");
        check_refused(
            "/metadata/namespace",
            json!(7),
            "children[1].metadata.namespace: is a number",
        );
        check_refused("/metadata/uid", json!("u"), "children[1].metadata.uid: ");
        check_refused(
            "/metadata/ownerReferences",
            json!([{"uid": "parent-uid"}, {"uid": "x"}]),
            "children[1].metadata.ownerReferences[1]: ",
        );
        check_refused(
            "/metadata/labels",
            json!({"app": "y"}),
            "children[1].metadata.labels: do not",
        );
        check_refused(
            "/metadata/labels",
            json!({"app": 1}),
            "children[1].metadata.labels[\"app\"]: ",
        );
        check_refused("/metadata/annotations", json!([]), "children[1].metadata.annotations: ");
        check_refused("/metadata/name", json!("a"), "children[1]: ConfigMap ns/a is there twice");
        check_refused(
            "",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
            "children[1]: Namespace is cluster-scoped",
        );
    }

    #[test]
    fn a_child_without_namespace_gets_its_parents() {
        let children = checked(&parent(Some("ns")), &[], vec![config_map("a")]).unwrap();

        assert_eq!(children[0].key.to_string(), "ns/a");
        assert_eq!(children[0].object["metadata"]["namespace"], "ns");
    }

    #[test]
    fn a_cluster_scoped_parent_says_where_its_children_are() {
        let parent = parent(None);

        assert!(checked(&parent, &[], vec![config_map("a")]).unwrap_err().contains("is required"));
        let mut child = config_map("a");
        child["metadata"]["namespace"] = json!("x");
        assert_eq!(checked(&parent, &[], vec![child]).unwrap()[0].key.to_string(), "x/a");
        let mut namespace = config_map("a");
        namespace["kind"] = json!("Namespace");
        assert_eq!(checked(&parent, &[], vec![namespace.clone()]).unwrap()[0].key.to_string(), "a");
        namespace["metadata"]["namespace"] = json!("x");
        assert!(checked(&parent, &[], vec![namespace]).unwrap_err().contains("must be empty"));
    }

    #[test]
    fn children_of_a_missing_optional_type_are_left_out() {
        let mut late = config_map("a");
        late["apiVersion"] = json!("late.example.com/v1");
        late["kind"] = json!("Late");

        let children = checked(&parent(Some("ns")), &[], vec![late, config_map("b")]).unwrap();

        assert_eq!(children.len(), 1);
    }

    #[test]
    fn what_a_hook_was_shown_it_may_send_back() {
        let mut shown = config_map("a");
        shown["metadata"]["namespace"] = json!("ns");
        shown["metadata"]["uid"] = json!("u");
        shown["metadata"]["ownerReferences"] = json!([{"uid": "parent-uid"}, {"uid": "friend"}]);
        let observed = child(0, "a", shown.clone());

        assert!(checked(&parent(Some("ns")), &[observed], vec![shown]).is_ok());
    }

    #[test]
    fn a_generated_selector_labels_children() {
        let (parent, groups) = (parent(Some("ns")), groups(UpdateMethod::InPlace));
        let selector = Selector::label("controller-uid", "parent-uid");
        let rules = Rules {
            parent: &parent,
            groups: &groups,
            missing: &[],
            selector: &selector,
            generate_selector: true,
            observed: &[],
        };

        let children = rules.check(vec![config_map("a")]).unwrap();

        let labels = &children[0].object["metadata"]["labels"];
        assert_eq!(labels, &json!({"app": "x", "controller-uid": "parent-uid"}));
    }

    fn plan(strategy: UpdateMethod, observed: &[Child], children: Vec<Value>) -> Vec<Step> {
        let (parent, groups, selector) = (parent(Some("ns")), groups(strategy), selector());
        let rules = Rules {
            parent: &parent,
            groups: &groups,
            missing: &[],
            selector: &selector,
            generate_selector: false,
            observed,
        };
        let desired = rules.check(children).unwrap();
        rules.plan(desired)
    }

    /// What the server would hold after the step.
    fn stored(step: &Step) -> Child {
        let (Step::Create(desired) | Step::Update(desired)) = step else { panic!("{step:?}") };
        let mut object = desired.object.clone();
        object["metadata"]["uid"] = json!("stored");
        object["metadata"]["resourceVersion"] = json!("1");
        child(desired.group, &desired.key.name, object)
    }

    #[test]
    fn a_new_child_is_owned_and_remembers_what_was_wanted() {
        let steps = plan(UpdateMethod::OnDelete, &[], vec![config_map("a")]);

        let [Step::Create(created)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(
            created.object["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "example.com/v1", "kind": "Thing", "name": "p",
                "uid": "parent-uid", "controller": true, "blockOwnerDeletion": true
            }])
        );
        assert_eq!(
            created.object["metadata"]["annotations"][last_applied::LAST_APPLIED],
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"app":"x"},"name":"a","namespace":"ns"}}"#
        );
    }

    #[test]
    fn a_child_that_is_as_wanted_is_left_alone() {
        for strategy in [UpdateMethod::OnDelete, UpdateMethod::Recreate, UpdateMethod::InPlace] {
            let created = plan(strategy, &[], vec![config_map("a")]);

            let steps = plan(strategy, &[stored(&created[0])], vec![config_map("a")]);

            assert_eq!(steps, []);
        }
    }

    #[test]
    fn a_child_that_differs_is_brought_there_by_its_strategy() {
        let observed = stored(&plan(UpdateMethod::InPlace, &[], vec![config_map("a")])[0]);
        let mut changed = config_map("a");
        changed["data"] = json!({"k": "v"});
        let steps = |strategy| plan(strategy, &[observed.clone()], vec![changed.clone()]);

        assert_eq!(steps(UpdateMethod::OnDelete), []);
        assert_eq!(
            steps(UpdateMethod::Recreate),
            [Step::Delete { group: 0, key: observed.key.clone(), uid: "stored".into() }]
        );
        let updates = steps(UpdateMethod::InPlace);
        let [Step::Update(update)] = &updates[..] else { panic!("{updates:?}") };
        assert_eq!(update.object["data"], json!({"k": "v"}));
        assert_eq!(update.object["metadata"]["resourceVersion"], "1");
        assert_eq!(plan(UpdateMethod::InPlace, &[stored(&updates[0])], vec![changed.clone()]), []);
    }

    #[test]
    fn what_is_wanted_no_more_is_deleted_first() {
        let observed = |name: &str| {
            let mut object = config_map(name);
            object["metadata"]["namespace"] = json!("ns");
            child(0, name, object)
        };
        let mut deployment = config_map("d");
        deployment["apiVersion"] = json!("apps/v1");
        deployment["kind"] = json!("Deployment");

        let steps = plan(
            UpdateMethod::OnDelete,
            &[observed("z"), observed("y")],
            vec![deployment, config_map("b"), config_map("a")],
        );

        let names: Vec<_> = steps.iter().map(|step| step.target().1.name.to_string()).collect();
        assert_eq!(names, ["y", "z", "b", "a", "d"]);
        assert!(matches!(steps[..], [Step::Delete { .. }, Step::Delete { .. }, ..]));
    }

    #[test]
    fn what_is_being_deleted_is_left_alone() {
        let mut going = config_map("a");
        going["metadata"]["namespace"] = json!("ns");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let observed = [child(0, "a", going)];

        assert_eq!(plan(UpdateMethod::InPlace, &observed, vec![config_map("a")]), []);
        assert_eq!(plan(UpdateMethod::InPlace, &observed, vec![]), []);
    }
}
