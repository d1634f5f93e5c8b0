//! Time of an operation of a work queue.

use tokio::time::Instant;

/// Time of an operation, read at its first use.
///
/// A read costs as much as the rest of an operation, and most operations of a queue without
/// metrics need no time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LazyNow(Option<Instant>);

impl LazyNow {
    pub(super) fn at(now: Instant) -> Self {
        Self(Some(now))
    }

    pub(super) fn now(&mut self) -> Instant {
        *self.0.get_or_insert_with(Instant::now)
    }
}
