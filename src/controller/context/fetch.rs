//! Read of one object, from the cache of an input or from the server.

use std::fmt;

use kube::{
    api::GetParams,
    core::{Request as HttpRequest, request},
};
use serde::de::DeserializeOwned;

use super::Context;
use crate::controller::ListerError;
use crate::informer::{ObjectKey, Projection};

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
}

impl Context {
    /// Reads an object of an input: from the cache if the input keeps it whole, from the server if
    /// the input keeps only its metadata. `None` if the input has no such object. A read from the
    /// server needs the right to `get`, and may return a newer object of that name than the cache.
    ///
    /// # Errors
    ///
    /// [`FetchError::Lister`] as for [`Context::lister`]; [`FetchError::Server`] if the server
    /// cannot be read.
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
        match self.reader_of(&attached).get(key) {
            None => Ok(None),
            Some(object) if object.is_whole() && is_cached_whole => Ok(Some(object.decode()?)),
            Some(_) => {
                let request = HttpRequest::new(path).get(&key.name, &GetParams::default())?;
                match self.client().request(request).await {
                    Ok(object) => Ok(Some(object)),
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}
