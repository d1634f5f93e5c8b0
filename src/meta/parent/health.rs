//! Health of the hooks of one controller: the parents whose last sync failed, and the retries while
//! a hook is down.
//!
//! The sum over all parents becomes the condition `HooksHealthy` of the controller. While a hook is
//! down, one retry gate paces the retries of all its parents, since their own back-offs would call
//! it too often in sum.

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};

use super::contested::{ContestedObjects, ContestedSum};
use crate::{
    controller::{Backoff, Pace, Request, RetryGate, Wait},
    meta::hooks::rule::HookKind,
};

/// Pace of retries while a hook is down: ten at once, then one a second for all parents together,
/// and at least one in ten seconds. A parent waits at most 1000 s.
const DOWN: Pace = Pace {
    gap: Duration::from_secs(1),
    burst: 10,
    probe: Some(Duration::from_secs(10)),
    longest: Duration::from_secs(1000),
};

/// Health of the hooks of one controller.
#[derive(Debug, Default)]
pub(crate) struct HookHealth {
    state: Mutex<HookHealthState>,
    health: watch::Sender<Health>,
    changed: OnChange,
}

/// Callback for each change of the health.
struct OnChange(Box<dyn Fn() + Send + Sync>);

#[derive(Debug, Default)]
struct HookHealthState {
    // Failures by hook and parent. A parent has at most one: that of its last sync.
    failing: BTreeMap<Option<HookKind>, BTreeMap<Request, Failure>>,
    contested: ContestedObjects,
    // Retry gate of each hook. It holds the parents for which the hook was down at its last call.
    gates: BTreeMap<HookKind, RetryGate<Request>>,
}

/// Failure of the last sync of one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Hook that failed; `None` if all hooks responded, and a write failed or does not last.
    pub(crate) hook: Option<HookKind>,
    /// Reason in CamelCase, as in a condition.
    pub(crate) reason: &'static str,
    /// Message, as in a condition.
    pub(crate) message: String,
}

/// Failures of one hook, summed over all parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureSum {
    /// Number of parents whose last sync failed by this hook.
    pub(crate) count: usize,
    /// First of these parents by name, with its failure.
    pub(crate) example: (Request, Failure),
}

/// Health of the hooks, summed over all parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// True once a response of a hook was usable in this epoch.
    pub(crate) proven: bool,
    /// Failures by hook: customize, finalize, sync, and last those of no hook.
    pub(crate) failing: Vec<FailureSum>,
    /// Rollouts that are under way.
    pub(crate) rollouts: RolloutHealth,
    /// Desired objects of parents that other controllers own.
    pub(crate) contested: ContestedSum,
}

/// Pending rollouts, summed over all parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RolloutHealth {
    /// Number of parents whose rollout is under way.
    pub(crate) pending: usize,
    /// Number of them that have waited for a child for long.
    pub(crate) waiting: usize,
    /// Time of the last progress of the parent that has waited longest.
    pub(crate) since: Option<Timestamp>,
    /// The parents that have waited longest, five at most.
    pub(crate) longest: Vec<WaitingParent>,
}

/// Parent that has waited for a child for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingParent {
    /// The parent.
    pub(crate) parent: Request,
    /// Time since which it waits.
    pub(crate) since: Timestamp,
    /// Text of its wait.
    pub(crate) wait: String,
}

impl HookHealth {
    /// Returns the health before any sync. `changed` is called after each change and must not
    /// block.
    pub(crate) fn new(changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self { changed: OnChange(Box::new(changed)), ..Self::default() }
    }

    /// Returns the current health, and each later change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Records that a sync succeeded: the hooks responded, and the writes followed.
    pub(crate) fn succeeded(&self, key: &Request) {
        let mut state = self.lock();
        if state.end_failure(key).is_some() || !self.health.borrow().proven {
            self.publish(&state, true);
        }
    }

    /// Records that the hooks responded to a sync. A failure of no hook stays until the writes
    /// succeed.
    pub(crate) fn answered(&self, key: &Request) {
        let mut state = self.lock();
        let of_hooks = state.failing.iter_mut().filter(|(hook, _)| hook.is_some());
        let ended = of_hooks.filter_map(|(_, failing)| failing.remove(key)).count();
        if ended > 0 {
            self.publish(&state, true);
        }
    }

