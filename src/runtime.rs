//! Controllers and parts of kube-rs, kept to the promises of an epoch.
//!
//! [`adopt`] runs a controller of `kube_runtime` as a conditional runnable. [`events`] turns the
//! subscription of a shared informer into a stream that kube's reflector and applier read.
//! [`object_predicate`] uses a predicate of kube in a [`Controller`](crate::controller::Controller)
//! of this crate, and [`object_condition`] a condition of kube. [`publish`] sends an Event that the
//! reconcile does not wait for, by the [`recorder`] that all reconciles of an epoch share.
//!
//! Three parts of [`kube_runtime`] keep the promises of an epoch as they are: `finalizer`,
//! `events::Recorder` and `wait`. Each sends its requests through the client that it is given, so
//! the fence of the epoch applies to them. Build them in the epoch: a `Recorder` of an earlier epoch
//! is refused every request. Keep one `Recorder` for all reconciles of the epoch, since it counts
//! repeated Events: [`recorder`] does, and an adopted controller keeps it in its context.
//!
//! `finalizer` adds the finalizer, and relies on the event of that change for the next reconcile.
//! With [`Predicate::generation`](crate::controller::Predicate::generation) the primary type needs
//! [`Predicate::finalizers`](crate::controller::Predicate::finalizers) too; in an adopted controller
//! `predicates::generation.combine(predicates::finalizers)` is the filter.

mod adopt;
mod adopted_object;
mod adopted_run;
mod condition;
mod event;
mod events;
mod predicate;
#[cfg(test)]
mod tests;

pub use adopt::{AdoptedController, adopt};
pub use condition::object_condition;
pub use event::{publish, recorder};
pub use events::events;
pub use predicate::object_predicate;

pub use kube_runtime;
