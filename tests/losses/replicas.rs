//! Rolling updates by two replicas that change leaders under faults, on the simulated server.
//!
//! The lease has a client of its own, without faults: `tests/election.rs` has those of the lease,
//! since an election counts real time, and the time of these tests is paused.

use std::{collections::VecDeque, time::Duration};

use kube::{Api, Client, api::ListParams};
use pilotlight::{
    meta::api::ControllerRevision,
    testing::{Faults, LeakOracle, Mask, Recording, Schedule},
};
use tokio::{runtime::Handle, time::sleep};

use super::simulated::drawn;
use crate::support::{LEASE_OF_REPLICAS as LEASE, Process, Workload, counted, until, workload};

const SEEDS: std::ops::Range<u64> = 1..21;
/// Seed of all other random values: uids, jitter.
const SEED: u64 = 4;

#[tokio::test(start_paused = true)]
async fn rollouts_of_replicas_that_change_leaders_lose_nothing() {
    let expected = recorded(SEED, None).await.recording;
    // The same workload with other uids, which the names of revisions contain.
    let again = recorded(SEED + 1, None).await.recording;
    assert!(expected.objects.len() >= 10, "two parents, eight children: {expected:#?}");
    let mask = Mask::default().learn(&expected, &again);
    let (mut leader_changes, mut fired, mut undone) = (0, 0, 0);

    for seed in SEEDS {
        let mut faulty = recorded(SEED, Some(seed)).await;
        undone += take_undone(&expected, &mut faulty.recording);

        if let Err(differences) = mask.compare(&expected, &faulty.recording) {
            let leader_changes = faulty.leader_changes;
            panic!(
                "seed {seed}, {leader_changes} leader changes: the result differs:\n{differences}"
            );
        }
        leader_changes += faulty.leader_changes;
        fired += faulty.fired;
    }

    counted(format_args!(
        "rollouts of two replicas: {leader_changes} leader changes and {fired} drawn faults in {} seeds, \
         {undone} creates repeated and undone",
        SEEDS.count()
    ));
    assert!(leader_changes > SEEDS.count() && fired > SEEDS.count(), "{leader_changes} {fired}");
    assert!(
        undone <= SEEDS.count() / 4,
        "{undone} creates were repeated: not by late caches alone"
    );
}

/// Removes creates that a later deletion has undone, and those deletions. A replica whose caches are
/// behind at its takeover may create a child that its predecessor has deleted, and deletes it when
/// they have caught up. A replica whose watch of the parents is slow may even execute an earlier
/// specification once more. Returns their number.
fn take_undone(expected: &Recording, faulty: &mut Recording) -> usize {
    let mut undone = 0;
    for (key, history) in &mut faulty.objects {
        let Some(wanted) = expected.objects.get(key) else { continue };
        let more = history.creates.saturating_sub(wanted.creates);
        let extra = more.min(history.deletes.saturating_sub(wanted.deletes));
        history.creates -= extra;
        history.deletes -= extra;
        undone += extra;
    }
    undone
}

struct RolloutOutcome {
    recording: Recording,
    leader_changes: usize,
    /// Number of fired faults.
    fired: usize,
}

/// Runs the workload with rollouts; with a seed, under its faults, and with leader changes at its times.
async fn recorded(seed: u64, faulty: Option<u64>) -> RolloutOutcome {
    fastrand::seed(seed);
    let (server, work) = Workload::simulated_as(seed, workload::rolling).await;
    let recorder = work.recorder().await;
    let tasks = LeakOracle::new().tasks("the replicas", &Handle::current());
    let baseline = tasks.baseline().await;
    let faults = Faults::default();
    let playing = faulty.map(|seed| faults.play(&Schedule::random(seed, &drawn())));
    let start = |number: usize| {
        let layers = tower::ServiceBuilder::new().layer(faults.layer());
        let client = Client::new(layers.service(server.service("pilot")), "default");
        Process::elected(client, server.client_as("lease"), &format!("replica-{number}"))
    };
    let mut replicas = VecDeque::from([start(0), start(1)]);
    let mut leader_changes = 0;
    let mut times = fastrand::Rng::with_seed(faulty.unwrap_or_default());

    let working = async {
        work.run().await;
        work.roll().await;
        work.delete("a").await;
    };
    tokio::pin!(working);
    loop {
        let pause = match faulty {
            Some(_) => Duration::from_millis(times.u64(50..1000)),
            None => Duration::MAX,
        };
        tokio::select! {
            () = &mut working => break,
            () = sleep(pause) => {
                // The older replica leads, unless the younger one has just begun.
                replicas.pop_front().unwrap().end().await;
                leader_changes += 1;
                replicas.push_back(start(leader_changes + 1));
            }
        }
    }

    drop(playing);
    let revisions = Api::<ControllerRevision>::namespaced(server.client(), "default");
    until("one revision of the remaining parent is left", async || {
        let all = revisions.list(&ListParams::default()).await.unwrap().items;
        if all.len() == 1 { Ok(()) } else { Err(format!("{all:#?}")) }
    })
    .await;
    // A client has a task, which the oracle counts.
    drop(revisions);
    for replica in replicas {
        replica.end().await;
    }
    tasks.assert_baseline(&baseline).await;
    // A replica whose watch was slow may have created children after the deletion of their parent.
    work.is_gone("a").await;
    let fired = faults.fired().len();
    let mut recording = recorder.finish().await.unwrap();
    // The lease of the election counts the leader changes.
    recording.objects.retain(|key, _| key.name != LEASE);
    RolloutOutcome { recording, leader_changes, fired }
}
