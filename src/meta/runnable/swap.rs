//! Swap of the definition of a declared controller while its epoch runs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use super::{
    DeclaredRunnable,
    release::{release, warn_of},
};
use crate::{
    controller::{Context, Request},
    manager::Epoch,
    meta::{
        definition::{Definition, edit_effect::NextSyncs},
        hooks::counted::Hooks,
        parent::resync,
        sync::ParentReconciler,
    },
};

/// Time over which the syncs of [`NextSyncs::Spread`] are spread.
const SPREAD: Duration = Duration::from_secs(60);

impl DeclaredRunnable {
    /// Replaces the definition and its hooks. The types of parents and children must be the same.
    ///
    /// Epoch, informers and caches stay. A sync that runs ends with the old definition, and its
    /// parent is synced again. Responses of the customize hook and responses with an ETag are
    /// evicted.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn swap(&self, definition: Arc<Definition>, hooks: Hooks, syncs: NextSyncs) {
        let next = self.current.get().with(definition, hooks);
        self.controller.set_workers(next.workers());
        let old = self.current.replace(next);
        // A sync of the new definition that finds no input is enqueued again below.
        self.follow_rollouts();
        self.parents.related.forget_responses();
        // Without a run, the next one reads the new definition, and its end releases the old hooks.
        let Some(context) = self.controller.running() else { return };
        self.sync_again(syncs, &context);
        self.retire(old, context.epoch().clone());
    }

    /// Enqueues the parents, after the definition was replaced. A change that was judged by the old
    /// definition is in the caches by now.
    fn sync_again(&self, syncs: NextSyncs, context: &Context) {
        let (current, now) = (self.current.get(), Instant::now());
        let tick = |uid: &str| {
            let tick = current.next_tick(uid);
            let spread = resync::tick(SPREAD, uid, now, now);
            tick.into_iter().chain(spread.filter(|_| syncs == NextSyncs::Spread)).min()
        };
        let moved = self.parents.states.next_resyncs(tick);
        let at_once = match syncs {
            NextSyncs::WhenDue | NextSyncs::Spread => self.parents.hook.failing(),
            NextSyncs::AtOnce => {
                // Parents of the old definition may be neither selected nor finalized now.
                let known = moved.iter().map(|(request, _)| request.clone());
                let all: BTreeSet<_> = known.chain(concerned(&current, context)).collect();
                all.into_iter().collect()
            }
        };
        for (request, at) in moved {
            context.resync(request, at);
        }
        for request in at_once {
            context.enqueue_afresh(request);
        }
    }

    /// Releases the hooks of a replaced definition after its last sync. The epoch is not done
    /// before.
    fn retire(&self, old: Arc<ParentReconciler>, epoch: Epoch) {
        let (current, tracker) = (self.current.clone(), epoch.tracker().clone());
        let retired = async move {
            old.running.close();
            old.running.wait().await;
            for hook in current.retire(&old) {
                if let Err(error) = release(&*hook, &epoch).await {
                    warn_of(&epoch, &error);
                }
            }
        };
        drop(tracker.spawn_on(retired, &Handle::current()));
    }
}

/// Returns the cached objects that a definition selects, or that have its finalizer.
fn concerned(current: &ParentReconciler, context: &Context) -> Vec<Request> {
    let mut found = Vec::new();
    for (primary, parent) in current.definition.parents.iter().enumerate() {
        let store = context.store(&parent.type_ref);
        for object in store.iter().flat_map(|store| store.all()) {
            let header = object.header();
            let is_concerned = parent.selects(header) || current.finalizer.is_on(header);
            // An entry belongs to the cache of children of the same type.
            if object.is_whole() && is_concerned {
                found.push(Request::new(primary, object.key().clone()));
            }
        }
    }
    found
}
