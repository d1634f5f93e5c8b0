//! Which API server, and as whom.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use pilotlight::transport::{Transport, TransportOptions};

#[derive(Debug, Args)]
#[command(next_help_heading = "API server")]
pub(super) struct ConnectionArgs {
    /// The kubeconfig file. Without it: $KUBECONFIG, else the service account of the pod, else
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; its current one by default.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ConnectionArgs {
    /// Reads the configuration.
    pub(super) async fn config(&self) -> anyhow::Result<Config> {
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        if let Some(file) = &self.kubeconfig {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig {}", file.display()))?;
            return Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .with_context(|| format!("--kubeconfig {}", file.display()));
        }
        if self.context.is_some() || std::env::var_os("KUBECONFIG").is_some() {
            return Config::from_kubeconfig(&options)
                .await
                .context("reading the kubeconfig that KUBECONFIG names, or ~/.kube/config");
        }
        match Config::incluster() {
            Ok(config) => Ok(config),
            Err(_) => Config::from_kubeconfig(&options).await.context(
                "no API server is known: not in a pod, KUBECONFIG is not set, and \
                 ~/.kube/config cannot be used; pass --kubeconfig FILE",
            ),
        }
    }

    /// Connections to that server; none is opened yet.
    pub(super) async fn transport(&self, options: TransportOptions) -> anyhow::Result<Transport> {
        Ok(Transport::new(self.config().await?, options)?)
    }
}
