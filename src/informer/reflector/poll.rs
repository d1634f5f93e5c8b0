//! Polls of the reflector: lists in an interval, of a type that can be listed and not watched.
//!
//! An object without a resourceVersion is compared by its content, so that a list which finds no
//! change delivers none.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::sleep;

use super::Reflector;
use crate::{duration::LONGEST, informer::InformerProgress};

/// Shortest interval, which spares the API server.
const SHORTEST: Duration = Duration::from_millis(100);
/// Part of the interval by which each wait is shorter at random, so that informers spread their
/// lists.
const JITTER: f64 = 0.2;

impl Reflector {
    /// Returns whether a list follows the last one, in place of a watch.
    pub(super) fn polls(&self) -> bool {
        self.watch_refused || self.informer.polled.load(Ordering::Relaxed)
    }

    /// Waits after a complete list until the next one is due, or wanted by a subscriber that needs
    /// objects whole.
    pub(super) async fn poll(&mut self) {
        // A server that refused the watch is asked again after the list.
        self.watch_refused = false;
        self.delays.reset();
        self.publish(InformerProgress::Polled);
        let interval = self.options.poll_interval.clamp(SHORTEST, LONGEST);
        let due = self.fill.take_due(&self.informer, &self.lists);
        tokio::select! {
            () = sleep(interval.mul_f64(1.0 - JITTER * fastrand::f64())) => {
                self.resume_version = None;
            }
            slot = due => self.begin_fill(slot),
        }
    }
}

#[cfg(test)]
mod tests;
