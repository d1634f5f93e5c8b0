//! Sync of a decorated object after the response: the object first, then its attachments.

use std::time::Duration;

use super::{ParentReconciler, SyncError, hook_call::CheckedResponse};
use crate::{controller::Context, informer::Object, meta::children::Rules};

impl ParentReconciler {
    /// Applies a response.
    pub(super) async fn decorate(
        &self,
        object: &Object,
        rules: &Rules<'_>,
        response: CheckedResponse,
        context: &Context,
    ) -> Result<Option<Duration>, SyncError> {
        self.compose(object, rules, response, context).await
    }
}
