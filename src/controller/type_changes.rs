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
    discovery::{TypeChange, TypeRegistry, TypeStatus},
    informer::InformerSet,
    kind::{TypeIdentity, TypeRef},
};

/// Wait for the next change of a type that has informers.
type NextChange = Abortable<BoxFuture<'static, (TypeIdentity, watch::Receiver<TypeStatus>)>>;

/// Type that has informers.
struct FollowedType {
    change: TypeChange,
    /// Handle that aborts the wait for the next change.
    wait: AbortHandle,
}

/// Propagates the changes of all types that have informers. Never ends by itself.
///
/// Changes of other types do not wake this future.
pub(super) async fn propagate(types: TypeRegistry, informers: InformerSet) {
    let mut informer_types = informers.types();
    let mut followed: HashMap<TypeIdentity, FollowedType> = HashMap::new();
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
            match followed.get(&identity).map(|entry| entry.change) {
                None => {
                    let status = types.subscribe(&at_its_version(&identity));
                    let (change, wait) = follow(&identity, status, &changes, &informers);
                    apply(change, &identity, &informers);
                    followed.insert(identity, FollowedType { change, wait });
                }
                // Propagated again: another informer may have started in between.
                Some(change) if change.is_loss() => apply(change, &identity, &informers),
                Some(_) => {}
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
                    let (change, wait) = follow(&identity, status, &changes, &informers);
                    if std::mem::replace(entry, FollowedType { change, wait }).change != change {
                        apply(change, &identity, &informers);
                    }
                }
            }
        }
    }
}

/// Returns the change of a type, and adds the wait for its next change to `changes`. The way in which
/// the type is read is no change of it.
fn follow(
    identity: &TypeIdentity,
    mut status: watch::Receiver<TypeStatus>,
    changes: &FuturesUnordered<NextChange>,
    informers: &InformerSet,
) -> (TypeChange, AbortHandle) {
    let (change, served) = {
        let status = status.borrow_and_update();
        (status.change_since(identity), status.served.clone())
    };
    if let Some(served) = served.filter(|_| change == TypeChange::Unchanged) {
        informers.set_polled(identity, served.polled);
    }
    let (wait, registration) = AbortHandle::new_pair();
    let wait_for_next = next(identity.clone(), status).boxed();
    changes.push(Abortable::new(wait_for_next, registration));
    (change, wait)
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

/// Applies the change of a type to its informers.
fn apply(change: TypeChange, identity: &TypeIdentity, informers: &InformerSet) {
    match change {
        TypeChange::Unchanged => informers.type_served(identity),
        TypeChange::Unknown => {}
        // No request for this version is answered any more.
        TypeChange::OtherVersion
        | TypeChange::Replaced
        | TypeChange::Unavailable
        | TypeChange::Absent => {
            debug!(resource = %identity, ?change, "type is gone, its informers end");
            informers.type_gone(identity);
        }
    }
}

#[cfg(test)]
mod tests;
