//! Candidate of an election: decides the next step on the lease. Functions without I/O.
//!
//! Semantics: `tryAcquireOrRenew` of client-go (`tools/leaderelection/leaderelection.go`). Three
//! differences. The renew deadline counts from the last renewal, not from the next attempt. A
//! deleted lease is respected until it would have expired. A holder is recognised by its identity
//! and the number of its term.

use std::{sync::Arc, time::Duration};

use super::{
    record::{Record, StoredLease},
    times::{ElectionTimes, JITTER},
};

/// Knowledge of this replica about the lease, and its leadership.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    identity: Arc<str>,
    times: ElectionTimes,
    seen: Option<ObservedLease>,
    held: Option<HeldTerm>,
    lost: Option<Loss>,
    /// Number of the last term that this replica acquired, or may have.
    own: Option<i64>,
    must_read: bool,
    conflicts: u32,
    read_after: Duration,
    write_after: Duration,
}

/// Last state of the lease.
#[derive(Clone, Debug)]
struct ObservedLease {
    /// `None` if there is no lease.
    lease: Option<StoredLease>,
    /// Time from which this replica may take it.
    free_at: Duration,
    /// Number of the next term.
    next_term: i64,
}

/// Leadership of this replica.
#[derive(Clone, Copy, Debug)]
struct HeldTerm {
    /// Time at which the last successful renewal was sent.
    since: Duration,
    term: i64,
}

/// Next step of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the lease.
    Read,
    /// Acquire or renew.
    Write(Box<LeaseWrite>),
    /// Wait until this time, unless the lease changes.
    Wait(Duration),
    /// This replica no longer leads.
    Lost(Loss),
}

/// Write of the lease, guarded by the version that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseWrite {
    pub(super) record: Record,
    /// State that is replaced; `None` creates the lease.
    pub(super) over: Option<StoredLease>,
}

/// Result of a write.
#[derive(Clone, Debug)]
pub(super) enum WriteResult {
    /// The server stored it.
    Stored(StoredLease),
    /// The lease is another than the one that was seen.
    Conflict,
    /// The write failed, or its outcome is unknown.
    Failed,
}

/// Cause of a lost lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// No renewal succeeded within the renew deadline.
    Deadline,
    /// The lease has another holder, or no holder.
    Taken(String),
}

impl Candidate {
    pub(super) fn new(identity: Arc<str>, times: ElectionTimes) -> Self {
        Self {
            identity,
            times,
            seen: None,
            held: None,
            lost: None,
            own: None,
            must_read: false,
            conflicts: 0,
            read_after: Duration::ZERO,
            write_after: Duration::ZERO,
        }
    }

    /// Time at which this replica stops leading unless it renews; `None` if it does not lead.
    pub(super) fn leads_until(&self) -> Option<Duration> {
        self.held.map(|held| held.since.saturating_add(self.times.renew_deadline))
    }

    /// Record of the lease, if one was seen and has not been deleted.
    pub(super) fn record(&self) -> Option<&Record> {
        Some(&self.seen.as_ref()?.lease.as_ref()?.record)
    }

    /// Version of the lease that was seen.
    pub(super) fn version(&self) -> Option<&str> {
        Some(&self.seen.as_ref()?.lease.as_ref()?.version)
    }

    /// Returns the next step. `watched` is true while changes of the lease arrive by themselves.
    pub(super) fn decide(&mut self, now: Duration, watched: bool) -> Step {
        if let Some(loss) = self.lost.take() {
            return Step::Lost(loss);
        }
        let deadline = self.leads_until();
        if deadline.is_some_and(|deadline| now >= deadline) {
            self.held = None;
            return Step::Lost(Loss::Deadline);
        }
        let latest = deadline.unwrap_or(Duration::MAX);
        let Some(seen) = self.seen.as_ref().filter(|_| !self.must_read) else {
            return if now >= self.read_after {
                Step::Read
            } else {
                self.wait(self.read_after, latest)
            };
        };
        let due = match self.held {
            Some(_) => self.write_after,
            None => seen.free_at.max(self.write_after),
        };
        if now >= due {
            return Step::Write(Box::new(self.write(seen)));
        }
        if watched || self.held.is_some() {
            return self.wait(due, latest);
        }
        if now >= self.read_after {
            Step::Read
        } else {
            self.wait(due.min(self.read_after), latest)
        }
    }

    fn wait(&self, until: Duration, latest: Duration) -> Step {
        Step::Wait(until.min(latest))
    }

    fn write(&self, seen: &ObservedLease) -> LeaseWrite {
        let seconds = self.times.recorded_seconds();
        let record = match (&self.held, &seen.lease) {
            (Some(_), Some(lease)) => lease.record.renewed(seconds),
            (Some(held), None) => Record::acquired_by(&self.identity, seconds, held.term),
            (None, _) => Record::acquired_by(&self.identity, seconds, seen.next_term),
        };
        LeaseWrite { record, over: seen.lease.clone() }
    }

