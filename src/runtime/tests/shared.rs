//! Reflector and applier of kube-rs on a shared informer.

use futures::{StreamExt, TryStreamExt, future::ready};
use kube_runtime::{
    WatchStreamExt, applier,
    controller::{Config, trigger_self},
    reflector::{self, ObjectRef},
};
use tokio::select;

use super::*;
use crate::{
    informer::{InformerKey, Subscription},
    runtime::events,
};

fn subscribe(harness: &Harness) -> Subscription {
    let served = harness.cluster.types.served(&widgets()).unwrap();
    let key = InformerKey::new(served.identity.clone());
    harness.cluster.informers.subscribe(&served, key)
}

async fn served(harness: &Harness) {
    let mut status = harness.cluster.types.subscribe(&widgets());
    while harness.cluster.types.served(&widgets()).is_none() {
        status.changed().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stores_of_kube_share_one_watch_and_end_with_their_type() {
    let harness = Harness::new();
    harness.install().await;
    served(&harness).await;
    for name in ["a", "b"] {
        harness.apply(name, json!({ "size": 1 }));
    }
    let mut streams = JoinSet::new();
    let mut stores = Vec::new();
    for _ in 0..2 {
        let (store, writer) = reflector::store::<Widget>();
        let reflected = kube_runtime::reflector(writer, events(subscribe(&harness)));
        streams.spawn(reflected.for_each(|event| async { drop(event.unwrap()) }));
        stores.push(store);
    }

    for store in &stores {
        store.wait_until_ready().await.unwrap();
        assert_eq!(store.len(), 2);
    }
    run_until_idle().await;
    assert_eq!(harness.watches().into_values().collect::<Vec<_>>(), [1]);
    harness.apply("a", json!({ "size": 5 }));
    harness.server.remove("example.com/v1", "Widget", "default", "b").unwrap();
    // The type refuses nothing, but the struct does.
    harness.apply("bad", json!({ "size": "large" }));
    harness.apply("c", json!({ "size": 1 }));
    run_until_idle().await;
    for store in &stores {
        let mut sizes: Vec<_> =
            store.state().iter().map(|it| (it.name_any(), it.spec.size)).collect();
        sizes.sort();
        assert_eq!(sizes, [("a".to_owned(), 5), ("c".to_owned(), 1)]);
    }

    harness.uninstall();

    let ends = timeout(Duration::from_secs(60), streams.join_all()).await;
    assert_eq!(ends.unwrap().len(), 2, "the end of the informer ends each stream");
    assert!(harness.watches().is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn applier_of_kube_reconciles_the_objects_of_a_shared_informer() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    served(&harness).await;
    harness.apply("a", json!({ "size": 1 }));
    let (store, writer) = reflector::store::<Widget>();
    let reflected = kube_runtime::reflector(writer, events(subscribe(&harness)));
    let queue = trigger_self(reflected.applied_objects(), ());
    let reconcile = |object: Arc<Widget>, log: Arc<Log>| {
        log.lock().unwrap().push(format!("{} {}", object.name_any(), object.spec.size));
        ready(Ok::<_, Refused>(Action::await_change()))
    };
    let policy = |_: Arc<Widget>, _: &Refused, _: Arc<Log>| Action::await_change();
    let context = Arc::new(Arc::clone(&log));
    let applied = applier(reconcile, policy, context, store, queue, Config::default());
    let mut reconciled = Box::pin(applied.map_ok(|(object, _): (ObjectRef<Widget>, _)| object));

    assert_eq!(reconciled.next().await.unwrap().unwrap().name, "a");
    harness.apply("b", json!({ "size": 2 }));
    assert_eq!(reconciled.next().await.unwrap().unwrap().name, "b");
    assert_eq!(take(&log), ["a 1", "b 2"]);
    harness.uninstall();

    select! {
        end = reconciled.next() => assert!(end.is_none(), "{end:?}"),
        () = sleep(Duration::from_secs(60)) => panic!("it does not end with its type"),
    }
    harness.shutdown().await;
}
