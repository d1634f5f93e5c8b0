//! Control plane: etcd, kube-apiserver and kube-controller-manager as one value.

mod cluster;
mod options;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{Api, Client, Config, api::PostParams};
use tokio::time;

use self::cluster::{ControlPlaneParts, client, get};
pub use self::options::ControlPlaneOptions;
use super::{
    AuditLog, Binary, Error, PrintProgress, TestScope, kubeconfig::KubeconfigCredentials,
    own_thread,
};

/// Limit for an event to reach the audit log, which takes some milliseconds after the response.
const AUDIT_DEADLINE: Duration = Duration::from_secs(10);

/// Running control plane on loopback, removed at its end.
///
/// The control plane belongs to no runtime: its processes are plain children, and a separate thread
/// waits for them. The processes end and their data is removed with [`stop`](Self::stop), when this
/// value is dropped, and when this process ends, even if it is killed.
///
/// ```no_run
/// use pilotlight_testing::{ControlPlane, CrdBuilder};
///
/// # async fn example() -> Result<(), pilotlight_testing::Error> {
/// // One control plane for all tests of the process; a namespace and a group for each test.
/// let scope = ControlPlane::shared().scope("gears").await?;
/// let gears = CrdBuilder::new(&scope.group, "Gear");
/// scope.install_crd(&gears).await?;
/// scope.wait_served(&gears, "v1").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ControlPlane {
    cluster: Arc<ControlPlaneParts>,
}

impl ControlPlane {
    /// Finds or builds the binaries, starts the processes and waits until they are ready. It takes
    /// some seconds once binaries exist.
    ///
    /// # Errors
    ///
    /// Any error that prevents the start, with the end of the log of the process that failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: started processes are ended.
    pub async fn start(options: ControlPlaneOptions) -> Result<Self, Error> {
        own_thread::run(|| ControlPlaneParts::start(options)).await.map(Self::new)
    }

