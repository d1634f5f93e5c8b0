//! Subcommand `run`: runs the declared controllers of a cluster.

use anyhow::Context;
use clap::Args;
use pilotlight::{redaction, signals};
use tokio::select;
use tracing::info;
use tracing_subscriber::filter::LevelFilter;

use super::{
    connection::ConnectionArgs,
    election::ElectionArgs,
    instance::{Instance, ManagerArgs, MetacontrollerOptions, ServerArgs},
    logging::LogFormat,
    memory,
    metacontroller::MetacontrollerArgs,
};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(flatten)]
    manager: ManagerArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    election: ElectionArgs,
    #[command(flatten)]
    metacontroller: MetacontrollerArgs,
}

impl RunArgs {
    pub(super) fn log_level(&self) -> LevelFilter {
        self.metacontroller.log_level().unwrap_or(LevelFilter::INFO)
    }

    pub(super) fn log_format(&self) -> LogFormat {
        self.metacontroller.log_format().unwrap_or(LogFormat::Text)
    }

    pub(super) async fn run(&self) -> anyhow::Result<()> {
        self.metacontroller.explain();
        let config = self.connection.config().await?;
        let server = redaction::url(&config.cluster_url);
        let instance = Instance::new(
            config,
            &self.manager,
            &self.servers,
            MetacontrollerOptions {
                resync_period: self.metacontroller.resync_period(),
                events: self.metacontroller.event_limit(),
                apply: self.metacontroller.apply(),
                election: Some(&self.election),
            },
        )?;
        info!(
            %server,
            version = env!("CARGO_PKG_VERSION"),
            metrics = instance.metrics_address.map(tracing::field::display),
            probes = instance.probe_address.map(tracing::field::display),
            "starting"
        );
        let stop = signals::shutdown().context("listening for signals")?;
        select! {
            result = instance.run(stop) => result?,
            () = memory::return_freed() => {}
        }
        info!("stopped");
        Ok(())
    }
}
