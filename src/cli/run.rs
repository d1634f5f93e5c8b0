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

    /// Checks the flags together.
    ///
    /// # Errors
    ///
    /// Names the flag whose value cannot be used.
    pub(super) fn check(&self) -> Result<(), String> {
        self.metacontroller.check()
    }

    /// Returns the options that flags of Metacontroller set.
    fn upstream(&self) -> MetacontrollerOptions<'_> {
        MetacontrollerOptions {
            resync_period: self.metacontroller.resync_period(),
            events: self.metacontroller.event_limit(),
            apply: self.metacontroller.apply(),
            election: Some(&self.election),
        }
    }

    pub(super) async fn run(&self) -> anyhow::Result<()> {
        self.metacontroller.explain();
        let config = self.connection.config().await?;
        let server = redaction::url(&config.cluster_url);
        let instance = Instance::new(config, &self.manager, &self.servers, self.upstream())?;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use pilotlight::{
        informer::Selector,
        meta::{
            Adoption, ApplyStrategy, CustomizeLimits, EventLimit, FieldManager, MetaOptions,
            ResponseLimits, Strictness,
        },
    };

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        run: RunArgs,
    }

    /// Returns the options of the declared controllers, with a proxy in the environment.
    fn options(arguments: &[&str]) -> MetaOptions {
        let run = Flags::try_parse_from([&["test"], arguments].concat()).unwrap().run;
        let proxy = |name: &str| (name == "HTTP_PROXY").then(|| "http://proxy:3128".to_owned());
        run.manager.meta_options(&run.upstream(), "own".to_owned(), proxy).unwrap()
    }

    #[test]
    fn flags_set_each_option_of_the_declared_controllers() {
        // Every field is named, so that a new one is checked or left out on purpose.
        let MetaOptions {
            workers,
            runnable: _,
            metrics: _,
            hooks: _,
            responses,
            max_hook_calls,
            target,
            resync_period,
            max_children,
            customize,
            revision_namespace,
            events,
            recreate_without_dry_run,
            apply_strategy,
            field_manager,
            strictness,
            adoption,
            hook_error_excerpts,
            hook_redirects,
            longest_hook_retry_after,
            hook_proxies,
            user_agent: _,
        } = options(&[
            "--workers=6",
            "--max-hook-calls=7",
            "--hook-response-budget=64Mi",
            "--hook-response-budget-per-controller=4Mi",
            "--hook-response-limit=1Mi",
            "--hook-response-children=8",
            "--target-label-selector=team=web",
            "--cache-flush-interval=9m",
            "--customize-response-limit=2Mi",
            "--customize-rules=10",
            "--customize-names=11",
            "--controller-revision-namespace=system",
            "--events-qps=2",
            "--events-burst=12",
            "--recreate-without-dry-run",
            "--apply-strategy=server-side-apply",
            "--apply-strategy-ssa-field-manager=team",
            "--unlimited-writes",
            "--strict",
            "--hook-managed-fields",
            "--adopt=proven",
            "--hook-error-excerpts",
            "--hook-redirects=false",
            "--hook-retry-after-limit=13m",
            "--hook-proxy=false",
        ]);

        assert_eq!((workers, max_hook_calls, max_children), (6, 7, 8));
        assert_eq!(
            responses.limits(),
            ResponseLimits { process: 64 << 20, controller: 4 << 20, response: 1 << 20 }
        );
        assert_eq!(target, "team=web".parse::<Selector>().unwrap());
        assert_eq!(resync_period, Some(Duration::from_secs(9 * 60)));
        assert_eq!(customize, CustomizeLimits { response_bytes: 2 << 20, rules: 10, names: 11 });
        assert_eq!(&*revision_namespace, "system");
        assert_eq!(events, EventLimit { burst: 12, refill: Duration::from_millis(500) });
        assert!(recreate_without_dry_run);
        assert_eq!(apply_strategy, ApplyStrategy::ServerSideApply);
        assert_eq!(field_manager.as_str(), "team");
        assert_eq!(adoption, Adoption::Proven);
        assert_eq!(
            strictness,
            Strictness { strict: true, unlimited_writes: true, managed_fields: true }
        );
        assert!(hook_error_excerpts);
        assert!(!hook_redirects);
        assert_eq!(longest_hook_retry_after, Duration::from_secs(13 * 60));
        assert!(!format!("{hook_proxies:?}").contains("proxy:3128"), "{hook_proxies:?}");
    }

    #[test]
    fn options_of_the_declared_controllers_without_flags_are_the_documented_ones() {
        let options = options(&[]);

        assert_eq!((options.workers, options.max_hook_calls, options.max_children), (5, 0, 10_000));
        assert_eq!(
            options.responses.limits(),
            ResponseLimits { process: 128 << 20, controller: 32 << 20, response: 16 << 20 }
        );
        assert_eq!(options.target, Selector::default());
        assert_eq!(options.resync_period, Some(Duration::from_secs(30 * 60)));
        assert_eq!(options.customize, CustomizeLimits::default());
        assert_eq!(&*options.revision_namespace, "own");
        let events = EventLimit { burst: 25, refill: Duration::from_secs(300) };
        assert_eq!(options.events, events);
        assert!(!options.recreate_without_dry_run);
        assert_eq!(options.apply_strategy, ApplyStrategy::DynamicApply);
        assert_eq!(options.field_manager, FieldManager::default());
        assert_eq!(options.strictness, Strictness::default());
        assert_eq!(options.adoption, Adoption::Selected);
        assert!(!options.hook_error_excerpts);
        assert!(options.hook_redirects);
        assert_eq!(options.longest_hook_retry_after, Duration::from_secs(300));
        let proxies = format!("{:?}", options.hook_proxies);
        assert!(proxies.contains("proxy:3128"), "{proxies}");
    }
}
