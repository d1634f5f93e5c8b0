//! Main types of the public interface have an example in their own documentation.

use std::{fs, path::Path};

/// Main types of each file below `src`.
const MAIN_TYPES: &[(&str, &[&str])] = &[
    ("apply/adopt.rs", &["Adopt"]),
    ("apply/applier.rs", &["Applier"]),
    ("apply/object_name.rs", &["ObjectName"]),
    ("apply/plan.rs", &["Plan"]),
    ("apply/set.rs", &["Set"]),
    ("controller/builder.rs", &["Builder"]),
    ("controller/cluster.rs", &["Cluster", "ClusterOptions", "ClusterRunnable"]),
    ("controller/context.rs", &["Context"]),
    ("controller/defaults.rs", &["ControllerDefaults"]),
    ("controller/event.rs", &["Event"]),
    ("controller/handler.rs", &["Handler"]),
    ("controller/inputs.rs", &["InputHandle", "Inputs"]),
    ("controller/instance.rs", &["Controller"]),
    ("controller/lister.rs", &["Lister"]),
    ("controller/object_condition.rs", &["ObjectCondition"]),
    ("controller/object_reconciler.rs", &["ObjectReconciler"]),
    ("controller/permission.rs", &["Permission"]),
    ("controller/predicate.rs", &["Predicate"]),
    ("controller/queue.rs", &["Queue"]),
    ("controller/queue/item.rs", &["Add"]),
    (
        "controller/queue/limit.rs",
        &["Backoff", "FastSlow", "MaxOf", "RateLimiter", "TokenBucketLimiter"],
    ),
    ("controller/reconciler.rs", &["Outcome", "ReconcileError", "Reconciler"]),
    ("controller/request.rs", &["Request"]),
    ("controller/request/key.rs", &["KeyReconciler"]),
    ("controller/source.rs", &["ConditionalSource", "SourceContext", "SourceStart"]),
    ("controller/source/channel.rs", &["ChannelSource"]),
    ("controller/source/event.rs", &["EventSource"]),
    ("controller/source/function.rs", &["FunctionSource"]),
    ("discovery/registry.rs", &["TypeRegistry"]),
    ("informer/index.rs", &["Index"]),
    ("informer/set.rs", &["InformerSet"]),
    ("informer/store.rs", &["Store"]),
    ("informer/subscription.rs", &["Subscription"]),
    ("informer/transform.rs", &["Transform"]),
    ("manager.rs", &["Manager"]),
    ("manager/checks.rs", &["Checks"]),
    ("manager/condition.rs", &["Condition"]),
    ("manager/conditional.rs", &["RunnableWithCondition"]),
    ("manager/election.rs", &["Election", "ElectionOptions"]),
    ("manager/epoch.rs", &["Epoch"]),
    ("manager/handle.rs", &["ManagerHandle", "Replacement"]),
    ("manager/options.rs", &["ManagerOptions"]),
    ("manager/readiness.rs", &["Readiness"]),
    ("manager/runnable.rs", &["ConditionalRunnable", "Runnable"]),
    ("manager/runnable_options.rs", &["RunnableOptions"]),
    ("runtime/adopt.rs", &["AdoptedController"]),
    ("server.rs", &["HttpServer"]),
    ("../crates/testing/src/control_plane.rs", &["ControlPlane"]),
    ("../crates/testing/src/faults.rs", &["Faults"]),
    ("../crates/testing/src/faults/rule.rs", &["Rule"]),
    ("../crates/testing/src/simulated/script.rs", &["SimulatedServer"]),
    ("../crates/transport/src/options.rs", &["TransportOptions"]),
];

/// Returns whether the documentation of a public type has a block of code.
fn has_example(source: &str, name: &str) -> bool {
    let lines: Vec<_> = source.lines().collect();
    let is_item = |line: &&str| {
        ["struct", "enum", "trait"].iter().any(|keyword| {
            let rest = line.strip_prefix(&format!("pub {keyword} {name}"));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let Some(item) = lines.iter().position(is_item) else { return false };
    // Attributes may stand between the documentation and its item.
    let above = lines[..item].iter().rev().take_while(|line| !line.is_empty());
    above.filter(|line| line.starts_with("/// ```")).count() >= 2
}

#[test]
fn every_main_type_has_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut without = Vec::new();
    for (file, names) in MAIN_TYPES {
        let source = fs::read_to_string(root.join(file)).unwrap();
        let lacking = names.iter().filter(|name| !has_example(&source, name));
        without.extend(lacking.map(|name| format!("{name} of {file}")));
    }

    assert!(without.is_empty(), "{without:#?}");
}
