//! Write limit: bounds the writes of one object for one parent, so that a hook whose response
//! differs on every call cannot cause a loop of writes.
//!
//! Each write without another cause than earlier writes of the controller takes a token. Tokens
//! refill with time. Other writes are work, and are not counted (`super::write_cause`). Conflicts
//! have tokens of their own and are always counted. Objects are counted by kind and name rather
//! than uid, since an object that is recreated has another uid each time.

use std::time::Duration;

use tokio::time::Instant;

use super::{digest::digest, write_cause::WriteCause};
use crate::token_bucket::TokenBucket;

/// Number of writes of one object without a pause.
const BURST: u32 = 20;
/// Time in which one token refills.
const REFILL: Duration = Duration::from_secs(3);
/// Number of tokens at which an object that was held back no longer counts as flapping: half a
/// minute without a write.
const SETTLED: f64 = 10.0;

/// Write limits of the objects of one parent.
#[derive(Debug, Default)]
pub(crate) struct WriteLimit {
    // Objects that lacked tokens at the last sync, or were written since, in the order of their
    // digests. A parent has one for each child after the first sync, so that they are small.
    written: Vec<ObjectWrites>,
}

#[derive(Debug)]
struct ObjectWrites {
    // Digest of kind and name.
    what: u64,
    // Time at which the bucket of writes that only own writes have caused is full.
    loop_bucket_full: Instant,
    // Time at which the bucket of conflicts is full.
    conflict_bucket_full: Instant,
    held_back: Option<Box<HeldBackObject>>,
}

/// Object that was held back, and counts as flapping until it has settled.
#[derive(Debug)]
struct HeldBackObject {
    // Kind and name.
    what: String,
    // True if only conflicts have delayed the object.
    by_conflicts: bool,
}

/// Object that is written again and again, each time with other content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlappingObject {
    /// Kind and name of the object.
    pub(crate) what: String,
    /// Time until the next check: the object may be written then, or no longer counts as flapping.
    pub(crate) again: Duration,
    /// True if only conflicts with another client delay the object.
    pub(crate) by_conflicts: bool,
}

/// Returns the bucket that is full at this time.
fn bucket(full_at: Instant) -> TokenBucket {
    TokenBucket::new(BURST, REFILL, full_at)
}

/// Takes a token of the bucket that is full at this time.
fn take(full_at: &mut Instant, now: Instant) {
    let mut bucket = bucket(*full_at);
    bucket.take(now);
    *full_at = bucket.full_at();
}

impl ObjectWrites {
    /// Returns the level of the emptier bucket.
    fn level(&self, now: Instant) -> f64 {
        bucket(self.loop_bucket_full.max(self.conflict_bucket_full)).level(now)
    }
}

impl WriteLimit {
    /// Returns whether an object may be written now.
    pub(crate) fn may_write(&mut self, what: &str, cause: WriteCause, now: Instant) -> bool {
        let Ok(at) = self.find(what) else { return true };
        let written = &mut self.written[at];
        let loops = cause == WriteCause::ExternalChange
            || bucket(written.loop_bucket_full).level(now) >= 1.0;
        let conflicts = bucket(written.conflict_bucket_full).level(now) >= 1.0;
        if !(loops && conflicts) {
            let new = || Box::new(HeldBackObject { what: what.to_owned(), by_conflicts: true });
            written.held_back.get_or_insert_with(new).by_conflicts &= loops;
        }
        loops && conflicts
    }

    /// Counts a conflict: another client wrote the object first. Counts as two writes, its and
    /// ours, since each of its writes is an event and so triggers the next attempt at once.
    pub(crate) fn conflicted(&mut self, what: &str, now: Instant) {
        let conflicts = &mut self.entry(what, now).conflict_bucket_full;
        take(conflicts, now);
        take(conflicts, now);
    }

    /// Counts a write, unless it is work. Failed writes are not counted, conflicts excepted: they
    /// changed nothing, and the work queue backs off before the retry.
    pub(crate) fn wrote(&mut self, what: &str, cause: WriteCause, now: Instant) {
        if cause == WriteCause::OwnWrites {
            take(&mut self.entry(what, now).loop_bucket_full, now);
        }
    }

    /// Forgets the objects whose tokens have refilled; to be called by each sync.
    pub(crate) fn prune(&mut self, now: Instant) {
        self.written.retain(|written| written.level(now) < f64::from(BURST));
        self.written.shrink_to_fit();
    }

    fn entry(&mut self, what: &str, now: Instant) -> &mut ObjectWrites {
        let at = self.find(what).unwrap_or_else(|at| {
            let what = digest(what);
            let new = ObjectWrites {
                what,
                loop_bucket_full: now,
                conflict_bucket_full: now,
                held_back: None,
            };
            self.written.insert(at, new);
            at
        });
        let written = &mut self.written[at];
        if written.level(now) >= SETTLED {
            written.held_back = None;
        }
        written
    }

    /// Returns the position of an object, or the one that it would have.
    fn find(&self, what: &str) -> Result<usize, usize> {
        let what = digest(what);
        self.written.binary_search_by_key(&what, |written| written.what)
    }

