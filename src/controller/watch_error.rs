//! Handler of the errors of a watch.

use std::{fmt, sync::Arc};

use crate::{
    guard::{self, GuardedDrop},
    manager::WatchState,
};

/// Handler of the errors of a watch, which is retried in any case. Called with the state in which
/// the error leaves the watch, and with the message that the status has.
///
/// [`Builder::on_watch_error`](super::Builder::on_watch_error) sets one for an input, and
/// [`TypeDefaults::on_watch_error`](super::TypeDefaults::on_watch_error) for the inputs of a type.
/// The source's task calls the handler, which must not block. A panic is reported.
///
/// Semantics: `cache.Options.DefaultWatchErrorHandler` of controller-runtime (`pkg/cache`).
#[derive(Clone)]
pub struct WatchErrorHandler(GuardedDrop<Arc<WatchErrorFn>>);

type WatchErrorFn = dyn Fn(WatchState, &str) + Send + Sync;

impl WatchErrorHandler {
    /// Returns a handler that calls a function.
    pub fn new(on_error: impl Fn(WatchState, &str) + Send + Sync + 'static) -> Self {
        Self(GuardedDrop::new(Arc::new(on_error)))
    }

    /// Calls the function; returns the message of its panic.
    pub(super) fn call(&self, state: WatchState, error: &str) -> Result<(), String> {
        guard::run(|| (self.0)(state, error))
    }
}

/// Handlers are equal if they are clones of one handler.
impl PartialEq for WatchErrorHandler {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for WatchErrorHandler {}

impl fmt::Debug for WatchErrorHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchErrorHandler")
    }
}
