//! Runnable that is not a controller, and runs only while a type is served.
//!
//! ```console
//! $ cargo run --example runnable         # with the cluster of the current kubeconfig
//! ```
//!
//! The runnable counts the objects of `widgets.example.com` (see `embed.rs`) every few seconds. The
//! manager starts it when the type is served, stops it when the type is gone, and starts it again
//! when the type returns. A gRPC server, a poller or a subprocess can be managed in the same way.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use pilotlight::{
    controller::{Cluster, ClusterOptions},
    discovery::TypeRegistry,
    kind::TypeRef,
    manager::{
        ConditionalRunnable, Epoch, Manager, ManagerOptions, Readiness, RunResult, Runnable,
        RunnableOptions, type_served,
    },
    signals,
    transport::{self, TransportOptions, proxy_from_environment},
};
use tracing::{info, warn};

/// Counts the objects of a type.
struct ObjectCounter {
    client: Client,
    types: TypeRegistry,
    counted: TypeRef,
}

impl Runnable for ObjectCounter {
    /// Runs one epoch. When the future ends the epoch is done, so it must own everything that it
    /// starts.
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        // All requests of the epoch use its own client, which is closed when the epoch ends.
        let client = epoch.client(&self.client);
        let served = self.types.served(&self.counted);
        async move {
            let served = served.ok_or("the type is gone already")?;
            let objects = Api::<DynamicObject>::all_with(client, &served.api_resource());
            let mut often = tokio::time::interval(Duration::from_secs(5));
            loop {
                tokio::select! {
                    reason = epoch.stopping() => {
                        info!(?reason, "stopped counting");
                        return Ok(());
                    }
                    _ = often.tick() => {
                        // A type that has just begun to be served may refuse requests for a moment.
                        // Returning the error would end the epoch and restart it after a back-off.
                        match objects.list(&ListParams::default()).await {
                            Ok(list) => info!(count = list.items.len(), "counted"),
                            Err(error) => warn!(%error, "not counted"),
                        }
                    }
                }
            }
        }
        .boxed()
    }
}

impl ConditionalRunnable for ObjectCounter {
    /// Met by any version. Conditions can be combined: `all_of`, `any_of`, `optional`.
    fn ready(&self) -> Readiness {
        type_served(&self.types, &self.counted)
    }
}

/// Returns options with a product for `User-Agent`.
fn options() -> TransportOptions {
    TransportOptions {
        product: Some("runnable-example/1.0".to_owned()),
        ..TransportOptions::default()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter("warn,pilotlight=info,runnable=info").init();

    let mut config = kube::Config::infer().await?;
    proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
    let client = transport::client(config, options())?;
    let (cluster, runnable) = Cluster::new(client.clone(), ClusterOptions::default());
    let census = ObjectCounter {
        client,
        types: cluster.types.clone(),
        counted: TypeRef::resource("example.com", "v1", "widgets").any_version(),
    };

    let mut manager = Manager::new(ManagerOptions::default());
    runnable.add_to(&mut manager, "cluster")?;
    manager.add("census", Arc::new(census), RunnableOptions::default())?;

    // SIGTERM or Ctrl-C drains; a second one ends the process at once.
    Ok(manager.run(signals::shutdown()?).await?)
}
