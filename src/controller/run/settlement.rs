//! Settlement: requeues or forgets a request after its reconcile, and reports the result.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::EpochRun;
use crate::{
    controller::{
        Request,
        queue::retry_gate::{Pace, RetryGate, Wait},
        queue::{Add, Item},
        run::outcome::NextReconcile,
        spec::Spec,
        unconfirmed::LONGEST_PAUSE,
    },
    manager::BoxError,
};

/// Retries of requests that the API server throttled, or could not be read for: ten by their own back-offs, then at most one
/// a second for each controller. No probes, since other clients keep the server informed.
const THROTTLED: Pace =
    Pace { gap: Duration::from_secs(1), burst: 10, probe: None, longest: Duration::MAX };

/// Pause between two comparisons of the caches, from which on the status reports that they are
/// behind.
const LONG_WAIT: Duration = Duration::from_secs(1);

impl EpochRun {
    /// Requeues or forgets a request after its reconcile.
    pub(super) fn requeue_or_forget(&mut self, item: Item<Request>, next: NextReconcile) {
        let Item { key, priority, failures: attempt } = item;
        let again = Add { priority, ..Add::default() };
        self.update_gate(&key, &next);
        match next {
            NextReconcile::Done => {
                self.queue.forget(&key);
                self.failures.succeeded(&key);
            }
            NextReconcile::Gone => {
                self.queue.forget(&key);
                self.failures.gone(&key);
            }
            NextReconcile::After(after) => {
                self.queue.forget(&key);
                self.queue.add_with(key.clone(), Add { after, ..again });
                self.failures.succeeded(&key);
            }
            NextReconcile::Postponed(after) => {
                self.queue.forget(&key);
                self.queue.add_with(key.clone(), Add { after, ..again });
            }
            NextReconcile::Again => {
                self.queue.add_with(key.clone(), Add { rate_limited: true, ..again });
                self.failures.succeeded(&key);
            }
            NextReconcile::With(add) => {
                if !add.counts() {
                    self.queue.forget(&key);
                }
                self.queue.add_with(key.clone(), add);
                self.failures.succeeded(&key);
            }
            NextReconcile::Retry(None) => {
                debug!(attempt, "conflict, reconciling again");
                self.queue.add_with(key.clone(), Add { rate_limited: true, ..again });
            }
            NextReconcile::Retry(Some(error)) => {
                self.retry(&key, attempt, &error, Add { rate_limited: true, ..again });
            }
            NextReconcile::RetryAfter(error, after) => {
                self.retry(&key, attempt, &error, Add { after, failed: true, ..again });
            }
            NextReconcile::Throttled(error, at_least) => {
                info!(%error, attempt, "request throttled by the API server");
                let backoff = self.spec.queue.backoff.delay(attempt);
                let wait = Wait { backoff, at_least };
                let after = delay(&mut self.throttled, &key, wait, &self.spec);
                self.queue.add_with(key.clone(), Add { after, failed: true, ..again });
                if !self.cancel.is_cancelled() {
                    self.failures.failed(&key, &error, false);
                }
            }
            NextReconcile::GiveUp(error) => {
                self.spec.series.errors.inc();
                self.spec.series.terminal.inc();
                error!(%error, attempt, "reconcile failed and is not retried");
                self.failures.failed(&key, &error, true);
            }
            NextReconcile::Wait(behind) => {
                debug!(error = %behind, "reconcile waits for the caches");
                let after = match behind.unanswered() {
                    Some(at_least) => {
                        let wait = Wait { backoff: behind.after, at_least };
                        delay(&mut self.unread, &key, wait, &self.spec)
                    }
                    None => behind.after,
                };
                let next = after.min(LONGEST_PAUSE);
                self.queue.add_with(key.clone(), Add { after: next, ..again });
                if after >= LONG_WAIT {
                    self.failures.failed(&key, &behind, false);
                }
            }
            NextReconcile::Interrupted => debug!("reconcile aborted"),
        }
        self.queue.done(&key);
    }

    /// Requeues a request after an error.
    fn retry(&mut self, key: &Request, attempt: u32, error: &BoxError, again: Add) {
        self.spec.series.errors.inc();
        self.queue.add_with(key.clone(), again);
        if self.cancel.is_cancelled() {
            debug!(%error, attempt, "reconcile failed while stopping");
        } else {
            warn!(%error, attempt, "reconcile failed");
            self.failures.failed(key, error, false);
        }
    }

    /// Requeues a request whose reconcile has not begun.
    pub(super) fn wait(&self, item: &Item<Request>, after: Duration) {
        let priority = item.priority;
        self.queue.add_with(item.key.clone(), Add { after, priority, ..Add::default() });
        self.queue.done(&item.key);
    }

    /// Records that the server could be read for a request, which may admit others.
    pub(super) fn admit_reads(&mut self, key: &Request) {
        for (next, after) in self.unread.answered(key, Instant::now()) {
            self.queue.add_with(next, Add { after, ..Add::default() });
        }
    }

    /// Records the result in the retry gate: a success may admit throttled requests.
    fn update_gate(&mut self, key: &Request, next: &NextReconcile) {
        match next {
            NextReconcile::Done
            | NextReconcile::After(_)
            | NextReconcile::Again
            | NextReconcile::With(_)
                if self.throttled.holds(key) =>
            {
                for (next, after) in self.throttled.answered(key, Instant::now()) {
                    self.queue.add_with(next, Add { after, ..Add::default() });
                }
            }
            NextReconcile::Gone
            | NextReconcile::Retry(_)
            | NextReconcile::RetryAfter(..)
            | NextReconcile::GiveUp(_)
            | NextReconcile::Postponed(_) => {
                self.throttled.forget(key);
            }
            NextReconcile::Done
            | NextReconcile::After(_)
            | NextReconcile::Again
            | NextReconcile::With(_)
            | NextReconcile::Throttled(..)
            | NextReconcile::Wait(_)
            | NextReconcile::Interrupted => {}
        }
    }
}

/// Records in a gate that the API server did not answer a request; returns the time until the retry.
fn delay(gate: &mut RetryGate<Request>, key: &Request, wait: Wait, spec: &Spec) -> Duration {
    let pace = Pace { longest: spec.queue.backoff.max, ..THROTTLED };
    gate.failed(key.clone(), wait, &pace, fastrand::f64(), Instant::now())
}
