//! Programs of the control plane, and the versions that are built.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

/// Kubernetes version that is built when no binary is found.
pub const KUBERNETES_VERSION: &str = "v1.36.3";
/// etcd version that is built when no binary is found.
pub const ETCD_VERSION: &str = "v3.6.16";

/// Program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Binary {
    /// Storage backend, etcd.
    Etcd,
    /// API server.
    KubeApiserver,
    /// Garbage collector and namespace controller.
    KubeControllerManager,
    /// Command line client for users, which the control plane does not need.
    Kubectl,
}

impl Binary {
    /// Returns its file name in `$KUBEBUILDER_ASSETS` and in the cache.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
        }
    }
}

pub(super) fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
