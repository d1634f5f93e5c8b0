//! Rules for kinds of Kubernetes, many of which have no condition that decides.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{Judgement, ObjectFields, ReportedCondition, SummaryState};

/// Time for which a pod may be unschedulable before that counts as a failure.
const SCHEDULING: Duration = Duration::from_secs(15);

/// Deadline of a Deployment that has none: its controller sets no condition `Progressing` then.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// Judges an object by the rules of its kind; `None` for other kinds.
pub(super) fn of_kind(
    fields: ObjectFields<'_>,
    conditions: &[ReportedCondition],
    now: SystemTime,
) -> Option<Judgement> {
    Some(match (fields.group(), fields.kind()) {
        ("", "Secret" | "ConfigMap") | ("batch", "CronJob") => {
            Judgement::current("Resource is always ready")
        }
        ("policy", "PodDisruptionBudget") => Judgement::current("the budget has been computed"),
        ("", "Service") => service(fields),
        ("", "PersistentVolumeClaim") => volume_claim(fields),
        ("", "Pod") => pod(fields, conditions, now),
        ("apps" | "extensions", "StatefulSet") => stateful_set(fields),
        ("apps" | "extensions", "DaemonSet") => daemon_set(fields),
        ("apps" | "extensions", "Deployment") => deployment(fields, conditions),
        ("apps" | "extensions", "ReplicaSet") => replica_set(fields, conditions),
        ("batch", "Job") => job(fields, conditions),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => crd(conditions),
        _ => return None,
    })
}

fn service(fields: ObjectFields<'_>) -> Judgement {
    let balances = fields.text("/spec/type") == Some("LoadBalancer");
    if balances && fields.text("/spec/clusterIP").is_none_or(str::is_empty) {
        return Judgement::in_progress(
            "NoIPAssigned",
            "spec.clusterIP of the LoadBalancer is empty",
        );
    }
    Judgement::current("Service is ready")
}

fn volume_claim(fields: ObjectFields<'_>) -> Judgement {
    match fields.text("/status/phase") {
        Some("Bound") => Judgement::current("PersistentVolumeClaim is bound"),
        phase => {
            let phase = phase.unwrap_or("unknown");
            Judgement::in_progress("NotBound", format!("phase is {phase}, not Bound"))
        }
    }
}

fn pod(fields: ObjectFields<'_>, conditions: &[ReportedCondition], now: SystemTime) -> Judgement {
    match fields.text("/status/phase").unwrap_or_default() {
        "Succeeded" => Judgement::current("Pod has completed successfully"),
        "Failed" => Judgement::current("Pod has completed, but not successfully"),
        "Running" if conditions.iter().any(|it| it.is("Ready", "True")) => {
            Judgement::current("Pod is ready")
        }
        "Running" => match crash_looping(fields) {
            names if names.is_empty() => {
                Judgement::in_progress("PodRunningNotReady", "Pod runs, but is not ready")
            }
            names => {
                let message = format!("containers in CrashLoopBackOff: {}", names.join(", "));
                Judgement::failed("ContainerCrashLooping", message)
            }
        },
        "Pending" => {
            let scheduled = conditions.iter().find(|it| it.is("PodScheduled", "False"));
            match scheduled.filter(|it| it.reason == "Unschedulable") {
                Some(_) if is_young(fields, now) => {
                    Judgement::in_progress("PodNotScheduled", "Pod has not been scheduled")
                }
                Some(condition) => Judgement::failed("PodUnschedulable", &condition.message),
                None => Judgement::in_progress("PodPending", "Pod is pending"),
            }
        }
        "" => Judgement::in_progress("PodNotObserved", "Pod has no phase yet"),
        phase => Judgement::new(
            SummaryState::Unknown,
            "PhaseUnknown",
            format!("phase is {phase}: the node of the pod may be unreachable"),
        ),
    }
}

/// Returns whether the pod was created less than [`SCHEDULING`] ago.
fn is_young(fields: ObjectFields<'_>, now: SystemTime) -> bool {
    let created = fields.text("/metadata/creationTimestamp").and_then(|it| it.parse().ok());
    let created = created.map(|it: Timestamp| SystemTime::from(it));
    created.is_some_and(|created| now < created + SCHEDULING)
}

