//! Predicates: which changes are worth a look?

use std::sync::Arc;

use crate::informer::Delta;

/// Drops changes before they reach a handler.
#[derive(Clone)]
pub struct Predicate(Arc<dyn Fn(&Delta) -> bool + Send + Sync>);

impl Predicate {
    /// A predicate by function: `true` lets the change pass.
    pub fn new(pass: impl Fn(&Delta) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(pass))
    }

    /// Whether the change passes.
    pub fn passes(&self, delta: &Delta) -> bool {
        (self.0)(delta)
    }
}

impl std::fmt::Debug for Predicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Predicate")
    }
}
