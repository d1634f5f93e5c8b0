//! Operator with owned and watched types, predicates, an election, metrics and health checks.
//!
//! ```console
//! $ pilotlight dev --no-manager          # or any cluster; it prints how to reach it
//! $ cargo run --example memcached        # beside it; a second one stands by
//! $ cargo run --example memcached -- crd | kubectl apply --filename -
//! $ kubectl create --filename - <<< '{"apiVersion": "example.com/v1", "kind": "Memcached",
//!     "metadata": {"name": "a"}, "spec": {"size": 2}}'
//! $ kubectl get memcached a --output yaml
//! $ curl 'http://127.0.0.1:8081/readyz?verbose'; curl http://127.0.0.1:8081/metrics
//! ```
//!
//! A ConfigMap that is named like an object of this type has flags of its process. `docs/library.md`
//! compares this program with one that has controller-runtime.

use std::sync::Arc;

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Config, CustomResource, CustomResourceExt, ResourceExt};
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Handler, Outcome, Predicate, ReconcileError,
        for_object,
        write::{condition, set_condition, set_controller_reference},
    },
    informer::ObjectKey,
    manager::{Election, ElectionOptions, Manager, ManagerOptions},
    server::{HttpServer, metrics, probes},
    signals,
    transport::{self, TransportOptions},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Specification of a set of memcached processes.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Memcached", plural = "memcacheds")]
#[kube(namespaced, status = "MemcachedStatus")]
struct MemcachedSpec {
    /// Number of processes.
    #[schemars(range(min = 1, max = 5))]
    size: i32,
}

/// Status of a set of memcached processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct MemcachedStatus {
    #[schemars(schema_with = "conditions")]
    conditions: Vec<Condition>,
}

fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    }})
}

async fn reconcile(
    memcached: Option<Arc<Memcached>>,
    context: Context,
) -> Result<Outcome, ReconcileError> {
    let Some(memcached) = memcached else { return Ok(Outcome::Done) };
    let namespace = memcached.namespace().unwrap_or_default();
    let key = ObjectKey::namespaced(namespace, memcached.name_any());
    let config = context.lister::<ConfigMap>()?.get(&key)?;
    let flags = config.and_then(|config| config.data.clone()?.remove("flags")).unwrap_or_default();
    let applied = context.apply(&deployment(&memcached, &flags)?).await?;
    let ready = applied.status.and_then(|status| status.ready_replicas).unwrap_or_default();
    let message = format!("{ready} of {} processes are ready", memcached.spec.size);
    let available = match ready == memcached.spec.size {
        true => condition("Available", "True", "Ready", message),
        false => condition("Available", "False", "NotReady", message),
    };
    let mut status = memcached.status.clone().unwrap_or_default();
    if set_condition(&mut status.conditions, available) {
        context.apply_status(&Memcached { status: Some(status), ..(*memcached).clone() }).await?;
    }
    Ok(Outcome::Done)
}

fn deployment(memcached: &Memcached, flags: &str) -> Result<Deployment, ReconcileError> {
    let labels = json!({"app.kubernetes.io/name": memcached.name_any()});
    let command = ["memcached", "--memory-limit=64"].into_iter().chain(flags.split_whitespace());
    let mut deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": memcached.name_any(), "namespace": memcached.namespace()},
        "spec": {
            "replicas": memcached.spec.size,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "securityContext": {
                        "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": "memcached",
                        "image": "memcached:1.6-alpine",
                        "command": command.collect::<Vec<_>>(),
                        "ports": [{"containerPort": 11211, "name": "memcached"}],
                        "securityContext": {
                            "runAsUser": 1001, "allowPrivilegeEscalation": false,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    }))?;
    set_controller_reference(&mut deployment, memcached, &())?;
    Ok(deployment)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().any(|argument| argument == "crd") {
        serde_json::to_writer(std::io::stdout(), &Memcached::crd())?;
        return Ok(());
    }
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info").init();

    let config = Config::infer().await?;
    let namespace = config.default_namespace.clone();
    let options = TransportOptions::default();
    let requests = options.metrics.clone();
    let client = transport::client(config.clone(), options)?;
    let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
    let memcacheds = Controller::builder("memcacheds")
        .for_::<Memcached>()
        .conditional()
        .predicate(Predicate::generation()) // Not for its own writes of the status.
        .owns::<Deployment>()
        .watches::<ConfigMap>(Handler::Object)
        .predicate(Predicate::resource_version())
        .max_concurrent_reconciles(2)
        .build(&cluster, for_object(reconcile))?;

    let election =
        Election::new(ElectionOptions::new(namespace, "memcached-example"), move || {
            Ok(transport::client(config, TransportOptions::default())?)
        })?;
    let mut manager = Manager::new(ManagerOptions::default()).elect(election);
    runnable.with_metrics(move |all| requests.register(all)).add_to(&mut manager, "cluster")?;
    memcacheds.add_to(&mut manager)?;
    let address = std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:8081".to_owned());
    let pages = probes(&manager.handle()).merge(metrics(&manager.handle()));
    HttpServer::bind(address, pages)?.add_to(&mut manager, "server")?;
    Ok(manager.run(signals::shutdown()?).await?)
}
