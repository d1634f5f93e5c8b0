//! Instance: a manager with everything that the binary runs in it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use clap::{ArgAction, Args};
use kube::Config;
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    discovery::DiscoveryOptions,
    duration,
    informer::{InformerOptions, Selector},
    manager::{Election, Manager, ManagerHandle, ManagerOptions, RunnableOptions},
    meta::{
        Adoption, ApplyStrategy, DeclaredControllers, EventLimit, FieldManager, MetaOptions,
        Supervisor,
    },
    server::process,
    transport::{Proxies, Transport, TransportMetrics, TransportOptions},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    address::{self, BindAddress},
    admin::{DebugState, Listeners},
    budget::BudgetArgs,
    election::ElectionArgs,
    flag,
    strictness::StrictnessArgs,
};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Manager")]
pub(super) struct ManagerArgs {
    /// Watch namespaced objects in this namespace only. Cluster-scoped objects are watched too.
    /// Default: all namespaces.
    #[arg(long, value_name = "NAME", value_parser = flag::namespace)]
    namespace: Option<String>,
    /// Namespace of the ControllerRevisions of cluster-scoped parents. Controllers that update
    /// children one at a time write these objects. Default: the namespace of this process. With
    /// --namespace, that namespace is used and this flag has no effect.
    #[arg(long, value_name = "NAME", value_parser = flag::namespace)]
    controller_revision_namespace: Option<String>,
    /// Maximum number of concurrent hook calls of one controller. A sync that has begun to write is
    /// not counted: up to 50 parents of a controller are synced at once, or this number if it is
    /// higher. A number below 1 counts as 1. The annotation pilotlight.dev/workers of a controller
    /// takes precedence.
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = flag::go_int, allow_hyphen_values = true)]
    workers: i64,
    /// Maximum number of concurrent hook calls of all controllers together; 0 for no limit. Further
    /// calls wait in order. The wait does not count towards the timeout of the hook.
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    max_hook_calls: usize,
    /// Run only the declared controllers whose labels match this selector, such as
    /// `team=web,tier in (a,b)`. A controller that no longer matches is stopped. Default: all.
    #[arg(long, value_name = "SELECTOR", allow_hyphen_values = true)]
    target_label_selector: Option<Selector>,
    /// Show the first 256 bytes of a hook's error response in Events, statuses, logs and debug
    /// pages. They may hold secrets that the hook received, and all who may read Events can read
    /// them. Default: off.
    #[arg(long)]
    hook_error_excerpts: bool,
    /// Follow redirects of hooks with status 307 and 308, as Metacontroller does. Credentials are
    /// not sent to another host. With false, every redirect is an error.
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_value = "true",
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    hook_redirects: bool,
    /// Longest wait that a hook may request by status 429 and Retry-After, such as 1h. A longer
    /// wait is cut to this time. The hook is then called again, and may answer 429 again.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = flag::interval)]
    hook_retry_after_limit: Duration,
    /// Call hooks through the proxies that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name, as
    /// Metacontroller does. With false, hooks are called directly, and the API server keeps its
    /// proxy.
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_value = "true",
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    hook_proxy: bool,
    /// Orphans that a parent of a CompositeController adopts: selected for all that its selector
    /// matches, as in Metacontroller, or proven for those among them that a declared controller has
    /// written, or that have the annotation pilotlight.dev/adopt=true. A child that the hook does not
    /// want is deleted. With proven, the author of a parent cannot have objects of others deleted.
    #[arg(long, value_name = "ORPHANS", default_value_t = Adoption::Selected)]
    adopt: Adoption,
    /// Interval at which the served types are polled while the right to watch CRDs is missing; no
    /// effect otherwise. A duration such as 30s; less than 100ms counts as 100ms.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = flag::interval, allow_hyphen_values = true)]
    discovery_interval: Duration,
    /// Interval at which a type is listed that can be listed and not watched, such as
    /// pods.metrics.k8s.io; `pilotlight types` shows it as Polled. Each wait is up to a fifth
    /// shorter. A duration such as 15s; less than 100ms counts as 100ms.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = flag::interval, allow_hyphen_values = true)]
    poll_interval: Duration,
    /// Time that controllers have to finish their work when the process stops, such as 30s.
    /// Controllers that take longer are named and aborted, and the exit code is 1.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    graceful_shutdown_timeout: Duration,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    strictness: StrictnessArgs,
}

