//! Controller written with kube-rs, which runs only while its type is served.
//!
//! ```console
//! $ pilotlight dev --no-manager          # or any cluster; it prints how to reach it
//! $ cargo run --example adopt            # beside it: says what it waits for
//! $ cargo run --example embed -- crd | kubectl apply --filename -
//! $ kubectl create --filename - <<< '{"apiVersion": "example.com/v1", "kind": "Widget",
//!     "metadata": {"name": "a"}, "spec": {"greeting": "Hello"}}'
//! $ kubectl get configmap a-adopted
//! $ kubectl delete crd widgets.example.com   # the controller stops, and waits again
//! ```
//!
//! Reconciler, error policy and context are those of any program with kube-rs. `main` has ten lines
//! that a program with `Controller::run` lacks; `docs/library.md` shows both.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    kind::TypeRef,
    manager::{Manager, ManagerOptions, RunnableOptions},
    runtime::{
        adopt,
        kube_runtime::{Controller, controller::Action, watcher},
    },
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
    /// Greeting that the widget's ConfigMap holds.
    greeting: String,
}

/// State of the reconciler.
struct Greeter {
    client: Client,
}

/// Creates a ConfigMap for a widget.
async fn reconcile(widget: Arc<Widget>, greeter: Arc<Greeter>) -> Result<Action, kube::Error> {
    let name = format!("{}-adopted", widget.name_any());
    let greeting = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            owner_references: widget.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("greeting".to_owned(), widget.spec.greeting.clone())])),
        ..ConfigMap::default()
    };
    let namespace = widget.namespace().unwrap_or_default();
    let config_maps = Api::<ConfigMap>::namespaced(greeter.client.clone(), &namespace);
    let apply = PatchParams::apply("adopt-example").force();
    config_maps.patch(&name, &apply, &Patch::Apply(&greeting)).await?;
    info!(namespace, name, "greeted");
    Ok(Action::await_change())
}

/// Retries a widget 5 s after its reconcile failed.
fn error_policy(_: Arc<Widget>, _: &kube::Error, _: Arc<Greeter>) -> Action {
    Action::requeue(Duration::from_secs(5))
}

/// Returns options with a product for `User-Agent`.
fn options() -> TransportOptions {
    TransportOptions {
        product: Some("adopt-example/1.0".to_owned()),
        ..TransportOptions::default()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info,adopt=info").init();

    let mut config = kube::Config::infer().await?;
    proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
    let client = transport::client(config, options())?;
    let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());

    // All types that the controller watches are required.
    let required = [TypeRef::of::<Widget>(), TypeRef::of::<ConfigMap>()];
    let greeters = adopt(&cluster, required, |client, _epoch| {
        let controller =
            Controller::new(Api::<Widget>::all(client.clone()), watcher::Config::default())
                .owns(Api::<ConfigMap>::all(client.clone()), watcher::Config::default());
        (controller, reconcile, error_policy, Arc::new(Greeter { client }))
    });

    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster")?;
    manager.add("greeters", Arc::new(greeters), RunnableOptions::default())?;

    // SIGTERM or Ctrl-C drains; a second one ends the process at once.
    Ok(manager.run(signals::shutdown()?).await?)
}
