//! Children of an earlier owner: an owner was deleted and created again, and a child that names the
//! earlier one by its uid stands in place of a new child.
//!
//! The garbage collector deletes such a child too, but may take minutes. The owner is proven to be
//! gone: the server has an object of its kind and name with another uid.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Resource,
    api::{DeleteParams, DynamicObject, GetParams, Preconditions},
    core::{PartialObjectMeta, Request},
};

use super::{apply::ApplyError, owner_reference::is_same_owner};
use crate::{
    controller::Context,
    kind::{Scope, ServedType, TypeRef, is_never_deleted},
};

/// Child of an earlier owner, as it was read.
#[derive(Debug, PartialEq)]
struct LeftBehind<'a> {
    preconditions: Preconditions,
    /// Owner that the new child will have.
    owner: &'a OwnerReference,
}

impl<'a> LeftBehind<'a> {
    /// Returns a live object as the child of an earlier owner; `None` if it is none, has other
    /// owners, or is being deleted.
    fn of(live: &ObjectMeta, desired: &'a ObjectMeta) -> Option<Self> {
        let mut owners = desired.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        let [earlier] = live.owner_references.as_deref()? else { return None };
        let is_earlier = earlier.controller == Some(true)
            && is_same_owner(earlier, owner)
            && earlier.uid != owner.uid
            && !earlier.uid.is_empty();
        if !is_earlier || live.deletion_timestamp.is_some() {
            return None;
        }
        let (uid, version) = (live.uid.clone()?, live.resource_version.clone()?);
        let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
        Some(Self { preconditions, owner })
    }
}