impl ManagerArgs {
    /// Returns the options of the cluster.
    fn cluster(&self) -> ClusterOptions {
        ClusterOptions {
            namespace: self.namespace.as_deref().map(Arc::from),
            discovery: DiscoveryOptions {
                static_interval: flag::used_interval(self.discovery_interval),
                ..DiscoveryOptions::default()
            },
            informers: InformerOptions {
                poll_interval: flag::used_interval(self.poll_interval),
                ..InformerOptions::default()
            },
        }
    }

    /// Logs the values that are not used as given.
    fn explain(&self) {
        if self.workers < 1 {
            warn!(
                given = self.workers,
                used = 1,
                "--workers is less than 1, so one worker is used"
            );
        }
        let intervals = [
            ("--discovery-interval", self.discovery_interval),
            ("--poll-interval", self.poll_interval),
        ];
        for (flag, given) in intervals {
            let used = flag::used_interval(given);
            if given != used {
                warn!(flag, ?given, ?used, "an interval is less than 100ms, so 100ms is used");
            }
        }
    }

    /// Returns the options of the declared controllers that flags set. `own_namespace` is that of
    /// this process, and `variable` reads an environment variable.
    ///
    /// # Errors
    ///
    /// Names the flag whose value is larger than another one allows.
    pub(super) fn meta_options(
        &self,
        upstream: &MetacontrollerOptions<'_>,
        own_namespace: String,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<MetaOptions> {
        let (apply_strategy, field_manager) = upstream.apply.clone();
        Ok(MetaOptions {
            workers: flag::used_workers(self.workers),
            max_hook_calls: self.max_hook_calls,
            responses: self.budget.budget()?,
            target: self.target_label_selector.clone().unwrap_or_default(),
            resync_period: upstream.resync_period,
            revision_namespace: self.revision_namespace(own_namespace).into(),
            events: upstream.events,
            apply_strategy,
            field_manager,
            max_children: self.budget.hook_response_children.get(),
            customize: self.budget.customize(),
            recreate_without_dry_run: self.strictness.recreate_without_dry_run,
            strictness: self.strictness.strictness(),
            adoption: self.adopt,
            hook_error_excerpts: self.hook_error_excerpts,
            hook_redirects: self.hook_redirects,
            longest_hook_retry_after: self.hook_retry_after_limit,
            hook_proxies: self.hook_proxies(variable),
            ..MetaOptions::default()
        })
    }

    /// Returns the namespace of the revisions of cluster-scoped parents; `own` is that of this
    /// process.
    fn revision_namespace(&self, own: String) -> String {
        self.controller_revision_namespace.clone().unwrap_or(own)
    }

    /// Returns the proxies of hooks that the environment names, and logs the variables that cannot
    /// be used. `variable` reads a variable.
    fn hook_proxies(&self, variable: impl Fn(&str) -> Option<String>) -> Proxies {
        if !self.hook_proxy {
            return Proxies::default();
        }
        let proxies = Proxies::from_environment(variable);
        for problem in proxies.problems() {
            warn!(
                problem,
                "calls of hooks through this proxy will fail; --hook-proxy=false reaches hooks \
                 directly"
            );
        }
        proxies
    }
}

/// Addresses of the manager's own servers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Manager")]
pub(super) struct ServerArgs {
    /// Address of /metrics, /debug/status, /debug/types and /debug/queues, which need no
    /// authentication: :PORT, HOST:PORT, or 0 for no server. An empty text means :8080.
    #[arg(long, value_name = "ADDRESS", default_value = ":9999", value_parser = address::metrics, allow_hyphen_values = true)]
    pub(super) metrics_address: BindAddress,
    /// Address of /healthz, /livez and /readyz: :PORT, HOST:PORT, or 0 for no server. An empty text
    /// means 0.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081", value_parser = address::probes, allow_hyphen_values = true)]
    pub(super) health_probe_bind_address: BindAddress,
}

/// Options that flags of Metacontroller set.
#[derive(Clone, Debug, Default)]
pub(super) struct MetacontrollerOptions<'a> {
    /// Resync period of controllers without `resyncPeriodSeconds`.
    pub(super) resync_period: Option<Duration>,
    /// Rate limit of the Events of one object.
    pub(super) events: EventLimit,
    /// Apply strategy, and the field manager of server-side apply.
    pub(super) apply: (ApplyStrategy, FieldManager),
    /// Leader election; none by default.
    pub(super) election: Option<&'a ElectionArgs>,
}

