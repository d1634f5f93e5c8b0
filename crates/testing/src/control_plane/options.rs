//! Options of a control plane.

use std::sync::Arc;

use crate::{BinarySources, Progress, Silent};

/// Options of a control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneOptions {
    /// True to run kube-controller-manager with garbage collection and namespace deletion. On by
    /// default. The garbage collector notices a new type within 30 s.
    pub controller_manager: bool,
    /// True to keep the API server's audit log. On by default.
    pub audit: bool,
    /// Additional flags for kube-apiserver, such as `--goaway-chance=0.01`; the last one of a name
    /// wins.
    pub api_server_flags: Vec<String>,
    /// Sources of binaries; by default those of [`BinarySources::from_env`].
    pub binaries: Option<BinarySources>,
    /// Receiver of progress events; silent by default.
    pub progress: Arc<dyn Progress>,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        Self {
            controller_manager: true,
            audit: true,
            api_server_flags: Vec::new(),
            binaries: None,
            progress: Arc::new(Silent),
        }
    }
}
