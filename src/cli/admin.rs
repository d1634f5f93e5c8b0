//! Servers of the binary: probes on one port, metrics and details on another.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use anyhow::Context;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use pilotlight::{
    controller::Cluster,
    manager::{CheckResult, ElectionStatus, Manager, ManagerHandle, Reason, Snapshot},
    meta::{ControllerKind, DeclaredControllers},
    server::{self, HttpServer},
};
use tokio::sync::watch;

use super::{
    address::BindAddress,
    report::{StatusReport, TypeRow},
    watchers::Watchers,
};

/// State that the debug pages show.
#[derive(Debug)]
pub(super) struct DebugState {
    /// Manager, whose controllers are shown.
    pub(super) manager: ManagerHandle,
    /// Cluster, whose types are shown.
    pub(super) cluster: Cluster,
    /// Declared controllers of all kinds.
    pub(super) declared: DeclaredControllers,
    /// Status of the election; `None` without an election.
    pub(super) election: Option<watch::Receiver<ElectionStatus>>,
}

/// Bound listeners of the servers.
#[derive(Debug)]
pub(super) struct Listeners {
    probes: Option<TcpListener>,
    metrics: Option<TcpListener>,
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

    /// Adds the servers to a manager.
    pub(super) fn add_to(self, manager: &mut Manager, shown: DebugState) -> anyhow::Result<()> {
        let handle = shown.manager.clone();
        let snapshot = handle.watch();
        handle.readiness().add("crds", move || own_crds(&snapshot.borrow()));
        if let Some(listener) = self.probes {
            HttpServer::new(listener, server::probes(&handle))?.add_to(manager, "probes")?;
        }
        if let Some(listener) = self.metrics {
            let pages = server::metrics(&shown.manager).merge(debug_pages(shown));
            HttpServer::new(listener, pages)?.add_to(manager, "metrics")?;
        }
        Ok(())
    }
}

fn debug_pages(shown: DebugState) -> Router {
    Router::new()
        .route("/debug/status", get(status))
        .route("/debug/types", get(types))
        .route("/debug/queues/{*controller}", get(queue))
        .with_state(Arc::new(shown))
}

async fn status(State(shown): State<Arc<DebugState>>) -> Json<StatusReport> {
    let (status, declared) = (shown.manager.status(), shown.declared.list());
    let election = shown.election.as_ref().map(|election| election.borrow().clone());
    Json(StatusReport::new(&shown.cluster, &status, &declared, election))
}

/// Requests in the queue of one controller.
async fn queue(State(shown): State<Arc<DebugState>>, Path(controller): Path<String>) -> Response {
    match shown.manager.debug(controller).await {
        Some(queue) => Json(queue).into_response(),
        None => {
            let hint = "no controller of this name has a queue; /debug/status lists the names";
            (StatusCode::NOT_FOUND, hint).into_response()
        }
    }
}

async fn types(State(shown): State<Arc<DebugState>>) -> Json<Vec<TypeRow>> {
    let watchers = Watchers::of_manager(&shown.manager.status());
    let types = shown.cluster.types.report();
    Json(types.iter().map(|report| TypeRow::new(report, Some(&watchers))).collect())
}

/// Check of this program's own CRDs: while one is missing, declarations cannot change.
fn own_crds(runnables: &Snapshot) -> CheckResult {
    let is_missing = |kind: &ControllerKind| {
        let supervisor = runnables.get(&kind.plural().into());
        supervisor.is_some_and(|it| it.reason == Reason::TypeAbsent)
    };
    match ControllerKind::ALL.into_iter().find(is_missing) {
        Some(kind) => CheckResult::Degraded(format!("{} is not installed", kind.kind()).into()),
        None => CheckResult::Passed("".into()),
    }
}

#[cfg(test)]
mod tests {
    use pilotlight::manager::{RunnableGroup, RunnableStatus};

    use super::*;

    #[test]
    fn a_manager_without_its_own_crds_is_degraded_and_ready() {
        let mut own =
            RunnableStatus::new("compositecontrollers".into(), RunnableGroup::LeaderElection);
        let check =
            |status: &RunnableStatus| own_crds(&Snapshot::from_iter([Arc::new(status.clone())]));
        assert_eq!(check(&own), CheckResult::Passed("".into()), "not known yet");

        own.reason = Reason::TypeAbsent;

        let degraded = CheckResult::Degraded("CompositeController is not installed".into());
        assert_eq!(check(&own), degraded);
    }
}
