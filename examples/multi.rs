//! Controller with required, optional and plain inputs, which writes to two clusters.
//!
//! ```console
//! $ cargo run --example multi -- OTHER_KUBECONFIG   # beside the cluster of the current kubeconfig
//! $ cargo run --example embed -- crd | kubectl apply --filename -
//! $ kubectl create --filename - <<< '{"apiVersion": "example.com/v1", "kind": "Widget",
//!     "metadata": {"name": "a"}, "spec": {"greeting": "Hello"}}'
//! $ kubectl get configmap a
//! $ kubectl --kubeconfig OTHER_KUBECONFIG get configmap a
//! ```
//!
//! | input | cluster | use | if its type is missing |
//! |---|---|---|---|
//! | `Widget` | own | primary, required | the controller waits |
//! | `Translation` | own | optional | the controller runs without |
//! | `ConfigMap` | own | owned, plain | the status reports it, the watch is retried |
//! | `ConfigMap` | other | watched, plain | the status reports it, the watch is retried |
//!
//! A translation of the same name replaces the greeting of a widget. The ConfigMap of a widget has a
//! copy in the other cluster, which is repaired after a change there.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config, CustomResource, ResourceExt,
    api::{DeleteParams, ObjectMeta},
    config::{KubeConfigOptions, Kubeconfig},
};
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Handler, Outcome, ReconcileError, Reconciler,
        Request, write::set_controller_reference,
    },
    informer::Selector,
    manager::{Manager, ManagerOptions},
    signals,
    transport::{self, TransportOptions},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::info;

/// Specification of a widget; `embed.rs` prints its CRD.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Widget", namespaced)]
struct WidgetSpec {
    greeting: String,
}

/// Specification of a translation.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Translation", namespaced)]
struct TranslationSpec {
    text: String,
}

/// Label of the copies, so that no other ConfigMap of the other cluster is delivered.
const LABEL: (&str, &str) = ("example.com/copy", "true");

/// Reconciler of widgets.
struct Copier {
    other: Cluster,
}

impl Reconciler for Copier {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        // Reads the caches of the other cluster, and writes there until the epoch ends.
        let other = context.of_cluster(&self.other);
        let Some(widget) = context.lister::<Widget>()?.get(&request)? else {
            // No garbage collector deletes across clusters. A finalizer would also cover widgets
            // that are deleted while this program does not run.
            if let Some(copy) = other.lister::<ConfigMap>()?.get(&request)? {
                let namespace = copy.namespace().unwrap_or_default();
                let copies = Api::<ConfigMap>::namespaced(other.client().clone(), &namespace);
                drop(copies.delete(&copy.name_any(), &DeleteParams::default()).await?);
            }
            return Ok(Outcome::Done);
        };
        // An error while translations are not served.
        let translation = match context.lister::<Translation>() {
            Ok(translations) => translations.get(&request)?,
            Err(_) => None,
        };
        let greeting = translation.map_or(widget.spec.greeting.clone(), |it| it.spec.text.clone());
        let mut config_map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(widget.name_any()),
                namespace: widget.namespace(),
                labels: Some(BTreeMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())])),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([("greeting".to_owned(), greeting)])),
            ..ConfigMap::default()
        };
        other.apply(&config_map).await?;
        // An owner must be in the cluster of the object.
        set_controller_reference(&mut config_map, &*widget, &())?;
        context.apply(&config_map).await?;
        info!(%request, "greeted in both clusters");
        Ok(Outcome::Done)
    }
}

fn client(config: Config) -> Result<Client, transport::Error> {
    transport::client(config, TransportOptions::default())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info,multi=info").init();
    let kubeconfig = std::env::args().nth(1).context("name the kubeconfig of another cluster")?;
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let other = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let (own, run_own) = Cluster::new(client(Config::infer().await?)?, ClusterOptions::default());
    let (other, run_other) = Cluster::new(client(other)?, ClusterOptions::default());

    let widgets = Controller::builder("greetings")
        .for_::<Widget>()
        .conditional()
        .watches::<Translation>(Handler::Object)
        .optional()
        .owns::<ConfigMap>()
        .watches::<ConfigMap>(Handler::Object)
        .matching(Selector::label(LABEL.0, LABEL.1))
        .in_cluster(&other)
        .build(&own, Copier { other: other.clone() })?;

    let mut manager = Manager::new(ManagerOptions::default());
    run_own.add_to(&mut manager, "own")?;
    run_other.add_to(&mut manager, "other")?;
    widgets.add_to(&mut manager)?;

    // SIGTERM or Ctrl-C drains; a second one ends the process at once.
    Ok(manager.run(signals::shutdown()?).await?)
}
