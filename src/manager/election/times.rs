//! Times of an election, and the rules that they keep.

use std::time::Duration;

use crate::duration::LONGEST;

/// Factor by which retries are spread, as in client-go.
pub(super) const JITTER: f64 = 1.2;
/// Part of the time between renew deadline and expiry that a write may take, in fifths. The rest is
/// for the way to the server and for clocks that run at different rates.
const WRITE_FIFTHS: u32 = 4;

/// Times of an election. Semantics: `LeaderElectionConfig` of client-go
/// (`tools/leaderelection/leaderelection.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTimes {
    /// Time for which others leave a lease alone after they saw it change; 15 s. The lease records
    /// it in whole seconds, rounded up.
    pub lease_duration: Duration,
    /// Time after the last renewal at which the leadership of this replica ends; 10 s.
    pub renew_deadline: Duration,
    /// Time between renewals, and between attempts to acquire or renew; 2 s.
    pub retry_period: Duration,
}

/// Error in the times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionTimesError {
    /// Another replica could lead before the leadership of this one has ended.
    #[error("the lease duration ({lease:?}) must be longer than the renew deadline ({renew:?})")]
    LeaseTooShort {
        /// Lease duration.
        lease: Duration,
        /// Renew deadline.
        renew: Duration,
    },
    /// A single failed renewal would cost leadership.
    #[error(
        "the renew deadline ({renew:?}) must be longer than 1.2 times the retry period ({retry:?})"
    )]
    DeadlineTooShort {
        /// Renew deadline.
        renew: Duration,
        /// Retry period.
        retry: Duration,
    },
    /// The API server would be requested without a pause.
    #[error("the retry period must be longer than 0")]
    NoRetryPeriod,
    /// No lease lasts longer than a year.
    #[error("the lease duration ({0:?}) must not be longer than a year")]
    LeaseTooLong(Duration),
}

impl Default for ElectionTimes {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl ElectionTimes {
    /// Checks that lease duration > renew deadline > 1.2 × retry period > 0.
    pub(super) fn check(self) -> Result<Self, ElectionTimesError> {
        let Self { lease_duration: lease, renew_deadline: renew, retry_period: retry } = self;
        if retry.is_zero() {
            return Err(ElectionTimesError::NoRetryPeriod);
        }
        if lease > LONGEST {
            return Err(ElectionTimesError::LeaseTooLong(lease));
        }
        if lease <= renew {
            return Err(ElectionTimesError::LeaseTooShort { lease, renew });
        }
        if renew.as_secs_f64() <= retry.as_secs_f64() * JITTER {
            return Err(ElectionTimesError::DeadlineTooShort { renew, retry });
        }
        Ok(self)
    }

    /// Lease duration as the lease records it: whole seconds, rounded up.
    pub(super) fn recorded_seconds(&self) -> i64 {
        let part = i64::from(self.lease_duration.subsec_nanos() > 0);
        i64::try_from(self.lease_duration.as_secs()).unwrap_or(i64::MAX).saturating_add(part)
    }

    /// Longest time for one request about the lease.
    pub(super) fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// Longest time without an event of the lease for which a standby relies on its watch: twice the
    /// time between renewals.
    pub(super) fn longest_silence(&self) -> Duration {
        self.retry_period.saturating_mul(2)
    }

    /// Longest time for a write of an elected epoch. A write that was admitted just before the
    /// renew deadline ends before another replica may lead.
    pub(super) fn write_timeout(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline) * WRITE_FIFTHS / 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lease: u64, renew: u64, retry: u64) -> Result<ElectionTimes, ElectionTimesError> {
        let [lease_duration, renew_deadline, retry_period] =
            [lease, renew, retry].map(Duration::from_millis);
        ElectionTimes { lease_duration, renew_deadline, retry_period }.check()
    }

    #[test]
    fn lease_outlasts_the_renew_deadline_and_that_outlasts_a_spread_retry() {
        let usual = ElectionTimes::default();
        assert_eq!(usual.check(), Ok(usual));
        check(15_000, 10_000, 2000).unwrap();
        check(2500, 2401, 2000).unwrap();
        let error = |lease, renew, retry| check(lease, renew, retry).unwrap_err().to_string();
        assert_eq!(
            error(10_000, 10_000, 2000),
            "the lease duration (10s) must be longer than the renew deadline (10s)"
        );
        assert_eq!(
            error(15_000, 2400, 2000),
            "the renew deadline (2.4s) must be longer than 1.2 times the retry period (2s)"
        );
        assert_eq!(error(15_000, 10_000, 0), "the retry period must be longer than 0");
        assert!(error(u64::MAX, 10_000, 2000).ends_with("longer than a year"));
    }

    #[test]
    fn write_ends_between_the_renew_deadline_and_the_expiry() {
        assert_eq!(ElectionTimes::default().write_timeout(), Duration::from_secs(4));
    }

    #[test]
    fn recorded_duration_is_never_shorter_than_the_lease() {
        assert_eq!(check(1500, 1000, 100).unwrap().recorded_seconds(), 2);
        assert_eq!(ElectionTimes::default().recorded_seconds(), 15);
    }
}
