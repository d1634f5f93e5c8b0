//! What the manager has to say, as a source of requests: a controller whose status changed is
//! looked at again, so that its object's status follows.

use std::sync::Arc;

use futures::FutureExt;

use super::declared::Declared;
use crate::{
    controller::{ConditionalSource, Request, SourceContext, SourceEnd, SourceStart},
    manager::{ManagerHandle, Readiness, Snapshot, always},
};

/// Prefix of a declared controller's name in the manager and in metrics, as Metacontroller has it.
pub(crate) const PREFIX: &str = "CompositeController-";

/// Enqueues every name that is known at the start, then each whose controller changed.
pub(crate) struct News {
    pub(crate) manager: ManagerHandle,
    pub(crate) declared: Arc<Declared>,
}

impl ConditionalSource for News {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let mut snapshots = self.manager.watch();
        // An object that went away while nobody looked leaves no event behind.
        for name in self.declared.names() {
            context.enqueue(request(&name));
        }
        let done = async move {
            let mut before = Arc::<Snapshot>::default();
            loop {
                let now = snapshots.borrow_and_update().clone();
                for name in changed(&before, &now) {
                    context.enqueue(request(name));
                }
                before = now;
                tokio::select! {
                    biased;
                    () = context.stopping() => break,
                    changed = snapshots.changed() => {
                        if changed.is_err() {
                            break;
                        }
                    }
                }
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "the manager's status".to_owned()
    }
}

fn request(name: &str) -> Request {
    Request { namespace: None, name: name.into() }
}

/// Objects whose controller is another now than before.
fn changed<'a>(before: &'a Snapshot, now: &'a Snapshot) -> impl Iterator<Item = &'a str> {
    let new = now
        .iter()
        .filter(|(name, status)| before.get(*name).is_none_or(|old| !Arc::ptr_eq(old, status)));
    let gone = before.iter().filter(|(name, _)| !now.contains_key(*name));
    new.chain(gone).filter_map(|(name, _)| name.as_str().strip_prefix(PREFIX))
}