    /// Returns the write that frees the lease, if this replica leads.
    pub(super) fn release(&self) -> Option<LeaseWrite> {
        self.held?;
        let lease = self.seen.as_ref()?.lease.clone()?;
        Some(LeaseWrite { record: lease.record.released(), over: Some(lease) })
    }

    /// Records the result of a read; `None` if there is no lease.
    pub(super) fn read(&mut self, lease: Option<StoredLease>, now: Duration, jitter: f64) {
        // Between two reads the lease may have been taken and deleted.
        let known = self.seen.as_ref().map(|seen| seen.lease.is_some());
        let gap = known.is_some_and(|was_there| was_there || self.must_read);
        self.must_read = false;
        self.read_after = now.saturating_add(self.pause(jitter));
        match lease {
            Some(lease) => self.observe(lease, true, now),
            None if gap => self.observe_absence(now, now.saturating_add(self.times.lease_duration)),
            None => self.observe_absence(now, now),
        }
    }

    /// Records a failed read.
    pub(super) fn read_failed(&mut self, now: Duration, jitter: f64) {
        self.read_after = now.saturating_add(self.pause(jitter));
    }

    /// Records an event of the watch. A state that is older than the one seen is ignored.
    pub(super) fn changed(&mut self, lease: StoredLease, deleted: bool, now: Duration) {
        let known = self.seen.as_ref().and_then(|seen| seen.lease.as_ref());
        if known.is_some_and(|known| lease.is_before(known)) {
            return;
        }
        if deleted { self.observe_absence(now, now) } else { self.observe(lease, false, now) }
    }

    /// Records the result of a write sent at `sent`.
    pub(super) fn written(
        &mut self,
        write: &LeaseWrite,
        result: WriteResult,
        sent: Duration,
        now: Duration,
        jitter: f64,
    ) {
        match result {
            WriteResult::Stored(lease) => {
                let term = write.record.transitions;
                self.held = Some(HeldTerm { since: sent, term });
                self.own = Some(term);
                self.conflicts = 0;
                self.write_after = sent.saturating_add(self.times.retry_period);
                self.observe(lease, false, now);
            }
            WriteResult::Conflict => {
                self.conflicts += 1;
                self.must_read = true;
                // The first is read at once, and the next wait, so that two writers without rules
                // cannot keep the server busy.
                self.read_after = match self.conflicts {
                    1 => now,
                    _ => now.saturating_add(self.times.retry_period),
                };
            }
            WriteResult::Failed => match self.held {
                Some(_) => {
                    let next = sent.saturating_add(self.times.retry_period);
                    self.write_after = next.max(now.saturating_add(self.times.retry_period / 4));
                }
                None => {
                    // The write may have been stored.
                    self.own = Some(write.record.transitions);
                    self.write_after = now.saturating_add(self.pause(jitter));
                }
            },
        }
    }

    /// Records that the lease was released.
    pub(super) fn released(&mut self) {
        self.held = None;
    }

    /// Records a state of the lease. After a gap, another version with the same record may have
    /// had other records before it.
    fn observe(&mut self, lease: StoredLease, gap: bool, now: Duration) {
        let record = &lease.record;
        if let Some(held) = self.held
            && !(*record.holder == *self.identity && record.transitions == held.term)
        {
            self.held = None;
            self.lost = Some(Loss::Taken(record.holder.clone()));
        }
        let next_term = record.transitions.saturating_add(1);
        let known = self.seen.as_ref().filter(|seen| {
            let is_same = |known: &StoredLease| {
                known.record == *record && (!gap || known.version == lease.version)
            };
            seen.lease.as_ref().is_some_and(is_same)
        });
        let free_at = match known {
            // The expiry counts from the change of the record.
            Some(seen) if !self.is_own(record) => seen.free_at,
            Some(_) | None if record.holder.is_empty() || self.is_own(record) => now,
            Some(_) | None => now.saturating_add(self.duration(record)),
        };
        self.seen = Some(ObservedLease { lease: Some(lease), free_at, next_term });
    }

    /// Records that there is no lease. It is respected until the last one would have expired, and
    /// until `free_at`.
    fn observe_absence(&mut self, now: Duration, free_at: Duration) {
        let before = self.seen.take();
        if self.held.is_some() {
            // Created again at once, before another replica sees a free lease.
            self.write_after = now;
        }
        self.seen = Some(ObservedLease {
            lease: None,
            free_at: before.as_ref().map_or(free_at, |seen| seen.free_at.max(free_at)),
            next_term: before.map_or(0, |seen| seen.next_term),
        });
    }

    /// Returns whether this replica wrote a record, though it may not know of the success.
    fn is_own(&self, record: &Record) -> bool {
        *record.holder == *self.identity && self.own == Some(record.transitions)
    }

    /// Time for which a record is respected.
    fn duration(&self, record: &Record) -> Duration {
        match u64::try_from(record.seconds) {
            Ok(seconds @ 1..) => Duration::from_secs(seconds),
            Ok(0) | Err(_) => self.times.lease_duration,
        }
    }

    /// Time between attempts, spread as by `wait.JitterUntil` of client-go.
    fn pause(&self, jitter: f64) -> Duration {
        self.times.retry_period.mul_f64(1.0 + JITTER * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
