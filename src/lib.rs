//! A conditional controller manager for Kubernetes: a controller of controllers.

#[cfg(panic = "abort")]
compile_error!(
    "Pilotlight keeps a panic to the controller, the reconcile or the task that it happens in, by \
     unwinding: remove `panic = \"abort\"` from the profile and from RUSTFLAGS"
);

pub mod controller;
pub mod discovery;
pub mod duration;
#[doc(hidden)]
#[cfg(all(feature = "meta", any(test, feature = "fuzzing")))]
pub mod fuzzing;
mod guard;
pub mod informer;
pub mod kind;
pub mod manager;
#[cfg(feature = "meta")]
pub mod meta;
mod owner_gauge;
pub mod redaction;
#[cfg(feature = "signals")]
pub mod signals;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tls")]
pub mod transport;
