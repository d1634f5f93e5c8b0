//! Metrics of declared controllers, by Metacontroller's names.

use super::{
    responding_hook::{harness, pass},
    *,
};

#[tokio::test(start_paused = true)]
async fn series_of_a_queue_have_the_names_that_metacontroller_gives_them() {
    let (harness, _) = harness(|_, _| json!({"children": []})).await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    let decorator = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "DecoratorController",
        "metadata": {"name": "a"},
        "spec": {
            "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
            "hooks": {"sync": {"webhook": {"url": "http://scripted/"}}},
        },
    });
    harness.server.apply(decorator).unwrap();
    let thing = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(thing).unwrap();
    pass().await;

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &harness.metrics).unwrap();
    let queue = |name: &str| format!("name=\"{name}\",controller=\"{name}\"");
    for series in [
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_retries_total",
        "workqueue_queue_duration_seconds_count",
        "workqueue_work_duration_seconds_count",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
    ] {
        for queue in ["CompositeController-a", "DecoratorController-a"].map(queue) {
            assert!(text.contains(&format!("\n{series}{{{queue}")), "{series} {queue}: {text}");
        }
    }
    let queue = queue("CompositeController-a");
    let reconciled = ["CompositeController-a", "DecoratorController-a"];
    for controller in reconciled.into_iter().chain(["compositecontrollers", "decoratorcontrollers"])
    {
        let reconciles = format!("controller_runtime_reconcile_total{{controller=\"{controller}\"");
        assert!(text.contains(&reconciles), "{reconciles}: {text}");
    }
    // Decades from 10 ns, as in controller-runtime.
    for bound in ["1e-8", "1.0", "1000.0"] {
        let bucket = format!("workqueue_queue_duration_seconds_bucket{{le=\"{bound}\",{queue}}}");
        assert!(text.contains(&bucket), "{bucket}: {text}");
    }
    harness.end().await;
}
