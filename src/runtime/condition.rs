//! Condition of kube-rs on an object, as a condition of this crate.

use kube_runtime::wait::Condition as KubeCondition;
use serde::de::DeserializeOwned;

use crate::{
    controller::{CachedResource, Cluster, ObjectCondition},
    informer::ObjectKey,
    kind::TypeRef,
};

/// Returns a condition that is met while one object matches a condition of kube, such as
/// `kube_runtime::wait::conditions::is_deployment_completed`. Add it to the manager, like any
/// [`ObjectCondition`].
///
/// A condition of kube may hold for a missing object, such as `is_deleted`. The type of the object
/// has to be served in any case. An object that cannot be decoded does not match.
///
/// ```no_run
/// # use pilotlight::{controller::*, informer::ObjectKey, manager::*, runtime};
/// use pilotlight::runtime::kube_runtime::wait::conditions::is_deployment_completed;
///
/// # fn example(cluster: Cluster, manager: &mut Manager, builder: Builder) -> Result<(), AddError> {
/// let key = ObjectKey::namespaced("ops", "database");
/// let database = runtime::object_condition(&cluster, key, is_deployment_completed());
/// database.add_to(manager)?;
/// let builder = builder.when(database);
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
pub fn object_condition<K: CachedResource + DeserializeOwned>(
    cluster: &Cluster,
    key: ObjectKey,
    condition: impl KubeCondition<K> + Send + Sync + 'static,
) -> ObjectCondition {
    ObjectCondition::optional(cluster, TypeRef::of::<K>(), key, move |object| match object {
        None => condition.matches_object(None),
        Some(object) => {
            object.decode::<K>().is_ok_and(|object| condition.matches_object(Some(&object)))
        }
    })
}
