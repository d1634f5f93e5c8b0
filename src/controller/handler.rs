//! Event handlers: which requests does a change concern?

use std::sync::Arc;

use super::Request;
use crate::{
    informer::{Delta, Object},
    kind::GroupKind,
};

/// Puts requests into the queue of the controller that a handler belongs to.
#[derive(Debug)]
pub struct Enqueue<'a> {
    requests: &'a mut Vec<Request>,
}

impl Enqueue<'_> {
    /// Adds a request.
    pub fn add(&mut self, request: Request) {
        self.requests.push(request);
    }
}

/// Maps one change to the requests it concerns; sees the object before and after.
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
    Map(Arc<dyn Fn(&Object) -> Vec<Request> + Send + Sync>),
    /// A function of the whole change.
    Delta(Arc<dyn Fn(&Delta, &mut Enqueue<'_>) + Send + Sync>),
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
