//! A cluster of parts that somebody else runs.

use tokio::time::timeout;

use super::*;
use crate::{
    discovery::{DiscoveryOptions, TypeRegistry},
    informer::{Ended, InformerKey, InformerOptions, InformerSet},
};

#[tokio::test(start_paused = true)]
async fn informers_of_a_cluster_of_parts_end_with_their_types() {
    let server = Server::new();
    let (types, discovery) = TypeRegistry::new(server.client(), DiscoveryOptions::default());
    let informers = InformerSet::new(server.client(), InformerOptions::default());
    let (cluster, runnable) = Cluster::of(server.client(), types, informers, None);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let stopped = stop.clone();
    tasks.spawn(async move { discovery.run(stopped).await });

    // It ends nothing of theirs, so it may end and start again.
    for (number, uid) in [(1, "first"), (2, "second")] {
        let epoch = Epoch::new("cluster", number, Duration::ZERO);
        let run = tasks.spawn(runnable.start(epoch.clone()).map(|end| end.unwrap()));
        server.install("widgets", "Widget", "Namespaced", uid, &["v1"]);
        settle().await;
        let served = cluster.types.served(&widgets()).unwrap();
        // Whoever else listens has no part in the end of a controller's epoch.
        let key = InformerKey::new(served.identity.clone());
        let subscription = cluster.informers.subscribe(&served, key);
        subscription.drained().await;
        assert_eq!(server.watches(WIDGETS), 1);

        server.uninstall("widgets");
        let ended = timeout(Duration::from_secs(3600), subscription.ended()).await;

        assert_eq!(ended, Ok(Ended::TypeGone));
        assert_eq!(server.watches(WIDGETS), 0);
        epoch.stop(StopReason::Cancelled);
        settle().await;
        assert!(run.is_finished());
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}
