//! Subcommand `dev`: starts a control plane with a manager, for development.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
    runtime::wait::{await_condition, conditions},
};
use pilotlight::{
    signals,
    testing::{
        Binary, BinarySources, ControlPlane, ControlPlaneOptions, PrintProgress, PrivateDirectory,
        simulated::SimulatedServer,
    },
    transport::{Transport, TransportOptions},
};
use tokio::{time::Instant, try_join};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::LevelFilter;

use super::{
    address::BindAddress,
    demo::{self, HookServer},
    instance::{Instance, ManagerArgs, MetacontrollerOptions, ServerArgs},
    output,
};

/// Timeout for a new CRD to become usable.
const USABLE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Args)]
pub(super) struct DevArgs {
    /// Run no manager: only a control plane with Pilotlight's CRDs.
    #[arg(long, conflicts_with = "demo")]
    no_manager: bool,
    /// Run a demo, then end. A controller is declared before its type exists. It starts when the
    /// type is installed, stops when it is removed, and starts again when it returns. Prints the
    /// duration of each step. While the control plane is built, the first time, the demo runs on a
    /// simulated API server.
    #[arg(long)]
    demo: bool,
    /// Keep everything running after the demo, until Ctrl-C.
    #[arg(long, requires = "demo")]
    keep: bool,
    /// Simulate the API server in this process: ready at once, without binaries. It has no
    /// controllers except the garbage collector, and refuses requests that it does not support.
    #[arg(long)]
    simulated: bool,
    /// Address of /metrics, /debug/status, /debug/types and /debug/queues: :PORT, HOST:PORT, or 0
    /// for no server. Port 0 means any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    metrics_address: BindAddress,
    /// Address of /healthz, /livez and /readyz: :PORT, HOST:PORT, or 0 for no server. Port 0 means
    /// any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    health_probe_bind_address: BindAddress,
    #[command(flatten)]
    manager: ManagerArgs,
}

/// Access to the API server.
struct ServerAccess<'a> {
    config: Config,
    kubeconfig: &'a Path,
}

impl DevArgs {
    /// Returns the default log level; lower with the demo, which prints its own steps.
    pub(super) fn log_level(&self) -> LevelFilter {
        if self.demo { LevelFilter::WARN } else { LevelFilter::INFO }
    }

    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let stop = signals::shutdown().context("listening for signals")?;
        self.until(stop).await
    }

    async fn until(&self, stop: CancellationToken) -> anyhow::Result<()> {
        let began = Instant::now();
        if self.simulated {
            return Box::pin(self.simulate(began, stop)).await;
        }
        let options = ControlPlaneOptions {
            progress: Arc::new(PrintProgress),
            ..ControlPlaneOptions::default()
        };
        let is_built = is_built(&BinarySources::from_env()?);
        let start = async {
            // Dropping the future stops the processes that it has started.
            let Some(plane) = stop.run_until_cancelled(ControlPlane::start(options)).await else {
                bail!("interrupted while the control plane was starting");
            };
            plane.context("starting the control plane")
        };
        let meanwhile = async {
            if self.demo && !is_built {
                self.simulate_meanwhile(&stop).await?;
            }
            Ok(())
        };
        let (plane, ()) = try_join!(start, meanwhile)?;
        let place = ServerAccess { config: plane.config(), kubeconfig: plane.kubeconfig() };
        let ended = Box::pin(self.with("A Kubernetes control plane", &place, began, stop)).await;
        plane.stop().await;
        ended
    }

    /// Runs the demo on a simulated API server, while the control plane is built.
    async fn simulate_meanwhile(&self, stop: &CancellationToken) -> anyhow::Result<()> {
        output::print(
            "The control plane is built now, once. Until it is there, the demo runs on a simulated \
             API server.\n\n",
        )?;
        let demo = Self { keep: false, simulated: true, ..self.clone() };
        // An error of the simulated server ends nothing: the demo on the real one follows.
        if let Err(error) = Box::pin(demo.simulate(Instant::now(), stop.child_token())).await {
            return output::print(&format!("The simulated demo ended early: {error:#}\n\n"));
        }
        output::print("\nThe demo runs again when the control plane is there.\n\n")
    }

    /// Runs on a simulated API server.
    async fn simulate(&self, began: Instant, stop: CancellationToken) -> anyhow::Result<()> {
        let server = SimulatedServer::new();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = server.serve(loopback).await.context("listening on the loopback")?;
        // Removed when dropped, since the kubeconfig is useless afterwards.
        let directory = PrivateDirectory::create("pilotlight-simulated")
            .context("creating a temporary directory")?;
        let kubeconfig = directory
            .put("kubeconfig", &socket.kubeconfig())
            .with_context(|| format!("writing into {}", directory.path().display()))?;
        let place = ServerAccess { config: socket.config(), kubeconfig: &kubeconfig };
        Box::pin(self.with("A simulated API server", &place, began, stop)).await
    }

    async fn with(
        &self,
        what: &str,
        place: &ServerAccess<'_>,
        began: Instant,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let transport = Transport::new(place.config.clone(), TransportOptions::default())?;
        let client = transport.client()?;
        install(&client, &pilotlight::meta::crds()).await?;
        output::print(&format!(
            "{what} runs, {:.1} s after the start. To use it:\n\n    \
             export KUBECONFIG={}\n\n",
            began.elapsed().as_secs_f64(),
            place.kubeconfig.display()
        ))?;
        let ended = if self.no_manager {
            output::print("No manager runs. Ctrl-C ends it and throws everything away.\n")?;
            stop.cancelled().await;
            Ok(())
        } else {
            Box::pin(self.manage(place, &client, stop)).await
        };
        transport.close().await;
        ended
    }

    /// Runs a manager, and next to it the demo.
    async fn manage(
        &self,
        place: &ServerAccess<'_>,
        client: &Client,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let servers = ServerArgs {
            metrics_address: self.metrics_address.clone(),
            health_probe_bind_address: self.health_probe_bind_address.clone(),
        };
        let instance = Instance::new(
            place.config.clone(),
            &self.manager,
            &servers,
            MetacontrollerOptions::default(),
        )?;
        output::print(&inspection(instance.metrics_address, instance.probe_address))?;
        let (handle, cluster) = (instance.handle.clone(), instance.cluster.clone());
        let hooks = if self.demo { Some(HookServer::start().await?) } else { None };
        let beside = async {
            if let Some(hooks) = &hooks {
                let play = Box::pin(demo::play(hooks, client, &handle, &cluster));
                let played = stop.run_until_cancelled(play).await;
                played.unwrap_or_else(|| bail!("the demo was interrupted"))?;
            }
            if !self.demo || self.keep {
                output::print("Ctrl-C ends everything and throws it away.\n")?;
                stop.cancelled().await;
            }
            Ok(())
        };
        let beside = async {
            let ended = beside.await;
            stop.cancel();
            ended
        };
        let run = instance.run(stop.clone());
        try_join!(beside, run).map(|((), ())| ())
    }
}

