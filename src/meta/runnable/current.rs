//! Current sync of a declared controller: its definition with the hooks that it declares. A swap
//! replaces both while the epoch runs.
//!
//! A sync ends with the definition that it began with. The hooks of a replaced definition are
//! released after its last sync.

use std::{mem::take, sync::Arc};

use parking_lot::Mutex;

use crate::{
    controller::{Context, Outcome, ReconcileError, Reconciler, Request},
    meta::{hooks::Hook, sync::ParentReconciler},
};

/// Reconciler whose definition can be replaced. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CurrentSync(Arc<Mutex<SyncVersions>>);

struct SyncVersions {
    current: Arc<ParentReconciler>,
    /// Replaced reconcilers, whose hooks are not released yet.
    replaced: Vec<Arc<ParentReconciler>>,
}

impl CurrentSync {
    pub(crate) fn new(current: ParentReconciler) -> Self {
        let state = SyncVersions { current: Arc::new(current), replaced: Vec::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns the current reconciler.
    pub(crate) fn get(&self) -> Arc<ParentReconciler> {
        Arc::clone(&self.0.lock().current)
    }

    /// Replaces the current reconciler, and returns it. Syncs that begin from now on use `next`.
    pub(crate) fn replace(&self, next: ParentReconciler) -> Arc<ParentReconciler> {
        let mut state = self.0.lock();
        let old = std::mem::replace(&mut state.current, Arc::new(next));
        state.replaced.push(Arc::clone(&old));
        old
    }

    /// Returns the hooks of a replaced reconciler, for their release; none if another call has
    /// returned them.
    pub(crate) fn retire(&self, old: &Arc<ParentReconciler>) -> Vec<Arc<dyn Hook>> {
        let mut state = self.0.lock();
        let found = state.replaced.iter().position(|it| Arc::ptr_eq(it, old));
        let found = found.map(|index| state.replaced.swap_remove(index));
        drop(state);
        found.iter().flat_map(hooks).collect()
    }

    /// Returns all hooks that are to be released at the end of an epoch.
    pub(crate) fn release(&self) -> Vec<Arc<dyn Hook>> {
        let mut state = self.0.lock();
        let (current, replaced) = (Arc::clone(&state.current), take(&mut state.replaced));
        drop(state);
        [current].iter().chain(&replaced).flat_map(hooks).collect()
    }
}

impl Reconciler for CurrentSync {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        // A replaced one is released after its last token: both are taken at once.
        let (current, _running) = {
            let state = self.0.lock();
            (Arc::clone(&state.current), state.current.running.token())
        };
        let result = current.reconcile(request.clone(), context.clone()).await;
        if !Arc::ptr_eq(&current, &self.get()) {
            // The sync has set the time of the resync, and may have kept a response of the
            // customize hook, by the definition that was replaced meanwhile.
            current.parents.related.forget_response(&request);
            context.enqueue(request);
        }
        result
    }
}

fn hooks(of: &Arc<ParentReconciler>) -> impl Iterator<Item = Arc<dyn Hook>> {
    of.hooks.all().map(|hook| Arc::clone(&hook.hook)).collect::<Vec<_>>().into_iter()
}
