//! Workloads with faults on the simulated server, where many seeds are cheap and a seed determines
//! the whole run, including the order of its events.

use std::{collections::BTreeMap, time::Duration};

use kube::Client;
use pilotlight::testing::{Fault, Faults, LeakOracle, Mask, Profile, Recording, Schedule, Verb};
use tokio::runtime::Handle;

use super::profile;
use crate::support::{Process, Workload, counted, workload};

const SEEDS: std::ops::Range<u64> = 1..61;
/// Seed of all other random values: uids, jitter.
const SEED: u64 = 4;
/// Longest hold of a request; long enough that its caller handles other events meanwhile.
const HOLD: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn faults_of_every_sort_lose_nothing_on_the_simulated_server() {
    let calm = recorded(SEED, None).await.recording;
    // The same workload with other uids.
    let again = recorded(SEED + 1, None).await.recording;
    let mask = workload::mask(&calm, &again);
    let mut sorts: BTreeMap<String, usize> = BTreeMap::new();

    for seed in SEEDS {
        let stormy = recorded(SEED, Some(seed)).await;

        if let Err(differences) = mask.compare(&calm, &stormy.recording) {
            let schedule = Schedule::random(seed, &drawn());
            panic!(
                "the result differs:\n{differences}{schedule}  fired:\n    {}",
                stormy.fired.join("\n    ")
            );
        }
        for fired in &stormy.fired {
            let word = fired.split(' ').next().unwrap_or_default();
            *sorts.entry(word.to_owned()).or_default() += 1;
        }
    }

    let all: usize = sorts.values().sum();
    counted(format_args!(
        "drawn faults on the simulated server: {all} of {} seeds: {sorts:?}",
        SEEDS.count()
    ));
    assert_eq!(sorts.len(), SORTS, "not every kind of fault was fired: {sorts:?}");
}

/// Kinds of faults in the record: a refusal and an expiry are both replies.
const SORTS: usize = Fault::PASSING.len() - 1;

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_run() {
    let one = recorded(SEED, Some(7)).await;
    let other = recorded(SEED, Some(7)).await;

    assert!(one.fired.len() > 5, "too few faults were fired: {:?}", one.fired);
    assert_eq!(one.fired, other.fired);
    Mask::default().assert_same(&one.recording, &other.recording);
    assert_ne!(one.fired, recorded(SEED, Some(8)).await.fired);
}

struct FaultOutcome {
    recording: Recording,
    /// Fired faults, in order.
    fired: Vec<String>,
}

pub(super) fn drawn() -> Profile {
    let profile = profile(&workload::crd(workload::GROUP).api_resource("v1"), HOLD);
    Profile { rules: 60, verbs: [profile.verbs, vec![Verb::Get]].concat(), ..profile }
}

async fn recorded(seed: u64, faulty: Option<u64>) -> FaultOutcome {
    fastrand::seed(seed);
    let (server, work) = Workload::simulated(seed).await;
    let recorder = work.recorder().await;
    let tasks = LeakOracle::new().tasks("the process", &Handle::current());
    let baseline = tasks.baseline().await;
    let faults = Faults::default();
    // Faults apply from the process's first request on.
    let playing = faulty.map(|seed| faults.play(&Schedule::random(seed, &drawn())));
    let layers = tower::ServiceBuilder::new().layer(faults.layer());
    let client = Client::new(layers.service(server.service("pilot")), "default");
    let process = Process::start(client);

    work.run().await;
    work.delete("a").await;

    drop(playing);
    process.end().await;
    tasks.assert_baseline(&baseline).await;
    let fired = faults.fired().iter().map(ToString::to_string).collect();
    FaultOutcome { recording: recorder.finish().await.unwrap(), fired }
}
