//! Room 4: sources, queue and workers as one conditional runnable.
//!
//! A [`Controller`] describes itself: what it listens to, whom a change concerns, and what is to
//! be done then. Every epoch builds sources, queue and workers from that description, and takes
//! all of them down again before it is done.

mod board;
mod builder;
mod channel_source;
mod cluster;
mod context;
mod handler;
mod handover;
mod input;
mod instance;
mod kind_source;
mod messenger;
mod metrics;
mod outcome;
mod predicate;
mod queue;
mod reconciler;
mod run;
mod source;

pub use builder::{BuildError, Builder};
pub use channel_source::ChannelSource;
pub use cluster::{Cluster, ClusterOptions, ClusterRunnable};
pub use context::{Context, Lister};
pub use handler::{DeltaFn, Enqueue, Handler, MapFn};
pub use instance::Controller;
pub use metrics::ControllerMetrics;
pub use predicate::Predicate;
pub use queue::{Add, Backoff, Delayed, Item, LOW_PRIORITY, Limit, Queue, QueueOptions};
pub use reconciler::{Outcome, ReconcileError, Reconciler, Request};
pub use source::{ConditionalSource, SourceContext, SourceDone, SourceEnd, SourceStart};
