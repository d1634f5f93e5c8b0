//! Log lines of writes.

use super::{
    pruned::Log,
    responding_hook::{harness, pass},
    *,
};
use crate::meta::definition::apply_strategy::ApplyStrategy;

/// Runs a controller that writes a status and a child, and replaces the child.
async fn run(strategy: ApplyStrategy) {
    let (harness, _) = harness(|_, request| {
        let value = request["parent"]["spec"]["x"].to_string();
        json!({"status": {"x": value}, "children": [{
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "default"}, "data": {"value": value},
        }]})
    })
    .await;
    let mut spec = good();
    spec["childResources"] = json!([
        {"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "Recreate"}},
    ]);
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
        "metadata": {
            "name": "a", "annotations": {crate::meta::definition::apply_strategy::APPLY_STRATEGY: strategy.name()},
        },
        "spec": spec,
    });
    harness.server.apply(object).unwrap();
    for x in [1, 2] {
        let thing = json!({
            "apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {"name": "p"}, "spec": {"x": x},
        });
        harness.server.apply(thing).unwrap();
        pass().await;
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_write_is_logged_as_debug_with_both_strategies_and_no_dry_run_is() {
    for strategy in ApplyStrategy::ALL {
        // A line that a thread without a subscriber logs first is disabled until the next capture.
        let logging = Log::default().capture(tracing::Level::DEBUG);
        run(strategy).await;
        drop(logging);
        let log = Log::default();
        let _logging = log.capture(tracing::Level::DEBUG);
        run(strategy).await;

        let log = log.text();
        let count = |part: &str| {
            log.lines().filter(|it| it.contains("object written") && it.contains(part)).count()
        };
        assert_eq!(count("PUT path=\"/apis/example.com/v1/things/p/status\""), 2, "{log}");
        assert_eq!(count("DELETE path=\"/api/v1/namespaces/default/configmaps/c\""), 1, "{log}");
        let created = match strategy {
            ApplyStrategy::DynamicApply => "POST path=\"/api/v1/namespaces/default/configmaps\"",
            ApplyStrategy::ServerSideApply => {
                "PATCH path=\"/api/v1/namespaces/default/configmaps/c\""
            }
        };
        assert_eq!(count(created), 2, "{log}");
    }
}