/// Returns whether all binaries of the control plane are there.
fn is_built(sources: &BinarySources) -> bool {
    let all = [Binary::Etcd, Binary::KubeApiserver, Binary::KubeControllerManager];
    all.into_iter().all(|binary| sources.find(binary).is_some())
}

/// Returns the commands that inspect the manager, with the ports that were chosen.
fn inspection(metrics: Option<SocketAddr>, probes: Option<SocketAddr>) -> String {
    let metrics = metrics.map(|address| format!("    pilotlight status --address {address}\n"));
    let probes = probes.map(|address| format!("    curl 'http://{address}/readyz?verbose'\n"));
    match (metrics, probes) {
        (None, None) => "A manager runs in this process.\n\n".to_owned(),
        (metrics, probes) => format!(
            "A manager runs in this process. To inspect it:\n\n{}{}\n",
            metrics.unwrap_or_default(),
            probes.unwrap_or_default()
        ),
    }
}

/// Installs CRDs and waits until their types can be listed.
pub(super) async fn install(
    client: &Client,
    crds: &[CustomResourceDefinition],
) -> anyhow::Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds {
        let name = crd.metadata.name.as_deref().context("a CRD has a name")?;
        let by = PatchParams::apply("pilotlight").force();
        api.patch(name, &by, &Patch::Apply(crd))
            .await
            .with_context(|| format!("installing {name}"))?;
        let usable = async {
            let established = conditions::is_crd_established();
            drop(await_condition(api.clone(), name, established).await?);
            listable(client, crd).await
        };
        match tokio::time::timeout(USABLE_WITHIN, usable).await {
            Ok(usable) => usable.with_context(|| format!("waiting for {name}"))?,
            Err(_) => bail!("{name} cannot be used after {USABLE_WITHIN:?}"),
        }
    }
    Ok(())
}

/// Waits until a new type can be listed. For some milliseconds the API server refuses lists and
/// watches of it with 404 or 429.
async fn listable(client: &Client, crd: &CustomResourceDefinition) -> anyhow::Result<()> {
    let version = crd.spec.versions.first().context("a CRD has a version")?;
    let gvk = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural);
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    loop {
        match api.list(&ListParams::default()).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 429) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_simulated_server_can_be_used_within_a_second_of_its_own_time() {
        let server = SimulatedServer::new();
        let begin = Instant::now();

        install(&server.client(), &pilotlight::meta::crds()).await.unwrap();

        // Paused time does not advance during computation, so this is the sum of the waits on any
        // machine.
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        let list = server.list("metacontroller.k8s.io/v1alpha1", "CompositeController");
        assert_eq!(list.unwrap().len(), 0);
    }
}
