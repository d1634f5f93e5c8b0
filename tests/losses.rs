//! A workload with faults has the same result as one without.

mod replicas;
mod simulated;

use std::time::Duration;

use kube::api::ApiResource;
use pilotlight::testing::{Profile, Recording, Schedule, Verb};

use crate::support::{Supervised, Workload, counted, workload};

/// Seeds of every test run; `many_seeds` runs the others on demand.
const SAMPLE: std::ops::Range<u64> = 1..4;
const MANY: std::ops::Range<u64> = 1..41;

#[tokio::test]
async fn faults_lose_and_duplicate_nothing() {
    seeds_lose_nothing(SAMPLE).await;
}

#[tokio::test]
#[ignore = "takes minutes: run it by name"]
async fn many_seeds_lose_and_duplicate_nothing() {
    seeds_lose_nothing(MANY).await;
}

async fn seeds_lose_nothing(seeds: std::ops::Range<u64>) {
    let (calm, _) = recorded("calm", None).await;
    let (again, _) = recorded("calm-again", None).await;
    let mask = workload::mask(&calm, &again);
    let mut all = 0;

    for seed in seeds.clone() {
        let (stormy, fired) = recorded(&format!("stormy-{seed}"), Some(seed)).await;

        if let Err(differences) = mask.compare(&calm, &stormy) {
            panic!("seed {seed}: the result differs:\n{differences}");
        }
        all += fired;
    }
    counted(format_args!("drawn faults on the control plane: {all} of {} seeds", seeds.count()));
    assert!(all > 0, "no fault was fired");
}

async fn recorded(name: &str, seed: Option<u64>) -> (Recording, usize) {
    let supervised = Supervised::start(name).await;
    supervised.hook.answers(workload::sized);
    let crd = workload::crd(&supervised.harness.scope.group);
    supervised.install(&crd).await;
    let scope = &supervised.harness.scope;
    let work = Workload::new(scope.client(), &scope.namespace, &crd);
    let recorder = work.recorder().await;
    supervised.declare("work", workload::spec(&crd, &supervised.hook.url)).await;
    supervised.runs("work", 1).await;
    let playing = seed.map(|seed| {
        let profile = profile(&crd.api_resource("v1"), Duration::from_secs(1));
        // Open watches are cut, because rules apply to new requests only.
        let playing = supervised.harness.faults.play(&Schedule::random(seed, &profile));
        supervised.harness.faults.cut_open(|info| info.verb == Verb::Watch);
        playing
    });

    work.run().await;

    let fired = playing.as_ref().map_or(0, |playing| playing.fired());
    drop(playing);
    let recording = recorder.finish().await.unwrap();
    supervised.end().await;
    (recording, fired)
}

/// Profile of faults to the workload's types, none of which holds a request longer than `hold`.
fn profile(parents: &ApiResource, hold: Duration) -> Profile {
    Profile {
        rules: 40,
        within: 4,
        types: vec![
            (parents.group.clone(), parents.plural.clone()),
            (String::new(), "configmaps".to_owned()),
            (String::new(), "secrets".to_owned()),
            ("coordination.k8s.io".to_owned(), "leases".to_owned()),
        ],
        verbs: [Verb::MUTATING.as_slice(), &[Verb::List, Verb::Watch]].concat(),
        hold,
        ..Profile::default()
    }
}
