//! Clocks of tests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::clock::Clock;

/// Clock that a test sets.
#[derive(Debug, Default)]
pub(crate) struct ManualClock(Mutex<Duration>);

impl ManualClock {
    pub(crate) fn set(&self, now: Duration) {
        *self.0.lock() = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.0.lock()
    }
}

/// Clock of the test's runtime, which may be paused, plus the jumps of the test.
#[derive(Debug)]
pub(crate) struct RuntimeClock {
    start: Instant,
    jumped: Mutex<Duration>,
}

impl RuntimeClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), jumped: Mutex::default() }
    }

    /// Advances this clock alone, as a suspension of the machine does.
    pub(crate) fn jump(&self, by: Duration) {
        *self.jumped.lock() += by;
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Duration {
        self.start.elapsed() + *self.jumped.lock()
    }
}
