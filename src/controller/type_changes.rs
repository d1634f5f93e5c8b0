//! Tells the informers of a cluster what becomes of their types.
//!
//! An informer takes no answer of the server for a proof, so it does not end by itself when its
//! type is gone, whoever subscribes to it. The registry has the proof.

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

/// What is known of the very type that an informer was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypeChange {
    Served,
    /// Nothing is proven.
    Unknown,
    Gone,
}

/// The next change of a type that has informers.
type Change = Abortable<BoxFuture<'static, (TypeIdentity, watch::Receiver<TypeStatus>)>>;

/// A type that has informers.
struct Followed {
    known: TypeChange,
    /// Ends the wait for its next change.
    wait: AbortHandle,
}

/// Follows the types of all informers, for as long as it is polled.
///
/// A change of the registry costs nothing unless it concerns one of these types.
pub(super) async fn propagate(types: TypeRegistry, informers: InformerSet) {
    let mut wanted = informers.types();
    let mut followed: HashMap<TypeIdentity, Followed> = HashMap::new();
    let mut changes = FuturesUnordered::new();
    loop {
        let there: BTreeMap<TypeIdentity, usize> = wanted.borrow_and_update().clone();
        followed.retain(|identity, of| {
            let is_there = there.contains_key(identity);
            if !is_there {
                of.wait.abort();
            }
            is_there
        });
        for (identity, _) in there {
            match followed.get(&identity).map(|of| of.known) {
                None => {
                    let status = types.subscribe(&at_its_version(&identity));
                    let (known, wait) = follow(&identity, status, &changes);
                    known.propagate(&identity, &informers);
                    followed.insert(identity, Followed { known, wait });
                }
                // Told again: another informer may have started in between.
                Some(TypeChange::Gone) => TypeChange::Gone.propagate(&identity, &informers),
                Some(TypeChange::Served | TypeChange::Unknown) => {}
            }
        }
        loop {
            select! {
                // The sender is in what this holds.
                _changed = wanted.changed() => break,
                Some(change) = changes.next() => {
                    // One that is aborted has no informers any more.
                    let Ok((identity, status)) = change else { continue };
                    let Some(of) = followed.get_mut(&identity) else { continue };
                    let (news, wait) = follow(&identity, status, &changes);
                    if std::mem::replace(of, Followed { known: news, wait }).known != news {
                        news.propagate(&identity, &informers);
                    }
                }
            }
        }
    }
}

/// Reads what is known of a type, and waits for its next change.
fn follow(
    identity: &TypeIdentity,
    mut status: watch::Receiver<TypeStatus>,
    changes: &FuturesUnordered<Change>,
) -> (TypeChange, AbortHandle) {
    let news = TypeChange::of(identity, &status.borrow_and_update());
    let (wait, registration) = AbortHandle::new_pair();
    let change = next(identity.clone(), status).boxed();
    changes.push(Abortable::new(change, registration));
    (news, wait)
}

/// Waits for the next change of a type.
async fn next(
    identity: TypeIdentity,
    mut status: watch::Receiver<TypeStatus>,
) -> (TypeIdentity, watch::Receiver<TypeStatus>) {
    // The registry keeps the sender for as long as there is a receiver.
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