impl Context {
    /// Deletes the object that has the name of a desired one, if it is the child of an earlier owner:
    /// its only owner is the controller of the desired object by group, kind and name, and has
    /// another uid. Returns whether it was deleted; it may still wait for its finalizers.
    ///
    /// For a reconciler whose create ends with `AlreadyExists`. [`Context::apply`] and
    /// [`create_or_update`](super::create_or_update) give such an object its new owner instead.
    /// Nothing is deleted if the server does not have the owner of the desired object, if the kind
    /// of the owner was served in another scope since the [`Cluster`](crate::controller::Cluster) was
    /// created, or if the object is a Namespace, a PersistentVolumeClaim or a CRD.
    ///
    /// # Errors
    ///
    /// [`ApplyError`]. A deletion of an object that has changed meanwhile is a conflict.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the object may be deleted or not; the next call reads it.
    pub async fn delete_left_behind<K: Resource>(
        &self,
        desired: &K,
        of: &K::DynamicType,
    ) -> Result<bool, ApplyError> {
        let desired = desired.meta();
        let name = desired.name.as_deref().ok_or(ApplyError::NoName)?;
        if is_never_deleted(&K::group(of), &K::kind(of)) {
            return Ok(false);
        }
        let path = Request::new(K::url_path(of, desired.namespace.as_deref()));
        let get = path.get_metadata(name, &GetParams::default())?;
        let live: PartialObjectMeta<K> = match self.client().request(get).await {
            Ok(live) => live,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Some(LeftBehind { preconditions, owner }) = LeftBehind::of(&live.metadata, desired)
        else {
            return Ok(false);
        };
        let Some(served) = self.owner_type(owner) else { return Ok(false) };
        let namespace = desired.namespace.as_deref();
        let namespace = namespace.filter(|_| served.identity.scope == Scope::Namespaced);
        // A cache may have an earlier owner still, and the object be a child of the new one.
        if self.has_other_scope(&served) || !self.is_live(owner, &served, namespace).await? {
            return Ok(false);
        }
        let by = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let delete = path.delete(name, &by)?;
        self.client().request::<serde_json::Value>(delete).await?;
        let what = format!("{} {name}", K::kind(of));
        tracing::info!(
            object = what,
            owner = %format!("{} {}", owner.kind, owner.name),
            "deleted a child of an earlier owner"
        );
        #[cfg(feature = "runtime")]
        self.publish_deletion(&what, owner, namespace);
        Ok(true)
    }

    /// Returns whether the kind of an owner was served in another scope since the registry of its
    /// cluster was created. An owner reference does not show which object it names then.
    pub(crate) fn has_other_scope(&self, owner: &ServedType) -> bool {
        self.types().is_some_and(|types| types.has_other_scope(owner))
    }

    /// Returns the type that an owner reference names, if it is served.
    fn owner_type(&self, owner: &OwnerReference) -> Option<Arc<ServedType>> {
        let (group, version) =
            owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
        self.types()?.served(&TypeRef::kind(group, version, owner.kind.as_str()))
    }

    /// Returns whether the server has the owner with its uid.
    async fn is_live(
        &self,
        owner: &OwnerReference,
        served: &ServedType,
        namespace: Option<&str>,
    ) -> Result<bool, ApplyError> {
        let path = DynamicObject::url_path(&served.api_resource(), namespace);
        let get = Request::new(path).get_metadata(&owner.name, &GetParams::default())?;
        match self.client().request::<PartialObjectMeta<DynamicObject>>(get).await {
            Ok(live) => Ok(live.metadata.uid.as_ref() == Some(&owner.uid)
                && live.metadata.deletion_timestamp.is_none()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes the deletion of a child as an Event of its owner.
    #[cfg(feature = "runtime")]
    fn publish_deletion(&self, what: &str, owner: &OwnerReference, namespace: Option<&str>) {
        use k8s_openapi::api::core::v1::ObjectReference;
        use kube_runtime::events::{Event, EventType};

        let OwnerReference { api_version, kind, name, uid, .. } = owner.clone();
        let note =
            format!("Deleted {what}: it belonged to an earlier {kind} {name}, which is gone");
        let event = Event {
            type_: EventType::Normal,
            reason: "ChildOfEarlierParentDeleted".to_owned(),
            note: Some(note),
            action: "Delete".to_owned(),
            secondary: None,
        };
        let object = ObjectReference {
            api_version: Some(api_version),
            kind: Some(kind),
            name: Some(name),
            namespace: namespace.map(str::to_owned),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        let recorder = self.recorder(self.epoch().controller().as_str().into());
        self.publish(&recorder, event, object);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn left_behind_object_has_one_owner_of_the_same_kind_and_name() {
        let owner = |change: Value| {
            let mut owner = json!({
                "apiVersion": "example.com/v1", "kind": "Thing", "name": "p", "uid": "earlier",
                "controller": true,
            });
            owner.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            owner
        };
        let meta = |owners: Value, more: Value| -> ObjectMeta {
            let mut meta = json!({ "name": "c", "uid": "u", "resourceVersion": "7" });
            meta["ownerReferences"] = owners;
            meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(meta).unwrap()
        };
        let desired = meta(json!([owner(json!({ "uid": "now" }))]), json!({}));
        let is_left = |live: ObjectMeta| LeftBehind::of(&live, &desired).is_some();
        let one = |change: Value| meta(json!([owner(change)]), json!({}));

        assert!(is_left(one(json!({}))));
        assert!(is_left(one(json!({ "apiVersion": "example.com/v0" }))));
        for change in [
            json!({ "uid": "now" }),
            json!({ "uid": "" }),
            json!({ "name": "other" }),
            json!({ "kind": "Other" }),
            json!({ "apiVersion": "other.com/v1" }),
            json!({ "controller": false }),
        ] {
            assert!(!is_left(one(change.clone())), "{change}");
        }
        let second = json!({ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n" });
        assert!(!is_left(meta(json!([owner(json!({})), second]), json!({}))), "another owner");
        let going = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert!(!is_left(meta(json!([owner(json!({}))]), going)), "it is being deleted");
        assert!(!is_left(meta(json!([owner(json!({}))]), json!({ "resourceVersion": null }))));
        assert!(LeftBehind::of(&one(json!({})), &meta(json!([]), json!({}))).is_none());
        let live = one(json!({}));
        let found = LeftBehind::of(&live, &desired).unwrap();
        let (uid, resource_version) = (Some("u".to_owned()), Some("7".to_owned()));
        assert_eq!(found.preconditions, Preconditions { uid, resource_version });
    }
}
