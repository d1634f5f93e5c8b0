//! API server of a measurement, real or simulated.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use kube::Client;
use pilotlight::testing::{
    AuditPosition, ControlPlane, ControlPlaneOptions, PrintProgress, PrivateDirectory,
    simulated::{Delays, SimulatedOptions, SimulatedServer, SimulatedSocket},
};

use crate::arguments::ServerKind;

/// User of the measured process on the real server.
const MEASURED: &str = "measured";
/// User of the bench on the simulated server.
const BENCH: &str = "bench";

pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) kubeconfig: PathBuf,
    // Directory of the kubeconfig, and of the logs of measured processes.
    directory: PrivateDirectory,
    kind: Kind,
}

enum Kind {
    Real(ControlPlane),
    Simulated { server: SimulatedServer, _socket: SimulatedSocket },
}

/// Requests of the measured process, by verb, type, and code of a refusal.
pub(crate) type Requests = BTreeMap<String, usize>;

/// Begin of a count of requests.
pub(crate) enum CountStart {
    Real(AuditPosition),
    /// Time since the start of the server.
    Simulated(Duration),
}

impl Server {
    pub(crate) async fn start(kind: ServerKind) -> Self {
        let directory = PrivateDirectory::create("pilotlight-scale").unwrap();
        match kind {
            ServerKind::Real => {
                // The garbage collector would watch all types, and take CPU time from the others.
                let options = ControlPlaneOptions {
                    controller_manager: false,
                    progress: Arc::new(PrintProgress),
                    ..ControlPlaneOptions::default()
                };
                let plane = ControlPlane::start(options).await.unwrap();
                let kubeconfig = plane.user_kubeconfig(MEASURED, &["system:masters"]).unwrap();
                let client = plane.client().unwrap();
                Self { client, kubeconfig, directory, kind: Kind::Real(plane) }
            }
            ServerKind::Simulated => {
                let delays = Delays { create_hold: Duration::ZERO, ..Delays::default() };
                let options = SimulatedOptions { delays, ..SimulatedOptions::default() };
                let server = SimulatedServer::with(options);
                let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
                let socket = server.serve(loopback).await.unwrap();
                let kubeconfig = directory.put("kubeconfig", &socket.kubeconfig()).unwrap();
                let client = server.client_as(BENCH);
                let kind = Kind::Simulated { server, _socket: socket };
                Self { client, kubeconfig, directory, kind }
            }
        }
    }

    /// Returns the directory for logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub(crate) fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Real(_) => "real server",
            Kind::Simulated { .. } => "simulated server",
        }
    }

    /// Begins a count of requests.
    pub(crate) async fn count_start(&self) -> CountStart {
        match &self.kind {
            Kind::Real(plane) => {
                plane.audit_settled().await.unwrap();
                CountStart::Real(plane.audit().unwrap().position().unwrap())
            }
            Kind::Simulated { server, .. } => {
                // The record is limited.
                server.forget_requests();
                CountStart::Simulated(server.now())
            }
        }
    }

    /// Returns the requests of the measured process that began after `start`.
    pub(crate) async fn requests_since(&self, start: CountStart) -> Requests {
        let mut requests = Requests::new();
        match (&self.kind, start) {
            (Kind::Real(plane), CountStart::Real(position)) => {
                plane.audit_settled().await.unwrap();
                let events = plane.audit().unwrap().since(position).unwrap();
                let mut seen = std::collections::HashSet::new();
                for event in events.iter().filter(|event| event.user == MEASURED) {
                    if seen.insert(&event.audit_id) {
                        let named =
                            named(&event.verb, &event.resource, &event.subresource, event.code);
                        *requests.entry(named).or_default() += 1;
                    }
                }
            }
            (Kind::Simulated { server, .. }, CountStart::Simulated(begin)) => {
                let all = server.requests();
                let measured =
                    all.iter().filter(|request| request.user != BENCH && request.at >= begin);
                for request in measured {
                    let verb = format!("{:?}", request.info.verb).to_lowercase();
                    let named = named(
                        &verb,
                        &request.info.resource,
                        &request.info.subresource,
                        request.code,
                    );
                    *requests.entry(named).or_default() += 1;
                }
            }
            (Kind::Real(_), CountStart::Simulated(_))
            | (Kind::Simulated { .. }, CountStart::Real(_)) => {
                unreachable!("a start belongs to its server")
            }
        }
        requests
    }

    pub(crate) async fn stop(self) {
        match self.kind {
            Kind::Real(plane) => plane.stop().await,
            Kind::Simulated { .. } => {}
        }
    }
}

fn named(verb: &str, resource: &str, subresource: &str, code: Option<u16>) -> String {
    let mut named = format!("{verb} {resource}");
    if !subresource.is_empty() {
        named.push_str(&format!("/{subresource}"));
    }
    if let Some(code) = code.filter(|code| *code >= 400) {
        named.push_str(&format!(" {code}"));
    }
    named
}

/// Returns the number of requests that are not watches, which are renewed from time to time.
pub(crate) fn without_watches(requests: &Requests) -> usize {
    let counted = requests.iter().filter(|(named, _)| !named.starts_with("watch "));
    counted.map(|(_, count)| count).sum()
}
