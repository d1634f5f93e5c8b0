//! Swap of an edited definition into the runnable of its controller.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tracing::info;

use super::{
    declared::{DeclaredState, Run},
    reconciler::DeclarationReconciler,
};
use crate::{
    manager::{ControllerState, all_of},
    meta::{
        definition::{
            Definition,
            edit_effect::{EditEffect, NextSyncs, edit_effect},
        },
        hooks::counted::Hooks,
    },
};

/// Maximum time that a swap waits for the credentials of changed hooks, and for the type of revisions
/// if a child type is rolling. After it the edit is pending, like any edit that needs a missing type.
const SWAP_TIMEOUT: Duration = Duration::from_secs(1);

impl DeclarationReconciler {
    /// Returns the effect of a definition on the runnable that has the last one. Only a controller
    /// that runs, and for which no earlier edit waits, is changed in place.
    pub(super) fn effect(
        &self,
        name: &str,
        declared: &DeclaredState,
        new: &Definition,
    ) -> EditEffect {
        let status = self.manager.status_of(self.kind.runnable_name(name));
        let (Some(status), Some(run)) = (status, &declared.run) else {
            return EditEffect::NewEpoch;
        };
        match edit_effect(&run.definition, new) {
            EditEffect::Swap(_) if !is_active(status.state) || status.pending.is_some() => {
                EditEffect::NewEpoch
            }
            found @ (EditEffect::Keep | EditEffect::Swap(_) | EditEffect::NewEpoch) => found,
        }
    }

    /// Replaces the definition in the running epoch.
    ///
    /// # Errors
    ///
    /// The hooks, if their credentials or revisions are not usable yet.
    pub(super) async fn swap(
        &self,
        name: &str,
        definition: &Arc<Definition>,
        hooks: Hooks,
        syncs: NextSyncs,
        declared: &mut DeclaredState,
    ) -> Result<(), Hooks> {
        let Some(run) = &declared.run else { return Err(hooks) };
        let mut ready = all_of([hooks.ready(), run.runnable.revisions_served(definition)]);
        if timeout(SWAP_TIMEOUT, ready.met()).await.is_err() {
            return Err(hooks);
        }
        if !run.runnable.revisions_listed(definition).await {
            return Err(hooks);
        }
        let runnable = Arc::clone(&run.runnable);
        runnable.swap(Arc::clone(definition), hooks, syncs);
        info!(name, "declared controller changed in place");
        declared.note_finalizes(definition);
        let health = runnable.health();
        declared.run = Some(Run { definition: Arc::clone(definition), health, runnable });
        Ok(())
    }
}

/// Returns whether an epoch starts or runs in this state.
fn is_active(state: ControllerState) -> bool {
    match state {
        ControllerState::Starting | ControllerState::Running => true,
        ControllerState::Waiting
        | ControllerState::Stopping
        | ControllerState::BackingOff
        | ControllerState::Stopped => false,
    }
}
