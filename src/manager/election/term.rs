//! Term: the time for which this replica leads without interruption.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::clock::Clock;

/// Work that must end with the term.
pub(crate) trait TermWork: Send + Sync {
    /// Ends the work: no request of it is sent from now on. Called from the thread of the election.
    fn lease_lost(&self);
}

/// Term of this replica. It holds until its deadline, which each renewal moves.
pub(crate) struct Term {
    /// Counted from 1 in this process.
    number: u64,
    clock: Arc<dyn Clock>,
    /// Nanoseconds on the clock; 0 once the term is over.
    deadline: AtomicU64,
    write_timeout: Duration,
    dropped: Arc<DroppedWrites>,
    /// `None` once the term is over.
    members: Mutex<Option<Members>>,
}

/// Writes that were dropped without a response, in all terms of this process: the server may still
/// carry them out.
#[derive(Debug, Default)]
pub(super) struct DroppedWrites {
    /// Nanoseconds on the clock at which the last one was dropped; 0 without one.
    last: AtomicU64,
}

#[derive(Default)]
struct Members {
    work: Vec<Weak<dyn TermWork>>,
    /// Number of members at which those that have ended are forgotten.
    full: usize,
}

/// Leadership that an epoch needs before it may write.
#[derive(Clone, Debug)]
pub(crate) enum Leadership {
    /// The epoch runs on every replica.
    NotNeeded,
    /// This replica does not lead yet.
    Awaited,
    /// The epoch may write while the term holds.
    Held(Arc<Term>),
}

impl Leadership {
    /// Returns whether writes may be sent now, by the clock.
    pub(crate) fn allows_writes(&self) -> bool {
        match self {
            Self::NotNeeded => true,
            Self::Awaited => false,
            Self::Held(term) => term.holds(),
        }
    }

    /// Longest time of a write, if it is limited.
    pub(crate) fn write_timeout(&self) -> Option<Duration> {
        match self {
            Self::NotNeeded | Self::Awaited => None,
            Self::Held(term) => Some(term.write_timeout),
        }
    }
}

impl Term {
    pub(super) fn new(
        number: u64,
        clock: Arc<dyn Clock>,
        deadline: Duration,
        write_timeout: Duration,
        dropped: Arc<DroppedWrites>,
    ) -> Self {
        let members = Mutex::new(Some(Members::default()));
        let deadline = AtomicU64::new(nanos(deadline));
        Self { number, clock, deadline, write_timeout, dropped, members }
    }

    /// Returns whether the term holds, by the clock.
    pub(crate) fn holds(&self) -> bool {
        nanos(self.clock.now()) < self.deadline.load(Ordering::Acquire)
    }

    /// Moves the deadline, unless the term is over.
    pub(super) fn renew(&self, deadline: Duration) {
        let members = self.members.lock();
        if members.is_some() {
            self.deadline.store(nanos(deadline), Ordering::Release);
        }
    }

    /// Records that a write was dropped without a response: the server may still carry it out.
    pub(crate) fn write_dropped(&self) {
        self.dropped.last.fetch_max(nanos(self.clock.now()), Ordering::AcqRel);
    }

    /// Adds work that ends with the term; it ends now if the term is over.
    pub(crate) fn join(&self, work: &Arc<impl TermWork + 'static>) {
        let mut members = self.members.lock();
        if let Some(members) = &mut *members {
            if members.work.len() >= members.full {
                members.work.retain(|work| work.strong_count() > 0);
                members.full = 2 * members.work.len() + 16;
            }
            let work: Weak<dyn TermWork> = Arc::downgrade(&(Arc::clone(work) as Arc<dyn TermWork>));
            members.work.push(work);
            return;
        }
        drop(members);
        work.lease_lost();
    }

    /// Ends the term and its work.
    pub(in crate::manager) fn end(&self) {
        let members = self.members.lock().take();
        self.deadline.store(0, Ordering::Release);
        for work in members.into_iter().flat_map(|members| members.work) {
            if let Some(work) = work.upgrade() {
                work.lease_lost();
            }
        }
    }
}

impl DroppedWrites {
    /// Returns the time until the server has abandoned every write that was dropped.
    pub(super) fn unsettled(&self, now: Duration, write_timeout: Duration) -> Duration {
        match self.last.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            last => Duration::from_nanos(last).saturating_add(write_timeout).saturating_sub(now),
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("number", &self.number).finish_non_exhaustive()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::{super::fixture::ManualClock, *};

    #[derive(Default)]
    struct Work(AtomicUsize);

    impl TermWork for Work {
        fn lease_lost(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn term(clock: &Arc<ManualClock>) -> Term {
        let dropped = Arc::default();
        Term::new(1, clock.clone(), Duration::from_secs(10), Duration::from_secs(4), dropped)
    }

    #[test]
    fn term_holds_until_its_deadline_by_the_clock_and_a_renewal_moves_it() {
        let clock = Arc::new(ManualClock::default());
        let term = term(&clock);
        clock.set(Duration::from_millis(9999));
        assert!(term.holds());
        term.renew(Duration::from_secs(12));
        clock.set(Duration::from_secs(11));
        assert!(term.holds());
        clock.set(Duration::from_secs(12));
        assert!(!term.holds());
        clock.set(Duration::MAX);
        assert!(!term.holds(), "a clock that cannot be read");
    }

    #[test]
    fn end_of_a_term_ends_its_work_once_and_no_renewal_revives_it() {
        let clock = Arc::new(ManualClock::default());
        let term = term(&clock);
        let (early, late) = (Arc::new(Work::default()), Arc::new(Work::default()));
        term.join(&early);

        term.end();
        term.end();
        term.renew(Duration::from_secs(100));
        term.join(&late);

        assert!(!term.holds());
        assert_eq!(early.0.load(Ordering::Relaxed), 1);
        assert_eq!(late.0.load(Ordering::Relaxed), 1, "joined after the end");
    }

    #[test]
    fn work_that_has_ended_is_forgotten() {
        let clock = Arc::new(ManualClock::default());
        let term = term(&clock);
        for _ in 0..1000 {
            term.join(&Arc::new(Work::default()));
        }

        assert!(term.members.lock().as_ref().unwrap().work.len() <= 17);
    }
}
