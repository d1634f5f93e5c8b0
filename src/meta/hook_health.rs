//! Hook health: the parents for which the hook fails, and the pace of retries while it is down.

use std::{collections::BTreeMap, fmt, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};

use crate::{
    controller::{Backoff, Pace, Request, RetryGate, Wait},
    meta::{
        HookKind,
        contested::{ContestedObjects, ContestedSum},
        rollout::RolloutHealth,
    },
};

/// Pace of retries while the hook is down: ten at once, then one a second for all parents together,
/// and at least one in ten seconds.
const DOWN: Pace = Pace {
    gap: Duration::from_secs(1),
    burst: 10,
    probe: Some(Duration::from_secs(10)),
    longest: Duration::from_secs(1000),
};

/// Health of the hook of one controller.
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
    // Failure of the last sync.
    failing: BTreeMap<Request, Failure>,
    contested: ContestedObjects,
    // For each hook, the parents for which it was down at the last call.
    gates: BTreeMap<HookKind, RetryGate<Request>>,
}

/// Failure of the hook for one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// CamelCase.
    pub(crate) reason: &'static str,
    /// A sentence.
    pub(crate) message: String,
}

/// Health of the hook, summed over all parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// At least one response was usable.
    pub(crate) proven: bool,
    /// Number of parents whose last response was not usable.
    pub(crate) failing: usize,
    /// First of them, with its failure.
    pub(crate) example: Option<(Request, Failure)>,
    /// Rollouts that are under way.
    pub(crate) rollouts: RolloutHealth,
    /// Objects that parents want and others own.
    pub(crate) contested: ContestedSum,
}

impl HookHealth {
    /// Health that calls `changed` after each change; the callback must not block.
    pub(crate) fn new(changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self { changed: OnChange(Box::new(changed)), ..Self::default() }
    }

    /// Current health, and each later change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Records a usable response for a parent.
    pub(crate) fn succeeded(&self, key: &Request) {
        let mut state = self.lock();
        if state.failing.remove(key).is_some() || !self.health.borrow().proven {
            self.publish(&state, true);
        }
    }

    /// Records that a parent got no usable response. Returns whether the failure is a new one.
    pub(crate) fn failed(&self, key: &Request, failure: Failure) -> bool {
        let mut state = self.lock();
        let new = state.failing.get(key) != Some(&failure);
        state.failing.insert(key.clone(), failure);
        self.publish(&state, false);
        new
    }

    /// Adds a parent to the retry gate of a hook, because the hook was down when it was called.
    /// Returns the time until the retry.
    pub(crate) fn wait(&self, kind: HookKind, key: &Request, failures: u32) -> Duration {
        let wait = Wait { backoff: Backoff::default().delay(failures), at_least: Duration::ZERO };
        let (spread, now) = (fastrand::f64(), Instant::now());
        let mut state = self.lock();
        state.gates.entry(kind).or_default().failed(key.clone(), wait, &DOWN, spread, now)
    }

    /// Removes a parent from the gates: no hook was called for it, or the hook failed for another
    /// reason than being down.
    pub(crate) fn stop_waiting(&self, key: &Request) {
        self.lock().leave_gates(key);
    }

    /// Records that a hook responded for a parent. Returns the parents to sync at once.
    pub(crate) fn responded(&self, kind: HookKind, key: &Request) -> Vec<Request> {
        // The remaining wait of each is zero, since `wait` sets no minimum.
        let mut state = self.lock();
        let next = state.gates.get_mut(&kind).map(|gate| gate.answered(key, Instant::now()));
        next.into_iter().flatten().map(|(key, _)| key).collect()
    }

    /// Returns the parents whose last sync got no usable response.
    pub(crate) fn failing(&self) -> Vec<Request> {
        self.lock().failing.keys().cloned().collect()
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(&self, key: &Request) {
        let mut state = self.lock();
        state.leave_gates(key);
        let was_contested = state.contested.set(key, Vec::new());
        if state.failing.remove(key).is_some() || was_contested {
            self.publish(&state, false);
        }
    }

    /// Forgets all parents at the end of an epoch.
    pub(crate) fn clear(&self) {
        *self.lock() = HookHealthState::default();
        self.health.send_replace(Health::default());
        (self.changed.0)();
    }

    /// Records the objects that a parent wants and others own.
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
            let first = state.failing.first_key_value();
            let now = Health {
                proven: proven || health.proven,
                failing: state.failing.len(),
                example: first.map(|(key, failure)| (key.clone(), failure.clone())),
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

impl HookHealthState {
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
        Failure { reason: "HookTimeout", message: "late".to_owned() }
    }

    #[test]
    fn health_is_the_sum_of_the_parents() {
        let (hook, key) = (HookHealth::default(), Request::namespaced("ns", "a"));
        let health = hook.subscribe();

        assert!(hook.failed(&key, timeout()));
        assert!(!hook.failed(&key, timeout()), "the same failure");
        assert_eq!(health.borrow().failing, 1);
        assert!(!health.borrow().proven);

        hook.succeeded(&key);
        assert_eq!(*health.borrow(), Health { proven: true, ..Health::default() });
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

        assert_eq!(hook.subscribe().borrow().failing, 1);
        assert!(hook.responded(HookKind::Sync, &a).is_empty(), "no other parent waits");
    }
}