    /// Records that the sync of a parent failed. Returns whether its failure differs from the one
    /// before.
    pub(crate) fn failed(&self, key: &Request, failure: Failure) -> bool {
        let mut state = self.lock();
        let new = state.end_failure(key).as_ref() != Some(&failure);
        state.failing.entry(failure.hook).or_default().insert(key.clone(), failure);
        self.publish(&state, false);
        new
    }

    /// Adds a parent to the retry gate of a hook, because the hook was down when it was called.
    /// `failures` is the number of failed syncs before. Returns the time until the retry.
    pub(crate) fn wait(&self, kind: HookKind, key: &Request, failures: u32) -> Duration {
        let wait = Wait { backoff: Backoff::default().delay(failures), at_least: Duration::ZERO };
        let (spread, now) = (fastrand::f64(), Instant::now());
        let mut state = self.lock();
        state.gates.entry(kind).or_default().failed(key.clone(), wait, &DOWN, spread, now)
    }

    /// Removes a parent from the retry gates, since its sync called no hook or failed although the
    /// hook is not down.
    pub(crate) fn stop_waiting(&self, key: &Request) {
        self.lock().leave_gates(key);
    }

    /// Records that a hook responded for a parent. Returns other parents that waited for this hook
    /// and are to be synced at once.
    pub(crate) fn responded(&self, kind: HookKind, key: &Request) -> Vec<Request> {
        // The remaining wait of each is zero, since `wait` sets no minimum.
        let mut state = self.lock();
        let next = state.gates.get_mut(&kind).map(|gate| gate.answered(key, Instant::now()));
        next.into_iter().flatten().map(|(key, _)| key).collect()
    }

    /// Returns the parents whose last sync failed.
    pub(crate) fn failing(&self) -> Vec<Request> {
        self.lock().failing.values().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &Request) {
        let mut state = self.lock();
        state.leave_gates(key);
        let was_contested = state.contested.set(key, Vec::new());
        if state.end_failure(key).is_some() || was_contested {
            self.publish(&state, false);
        }
    }

    /// Forgets all parents at the end of an epoch.
    pub(crate) fn clear(&self) {
        *self.lock() = HookHealthState::default();
        self.health.send_replace(Health::default());
        (self.changed.0)();
    }

    /// Records the desired objects of a parent that other controllers own.
    pub(crate) fn contested(&self, key: &Request, objects: Vec<String>) {
        let mut state = self.lock();
        if state.contested.set(key, objects) {
            self.publish(&state, false);
        }
    }

    /// Publishes the rollouts that are under way.
    pub(crate) fn rolled(&self, rollouts: &RolloutHealth) {
        let changed = self.health.send_if_modified(|health| {
            let changed = health.rollouts != *rollouts;
            health.rollouts = rollouts.clone();
            changed
        });
        if changed {
            (self.changed.0)();
        }
    }

    fn publish(&self, state: &HookHealthState, proven: bool) {
        let changed = self.health.send_if_modified(|health| {
            let now = Health {
                proven: proven || health.proven,
                failing: state.failing.values().rev().filter_map(FailureSum::of).collect(),
                rollouts: health.rollouts.clone(),
                contested: state.contested.sum(),
            };
            let changed = *health != now;
            *health = now;
            changed
        });
        if changed {
            (self.changed.0)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HookHealthState> {
        self.state.lock()
    }
}

impl Failure {
    /// Returns the message with the name of the hook, unless that is the sync hook.
    pub(crate) fn text(&self) -> String {
        match self.hook {
            None | Some(HookKind::Sync) => self.message.clone(),
            Some(hook @ (HookKind::Finalize | HookKind::Customize)) => {
                format!("{}: {}", hook.word(), self.message)
            }
        }
    }
}

impl FailureSum {
    fn of(failing: &BTreeMap<Request, Failure>) -> Option<Self> {
        let (key, failure) = failing.first_key_value()?;
        Some(Self { count: failing.len(), example: (key.clone(), failure.clone()) })
    }
}

impl HookHealthState {
    /// Removes the failure of a parent.
    fn end_failure(&mut self, key: &Request) -> Option<Failure> {
        self.failing.values_mut().find_map(|failing| failing.remove(key))
    }

    fn leave_gates(&mut self, key: &Request) {
        self.gates.values_mut().for_each(|gate| gate.forget(key));
    }
}

impl Default for OnChange {
    fn default() -> Self {
        Self(Box::new(|| {}))
    }
}

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnChange")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout() -> Failure {
        of_hook(Some(HookKind::Sync))
    }

