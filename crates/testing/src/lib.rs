//! Test kit for Kubernetes controllers: temporary control planes, a simulated API server, faults
//! between client and server, and oracles for leaks and losses.
//!
//! The kit works with any program that uses a [`kube::Client`] or a socket. Programs of Pilotlight
//! have it as `pilotlight::testing`, by the feature `testing`.
//!
//! # Control plane
//!
//! etcd, kube-apiserver and kube-controller-manager are real processes on loopback, with RBAC
//! enabled, their own certificates, and data in a temporary directory. They end with the process
//! that started them, even if it is killed. The binaries are found or built: see [`BinarySources`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use pilotlight_testing::{ControlPlane, CrdBuilder};
//!
//! // One control plane for all tests of a binary; a namespace and an API group for each.
//! let plane = ControlPlane::shared();
//! let scope = plane.scope("widgets-start").await?;
//! let widgets = CrdBuilder::new(&scope.group, "Widget");
//! scope.install_crd(&widgets).await?;
//! scope.wait_established(&widgets).await?;
//!
//! // User that RBAC and the audit log can tell apart.
//! let position = plane.audit()?.position()?;
//! let alice = plane.client_as("alice", &[])?;
//! # drop((position, alice));
//! # Ok(())
//! # }
//! ```
//!
//! A healthy server returns no 404, 403, 410 or partial discovery on demand. [`Faults`] returns
//! them, as a layer between a [`kube::Client`] and the server.
//!
//! [`simulated`] is an API server without processes, for thousands of tests under paused time.
//!
//! The control plane is not a cluster. Scheduler, kubelet and service account controller are
//! absent; of the controller manager only the garbage collector, the namespace controller and the
//! aggregation of ClusterRoles run.

#![forbid(unsafe_code)]

mod audit;
mod binaries;
mod binary;
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
    audit::{AuditEvent, AuditLog, AuditPosition, AuditStage, open_watches},
    binaries::BinarySources,
    binary::{Binary, ETCD_VERSION, KUBERNETES_VERSION},
    control_plane::{ControlPlane, ControlPlaneOptions},
    crd::CrdBuilder,
    faults::{
        Action, Fault, FaultBody, FaultLayer, FaultRecord, FaultService, Faults, OpenRequest,
        Profile, Reply, RequestInfo, Rule, RuleId, Schedule, ScheduleGuard, Verb,
    },
    leaks::{GrownCount, Growth, LeakOracle, Measure, Probe, Slope, Trend},
    losses::{
        History, Mask, RecordedKey, Recorder, Recording, RecordingDifference, RecordingDifferences,
    },
    private_directory::PrivateDirectory,
    progress::{PrintProgress, Progress, ProgressEvent, Silent},
    scope::TestScope,
};

/// Error of finding, building, starting or using a control plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Missing binary without a Go toolchain to build it: install or set the item that the message
    /// names.
    #[error(
        "{missing} is missing and cannot be built, since `go` is not on the PATH: install Go \
         {wanted} or newer, or set KUBEBUILDER_ASSETS to a directory that holds {missing}"
    )]
    NoGo {
        /// Names of the binaries that are neither in `$KUBEBUILDER_ASSETS` nor in the cache.
        missing: String,
        /// Go version that the pinned module requires.
        wanted: &'static str,
    },
    /// Unusable directory of prebuilt binaries: correct or unset the variable.
    #[error(
        "KUBEBUILDER_ASSETS: {directory:?} {problem}: set it to the directory that \
         `setup-envtest use -p path` prints, or unset it to use the cache and a build"
    )]
    Assets {
        /// Directory in [`BinarySources::assets`].
        directory: PathBuf,
        /// Problem of the directory.
        problem: String,
    },
    /// No cache directory for binaries: set one of the variables named.
    #[error(
        "no cache directory: set PILOTLIGHT_CACHE (or XDG_CACHE_HOME, or HOME) to a directory \
         where the control plane's binaries can be kept"
    )]
    NoCacheDirectory,
    /// Failed Go build; the end of its output shows the reason.
    #[error(
        "building {part} failed ({status}); the build needs a Go toolchain, access to a Go module \
         proxy and about 4 GB of disk; its output:\n{output}"
    )]
    Build {
        /// File name of the binary.
        part: &'static str,
        /// Exit status of `go`.
        status: String,
        /// End of the output of `go`.
        output: String,
    },
    /// Process that ended during its start; the end of its log shows the reason.
    #[error("{name} ended while starting ({status}); the end of its log:\n{log}")]
    Exited {
        /// File name of the binary.
        name: &'static str,
        /// Exit status of the process.
        status: String,
        /// End of its log.
        log: String,
    },
    /// Process that runs without becoming ready; the end of its log may show the reason.
    #[error("{name} is not ready after {waited:?} ({problem}); the end of its log:\n{log}")]
    NotReady {
        /// File name of the binary.
        name: &'static str,
        /// Time for which its readiness was checked.
        waited: Duration,
        /// Result of the last check.
        problem: String,
        /// End of its log.
        log: String,
    },
    /// File, process or port that could not be used.
    #[error("{what}: {source}")]
    Io {
        /// Operation and its object.
        what: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Certificate or key that could not be created.
    #[error("making the certificate of {name}: {source}")]
    Certificate {
        /// Name in the certificate.
        name: String,
        /// Error of the certificate library.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// More groups than a client certificate can hold, which is two: bind more rights to those.
    #[error("user {user} was given {given} groups; a client certificate holds two at most")]
    TooManyGroups {
        /// Requested user.
        user: String,
        /// Number of requested groups.
        given: usize,
    },
    /// Request of the test machinery that the API server refused.
    #[error("{what}: {source}")]
    Api {
        /// Operation.
        what: String,
        /// Error of the client.
        source: Box<kube::Error>,
    },
    /// Condition that was not met in time.
    #[error("{what} did not happen within {waited:?}")]
    Timeout {
        /// Condition.
        what: String,
        /// Time for which it was awaited.
        waited: Duration,
    },
    /// Line of the audit log that is not an audit event.
    #[error("{path}: a line is not an audit event: {source}")]
    AuditLine {
        /// Path of the log.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// Audit log that was not enabled: set `ControlPlaneOptions::audit`.
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
