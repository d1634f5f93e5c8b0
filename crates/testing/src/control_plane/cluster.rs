//! Processes and files of a control plane.

use std::{path::PathBuf, process, time::Duration};

use http::Request;
use kube::{Client, Config};
use parking_lot::{Mutex, MutexGuard};

use super::options::ControlPlaneOptions;
use crate::{
    AuditLog, Binary, BinarySources, Error, ProgressEvent,
    certificates::Authority,
    flags::{self, ControlPlaneFiles, Ports},
    kubeconfig::{KubeconfigCredentials, ServerEndpoint},
    private_directory,
    process::ChildProcess,
    supervisor::ProcessSupervisor,
};

/// Number of attempts to start with free ports, since another process may take one first.
const PORT_RACES: usize = 5;
/// Number of attempts to restart on the port of a killed API server.
const RESTART_RACES: usize = 50;
/// Log text of etcd once it serves.
const ETCD_READY: &str = "ready to serve client requests";
/// Groups with full access.
const MASTERS: &[&str] = &["system:masters"];

/// Parts of a control plane, which end when it is dropped.
#[derive(Debug)]
pub(super) struct ControlPlaneParts {
    /// Declared before the supervisor, so that children are killed and awaited before their data is
    /// removed.
    processes: Mutex<Vec<ChildProcess>>,
    supervisor: Mutex<ProcessSupervisor>,
    /// Lock that allows one start or stop of the API server at a time.
    pub(super) lifecycle: tokio::sync::Mutex<()>,
    options: ControlPlaneOptions,
    paths: Paths,
    ports: Ports,
    pub(super) files: ControlPlaneFiles,
    pub(super) authority: Authority,
    pub(super) endpoint: ServerEndpoint,
    pub(super) admin: KubeconfigCredentials,
    pub(super) kubeconfig: PathBuf,
    pub(super) audit: Option<AuditLog>,
}

#[derive(Clone, Debug)]
struct Paths {
    etcd: PathBuf,
    api_server: PathBuf,
    controller_manager: Option<PathBuf>,
}

impl ControlPlaneParts {
    /// Finds or builds the binaries, starts the processes and waits until they are ready.
    pub(super) async fn start(options: ControlPlaneOptions) -> Result<Self, Error> {
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
            let cluster = Self::prepare(options.clone(), paths.clone())?;
            cluster.start_processes().await?;
            Ok(cluster)
        };
        retry_port_races(PORT_RACES, start).await
    }

    /// Creates everything except the processes.
    fn prepare(options: ControlPlaneOptions, paths: Paths) -> Result<Self, Error> {
        let name = format!("pilotlight-{}", process::id());
        let supervisor = ProcessSupervisor::start(private_directory::unpredictable(&name))?;
        let ports = Ports::free()?;
        let authority = Authority::new()?;
        let files = ControlPlaneFiles::write(supervisor.data(), &authority)?;
        let endpoint = ServerEndpoint {
            port: ports.api_server,
            authority_pem: authority.pem(),
            authority_der: authority.der(),
        };
        let admin =
            KubeconfigCredentials::Certificate(authority.user("pilotlight-admin", MASTERS)?);
        let kubeconfig = files.kubeconfig("admin", &endpoint, &admin)?;
        let identity = authority.user("system:kube-controller-manager", MASTERS)?;
        let controller_manager = KubeconfigCredentials::Certificate(identity);
        files.kubeconfig(flags::CONTROLLER_MANAGER, &endpoint, &controller_manager)?;
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

    async fn start_processes(&self) -> Result<(), Error> {
        let etcd = flags::etcd(&self.paths.etcd, &self.files, self.ports);
        // A connection would prove nothing: another process may have taken the port.
        let ready = async |etcd: &mut ChildProcess| etcd.logged(ETCD_READY).await;
        self.run(Binary::Etcd, etcd, ready).await?;
        self.start_api_server().await?;
        self.start_controller_manager().await
    }

    /// Starts the controller manager, if it is enabled.
    async fn start_controller_manager(&self) -> Result<(), Error> {
        let Some(binary) = &self.paths.controller_manager else { return Ok(()) };
        let command = flags::controller_manager(binary, &self.files, self.ports);
        let endpoint =
            ServerEndpoint { port: self.ports.controller_manager, ..self.endpoint.clone() };
        let client = client(endpoint.config(&self.admin))?;
        self.run(Binary::KubeControllerManager, command, async |process: &mut ChildProcess| {
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
        self.run(Binary::KubeApiserver, command, async |process: &mut ChildProcess| {
            process.ready(async || healthy(&client, "/readyz").await).await
        })
        .await
    }

    /// Starts the API server unless it runs.
    pub(super) async fn restart_api_server(&self) -> Result<(), Error> {
        if self.processes().iter().any(|process| process.part() == Binary::KubeApiserver) {
            return Ok(());
        }
        retry_port_races(RESTART_RACES, async || self.start_api_server().await).await
    }

    /// Kills the controller manager, if it is enabled, and starts it again.
    pub(super) async fn restart_controller_manager(&self) -> Result<(), Error> {
        self.kill(Binary::KubeControllerManager);
        retry_port_races(RESTART_RACES, async || self.start_controller_manager().await).await
    }

    /// Starts a process and waits until it is ready.
    async fn run(
        &self,
        part: Binary,
        command: process::Command,
        ready: impl AsyncFnOnce(&mut ChildProcess) -> Result<Duration, Error>,
    ) -> Result<(), Error> {
        let log = self.files.path(&format!("{}.log", part.file_name()));
        let group = self.supervisor().group();
        let mut process = ChildProcess::start(part, command, group, &log)?;
        let took = ready(&mut process).await?;
        self.processes().push(process);
        self.options.progress.report(&ProgressEvent::Ready { part, took });
        Ok(())
    }

    /// Kills a process, if it runs, and waits for its end.
    pub(super) fn kill(&self, part: Binary) {
        self.processes().retain_mut(|process| {
            let keep = process.part() != part;
            if !keep {
                process.kill();
            }
            keep
        });
    }

    /// Ends all processes and removes the data; returns at once when called again.
    pub(super) fn end(&self) {
        self.processes().clear();
        self.supervisor().end();
    }

    pub(super) fn processes(&self) -> MutexGuard<'_, Vec<ChildProcess>> {
        self.processes.lock()
    }

    fn supervisor(&self) -> MutexGuard<'_, ProcessSupervisor> {
        self.supervisor.lock()
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

pub(super) fn client(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(Error::api("making a client"))
}

async fn healthy(client: &Client, path: &str) -> Result<(), String> {
    get(client, path).await.map_err(|error| error.to_string())
}

pub(super) async fn get(client: &Client, path: &str) -> Result<(), Error> {
    let request = Request::get(path).body(Vec::new()).expect("a path is a valid URI");
    client.request_text(request).await.map(drop).map_err(Error::api(format!("getting {path}")))
}
