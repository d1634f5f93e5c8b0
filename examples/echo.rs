//! Operator with a finalizer, a status, owned Deployments and configuration from another object.
//!
//! ```console
//! $ pilotlight dev --no-manager          # or any cluster; it prints how to reach it
//! $ cargo run --example echo             # beside it
//! $ cargo run --example echo -- crd | kubectl apply --filename -
//! $ kubectl create --filename - <<< '{"apiVersion": "example.com/v1", "kind": "Echo",
//!     "metadata": {"name": "a"}, "spec": {"replicas": 2}}'
//! $ kubectl create configmap a --from-literal=image=inanimate/echo-server:latest
//! $ kubectl get echo a --output yaml
//! ```
//!
//! The ConfigMap of the same name has the image. `docs/library.md` compares this program with one
//! that has kube-rs alone.

use std::sync::Arc;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{Api, Config, CustomResource, CustomResourceExt, ResourceExt};
use pilotlight::{
    controller::{
        Cluster, ClusterOptions, Context, Controller, Handler, Outcome, ReconcileError, for_object,
        write::{ApplyError, set_controller_reference},
    },
    informer::ObjectKey,
    manager::{Manager, ManagerOptions},
    runtime::kube_runtime::{
        controller::Action,
        finalizer::{Event, finalizer},
    },
    signals,
    transport::{self, TransportOptions},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

/// Image of an echo server without configuration.
const IMAGE: &str = "inanimate/echo-server:latest";

/// Specification of an echo server.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Echo", plural = "echoes", namespaced)]
#[kube(status = "EchoStatus")]
struct EchoSpec {
    replicas: i32,
}

/// Status of an echo server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EchoStatus {
    image: String,
    ready_replicas: i32,
}

async fn reconcile(echo: Option<Arc<Echo>>, context: Context) -> Result<Outcome, ReconcileError> {
    let Some(echo) = echo else { return Ok(Outcome::Done) };
    let (namespace, name) = (echo.namespace().unwrap_or_default(), echo.name_any());
    let key = ObjectKey::namespaced(namespace.as_str(), name.as_str());
    let config = context.lister::<ConfigMap>()?.get(&key)?;
    let image = config.and_then(|config| config.data.clone()?.remove("image"));
    let image = image.unwrap_or_else(|| IMAGE.to_owned());
    let deployment = deployment(&echo, &image)?;
    let echoes = Api::<Echo>::namespaced(context.client().clone(), &namespace);
    finalizer(&echoes, "example.com/echo", echo, |event| async {
        match event {
            Event::Apply(echo) => apply(&echo, &deployment, image, &context).await?,
            // The garbage collector deletes the Deployment. Release here what it does not know.
            Event::Cleanup(_) => info!(namespace, name, "cleaned up"),
        }
        Ok::<_, ApplyError>(Action::await_change())
    })
    .await?;
    Ok(Outcome::Done)
}

fn deployment(echo: &Echo, image: &str) -> Result<Deployment, ReconcileError> {
    let labels = json!({"app": echo.name_any()});
    let mut deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": echo.name_any(), "namespace": echo.namespace(), "labels": labels},
        "spec": {
            "replicas": echo.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [
                    {"name": "echo", "image": image, "ports": [{"containerPort": 8080}]},
                ]},
            },
        },
    }))?;
    set_controller_reference(&mut deployment, echo, &())?;
    Ok(deployment)
}

async fn apply(
    echo: &Echo,
    deployment: &Deployment,
    image: String,
    context: &Context,
) -> Result<(), ApplyError> {
    let status = context.apply(deployment).await?.status.unwrap_or_default();
    let ready_replicas = status.ready_replicas.unwrap_or_default();
    let status = Some(EchoStatus { image, ready_replicas });
    if echo.status != status {
        context.apply_status(&Echo { status, ..echo.clone() }).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().any(|argument| argument == "crd") {
        serde_json::to_writer(std::io::stdout(), &Echo::crd())?;
        return Ok(());
    }
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info,echo=info").init();

    let client = transport::client(Config::infer().await?, TransportOptions::default())?;
    let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
    let echoes = Controller::builder("echoes")
        .for_::<Echo>()
        .conditional()
        .owns::<Deployment>()
        .watches::<ConfigMap>(Handler::Object)
        .build(&cluster, for_object(reconcile))?;

    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster")?;
    echoes.add_to(&mut manager)?;
    Ok(manager.run(signals::shutdown()?).await?)
}
