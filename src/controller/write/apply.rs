//! Server-side apply with the controller as the field manager.

use std::fmt;

use kube::{
    Resource,
    api::{Patch, PatchParams},
    core::{Request, request},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    apply::intent::intent,
    controller::Context,
    kind::{Scope, TypeRef},
};

/// Error of [`Context::apply`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The object has no `metadata.name`.
    #[error("metadata.name must be set")]
    NoName,
    /// The object has no `metadata.namespace`, and its type is namespaced.
    #[error("metadata.namespace must be set: {0} is namespaced")]
    NoNamespace(TypeRef),
    /// The Rust type cannot be written as JSON.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// The name or namespace is not valid in a path.
    #[error(transparent)]
    Path(#[from] request::Error),
    /// The API server cannot be reached, or has refused the request.
    #[error(transparent)]
    Server(#[from] kube::Error),
}

impl Context {
    /// Applies an object on the server, and returns it as it is then.
    ///
    /// The field manager is the name of the controller. Conflicts are forced: a field that another
    /// manager has set becomes this controller's. A field that the last call had set and this one
    /// does not is removed, an owner that was deleted and created again among them. An object that is
    /// as desired keeps its resourceVersion.
    ///
    /// The namespace is that of the object; without one, the type is cluster-scoped. A status is
    /// ignored where it is a subresource: see [`Context::apply_status`].
    ///
    /// # Errors
    ///
    /// [`ApplyError`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, the request may have been carried out; the next reconcile of the request waits until
    /// the caches show it, and applies again.
    pub async fn apply<K>(&self, object: &K) -> Result<K, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + fmt::Debug + Serialize + DeserializeOwned,
    {
        self.apply_at(object, &(), None).await
    }

    /// Like [`Context::apply`], for a type known at run time only, such as a `DynamicObject`.
    ///
    /// ```
    /// # use kube::core::{DynamicObject, ObjectMeta};
    /// # use pilotlight::{controller::{Context, ReconcileError}, kind::TypeRef};
    /// # async fn example(context: Context, widgets: TypeRef) -> Result<(), ReconcileError> {
    /// let resource = context.served(&widgets)?.api_resource();
    /// let mut widget = DynamicObject::new("a", &resource).within("default");
    /// widget.data = serde_json::json!({ "spec": { "size": 1 } });
    /// let applied = context.apply_with(&widget, &resource).await?;
    /// # drop(applied);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Context::apply`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Context::apply`].
    pub async fn apply_with<K>(&self, object: &K, of: &K::DynamicType) -> Result<K, ApplyError>
    where
        K: Resource + Clone + fmt::Debug + Serialize + DeserializeOwned,
    {
        self.apply_at(object, of, None).await
    }

    /// Applies the status of an object: like [`Context::apply`], at the subresource `status`. Only
    /// the identity and the status are sent.
    ///
    /// # Errors
    ///
    /// As for [`Context::apply`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Context::apply`].
    pub async fn apply_status<K>(&self, object: &K) -> Result<K, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + fmt::Debug + Serialize + DeserializeOwned,
    {
        self.apply_at(object, &(), Some("status")).await
    }

    /// Like [`Context::apply_status`], for a type known at run time only.
    ///
    /// # Errors
    ///
    /// As for [`Context::apply`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Context::apply`].
    pub async fn apply_status_with<K>(
        &self,
        object: &K,
        of: &K::DynamicType,
    ) -> Result<K, ApplyError>
    where
        K: Resource + Clone + fmt::Debug + Serialize + DeserializeOwned,
    {
        self.apply_at(object, of, Some("status")).await
    }

    async fn apply_at<K>(
        &self,
        object: &K,
        of: &K::DynamicType,
        subresource: Option<&str>,
    ) -> Result<K, ApplyError>
    where
        K: Resource + Clone + fmt::Debug + Serialize + DeserializeOwned,
    {
        let name = object.meta().name.as_deref().ok_or(ApplyError::NoName)?;
        let namespace = object.meta().namespace.as_deref();
        if namespace.is_none() {
            let type_ref = TypeRef::resource(K::group(of), K::version(of), K::plural(of));
            let served = self.types().and_then(|types| types.served(&type_ref));
            if served.is_some_and(|served| served.identity.scope == Scope::Namespaced) {
                return Err(ApplyError::NoNamespace(type_ref));
            }
        }
        let object = serde_json::to_value(object)?;
        let intent = intent(object, &K::api_version(of), &K::kind(of), subresource);
        let patch = Patch::Apply(intent);
        let by = PatchParams::apply(self.epoch().controller().as_str()).force();
        let request = Request::new(K::url_path(of, namespace));
        let request = match subresource {
            None => request.patch(name, &by, &patch)?,
            Some(subresource) => request.patch_subresource(subresource, name, &by, &patch)?,
        };
        Ok(self.client().request(request).await?)
    }
}
