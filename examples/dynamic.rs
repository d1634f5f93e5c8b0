//! Controllers for types that are not known at build time: one for each type that matches a rule.
//!
//! ```console
//! $ pilotlight dev --no-manager          # or any cluster; it prints how to reach it
//! $ cargo run --example dynamic          # beside it
//! $ cargo run --example embed -- crd | kubectl apply --filename -
//! $ kubectl patch crd widgets.example.com --type merge \
//!     --patch '{"spec": {"names": {"categories": ["census"]}}}'   # its controller starts
//! $ curl http://127.0.0.1:8082/metrics
//! $ kubectl patch crd widgets.example.com --type merge \
//!     --patch '{"spec": {"names": {"categories": []}}}'           # its controller is removed
//! ```
//!
//! The controller `types` reconciles CRDs. It adds a controller for each CRD of the category to the
//! manager, which counts the objects, and removes it when the CRD has left the category or is
//! deleted. `docs/library.md` compares this program with one that has controller-runtime.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Outcome, ReconcileError, Reconciler, Request,
    },
    kind::TypeRef,
    manager::{
        Manager, ManagerHandle, ManagerOptions,
        prometheus_client::{
            metrics::{family::Family, gauge::Gauge},
            registry::Registry,
        },
    },
    server::{HttpServer, metrics},
    signals,
    transport::{self, TransportOptions, proxy_from_environment},
};
use tracing::info;

/// Rule: types of this category have a controller.
const CATEGORY: &str = "census";

/// Numbers of objects by type.
type Counts = Family<[(&'static str, String); 1], Gauge>;

/// Reconciler of CRDs: adds and removes the controllers of their types.
struct Types {
    cluster: Cluster,
    manager: ManagerHandle,
    counts: Counts,
}

/// Reconciler of the objects of one type.
struct ObjectCounter {
    counted: TypeRef,
    count: Gauge,
}

impl Reconciler for Types {
    async fn reconcile(&self, crd: Request, context: Context) -> Result<Outcome, ReconcileError> {
        let name = format!("census-{}", crd.key.name);
        let is_added = self.manager.status_of(name.as_str()).is_some();
        let label = [("crd", crd.key.name.to_string())];
        let crds = context.lister::<CustomResourceDefinition>()?;
        let is_wanted = |crd: &CustomResourceDefinition| {
            crd.spec.names.categories.iter().flatten().any(|it| it == CATEGORY)
        };
        match crds.get(&crd)?.filter(|crd| is_wanted(crd)) {
            Some(crd) if !is_added => {
                let spec = crd.spec.clone();
                // Any served version; the controller restarts if that one is no longer served.
                let counted = TypeRef::resource(spec.group, "", spec.names.plural).any_version();
                let count = self.counts.get_or_create_owned(&label);
                let census = Controller::builder(name)
                    .for_type(counted.clone())
                    .conditional()
                    .build(&self.cluster, ObjectCounter { counted, count })?;
                census.add_to_running(&self.manager).await?;
            }
            None if is_added => {
                self.manager.remove(name).await;
                self.counts.remove(&label);
            }
            Some(_) | None => {}
        }
        Ok(Outcome::Done)
    }
}

impl Reconciler for ObjectCounter {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let store = context.store(&self.counted)?;
        let object: Option<DynamicObject> =
            store.get(&request).map(|it| it.decode()).transpose()?;
        self.count.set(i64::try_from(store.len())?);
        info!(resource = %self.counted, object = %request, exists = object.is_some(), "counted");
        Ok(Outcome::Done)
    }
}

/// Returns options with a product for `User-Agent`.
fn options() -> TransportOptions {
    TransportOptions {
        product: Some("dynamic-example/1.0".to_owned()),
        ..TransportOptions::default()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info,dynamic=info").init();

    let mut config = kube::Config::infer().await?;
    proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
    let client = transport::client(config, options())?;
    let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());

    let mut manager = Manager::new(ManagerOptions::default());
    let counts = Counts::default();
    let mut registry = Registry::default();
    registry.register("census_objects", "Objects of a type of the category", counts.clone());
    let types = Types { cluster: cluster.clone(), manager: manager.handle(), counts };
    let types =
        Controller::builder("types").for_::<CustomResourceDefinition>().build(&cluster, types)?;
    runnable.add_to(&mut manager, "cluster")?;
    types.add_to(&mut manager)?;
    let address = std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:8082".to_owned());
    HttpServer::bind(address, metrics(registry))?.add_to(&mut manager, "server")?;

    // SIGTERM or Ctrl-C drains; a second one ends the process at once.
    Ok(manager.run(signals::shutdown()?).await?)
}
