//! Resync of an input: its objects are delivered again in each period, in groups.
//!
//! Each period has one walk of the store in the order of keys. An object that is created behind the
//! walk waits for the next period.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::{
    duration::LONGEST,
    informer::{ObjectKey, Subscription},
};

/// Shortest period: a shorter one would keep a processor busy.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum number of groups of a period: few wake-ups, and few requests at once.
const GROUPS: u8 = 60;
/// Maximum number of objects that a step examines, under the informer's lock.
const EXAMINED: usize = 256;

/// Walks of the objects of an input, from its sync on.
#[derive(Debug)]
pub(super) struct Resync {
    ticks: Interval,
    /// Number of groups of a period.
    groups: u8,
    /// Number of the current group in its period, from 1; 0 before the first one.
    group: u8,
    /// True while the current group has objects that are to be examined.
    is_due: bool,
    /// Key of the object that was examined last in this period.
    last: Option<ObjectKey>,
    /// Number of objects that were examined in this period.
    examined: usize,
    /// True once all objects were examined in this period.
    is_complete: bool,
}

impl Resync {
    /// Begins the first period. A period has a group for each second, at most [`GROUPS`].
    pub(super) fn new(period: Duration) -> Self {
        let period = period.clamp(SHORTEST, LONGEST);
        let groups = u8::try_from(period.as_secs()).unwrap_or(GROUPS).clamp(1, GROUPS);
        let gap = period / u32::from(groups);
        let mut ticks = interval_at(Instant::now() + gap, gap);
        // A late group delays the next ones, so that none is skipped and they do not come at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, groups, group: 0, is_due: false, last: None, examined: 0, is_complete: false }
    }

    /// Waits until the next step is due. Cancel safe.
    pub(super) async fn due(&mut self) {
        while !self.is_due {
            self.ticks.tick().await;
            self.begin_group();
        }
    }

    fn begin_group(&mut self) {
        if self.group == self.groups {
            // The last group has completed the walk of its period.
            (self.group, self.last, self.examined, self.is_complete) = (0, None, 0, false);
        }
        self.group += 1;
        self.is_due = !self.is_complete;
    }

    /// Delivers the next objects of the current group again.
    pub(super) fn step(&mut self, subscription: &Subscription) {
        let len = subscription.resync_len();
        self.advance(len, |last, examine| subscription.resync(last, examine));
    }

    /// Examines the next objects of the current group, of `len` in the period.
    ///
    /// `resync` examines so many objects after a key. It returns the last one, `None` at the end.
    fn advance(
        &mut self,
        len: usize,
        resync: impl FnOnce(Option<&ObjectKey>, usize) -> Option<ObjectKey>,
    ) {
        let left = if self.group == self.groups {
            // All that are left: others may have been created in this period.
            usize::MAX
        } else {
            let until = len * usize::from(self.group) / usize::from(self.groups);
            until.saturating_sub(self.examined)
        };
        let examine = left.min(EXAMINED);
        if examine > 0 {
            self.last = resync(self.last.as_ref(), examine);
            self.examined += examine;
            self.is_complete = self.last.is_none();
        }
        self.is_due = examine < left && !self.is_complete;
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, ops::Bound};

    use super::*;

    fn key(number: usize) -> ObjectKey {
        ObjectKey::cluster(format!("{number:05}"))
    }

    /// Returns the objects of the next group that is due, of all these.
    async fn group(resync: &mut Resync, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        let mut group = Vec::new();
        resync.due().await;
        while resync.is_due {
            resync.advance(keys.len(), |last, examine| {
                assert!((1..=EXAMINED).contains(&examine));
                let from = last.map_or(Bound::Unbounded, Bound::Excluded);
                let mut rest = keys.range::<ObjectKey, _>((from, Bound::Unbounded));
                group.extend(rest.by_ref().take(examine).cloned());
                rest.next()?;
                group.last().cloned()
            });
        }
        group
    }

    #[tokio::test(start_paused = true)]
    async fn each_object_is_due_once_in_each_period_and_few_are_due_together() {
        for (period, groups) in [(0, 1), (1, 1), (10, 10), (36_000, 60)] {
            for len in [0, 1, 3, 61, 20_000] {
                let begin = Instant::now();
                let period = Duration::from_secs(period);
                let mut resync = Resync::new(period);
                let keys: BTreeSet<_> = (0..len).map(key).collect();

                for round in 1..=2 {
                    let mut due = Vec::new();
                    for _ in 0..groups {
                        let group = group(&mut resync, &keys).await;
                        assert!(group.len() <= len.div_ceil(groups), "{period:?} {len}");
                        due.extend(group);
                    }
                    assert!(due.iter().eq(&keys), "{period:?} {len}");
                    let late = begin.elapsed().abs_diff(period.max(SHORTEST) * round);
                    assert!(late < Duration::from_millis(200), "{period:?}: {late:?}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_come_and_go_neither_omit_nor_repeat_another() {
        let mut resync = Resync::new(Duration::from_secs(10));
        let begin = Instant::now();
        let stay: Vec<_> = (0..500).step_by(2).map(key).collect();
        let mut keys: BTreeSet<_> = stay.iter().cloned().collect();

        for round in 1..=6 {
            let mut due = Vec::new();
            let mut number = round;
            while !resync.is_complete || due.is_empty() {
                due.extend(group(&mut resync, &keys).await);
                // Odd numbers of all places: created in some rounds, deleted in others.
                for _ in 0..20 {
                    number = (number + 77) % 250;
                    let other = key(2 * number + 1);
                    if round % 4 < 2 {
                        keys.insert(other);
                    } else {
                        keys.remove(&other);
                    }
                }
            }
            let once: BTreeSet<_> = due.iter().collect();
            assert_eq!(once.len(), due.len());
            assert!(stay.iter().all(|key| once.contains(key)));
            let periods = u32::try_from(round).unwrap();
            assert!(begin.elapsed() <= Duration::from_secs(10) * periods + SHORTEST);
        }
    }
}
