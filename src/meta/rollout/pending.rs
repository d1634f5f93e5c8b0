//! Pending rollouts of one controller: the child that each waits for, and the time since which it
//! waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::plan::{ChildId, RolloutProgress, RolloutWait};
use crate::{
    controller::Request,
    meta::parent::health::{RolloutHealth, WaitingParent},
};

/// Time after which a wait is reported as an Event, since short waits are part of each rollout.
const REPORTED: Duration = Duration::from_secs(30);
/// Time after which a missing child of an older revision moves to the latest one: its revision may
/// be unable to create it.
const OVERDUE: Duration = Duration::from_secs(10);

/// Maximum number of parents whose waits are shown.
const SHOWN: usize = 5;

/// Function that is called with each changed sum.
pub(crate) type RolloutObserver = Box<dyn Fn(&RolloutHealth) + Send + Sync>;

/// Rollouts of the parents of one controller.
#[derive(Default)]
pub(crate) struct PendingRollouts {
    state: Mutex<RolloutStates>,
    // `None` while no child type is rolling. Locked after the state.
    changed: Mutex<Option<RolloutObserver>>,
}

#[derive(Default)]
struct RolloutStates {
    pending: BTreeMap<Request, PendingRollout>,
    // Keys of `pending` by the time since which they wait or move: all, and the reported ones.
    by_age: BTreeSet<(Instant, Request)>,
    reported: BTreeSet<(Instant, Request)>,
}

/// Rollout that is under way.
#[derive(Debug)]
struct PendingRollout {
    // Child that is awaited, and the reason; `None` while children move.
    wait: Option<RolloutWait>,
    // Time of the last move, or of the first sync that waited for this.
    since: Instant,
    at: Timestamp,
    is_reported: bool,
}

/// Result of recording the progress of a rollout.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RecordedProgress {
    /// Wait to report as an Event.
    pub(crate) report: Option<String>,
    /// True if a rollout of more than one sync is complete.
    pub(crate) is_completed: bool,
    /// Time until the next check of the wait.
    pub(crate) recheck: Option<Duration>,
}

impl PendingRollouts {
    /// Sets the observer, which is called after each change; `None` while no child type is rolling.
    /// The previous one gets an empty sum.
    pub(crate) fn report_to(&self, changed: Option<RolloutObserver>) {
        let mut state = self.state.lock();
        let is_empty = state.pending.is_empty();
        if changed.is_none() {
            *state = RolloutStates::default();
        }
        let old = mem::replace(&mut *self.changed.lock(), changed);
        if is_empty {
            return;
        }
        if let Some(old) = old {
            old(&RolloutHealth::default());
        }
        self.publish(&state);
    }

    /// Returns whether the controller has children that are updated one at a time.
    pub(crate) fn is_used(&self) -> bool {
        self.changed.lock().is_some()
    }

    /// Records the progress of a parent's rollout. A sync that ends after an edit from the last
    /// rolling method records nothing.
    pub(crate) fn record(&self, key: &Request, progress: &RolloutProgress) -> RecordedProgress {
        let wait = match progress {
            RolloutProgress::Complete => {
                let is_completed = self.remove(key);
                return RecordedProgress { is_completed, ..RecordedProgress::default() };
            }
            RolloutProgress::Updating(_) => None,
            RolloutProgress::Waiting(wait) => Some(wait.clone()),
        };
        let (mut state, now) = (self.state.lock(), Instant::now());
        // Under the lock of the state, with which the observer is removed.
        if !self.is_used() {
            return RecordedProgress::default();
        }
        let began =
            |wait| PendingRollout { wait, since: now, at: Timestamp::now(), is_reported: false };
        let known = state.remove(key);
        let pending = match known {
            Some(known) if continues(known.wait.as_ref(), wait.as_ref()) => {
                PendingRollout { wait, ..known }
            }
            Some(_) | None => began(wait),
        };
        let waited = now.duration_since(pending.since);
        let mut recorded = RecordedProgress::default();
        let pending = match &pending.wait {
            Some(wait) if waited >= REPORTED && !pending.is_reported => {
                recorded.report = Some(wait.to_string());
                PendingRollout { is_reported: true, ..pending }
            }
            Some(_) if !pending.is_reported => {
                let next = if waited < OVERDUE { OVERDUE } else { REPORTED };
                recorded.recheck = Some((next - waited).max(Duration::from_millis(1)));
                pending
            }
            Some(_) | None => pending,
        };
        state.insert(key.clone(), pending);
        self.publish(&state);
        recorded
    }

