//! What goes wrong with one controller or one type is felt by nobody else.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use pilotlight::{manager::ControllerState, testing::CrdBuilder};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::rig::{
    Act, Carrier, Embedded, PATIENCE, Recorder, Rig, RigOptions, Rule, about, type_of,
};

const BYSTANDERS: usize = 20;
const CHANGES: i64 = 30;
/// A machine that does something else for a moment is no neighbour of ours.
const NOISE: Duration = Duration::from_millis(5);
const ATTEMPTS: usize = 4;

#[tokio::test]
async fn twenty_controllers_do_not_feel_their_bad_neighbours() {
    let rig = Rig::with("isolation", RigOptions::unprivileged()).await;
    let widgets = rig.widgets();
    let gadgets = CrdBuilder::new(&rig.scope.group, "Gadget");
    let absents = CrdBuilder::new(&rig.scope.group, "Absent");
    let group = rig.scope.group.clone();
    rig.grant("widgets", &[Rule::all_of(&group, "widgets")]).await;
    rig.grant("gadgets", &[Rule::all_of(&group, "gadgets")]).await;
    for crd in [&widgets, &gadgets] {
        rig.scope.install_crd(crd).await.unwrap();
    }
    let bystanders = Recorder::new(type_of(&widgets, "v1"));
    for number in 0..BYSTANDERS {
        Embedded.add(&rig, &format!("bystander-{number}"), &bystanders).await;
    }
    for number in 0..BYSTANDERS {
        rig.running(&format!("bystander-{number}"), 1).await;
    }
    rig.scope.wait_established(&gadgets).await.unwrap();
    rig.create(&widgets, "beat", 0).await;
    rig.create(&gadgets, "gadget", 0).await;
    let mut beat = 0;
    latencies(&rig, &widgets, &bystanders, &mut beat).await;

    let mut outcome = Vec::new();
    for attempt in 0..ATTEMPTS {
        let before = p99(latencies(&rig, &widgets, &bystanders, &mut beat).await);
        let neighbours = Neighbours::arrive(&rig, &widgets, &gadgets, &absents, attempt).await;
        let beside = p99(latencies(&rig, &widgets, &bystanders, &mut beat).await);
        neighbours.leave(&rig, &gadgets).await;
        let felt = beside > 2 * before + NOISE;
        outcome.push(format!("p99 {before:?} alone, {beside:?} beside bad neighbours"));
        if !felt {
            break;
        }
        assert!(attempt + 1 < ATTEMPTS, "neighbours are felt, again and again: {outcome:#?}");
    }

    for number in 0..BYSTANDERS {
        let status = rig.status(&format!("bystander-{number}"));
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
        assert_eq!(status.failures, 0);
    }
    rig.end().await.unwrap();
}

/// One whose type is missing, one that panics, one that hangs, one that may not read any more.
struct Neighbours {
    names: [String; 4],
    hanging: Recorder,
}

impl Neighbours {
    async fn arrive(
        rig: &Rig<'_>,
        widgets: &CrdBuilder,
        gadgets: &CrdBuilder,
        absents: &CrdBuilder,
        attempt: usize,
    ) -> Self {
        let name = |what: &str| format!("{what}-{attempt}");
        let names = [name("missing"), name("panicking"), name("hanging"), name("forbidden")];
        let [missing, panicking, hanging, forbidden] = &names;
        Embedded.add(rig, missing, &Recorder::new(type_of(absents, "v1"))).await;
        let panics = Recorder::new(type_of(widgets, "v1"));
        panics.act("beat", Act::Panic);
        Embedded.add(rig, panicking, &panics).await;
        let hangs = Recorder::new(type_of(widgets, "v1"));
        hangs.act("beat", Act::Hang);
        Embedded.add(rig, hanging, &hangs).await;
        let reads = Recorder::new(type_of(gadgets, "v1"));
        Embedded.add(rig, forbidden, &reads).await;
        reads.saw("gadget", 1).await;
        panics.saw("beat", 1).await;
        hangs.saw("beat", 1).await;
        rig.until(missing, "waits", |it| it.reason == "TypeAbsent").await;
        // A revoked right leaves open watches open: the next one is refused.
        rig.revoke("gadgets").await;
        rig.faults.cut_open(about(gadgets));
        let refused = rig.until(forbidden, "is forbidden", |it| it.reason == "Forbidden").await;
        assert_eq!((refused.state, refused.epoch), (ControllerState::Running, 1));
        assert!(refused.message.contains("grant"), "{}", refused.message);
        let panicked = rig.until(panicking, "has panicked", |it| it.last_error().is_some()).await;
        assert!(panicked.last_error().is_some_and(|error| error.contains("told to panic")));
        assert_eq!(panicked.state, ControllerState::Running);
        Self { names, hanging: hangs }
    }

    async fn leave(self, rig: &Rig<'_>, gadgets: &CrdBuilder) {
        let [.., hanging, forbidden] = &self.names;
        let still = rig.status(forbidden);
        assert_eq!((still.state, still.epoch), (ControllerState::Running, 1), "nothing stops");
        assert_eq!(self.hanging.all().len(), 1, "{hanging} hangs in its first reconcile");
        rig.grant("gadgets", &[Rule::all_of(&rig.scope.group, "gadgets")]).await;
        rig.create(gadgets, &format!("again-{}", fastrand::u32(..)), 1).await;
        for name in &self.names {
            timeout(PATIENCE, rig.manager.remove(name.as_str())).await.unwrap();
        }
    }
}

/// From a change being sent until each bystander reconciles it.
async fn latencies(
    rig: &Rig<'_>,
    crd: &CrdBuilder,
    recorder: &Recorder,
    beat: &mut i64,
) -> Vec<Duration> {
    let api = rig.scope.api(crd, "v1");
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
