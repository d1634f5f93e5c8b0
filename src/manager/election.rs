//! Leader election: of several replicas, one runs the elected runnables.
//!
//! Semantics: `leaderelection` of client-go with the lock `leases`, so that programs which use
//! client-go take part in the same election.

mod campaign;
mod candidate;
mod clock;
#[cfg(test)]
pub(in crate::manager) mod fixture;
mod lease;
mod metrics;
mod record;
pub(super) mod term;
mod times;

use std::{fmt, io, sync::Arc, thread, time::Duration};

use kube::Client;
use tokio::{runtime, select, sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::{
    campaign::Campaign,
    clock::{BootClock, Clock},
    lease::LeaseClient,
    term::Term,
};
pub use self::{
    metrics::ElectionMetrics,
    times::{ElectionTimes, ElectionTimesError},
};
use super::{BoxError, CheckResult};
use crate::redaction;

/// Additional wait for the end of a campaign, whose thread may be late.
const SLACK: Duration = Duration::from_secs(1);

/// Lease and identity of an election.
///
/// ```
/// use pilotlight::manager::ElectionOptions;
///
/// let options = ElectionOptions::new("kube-system", "gear-controller");
/// let replica = ElectionOptions { identity: "gears-0".into(), ..options };
/// # drop(replica);
/// ```
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    /// Namespace of the lease.
    pub namespace: Arc<str>,
    /// Name of the lease. Processes that share it exclude each other.
    pub name: Arc<str>,
    /// Identity of this replica, unique among the processes that share the lease; a random one by
    /// default, which begins with the name of the host.
    pub identity: Arc<str>,
    /// Times of the election.
    pub times: ElectionTimes,
    /// Runs the election on a thread and a runtime of its own, so that code that blocks the
    /// manager's runtime cannot cost the lease; on by default. Without it the election is a task of
    /// the manager's runtime, such as for tests whose time is paused.
    pub own_thread: bool,
    /// Metrics of the election, which
    /// [`ManagerHandle::register_metrics`](super::ManagerHandle::register_metrics) registers.
    pub metrics: ElectionMetrics,
}

impl ElectionOptions {
    /// Options of the election for a lease, with the defaults of client-go.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: random_identity(),
            times: ElectionTimes::default(),
            own_thread: true,
            metrics: ElectionMetrics::default(),
        }
    }
}

/// Error for which an election cannot be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// The times contradict each other.
    #[error(transparent)]
    Times(#[from] ElectionTimesError),
    /// Namespace, name or identity is empty.
    #[error("the {0} of the leader election is empty; give one")]
    Empty(&'static str),
}

/// State of an election, as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionStatus {
    /// Namespace and name of the lease, joined by `/`.
    pub lease: Arc<str>,
    /// Identity of this replica.
    pub identity: Arc<str>,
    /// Identity in the lease; `None` if the lease is free or was not read yet.
    pub holder: Option<String>,
    /// True while this replica leads.
    pub leads: bool,
    /// `leaseTransitions` of the lease.
    pub transitions: i64,
    /// Error of the last request about the lease, if it failed.
    pub error: Option<String>,
}

impl ElectionStatus {
    /// Returns the check of readiness. A replica that does not lead is ready: it takes over when the
    /// leader ends. Identities are left out, as are messages.
    pub(super) fn check(&self) -> CheckResult {
        match (&self.error, self.leads) {
            (Some(_), _) => CheckResult::Degraded("the lease cannot be reached".into()),
            (None, true) => CheckResult::Passed("leads".into()),
            (None, false) => CheckResult::Passed("stands by".into()),
        }
    }
}

type Connect = Box<dyn FnOnce() -> Result<Client, BoxError> + Send>;

/// Election that a manager takes part in: see [`Manager::elect`](super::Manager::elect).
///
/// ```no_run
/// # fn example(config: kube::Config) -> Result<(), Box<dyn std::error::Error>> {
/// use pilotlight::manager::{Election, ElectionOptions, Manager, ManagerOptions};
///
/// let options = ElectionOptions::new("operators", "widget-operator");
/// // A client of its own, made on the thread of the election.
/// let connect = || Ok(kube::Client::try_from(config)?);
/// let manager = Manager::new(ManagerOptions::default()).elect(Election::new(options, connect)?);
/// # Ok(())
/// # }
/// ```
pub struct Election {
    options: ElectionOptions,
    connect: Connect,
    clock: Arc<dyn Clock>,
    term: watch::Sender<Option<Arc<Term>>>,
    status: watch::Sender<ElectionStatus>,
}

impl Election {
    /// Creates an election. Starts nothing.
    ///
    /// `connect` makes the client for the lease, on the runtime of the election. A client with
    /// connections of its own keeps the lease when other requests are slow.
    ///
    /// # Errors
    ///
    /// [`ElectionError`] if the options contradict each other.
    pub fn new(
        options: ElectionOptions,
        connect: impl FnOnce() -> Result<Client, BoxError> + Send + 'static,
    ) -> Result<Self, ElectionError> {
        options.times.check()?;
        let texts = [
            ("namespace", &options.namespace),
            ("name", &options.name),
            ("identity", &options.identity),
        ];
        if let Some((what, _)) = texts.iter().find(|(_, text)| text.is_empty()) {
            return Err(ElectionError::Empty(what));
        }
        let status = ElectionStatus {
            lease: format!("{}/{}", options.namespace, options.name).into(),
            identity: Arc::clone(&options.identity),
            holder: None,
            leads: false,
            transitions: 0,
            error: None,
        };
        Ok(Self {
            options,
            connect: Box::new(connect),
            clock: Arc::new(BootClock::new()),
            term: watch::Sender::new(None),
            status: watch::Sender::new(status),
        })
    }

