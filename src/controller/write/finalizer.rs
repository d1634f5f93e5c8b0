//! Finalizers in the metadata of an object.

use kube::Resource;

/// Returns whether an object has a finalizer.
pub fn has_finalizer(object: &impl Resource, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|it| it == finalizer)
}

/// Adds a finalizer. Returns whether it was missing. Writes nothing: see
/// [`create_or_patch`](super::create_or_patch).
pub fn add_finalizer(object: &mut impl Resource, finalizer: &str) -> bool {
    let is_missing = !has_finalizer(object, finalizer);
    if is_missing {
        object.meta_mut().finalizers.get_or_insert_default().push(finalizer.to_owned());
    }
    is_missing
}

/// Removes a finalizer. Returns whether it was there.
pub fn remove_finalizer(object: &mut impl Resource, finalizer: &str) -> bool {
    let Some(finalizers) = &mut object.meta_mut().finalizers else { return false };
    let before = finalizers.len();
    finalizers.retain(|it| it != finalizer);
    finalizers.len() < before
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn finalizer_is_added_once_and_removed_beside_others() {
        let mut object = ConfigMap::default();

        assert!(add_finalizer(&mut object, "example.com/a"));
        assert!(add_finalizer(&mut object, "example.com/b"));
        assert!(!add_finalizer(&mut object, "example.com/a"));
        assert!(remove_finalizer(&mut object, "example.com/a"));
        assert!(!remove_finalizer(&mut object, "example.com/a"));

        assert!(has_finalizer(&object, "example.com/b"));
        assert_eq!(object.metadata.finalizers.unwrap().len(), 1);
    }
}
