//! Conditions: requirements under which a runnable runs.
//!
//! A condition is a published verdict rather than a one-shot future, so that a loss during the
//! start of a run is seen. Watching one costs no task and no request.

use std::{fmt, sync::Arc};

use super::{Readiness, always};

/// Source of verdicts; users implement it for their own conditions. Implemented for functions that
/// return a [`Readiness`].
///
/// [`RunnableWithCondition`](super::RunnableWithCondition) adds a condition to any runnable, and
/// [`Builder::when`](crate::controller::Builder::when) adds one to a controller.
///
/// An epoch whose condition is lost ends with
/// [`StopReason::TypeGone`](super::StopReason::TypeGone).
///
/// [`Condition::watch`] is called on the manager's own task, so it must not block; the publisher of
/// the verdict does the work. If `watch` panics, the runnable waits, its status says so, and `watch`
/// is called again after a pause of 1 s, which doubles up to 60 s. If the publisher is silent, its
/// last verdict stands. If the condition flaps, its epochs start less and less often
/// ([`RestartBackoff::flaps`](super::RestartBackoff::flaps)). Other runnables are not affected by any
/// of these.
///
/// ```
/// use pilotlight::manager::{Condition, Readiness, Reason, UnmetRequirement, Verdict};
/// use tokio::sync::watch;
///
/// /// Condition that is met while a switch is on.
/// struct Switch(watch::Sender<Verdict>);
///
/// impl Switch {
///     fn set(&self, is_on: bool) {
///         let reason = Reason::Other("Off".into());
///         let off = UnmetRequirement { reason, message: "is off".into(), type_ref: None };
///         let verdict = if is_on { Verdict::Met(Vec::new()) } else { Verdict::Unmet(vec![off]) };
///         self.0.send_replace(verdict);
///     }
/// }
///
/// impl Condition for Switch {
///     fn watch(&self) -> Readiness {
///         Readiness::published(self.0.subscribe())
///     }
/// }
///
/// let switch = Switch(watch::Sender::new(Verdict::Unknown(Vec::new())));
/// switch.set(true);
/// assert!(matches!(switch.watch().verdict(), Verdict::Met(_)));
/// ```
pub trait Condition: Send + Sync + 'static {
    /// Returns a subscription to the current verdict and every later one. Called as
    /// [`ConditionalRunnable::ready`](super::ConditionalRunnable::ready).
    fn watch(&self) -> Readiness;

    /// Reports to the condition that the API server has refused (403) a request of its controller,
    /// so that it requests its permissions again. Must not block.
    ///
    /// By default it calls [`Condition::watch`], and the functions of [`Readiness::on_refused`] in
    /// what that returns, those of the parts of `all_of`, `any_of`, `not` and `optional` included.
    fn refused(&self) {
        self.watch().refused();
    }
}

/// Condition that always holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl Condition for Always {
    fn watch(&self) -> Readiness {
        always()
    }
}

impl<F: Fn() -> Readiness + Send + Sync + 'static> Condition for F {
    fn watch(&self) -> Readiness {
        self()
    }
}

impl<T: Condition + ?Sized> Condition for Arc<T> {
    fn watch(&self) -> Readiness {
        (**self).watch()
    }

    fn refused(&self) {
        (**self).refused();
    }
}

/// Boxed condition. A boxed function is a [`Condition`] by itself.
impl Condition for Box<dyn Condition> {
    fn watch(&self) -> Readiness {
        (**self).watch()
    }

    fn refused(&self) {
        (**self).refused();
    }
}

impl fmt::Debug for dyn Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condition")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{
        super::{Verdict, all_of, any_of, not, optional, some_of},
        *,
    };

    #[test]
    fn refusal_reaches_each_part_of_a_combined_condition() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let part = move || {
            let counted = Arc::clone(&counted);
            always().on_refused(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            })
        };
        let combined = move || {
            let (one, two) = (not(part()), optional(part()));
            all_of([one, any_of([two, some_of([part()])]), always()])
        };

        combined.refused();

        assert_eq!(calls.load(Ordering::SeqCst), 3);
        let mut readiness = combined();
        assert!(matches!(readiness.verdict(), Verdict::Unmet(_)), "its parts decide");
    }

    /// Condition that counts the calls of both methods.
    #[derive(Default)]
    struct Counted {
        watched: AtomicUsize,
        refused: AtomicUsize,
    }

    impl Condition for Counted {
        fn watch(&self) -> Readiness {
            self.watched.fetch_add(1, Ordering::SeqCst);
            always()
        }

        fn refused(&self) {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn boxed_or_shared_condition_is_the_condition_that_it_holds() {
        let counted = Arc::new(Counted::default());
        let is_met =
            |condition: &dyn Condition| matches!(condition.watch().verdict(), Verdict::Met(_));
        let shared: Arc<dyn Condition> = counted.clone();
        let boxed: Box<dyn Condition> = Box::new(Arc::clone(&shared));
        let function: Box<dyn Fn() -> Readiness + Send + Sync> = Box::new(always);

        assert!(is_met(&shared) && is_met(&boxed) && is_met(&function));
        Condition::refused(&shared);
        Condition::refused(&boxed);

        assert_eq!(counted.watched.load(Ordering::SeqCst), 2);
        assert_eq!(counted.refused.load(Ordering::SeqCst), 2, "not that of the default");
    }
}
