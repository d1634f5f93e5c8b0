//! Command lines of the control plane's processes, and their files.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Error, audit,
    certificates::{Authority, ServiceAccountKeys},
    kubeconfig::{KubeconfigCredentials, ServerEndpoint},
    private_directory,
};

/// Controllers that clients rely on: deletion of namespaces and of dependents, and aggregation of
/// ClusterRoles.
const CONTROLLERS: &str =
    "namespace-controller,garbage-collector-controller,clusterrole-aggregation-controller";

/// Name of the controller manager's kubeconfig, which outlives the process.
pub(super) const CONTROLLER_MANAGER: &str = "controller-manager";

/// Ports of the processes on loopback.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) api_server: u16,
    pub(super) controller_manager: u16,
}

impl Ports {
    /// Returns ports that are free now. Another process may take one before it is used.
    pub(super) fn free() -> Result<Self, Error> {
        // All are held until the last one is known, so that they differ.
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let ports = || {
            let listeners = [bind()?, bind()?, bind()?];
            let [etcd, api_server, controller_manager] = &listeners;
            Ok(Self {
                etcd: etcd.local_addr()?.port(),
                api_server: api_server.local_addr()?.port(),
                controller_manager: controller_manager.local_addr()?.port(),
            })
        };
        ports().map_err(Error::io("finding free ports on 127.0.0.1"))
    }
}

/// Files of one control plane, all in its data directory.
#[derive(Debug)]
pub(super) struct ControlPlaneFiles {
    directory: PathBuf,
}

impl ControlPlaneFiles {
    /// Writes all but the kubeconfigs into `directory`.
    pub(super) fn write(directory: &Path, authority: &Authority) -> Result<Self, Error> {
        let files = Self { directory: directory.to_owned() };
        let server = authority.server()?;
        let service_accounts = ServiceAccountKeys::new()?;
        files.put("ca.crt", &authority.pem())?;
        files.put("server.crt", &server.certificate)?;
        files.put("server.key", &server.key)?;
        files.put("service-accounts.pub", &service_accounts.public)?;
        files.put("service-accounts.key", &service_accounts.private)?;
        files.put("audit-policy.yaml", audit::POLICY)?;
        Ok(files)
    }

    /// Writes a kubeconfig.
    pub(super) fn kubeconfig(
        &self,
        name: &str,
        endpoint: &ServerEndpoint,
        credentials: &KubeconfigCredentials,
    ) -> Result<PathBuf, Error> {
        self.put(&kubeconfig_name(name), &endpoint.kubeconfig(name, credentials))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn put(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        private_directory::put(&self.directory, name, content)
            .map_err(Error::io(format!("writing {}", self.path(name).display())))
    }
}

/// Command of etcd without fsync: data may be lost on power loss, and starts are fast.
pub(super) fn etcd(binary: &Path, files: &ControlPlaneFiles, ports: Ports) -> Command {
    let url = etcd_url(ports);
    let mut command = Command::new(binary);
    command
        .arg("--data-dir")
        .arg(files.path("etcd"))
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync"]);
    command
}

pub(super) fn api_server(
    binary: &Path,
    files: &ControlPlaneFiles,
    ports: Ports,
    audit: bool,
    more: &[String],
) -> Command {
    let mut command = Command::new(binary);
    command
        .args(["--etcd-servers", &etcd_url(ports)])
        .args(["--bind-address", "127.0.0.1", "--secure-port", &ports.api_server.to_string()])
        // Otherwise it looks up a default route, which a machine without network does not have.
        .args(["--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none"])
        .args(["--authorization-mode", "RBAC"])
        // The plugin would wait for service account objects that no controller creates here.
        .args(["--disable-admission-plugins", "ServiceAccount"])
        .args(["--service-account-issuer", "https://kubernetes.default.svc"])
        .args(["--service-cluster-ip-range", "10.0.0.0/24"]);
    for (flag, name) in [
        ("--cert-dir", ""),
        ("--client-ca-file", "ca.crt"),
        ("--tls-cert-file", "server.crt"),
        ("--tls-private-key-file", "server.key"),
        ("--service-account-key-file", "service-accounts.pub"),
        ("--service-account-signing-key-file", "service-accounts.key"),
    ] {
        command.arg(flag).arg(files.path(name));
    }
    if audit {
        command
            .arg("--audit-policy-file")
            .arg(files.path("audit-policy.yaml"))
            .arg("--audit-log-path")
            .arg(files.path("audit.log"))
            // In MB: a rotation would invalidate the marks in the log.
            .args(["--audit-log-maxsize", "1000000"]);
    }
    command.args(more);
    command
}

pub(super) fn controller_manager(
    binary: &Path,
    files: &ControlPlaneFiles,
    ports: Ports,
) -> Command {
    let mut command = Command::new(binary);
    command
        .arg("--kubeconfig")
        .arg(files.path(&kubeconfig_name(CONTROLLER_MANAGER)))
        .args(["--controllers", CONTROLLERS])
        .args(["--leader-elect=false", "--kube-api-qps", "200", "--kube-api-burst", "400"])
        .args(["--bind-address", "127.0.0.1"])
        .args(["--secure-port", &ports.controller_manager.to_string()]);
    for (flag, name) in
        [("--tls-cert-file", "server.crt"), ("--tls-private-key-file", "server.key")]
    {
        command.arg(flag).arg(files.path(name));
    }
    command
}

fn kubeconfig_name(user: &str) -> String {
    format!("{user}.kubeconfig")
}

fn etcd_url(ports: Ports) -> String {
    format!("http://127.0.0.1:{}", ports.etcd)
}
