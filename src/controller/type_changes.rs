//! Type changes: propagates them from the type registry to the informers of a cluster.
//!
//! An informer takes no response of the server as proof of absence, so it does not end by itself
//! when its type is gone. Only the type registry has that proof.

use std::{
    collections::{BTreeMap, HashMap},
    future::pending,
};

use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use tokio::{select, sync::watch};
use tracing::debug;

use crate::{
    discovery::{TypeRegistry, TypeState, TypeStatus},
    informer::InformerSet,
    kind::{TypeIdentity, TypeRef},
};

/// State of the type, by identity, that an informer was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypeChange {
    Served,
    /// The registry has proof neither of presence nor of absence.
    Unknown,
    Gone,
}

/// Wait for the next change of a type that has informers.
type Change = Abortable<BoxFuture<'static, (TypeIdentity, watch::Receiver<TypeStatus>)>>;

/// Type that has informers.
struct Followed {
    known: TypeChange,
    /// Handle that aborts the wait for the next change.
    wait: AbortHandle,
}

/// Propagates the changes of all types that have informers. Never ends by itself.
///
/// Changes of other types do not wake this future.
pub(super) async fn propagate(types: TypeRegistry, informers: InformerSet) {
    let mut informer_types = informers.types();
    let mut followed: HashMap<TypeIdentity, Followed> = HashMap::new();
    let mut changes = FuturesUnordered::new();
    loop {
        let current: BTreeMap<TypeIdentity, usize> = informer_types.borrow_and_update().clone();
        followed.retain(|identity, entry| {
            let has_informers = current.contains_key(identity);
            if !has_informers {
                entry.wait.abort();
            }
            has_informers
        });
        for (identity, _) in current {
            match followed.get(&identity).map(|entry| entry.known) {
                None => {
                    let status = types.subscribe(&at_its_version(&identity));
                    let (known, wait) = follow(&identity, status, &changes);
                    known.propagate(&identity, &informers);
                    followed.insert(identity, Followed { known, wait });
                }
                // Propagated again: another informer may have started in between.
                Some(TypeChange::Gone) => TypeChange::Gone.propagate(&identity, &informers),
                Some(TypeChange::Served | TypeChange::Unknown) => {}
            }
        }
        loop {
            select! {
                // Never closed: `informers` holds the sender.
                _changed = informer_types.changed() => break,
                Some(change) = changes.next() => {
                    // An aborted wait is of a type without informers.
                    let Ok((identity, status)) = change else { continue };
                    let Some(entry) = followed.get_mut(&identity) else { continue };
                    let (known, wait) = follow(&identity, status, &changes);
                    if std::mem::replace(entry, Followed { known, wait }).known != known {
                        known.propagate(&identity, &informers);
                    }
                }
            }
        }
    }
}

/// Returns the state of a type, and adds the wait for its next change to `changes`.
fn follow(
    identity: &TypeIdentity,
    mut status: watch::Receiver<TypeStatus>,
    changes: &FuturesUnordered<Change>,
) -> (TypeChange, AbortHandle) {
    let known = TypeChange::of(identity, &status.borrow_and_update());
    let (wait, registration) = AbortHandle::new_pair();
    let change = next(identity.clone(), status).boxed();
    changes.push(Abortable::new(change, registration));
    (known, wait)
}

/// Waits for the next change of a type.
async fn next(
    identity: TypeIdentity,
    mut status: watch::Receiver<TypeStatus>,
) -> (TypeIdentity, watch::Receiver<TypeStatus>) {
    // Never closed: the registry keeps the sender as long as there is a receiver.
    if status.changed().await.is_err() {
        pending::<()>().await;
    }
    (identity, status)
}

fn at_its_version(identity: &TypeIdentity) -> TypeRef {
    TypeRef::resource(&*identity.group, &*identity.version, &*identity.plural)
}

impl TypeChange {
    fn propagate(self, identity: &TypeIdentity, informers: &InformerSet) {
        match self {
            Self::Served => informers.type_served(identity),
            Self::Unknown => {}
            Self::Gone => {
                debug!(resource = %identity, "type is gone, its informers end");
                informers.type_gone(identity);
            }
        }
    }

    fn of(identity: &TypeIdentity, status: &TypeStatus) -> Self {
        let is_same = status.served.as_ref().is_some_and(|served| served.identity == *identity);
        match &status.state {
            TypeState::Served | TypeState::Terminating if is_same => Self::Served,
            TypeState::Unknown(_) => Self::Unknown,
            TypeState::Served
            | TypeState::Terminating
            | TypeState::Absent
            | TypeState::Installing(_)
            | TypeState::NotWatchable => Self::Gone,
        }
    }
}

#[cfg(test)]
mod tests;
