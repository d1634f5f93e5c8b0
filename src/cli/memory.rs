//! Return of freed memory to the system: jemalloc keeps it for later allocations.
//!
//! jemalloc returns freed memory within 10 s, but only while the process allocates. A process at
//! rest would keep the memory of its last burst.

use std::{ffi::CStr, ptr::null_mut, time::Duration};

use pilotlight::server::process;
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

/// Interval of the checks. A burst of work is over when a whole interval was idle.
const PERIOD: Duration = Duration::from_secs(5);
/// Maximum CPU time of an idle interval.
const IDLE: Duration = Duration::from_millis(100);
/// CPU time since the last return after which there may be memory to return. A process at rest
/// needs hours for it.
const WORK: Duration = Duration::from_millis(100);
/// Longest time between two returns of a process that is never idle.
const LONGEST: Duration = Duration::from_secs(60);

/// Returns freed memory to the system whenever a burst of work is over. Never resolves.
pub(super) async fn return_freed() {
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pace = ReleasePace::default();
    loop {
        period.tick().await;
        let Some(used) = process::cpu_time() else { continue };
        if pace.is_due(used, Instant::now()) {
            // Takes milliseconds. An error means that it panicked.
            drop(spawn_blocking(purge).await);
        }
    }
}

/// State of the checks.
#[derive(Default)]
struct ReleasePace {
    /// CPU time at the last check.
    seen: Duration,
    /// CPU time at the last return of memory in an idle interval.
    returned: Duration,
    /// Time from which the process has been busy, or of the last return since; `None` if it is
    /// idle.
    busy: Option<Instant>,
}

impl ReleasePace {
    /// Returns whether memory is to be returned now, after this CPU time.
    fn is_due(&mut self, used: Duration, now: Instant) -> bool {
        let is_idle = used.saturating_sub(self.seen) <= IDLE;
        self.seen = used;
        if is_idle {
            self.busy = None;
            let has_worked = used.saturating_sub(self.returned) >= WORK;
            if has_worked {
                self.returned = used;
            }
            return has_worked;
        }
        let is_due = now.duration_since(*self.busy.get_or_insert(now)) >= LONGEST;
        if is_due {
            self.busy = Some(now);
        }
        is_due
    }
}

#[expect(unsafe_code, reason = "jemalloc's settings and commands have no safe interface")]
fn purge() {
    // All arenas: jemalloc's MALLCTL_ARENAS_ALL.
    const NAME: &CStr = c"arena.4096.purge";
    // SAFETY: the name ends with a zero; a command without input and output takes null pointers.
    let code =
        unsafe { tikv_jemalloc_sys::mallctl(NAME.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    if code != 0 {
        tracing::debug!(code, "jemalloc does not return freed memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_after_each_burst_of_work() {
        let begin = Instant::now();
        let mut pace = ReleasePace::default();
        let mut at = |seconds: u64, used: u64| {
            pace.is_due(Duration::from_millis(used), begin + Duration::from_secs(seconds))
        };

        assert!(!at(5, 700), "the start is still busy");
        assert!(at(10, 720), "the start is over");
        assert!(!at(15, 725), "nothing has been freed since");
        assert!(!at(3600, 780), "a process at rest");
        assert!(!at(3605, 2000), "the next burst");
        assert!(at(3610, 2050), "it is over");
    }

    #[test]
    fn process_that_is_never_idle_returns_memory_each_minute() {
        let begin = Instant::now();
        let mut pace = ReleasePace::default();

        let due = (1..=36_u32)
            .filter(|&check| pace.is_due(check * Duration::from_secs(4), begin + check * PERIOD));

        assert_eq!(due.collect::<Vec<_>>(), [13, 25]);
    }
}
