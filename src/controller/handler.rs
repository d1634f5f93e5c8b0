//! Event handlers: which requests does a change concern?

use std::sync::Arc;

use super::Request;
use crate::{
    informer::{Delta, Object, ObjectKey},
    kind::{GroupKind, Scope},
};

/// Puts requests into the queue of the controller that a handler belongs to.
#[derive(Debug)]
pub struct Enqueue<'a> {
    requests: &'a mut Vec<Request>,
}

impl Enqueue<'_> {
    /// Adds a request. Added twice, it is queued once.
    pub fn add(&mut self, request: Request) {
        self.requests.push(request);
    }
}

/// Which requests an object concerns.
pub type MapFn = Arc<dyn Fn(&Object) -> Vec<Request> + Send + Sync>;

/// Which requests a change concerns.
pub type DeltaFn = Arc<dyn Fn(&Delta, &mut Enqueue<'_>) + Send + Sync>;

/// Maps one change to the requests it concerns; sees the object before and after.
///
/// It runs where events are handed on, so it must not block. If it panics, the change is dropped
/// and reported.
#[derive(Clone)]
pub enum Handler {
    /// The object itself.
    Object,
    /// Its owner of this kind, in any version: the controller alone, or every one.
    Owner {
        /// Kind of the owner.
        owner: GroupKind,
        /// Only the owner that is its controller.
        only_controller: bool,
    },
    /// A function of the object, asked for the old one and the new one.
    Map(MapFn),
    /// A function of the whole change.
    Delta(DeltaFn),
}

impl Handler {
    /// A function of the object, asked for the old one and the new one.
    pub fn map(map: impl Fn(&Object) -> Vec<Request> + Send + Sync + 'static) -> Self {
        Self::Map(Arc::new(map))
    }

    /// A function of the whole change.
    pub fn delta(map: impl Fn(&Delta, &mut Enqueue<'_>) + Send + Sync + 'static) -> Self {
        Self::Delta(Arc::new(map))
    }

    /// Appends the requests that a change concerns, some perhaps twice: the queue merges them.
    ///
    /// The old object counts too, or an owner that lost an object would never hear of it.
    pub(super) fn requests(
        &self,
        delta: &Delta,
        scope: impl Fn(&GroupKind) -> Option<Scope>,
        requests: &mut Vec<Request>,
    ) {
        let both = || delta.old.iter().chain(&delta.new);
        match self {
            Self::Object => requests.push(delta.key.clone()),
            Self::Owner { owner, only_controller } => {
                for object in both() {
                    let header = object.header();
                    let owners = header.owners.iter().filter(|reference| {
                        reference.group == owner.group
                            && reference.kind == owner.kind
                            && (reference.controller || !only_controller)
                    });
                    for reference in owners {
                        // A reference names no namespace: an owner in one is in the object's.
                        let namespace = match scope(owner) {
                            Some(Scope::Cluster) => None,
                            Some(Scope::Namespaced) | None => header.key.namespace.clone(),
                        };
                        let request = ObjectKey { namespace, name: Arc::clone(&reference.name) };
                        if requests.last() != Some(&request) {
                            requests.push(request);
                        }
                    }
                }
            }
            Self::Map(map) => {
                for object in both() {
                    requests.extend(map(object));
                }
            }
            Self::Delta(map) => map(delta, &mut Enqueue { requests }),
        }
    }
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Object => "Object",
            Self::Owner { .. } => "Owner",
            Self::Map(_) => "Map",
            Self::Delta(_) => "Delta",
        })
    }
}
