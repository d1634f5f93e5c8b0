//! Write limit: bounds the writes of one object for one parent, so that a hook whose response
//! differs on every call cannot cause a loop of writes.
//!
//! Each write of the object takes a token, and tokens refill with time. The burst is for work: many
//! children that change at once. Conflicts have tokens of their own, since each is retried at once.
//! Objects are counted by kind and name rather than uid, since an object that is recreated has
//! another uid each time.

use std::time::Duration;

use tokio::time::Instant;

use crate::{meta::json::digest::digest, token_bucket::TokenBucket};

/// Limit of writes. The burst admits four writes of one object, such as the status of the parent,
/// for each of a hundred children: a rollout writes it up to three times for each. The rate admits
/// the shortest resync period and an edit each second without end.
const WRITES: Limit = Limit { burst: 400, refill: Duration::from_secs(1) };
/// Limit of conflicts, each of which takes two tokens.
const CONFLICTS: Limit = Limit { burst: 20, refill: Duration::from_secs(3) };
/// Time without a write after which an object that was held back no longer counts as flapping.
const SETTLED: Duration = Duration::from_secs(30);

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
    // Time at which the bucket of writes is full.
    writes: Instant,
    // Time at which the bucket of conflicts is full.
    conflicts: Instant,
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

/// Size of a bucket and the time in which one of its tokens refills. The bucket itself is the time
/// at which it is full.
#[derive(Clone, Copy, Debug)]
struct Limit {
    burst: u32,
    refill: Duration,
}

impl Limit {
    fn bucket(self, full_at: Instant) -> TokenBucket {
        TokenBucket::new(self.burst, self.refill, full_at)
    }

    fn take(self, full_at: &mut Instant, now: Instant) {
        let mut bucket = self.bucket(*full_at);
        bucket.take(now);
        *full_at = bucket.full_at();
    }

    /// Returns whether a token is left.
    fn admits(self, full_at: Instant, now: Instant) -> bool {
        self.refilled(full_at, now) >= self.refill
    }

    /// Returns the time that it takes to refill the tokens that are left.
    fn refilled(self, full_at: Instant, now: Instant) -> Duration {
        (self.refill * self.burst).saturating_sub(self.bucket(full_at).until_full(now))
    }

    /// Returns the time until a token is left, or until the object has settled.
    fn again(self, full_at: Instant, now: Instant) -> Option<Duration> {
        let refilled = self.refilled(full_at, now);
        let awaited = if refilled < self.refill { self.refill } else { SETTLED };
        awaited.checked_sub(refilled).filter(|again| !again.is_zero())
    }
}

impl ObjectWrites {
    /// Returns the time until the next check of an object that is not settled.
    fn again(&self, now: Instant) -> Option<Duration> {
        let writes = WRITES.again(self.writes, now);
        writes.into_iter().chain(CONFLICTS.again(self.conflicts, now)).min()
    }
}

impl WriteLimit {
    /// Returns whether an object may be written now.
    pub(crate) fn may_write(&mut self, what: &str, now: Instant) -> bool {
        let Ok(at) = self.find(what) else { return true };
        let written = &mut self.written[at];
        let writes = WRITES.admits(written.writes, now);
        let is_admitted = writes && CONFLICTS.admits(written.conflicts, now);
        if !is_admitted {
            let new = || Box::new(HeldBackObject { what: what.to_owned(), by_conflicts: true });
            written.held_back.get_or_insert_with(new).by_conflicts &= writes;
        }
        is_admitted
    }

    /// Counts a conflict: another client wrote the object first. Counts as two writes, its and
    /// ours, since each of its writes is an event and so triggers the next attempt at once.
    pub(crate) fn conflicted(&mut self, what: &str, now: Instant) {
        let conflicts = &mut self.entry(what, now).conflicts;
        CONFLICTS.take(conflicts, now);
        CONFLICTS.take(conflicts, now);
    }

    /// Counts a write. Failed writes are not counted, conflicts excepted: they changed nothing, and
    /// the work queue backs off before the retry.
    pub(crate) fn wrote(&mut self, what: &str, now: Instant) {
        WRITES.take(&mut self.entry(what, now).writes, now);
    }

    /// Forgets the objects whose tokens have refilled; to be called by each sync.
    pub(crate) fn prune(&mut self, now: Instant) {
        self.written.retain(|written| written.writes.max(written.conflicts) > now);
        self.written.shrink_to_fit();
    }

