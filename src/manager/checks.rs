//! Named checks of liveness and readiness.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use parking_lot::RwLock;
use tokio::sync::watch;
use tracing::warn;

use super::{Snapshot, runnable_check};
use crate::guard::{self, GuardedDrop};

type CheckFn = Arc<GuardedDrop<Box<dyn Fn() -> CheckResult + Send + Sync>>>;

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
    named: Arc<RwLock<BTreeMap<Arc<str>, CheckFn>>>,
    /// Runnables that are checked, too.
    runnables: Option<watch::Receiver<Arc<Snapshot>>>,
}

/// Check with its result; displayed as a line of `/readyz?verbose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Result of the check.
    pub result: CheckResult,
}

/// Result of a check, with a detail that may be empty. Anyone who reaches the server can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// The check passed.
    Passed(Cow<'static, str>),
    /// The check is marked as failed, but the process stays ready: one controller must not make all
    /// others unready.
    Degraded(Cow<'static, str>),
    /// The process is not ready, or not alive.
    Failed(Cow<'static, str>),
}

impl Checks {
    /// Returns checks of all runnables of a manager: a stuck one fails.
    pub(super) fn of_runnables(runnables: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { runnables: Some(runnables), ..Self::default() }
    }

    /// Adds a check, or replaces the check of this name. One that panics has failed.
    pub fn add<R: Into<CheckResult>>(
        &self,
        name: impl Into<Arc<str>>,
        check: impl Fn() -> R + Send + Sync + 'static,
    ) {
        let check: CheckFn = Arc::new(GuardedDrop::new(Box::new(move || check().into())));
        // The check before is dropped outside of the lock.
        let before = self.named.write().insert(name.into(), check);
        drop(before);
    }

    /// Removes a check; returns whether it existed. It may still run.
    pub fn remove(&self, name: &str) -> bool {
        let before = self.named.write().remove(name);
        before.is_some()
    }

    /// Runs all checks: those by name, in their order, then those of the runnables.
    pub fn results(&self) -> Vec<Check> {
        let named: Vec<_> = {
            let named = self.named.read();
            named.iter().map(|(name, check)| (Arc::clone(name), Arc::clone(check))).collect()
        };
        let named = named.into_iter().map(|(name, check)| {
            let result = guard::run(|| check()).unwrap_or_else(|error| {
                warn!(name = &*name, error, "a check panicked");
                CheckResult::Failed("panicked".into())
            });
            Check { name: name.to_string(), result }
        });
        let runnables = self.runnables.as_ref().map(|snapshot| snapshot.borrow().clone());
        let runnables = runnables.iter().flat_map(|snapshot| snapshot.values());
        named.chain(runnables.map(|status| runnable_check::check(status))).collect()
    }
}

impl CheckResult {
    /// Returns whether the check has failed.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn detail(&self) -> &str {
        match self {
            Self::Passed(detail) | Self::Degraded(detail) | Self::Failed(detail) => detail,
        }
    }
}

impl<E: fmt::Display> From<Result<(), E>> for CheckResult {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Passed("".into()),
            Err(error) => Self::Failed(error.to_string().into()),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.result {
            CheckResult::Passed(_) => '+',
            CheckResult::Degraded(_) => '!',
            CheckResult::Failed(_) => '-',
        };
        let detail = match self.result.detail() {
            "" => "ok",
            detail => detail,
        };
        write!(f, "[{mark}]{} {detail}", self.name)
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.named.read().keys()).finish()
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
