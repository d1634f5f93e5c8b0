//! Cases that kstatus publishes (`pkg/kstatus/status/status_compute_test.go`), and those beyond it.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{Summary, SummaryState, SummaryState::*};

/// Object of a kind at generation 1, with the given spec and status.
fn object(api_version: &str, kind: &str, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "test", "namespace": "qual", "generation": 1},
        "spec": spec,
        "status": status,
    })
}

#[track_caller]
fn check(name: &str, object: &Value, state: SummaryState, reason: &str) {
    let summary = Summary::of(object);
    assert_eq!((summary.state, summary.reason.as_str()), (state, reason), "{name}: {summary}");
}

fn check_all(api_version: &str, kind: &str, cases: &[(&str, Value, Value, SummaryState, &str)]) {
    for (name, spec, status, state, reason) in cases {
        check(name, &object(api_version, kind, spec.clone(), status.clone()), *state, reason);
    }
}

#[test]
fn pods_are_judged_by_phase_readiness_and_scheduling() {
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason});
    let unscheduled = condition("PodScheduled", "False", "Unschedulable");
    let completed = condition("Ready", "False", "PodCompleted");
    let crash = json!([{"name": "nginx", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]);
    let ready = json!({"phase": "Running", "conditions": [condition("Ready", "True", "")]});
    let crashing =
        json!({"phase": "Running", "conditions": [unscheduled], "containerStatuses": crash});
    check_all(
        "v1",
        "Pod",
        &[
            ("no status", json!({}), json!({}), InProgress, "PodNotObserved"),
            ("ready", json!({}), ready, Current, ""),
            (
                "succeeded",
                json!({}),
                json!({"phase": "Succeeded", "conditions": [completed]}),
                Current,
                "",
            ),
            ("failed", json!({}), json!({"phase": "Failed"}), Current, ""),
            ("crash looping", json!({}), crashing, Failed, "ContainerCrashLooping"),
            ("running", json!({}), json!({"phase": "Running"}), InProgress, "PodRunningNotReady"),
            ("pending", json!({}), json!({"phase": "Pending"}), InProgress, "PodPending"),
            ("lost", json!({}), json!({"phase": "Unknown"}), Unknown, "PhaseUnknown"),
        ],
    );
}

#[test]
fn unschedulable_pod_fails_after_fifteen_seconds() {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let status = json!({"phase": "Pending", "conditions": [condition]});
    let mut pod = object("v1", "Pod", json!({}), status);
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let at = |seconds| Summary::at(&pod, created + Duration::from_secs(seconds)).reason;

    assert_eq!(at(14), "PodNotScheduled");
    assert_eq!(at(15), "PodUnschedulable");
}

#[test]
fn stateful_sets_are_judged_by_replicas_partition_and_revision() {
    let four = json!({"replicas": 4});
    let status = |current: i64, ready: i64, replicas: i64| json!({"observedGeneration": 1, "currentReplicas": current, "readyReplicas": ready, "replicas": replicas});
    let partition = json!({"replicas": 4, "updateStrategy": {"rollingUpdate": {"partition": 2}}});
    let mut updated = status(4, 4, 4);
    updated["updatedReplicas"] = json!(2);
    let mut revisions = status(4, 4, 4);
    revisions["currentRevision"] = json!("a");
    revisions["updateRevision"] = json!("b");
    let on_delete = json!({"replicas": 4, "updateStrategy": {"type": "OnDelete"}});
    check_all(
        "apps/v1",
        "StatefulSet",
        &[
            ("no status", json!({}), json!({}), InProgress, "LessReplicas"),
            ("no replicas", json!({}), json!({"currentReplicas": 1}), InProgress, "LessReplicas"),
            ("ok", four.clone(), status(4, 4, 4), Current, ""),
            ("less ready", four.clone(), status(4, 2, 4), InProgress, "LessReady"),
            ("less current", four.clone(), status(2, 4, 4), InProgress, "LessCurrent"),
            ("extra pods", four.clone(), status(4, 4, 8), InProgress, "ExtraPods"),
            ("partition waits", partition.clone(), status(4, 4, 4), InProgress, "PartitionRollout"),
            ("partition done", partition, updated, Current, ""),
            ("two revisions", four, revisions, InProgress, "RevisionMismatch"),
            ("on delete", on_delete, json!({}), Current, ""),
        ],
    );
}

