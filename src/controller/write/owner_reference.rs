//! Owner references of an object that a reconciler writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// Error of an owner reference, before anything is written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerReferenceError {
    /// The object has another controller. Choose another name, or leave the object to it.
    #[error("{object} is already controlled by {} {}", .controller.kind, .controller.name)]
    AlreadyOwned {
        /// Namespace and name of the object.
        object: String,
        /// The controller that it has.
        controller: Box<OwnerReference>,
    },
    /// The owner has no name or no uid. Read it from the cache or the server first.
    #[error("the owner has no metadata.{0}: it was not read from the API server")]
    NotRead(&'static str),
    /// The garbage collector deletes an object whose owner is in another namespace. Create the
    /// object in the namespace of its owner, or give it a cluster-scoped one.
    #[error("{object} cannot have an owner in the namespace {owner}")]
    OtherNamespace {
        /// Namespace and name of the object.
        object: String,
        /// Namespace of the owner.
        owner: String,
    },
}

/// Makes `owner` the managing controller of `object`, which is deleted with it. A reference to an
/// earlier object of the owner's kind and name is replaced. `dynamic` is `&()` for a Rust type.
///
/// Semantics: controller-runtime (`pkg/controller/controllerutil/controllerutil.go`,
/// `SetControllerReference`), with `blockOwnerDeletion`.
///
/// # Errors
///
/// [`OwnerReferenceError`]; `object` is then unchanged.
pub fn set_controller_reference<O: Resource>(
    object: &mut impl Resource,
    owner: &O,
    dynamic: &O::DynamicType,
) -> Result<(), OwnerReferenceError> {
    let reference = OwnerReference {
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..reference(object, owner, dynamic)?
    };
    let other = object.owner_references().iter().find(|it| it.controller == Some(true));
    if let Some(controller) = other.filter(|it| !is_same_owner(it, &reference)) {
        let controller = Box::new(controller.clone());
        return Err(OwnerReferenceError::AlreadyOwned { object: named(object), controller });
    }
    put(object, reference);
    Ok(())
}

/// Adds `owner` to the owners of `object`, which is deleted with the last of them. A reference to
/// an earlier object of the owner's kind and name is replaced. `dynamic` is `&()` for a Rust type.
///
/// # Errors
///
/// As for [`set_controller_reference`], but for the other controller.
pub fn set_owner_reference<O: Resource>(
    object: &mut impl Resource,
    owner: &O,
    dynamic: &O::DynamicType,
) -> Result<(), OwnerReferenceError> {
    let reference = reference(object, owner, dynamic)?;
    put(object, reference);
    Ok(())
}

/// Removes the references to `owner`, by uid. Returns whether there was one.
pub fn remove_owner_reference(object: &mut impl Resource, owner: &impl Resource) -> bool {
    let Some(owners) = &mut object.meta_mut().owner_references else { return false };
    let before = owners.len();
    owners.retain(|it| Some(&it.uid) != owner.meta().uid.as_ref());
    owners.len() < before
}

fn reference<O: Resource>(
    object: &impl Resource,
    owner: &O,
    dynamic: &O::DynamicType,
) -> Result<OwnerReference, OwnerReferenceError> {
    let missing = if owner.meta().name.is_none() { "name" } else { "uid" };
    let reference = owner.owner_ref(dynamic).ok_or(OwnerReferenceError::NotRead(missing))?;
    match owner.namespace() {
        Some(owner) if object.namespace().as_ref() != Some(&owner) => {
            Err(OwnerReferenceError::OtherNamespace { object: named(object), owner })
        }
        Some(_) | None => Ok(reference),
    }
}

fn put(object: &mut impl Resource, reference: OwnerReference) {
    let owners = object.owner_references_mut();
    match owners.iter_mut().find(|it| is_same_owner(it, &reference)) {
        // The flags that others have set stay.
        Some(it) => {
            it.controller = reference.controller.or(it.controller);
            it.block_owner_deletion = reference.block_owner_deletion.or(it.block_owner_deletion);
            it.api_version = reference.api_version;
            it.uid = reference.uid;
        }
        None => owners.push(reference),
    }
}

/// Returns whether both name the same group, kind and name.
pub(super) fn is_same_owner(one: &OwnerReference, other: &OwnerReference) -> bool {
    let group = |it: &OwnerReference| match it.api_version.split_once('/') {
        Some((group, _)) => group.to_owned(),
        None => String::new(),
    };
    group(one) == group(other) && one.kind == other.kind && one.name == other.name
}

fn named(object: &impl Resource) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{ConfigMap, Namespace},
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use super::*;

    fn map(namespace: &str, name: &str, uid: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            uid: Some(uid.to_owned()).filter(|it| !it.is_empty()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    #[test]
    fn controller_reference_is_set_once_and_follows_a_new_uid() {
        let mut child = map("ns", "child", "");

        set_controller_reference(&mut child, &map("ns", "owner", "1"), &()).unwrap();
        set_controller_reference(&mut child, &map("ns", "owner", "2"), &()).unwrap();

        let [owner] = child.owner_references() else { panic!("{child:?}") };
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("ConfigMap", "2"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
        assert!(!remove_owner_reference(&mut child, &map("ns", "owner", "1")));
        assert!(remove_owner_reference(&mut child, &map("ns", "owner", "2")));
        assert_eq!(child.owner_references(), []);
        let mut none = map("ns", "none", "");
        assert!(!remove_owner_reference(&mut none, &map("ns", "owner", "2")));
        assert_eq!(none.metadata.owner_references, None, "nothing to write");
    }

    #[test]
    fn object_of_another_controller_is_refused_and_unchanged() {
        let mut child = map("ns", "child", "");
        set_controller_reference(&mut child, &map("ns", "first", "1"), &()).unwrap();
        let before = child.clone();

        let error =
            set_controller_reference(&mut child, &map("ns", "second", "2"), &()).unwrap_err();

        assert_eq!(error.to_string(), "ns/child is already controlled by ConfigMap first");
        assert_eq!(child, before);
        set_owner_reference(&mut child, &map("ns", "second", "2"), &()).unwrap();
        assert_eq!(child.owner_references().len(), 2, "one that does not control is added");
    }

    #[test]
    fn owner_reference_keeps_the_flags_of_the_controller() {
        let mut child = map("ns", "child", "");
        set_controller_reference(&mut child, &map("ns", "owner", "1"), &()).unwrap();

        set_owner_reference(&mut child, &map("ns", "owner", "2"), &()).unwrap();

        let [owner] = child.owner_references() else { panic!("{child:?}") };
        assert_eq!((owner.controller, owner.uid.as_str()), (Some(true), "2"));
    }

    #[test]
    fn owner_in_another_namespace_or_without_a_uid_is_refused() {
        let mut child = map("ns", "child", "");
        let mut cluster = Namespace::default();
        cluster.metadata.name = Some("cluster".to_owned());
        let far = map("far", "owner", "1");

        let refused = |error: Result<_, OwnerReferenceError>| error.unwrap_err().to_string();
        let message = "ns/child cannot have an owner in the namespace far";
        assert_eq!(refused(set_controller_reference(&mut child, &far, &())), message);
        let message = "cluster cannot have an owner in the namespace far";
        assert_eq!(refused(set_owner_reference(&mut cluster, &far, &())), message);
        let unread = refused(set_owner_reference(&mut child, &map("ns", "owner", ""), &()));
        let message = "the owner has no metadata.uid: it was not read from the API server";
        assert_eq!(unread, message);
        assert_eq!(child.owner_references(), []);
    }
}
