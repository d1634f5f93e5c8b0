//! Room 4: sources, queue and workers as one conditional runnable.
//!
//! A [`Controller`] is a description: its sources, the event handlers that map changes to requests,
//! and the reconciler. Every epoch builds sources, queue and workers from it, and has stopped all
//! of them before it is done.
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use pilotlight::{
//!     controller::{
//!         Cluster, ClusterOptions, Context, Controller, Outcome, ReconcileError, Reconciler, Request,
//!     },
//!     kind::TypeRef,
//!     manager::{Manager, ManagerOptions},
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! struct Widgets;
//!
//! impl Reconciler for Widgets {
//!     async fn reconcile(
//!         &self,
//!         request: Request,
//!         context: Context,
//!     ) -> Result<Outcome, ReconcileError> {
//!         let config = context.lister::<ConfigMap>()?.get(&request)?;
//!         println!("{request} has a config map: {}", config.is_some());
//!         Ok(Outcome::Done)
//!     }
//! }
//!
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
//! let controller = Controller::builder("widgets")
//!     .for_type(TypeRef::kind("example.com", "v1", "Widget"))
//!     .conditional()
//!     .owns::<ConfigMap>()
//!     .build(&cluster, Widgets)?;
//! let mut manager = Manager::new(ManagerOptions::default());
//! runnable.add_to(&mut manager, "cluster")?;
//! controller.add_to(&mut manager)?;
//! manager.run(CancellationToken::new()).await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod cluster;
mod context;
mod debug;
mod defaults;
mod event;
#[cfg(test)]
mod fixture;
mod foreign_cluster;
mod handler;
mod inputs;
mod instance;
mod lister;
mod metrics;
mod object_condition;
mod object_reconciler;
mod permission;
mod predicate;
mod queue;
mod reconciler;
mod request;
mod run;
mod slots;
mod source;
mod spec;
#[cfg(test)]
mod tests;
mod type_changes;
mod unconfirmed;
mod watch_error;
pub mod write;

pub use builder::{BuildError, Builder};
pub use cluster::{Cluster, ClusterOptions, ClusterRunnable};
pub use context::{Context, FetchError};
pub use defaults::{ControllerDefaults, TypeDefaults};
pub use event::Event;
pub use handler::{DeltaFn, Enqueue, GenericFn, Handler, MapFn};
pub use inputs::{InputError, InputHandle, InputState, Inputs};
pub use instance::Controller;
pub use lister::{CachedResource, DecodedObjects, Lister, ListerError, LookupError};
pub use metrics::ControllerMetrics;
pub use object_condition::ObjectCondition;
pub use object_reconciler::{ObjectReconciler, for_object, for_objects_of};
pub use permission::Permission;
pub use predicate::Predicate;
pub(crate) use queue::retry_gate::{Pace, RetryGate, Wait};
pub use queue::{
    Add, Backoff, FastSlow, Item, LOW_PRIORITY, Limit, MaxOf, Queue, QueueOptions, QueueRow,
    QueueRowState, RateLimiter, TokenBucketLimiter,
};
pub use reconciler::{Outcome, ReconcileError, Reconciler, RetryChoice, StdReconcileError};
pub use request::{KeyError, KeyReconciler, Request, for_key, for_keys_of};
#[cfg(feature = "runtime")]
pub(crate) use run::failure_report::FailureReport;
#[cfg(feature = "runtime")]
pub(crate) use run::outcome::is_forbidden;
pub(crate) use run::outcome::{ObjectGone, PostponedError};
pub use source::channel::ChannelSource;
pub use source::event::EventSource;
pub use source::function::FunctionSource;
pub use source::{ConditionalSource, SourceContext, SourceDone, SourceEnd, SourceStart};
pub use watch_error::WatchErrorHandler;
