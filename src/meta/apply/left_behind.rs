//! Children of an earlier parent: a parent was deleted and created again, and a child that names the
//! earlier one by its uid stands in place of a new child.
//!
//! The garbage collector deletes such a child too, but may take minutes. The owner is proven to be
//! gone: an object of its kind and name exists, and has another uid.

use super::{Apply, WrittenChild};
use crate::{
    informer::{ObjectKey, StringMap},
    kind::{ServedType, is_never_deleted},
    manager::Requester,
    meta::{
        children::ownership::Ownership,
        parent::{Parent, sync_error::SyncError},
        resource::{LiveOwner, Resource, ServerObject, is_conflict, is_gone},
    },
};

/// Child of an earlier parent, as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftBehindChild {
    uid: String,
    version: String,
    owner_uid: String,
}

impl LeftBehindChild {
    /// Returns a live object as the child of an earlier parent of this name; `None` if it is none,
    /// or has other owners.
    pub(super) fn of(
        live: &ServerObject,
        served: &ServedType,
        annotations: &StringMap,
        parent: &Parent,
        ownership: &Ownership,
    ) -> Option<Self> {
        let metadata = &live.metadata;
        let [owner] = metadata.owner_references.as_deref()? else { return None };
        if owner.controller != Some(true)
            || !is_earlier(owner, metadata.namespace.as_deref(), parent)
            || parent.terminating
            || !ownership.is_marked(annotations)
            || is_never_deleted(&served.identity.group, &served.kind)
        {
            return None;
        }
        Some(Self {
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone()?,
            owner_uid: owner.uid.clone(),
        })
    }
}

/// Returns whether the owner of an object in this namespace is an earlier parent of the same kind
/// and name.
pub(super) fn is_earlier(owner: &LiveOwner, namespace: Option<&str>, parent: &Parent) -> bool {
    is_named_as(owner, parent)
        && *owner.uid != *parent.uid
        && !owner.uid.is_empty()
        && is_in_reach(namespace, parent)
}

/// Returns whether an owner reference names the kind and the name of a parent, at any version.
fn is_named_as(owner: &LiveOwner, parent: &Parent) -> bool {
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    *group == *parent.served.identity.group
        && *owner.kind == *parent.served.kind
        && *owner.name == *parent.key.name
}

/// Returns whether an owner reference of an object in this namespace can mean the parent.
fn is_in_reach(namespace: Option<&str>, parent: &Parent) -> bool {
    parent.key.namespace.as_deref().is_none_or(|own| namespace == Some(own))
}

impl Apply {
    /// Deletes the child of an earlier parent, if the server has the parent that is synced. Returns
    /// why the sync is to be retried.
    pub(super) async fn delete_left_behind(
        &self,
        target: &WrittenChild<'_>,
        child: &LeftBehindChild,
        resource: &Resource<'_>,
        key: &ObjectKey,
    ) -> SyncError {
        let (parent, what) = (target.rules.parent, &target.what);
        let LeftBehindChild { uid, version, owner_uid } = child;
        let (kind, name) = (&parent.served.kind, &parent.key.name);
        if target.context.has_other_scope(&parent.served) {
            let why = format!(
                "a {kind} {name} owns it that may be another one, since the kind was served in \
                 another scope"
            );
            return SyncError::Outdated(format!("creating {what}: {why}"));
        }
        // The cache may still have the earlier parent, whose child would be that of the new one.
        match is_alive(parent, target.context.requester()).await {
            Ok(true) => {}
            Ok(false) => {
                let why = "the parent was deleted or replaced meanwhile";
                return SyncError::Outdated(format!("creating {what}: {why}"));
            }
            Err(error) => return error,
        }
        if target.is_halted() {
            return SyncError::Outdated(format!("creating {what}: further writes are postponed"));
        }
        match resource.delete_version(key, uid, version).await {
            Ok(()) => {
                let text = format!(
                    "Deleted {what}: it belonged to an earlier {kind} {name} with the uid \
                     {owner_uid}, which is gone"
                );
                parent.state.note("ChildOfEarlierParentDeleted", text);
            }
            // Deleted or changed meanwhile, and read again by the next sync.
            Err(error) if is_gone(&error) || is_conflict(&error) => {}
            Err(error) => {
                let doing = format!("deleting {what} of an earlier {kind} {name}");
                return SyncError::of_write(&doing, &error);
            }
        }
        SyncError::Outdated(format!("creating {what}: that of an earlier {kind} is being deleted"))
    }
}

