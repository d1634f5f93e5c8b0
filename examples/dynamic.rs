//! Controllers for types that are not known at build time: one for each type that matches a rule.
//!
//! ```console
//! $ pilotlight dev --no-manager          # or any cluster; it prints how to reach it
//! $ cargo run --example dynamic          # beside it
//! $ cargo run --example embed -- crd | kubectl apply --filename -
//! $ kubectl label crd widgets.example.com example.com/census=true    # its controller starts
//! $ kubectl label crd widgets.example.com example.com/census-        # its controller is removed
//! ```
//!
//! The controller `types` reconciles the CRDs that match the rule, a label. It adds a controller for
//! each of them to the manager, and removes it when the CRD no longer matches or is deleted.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Outcome, ReconcileError, Reconciler, Request,
    },
    kind::TypeRef,
    manager::{Manager, ManagerHandle, ManagerOptions, RunnableOptions},
    signals,
    transport::{self, TransportOptions, proxy_from_environment},
};
use tracing::info;

/// Rule: types whose CRD has this label have a controller.
const RULE: &str = "example.com/census=true";

/// Reconciler of CRDs: adds and removes the controllers of their types.
struct Types {
    cluster: Cluster,
    manager: ManagerHandle,
}

/// Reconciler of the objects of one type.
struct Census {
    counted: TypeRef,
}

impl Reconciler for Types {
    async fn reconcile(&self, crd: Request, context: Context) -> Result<Outcome, ReconcileError> {
        let name = format!("census-{}", crd.key.name);
        let is_added = self.manager.status_of(name.as_str()).is_some();
        let crds = context.lister::<CustomResourceDefinition>()?;
        match crds.get(&crd)? {
            Some(crd) if !is_added => {
                let spec = crd.spec.clone();
                // Any served version; the controller restarts if that one is no longer served.
                let counted = TypeRef::resource(spec.group, "", spec.names.plural).any_version();
                let census = Controller::builder(name.as_str())
                    .for_type(counted.clone())
                    .conditional()
                    .build(&self.cluster, Census { counted })?;
                let options = RunnableOptions::default();
                self.manager.add(name, Arc::new(census), options).await?;
            }
            None if is_added => self.manager.remove(name).await,
            Some(_) | None => {}
        }
        Ok(Outcome::Done)
    }
}

impl Reconciler for Census {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let store = context.store(&self.counted).ok_or("the type is gone")?;
        let object: Option<DynamicObject> =
            store.get(&request).map(|it| it.decode()).transpose()?;
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
    let types = Types { cluster: cluster.clone(), manager: manager.handle() };
    let types = Controller::builder("types")
        .for_::<CustomResourceDefinition>()
        .labels(RULE)
        .build(&cluster, types)?;
    runnable.add_to(&mut manager, "cluster")?;
    manager.add("types", Arc::new(types), RunnableOptions::default())?;

    // SIGTERM or Ctrl-C drains; a second one ends the process at once.
    Ok(manager.run(signals::shutdown()?).await?)
}