/// Returns the names of the containers that wait after crashes.
fn crash_looping(fields: ObjectFields<'_>) -> Vec<&str> {
    let statuses = fields.0.pointer("/status/containerStatuses").and_then(Value::as_array);
    let statuses = statuses.into_iter().flatten().map(ObjectFields);
    statuses
        .filter(|it| it.text("/state/waiting/reason") == Some("CrashLoopBackOff"))
        .filter_map(|it| it.text("/name"))
        .collect()
}

fn stateful_set(fields: ObjectFields<'_>) -> Judgement {
    if fields.text("/spec/updateStrategy/type") == Some("OnDelete") {
        return Judgement::current("StatefulSet is updated by deletions of its pods");
    }
    let wanted = fields.integer("/spec/replicas").unwrap_or(1);
    let of_status = |pointer| fields.integer(pointer).unwrap_or(0);
    let replicas = of_status("/status/replicas");
    let updated = of_status("/status/updatedReplicas");
    let counts = fewer("LessReplicas", "replicas", replicas, wanted)
        .or_else(|| fewer("LessReady", "ready", of_status("/status/readyReplicas"), wanted))
        .or_else(|| extra_pods(replicas, wanted));
    if let Some(judgement) = counts {
        return judgement;
    }
    if let Some(partition) = fields.integer("/spec/updateStrategy/rollingUpdate/partition") {
        return fewer("PartitionRollout", "updated", updated, wanted - partition).unwrap_or_else(
            || Judgement::current(format!("updated up to the partition: {updated}")),
        );
    }
    let current = of_status("/status/currentReplicas");
    if let Some(judgement) = fewer("LessCurrent", "current", current, wanted) {
        return judgement;
    }
    if fields.text("/status/currentRevision") != fields.text("/status/updateRevision") {
        return Judgement::in_progress("RevisionMismatch", "pods of an older revision remain");
    }
    Judgement::current(format!("all replicas are as the spec asks: {replicas}"))
}

fn daemon_set(fields: ObjectFields<'_>) -> Judgement {
    let is_missing = |pointer| fields.integer(pointer).is_none();
    if is_missing("/metadata/generation") {
        return Judgement::in_progress("NoGeneration", "metadata.generation is missing");
    }
    if is_missing("/status/observedGeneration") {
        return Judgement::in_progress("NoObservedGeneration", "no controller has observed it yet");
    }
    let Some(wanted) = fields.integer("/status/desiredNumberScheduled") else {
        let message = "status.desiredNumberScheduled is missing";
        return Judgement::in_progress("NoDesiredNumber", message);
    };
    let counts = [
        ("LessCurrent", "current", "/status/currentNumberScheduled"),
        ("LessUpdated", "updated", "/status/updatedNumberScheduled"),
        ("LessAvailable", "available", "/status/numberAvailable"),
        ("LessReady", "ready", "/status/numberReady"),
    ];
    let less = counts.into_iter().find_map(|(reason, noun, pointer)| {
        fewer(reason, noun, fields.integer(pointer).unwrap_or(0), wanted)
    });
    less.unwrap_or_else(|| Judgement::current(format!("all pods run as the spec asks: {wanted}")))
}

fn deployment(fields: ObjectFields<'_>, conditions: &[ReportedCondition]) -> Judgement {
    let exceeded = |it: &&ReportedCondition| it.reason == "ProgressDeadlineExceeded";
    let mut progress = conditions.iter().filter(|it| it.kind == "Progressing");
    if let Some(condition) = progress.clone().find(exceeded) {
        return Judgement::failed(&condition.reason, &condition.message);
    }
    let wanted = fields.integer("/spec/replicas").unwrap_or(1);
    let of_status = |pointer| fields.integer(pointer).unwrap_or(0);
    let replicas = of_status("/status/replicas");
    let updated = of_status("/status/updatedReplicas");
    let counts = fewer("LessReplicas", "replicas", replicas, wanted)
        .or_else(|| fewer("LessUpdated", "updated", updated, wanted))
        .or_else(|| extra_pods(replicas, wanted))
        .or_else(|| {
            let available = of_status("/status/availableReplicas");
            fewer("LessAvailable", "available", available, updated)
        })
        .or_else(|| fewer("LessReady", "ready", of_status("/status/readyReplicas"), wanted));
    if let Some(judgement) = counts {
        return judgement;
    }
    let deadline = fields.integer("/spec/progressDeadlineSeconds").unwrap_or(NO_DEADLINE);
    let progressed =
        progress.any(|it| it.status == "True" && it.reason == "NewReplicaSetAvailable");
    if deadline != NO_DEADLINE && !progressed {
        return Judgement::in_progress("ReplicaSetNotAvailable", "its ReplicaSet is not available");
    }
    if !conditions.iter().any(|it| it.is("Available", "True")) {
        return Judgement::in_progress("DeploymentNotAvailable", "it lacks available replicas");
    }
    Judgement::current(format!("Deployment is available with {replicas} replicas"))
}

