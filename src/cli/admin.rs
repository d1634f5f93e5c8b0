//! Servers of the manager: probes on one port, metrics and details on another.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use axum::{
    Json, Router,
    extract::{Path, RawQuery, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::future::BoxFuture;
use pilotlight::{
    controller::Cluster,
    manager::{BoxError, ElectionStatus, Epoch, ManagerHandle, RunResult, Runnable, RunnableGroup},
    meta::DeclaredControllers,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::sync::watch;

use super::{
    address::BindAddress,
    health::{self, CheckResult},
    report::{StatusReport, TypeRow},
    watchers::Watchers,
};

/// State that the servers show.
#[derive(Debug)]
pub(super) struct Shown {
    manager: ManagerHandle,
    cluster: Cluster,
    declared: DeclaredControllers,
    /// Present if there is an election.
    election: Option<watch::Receiver<ElectionStatus>>,
    metrics: Registry,
    types_known: AtomicBool,
}

impl Shown {
    pub(super) fn new(
        manager: ManagerHandle,
        cluster: Cluster,
        declared: DeclaredControllers,
        election: Option<watch::Receiver<ElectionStatus>>,
        metrics: Registry,
    ) -> Self {
        Self { manager, cluster, declared, election, metrics, types_known: AtomicBool::new(false) }
    }

    /// Returns the state of the election, if there is one.
    fn election(&self) -> Option<ElectionStatus> {
        Some(self.election.as_ref()?.borrow().clone())
    }

    /// Returns whether discovery has ever answered. After later failures the known types stay and
    /// are shown.
    fn types_known(&self) -> bool {
        if self.cluster.types.health().discovery.stale_since.is_none() {
            self.types_known.store(true, Ordering::Relaxed);
        }
        self.types_known.load(Ordering::Relaxed)
    }
}

/// Bound listeners of the servers.
#[derive(Debug)]
pub(super) struct Listeners {
    probes: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

/// Runnable of the servers.
#[derive(Debug)]
pub(super) struct Admin {
    listeners: Listeners,
    shown: Arc<Shown>,
}

impl Listeners {
    /// Binds both addresses, so that a failure is known before anything starts.
    pub(super) fn bind(probes: &BindAddress, metrics: &BindAddress) -> anyhow::Result<Self> {
        let listen = |address: &BindAddress, flag: &str| {
            address.listen().with_context(|| {
                format!("{flag} {address}: choose another address, or 0 for no server")
            })
        };
        Ok(Self {
            probes: listen(probes, "--health-probe-bind-address")?,
            metrics: listen(metrics, "--metrics-address")?,
        })
    }

    /// Returns the address of the metrics server, if there is one.
    pub(super) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    /// Returns the address of the probe server, if there is one.
    pub(super) fn probe_address(&self) -> Option<SocketAddr> {
        self.probes.as_ref()?.local_addr().ok()
    }

    fn try_clone(&self) -> std::io::Result<Self> {
        let clone = |listener: &Option<TcpListener>| {
            listener.as_ref().map(TcpListener::try_clone).transpose()
        };
        Ok(Self { probes: clone(&self.probes)?, metrics: clone(&self.metrics)? })
    }
}

impl Admin {
    pub(super) fn new(listeners: Listeners, shown: Shown) -> Self {
        Self { listeners, shown: Arc::new(shown) }
    }
}

impl Runnable for Admin {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let (listeners, shown) = (self.listeners.try_clone(), self.shown.clone());
        Box::pin(async move {
            let Listeners { probes, metrics } = listeners?;
            tokio::try_join!(
                serve(probes, probe_router(shown.clone()), &epoch),
                serve(metrics, metrics_router(shown), &epoch),
            )?;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::HttpServers
    }
}

async fn serve(
    listener: Option<TcpListener>,
    router: Router,
    epoch: &Epoch,
) -> Result<(), BoxError> {
    let stop = epoch.token().cancelled_owned();
    match listener {
        Some(listener) => {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).with_graceful_shutdown(stop).await?;
        }
        None => stop.await,
    }
    Ok(())
}

fn probe_router(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(shown)
}

fn metrics_router(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .route("/debug/status", get(status))
        .route("/debug/types", get(types))
        .route("/debug/queues/{*controller}", get(queue))
        .with_state(shown)
}

/// Liveness: healthy as long as the manager's own task runs.
async fn alive(State(shown): State<Arc<Shown>>) -> Response {
    if shown.manager.watch().has_changed().is_ok() {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the manager has ended").into_response()
    }
}

async fn ready(State(shown): State<Arc<Shown>>, RawQuery(query): RawQuery) -> Response {
    let mode = shown.cluster.types.mode().borrow().clone();
    let mut checks = health::checks(shown.types_known(), &mode, &shown.manager.status());
    checks.extend(shown.election().as_ref().map(health::election));
    let failed = checks.iter().any(|check| check.result == CheckResult::Failed);
    let verbose = query.is_some_and(|query| query.split(['&', '=']).any(|key| key == "verbose"));
    let (code, last) = if failed {
        (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed")
    } else {
        (StatusCode::OK, "readyz check passed")
    };
    let body = match (failed, verbose) {
        (false, false) => "ok".to_owned(),
        (true, false) | (_, true) => {
            let lines =
                checks.iter().filter(|check| verbose || check.result == CheckResult::Failed);
            let mut body: String = lines.map(|check| format!("{check}\n")).collect();
            body.push_str(last);
            body.push('\n');
            body
        }
    };
    (code, body).into_response()
}

async fn scrape(State(shown): State<Arc<Shown>>) -> Response {
    let mut page = String::new();
    match encode(&mut page, &shown.metrics) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, kind)], page).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status(State(shown): State<Arc<Shown>>) -> Json<StatusReport> {
    let (status, declared) = (shown.manager.status(), shown.declared.list());
    Json(StatusReport::new(&shown.cluster, &status, &declared, shown.election()))
}

/// Requests in the queue of one controller.
async fn queue(State(shown): State<Arc<Shown>>, Path(controller): Path<String>) -> Response {
    match shown.manager.debug(controller).await {
        Some(queue) => Json(queue).into_response(),
        None => (StatusCode::NOT_FOUND, "no such controller has a queue").into_response(),
    }
}

async fn types(State(shown): State<Arc<Shown>>) -> Json<Vec<TypeRow>> {
    let watchers = Watchers::of_manager(&shown.manager.status());
    let types = shown.cluster.types.report();
    Json(types.iter().map(|report| TypeRow::new(report, Some(&watchers))).collect())
}
