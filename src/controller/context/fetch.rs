//! Read of one object, from the cache of an input or from the server.

use std::fmt;

use kube::{
    api::GetParams,
    core::{Request as HttpRequest, request},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Context;
use crate::controller::ListerError;
use crate::informer::{ObjectKey, Projection, TransformError};

/// Error of [`Context::fetch`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The type is not readable as an input of this controller.
    #[error(transparent)]
    Lister(#[from] ListerError),
    /// The object does not have the shape of its Rust type; the error names the field.
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
    /// The key is not valid in a path.
    #[error(transparent)]
    Path(#[from] request::Error),
    /// The server cannot be read.
    #[error(transparent)]
    Server(#[from] kube::Error),
    /// The transform of the input failed for the object that the server returned.
    #[error(transparent)]
    Transform(#[from] TransformError),
}

impl Context {
    /// Reads an object of an input: from the cache if the input keeps it whole, from the server if
    /// the input keeps only its metadata. `None` if the input has no such object. A read from the
    /// server needs the right to `get`, and may return a newer object of that name than the cache.
    ///
    /// The transform of the input applies to either, and receives the same parts, without
    /// `managedFields` unless the input keeps them. It does not apply for an input with
    /// `metadata_only`, whose objects are returned as the server has them.
    ///
    /// # Errors
    ///
    /// [`FetchError::Lister`] as for [`Context::lister`]; [`FetchError::Server`] if the server
    /// cannot be read; [`FetchError::Transform`] if the transform fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn fetch<
        K: kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
    >(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<K>, FetchError> {
        let attached = self.attached_of::<K>()?;
        let is_cached_whole = attached.key.projection == Projection::Full;
        let path = attached.served.identity.path(key.namespace.as_deref());
        match attached.joined().get(key) {
            // The type may have been removed since the first line.
            None => self.attached_of::<K>().map(|_| None).map_err(FetchError::from),
            Some(object) if object.is_whole() && is_cached_whole => Ok(Some(object.decode()?)),
            Some(_) => {
                let request = HttpRequest::new(path).get(&key.name, &GetParams::default())?;
                let transform = attached.key.transform.as_ref().filter(|_| is_cached_whole);
                let Some(transform) = transform else {
                    return found(self.client().request(request).await);
                };
                let object = found(self.client().request::<Value>(request).await)?;
                let Some(mut object) = object else { return Ok(None) };
                if !attached.key.managed_fields {
                    cut_managed_fields(&mut object);
                }
                Ok(Some(serde_json::from_value(transform.apply(object)?)?))
            }
        }
    }
}

/// Removes `managedFields`, as the cache does before it transforms an object.
fn cut_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// Returns the object of a response; `None` if it does not exist.
fn found<T>(response: Result<T, kube::Error>) -> Result<Option<T>, FetchError> {
    match response {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