/// Reads the parent from the server, since the cache may be outdated.
pub(crate) async fn is_alive(parent: &Parent, requester: Requester<'_>) -> Result<bool, SyncError> {
    match Resource::new(requester, &parent.served).get(&parent.key).await {
        Ok(live) => Ok(live.is(&parent.uid) && !live.is_terminating()),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(SyncError::of_write("reading the parent", &error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        kind::Scope,
        meta::children::fixtures::{parent, served},
    };

    const DECORATED: &str = "metacontroller.k8s.io/decorator-controller";

    fn owner(change: Value) -> Value {
        let of = parent(Some("ns"));
        let mut owner = json!({
            "apiVersion": format!("{}/v0", of.served.identity.group), "kind": &*of.served.kind,
            "name": &*of.key.name, "uid": "earlier", "controller": true,
        });
        owner.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        owner
    }

    fn child(owners: Value) -> Value {
        json!({
            "namespace": "ns", "name": "c", "uid": "u", "resourceVersion": "7",
            "ownerReferences": owners,
        })
    }

    fn found(metadata: Value, kind: (&str, &str), parent: &Parent, ownership: &Ownership) -> bool {
        let annotations: StringMap = metadata["annotations"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value.as_str().unwrap()))
            .collect();
        let live = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let served = served(kind.0, "things", kind.1, Scope::Namespaced);
        let found = LeftBehindChild::of(&live, &served, &annotations, parent, ownership);
        if let Some(found) = &found {
            let LeftBehindChild { uid, version, owner_uid } = found;
            assert_eq!([&**uid, version, owner_uid], ["u", "7", "earlier"]);
        }
        found.is_some()
    }

    #[test]
    fn child_is_left_behind_by_a_parent_of_the_same_kind_and_name_alone() {
        let ownership = Ownership::Annotated { controller: "ours".to_owned() };
        let marked = |mut metadata: Value| {
            metadata["annotations"] = json!({ DECORATED: "ours" });
            metadata
        };
        let of = |metadata: Value| {
            found(marked(metadata), ("", "ConfigMap"), &parent(Some("ns")), &ownership)
        };
        let one = |change: Value| child(json!([owner(change)]));

        assert!(of(one(json!({}))));
        let uid = parent(Some("ns")).uid;
        for change in [
            json!({"uid": &*uid}),
            json!({"uid": ""}),
            json!({"name": "other"}),
            json!({"kind": "Other"}),
            json!({"apiVersion": "other.com/v1"}),
            json!({"apiVersion": "v1"}),
            json!({"controller": false}),
        ] {
            assert!(!of(one(change.clone())), "{change}");
        }
        let second = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"});
        assert!(!of(child(json!([owner(json!({})), second]))), "another owner may exist");
        let mut elsewhere = one(json!({}));
        elsewhere["namespace"] = json!("other");
        assert!(!of(elsewhere.clone()), "an owner is in the namespace of its child");
        let mut unversioned = one(json!({}));
        unversioned.as_object_mut().unwrap().remove("resourceVersion");
        assert!(!of(unversioned), "a change between read and deletion would be unnoticed");
        let cluster = parent(None);
        let is_found = |metadata| found(metadata, ("", "ConfigMap"), &cluster, &ownership);
        assert!(is_found(marked(elsewhere)), "a cluster-scoped parent has children anywhere");
        let terminating = Parent { terminating: true, ..parent(Some("ns")) };
        let metadata = marked(one(json!({})));
        assert!(!found(metadata.clone(), ("", "ConfigMap"), &terminating, &ownership));
        for (group, kind) in [("", "Namespace"), ("", "PersistentVolumeClaim")] {
            assert!(!found(metadata.clone(), (group, kind), &parent(Some("ns")), &ownership));
        }
        let theirs = Ownership::Annotated { controller: "theirs".to_owned() };
        assert!(!found(metadata, ("", "ConfigMap"), &parent(Some("ns")), &theirs));
    }
}
