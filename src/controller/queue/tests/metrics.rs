//! Values of the metrics of a work queue.

use std::time::Duration;

use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::time::advance;

use super::super::{Add, LOW_PRIORITY, Queue, QueueOptions};
use crate::controller::metrics::ControllerMetrics;

/// Returns the value of the series with this name and these labels; 0 if there is none.
fn value(registry: &Registry, name: &str, labels: &str) -> f64 {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(labels);
    let line = text.lines().find(is_it);
    line.map_or(0.0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

fn with_priority(priority: i32) -> Add {
    Add { priority, ..Add::default() }
}

/// Semantics: `defaultQueueMetrics` and `retryMetrics` of client-go (`util/workqueue/metrics.go`).
#[tokio::test(start_paused = true)]
async fn metrics_count_ready_keys_once_delayed_adds_as_retries_and_the_depth_by_priority() {
    let (families, mut registry) = (ControllerMetrics::default(), Registry::default());
    families.register(&mut registry);
    let metrics = families.series(&"a".into()).queue();
    let queue = Queue::with_metrics(QueueOptions::default(), metrics);
    let counts = || {
        let of = |name: &str| value(&registry, name, "controller=\"a\"");
        let depth = |priority: i32| {
            value(&registry, "workqueue_depth", &format!("priority=\"{priority}\""))
        };
        let totals = [of("workqueue_adds_total"), of("workqueue_retries_total")];
        (totals, [depth(LOW_PRIORITY), depth(0), depth(5)])
    };

    queue.add(1);
    queue.add(1);
    queue.add_with(2, with_priority(LOW_PRIORITY));
    assert_eq!(counts(), ([2.0, 0.0], [1.0, 1.0, 0.0]), "a second add of a ready key is none");

    queue.add_with(2, with_priority(5));
    assert_eq!(counts(), ([2.0, 0.0], [0.0, 1.0, 1.0]), "raised");

    queue.add_with(3, Add { after: Duration::from_secs(1), ..Add::default() });
    assert_eq!(counts(), ([2.0, 1.0], [0.0, 1.0, 1.0]), "a delayed key has no depth");

    assert_eq!(queue.get().await.unwrap().key, 2);
    assert_eq!(counts(), ([2.0, 1.0], [0.0, 1.0, 0.0]), "a key in processing has no depth");
    queue.add(2);
    queue.add(2);
    assert_eq!(counts(), ([3.0, 1.0], [0.0, 2.0, 0.0]), "added once more while it is processed");
    queue.done(&2);

    advance(Duration::from_secs(1)).await;
    assert_eq!(queue.get().await.unwrap().key, 1);
    assert_eq!(counts(), ([4.0, 1.0], [0.0, 2.0, 0.0]), "the delayed key is ready");

    queue.add_with(4, with_priority(LOW_PRIORITY));
    drop(queue);
    assert_eq!(counts().1, [0.0, 0.0, 0.0], "the keys that are left with the queue");
}

#[tokio::test(start_paused = true)]
async fn depths_of_priorities_that_no_ready_key_has_are_removed_before_they_are_many() {
    let (families, mut registry) = (ControllerMetrics::default(), Registry::default());
    families.register(&mut registry);
    let metrics = families.series(&"a".into()).queue();
    let queue = Queue::with_metrics(QueueOptions::default(), metrics);
    let count = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text.lines().filter(|line| line.starts_with("workqueue_depth{")).count()
    };

    queue.add_with(0, with_priority(-1));
    for priority in 0..1_000 {
        queue.add_with(1, with_priority(priority));
        let item = queue.get().await.unwrap();
        queue.done(&item.key);
        assert!(count() <= 32, "{}", count());
    }
    let depth = |priority| value(&registry, "workqueue_depth", &format!("priority=\"{priority}\""));
    assert_eq!(depth(-1), 1.0, "of a ready key");
    assert_eq!(families.queue_depth(&"a".into()), Some(1));

    for priority in 2_000..2_100 {
        queue.add_with(priority, with_priority(priority));
    }
    assert_eq!((depth(-1), depth(2_000), depth(2_099)), (1.0, 1.0, 1.0), "none of a ready key");
    assert_eq!(families.queue_depth(&"a".into()), Some(101));
}
