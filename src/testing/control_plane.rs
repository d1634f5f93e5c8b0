//! etcd, kube-apiserver and kube-controller-manager as one value.

use std::{
    env,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use http::Request;
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{Api, Client, Config, api::PostParams};
use tokio::time;

use super::{
    AuditLog, Binary, BinarySources, Error, PrintProgress, Progress, ProgressEvent, Silent,
    TestScope,
    certificates::Authority,
    flags::{self, Files, Ports},
    kubeconfig::{Credentials, Endpoint},
    own_thread,
    process::Process,
    supervisor::Supervisor,
};

/// A port found free was taken by somebody else so many times.
const PORT_RACES: usize = 5;
/// Until the port of a killed API server is free again.
const RESTART_RACES: usize = 50;
/// An event is in the log some milliseconds after its answer.
const AUDIT_DEADLINE: Duration = Duration::from_secs(10);
/// What etcd logs when it serves.
const ETCD_READY: &str = "ready to serve client requests";
/// Those who may do everything.
const MASTERS: &[&str] = &["system:masters"];

/// What a control plane consists of.
#[derive(Clone, Debug)]
pub struct ControlPlaneOptions {
    /// Runs kube-controller-manager with garbage collection and namespace deletion. On by default.
    /// The garbage collector notices a new type within 30 s.
    pub controller_manager: bool,
    /// Keeps the API server's audit log. On by default.
    pub audit: bool,
    /// More flags for kube-apiserver, such as `--goaway-chance=0.01`; the last one of a name wins.
    pub api_server_flags: Vec<String>,
    /// Where binaries come from; by default what [`BinarySources::from_env`] says.
    pub binaries: Option<BinarySources>,
    /// Learns what is built and started. By default nobody does.
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

/// A running control plane on loopback, thrown away at its end.
///
/// It belongs to no runtime: its processes are plain children, and what waits for them runs on a
/// thread of its own. They end, and their data goes, with [`stop`](Self::stop), with this value, and
/// with this process, however that ends.
#[derive(Debug)]
pub struct ControlPlane {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Before the supervisor, so that children are killed and awaited before their data goes.
    processes: Mutex<Vec<Process>>,
    supervisor: Mutex<Supervisor>,
    /// One start or stop of the API server at a time.
    lifecycle: tokio::sync::Mutex<()>,
    options: ControlPlaneOptions,
    paths: Paths,
    ports: Ports,
    files: Files,
    authority: Authority,
    endpoint: Endpoint,
    admin: Credentials,
    kubeconfig: PathBuf,
    audit: Option<AuditLog>,
}

#[derive(Clone, Debug)]
struct Paths {
    etcd: PathBuf,
    api_server: PathBuf,
    controller_manager: Option<PathBuf>,
}

impl ControlPlane {
    /// Finds or builds the binaries, starts the processes and waits until they are ready: some
    /// seconds once binaries exist.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from running, with the end of the log of the process that failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was started is ended.
    pub async fn start(options: ControlPlaneOptions) -> Result<Self, Error> {
        own_thread::run(|| start(options)).await
    }

    /// Like [`start`](Self::start), but blocks; inside a runtime too.
    ///
    /// # Errors
    ///
    /// As of [`start`](Self::start).
    pub fn start_blocking(options: ControlPlaneOptions) -> Result<Self, Error> {
        own_thread::block_on(|| start(options))
    }

    /// The control plane that all tests of this process share, started by whoever asks first; the
    /// others block until it runs. It has everything that is on by default, and prints its progress.
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

    /// The kubeconfig file of a user with every right, in the data directory.
    pub fn kubeconfig(&self) -> &Path {
        &self.inner.kubeconfig
    }

    /// The configuration of a user with every right; kube's own retries are off.
    pub fn config(&self) -> Config {
        self.inner.endpoint.config(&self.inner.admin)
    }

    /// A client with every right. It belongs to the runtime in which it is made.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when no client can be made of the configuration.
    pub fn client(&self) -> Result<Client, Error> {
        client(self.config())
    }

    /// The configuration of this user, who has only the rights that RBAC gives to the name and the
    /// groups. Two groups at most.
    ///
    /// # Errors
    ///
    /// [`Error::Certificate`] or [`Error::TooManyGroups`].
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<Config, Error> {
        let identity = self.inner.authority.user(name, groups)?;
        Ok(self.inner.endpoint.config(&Credentials::Certificate(identity)))
    }

    /// A client of [`user`](Self::user).
    ///
    /// # Errors
    ///
    /// As of [`user`](Self::user) and [`client`](Self::client).
    pub fn client_as(&self, name: &str, groups: &[&str]) -> Result<Client, Error> {
        client(self.user(name, groups)?)
    }

    /// The kubeconfig file of [`user`](Self::user), written into the data directory.
    ///
    /// # Errors
    ///
    /// As of [`user`](Self::user), and [`Error::Io`].
    pub fn user_kubeconfig(&self, name: &str, groups: &[&str]) -> Result<PathBuf, Error> {
        let identity = self.inner.authority.user(name, groups)?;
        self.write_kubeconfig(&Credentials::Certificate(identity))
    }

    /// Asks the API server for a token of this service account, which must exist; good for an hour.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses.
    pub async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<String, Error> {
        let what = format!("asking for a token of {namespace}/{name}");
        let accounts = Api::<ServiceAccount>::namespaced(self.client()?, namespace);
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &TokenRequest::default())
            .await
            .map_err(Error::api(what))?;
        Ok(answer.status.map(|status| status.token).unwrap_or_default())
    }

    /// The configuration of whoever holds this token.
    pub fn token_config(&self, token: &str) -> Config {
        self.inner.endpoint.config(&Credentials::Token(token.to_owned()))
    }

    /// The kubeconfig file of whoever holds this token, written into the data directory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn token_kubeconfig(&self, token: &str) -> Result<PathBuf, Error> {
        self.write_kubeconfig(&Credentials::Token(token.to_owned()))
    }

    /// Creates a namespace for one test, and finds an API group that nobody uses. The name is for
    /// people; it is made unique.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses.
    pub async fn scope(&self, name: &str) -> Result<TestScope, Error> {
        TestScope::create(name, self.client()?).await
    }

    /// The API server's audit log.
    ///
    /// # Errors
    ///
    /// [`Error::NoAudit`] when it was not asked for.
    pub fn audit(&self) -> Result<&AuditLog, Error> {
        self.inner.audit.as_ref().ok_or(Error::NoAudit)
    }

    /// Waits until all that was answered before this call is in the audit log.
    ///
    /// # Errors
    ///
    /// [`Error::NoAudit`] without a log, [`Error::Timeout`] after 10 s.
    pub async fn audit_settled(&self) -> Result<(), Error> {
        let audit = self.audit()?.clone();
        let config = self.config();
        own_thread::run(move || async move {
            let mark = audit.mark()?;
            let uri = format!("/version?marker={:016x}", fastrand::u64(..));
            get(&client(config)?, &uri).await?;
            let seen = async {
                while !audit.since(mark)?.iter().any(|event| event.uri == uri) {
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
    /// Cancel safe; the kill may then not have happened.
    pub async fn stop_api_server(&self) {
        let inner = Arc::clone(&self.inner);
        own_thread::run(|| async move {
            let _lifecycle = inner.lifecycle.lock().await;
            inner.kill(Binary::KubeApiserver);
        })
        .await;
    }

    /// Starts the API server that was stopped, with the same address, certificates and data, and
    /// waits until it is ready. Does nothing when it runs.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] or [`Error::NotReady`] when it does not come back.
    pub async fn start_api_server(&self) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        own_thread::run(|| async move {
            let _lifecycle = inner.lifecycle.lock().await;
            inner.restart_api_server().await
        })
        .await
    }

    /// Kills the API server and starts it again.
    ///
    /// # Errors
    ///
    /// As of [`start_api_server`](Self::start_api_server).
    pub async fn restart_api_server(&self) -> Result<(), Error> {
        self.stop_api_server().await;
        self.start_api_server().await
    }

    /// The running processes.
    pub fn processes(&self) -> Vec<(Binary, u32)> {
        self.inner.processes().iter().map(|process| (process.part(), process.id())).collect()
    }

    /// Logs, certificates, kubeconfigs and etcd's data; gone with the control plane.
    pub fn data(&self) -> PathBuf {
        self.inner.files.path("")
    }

    /// Ends all processes, waits for their end and removes the data.
    pub async fn stop(self) {
        own_thread::run(|| async move { self.inner.end() }).await;
    }

    fn write_kubeconfig(&self, credentials: &Credentials) -> Result<PathBuf, Error> {
        let name = format!("user-{:08x}", fastrand::u32(..));
        self.inner.files.kubeconfig(&name, &self.inner.endpoint, credentials)
    }
}

async fn start(options: ControlPlaneOptions) -> Result<ControlPlane, Error> {
    let sources = match &options.binaries {
        Some(sources) => sources.clone(),
        None => BinarySources::from_env()?,
    };
    let mut parts = vec![Binary::Etcd, Binary::KubeApiserver];
    parts.extend(options.controller_manager.then_some(Binary::KubeControllerManager));
    let mut found = sources.find_or_build(&parts, &*options.progress).await?.into_iter();
    let mut next = || found.next().expect("a path for each part");
    let (etcd, api_server) = (next(), next());
    let paths = Paths { etcd, api_server, controller_manager: found.next() };

    let start = async || {
        let inner = Arc::new(Inner::prepare(options.clone(), paths.clone())?);
        inner.start().await?;
        Ok(ControlPlane { inner })
    };
    retry_port_races(PORT_RACES, start).await
}

impl Inner {
    /// Everything but the processes.
    fn prepare(options: ControlPlaneOptions, paths: Paths) -> Result<Self, Error> {
        let name = format!("pilotlight-{}-{:08x}", process::id(), fastrand::u32(..));
        let supervisor = Supervisor::start(env::temp_dir().join(name))?;
        let ports = Ports::free()?;
        let authority = Authority::new()?;
        let files = Files::write(supervisor.data(), &authority)?;
        let endpoint = Endpoint {
            port: ports.api_server,
            authority_pem: authority.pem(),
            authority_der: authority.der(),
        };
        let admin = Credentials::Certificate(authority.user("pilotlight-admin", MASTERS)?);
        let kubeconfig = files.kubeconfig("admin", &endpoint, &admin)?;
        let audit = options.audit.then(|| AuditLog::new(files.path("audit.log")));
        Ok(Self {
            processes: Mutex::default(),
            supervisor: Mutex::new(supervisor),
            lifecycle: tokio::sync::Mutex::default(),
            options,
            paths,
            ports,
            files,
            authority,
            endpoint,
            admin,
            kubeconfig,
            audit,
        })
    }

    async fn start(&self) -> Result<(), Error> {
        let etcd = flags::etcd(&self.paths.etcd, &self.files, self.ports);
        // A connection would be no proof: somebody else may have taken the port.
        let ready = async |etcd: &mut Process| etcd.logged(ETCD_READY).await;
        self.run(Binary::Etcd, etcd, ready).await?;
        self.start_api_server().await?;
        let Some(binary) = &self.paths.controller_manager else { return Ok(()) };
        let identity = self.authority.user("system:kube-controller-manager", MASTERS)?;
        let credentials = Credentials::Certificate(identity);
        let kubeconfig =
            self.files.kubeconfig("controller-manager", &self.endpoint, &credentials)?;
        let command = flags::controller_manager(binary, &self.files, self.ports, &kubeconfig);
        let endpoint = Endpoint { port: self.ports.controller_manager, ..self.endpoint.clone() };
        let client = client(endpoint.config(&self.admin))?;
        self.run(Binary::KubeControllerManager, command, async |process: &mut Process| {
            process.ready(async || healthy(&client, "/healthz").await).await
        })
        .await
    }

    async fn start_api_server(&self) -> Result<(), Error> {
        let command = flags::api_server(
            &self.paths.api_server,
            &self.files,
            self.ports,
            self.options.audit,
            &self.options.api_server_flags,
        );
        let client = client(self.endpoint.config(&self.admin))?;
        self.run(Binary::KubeApiserver, command, async |process: &mut Process| {
            process.ready(async || healthy(&client, "/readyz").await).await
        })
        .await
    }

    async fn restart_api_server(&self) -> Result<(), Error> {
        if self.processes().iter().any(|process| process.part() == Binary::KubeApiserver) {
            return Ok(());
        }
        retry_port_races(RESTART_RACES, async || self.start_api_server().await).await
    }

    /// Starts a process and waits until it is ready.
    async fn run(
        &self,
        part: Binary,
        command: process::Command,
        ready: impl AsyncFnOnce(&mut Process) -> Result<Duration, Error>,
    ) -> Result<(), Error> {
        let log = self.files.path(&format!("{}.log", part.file_name()));
        let group = self.supervisor().group();
        let mut process = Process::start(part, command, group, &log)?;
        let took = ready(&mut process).await?;
        self.processes().push(process);
        self.options.progress.report(&ProgressEvent::Ready { part, took });
        Ok(())
    }

    /// Kills that process, if it runs, and waits for its end.
    fn kill(&self, part: Binary) {
        self.processes().retain_mut(|process| {
            let keep = process.part() != part;
            if !keep {
                process.kill();
            }
            keep
        });
    }

    fn end(&self) {
        self.processes().clear();
        self.supervisor().end();
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn supervisor(&self) -> MutexGuard<'_, Supervisor> {
        self.supervisor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn retry_port_races<T>(
    limit: usize,
    attempt: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    for _ in 1..limit {
        match attempt().await {
            Err(Error::Exited { log, .. }) if log.contains("address already in use") => {}
            result => return result,
        }
    }
    attempt().await
}

fn client(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(Error::api("making a client"))
}

async fn healthy(client: &Client, path: &str) -> Result<(), String> {
    get(client, path).await.map_err(|error| error.to_string())
}

async fn get(client: &Client, path: &str) -> Result<(), Error> {
    let request = Request::get(path).body(Vec::new()).expect("the path is a path");
    client.request_text(request).await.map(drop).map_err(Error::api(format!("getting {path}")))
}
