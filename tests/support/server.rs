//! Servers that a test can run on.

use std::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use pilotlight::testing::{
    AuditEvent, AuditPosition, AuditStage, ControlPlane, ControlPlaneOptions, LeakOracle,
    TestScope,
    simulated::{SimulatedRequest, SimulatedServer},
};

/// Server of a harness.
#[derive(Clone, Debug)]
pub(crate) enum Server<'plane> {
    Real(&'plane ControlPlane),
    /// Simulated server in a runtime with paused time.
    Simulated(SimulatedServer),
}

/// Position in a server's record of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Position {
    Audit(AuditPosition),
    /// Number of earlier requests.
    Count(usize),
}

#[cfg(feature = "cli")]
impl Server<'static> {
    /// Returns the shared control plane.
    pub(crate) fn real() -> Self {
        Self::Real(ControlPlane::shared())
    }

    /// Starts a separate control plane with these API server flags. It ends with the process, which
    /// is the test's own.
    pub(crate) async fn own(flags: &[&str]) -> Self {
        let api_server_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let options = ControlPlaneOptions { api_server_flags, ..ControlPlaneOptions::default() };
        Self::Real(Box::leak(Box::new(ControlPlane::start(options).await.unwrap())))
    }

    /// Creates a simulated server.
    pub(crate) fn simulated() -> Self {
        Self::Simulated(SimulatedServer::new())
    }
}

impl<'plane> Server<'plane> {
    #[cfg(feature = "cli")]
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated(_))
    }

    /// Returns the simulated server, if this is one.
    pub(crate) fn script(&self) -> Option<&SimulatedServer> {
        match self {
            Self::Real(_) => None,
            Self::Simulated(server) => Some(server),
        }
    }

    /// Returns the control plane. Panics on the simulated server.
    pub(crate) fn plane(&self) -> &'plane ControlPlane {
        match self {
            Self::Real(plane) => plane,
            Self::Simulated(_) => panic!("a simulated server has no control plane"),
        }
    }

    pub(crate) async fn scope(&self, name: &str) -> TestScope {
        match self {
            Self::Real(plane) => plane.scope(name).await.unwrap(),
            Self::Simulated(server) => TestScope::create(name, server.client()).await.unwrap(),
        }
    }

    /// Current position in the record of requests.
    pub(crate) fn position(&self) -> Position {
        match self {
            Self::Real(plane) => Position::Audit(plane.audit().unwrap().position().unwrap()),
            Self::Simulated(server) => Position::Count(server.requests().len()),
        }
    }

    /// Current time of the server's clock, which stamps its events.
    pub(crate) fn clock(&self) -> Timestamp {
        match self {
            Self::Real(_) => Timestamp::now(),
            // Earlier than every event: on this server, marks alone separate events exactly.
            Self::Simulated(_) => Timestamp::UNIX_EPOCH,
        }
    }

    /// All requests since the position.
    pub(crate) async fn events(&self, since: Position) -> Vec<AuditEvent> {
        match (self, since) {
            (Self::Real(plane), Position::Audit(position)) => {
                plane.audit_settled().await.unwrap();
                plane.audit().unwrap().since(position).unwrap()
            }
            (Self::Simulated(server), Position::Count(before)) => {
                let all = server.requests().into_iter().enumerate().skip(before);
                all.map(|(number, request)| event(number, request)).collect()
            }
            (Self::Real(_), Position::Count(_)) | (Self::Simulated(_), Position::Audit(_)) => {
                panic!("a position of another server")
            }
        }
    }

    /// Adds a probe for the server's open watches to the oracle.
    pub(crate) fn watched(&self, oracle: LeakOracle, user: &str, since: Position) -> LeakOracle {
        match (self, since) {
            (Self::Real(plane), Position::Audit(position)) => {
                oracle.watches(plane.audit().unwrap(), user, position)
            }
            (Self::Simulated(server), _) => {
                let server = server.clone();
                oracle.probe("watches", move || {
                    let open = server.open_watches().into_iter();
                    open.map(|(name, number)| (name, number as u64)).collect::<BTreeMap<_, _>>()
                })
            }
            (Self::Real(_), Position::Count(_)) => panic!("a position of another server"),
        }
    }
}

/// Converts a request to the form of a control plane's audit log.
fn event(number: usize, request: SimulatedRequest) -> AuditEvent {
    let SimulatedRequest { user, info, at, code, ended, .. } = request;
    let at = Timestamp::UNIX_EPOCH + at + std::time::Duration::from_micros(1);
    let query = if info.query.is_empty() { "" } else { "?" };
    AuditEvent {
        audit_id: number.to_string(),
        stage: match ended {
            Some(_) => AuditStage::ResponseComplete,
            None => AuditStage::ResponseStarted,
        },
        user,
        user_agent: String::new(),
        verb: format!("{:?}", info.verb).to_lowercase(),
        uri: format!("{}{query}{}", info.path, info.query),
        group: info.group,
        version: info.version,
        resource: info.resource,
        subresource: info.subresource,
        namespace: info.namespace,
        name: info.name,
        code,
        received: MicroTime(at),
        reached: MicroTime(at),
    }
}