fn replica_set(fields: ObjectFields<'_>, conditions: &[ReportedCondition]) -> Judgement {
    if let Some(failure) = conditions.iter().find(|it| it.is("ReplicaFailure", "True")) {
        return Judgement::in_progress("ReplicaFailure", &failure.message);
    }
    let wanted = fields.integer("/spec/replicas").unwrap_or(1);
    let of_status = |pointer| fields.integer(pointer).unwrap_or(0);
    let replicas = of_status("/status/replicas");
    fewer("LessLabelled", "labelled", of_status("/status/fullyLabeledReplicas"), wanted)
        .or_else(|| {
            let available = of_status("/status/availableReplicas");
            fewer("LessAvailable", "available", available, wanted)
        })
        .or_else(|| fewer("LessReady", "ready", of_status("/status/readyReplicas"), wanted))
        .or_else(|| extra_pods(replicas, wanted))
        .unwrap_or_else(|| Judgement::current(format!("ReplicaSet has {replicas} replicas")))
}

fn job(fields: ObjectFields<'_>, conditions: &[ReportedCondition]) -> Judgement {
    let of_status = |pointer| fields.integer(pointer).unwrap_or(0);
    let parallelism = fields.integer("/spec/parallelism").unwrap_or(1);
    let completions = fields.integer("/spec/completions").unwrap_or(parallelism);
    let (succeeded, failed) = (of_status("/status/succeeded"), of_status("/status/failed"));
    let is_suspended = fields.0.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true);
    let ended =
        conditions.iter().filter(|it| it.status == "True").find_map(|it| match it.kind.as_str() {
            "Complete" => Some(Judgement::current(format!("succeeded: {succeeded}/{completions}"))),
            "Failed" => {
                let message = format!("failed: {failed}/{completions}; {}", it.message);
                Some(Judgement::failed("JobFailed", message.trim_end_matches("; ")))
            }
            "Suspended" if is_suspended => Some(Judgement::current("Job is suspended")),
            _ => None,
        });
    if let Some(judgement) = ended {
        return judgement;
    }
    if fields.text("/status/startTime").is_none() {
        return Judgement::in_progress("JobNotStarted", "Job has not started");
    }
    let active = of_status("/status/active");
    Judgement::current(format!("succeeded: {succeeded}, active: {active}, failed: {failed}"))
}

fn crd(conditions: &[ReportedCondition]) -> Judgement {
    for condition in conditions {
        let is_refused = condition.is("NamesAccepted", "False");
        let is_not_established =
            condition.is("Established", "False") && condition.reason != "Installing";
        if is_refused || is_not_established {
            return Judgement::failed(&condition.reason, &condition.message);
        }
        if condition.is("Established", "True") {
            return Judgement::current("CRD is established");
        }
    }
    Judgement::in_progress("Installing", "CRD is being installed")
}

/// Judges a number of pods that is less than wanted as `InProgress`.
fn fewer(reason: &str, noun: &str, count: i64, wanted: i64) -> Option<Judgement> {
    (count < wanted).then(|| Judgement::in_progress(reason, format!("{noun}: {count}/{wanted}")))
}

/// Judges pods that have yet to end as `InProgress`.
fn extra_pods(replicas: i64, wanted: i64) -> Option<Judgement> {
    (replicas > wanted).then(|| {
        let message = format!("pods that have yet to end: {}", replicas - wanted);
        Judgement::in_progress("ExtraPods", message)
    })
}
