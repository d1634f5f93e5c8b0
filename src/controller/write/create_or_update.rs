//! Creation or update of an object, with no write if nothing has changed.

use std::fmt;

use kube::{Api, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use super::{CreateOrPatchError, OperationResult, create_or_patch::ChangedObject};
use crate::manager::BoxError;

/// Reads an object, lets `change` set the desired fields, and sends the whole object if it differs.
///
/// If the object does not exist, `change` is applied to `object`, which is created. Otherwise
/// `change` is applied to the object of the server, which is replaced. The resourceVersion that was
/// read is sent, whatever the closure does to it, so that a concurrent change is a conflict, which a
/// controller retries. Two requests; one if nothing differs.
///
/// Fields that the Rust type does not know are removed from the object; use
/// [`create_or_patch`](super::create_or_patch) to keep them. A status is not written where it is a
/// subresource.
///
/// Semantics: `CreateOrUpdate` of controller-runtime
/// (`pkg/controller/controllerutil/controllerutil.go`).
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use kube::Api;
/// use pilotlight::controller::write::{CreateOrPatchError, OperationResult, create_or_update};
///
/// # async fn example(api: Api<ConfigMap>, map: ConfigMap) -> Result<(), CreateOrPatchError> {
/// let (map, written) = create_or_update(&api, map, |map| {
///     map.data.get_or_insert_default().insert("size".into(), "3".into());
///     Ok(())
/// })
/// .await?;
/// if written != OperationResult::Unchanged {
///     println!("{written:?} {:?}", map.metadata.name);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`CreateOrPatchError`].
///
/// # Cancel safety
///
/// Dropped, the object may be written or not; the next call reads it.
pub async fn create_or_update<K>(
    api: &Api<K>,
    object: K,
    change: impl FnOnce(&mut K) -> Result<(), BoxError>,
) -> Result<(K, OperationResult), CreateOrPatchError>
where
    K: Resource + Clone + fmt::Debug + Serialize + DeserializeOwned,
{
    let ChangedObject { name, exists, before, desired, after, .. } =
        ChangedObject::read(api, object, change).await?;
    if !exists {
        let created = api.create(&PostParams::default(), &desired).await?;
        return Ok((created, OperationResult::Created));
    }
    if before == after {
        return Ok((desired, OperationResult::Unchanged));
    }
    let updated = api.replace(&name, &PostParams::default(), &desired).await?;
    Ok((updated, OperationResult::Updated))
}
