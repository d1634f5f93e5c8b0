//! Types that the API server serves, read once.

use std::time::Duration;

use anyhow::bail;
use kube::Client;
use pilotlight::discovery::{DiscoveryOptions, TypeRegistry, TypeReport};
use tokio_util::sync::CancellationToken;

/// Timeout for the first sync of discovery, and again for the rest of the types.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the types that the API server serves.
pub(super) async fn list(client: Client) -> anyhow::Result<Vec<TypeReport>> {
    let (types, discovery) = TypeRegistry::new(client, DiscoveryOptions::default());
    let synced = async {
        if tokio::time::timeout(TIMEOUT, types.synced()).await.is_err() {
            let error = types.health().discovery.error.unwrap_or_default();
            bail!("the API server did not report its types within {TIMEOUT:?}: {error}");
        }
        // Types that are still unknown then are reported as such.
        tokio::time::timeout(TIMEOUT, types.complete()).await.unwrap_or_default();
        Ok(())
    };
    tokio::select! {
        () = discovery.run(CancellationToken::new()) => bail!("discovery ended by itself"),
        synced = synced => synced?,
    }
    Ok(types.report())
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use pilotlight::testing::{
        CrdBuilder,
        simulated::{AccessRule, SimulatedServer},
    };

    use super::*;

    /// Returns the states of all types as seen without the right to read these resources.
    async fn states_without(resources: &[&str]) -> Vec<(String, &'static str)> {
        let server = SimulatedServer::new();
        server.install(&CrdBuilder::new("x.test", "Widget").version("v1").build()).unwrap();
        // The type is established after some simulated time, which is paused during computation.
        tokio::time::sleep(Duration::from_secs(60)).await;
        if !resources.is_empty() {
            server.set_rbac([AccessRule::deny().resources(resources.iter().copied())]);
        }
        let types = list(server.client()).await.unwrap();
        types.into_iter().map(|row| (row.name, row.state.word())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn types_are_listed_without_the_right_to_read_crds() {
        let crds = "customresourcedefinitions.apiextensions.k8s.io";
        let services = "apiservices.apiregistration.k8s.io";

        let all = states_without(&[]).await;

        assert!(all.contains(&("widgets.x.test".to_owned(), "Served")), "{all:?}");
        for refused in [&[crds, services][..], &[crds], &[services]] {
            assert_eq!(states_without(refused).await, all, "{refused:?}");
        }
    }
}