/// Manager that has not run yet, with handles on its parts.
#[derive(Debug)]
pub(super) struct Instance {
    manager: Manager,
    transport: Transport,
    #[cfg_attr(not(feature = "dev"), expect(dead_code, reason = "the command dev alone reads it"))]
    pub(super) cluster: Cluster,
    #[cfg_attr(not(feature = "dev"), expect(dead_code, reason = "the command dev alone reads it"))]
    pub(super) handle: ManagerHandle,
    pub(super) metrics_address: Option<SocketAddr>,
    pub(super) probe_address: Option<SocketAddr>,
}

impl Instance {
    /// Binds the servers' addresses and builds the manager. Must be called on a tokio runtime;
    /// sends no request.
    pub(super) fn new(
        config: Config,
        manager: &ManagerArgs,
        servers: &ServerArgs,
        upstream: MetacontrollerOptions<'_>,
    ) -> anyhow::Result<Self> {
        let listeners =
            Listeners::bind(&servers.health_probe_bind_address, &servers.metrics_address)?;
        let metrics_address = listeners.metrics_address();
        let probe_address = listeners.probe_address();

        manager.explain();
        let requests = TransportMetrics::default();
        let election = upstream.election.map(|it| it.election(&config, &requests));
        let election = election.transpose()?.flatten();
        let options = TransportOptions { metrics: requests.clone(), ..TransportOptions::default() };
        let own_namespace = config.default_namespace.clone();
        let transport = Transport::new(config, options)?;
        let (cluster, cluster_runnable) = Cluster::new(transport.client()?, manager.cluster());

        let mut owner = Manager::new(ManagerOptions {
            graceful_shutdown_timeout: Some(manager.graceful_shutdown_timeout),
            ..ManagerOptions::default()
        });
        let elected = election.as_ref().map(Election::status);
        if let Some(election) = election {
            owner = owner.elect(election);
        }
        let handle = owner.handle();
        let options = MetaOptions {
            user_agent: transport.user_agent().clone(),
            ..manager.meta_options(&upstream, own_namespace, |name| std::env::var(name).ok())?
        };
        let supervisors = Supervisor::all(&cluster, &handle, options)?;
        let declared = supervisors.iter().map(Supervisor::declared);
        let declared = declared.reduce(DeclaredControllers::and).context("no kind to supervise")?;
        for supervisor in supervisors {
            owner.add(supervisor.name(), Arc::new(supervisor), RunnableOptions::default())?;
        }
        // Without its view of the cluster or its servers this process is of no use.
        let cluster_runnable = cluster_runnable.with_metrics(move |all| requests.register(all));
        cluster_runnable.add_to(&mut owner, "cluster")?;
        handle.add_metrics("process", process::register);
        let shown = DebugState {
            manager: handle.clone(),
            cluster: cluster.clone(),
            declared,
            election: elected,
        };
        listeners.add_to(&mut owner, shown)?;
        Ok(Self { manager: owner, transport, cluster, handle, metrics_address, probe_address })
    }

