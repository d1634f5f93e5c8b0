//! Swap of an edited definition into the runnable of its controller.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tracing::info;

use super::reconciler::DeclarationReconciler;
use crate::{
    manager::ControllerState,
    meta::{
        Definition,
        counted_hook::Hooks,
        declared::{Declared, Run},
        edit_effect::{EditEffect, NextSyncs, edit_effect},
    },
};

/// Time to wait for the credentials of changed hooks. After it the edit waits as one that needs a
/// missing type does.
const CREDENTIALS_PATIENCE: Duration = Duration::from_secs(1);

impl DeclarationReconciler {
    /// Returns the effect of a definition on the runnable that has the last one. Only a controller
    /// that runs, and for which no earlier edit waits, is changed in place.
    pub(super) fn effect(&self, name: &str, declared: &Declared, new: &Definition) -> EditEffect {
        let status = self.manager.status_of(self.kind.runnable_name(name));
        let (Some(status), Some(run)) = (status, &declared.run) else { return EditEffect::Restart };
        match edit_effect(&run.definition, new) {
            EditEffect::Swap(_) if !is_active(status.state) || status.pending.is_some() => {
                EditEffect::Restart
            }
            found @ (EditEffect::Keep | EditEffect::Swap(_) | EditEffect::Restart) => found,
        }
    }

    /// Replaces the definition in the running epoch.
    ///
    /// # Errors
    ///
    /// The hooks, if their credentials are not usable yet.
    pub(super) async fn swap(
        &self,
        name: &str,
        definition: &Arc<Definition>,
        hooks: Hooks,
        syncs: NextSyncs,
        declared: &mut Declared,
    ) -> Result<(), Hooks> {
        let Some(run) = &declared.run else { return Err(hooks) };
        if timeout(CREDENTIALS_PATIENCE, hooks.ready().met()).await.is_err() {
            return Err(hooks);
        }
        let runnable = Arc::clone(&run.runnable);
        let workers = definition.workers.unwrap_or(self.options.workers);
        runnable.swap(Arc::clone(definition), hooks, workers, syncs);
        info!(name, "declared controller changed in place");
        declared.note_finalizes(definition);
        let health = runnable.health();
        declared.run = Some(Run { definition: Arc::clone(definition), health, runnable });
        Ok(())
    }
}

/// Returns whether an epoch runs, which had all that its start needs.
fn is_active(state: ControllerState) -> bool {
    match state {
        ControllerState::Starting | ControllerState::Running => true,
        ControllerState::Waiting
        | ControllerState::Stopping
        | ControllerState::BackingOff
        | ControllerState::Stopped => false,
    }
}
