//! Writes of a parent's finalizer.

use serde_json::{Value, value::RawValue};

use super::{ParentReconciler, SyncError};
use crate::{
    controller::Context,
    informer::{Header, Object},
    meta::{
        parent::Parent,
        resource::{Resource, is_gone},
    },
};

impl ParentReconciler {
    /// Adds the finalizer to exactly this version of the parent.
    pub(super) async fn add_finalizer(
        &self,
        parent: &Parent,
        object: &Object,
        context: &Context,
    ) -> Result<(), SyncError> {
        let patch = self.finalizer.added(object.header());
        let stored = self.patch_parent(parent, &patch, "adding the finalizer", context).await?;
        // Without this check, the parent would be written in a loop.
        if stored.is_some_and(|stored| !self.finalizer.is_on(stored.header())) {
            return Err(self.not_stored("added"));
        }
        Ok(())
    }

    /// Removes the finalizer from exactly this version of the parent. Returns the parent as stored;
    /// `None` if it is gone.
    pub(super) async fn remove_finalizer(
        &self,
        parent: &Parent,
        header: &Header,
        context: &Context,
    ) -> Result<Option<Object>, SyncError> {
        let patch = self.finalizer.removed(header);
        let stored = self.patch_parent(parent, &patch, "removing the finalizer", context).await?;
        if stored.as_ref().is_some_and(|stored| self.finalizer.is_on(stored.header())) {
            return Err(self.not_stored("removed"));
        }
        Ok(stored)
    }

    pub(super) fn not_stored(&self, verb: &str) -> SyncError {
        let name = &self.finalizer.name;
        SyncError::Failed(format!(
            "the API server accepted a write that {verb} {name}, and dropped it"
        ))
    }

    /// Writes a parent, without a worker slot: no hook is called afterwards. Returns the parent as
    /// stored; `None` if it is gone.
    async fn patch_parent(
        &self,
        parent: &Parent,
        patch: &Value,
        doing: &str,
        context: &Context,
    ) -> Result<Option<Object>, SyncError> {
        context.release_slot();
        let resource = Resource::new(context.requester(), &parent.served);
        match self.parents.patches.merge::<Box<RawValue>>(&resource, &parent.key, patch).await {
            Ok(stored) => Object::from_json(stored.get(), &parent.served)
                .map(Some)
                .map_err(|error| SyncError::Failed(format!("{doing}: {error}"))),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(SyncError::of_write(doing, &error)),
        }
    }
}