    /// Starts a control plane as [`start`](Self::start) does, but blocks; inside a runtime too.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_blocking(options: ControlPlaneOptions) -> Result<Self, Error> {
        own_thread::block_on(|| ControlPlaneParts::start(options)).map(Self::new)
    }

    /// Returns the control plane that all tests of this process share. The first call starts it and
    /// later calls block until it runs. It has the default options, and prints its progress.
    ///
    /// # Panics
    ///
    /// When it cannot be started, each time with the same reason.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| {
            let progress = Arc::new(PrintProgress);
            let options = ControlPlaneOptions { progress, ..ControlPlaneOptions::default() };
            Self::start_blocking(options).map_err(|error| error.to_string())
        });
        shared.as_ref().unwrap_or_else(|error| panic!("no control plane: {error}"))
    }

    /// Returns the kubeconfig file of a user with full access, in the data directory.
    pub fn kubeconfig(&self) -> &Path {
        &self.cluster.kubeconfig
    }

    /// Returns the configuration of a user with full access; kube's own retries are disabled.
    pub fn config(&self) -> Config {
        self.cluster.endpoint.config(&self.cluster.admin)
    }

    /// Returns a client with full access. It belongs to the runtime that creates it.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the configuration is unusable.
    pub fn client(&self) -> Result<Client, Error> {
        client(self.config())
    }

    /// Returns the configuration of a user who has only the rights that RBAC gives to the name and
    /// the groups, of which there are at most two.
    ///
    /// # Errors
    ///
    /// [`Error::Certificate`] or [`Error::TooManyGroups`].
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<Config, Error> {
        let identity = self.cluster.authority.user(name, groups)?;
        Ok(self.cluster.endpoint.config(&KubeconfigCredentials::Certificate(identity)))
    }

    /// Returns a client of [`user`](Self::user).
    ///
    /// # Errors
    ///
    /// As for [`user`](Self::user) and [`client`](Self::client).
    pub fn client_as(&self, name: &str, groups: &[&str]) -> Result<Client, Error> {
        client(self.user(name, groups)?)
    }

    /// Writes the kubeconfig file of [`user`](Self::user) into the data directory.
    ///
    /// # Errors
    ///
    /// As for [`user`](Self::user), and [`Error::Io`].
    pub fn user_kubeconfig(&self, name: &str, groups: &[&str]) -> Result<PathBuf, Error> {
        let identity = self.cluster.authority.user(name, groups)?;
        self.write_kubeconfig(&KubeconfigCredentials::Certificate(identity))
    }

    /// Requests a token of a service account, which must exist; valid for an hour.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses.
    pub async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<String, Error> {
        let what = format!("requesting a token of {namespace}/{name}");
        let accounts = Api::<ServiceAccount>::namespaced(self.client()?, namespace);
        let response = accounts
            .create_token_request(name, &PostParams::default(), &TokenRequest::default())
            .await
            .map_err(Error::api(what))?;
        Ok(response.status.map(|status| status.token).unwrap_or_default())
    }

    /// Returns the configuration of the bearer of this token.
    pub fn token_config(&self, token: &str) -> Config {
        self.cluster.endpoint.config(&KubeconfigCredentials::Token(token.to_owned()))
    }

    /// Writes the kubeconfig file of the bearer of this token into the data directory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn token_kubeconfig(&self, token: &str) -> Result<PathBuf, Error> {
        self.write_kubeconfig(&KubeconfigCredentials::Token(token.to_owned()))
    }

    /// Issues a certificate and its key, as PEM, for a test's own TLS server on loopback. Clients
    /// of this control plane trust its authority.
    ///
    /// An example is the backend of an aggregated API: its APIService names a Service of type
    /// `ExternalName` with `externalName: localhost` and the server's port.
    ///
    /// # Errors
    ///
    /// [`Error::Certificate`].
    pub fn serving_certificate(&self) -> Result<(String, String), Error> {
        let identity = self.cluster.authority.server()?;
        Ok((identity.certificate, identity.key))
    }

    /// Creates a namespace for one test, with an unused API group. The name is for readers and is
    /// made unique.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses.
    pub async fn scope(&self, name: &str) -> Result<TestScope, Error> {
        TestScope::create(name, self.client()?).await
    }

    /// Returns the API server's audit log.
    ///
    /// # Errors
    ///
    /// [`Error::NoAudit`] when it is not enabled.
    pub fn audit(&self) -> Result<&AuditLog, Error> {
        self.cluster.audit.as_ref().ok_or(Error::NoAudit)
    }

    /// Waits until the audit log has all requests that were answered before this call.
    ///
    /// # Errors
    ///
    /// [`Error::NoAudit`] without a log, [`Error::Timeout`] after 10 s.
    pub async fn audit_settled(&self) -> Result<(), Error> {
        let audit = self.audit()?.clone();
        let config = self.config();
        own_thread::run(move || async move {
            let position = audit.position()?;
            let uri = format!("/version?marker={:016x}", fastrand::u64(..));
            get(&client(config)?, &uri).await?;
            let seen = async {
                while !audit.since(position)?.iter().any(|event| event.uri == uri) {
                    time::sleep(Duration::from_millis(2)).await;
                }
                Ok(())
            };
            let what = "the audit log's last event".to_owned();
            let late = |_| Error::Timeout { what, waited: AUDIT_DEADLINE };
            time::timeout(AUDIT_DEADLINE, seen).await.map_err(late)?
        })
        .await
    }

    /// Kills the API server: connections are refused from then on.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; a dropped call may not have killed it.
    pub async fn stop_api_server(&self) {
        let cluster = Arc::clone(&self.cluster);
        own_thread::run(|| async move {
            let _lifecycle = cluster.lifecycle.lock().await;
            cluster.kill(Binary::KubeApiserver);
        })
        .await;
    }

    /// Starts a stopped API server with the same address, certificates and data, and waits until it
    /// is ready. Does nothing while it runs.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] or [`Error::NotReady`] when it does not start.
    pub async fn start_api_server(&self) -> Result<(), Error> {
        let cluster = Arc::clone(&self.cluster);
        own_thread::run(|| async move {
            let _lifecycle = cluster.lifecycle.lock().await;
            cluster.restart_api_server().await
        })
        .await
    }

    /// Kills the API server and starts it again.
    ///
    /// # Errors
    ///
    /// As for [`start_api_server`](Self::start_api_server).
    pub async fn restart_api_server(&self) -> Result<(), Error> {
        self.stop_api_server().await;
        self.start_api_server().await
    }

    /// Kills kube-controller-manager, starts it again and waits until it is ready. Its garbage
    /// collector drops its memory of absent owners. Does nothing without a controller manager.
    ///
    /// # Errors
    ///
    /// As for [`start_api_server`](Self::start_api_server).
    pub async fn restart_controller_manager(&self) -> Result<(), Error> {
        let cluster = Arc::clone(&self.cluster);
        own_thread::run(|| async move {
            let _lifecycle = cluster.lifecycle.lock().await;
            cluster.restart_controller_manager().await
        })
        .await
    }

    /// Returns the running processes.
    pub fn processes(&self) -> Vec<(Binary, u32)> {
        self.cluster.processes().iter().map(|process| (process.part(), process.id())).collect()
    }

    /// Returns the directory of logs, certificates, kubeconfigs and etcd's data, which is removed
    /// with the control plane.
    pub fn data(&self) -> PathBuf {
        self.cluster.files.path("")
    }

    /// Ends all processes, waits for their end and removes the data.
    pub async fn stop(self) {
        own_thread::run(|| async move { self.cluster.end() }).await;
    }

    fn new(cluster: ControlPlaneParts) -> Self {
        Self { cluster: Arc::new(cluster) }
    }

    fn write_kubeconfig(&self, credentials: &KubeconfigCredentials) -> Result<PathBuf, Error> {
        let name = format!("user-{:08x}", fastrand::u32(..));
        self.cluster.files.kubeconfig(&name, &self.cluster.endpoint, credentials)
    }
}