    fn of_hook(hook: Option<HookKind>) -> Failure {
        Failure { hook, reason: "HookTimeout", message: "late".to_owned() }
    }

    /// Hooks that fail, with the number of parents and the first one.
    fn failing(health: &HookHealth) -> Vec<(Option<HookKind>, usize, String)> {
        let sums = health.subscribe().borrow().failing.clone();
        let row = |FailureSum { count, example: (parent, failure) }| {
            (failure.hook, count, parent.to_string())
        };
        sums.into_iter().map(row).collect()
    }

    #[test]
    fn health_is_the_sum_of_the_parents() {
        let (hook, key) = (HookHealth::default(), Request::namespaced("ns", "a"));
        let health = hook.subscribe();

        assert!(hook.failed(&key, timeout()));
        assert!(!hook.failed(&key, timeout()), "the same failure");
        assert_eq!(failing(&hook), [(Some(HookKind::Sync), 1, "ns/a".to_owned())]);
        assert!(!health.borrow().proven);

        hook.succeeded(&key);
        assert_eq!(*health.borrow(), Health { proven: true, ..Health::default() });
    }

    #[test]
    fn failures_are_summed_by_hook_and_a_parent_has_that_of_its_last_sync() {
        let hooks = HookHealth::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| Request::namespaced("ns", name));
        let (sync, customize) = (Some(HookKind::Sync), Some(HookKind::Customize));
        let row = |hook, count, parent: &Request| (hook, count, parent.to_string());

        hooks.failed(&b, of_hook(sync));
        hooks.failed(&c, of_hook(sync));
        hooks.failed(&a, of_hook(customize));
        assert_eq!(failing(&hooks), [row(customize, 1, &a), row(sync, 2, &b)]);

        assert!(hooks.failed(&a, of_hook(sync)), "another hook is another failure");
        assert_eq!(failing(&hooks), [row(sync, 3, &a)]);
        hooks.succeeded(&a);
        assert_eq!(failing(&hooks), [row(sync, 2, &b)]);
        assert_eq!(hooks.failing(), [b, c]);
    }

    #[test]
    fn responses_end_the_failure_of_a_hook_before_the_writes() {
        let hooks = HookHealth::default();
        let [a, b] = ["a", "b"].map(|name| Request::namespaced("ns", name));
        hooks.failed(&a, of_hook(Some(HookKind::Customize)));
        hooks.failed(&b, of_hook(None));

        hooks.answered(&a);
        hooks.answered(&b);

        assert_eq!(failing(&hooks), [(None, 1, "ns/b".to_owned())], "as a flapping object");
        assert!(hooks.subscribe().borrow().proven);
    }

    #[tokio::test(start_paused = true)]
    async fn hook_that_answers_releases_no_parent_of_another_hook() {
        let hook = HookHealth::default();
        let [a, b] = ["a", "b"].map(|name| Request::namespaced("ns", name));
        for key in [&a, &b] {
            hook.wait(HookKind::Finalize, key, 0);
        }

        assert!(hook.responded(HookKind::Sync, &a).is_empty());
        assert_eq!(hook.responded(HookKind::Finalize, &a), [b]);
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_parent_is_neither_counted_nor_retried() {
        let hook = HookHealth::default();
        let [a, b] = ["a", "b"].map(|name| Request::namespaced("ns", name));
        for key in [&a, &b] {
            hook.failed(key, timeout());
            hook.wait(HookKind::Sync, key, 0);
        }

        hook.forget(&b);

        assert_eq!(hook.failing(), std::slice::from_ref(&a));
        assert!(hook.responded(HookKind::Sync, &a).is_empty(), "no other parent waits");
    }
}
