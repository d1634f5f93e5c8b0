//! Controller written in Rust, for a type that may be installed and deleted at any time.
//!
//! ```console
//! $ pilotlight dev --no-manager          # or any cluster; it prints how to reach it
//! $ cargo run --example embed            # beside it: says what it waits for
//! $ cargo run --example embed -- crd | kubectl apply --filename -
//! $ kubectl create --filename - <<< '{"apiVersion": "example.com/v1", "kind": "Widget",
//!     "metadata": {"name": "a"}, "spec": {"greeting": "Hello"}}'
//! $ kubectl get configmap a-greeting
//! $ kubectl delete crd widgets.example.com   # the controller stops, and waits again
//! ```

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{CustomResource, CustomResourceExt, ResourceExt, api::ObjectMeta};
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Outcome, ReconcileError, Reconciler, Request,
        write::set_controller_reference,
    },
    manager::{Manager, ManagerOptions},
    signals,
    transport::{self, TransportOptions, proxy_from_environment},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::info;

/// Specification of a widget.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Widget", namespaced)]
struct WidgetSpec {
    /// Content of the widget's ConfigMap.
    greeting: String,
}

/// Reconciler that creates a ConfigMap for each widget.
struct Greeter;

impl Reconciler for Greeter {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        // Deleted widgets are reconciled too. Their ConfigMaps are deleted by owner reference.
        let Some(widget) = context.lister::<Widget>()?.get(&request)? else {
            return Ok(Outcome::Done);
        };
        let mut greeting = ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("{}-greeting", widget.name_any())),
                namespace: widget.namespace(),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([("greeting".to_owned(), widget.spec.greeting.clone())])),
            ..ConfigMap::default()
        };
        set_controller_reference(&mut greeting, &*widget, &())?;
        // The context's client is closed when the epoch ends, so that nothing is written
        // afterwards.
        context.apply(&greeting).await?;
        info!(%request, "greeted");
        Ok(Outcome::Done)
    }
}

/// Returns options with a product for `User-Agent`.
fn options() -> TransportOptions {
    TransportOptions {
        product: Some("embed-example/1.0".to_owned()),
        ..TransportOptions::default()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().any(|argument| argument == "crd") {
        serde_json::to_writer(std::io::stdout(), &Widget::crd())?;
        return Ok(());
    }
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info,embed=info").init();

    let mut config = kube::Config::infer().await?;
    proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
    let client = transport::client(config, options())?;
    let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());

    // Conditional: runs only while widgets are served.
    let widgets = Controller::builder("widgets")
        .for_::<Widget>()
        .conditional()
        .owns::<ConfigMap>()
        .build(&cluster, Greeter)?;

    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster")?;
    widgets.add_to(&mut manager)?;

    // SIGTERM or Ctrl-C drains; a second one ends the process at once.
    Ok(manager.run(signals::shutdown()?).await?)
}
