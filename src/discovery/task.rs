//! Discovery task: keeps the registry current.

use std::{fmt, future, pin::Pin, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    DiscoveryMode, DiscoveryOptions,
    api_service::ApiServiceHeader,
    catalog::{ChangedTypes, DiscoveryScope, PollTime},
    crd::Crd,
    discovery_request::request_discovery,
    metrics::{OutcomeLabel, RequestOutcome, ResourceLabel},
    request::Error,
    response::DiscoveryResponse,
    schedule::{PendingDiscovery, RequestSchedule},
    shared_registry::SharedRegistry,
    watch::{CollectionChange, WatchedType, watch},
};
use crate::duration::LONGEST;

/// Refusals of a watch before it counts as forbidden; they take about six seconds. A server that
/// has just started refuses until it has read RBAC. Static mode gives new types another identity,
/// so it must not be entered too early.
const REFUSALS: u32 = 7;
/// Consecutive failures of any kind after which discovery replaces the APIServices.
const SERVICE_FAILURES: u32 = 9;
/// Minimum time between two responses that together prove an absence: a server that is starting
/// omits groups for a second or two.
const SHORTEST_PERIOD: Duration = Duration::from_secs(5);
/// Minimum time between two responses that together prove a resource gone while its group version is
/// served: the server of an APIService may answer before it has registered its resources. The API
/// server asks it once a minute, and responds with the same document until then.
const REGISTRATION_PERIOD: Duration = Duration::from_secs(90);
/// Events that are applied before one publish. Bounded so that a burst does not delay its first
/// changes.
const BATCH: usize = 64;

/// The task that keeps a [`TypeRegistry`](super::TypeRegistry) current.
pub struct Discovery {
    client: Client,
    options: DiscoveryOptions,
    shared: Arc<SharedRegistry>,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Inputs of the task.
enum DiscoveryEvent {
    Crds(CollectionChange<Crd>),
    Services(CollectionChange<ApiServiceHeader>),
    RequestDue,
    Answered(Result<DiscoveryResponse, Error>),
    Hinted,
    Stop,
}

/// State of the running task. It owns its watches and its request and spawns nothing, so that
/// nothing outlives it.
struct RunningDiscovery {
    client: Client,
    options: DiscoveryOptions,
    shared: Arc<SharedRegistry>,
    crds: Pin<Box<dyn Stream<Item = CollectionChange<Crd>> + Send>>,
    services: Pin<Box<dyn Stream<Item = CollectionChange<ApiServiceHeader>> + Send>>,
    request: Option<BoxFuture<'static, Result<DiscoveryResponse, Error>>>,
    schedule: RequestSchedule,
    /// Refusals of the CRD watch since it was last open.
    refusals: u32,
    /// Failures of the APIService watch since it was last open.
    service_failures: u32,
}

impl Discovery {
    pub(super) fn new(
        client: Client,
        options: DiscoveryOptions,
        shared: Arc<SharedRegistry>,
    ) -> Self {
        Self { client, options, shared }
    }

    /// Keeps the registry current until `stop` is cancelled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all watches; the registry keeps its last state, and says that
    /// discovery has ended.
    pub async fn run(self, stop: CancellationToken) {
        let Self { client, options, shared } = self;
        let mut running = RunningDiscovery {
            crds: Box::pin(watch(client.clone())),
            services: Box::pin(watch(client.clone())),
            request: None,
            schedule: RequestSchedule::new(Instant::now(), options.backstop),
            refusals: 0,
            service_failures: 0,
            client,
            options,
            shared,
        };
        running.set_mode(DiscoveryMode::Watching);
        loop {
            let mut next = Some(running.next_event(&stop).await);
            let mut touched = ChangedTypes::default();
            for _ in 0..BATCH {
                match next {
                    Some(DiscoveryEvent::Stop) => return,
                    Some(event) => running.on_event(event, &mut touched),
                    None => break,
                }
                next = running.next_event(&stop).now_or_never();
            }
            if let Some(event) = next {
                if matches!(event, DiscoveryEvent::Stop) {
                    return;
                }
                running.on_event(event, &mut touched);
            }
            running.shared.publish(&touched);
        }
    }
}

impl Drop for RunningDiscovery {
    fn drop(&mut self) {
        self.set_mode(DiscoveryMode::Ended);
    }
}

impl RunningDiscovery {
    /// Cancel safe: pending work stays in its stream or future.
    async fn next_event(&mut self, stop: &CancellationToken) -> DiscoveryEvent {
        let due = self.schedule.due();
        let request = async {
            match &mut self.request {
                Some(request) => request.await,
                None => future::pending().await,
            }
        };
        let request_due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => DiscoveryEvent::Stop,
            Some(change) = self.crds.next() => DiscoveryEvent::Crds(change),
            Some(change) = self.services.next() => DiscoveryEvent::Services(change),
            response = request => DiscoveryEvent::Answered(response),
            () = request_due => DiscoveryEvent::RequestDue,
            () = self.shared.hints.notified() => DiscoveryEvent::Hinted,
        }
    }

    fn on_event(&mut self, event: DiscoveryEvent, touched: &mut ChangedTypes) {
        match event {
            DiscoveryEvent::Crds(change) => self.on_crds(change, touched),
            DiscoveryEvent::Services(change) => self.on_services(change, touched),
            DiscoveryEvent::RequestDue => {
                self.schedule.sent(Instant::now());
                let (client, deadline) = (self.client.clone(), self.options.request_deadline);
                self.request =
                    Some(async move { request_discovery(&client, deadline).await }.boxed());
            }
            DiscoveryEvent::Answered(response) => self.on_answered(response, touched),
            DiscoveryEvent::Hinted => self.schedule.hinted(Instant::now()),
            // The loop ends before it handles this event.
            DiscoveryEvent::Stop => {}
        }
    }

