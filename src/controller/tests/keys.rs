//! Custom keys: controllers whose requests name values of the program's own type.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use super::{unknown_outcome::make, *};
use crate::manager::{metrics_text, prometheus_client::registry::Registry};

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Shard {
    tenant: String,
    number: u32,
}

fn key(tenant: &str, number: u32) -> Request {
    Request::of_key(&Shard { tenant: tenant.to_owned(), number }).unwrap()
}

impl Harness {
    /// Adds a controller whose reconciler takes keys, and waits until it runs.
    async fn add_keyed<R>(
        &self,
        builder: Builder,
        reconcile: impl Fn(Shard, Context) -> R + Send + Sync + 'static,
    ) where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let controller = builder.build(&self.cluster, for_key(reconcile)).unwrap();
        controller.add_to_running(&self.manager).await.unwrap();
        self.state(ControllerState::Running).await;
    }

    /// Adds a controller that logs its keys.
    async fn log_keys(&self, builder: Builder) {
        let log = Arc::clone(&self.log);
        let reconcile = move |shard: Shard, _: Context| {
            log.lock().unwrap().push(format!("{} {}", shard.tenant, shard.number));
            async { Ok(Outcome::Done) }
        };
        self.add_keyed(builder, reconcile).await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_equal_keys_are_merged_while_queued() {
    let harness = Harness::new();
    let (requests, source) = ChannelSource::new(10);
    for (tenant, number) in [("a", 1), ("b", 1), ("a", 2), ("a", 1)] {
        requests.send(key(tenant, number)).await.unwrap();
    }

    harness.log_keys(builder().source(source)).await;

    assert_eq!(harness.sorted_log().await, ["a 1", "a 2", "b 1"]);
    harness.shutdown().await;
}

/// Reconciler of keys that logs them.
struct Sharder(Log);

impl KeyReconciler<Shard> for Sharder {
    async fn reconcile(&self, shard: Shard, _: Context) -> Result<Outcome, ReconcileError> {
        self.0.lock().unwrap().push(format!("{} {}", shard.tenant, shard.number));
        Ok(Outcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_reconciled_by_a_type_of_the_program() {
    let harness = Harness::new();
    let (requests, source) = ChannelSource::new(10);
    let sharder = for_keys_of(Sharder(Arc::clone(&harness.log)));
    let controller = builder().source(source).build(&harness.cluster, sharder).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;

    requests.send(key("a", 1)).await.unwrap();

    assert_eq!(harness.log().await, ["a 1"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_config_maps_are_mapped_to_keys() {
    let harness = Harness::new();
    let map =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    harness.server.apply(map("a"));
    let shards = Handler::typed(|event: Event<ConfigMap>, queue: &mut Enqueue<'_>| {
        for number in 0..2 {
            queue.add(key(&event.object().name_any(), number));
        }
    });

    harness.log_keys(builder().watches::<ConfigMap>(shards)).await;

    assert_eq!(harness.sorted_log().await, ["a 0", "a 1"]);
    harness.server.apply(map("b"));
    assert_eq!(harness.sorted_log().await, ["b 0", "b 1"]);
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn each_source_of_requests_adds_keys() {
    let harness = Harness::new();
    let (requests, channel) = ChannelSource::new(1);
    let function = FunctionSource::new("a function", |context| async move {
        context.enqueue(key("function", 1));
        context.stopping().await;
    });
    let interval = FunctionSource::interval(Duration::from_secs(60), key("interval", 1));
    let described = builder().source(function).source(interval);
    harness.log_keys(described.source(channel)).await;

    requests.send(key("channel", 1)).await.unwrap();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(harness.sorted_log().await, ["channel 1", "function 1", "interval 1"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retries_and_requeues_keep_the_key() {
    let harness = Harness::new();
    let (requests, source) = ChannelSource::new(10);
    let log = Arc::clone(&harness.log);
    let reconcile = move |shard: Shard, context: Context| {
        let note = format!("{} {}", shard.tenant, shard.number);
        let mut log = log.lock().unwrap();
        let before = log.iter().filter(|logged| **logged == note).count();
        log.push(note);
        // The reconcile of one key adds another key.
        if (before, &*shard.tenant) == (3, "a") {
            context.enqueue(key("c", 1));
        }
        async move {
            match before {
                0 => Err(ReconcileError::from("not yet")),
                1 => Ok(Outcome::RequeueAfter(Duration::from_secs(60))),
                2 => Ok(Outcome::Requeue),
                _ => Ok(Outcome::Done),
            }
        }
    };
    harness.add_keyed(builder().source(source), reconcile).await;

    requests.send(key("a", 1)).await.unwrap();
    requests.send(key("b", 1)).await.unwrap();
    sleep(Duration::from_secs(3600)).await;

    let log = harness.sorted_log().await;
    assert_eq!(log, ["a 1", "b 1", "c 1"].map(|note| [note; 4]).concat());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconcile_of_a_key_waits_until_the_cache_holds_its_own_write() {
    let harness = Harness::new();
    harness.install("Part");
    let (requests, source) = ChannelSource::new(10);
    let log = Arc::clone(&harness.log);
    let reconcile = move |shard: Shard, context: Context| {
        let cached = context.store(&parts()).unwrap().all();
        let own = cached.iter().filter(|part| part.key().name.starts_with(&*shard.tenant)).count();
        log.lock().unwrap().push(format!("{} {own}", shard.tenant));
        async move {
            if own == 0 {
                make(context.client().clone(), shard.tenant).await?;
            }
            Ok(Outcome::Done)
        }
    };
    let ignored = Handler::delta(|_, _| {});
    harness.add_keyed(builder().watches_type(parts(), ignored).source(source), reconcile).await;
    let silence = harness.server.withhold("parts");
    requests.send(key("a", 1)).await.unwrap();
    assert_eq!(harness.log().await, ["a 0"]);

    requests.send(key("a", 1)).await.unwrap();
    requests.send(key("b", 1)).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(harness.log().await, ["b 0"], "another key does not wait");
    harness.server.release("parts", silence);
    sleep(Duration::from_secs(30)).await;

    assert_eq!(harness.log().await, ["a 1"]);
    assert_eq!(harness.server.creations(), 2);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn request_that_is_no_key_is_reported_once_and_not_retried() {
    let harness = Harness::new();
    let mut registry = Registry::default();
    harness.cluster.register_metrics(&mut registry);
    let (requests, source) = ChannelSource::new(1);
    harness.log_keys(builder().source(source)).await;

    requests.send(Request::namespaced("ns", "nothing")).await.unwrap();
    let failed = harness.until(|status| status.report.last_error.is_some()).await;
    sleep(Duration::from_secs(3600)).await;

    let error = failed.report.last_error.as_deref().unwrap();
    assert!(error.starts_with("ns/nothing: the request ns/nothing names an object"), "{error}");
    let series = "controller_runtime_terminal_reconcile_errors_total{controller=\"widgets\"}";
    let text = metrics_text(&registry).unwrap();
    assert!(text.lines().any(|line| line == format!("{series} 1")), "{text}");
    assert_eq!(harness.log().await, [""; 0]);
    harness.shutdown().await;
}
