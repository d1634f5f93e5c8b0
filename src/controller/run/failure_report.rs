//! Failures of reconciles, as the status of a controller reports them.

use std::fmt;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{failure_streak::FailureStreak, last_error::LastError};
use crate::{controller::Request, manager::Epoch};

/// Last error and failure streak of an epoch, in its report.
#[derive(Debug)]
pub(crate) struct FailureReport {
    epoch: Epoch,
    last_error: LastError,
    streak: FailureStreak,
}

impl FailureReport {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self { epoch, last_error: LastError::default(), streak: FailureStreak::default() }
    }

    /// Records that a reconcile failed. The error of a `final_attempt` is shown at once.
    pub(crate) fn failed(&mut self, key: &Request, error: &dyn fmt::Display, final_attempt: bool) {
        let now = Instant::now();
        self.streak.failed(key, now);
        if self.last_error.failed(key, final_attempt, now) {
            let message = format!("{key}: {error}");
            self.epoch.report(|report| report.last_error = Some(message));
        }
    }

    /// Records that a reconcile succeeded: clears the error of its request, and ends the streak.
    pub(crate) fn succeeded(&mut self, key: &Request) {
        let was_reported = self.streak.succeeded();
        self.ended(key, was_reported);
    }

    /// Records that the object of a request is gone: clears its error, and ends the streak if no
    /// other request failed.
    pub(crate) fn gone(&mut self, key: &Request) {
        let was_reported = self.streak.gone(key);
        self.ended(key, was_reported);
    }

    /// Returns the time at which the streak is to be reported.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.streak.due()
    }

    /// Returns the requests that have failed since the last success, and the one whose error is shown,
    /// perhaps twice.
    #[cfg(feature = "runtime")]
    pub(crate) fn failed_requests(&self) -> impl Iterator<Item = &Request> {
        self.streak.requests().chain(self.last_error.request())
    }

    /// Reports the streak.
    pub(crate) fn report_streak(&mut self) {
        self.streak.report();
        warn!(controller = %self.epoch.controller(), "no reconcile has succeeded for a minute");
        self.epoch.report(|report| report.failing = true);
    }

    fn ended(&mut self, key: &Request, was_reported: bool) {
        if was_reported {
            info!("reconciles no longer fail");
            self.epoch.report(|report| report.failing = false);
        }
        if self.last_error.succeeded(key) {
            self.epoch.report(|report| report.last_error = None);
        }
    }
}
