//! Settings of a manager.

use std::time::Duration;

use super::{ManagerMetrics, RestartBackoff};

/// Settings that apply to all runnables of a manager.
///
/// ```
/// use std::time::Duration;
///
/// use pilotlight::manager::{Manager, ManagerOptions};
///
/// let manager = Manager::new(ManagerOptions {
///     graceful_shutdown_timeout: Some(Duration::from_secs(10)),
///     ..ManagerOptions::default()
/// });
/// # drop(manager);
/// ```
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Time for all runnables together to stop; 30 s. `None` waits for ever, zero for nothing, which
    /// is no error.
    pub graceful_shutdown_timeout: Option<Duration>,
    /// Time for which later groups wait for the runnables of `HttpServers`, `Webhooks` or `Caches`
    /// that have not reported running, in each of these groups; 2 min. After that the manager logs
    /// the late ones, reports them as `StartTimeout`, and opens the next group. `None` waits for ever.
    pub group_start_timeout: Option<Duration>,
    /// Delay between a failed run and the next.
    pub restart_backoff: RestartBackoff,
    /// Metrics of this manager, which
    /// [`ManagerHandle::register_metrics`](super::ManagerHandle::register_metrics) registers.
    pub metrics: ManagerMetrics,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            graceful_shutdown_timeout: Some(Duration::from_secs(30)),
            group_start_timeout: Some(Duration::from_secs(120)),
            restart_backoff: RestartBackoff::default(),
            metrics: ManagerMetrics::default(),
        }
    }
}
