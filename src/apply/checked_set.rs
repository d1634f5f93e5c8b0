//! Set whose objects are checked, and carry their membership.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    adopt::Adopt,
    digest::FieldDigest,
    error::Error,
    intent::intent,
    membership::{MEMBER_ANNOTATION, MemberRecord, SET_LABEL},
    object_name::ObjectName,
    set::{Set, SetObject},
    set_kind::SetKind,
    set_owner::SetId,
};
use crate::kind::{GroupKind, Scope, is_never_deleted};

/// Set as it is applied.
#[derive(Debug)]
pub(super) struct CheckedSet {
    pub(super) id: SetId,
    /// Kind of the owner, or of the ConfigMap of a named set.
    pub(super) holder: SetKind,
    pub(super) objects: Vec<DesiredObject>,
    pub(super) adopt: Adopt,
    pub(super) replaces_immutable: bool,
    deletable: BTreeSet<GroupKind>,
    /// Namespace to which the set is confined.
    pub(super) namespace: Option<String>,
}

/// Object as it is to be.
pub(super) struct DesiredObject {
    pub(super) kind: SetKind,
    pub(super) name: ObjectName,
    /// Intent of server-side apply.
    pub(super) intent: Value,
    pub(super) digest: FieldDigest,
}

/// Formats without the content, which may be that of a Secret.
impl std::fmt::Debug for DesiredObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DesiredObject").field("name", &self.name).finish_non_exhaustive()
    }
}

impl CheckedSet {
    /// Checks a set.
    ///
    /// # Errors
    ///
    /// Names the first mistake. A set with a mistake is not written in part, since an object that
    /// cannot be named would count as one that left the set.
    pub(super) fn of(set: Set) -> Result<Self, Error> {
        let Set { id, holder, objects, adopt, .. } = set;
        if let Some(mistake) = set.mistake {
            return Err(mistake);
        }
        let mut names = BTreeSet::new();
        let mut desired = Vec::new();
        for object in objects {
            let group_kind = object.kind.group_kind();
            let is_kept = keeps(&group_kind, &set.deletable);
            let holder = (!is_kept).then_some(&holder);
            let object = DesiredObject::of(object, &id, holder, set.is_controller)?;
            let refused = |why| Err(Error::Object { object: object.name.to_string(), why });
            if set.namespace.is_some() && object.name.namespace != set.namespace {
                return refused("the set is confined to another namespace");
            }
            if !names.insert(object.name.clone()) {
                return refused("the set has the object twice");
            }
            desired.push(object);
        }
        // Others may need their namespace and their type. The order is otherwise that of the set.
        desired.sort_by_key(|object| !precedes(&object.name.kind));
        Ok(Self {
            id,
            holder,
            objects: desired,
            adopt,
            replaces_immutable: set.replaces_immutable,
            deletable: set.deletable,
            namespace: set.namespace,
        })
    }

    /// Returns whether members of a kind are never deleted.
    pub(super) fn keeps(&self, kind: &GroupKind) -> bool {
        keeps(kind, &self.deletable)
    }

    /// Returns whether an object is in the set.
    pub(super) fn has(&self, object: &ObjectName) -> bool {
        self.objects.iter().any(|it| it.name == *object)
    }

    /// Returns whether the set has a namespace as one of its objects.
    pub(super) fn creates_namespace(&self, namespace: Option<&str>) -> bool {
        self.objects.iter().any(|it| {
            it.name.kind.kind == "Namespace"
                && it.name.kind.group.is_empty()
                && Some(it.name.name.as_str()) == namespace
        })
    }
}

/// Returns whether members of a kind are never deleted.
fn keeps(kind: &GroupKind, deletable: &BTreeSet<GroupKind>) -> bool {
    is_never_deleted(&kind.group, &kind.kind) && !deletable.contains(kind)
}

/// Returns whether objects of a kind are written before others.
pub(super) fn precedes(kind: &GroupKind) -> bool {
    let first = [("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")];
    first.contains(&(kind.group.as_str(), kind.kind.as_str()))
}

impl DesiredObject {
    /// Checks an object. With the kind of the owner, the garbage collector deletes it with its owner.
    fn of(
        object: SetObject,
        set: &SetId,
        holder: Option<&SetKind>,
        is_controller: bool,
    ) -> Result<Self, Error> {
        let SetObject { kind, json } = object;
        let text = |field: &str| {
            let text = json.get("metadata").and_then(|it| it.get(field)).and_then(Value::as_str);
            text.filter(|it| !it.is_empty()).map(str::to_owned)
        };
        let (name, namespace) = (text("name"), text("namespace"));
        let refused = |name: &str, why| {
            let object = format!("{} {name}", kind.kind).trim_end().to_owned();
            Err(Error::Object { object, why })
        };
        if !json.is_object() {
            return refused("", "it is not an object");
        }
        let Some(name) = name else { return refused("", "metadata.name must be set") };
        match (kind.scope, &namespace) {
            (Scope::Namespaced, None) => {
                return refused(&name, "metadata.namespace must be set: its type is namespaced");
            }
            (Scope::Cluster, Some(_)) => {
                return refused(&name, "metadata.namespace is set, and its type is cluster-scoped");
            }
            (Scope::Namespaced, Some(_)) | (Scope::Cluster, None) => {}
        }
        let given = |field: &str| json.get(field).and_then(Value::as_str).unwrap_or_default();
        let api_version = kind.api_version();
        if !["", &api_version].contains(&given("apiVersion"))
            || !["", &kind.kind].contains(&given("kind"))
        {
            return refused(&name, "apiVersion or kind differ from its type");
        }
        let is_map = |field: &str| json["metadata"][field].is_object();
        let is_list = json["metadata"]["ownerReferences"].is_array();
        let is_absent = |field: &str| json["metadata"][field].is_null();
        if !["labels", "annotations"].iter().all(|it| is_map(it) || is_absent(it))
            || !(is_list || is_absent("ownerReferences"))
        {
            return refused(&name, "metadata has a field of a wrong type");
        }
        let name = ObjectName { kind: kind.group_kind(), namespace, name };
        let mut intent = intent(json, &api_version, &kind.kind, None);
        let metadata = &mut intent["metadata"];
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("uid");
        }
        let record = MemberRecord::of(set, &name);
        let record = serde_json::to_string(&record)
            .map_err(|source| Error::Encode { kind: kind.kind.clone(), source })?;
        metadata["labels"][SET_LABEL] = set.label().into();
        metadata["annotations"][MEMBER_ANNOTATION] = record.into();
        if let Some(holder) = holder {
            refer_to_owner(metadata, set, holder, is_controller);
        }
        let digest = FieldDigest::of(&[&intent.to_string()]);
        Ok(Self { kind, name, intent, digest })
    }
}

/// Adds a reference to the owner, if the garbage collector would find it.
fn refer_to_owner(metadata: &mut Value, set: &SetId, holder: &SetKind, is_controller: bool) {
    if !set.owner.is_in_reach(metadata["namespace"].as_str()) {
        return;
    }
    let mut reference = json!({
        "apiVersion": holder.api_version(), "kind": holder.kind,
        "name": set.owner.name, "uid": set.owner.uid,
    });
    if is_controller {
        reference["controller"] = true.into();
    }
    let owners = &mut metadata["ownerReferences"];
    match owners.as_array_mut() {
        Some(owners) => {
            owners.retain(|it| it["uid"] != reference["uid"]);
            owners.push(reference);
        }
        None => *owners = json!([reference]),
    }
}