    /// Returns the child that has been missing for too long.
    pub(crate) fn overdue(&self, key: &Request) -> Option<ChildId> {
        let state = self.state.lock();
        let pending = state.pending.get(key).filter(|it| it.since.elapsed() >= OVERDUE)?;
        let wait = pending.wait.as_ref().filter(|wait| wait.is_missing())?;
        Some(wait.child.clone())
    }

    /// Forgets a parent that is gone, or that the controller no longer selects. Returns whether it
    /// had a rollout.
    pub(crate) fn remove(&self, key: &Request) -> bool {
        let mut state = self.state.lock();
        let was_pending = state.remove(key).is_some();
        if was_pending {
            self.publish(&state);
        }
        was_pending
    }

    /// Forgets all parents.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        *state = RolloutStates::default();
        self.publish(&state);
    }

    // The state stays locked, so that the last call of the observer has the latest sum.
    fn publish(&self, state: &RolloutStates) {
        if let Some(changed) = &*self.changed.lock() {
            changed(&state.health());
        }
    }
}

/// Returns whether the same child is awaited, whatever the text. The wait for a child that existed
/// and is missing now is another one: its deletion may have taken long, and its revision can create
/// it.
fn continues(known: Option<&RolloutWait>, now: Option<&RolloutWait>) -> bool {
    let (Some(known), Some(now)) = (known, now) else { return false };
    known.child == now.child && (known.is_missing() || !now.is_missing())
}

impl RolloutStates {
    fn insert(&mut self, key: Request, pending: PendingRollout) {
        let aged = (pending.since, key.clone());
        if pending.is_reported {
            self.reported.insert(aged.clone());
        }
        self.by_age.insert(aged);
        self.pending.insert(key, pending);
    }

    fn remove(&mut self, key: &Request) -> Option<PendingRollout> {
        let pending = self.pending.remove(key)?;
        let aged = (pending.since, key.clone());
        self.by_age.remove(&aged);
        self.reported.remove(&aged);
        Some(pending)
    }

    fn health(&self) -> RolloutHealth {
        // Short waits are part of each rollout.
        let longest = self.reported.iter().take(SHOWN).filter_map(|(_, parent)| {
            let pending = &self.pending[parent];
            let wait = pending.wait.as_ref()?.to_string();
            Some(WaitingParent { parent: parent.clone(), since: pending.at, wait })
        });
        let oldest = self.by_age.first().and_then(|(_, parent)| self.pending.get(parent));
        RolloutHealth {
            pending: self.pending.len(),
            waiting: self.reported.len(),
            since: oldest.map(|pending| pending.at),
            longest: longest.collect(),
        }
    }
}

