//! Parents that are removed with their type, and created again: children of the new ones.

use std::time::Duration;

use futures::future::join_all;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{Call, Supervised};

/// Number of parents, each with a child.
const PARENTS: usize = 10;

#[expect(clippy::print_stdout, reason = "the figures are the result")]
#[tokio::test]
async fn children_of_parents_whose_type_returned_are_there_within_a_second() {
    let (supervised, crd) = Supervised::at_work("replaced-parents").await;
    let names: Vec<_> = (0..PARENTS).map(|number| format!("gear-{number}")).collect();
    let config_maps = supervised.config_maps();
    let background = DeleteParams::background();

    let mut times = Vec::new();
    for round in 1..=20_i64 {
        join_all(names.iter().map(|name| supervised.harness.create(&crd, name, round))).await;
        join_all(names.iter().map(|name| supervised.child(name, round))).await;
        // Load of other objects of the type of children.
        let load = async {
            for number in 0..100 {
                let map = json!({"metadata": {"name": format!("load-{round}-{number}")}});
                let map = serde_json::from_value(map).unwrap();
                config_maps.create(&PostParams::default(), &map).await.unwrap();
            }
        };
        let replace = async {
            supervised.harness.scope.delete_crd(&crd).await.unwrap();
            supervised.harness.scope.wait_gone(&crd).await.unwrap();
            supervised.install(&crd).await;
        };
        tokio::join!(load, replace);
        supervised.runs("a", round + 1).await;

        let created: Vec<_> =
            join_all(names.iter().map(|name| supervised.harness.create(&crd, name, -round))).await;
        for name in &names {
            let is_new = |call: &Call| call.body["parent"]["spec"]["size"] == json!(-round);
            let is_synced = |call: &Call| call.parent() == name && is_new(call);
            supervised.hook.called("about the new parent", is_synced).await;
        }
        let synced = Instant::now();
        for (name, uid) in names.iter().zip(created) {
            let child = supervised.child(name, -round).await;
            assert_eq!(child.metadata.owner_references.unwrap()[0].uid, uid, "round {round}");
        }
        times.push(synced.elapsed());

        let api = supervised.harness.scope.api(&crd, "v1");
        for deleted in join_all(names.iter().map(|name| api.delete(name, &background))).await {
            deleted.unwrap();
        }
    }
    times.sort();
    println!("times of {} rounds: {:?} to {:?}", times.len(), times[0], times[times.len() - 1]);
    // Other tests share the processors, so that rounds take longer among them; the garbage collector
    // takes minutes.
    assert!(times[0] < Duration::from_secs(1), "{times:?}");
    assert!(times[times.len() - 1] < Duration::from_secs(10), "{times:?}");
    supervised.end().await;
}
