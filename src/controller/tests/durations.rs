//! Zero and maximal values of every duration in the public options.

use super::*;
use crate::{
    discovery::DiscoveryOptions,
    informer::InformerOptions,
    manager::RestartBackoff,
    testing::{
        Action, Faults, LeakOracle, Profile, Rule, Schedule,
        simulated::{Delays, SimulatedOptions, SimulatedServer},
    },
};

/// Reconciler that fails once, and then requeues after a duration.
struct FailsThenRequeues(Duration, Log);

impl Reconciler for FailsThenRequeues {
    async fn reconcile(&self, request: Request, _: Context) -> Result<Outcome, ReconcileError> {
        let mut log = self.1.lock().unwrap();
        log.push(request.to_string());
        match log.len() {
            1 => Err("the first time".into()),
            _ if self.0.is_zero() => Ok(Outcome::Done),
            _ => Ok(Outcome::RequeueAfter(self.0)),
        }
    }
}

/// Runs a controller for an hour with one duration in all options, then deletes its type. Returns
/// its reconciles and its last state.
async fn run_with(given: Duration) -> (Vec<String>, ControllerState) {
    let server = Server::new();
    server.install(crd("Widget"), &["v1"]);
    server.apply(widget("a", "a"));
    let options = ClusterOptions {
        discovery: DiscoveryOptions {
            backstop: given,
            static_interval: given,
            request_deadline: given,
        },
        informers: InformerOptions {
            linger: given,
            request_deadline: given,
            poll_interval: given,
            ..InformerOptions::default()
        },
        ..ClusterOptions::default()
    };
    let (cluster, runnable) = Cluster::new(server.client(), options);
    let restart_backoff = RestartBackoff {
        first: given,
        longest: given,
        healthy: given,
        flaps: 0,
        flap_interval: given,
    };
    let mut manager = Manager::new(ManagerOptions {
        graceful_shutdown_timeout: Some(given),
        group_start_timeout: Some(given),
        restart_backoff,
        ..ManagerOptions::default()
    });
    let options = || RunnableOptions { grace: given, ..RunnableOptions::default() };
    manager.add_runnable("cluster", Arc::new(runnable), options()).unwrap();
    let handle = manager.handle();
    let log = Log::default();
    let controller = builder()
        .for_type(widgets())
        .conditional()
        .owns_type(parts())
        .optional()
        .reconcile_timeout(if given.is_zero() { Duration::from_secs(1) } else { given })
        .sync_timeout(given)
        .backoff(Backoff { base: given.min(Duration::from_millis(5)), max: given })
        .build(&cluster, FailsThenRequeues(given, Arc::clone(&log)))
        .unwrap();
    manager.add(NAME, Arc::new(controller), options()).unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { manager.run(stopped).await });

    sleep(Duration::from_secs(3600)).await;
    let reconciled = log.lock().unwrap().clone();
    // Meanwhile the informer lingers, and discovery polls.
    server.uninstall("widgets");
    sleep(Duration::from_secs(60)).await;
    let state = handle.status_of(NAME).unwrap().state;
    server.forbid("customresourcedefinitions");
    sleep(Duration::from_secs(3600)).await;
    stop.cancel();
    // A shutdown with a timeout of zero may be late.
    drop(tasks.join_next().await.unwrap().unwrap());
    (reconciled, state)
}

#[tokio::test(start_paused = true)]
async fn every_public_duration_may_be_endless() {
    let (log, state) = run_with(Duration::MAX).await;

    assert_eq!(log, ["ns/a", "ns/a"]);
    assert_eq!(state, ControllerState::Waiting);
}

#[tokio::test(start_paused = true)]
async fn every_public_duration_may_be_zero() {
    // No assertion: with a deadline of zero every request fails.
    run_with(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn every_duration_of_the_test_kit_may_be_zero_or_endless() {
    for given in [Duration::ZERO, Duration::MAX] {
        let each = Delays {
            latency: Duration::ZERO,
            names_accepted: given,
            established: given,
            storage_ready: given,
            create_hold: given,
            instance_deletion: given,
            instance_check: given.max(Duration::from_secs(1)),
            watch_teardown: given,
            garbage_collection: given,
            namespace_drain: given.max(Duration::from_secs(1)),
        };
        for delays in [
            each,
            Delays { names_accepted: Duration::ZERO, established: Duration::ZERO, ..each },
            Delays { latency: given, ..Delays::none() },
        ] {
            let server =
                SimulatedServer::with(SimulatedOptions { delays, ..SimulatedOptions::default() });
            server.install(&crd("Widget").version("v1").build()).unwrap();
            let client = server.client();
            for path in ["/apis/example.com/v1/widgets", "/apis/example.com/v1/widgets?watch=true"]
            {
                let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
                let sent = tokio::time::timeout(Duration::from_secs(60), client.send(request));
                drop(sent.await);
            }
            server.uninstall("widgets.example.com").unwrap();
            sleep(Duration::from_secs(60)).await;
        }

        let oracle = LeakOracle::new().patience(given);
        oracle.compare(&oracle.measure()).await.unwrap();
        let profile = Profile { longest: given, hold: given, ..Profile::default() };
        for seed in 0..100 {
            drop(Schedule::random(seed, &profile));
        }
        for action in [Action::Delay(given), Action::Hang] {
            let faults = Faults::default();
            faults.add(Rule::new(action).at_most(given));
            let service = tower::ServiceBuilder::new().layer(faults.layer());
            let service = service.service(SimulatedServer::new().service("test"));
            let client = kube::Client::new(service, "default");
            let sent = client.apiserver_version();
            drop(tokio::time::timeout(Duration::from_secs(60), sent).await);
        }
    }
}