impl fmt::Debug for PendingRollouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRollouts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::advance;

    use super::*;

    /// Rollouts of a controller with a rolling method.
    fn following() -> PendingRollouts {
        let rollouts = PendingRollouts::default();
        rollouts.report_to(Some(Box::new(|_| {})));
        rollouts
    }

    fn waiting(name: &str) -> RolloutProgress {
        RolloutProgress::Waiting(RolloutWait::missing(ChildId::new("", "ConfigMap", name)))
    }

    #[tokio::test(start_paused = true)]
    async fn long_wait_is_reported_once_and_each_new_one_anew() {
        let (rollouts, key) = (following(), Request::namespaced("ns", "p"));

        let first = rollouts.record(&key, &waiting("a"));
        assert_eq!((first.report, first.recheck), (None, Some(OVERDUE)));
        assert_eq!(rollouts.overdue(&key), None);
        advance(OVERDUE).await;
        assert_eq!(rollouts.record(&key, &waiting("a")).recheck, Some(REPORTED - OVERDUE));
        assert_eq!(rollouts.overdue(&key), Some(ChildId::new("", "ConfigMap", "a")));
        advance(REPORTED - OVERDUE).await;
        let late = rollouts.record(&key, &waiting("a"));
        assert_eq!(
            (late.report.as_deref(), late.recheck),
            (Some("missing child ConfigMap a"), None)
        );
        assert_eq!(rollouts.record(&key, &waiting("a")), RecordedProgress::default());
        assert_eq!(rollouts.record(&key, &waiting("b")).recheck, Some(OVERDUE));
    }

    #[tokio::test(start_paused = true)]
    async fn child_is_overdue_by_the_time_for_which_it_is_missing() {
        let (rollouts, key) = (following(), Request::namespaced("ns", "p"));
        let child = ChildId::new("", "ConfigMap", "a");
        let deleting = RolloutProgress::Waiting(RolloutWait::deleting(&child));

        rollouts.record(&key, &deleting);
        advance(2 * REPORTED).await;
        assert_eq!(rollouts.overdue(&key), None, "it exists");
        rollouts.record(&key, &waiting("a"));
        assert_eq!(rollouts.overdue(&key), None, "missing since now");
        advance(OVERDUE).await;

        assert_eq!(rollouts.overdue(&key), Some(child));
    }

    #[test]
    fn sync_that_ends_after_the_last_rolling_method_leaves_no_rollout() {
        let seen = Arc::new(Mutex::new(RolloutHealth::default()));
        let latest = Arc::clone(&seen);
        let rollouts = following();
        rollouts.report_to(None);

        let late = rollouts.record(&Request::namespaced("ns", "p"), &waiting("a"));
        rollouts.report_to(Some(Box::new(move |health| *latest.lock() = health.clone())));

        assert_eq!(late, RecordedProgress::default());
        assert_eq!(*seen.lock(), RolloutHealth::default());
    }

    #[tokio::test(start_paused = true)]
    async fn health_counts_the_rollouts_that_are_under_way() {
        let seen = Arc::new(Mutex::new(RolloutHealth::default()));
        let latest = Arc::clone(&seen);
        let rollouts = PendingRollouts::default();
        rollouts.report_to(Some(Box::new(move |health| *latest.lock() = health.clone())));
        let [one, two] = ["a", "b"].map(|name| Request::namespaced("ns", name));

        let moving = RolloutProgress::Updating(ChildId::new("", "ConfigMap", "a"));
        rollouts.record(&one, &moving);
        rollouts.record(&two, &waiting("x"));

        let health = seen.lock().clone();
        assert_eq!((health.pending, health.waiting, health.longest), (2, 0, Vec::new()));
        advance(REPORTED).await;
        rollouts.record(&two, &waiting("x"));
        let health = seen.lock().clone();
        assert_eq!((health.pending, health.waiting), (2, 1));
        let [found] = &health.longest[..] else { panic!("one parent waits: {health:?}") };
        assert_eq!((&found.parent, &*found.wait), (&two, "missing child ConfigMap x"));
        assert!(rollouts.record(&one, &RolloutProgress::Complete).is_completed);
        assert!(!rollouts.record(&one, &RolloutProgress::Complete).is_completed, "reported once");
        rollouts.clear();
        assert_eq!(*seen.lock(), RolloutHealth::default());
    }

    #[tokio::test(start_paused = true)]
    async fn parents_that_have_waited_longest_are_shown() {
        let seen = Arc::new(Mutex::new(RolloutHealth::default()));
        let latest = Arc::clone(&seen);
        let rollouts = PendingRollouts::default();
        rollouts.report_to(Some(Box::new(move |health| *latest.lock() = health.clone())));
        let parents = ["g", "f", "e", "d", "c", "b", "a"].map(|it| Request::namespaced("ns", it));
        for parent in &parents {
            rollouts.record(parent, &waiting("x"));
            advance(Duration::from_secs(1)).await;
        }

        advance(REPORTED).await;
        parents.iter().for_each(|parent| drop(rollouts.record(parent, &waiting("x"))));

        let health = seen.lock().clone();
        let shown: Vec<_> = health.longest.iter().map(|it| it.parent.clone()).collect();
        assert_eq!((health.waiting, &shown[..]), (7, &parents[..SHOWN]));
    }
}
