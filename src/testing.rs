//! A throw-away Kubernetes control plane for development and tests, and faults to put in front of it.
//!
//! etcd, kube-apiserver and kube-controller-manager are real processes on loopback, with RBAC on,
//! certificates of their own and data in a temporary directory. They end with the process that
//! started them, however that ends. The binaries are found or built: see [`BinarySources`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use pilotlight::testing::{ControlPlane, CrdBuilder};
//!
//! // One control plane for all tests of a binary; a namespace and an API group for each.
//! let plane = ControlPlane::shared();
//! let scope = plane.scope("widgets-start").await?;
//! let widgets = CrdBuilder::new(&scope.group, "Widget");
//! scope.install_crd(&widgets).await?;
//! scope.wait_established(&widgets).await?;
//!
//! // Somebody whom RBAC and the audit log can tell apart.
//! let mark = plane.audit()?.mark()?;
//! let alice = plane.client_as("alice", &[])?;
//! # drop((mark, alice));
//! # Ok(())
//! # }
//! ```
//!
//! A healthy server gives no 404, 403, 410 or partial discovery on demand: [`Faults`] does, as a
//! layer between a [`kube::Client`] and the server.
//!
//! [`simulated`] is an API server without processes, for tests by the thousand under paused time.
//!
//! The control plane is not a cluster: there is no scheduler, no kubelet and no service account controller, and
//! of the controller manager only the garbage collector, the namespace controller and the
//! aggregation of ClusterRoles run.

mod audit;
mod binaries;
mod certificates;
mod control_plane;
mod crd;
mod faults;
mod flags;
mod kubeconfig;
mod leaks;
mod losses;
mod own_thread;
mod private_directory;
mod process;
mod progress;
pub mod proxy;
mod scope;
pub mod simulated;
mod supervisor;
mod toolchain;

use std::{path::PathBuf, time::Duration};

pub use self::{
    audit::{AuditEvent, AuditLog, AuditMark, AuditStage, open_watches},
    binaries::{Binary, BinarySources, ETCD_VERSION, KUBERNETES_VERSION},
    control_plane::{ControlPlane, ControlPlaneOptions},
    crd::CrdBuilder,
    faults::{
        Action, Fault, FaultBody, FaultLayer, FaultService, Faults, Fired, OpenRequest, Playing,
        Profile, Reply, RequestInfo, Rule, RuleId, Schedule, Verb,
    },
    leaks::{Grown, Growth, LeakOracle, Measure, Probe, Slope, Trend},
    losses::{Difference, Differences, History, Mask, ObjectKey, Recorder, Recording},
    private_directory::PrivateDirectory,
    progress::{PrintProgress, Progress, ProgressEvent, Silent},
    scope::TestScope,
};

/// The guide's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/testing.md")]
struct Guide;

/// Why a control plane could not be found, built, started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Go toolchain, and no prebuilt binary either: install or set what the message names.
    #[error(
        "{missing} is missing and cannot be built, since `go` is not on the PATH: install Go \
         {wanted} or newer, or set KUBEBUILDER_ASSETS to a directory that holds {missing}"
    )]
    NoGo {
        /// The binaries that are neither in `$KUBEBUILDER_ASSETS` nor in the cache.
        missing: String,
        /// The Go version that the pinned module asks for.
        wanted: &'static str,
    },
    /// The directory of prebuilt binaries is of no use: set the variable named to another, or not.
    #[error(
        "KUBEBUILDER_ASSETS: {directory:?} {problem}: set it to the directory that \
         `setup-envtest use -p path` prints, or unset it to use the cache and a build"
    )]
    Assets {
        /// [`BinarySources::assets`].
        directory: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Nowhere to keep binaries: set one of the variables named.
    #[error(
        "no cache directory: set PILOTLIGHT_CACHE (or XDG_CACHE_HOME, or HOME) to a directory \
         where the control plane's binaries can be kept"
    )]
    NoCacheDirectory,
    /// The Go build failed; the end of its output says why.
    #[error(
        "building {part} failed ({status}); the build needs a Go toolchain, access to a Go module \
         proxy and about 4 GB of disk; it said:\n{output}"
    )]
    Build {
        /// The binary's file name.
        part: &'static str,
        /// How `go` ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// A process ended while it was being started; the end of its log says why.
    #[error("{name} ended while starting ({status}); the end of its log:\n{log}")]
    Exited {
        /// The binary's file name.
        name: &'static str,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// A process runs but does not become ready; the end of its log may say why.
    #[error("{name} is not ready after {waited:?} ({problem}); the end of its log:\n{log}")]
    NotReady {
        /// The binary's file name.
        name: &'static str,
        /// For how long it was asked.
        waited: Duration,
        /// Its last answer.
        problem: String,
        /// The end of its log.
        log: String,
    },
    /// A file, a process or a port could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, and on what.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A certificate or a key could not be made.
    #[error("making the certificate of {name}: {source}")]
    Certificate {
        /// Whose certificate.
        name: String,
        /// What the certificate library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A client certificate holds two groups at most: bind more rights to those.
    #[error("user {user} was given {given} groups; a client certificate holds two at most")]
    TooManyGroups {
        /// The user asked for.
        user: String,
        /// How many groups were asked for.
        given: usize,
    },
    /// The API server refused a request of the test machinery.
    #[error("{what}: {source}")]
    Api {
        /// What was attempted.
        what: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// What was waited for did not happen in time.
    #[error("{what} did not happen within {waited:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        waited: Duration,
    },
    /// A line of the audit log is no audit event.
    #[error("{path}: a line is no audit event: {source}")]
    AuditLine {
        /// The log.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The control plane was started without its audit log: set `ControlPlaneOptions::audit`.
    #[error("this control plane keeps no audit log: set `audit: true` in ControlPlaneOptions")]
    NoAudit,
}

impl Error {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api { what, source: Box::new(source) }
    }
}