#[test]
fn daemon_sets_are_judged_by_observed_generation_and_numbers() {
    let status = |available: i64, ready: i64| json!({"observedGeneration": 1, "desiredNumberScheduled": 4, "currentNumberScheduled": 4, "updatedNumberScheduled": 4, "numberAvailable": available, "numberReady": ready});
    let mut older = status(4, 4);
    older["observedGeneration"] = json!(0);
    check_all(
        "apps/v1",
        "DaemonSet",
        &[
            ("no status", json!({}), json!({}), InProgress, "NoObservedGeneration"),
            (
                "no number",
                json!({}),
                json!({"observedGeneration": 1}),
                InProgress,
                "NoDesiredNumber",
            ),
            ("ok", json!({}), status(4, 4), Current, ""),
            ("less ready", json!({}), status(4, 2), InProgress, "LessReady"),
            ("less available", json!({}), status(2, 4), InProgress, "LessAvailable"),
            ("other generation", json!({}), older, InProgress, "LatestGenerationNotObserved"),
        ],
    );
}

#[test]
fn deployments_are_judged_by_replicas_and_conditions() {
    let status = |progressing: &str, reason: &str, available: &str| {
        json!({
            "observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1,
            "availableReplicas": 1, "replicas": 1,
            "conditions": [
                {"type": "Progressing", "status": progressing, "reason": reason},
                {"type": "Available", "status": available},
            ],
        })
    };
    let deadline = json!({"progressDeadlineSeconds": 45});
    let done = "NewReplicaSetAvailable";
    check_all(
        "apps/v1",
        "Deployment",
        &[
            ("no status", json!({}), json!({}), InProgress, "LessReplicas"),
            ("ok", json!({}), status("True", done, "True"), Current, ""),
            (
                "not progressing",
                deadline.clone(),
                status("False", "Some reason", "True"),
                InProgress,
                "ReplicaSetNotAvailable",
            ),
            ("no deadline", json!({}), status("False", "Some reason", "True"), Current, ""),
            (
                "not available",
                json!({}),
                status("True", done, "False"),
                InProgress,
                "DeploymentNotAvailable",
            ),
            (
                "deadline exceeded",
                deadline,
                status("False", "ProgressDeadlineExceeded", "True"),
                Failed,
                "ProgressDeadlineExceeded",
            ),
        ],
    );
}

#[test]
fn replica_sets_are_judged_by_replicas_and_failures() {
    let status = |ready: i64, available: i64| json!({"observedGeneration": 1, "replicas": 4, "readyReplicas": ready, "availableReplicas": available, "fullyLabeledReplicas": 4});
    let mut failing = status(4, 4);
    failing["conditions"] = json!([{"type": "ReplicaFailure", "status": "True"}]);
    let mut recovered = status(4, 4);
    recovered["conditions"] = json!([{"type": "ReplicaFailure", "status": "False"}]);
    let four = json!({"replicas": 4});
    check_all(
        "apps/v1",
        "ReplicaSet",
        &[
            ("no status", json!({}), json!({}), InProgress, "LessLabelled"),
            ("ok", four.clone(), status(4, 4), Current, ""),
            ("recovered", four.clone(), recovered, Current, ""),
            ("less available", four.clone(), status(4, 2), InProgress, "LessAvailable"),
            ("less ready", four.clone(), status(2, 4), InProgress, "LessReady"),
            ("failing", four, failing, InProgress, "ReplicaFailure"),
        ],
    );
}

#[test]
fn jobs_are_current_while_they_run_and_failed_by_their_condition() {
    let of = |kind: &str| json!({"conditions": [{"type": kind, "status": "True"}]});
    let running = json!({"startTime": "2019-06-04T01:17:13Z", "active": 2, "conditions": [{"type": "Failed", "status": "False"}]});
    check_all(
        "batch/v1",
        "Job",
        &[
            ("no status", json!({}), json!({}), InProgress, "JobNotStarted"),
            ("complete", json!({}), of("Complete"), Current, ""),
            ("failed", json!({"completions": 4}), of("Failed"), Failed, "JobFailed"),
            ("running", json!({"parallelism": 2}), running, Current, ""),
            ("suspended", json!({"suspend": true}), of("Suspended"), Current, ""),
        ],
    );
    check_all("batch/v1", "CronJob", &[("no status", json!({}), Value::Null, Current, "")]);
}

