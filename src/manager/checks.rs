//! Named checks of liveness and readiness.

use std::{fmt, sync::Arc};

use parking_lot::RwLock;
use tokio::sync::watch;
use tracing::warn;

use super::{Check, CheckResult, Registration, Snapshot, runnable_check};
use crate::guard::{self, GuardedDrop};

type CheckFn = Arc<GuardedDrop<Box<dyn Fn() -> CheckResult + Send + Sync>>>;
type NamedCheck = (Arc<str>, CheckFn);

/// Checks by name, of the liveness or of the readiness of a process. Cheap to clone; clones share
/// their checks, which are added and removed at any time.
///
/// [`ManagerHandle::liveness`](super::ManagerHandle::liveness) and
/// [`ManagerHandle::readiness`](super::ManagerHandle::readiness) return those of a manager. A check
/// returns at once: it reads a state that a task keeps. The feature `server` serves checks to
/// kubelets.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use pilotlight::manager::{CheckResult, Manager, ManagerOptions};
///
/// static CONNECTED: AtomicBool = AtomicBool::new(false);
///
/// let readiness = Manager::new(ManagerOptions::default()).handle().readiness();
/// readiness.add("database", || match CONNECTED.load(Ordering::Relaxed) {
///     true => Ok(()),
///     false => Err("no connection"),
/// });
/// assert_eq!(readiness.results()[0].result, CheckResult::Failed("no connection".into()));
/// readiness.remove("database");
/// ```
#[derive(Clone, Default)]
pub struct Checks {
    // Sorted by name.
    named: Arc<RwLock<Vec<NamedCheck>>>,
    /// Runnables that are checked, too.
    runnables: Option<watch::Receiver<Arc<Snapshot>>>,
}

impl Checks {
    /// Returns checks of all runnables of a manager: a stuck one fails.
    pub(super) fn of_runnables(runnables: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { runnables: Some(runnables), ..Self::default() }
    }

    /// Adds a check, or replaces the check of this name. A check that panics has failed.
    pub fn add<R: Into<CheckResult>>(
        &self,
        name: impl Into<Arc<str>>,
        check: impl Fn() -> R + Send + Sync + 'static,
    ) {
        let name = name.into();
        let check: CheckFn = Arc::new(GuardedDrop::new(Box::new(move || check().into())));
        let before = self.exchange(|other, _| *other == name, Some((Arc::clone(&name), check)));
        drop(before);
    }

    /// Adds a check until the registration is dropped, beside others of this name.
    pub(crate) fn register(
        &self,
        name: impl Into<Arc<str>>,
        check: impl Fn() -> CheckResult + Send + Sync + 'static,
    ) -> Registration {
        let check: CheckFn = Arc::new(GuardedDrop::new(Box::new(check)));
        drop(self.exchange(|_, _| false, Some((name.into(), Arc::clone(&check)))));
        let checks = self.clone();
        Registration::new(move || {
            drop(checks.exchange(|_, other| Arc::ptr_eq(other, &check), None));
        })
    }

    /// Removes a check; returns whether it existed. It may still run.
    pub fn remove(&self, name: &str) -> bool {
        !self.exchange(|other, _| **other == *name, None).is_empty()
    }

    /// Removes checks and adds one. Returns those removed, to be dropped outside of the lock.
    fn exchange(
        &self,
        is_removed: impl Fn(&Arc<str>, &CheckFn) -> bool,
        added: Option<NamedCheck>,
    ) -> Vec<NamedCheck> {
        let mut named = self.named.write();
        let removed = named.extract_if(.., |(name, check)| is_removed(name, check)).collect();
        if let Some(added) = added {
            let place = named.partition_point(|(name, _)| *name <= added.0);
            named.insert(place, added);
        }
        removed
    }

    /// Runs all checks: those by name, in their order, then those of the runnables.
    pub fn results(&self) -> Vec<Check> {
        self.results_of(|_| true)
    }

    /// Runs the checks whose names are selected, as [`Checks::results`] does, and no other.
    pub fn results_of(&self, is_selected: impl Fn(&str) -> bool) -> Vec<Check> {
        let named: Vec<_> = { self.named.read().clone() };
        let named = named.into_iter().filter(|(name, _)| is_selected(name)).map(|(name, check)| {
            let result = guard::run(|| check()).unwrap_or_else(|error| {
                warn!(name = &*name, error, "a check panicked");
                CheckResult::Failed("panicked".into())
            });
            Check { name: name.to_string(), result }
        });
        let runnables = self.runnables.as_ref().map(|snapshot| snapshot.borrow().clone());
        let runnables = runnables.iter().flat_map(|snapshot| snapshot.values());
        let of_runnables = runnables.map(|status| runnable_check::check(status));
        named.chain(of_runnables.filter(|check| is_selected(&check.name))).collect()
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.named.read().iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(checks: &Checks) -> Vec<String> {
        checks.results().iter().map(Check::to_string).collect()
    }

    #[test]
    fn checks_are_added_replaced_and_removed_by_name_at_any_time() {
        let (checks, shared) = (Checks::default(), Checks::default());
        let shared = Checks { named: Arc::clone(&checks.named), ..shared };
        checks.add("queue", || Ok::<_, String>(()));
        shared.add("database", || Err("no connection"));
        checks.add("cache", || CheckResult::Degraded("cold".into()));

        assert_eq!(lines(&checks), ["[!]cache cold", "[-]database no connection", "[+]queue ok"]);

        checks.add("database", || CheckResult::Passed("connected".into()));
        assert!(shared.remove("cache") && !shared.remove("cache"));
        assert_eq!(lines(&checks), ["[+]database connected", "[+]queue ok"]);
    }

    #[test]
    fn check_that_panics_has_failed_and_the_others_count() {
        let checks = Checks::default();
        checks.add("broken", || -> CheckResult { panic!("expected by the test") });
        checks.add("whole", || Ok::<_, String>(()));

        assert_eq!(lines(&checks), ["[-]broken panicked", "[+]whole ok"]);
    }
}