    /// Returns the first object that was held back and still counts as flapping, with the time
    /// until any of these objects is to be checked again.
    pub(crate) fn flapping(&self, now: Instant) -> Option<FlappingObject> {
        let held = self.written.iter().filter_map(|written| {
            let level = written.level(now);
            written.held_back.as_ref().filter(|_| level < SETTLED).map(|held| (held, level))
        });
        let again = |level: f64| {
            let missing = if level < 1.0 { 1.0 - level } else { SETTLED - level };
            // Rounding must not make the check too early.
            REFILL.mul_f64(missing) + Duration::from_millis(1)
        };
        let soonest = held.clone().map(|(_, level)| again(level)).min()?;
        let by_conflicts = held.clone().all(|(held, _)| held.by_conflicts);
        let what = held.map(|(held, _)| &held.what).min()?.clone();
        Some(FlappingObject { what, again: soonest, by_conflicts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes if that is allowed; returns whether it was.
    fn write(write_limit: &mut WriteLimit, what: &str, now: Instant) -> bool {
        let may = write_limit.may_write(what, WriteCause::OwnWrites, now);
        if may {
            write_limit.wrote(what, WriteCause::OwnWrites, now);
        }
        may
    }

    /// Attempts this many writes at each of these seconds; compares the numbers of admitted writes.
    #[track_caller]
    fn check(wanted: &[(u64, usize)], expected: &[usize]) {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());

        let written: Vec<_> = wanted
            .iter()
            .map(|(second, times)| {
                let now = start + Duration::from_secs(*second);
                (0..*times).filter(|_| write(&mut write_limit, "ConfigMap ns/a", now)).count()
            })
            .collect();

        assert_eq!(written, expected, "{wanted:?}");
    }

    #[test]
    fn writes_of_one_object_are_bounded() {
        check(&[(0, 5)], &[5]);
        check(&[(0, 1000)], &[20]);
        check(&[(0, 1000), (2, 1000), (3, 1000), (9, 1000)], &[20, 0, 1, 2]);
        check(&[(0, 1000), (60, 1000), (120, 1000)], &[20, 20, 20]);
        check(&[(0, 1), (5, 1), (10, 1), (15, 1)], &[1, 1, 1, 1]);
    }

    #[test]
    fn no_minute_sees_more_than_forty() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        let written: Vec<_> = (0..3000)
            .map(|tenth| start + Duration::from_millis(100 * tenth))
            .filter(|now| write(&mut write_limit, "a", *now))
            .collect();

        for from in &written {
            let minute = Duration::from_secs(60);
            let within = written.iter().filter(|at| *at >= from && **at - *from < minute);
            assert!(within.count() <= 40);
        }
    }

    #[test]
    fn each_object_has_its_own_limit() {
        let (mut write_limit, now) = (WriteLimit::default(), Instant::now());
        while write(&mut write_limit, "a", now) {}

        assert!(write(&mut write_limit, "b", now));
        assert_eq!(write_limit.flapping(now).unwrap().what, "a");
    }

    #[test]
    fn object_whose_write_was_delayed_is_flapping_until_it_has_settled() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..20 {
            assert!(write(&mut write_limit, "a", start));
        }
        assert_eq!(write_limit.flapping(start), None, "nothing was held back");

        assert!(!write(&mut write_limit, "a", start));
        let FlappingObject { what, again, by_conflicts } = write_limit.flapping(start).unwrap();
        assert_eq!((what.as_str(), again.as_secs(), by_conflicts), ("a", 3, false));
        assert!(write(&mut write_limit, "a", start + again));
        assert!(write_limit.flapping(start + again).is_some(), "still, though it was written");

        assert!(write_limit.flapping(after(30)).is_some());
        assert_eq!(write_limit.flapping(after(40)), None);
        assert!(write(&mut write_limit, "a", after(40)));
        assert_eq!(write_limit.flapping(after(40)), None);
    }

    #[test]
    fn work_is_neither_counted_nor_held_back() {
        let (mut write_limit, now) = (WriteLimit::default(), Instant::now());
        while write(&mut write_limit, "a", now) {}

        for _ in 0..100 {
            assert!(write_limit.may_write("a", WriteCause::ExternalChange, now));
            write_limit.wrote("b", WriteCause::ExternalChange, now);
        }

        assert!(write(&mut write_limit, "b", now));
        assert!(!write(&mut write_limit, "a", now), "a loop is still held back");
    }

    #[test]
    fn work_is_held_back_by_conflicts_alone() {
        let (mut write_limit, now) = (WriteLimit::default(), Instant::now());
        for _ in 0..10 {
            assert!(write_limit.may_write("a", WriteCause::ExternalChange, now));
            write_limit.conflicted("a", now);
        }

        assert!(!write_limit.may_write("a", WriteCause::ExternalChange, now));
        assert!(write_limit.flapping(now).unwrap().by_conflicts);
    }

    #[test]
    fn conflicts_are_retried_ten_times_at_once_and_then_every_three_seconds() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        let attempts: Vec<_> = (0..600)
            .map(|tenth| start + Duration::from_millis(100 * tenth))
            .filter(|now| {
                let may = write_limit.may_write("a", WriteCause::OwnWrites, *now);
                if may {
                    write_limit.conflicted("a", *now);
                }
                may
            })
            .collect();

        let at_once = attempts.iter().filter(|at| **at - start < Duration::from_secs(2)).count();
        assert_eq!(at_once, 10);
        assert!(attempts[11..].windows(2).all(|pair| pair[1] - pair[0] >= REFILL));
    }

    #[test]
    fn idle_objects_are_forgotten_by_the_next_sync_and_the_others_are_small() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        for index in 0..100 {
            write(&mut write_limit, &index.to_string(), start);
        }
        write(&mut write_limit, "a", start + Duration::from_secs(2));

        write_limit.prune(start + Duration::from_secs(3));

        assert_eq!((write_limit.written.len(), write_limit.written.capacity()), (1, 1));
        assert!(size_of::<ObjectWrites>() <= 48);
    }
}