    /// Subscribes to the state of the election.
    pub fn status(&self) -> watch::Receiver<ElectionStatus> {
        self.status.subscribe()
    }

    /// Returns the metrics of the election.
    pub(super) fn metrics(&self) -> &ElectionMetrics {
        &self.options.metrics
    }

    /// Returns the election with another clock.
    #[cfg(test)]
    pub(crate) fn by(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Begins the campaign. Must be called on a tokio runtime unless it has its own thread. The run
    /// fails if the thread or its runtime cannot be created.
    pub(super) fn start(self) -> ElectionRun {
        let Self { options, connect, clock, term, status } = self;
        let (release, failed) = (CancellationToken::new(), watch::Sender::new(None));
        let (own_thread, terms) = (options.own_thread, term.subscribe());
        let ended = CancellationToken::new();
        let longest_end = Campaign::longest_end(&options.times).saturating_add(SLACK);
        let (released, at_end) = (release.clone(), ended.clone().drop_guard());
        let (failure, of_thread) = (failed.subscribe(), failed.clone());
        let series = options.metrics.of(&options.name);
        series.leads.set(0);
        let campaign = async move {
            let _ended: DropGuard = at_end;
            let client = match connect() {
                Ok(client) => client,
                Err(error) => {
                    failed.send_replace(Some(redaction::message(error.as_ref())));
                    return released.cancelled().await;
                }
            };
            let lease = LeaseClient::new(client, options.namespace, options.name);
            let (identity, times) = (options.identity, options.times);
            let campaign = Campaign { lease, identity, times, clock, term, status, series };
            campaign.run(released).await;
        };
        let mut task = JoinSet::new();
        if !own_thread {
            task.spawn(campaign);
        } else if let Err(error) = spawn_thread(campaign) {
            of_thread.send_replace(Some(format!("its thread cannot be started: {error}")));
        }
        ElectionRun { terms, failure, release, ended, longest_end, _task: task }
    }
}

/// Runs a campaign in a thread of its own, whose end is that of the campaign.
fn spawn_thread(campaign: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("election".to_owned());
    thread.spawn(move || runtime.block_on(campaign)).map(drop)
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Campaign under way. Dropping it frees the lease.
pub(super) struct ElectionRun {
    terms: watch::Receiver<Option<Arc<Term>>>,
    failure: watch::Receiver<Option<String>>,
    release: CancellationToken,
    ended: CancellationToken,
    /// Longest time until the lease is free.
    longest_end: Duration,
    // Task of an election without its own thread.
    _task: JoinSet<()>,
}

/// Change of an election.
pub(super) enum ElectionChange {
    /// This replica leads, or no longer does.
    Term(Option<Arc<Term>>),
    /// The election has ended by itself, for this reason.
    Failed(String),
}

impl ElectionRun {
    /// Waits for the next change. Cancel safe.
    pub(super) async fn changed(&mut self) -> ElectionChange {
        select! {
            biased;
            Ok(()) = self.terms.changed() => {
                ElectionChange::Term(self.terms.borrow_and_update().clone())
            }
            Ok(()) = self.failure.changed() => {
                ElectionChange::Failed(self.failure.borrow_and_update().clone().unwrap_or_default())
            }
            () = self.ended.cancelled(), if !self.release.is_cancelled() => {
                ElectionChange::Failed("its thread has ended".to_owned())
            }
            else => std::future::pending().await,
        }
    }

    /// Requests that the lease is freed, since all runs of the term have ended.
    pub(super) fn release(&self) {
        self.release.cancel();
    }

    /// Waits until the lease is free, for no longer than the requests that free it may take.
    pub(super) async fn ended(&self) {
        self.release.cancel();
        if timeout(self.longest_end, self.ended.cancelled()).await.is_err() {
            tracing::warn!("the election does not end; its lease expires by itself");
        }
    }
}

impl Drop for ElectionRun {
    fn drop(&mut self) {
        self.release.cancel();
    }
}

/// Returns an identity that no other process has: the name of the host and a random number.
fn random_identity() -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "pilotlight",
        host => host,
    };
    format!("{host}_{:032x}", fastrand::u128(..)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut ElectionOptions)) -> String {
        let mut options = ElectionOptions::new("ns", "lease");
        change(&mut options);
        Election::new(options, || unreachable!("not started")).unwrap_err().to_string()
    }

    #[test]
    fn options_that_cannot_be_meant_are_refused() {
        assert_eq!(
            error(|it| it.name = "".into()),
            "the name of the leader election is empty; give one"
        );
        assert_eq!(
            error(|it| it.namespace = "".into()),
            "the namespace of the leader election is empty; give one"
        );
        assert!(error(|it| it.times.renew_deadline = Duration::from_secs(15)).contains("longer"));
    }

    #[test]
    fn random_identities_of_one_process_differ() {
        let (one, other) = (ElectionOptions::new("a", "b"), ElectionOptions::new("a", "b"));

        assert_ne!(one.identity, other.identity);
        assert!(one.identity.contains('_'));
    }
}