    fn entry(&mut self, what: &str, now: Instant) -> &mut ObjectWrites {
        let at = self.find(what).unwrap_or_else(|at| {
            let what = digest(what);
            let new = ObjectWrites { what, writes: now, conflicts: now, held_back: None };
            self.written.insert(at, new);
            at
        });
        let written = &mut self.written[at];
        if written.again(now).is_none() {
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
            let again = written.again(now)?;
            written.held_back.as_ref().map(|held| (held, again))
        });
        let again = held.clone().map(|(_, again)| again).min()?;
        let by_conflicts = held.clone().all(|(held, _)| held.by_conflicts);
        let what = held.map(|(held, _)| &held.what).min()?.clone();
        Some(FlappingObject { what, again, by_conflicts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Writes if that is allowed; returns whether it was.
    fn write(write_limit: &mut WriteLimit, what: &str, now: Instant) -> bool {
        let may = write_limit.may_write(what, now);
        if may {
            write_limit.wrote(what, now);
        }
        may
    }

    /// Attempts this many writes at each of these seconds; compares the numbers of admitted writes.
    #[track_caller]
    fn check(wanted: &[(u32, usize)], expected: &[usize]) {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());

        let written: Vec<_> = wanted
            .iter()
            .map(|(second, times)| {
                let now = start + *second * SECOND;
                (0..*times).filter(|_| write(&mut write_limit, "ConfigMap ns/a", now)).count()
            })
            .collect();

        assert_eq!(written, expected, "{wanted:?}");
    }

    #[test]
    fn writes_of_one_object_are_bounded() {
        check(&[(0, 5)], &[5]);
        check(&[(0, 1000)], &[400]);
        check(&[(0, 1000), (1, 1000), (3, 1000)], &[400, 1, 2]);
        check(&[(0, 1000), (400, 1000), (460, 1000)], &[400, 400, 60]);
    }

    #[test]
    fn work_is_never_held_back() {
        for (name, interval, writes) in [
            ("three writes for each of a hundred children", Duration::from_millis(10), 300),
            (
                "two writes for each of a hundred children in a minute",
                Duration::from_millis(300),
                200,
            ),
            ("a resync or an edit each second for an hour", SECOND, 3600),
            ("three writes for each of sixty edits", SECOND / 3, 180),
        ] {
            let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
            let admitted = |number| write(&mut write_limit, "a", start + number * interval);

            assert!((0..writes).all(admitted), "{name}");
            assert_eq!(write_limit.flapping(start + writes * interval), None, "{name}");
        }
    }

    #[test]
    fn no_minute_sees_more_than_the_burst_and_sixty() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        let written: Vec<_> = (0..6000)
            .map(|number| start + number * SECOND / 10)
            .filter(|now| write(&mut write_limit, "a", *now))
            .collect();

        for from in &written {
            let within = written.iter().filter(|at| *at >= from && **at - *from < 60 * SECOND);
            assert!(within.count() <= 460);
        }
    }

    #[test]
    fn loop_of_ten_writes_a_second_is_flapping_within_a_minute() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        for number in 0..600 {
            write(&mut write_limit, "a", start + number * SECOND / 10);
        }

        assert_eq!(write_limit.flapping(start + 60 * SECOND).unwrap().what, "a");
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
        for _ in 0..400 {
            assert!(write(&mut write_limit, "a", start));
        }
        assert_eq!(write_limit.flapping(start), None, "nothing was held back");

        assert!(!write(&mut write_limit, "a", start));
        let expected = FlappingObject { what: "a".to_owned(), again: SECOND, by_conflicts: false };
        assert_eq!(write_limit.flapping(start), Some(expected));
        assert!(write(&mut write_limit, "a", start + SECOND));
        assert!(write_limit.flapping(start + SECOND).is_some(), "still, though it was written");

        assert_eq!(write_limit.flapping(start + 30 * SECOND).unwrap().again, SECOND);
        assert_eq!(write_limit.flapping(start + 31 * SECOND), None);
        assert!(write(&mut write_limit, "a", start + 31 * SECOND));
        assert_eq!(write_limit.flapping(start + 31 * SECOND), None);
    }

    #[test]
    fn conflicts_are_retried_ten_times_at_once_and_then_every_three_seconds() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        let attempts: Vec<_> = (0..600)
            .map(|number| start + number * SECOND / 10)
            .filter(|now| {
                let may = write_limit.may_write("a", *now);
                if may {
                    write_limit.conflicted("a", *now);
                }
                may
            })
            .collect();

        let at_once = attempts.iter().filter(|at| **at - start < 2 * SECOND).count();
        assert_eq!(at_once, 10);
        assert!(attempts[11..].windows(2).all(|pair| pair[1] - pair[0] >= 3 * SECOND));
        assert!(write_limit.flapping(start + 60 * SECOND).unwrap().by_conflicts);
    }

    #[test]
    fn idle_objects_are_forgotten_by_the_next_sync_and_the_others_are_small() {
        let (mut write_limit, start) = (WriteLimit::default(), Instant::now());
        for index in 0..100 {
            write(&mut write_limit, &index.to_string(), start);
        }
        write(&mut write_limit, "a", start + SECOND / 2);

        write_limit.prune(start + SECOND);

        assert_eq!((write_limit.written.len(), write_limit.written.capacity()), (1, 1));
        assert!(size_of::<ObjectWrites>() <= 48);
    }
}
