//! Resync of an input: its objects are delivered again in each period, in groups.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::{duration::LONGEST, informer::ObjectKey};

/// Shortest period: a shorter one would keep a processor busy.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum number of groups of a period. Each walks the keys of all objects once.
const GROUPS: u32 = 60;

/// Due times of the groups, from the sync of the input on.
#[derive(Debug)]
pub(super) struct Resync {
    ticks: Interval,
    next: ResyncGroup,
}

/// Objects that are due together: those whose hash leaves this remainder.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResyncGroup {
    remainder: u32,
    groups: u32,
}

impl Resync {
    /// Begins the first period. A period has a group for each second, at most [`GROUPS`].
    pub(super) fn new(period: Duration) -> Self {
        let period = period.clamp(SHORTEST, LONGEST);
        let groups = u32::try_from(period.as_secs()).unwrap_or(GROUPS).clamp(1, GROUPS);
        let gap = period / groups;
        let mut ticks = interval_at(Instant::now() + gap, gap);
        // A late group delays the next ones, so that none is skipped and they do not come at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, next: ResyncGroup { remainder: 0, groups } }
    }

    /// Waits until the next group is due. Cancel safe.
    pub(super) async fn due(&mut self) -> ResyncGroup {
        self.ticks.tick().await;
        let due = self.next;
        self.next.remainder = (due.remainder + 1) % due.groups;
        due
    }
}

impl ResyncGroup {
    pub(super) fn has(self, key: &ObjectKey) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish() % u64::from(self.groups) == u64::from(self.remainder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_object_is_due_once_in_each_period_and_few_are_due_together() {
        for (period, groups) in [(0, 1), (1, 1), (10, 10), (36_000, 60)] {
            let begin = Instant::now();
            let period = Duration::from_secs(period);
            let mut resync = Resync::new(period);
            let keys: Vec<_> = (0..600).map(|name| ObjectKey::cluster(name.to_string())).collect();

            for round in 1..=2 {
                let mut due = Vec::new();
                for _ in 0..groups {
                    let group = resync.due().await;
                    let of_group = keys.iter().filter(|key| group.has(key));
                    let before = due.len();
                    due.extend(of_group);
                    assert!(groups == 1 || due.len() - before < 600 / 3, "{period:?}");
                }
                due.sort();
                due.dedup();
                assert_eq!(due.len(), 600, "{period:?}");
                let late = begin.elapsed().abs_diff(period.max(SHORTEST) * round);
                assert!(late < Duration::from_millis(200), "{period:?}: {late:?}");
            }
        }
    }
}