    /// Applies a change of the CRDs to the catalog.
    fn on_crds(&mut self, change: CollectionChange<Crd>, touched: &mut ChangedTypes) {
        let mut known = self.shared.write();
        match change {
            CollectionChange::Listed(crds) => {
                debug!(count = crds.len(), "CRDs listed");
                known.catalog.crds_listed(crds, touched);
                known.health.crds.current();
            }
            CollectionChange::Opened => {
                known.catalog.crds_watched(touched);
                known.health.crds.current();
                drop(known);
                self.refusals = 0;
                if self.set_mode(DiscoveryMode::Watching) {
                    info!("CRDs are watched again");
                    self.schedule.set_interval(Instant::now(), self.options.backstop);
                }
            }
            CollectionChange::Applied(crd) => known.catalog.crd_applied(crd, touched),
            CollectionChange::Deleted(crd) => known.catalog.crd_deleted(&crd, touched),
            CollectionChange::Failed(error) => {
                known.health.crds.failed(error.to_string(), Timestamp::now());
                drop(known);
                self.count_failure(Crd::RESOURCE);
                if !error.is_refusal() {
                    return;
                }
                self.refusals += 1;
                let reason = format!("{error}; grant list and watch on {}", Crd::RESOURCE);
                if self.refusals >= REFUSALS && self.set_mode(DiscoveryMode::Static(reason)) {
                    warn!(
                        %error,
                        "no right to watch CRDs, polling discovery; grant list and watch on \
                         customresourcedefinitions"
                    );
                    self.schedule.set_interval(Instant::now(), self.options.static_interval);
                }
            }
        }
    }

    fn on_services(
        &mut self,
        change: CollectionChange<ApiServiceHeader>,
        touched: &mut ChangedTypes,
    ) {
        let mut known = self.shared.write();
        let refresh = match change {
            CollectionChange::Listed(services) => {
                known.health.api_services.current();
                known.catalog.services_listed(services, touched)
            }
            CollectionChange::Opened => {
                known.health.api_services.current();
                self.service_failures = 0;
                false
            }
            CollectionChange::Applied(service) => known.catalog.service_applied(service, touched),
            CollectionChange::Deleted(service) => {
                known.catalog.service_deleted(&service.group, &service.version, touched)
            }
            CollectionChange::Failed(error) => {
                known.health.api_services.failed(error.to_string(), Timestamp::now());
                self.count_failure(ApiServiceHeader::RESOURCE);
                self.service_failures += 1;
                let refused = error.is_refusal() && self.service_failures >= REFUSALS;
                if refused || self.service_failures >= SERVICE_FAILURES {
                    known.catalog.services_refused(touched);
                }
                false
            }
        };
        drop(known);
        if refresh {
            self.schedule.changed(Instant::now());
        }
    }

    fn on_answered(
        &mut self,
        response: Result<DiscoveryResponse, Error>,
        touched: &mut ChangedTypes,
    ) {
        self.request = None;
        let (scope, period) = match &*self.shared.mode.borrow() {
            DiscoveryMode::NotStarted | DiscoveryMode::Watching | DiscoveryMode::Ended => {
                (DiscoveryScope::Watching, REGISTRATION_PERIOD)
            }
            DiscoveryMode::Static(_) => {
                (DiscoveryScope::Static, agreement_period(self.options.static_interval))
            }
        };
        let arrival = PollTime { now: Instant::now(), period };
        let mut known = self.shared.write();
        let outcome = match response {
            Ok(response) => {
                let outcome = if response.complete {
                    RequestOutcome::complete
                } else {
                    RequestOutcome::partial
                };
                known.catalog.answered(response, scope, arrival, touched);
                outcome
            }
            Err(error) => {
                debug!(%error, "discovery failed");
                known.health.discovery.failed(error.to_string(), Timestamp::now());
                RequestOutcome::failed
            }
        };
        let pending = match outcome {
            RequestOutcome::complete => {
                known.health.discovery.current();
                known.catalog.pending()
            }
            RequestOutcome::partial => {
                let error = "only one of /api and /apis answered".to_owned();
                known.health.discovery.failed(error, Timestamp::now());
                PendingDiscovery::NoEvent
            }
            RequestOutcome::failed => PendingDiscovery::NoEvent,
        };
        drop(known);
        self.shared.metrics.requests.get_or_create(&OutcomeLabel { outcome }).inc();
        self.schedule.answered(Instant::now(), pending);
    }

    /// Sets the mode; returns whether it changed. A new reason alone is no change.
    fn set_mode(&self, mode: DiscoveryMode) -> bool {
        self.shared.mode.send_if_modified(|old| {
            let changed = std::mem::discriminant(old) != std::mem::discriminant(&mode);
            if changed {
                *old = mode;
            }
            changed
        })
    }

    fn count_failure(&self, resource: &'static str) {
        self.shared.metrics.watch_failures.get_or_create(&ResourceLabel { resource }).inc();
    }
}

/// Time between two responses that agree on an absence, for an interval of polling. The schedule
/// may send the request a tenth earlier.
fn agreement_period(interval: Duration) -> Duration {
    let interval = interval.min(LONGEST);
    (interval - interval / 10).max(SHORTEST_PERIOD)
}

#[cfg(test)]
mod tests;
