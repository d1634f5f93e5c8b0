//! Room 4: sources, queue and workers as one conditional runnable.

mod builder;
mod cluster;
mod handler;
mod predicate;
mod reconciler;
mod source;

pub use builder::{BuildError, Builder, Controller};
pub use cluster::Cluster;
pub use handler::{Enqueue, Handler};
pub use predicate::Predicate;
pub use reconciler::{Context, Lister, Outcome, ReconcileError, Reconciler, Request};
pub use source::{ConditionalSource, SourceContext, SourceDone, SourceEnd, SourceStart};
