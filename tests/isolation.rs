//! A fault of one controller or type does not affect others.
//!
//! A p99 on a busy machine is noisy. Both latencies are therefore measured in turn, several times,
//! and the median of their ratios counts.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams};
use pilotlight::{
    manager::ControllerState,
    testing::{ControlPlane, CrdBuilder},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::support::{
    Act, Answer, ControllerVariant, Embedded, Harness, HarnessOptions, PATIENCE,
    RecordingReconciler, Rule, Supervised, about, install_own_crds, one_config_map, type_of,
};

const BYSTANDERS: usize = 20;
/// Every bystander sees each change, so that a p99 is taken from a thousand latencies.
const CHANGES: i64 = 50;
/// Default timeout of a webhook.
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of measurements of each latency.
const ROUNDS: usize = 9;

#[tokio::test]
async fn twenty_controllers_keep_their_latency_beside_bad_neighbours() {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let supervised = Supervised::with(plane, "isolation", HarnessOptions::declaring()).await;
    let harness = &supervised.harness;
    let widgets = harness.widgets();
    let gadgets = CrdBuilder::new(&harness.scope.group, "Gadget");
    let group = harness.scope.group.clone();
    harness.grant("widgets", &[Rule::all_of(&group, "widgets")]).await;
    harness.grant("gadgets", &[Rule::all_of(&group, "gadgets")]).await;
    for crd in [&widgets, &gadgets] {
        supervised.install(crd).await;
    }
    let bystanders = RecordingReconciler::new(type_of(&widgets, "v1"));
    for number in 0..BYSTANDERS {
        Embedded.add(harness, &format!("bystander-{number}"), &bystanders).await;
    }
    for number in 0..BYSTANDERS {
        harness.running(&format!("bystander-{number}"), 1).await;
    }
    harness.create(&widgets, "beat", 0).await;
    harness.create(&gadgets, "gadget", 0).await;
    let mut beat = 0;
    latencies(harness, &widgets, &bystanders, &mut beat).await;

    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let alone = p99(latencies(harness, &widgets, &bystanders, &mut beat).await);
        let neighbours = Neighbours::arrive(&supervised, &widgets, &gadgets, round).await;
        let beside = p99(latencies(harness, &widgets, &bystanders, &mut beat).await);
        neighbours.leave(&supervised, &gadgets).await;
        ratios.push(beside.as_secs_f64() / alone.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[ROUNDS / 2] <= 2.0, "faulty neighbours slow down others: {ratios:.2?}");

    for number in 0..BYSTANDERS {
        let status = harness.status(&format!("bystander-{number}"));
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
        assert_eq!(status.failures, 0);
    }
    supervised.end().await;
}

/// Faulty controllers: with a missing type, with a panicking reconciler, with a hanging hook, and
/// with a revoked right to read.
struct Neighbours {
    missing: String,
    panicking: String,
    hanging: String,
    forbidden: String,
    // Earlier calls of the hook for `beat`, which the hanging hook does not answer.
    calls: usize,
    since: Instant,
    _held: watch::Sender<bool>,
}

impl Neighbours {
    async fn arrive(
        supervised: &Supervised<'_>,
        widgets: &CrdBuilder,
        gadgets: &CrdBuilder,
        round: usize,
    ) -> Self {
        let harness = &supervised.harness;
        let name = |what: &str| format!("{what}-{round}");
        let missing = name("missing");
        let absents = CrdBuilder::new(&harness.scope.group, "Absent");
        Embedded.add(harness, &missing, &RecordingReconciler::new(type_of(&absents, "v1"))).await;
        let panicking = name("panicking");
        let panics = RecordingReconciler::new(type_of(widgets, "v1"));
        panics.act("beat", Act::Panic);
        Embedded.add(harness, &panicking, &panics).await;
        let hanging = name("hanging");
        let (held, free) = watch::channel(false);
        supervised
            .hook
            .answers(move |request| Answer::Hold(free.clone(), Box::new(one_config_map(request))));
        let (calls, since) = (supervised.hook.count("beat"), Instant::now());
        supervised.declare(&hanging, supervised.spec(widgets)).await;
        let forbidden = name("forbidden");
        let reads = RecordingReconciler::new(type_of(gadgets, "v1"));
        Embedded.add(harness, &forbidden, &reads).await;

        reads.saw("gadget", 1).await;
        panics.saw("beat", 1).await;
        supervised.hook.called_again("beat", calls).await;
        harness.until(&missing, "waits", |it| it.reason == "TypeAbsent").await;
        // Open watches survive a revoked right; the next watch is refused.
        harness.revoke("gadgets").await;
        harness.faults.cut_open(about(gadgets));
        let refused =
            harness.until(&forbidden, "is forbidden", |it| it.reason == "Forbidden").await;
        assert_eq!((refused.state, refused.epoch), (ControllerState::Running, 1));
        assert!(refused.message.contains("grant"), "{}", refused.message);
        let panicked =
            harness.until(&panicking, "has panicked", |it| it.last_error().is_some()).await;
        assert!(panicked.last_error().is_some_and(|error| error.contains("injected panic")));
        assert_eq!(panicked.state, ControllerState::Running);
        Self { missing, panicking, hanging, forbidden, calls, since, _held: held }
    }

    async fn leave(self, supervised: &Supervised<'_>, gadgets: &CrdBuilder) {
        let harness = &supervised.harness;
        let still = harness.status(&self.forbidden);
        assert_eq!(
            (still.state, still.epoch),
            (ControllerState::Running, 1),
            "the controller keeps running"
        );
        let hanging = supervised.runnable(&self.hanging);
        let still = harness.status(&hanging);
        assert_eq!(
            (still.state, still.epoch),
            (ControllerState::Running, 1),
            "the controller keeps running"
        );
        let calls = supervised.hook.count("beat") - self.calls;
        // Calls do not overlap: the next one follows a timeout.
        let most = 2 + self.since.elapsed().as_secs() / HOOK_TIMEOUT.as_secs();
        assert!(calls as u64 <= most, "calls of a hanging hook do not overlap: {calls} calls");
        supervised
            .controllers()
            .delete(&supervised.name(&self.hanging), &DeleteParams::default())
            .await
            .unwrap();
        harness.until_removed(&hanging).await;
        harness.grant("gadgets", &[Rule::all_of(&harness.scope.group, "gadgets")]).await;
        harness.create(gadgets, &format!("again-{}", fastrand::u32(..)), 1).await;
        for name in [&self.missing, &self.panicking, &self.forbidden] {
            timeout(PATIENCE, harness.manager.remove(name.as_str())).await.unwrap();
        }
    }
}

/// Latencies from sending a change until each bystander reconciles it.
async fn latencies(
    harness: &Harness<'_>,
    crd: &CrdBuilder,
    recorder: &RecordingReconciler,
    beat: &mut i64,
) -> Vec<Duration> {
    let api = harness.scope.api(crd, "v1");
    let mut latencies = Vec::new();
    for _ in 0..CHANGES {
        *beat += 1;
        recorder.clear();
        let sent = Instant::now();
        let change = Patch::Merge(json!({ "spec": { "size": *beat } }));
        api.patch("beat", &PatchParams::default(), &change).await.unwrap();
        let seen = recorder.count(BYSTANDERS, |seen| seen.size == Some(*beat)).await;
        latencies.extend(seen.into_iter().map(|seen| seen.at - sent));
    }
    latencies
}

fn p99(mut latencies: Vec<Duration>) -> Duration {
    latencies.sort();
    latencies[latencies.len() * 99 / 100]
}