#[test]
fn services_claims_and_budgets_are_judged_by_their_own_fields() {
    let balancer = |ip: &str| json!({"type": "LoadBalancer", "clusterIP": ip});
    check_all(
        "v1",
        "Service",
        &[
            ("default", json!({}), json!({}), Current, ""),
            ("node port", json!({"type": "NodePort"}), json!({}), Current, ""),
            ("balancer", balancer("1.2.3.4"), json!({}), Current, ""),
            ("balancer without address", balancer(""), json!({}), InProgress, "NoIPAssigned"),
        ],
    );
    check_all(
        "v1",
        "PersistentVolumeClaim",
        &[
            ("no status", json!({}), json!({}), InProgress, "NotBound"),
            ("bound", json!({}), json!({"phase": "Bound"}), Current, ""),
        ],
    );
    check_all(
        "policy/v1",
        "PodDisruptionBudget",
        &[
            ("observed", json!({}), json!({"observedGeneration": 1}), Current, ""),
            (
                "not observed",
                json!({}),
                json!({"observedGeneration": 0}),
                InProgress,
                "LatestGenerationNotObserved",
            ),
        ],
    );
}

#[test]
fn crds_are_judged_by_established_and_accepted_names() {
    let names = |status: &str, reason: &str| json!({"type": "NamesAccepted", "status": status, "reason": reason});
    let established = |status: &str, reason: &str| json!({"type": "Established", "status": status, "reason": reason});
    let of = |conditions: Vec<Value>| json!({"conditions": conditions});
    let accepted = names("True", "NoConflicts");
    check_all(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &[
            ("no conditions", json!({}), json!({}), InProgress, "Installing"),
            (
                "installing",
                json!({}),
                of(vec![accepted.clone(), established("False", "Installing")]),
                InProgress,
                "Installing",
            ),
            (
                "names refused",
                json!({}),
                of(vec![names("False", "SomeReason")]),
                Failed,
                "SomeReason",
            ),
            (
                "established",
                json!({}),
                of(vec![accepted, established("True", "InitialNamesAccepted")]),
                Current,
                "",
            ),
        ],
    );
}

#[test]
fn other_kinds_are_judged_by_standard_conditions_then_ready_then_phase() {
    let of = |kind: &str, status: &str, reason: &str| json!({"observedGeneration": 1, "conditions": [{"type": kind, "status": status, "reason": reason}]});
    let pair = json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "True", "reason": "Denied"}]});
    check_all(
        "something/v1",
        "MyCR",
        &[
            ("no status", json!({}), json!({}), Current, ""),
            ("ready", json!({}), of("Ready", "True", "AllOk"), Current, ""),
            ("not ready", json!({}), of("Ready", "False", "NotYet"), InProgress, "NotYet"),
            ("unknown", json!({}), of("Ready", "Unknown", "Lost"), InProgress, "Lost"),
            ("another condition", json!({}), of("Some", "False", "Any"), Current, ""),
            ("reconciling", json!({}), of("Reconciling", "True", "Busy"), InProgress, "Busy"),
            ("stalled, though ready", json!({}), pair, Failed, "Denied"),
            (
                "other generation",
                json!({}),
                json!({"observedGeneration": 3}),
                InProgress,
                "LatestGenerationNotObserved",
            ),
            ("failed phase", json!({}), json!({"phase": "Failed"}), Failed, "Failed"),
            ("pending phase", json!({}), json!({"phase": "Pending"}), InProgress, "Pending"),
            ("other phase", json!({}), json!({"phase": "Active"}), Current, ""),
        ],
    );
}

#[test]
fn deletion_comes_first_and_names_its_time() {
    let mut pod = object("v1", "Pod", json!({}), json!({"observedGeneration": 0}));
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let summary = Summary::of(&pod);

    assert_eq!(summary.state, Terminating);
    assert!(summary.message.contains("2026-01-01T00:00:00Z"), "{summary}");
}

#[test]
fn phase_and_controller_are_reported_beside_the_state() {
    let mut claim = object("v1", "PersistentVolumeClaim", json!({}), json!({"phase": "Lost"}));
    let owner = |name: &str, controller: bool| json!({"apiVersion": "v1", "kind": "A", "name": name, "uid": "u", "controller": controller});
    claim["metadata"]["ownerReferences"] = json!([owner("first", false), owner("second", true)]);
    let summary = Summary::of(&claim);

    assert_eq!(summary.phase.as_deref(), Some("Lost"));
    assert_eq!(summary.controller.map(|owner| owner.name).as_deref(), Some("second"));
}

#[test]
fn fields_of_unexpected_types_count_as_missing() {
    for garbage in [json!("x"), json!([1]), json!(null), json!({"replicas": "four"}), json!(1)] {
        let deployment = object("apps/v1", "Deployment", garbage.clone(), garbage.clone());
        check("garbage", &deployment, InProgress, "LessReplicas");
        check("garbage", &object("a/v1", "B", garbage.clone(), garbage), Current, "");
    }
    check("no object", &Value::Null, Current, "");
}