    /// Runs until `stop` is cancelled and everything has ended.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let result = self.manager.run(stop).await;
        self.transport.close().await;
        result.context("the manager ended")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        manager: ManagerArgs,
        #[command(flatten)]
        servers: ServerArgs,
    }

    /// Instance whose API server does not exist.
    fn instance() -> Instance {
        let flags = Flags::parse_from([
            "test",
            "--metrics-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
        ]);
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        Instance::new(config, &flags.manager, &flags.servers, MetacontrollerOptions::default())
            .unwrap()
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn server_answers_while_it_runs_and_ends_on_request() {
        let instance = instance();
        let probes = instance.probe_address.unwrap();
        let metrics = instance.metrics_address.unwrap();
        let stop = CancellationToken::new();

        let requests = async {
            let responses = [
                get(probes, "/livez").await,
                get(probes, "/readyz").await,
                get(probes, "/readyz?verbose").await,
                get(metrics, "/metrics").await,
                get(metrics, "/debug/status").await,
                get(metrics, "/debug/types").await,
                get(probes, "/metrics").await,
            ];
            stop.cancel();
            responses
        };
        let (ended, responses) = tokio::join!(instance.run(stop.clone()), requests);

        ended.unwrap();
        let [live, ready, verbose, scraped, status, types, elsewhere] = responses;
        assert!(live.starts_with("HTTP/1.1 200"), "{live}");
        assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
        assert!(ready.contains("[-]discovery/cluster no response"), "{ready}");
        assert!(!ready.contains("controller/probes"), "only what failed: {ready}");
        assert!(verbose.contains("[+]controller/probes Running"), "{verbose}");
        for metric in [
            "pilotlight_controller_state",
            "pilotlight_discovery_requests",
            "pilotlight_informer_watches",
            "controller_runtime_reconcile",
            "rest_client_requests",
            "process_cpu_seconds",
        ] {
            assert!(scraped.contains(metric), "{metric}: {scraped}");
        }
        assert!(scraped.ends_with("# EOF\n"), "{scraped}");
        let status: Value = serde_json::from_str(status.rsplit("\r\n").next().unwrap()).unwrap();
        let names: Vec<_> =
            status["controllers"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
        assert!(names.contains(&&json!("metrics")), "{names:?}");
        let types: Value = serde_json::from_str(types.rsplit("\r\n").next().unwrap()).unwrap();
        assert_eq!(types[0]["state"], "Unknown", "requested, and not answered: {types}");
        assert!(elsewhere.starts_with("HTTP/1.1 404"), "probes and data are kept apart");
    }

    #[test]
    fn longest_wait_for_a_hook_is_a_flag() {
        let longest = |arguments: &[&str]| {
            let flags = Flags::try_parse_from([&["test"], arguments].concat());
            flags.map(|flags| flags.manager.hook_retry_after_limit).ok()
        };

        assert_eq!(longest(&[]), Some(Duration::from_secs(300)));
        assert_eq!(longest(&["--hook-retry-after-limit=1h"]), Some(Duration::from_secs(3600)));
        assert_eq!(longest(&["--hook-retry-after-limit=0"]), None);
    }

    #[test]
    fn interval_of_polls_is_a_flag() {
        let interval = |arguments: &[&str]| {
            let flags = Flags::try_parse_from([&["test"], arguments].concat());
            flags.map(|flags| flags.manager.cluster().informers.poll_interval).ok()
        };

        assert_eq!(interval(&[]), Some(Duration::from_secs(15)));
        assert_eq!(interval(&["--poll-interval=1m"]), Some(Duration::from_secs(60)));
        assert_eq!(interval(&["--poll-interval=1ms"]), Some(Duration::from_millis(100)));
        assert_eq!(interval(&["--poll-interval=0"]), None);
        assert_eq!(interval(&["--poll-interval=-1s"]), None);
    }

    #[test]
    fn namespace_of_revisions_is_a_flag_and_else_the_own_one() {
        let namespace = |arguments: &[&str]| {
            let flags = Flags::parse_from([&["test"], arguments].concat());
            flags.manager.revision_namespace("own".to_owned())
        };

        assert_eq!(namespace(&[]), "own");
        assert_eq!(namespace(&["--controller-revision-namespace=system"]), "system");
    }

    #[test]
    fn hooks_use_the_proxies_of_the_environment_unless_that_is_disabled() {
        let proxies = |arguments: &[&str]| {
            let flags = Flags::parse_from([&["test"], arguments].concat());
            let variable = |name: &str| {
                let value = (name == "HTTP_PROXY").then_some("http://me:secret@proxy:3128");
                value.map(str::to_owned)
            };
            format!("{:?}", flags.manager.hook_proxies(variable))
        };

        assert!(proxies(&[]).contains("http://proxy:3128/"), "{}", proxies(&[]));
        assert!(!proxies(&[]).contains("secret"), "{}", proxies(&[]));
        assert!(!proxies(&["--hook-proxy=false"]).contains("proxy:3128"));
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_with_its_flag() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("--metrics-address={}", taken.local_addr().unwrap());
        let flags = Flags::parse_from(["test", &address, "--health-probe-bind-address=0"]);
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());

        let error =
            Instance::new(config, &flags.manager, &flags.servers, MetacontrollerOptions::default())
                .unwrap_err();

        assert!(format!("{error:#}").starts_with(&address.replace('=', " ")), "{error:#}");
    }
}
