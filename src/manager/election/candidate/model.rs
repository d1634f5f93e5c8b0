//! Model of an election: replicas whose clocks differ, and a server that loses responses.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Step of a run.
#[derive(Clone, Debug)]
enum ModelStep {
    /// Time passes, in milliseconds.
    Pass(u64),
    /// A replica takes its next step; the server's response arrives or is lost.
    Step { replica: usize, fate: RequestFate },
    /// The changes of the lease reach a replica.
    Deliver(usize),
    /// The clock of the lease's fields is rewritten, or its labels.
    Touch,
    /// The lease is deleted.
    Delete,
    /// The replica frees the lease if it leads.
    Release(usize),
    /// The replica does not run for a time, such as at SIGSTOP.
    Freeze(usize, u64),
}

#[derive(Clone, Copy, Debug)]
enum RequestFate {
    Answered,
    /// Stored, but the response is lost.
    Unanswered,
    /// Not stored.
    Dropped,
}

#[derive(Default)]
struct Server {
    version: u64,
    lease: Option<Value>,
    log: Vec<(u64, Value, bool)>,
}

struct Replica {
    candidate: Candidate,
    offset: Duration,
    delivered: usize,
    frozen_until: Duration,
}

impl Server {
    fn write(&mut self, write: &LeaseWrite) -> Option<StoredLease> {
        let version =
            |lease: &Value| lease["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let current = self.lease.as_ref().and_then(version);
        if current.as_deref() != write.over.as_ref().map(|over| over.version.as_str()) {
            return None;
        }
        let object = match &write.over {
            Some(over) => over.with(&write.record),
            None => write.record.creation("ns", "a"),
        };
        Some(StoredLease::read(self.store(object)))
    }

    fn store(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(object.clone());
        self.log.push((self.version, object.clone(), false));
        object
    }

    fn delete(&mut self) {
        if let Some(mut object) = self.lease.take() {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.log.push((self.version, object, true));
        }
    }
}

fn happening() -> impl Strategy<Value = ModelStep> {
    let fate = prop_oneof![
        6 => Just(RequestFate::Answered),
        1 => Just(RequestFate::Unanswered),
        1 => Just(RequestFate::Dropped),
    ];
    prop_oneof![
        6 => (0..4000_u64).prop_map(ModelStep::Pass),
        12 => (0..3_usize, fate).prop_map(|(replica, fate)| ModelStep::Step { replica, fate }),
        6 => (0..3_usize).prop_map(ModelStep::Deliver),
        1 => Just(ModelStep::Touch),
        1 => Just(ModelStep::Delete),
        1 => (0..3_usize).prop_map(ModelStep::Release),
        1 => (0..3_usize, 0..40_000_u64).prop_map(|(replica, time)| ModelStep::Freeze(replica, time)),
    ]
}

/// Runs the steps; an error if a replica leads while another may write.
#[expect(clippy::too_many_lines, reason = "one step of the model for each variant")]
fn run(steps: &[ModelStep]) -> Result<(), TestCaseError> {
    let times = ElectionTimes::default();
    let mut server = Server::default();
    let (mut now, mut deleted) = (Duration::ZERO, false);
    let mut replicas: Vec<_> = (0..3_u64)
        .map(|number| Replica {
            candidate: Candidate::new(format!("r{number}").into(), times),
            offset: Duration::from_secs(number * 1_000_000),
            delivered: 0,
            frozen_until: Duration::ZERO,
        })
        .collect();
    // Every replica has seen the lease once: a lease that is deleted before is free for a new one.
    let released = Record { seconds: 1, ..Record::default() };
    let first = server.store(released.creation("ns", "a"));
    for replica in &mut replicas {
        let lease = StoredLease::read(first.clone());
        replica.candidate.read(Some(lease), now + replica.offset, 0.0);
    }
    // Time until which a write that an earlier leader was allowed to send may arrive.
    let mut writes_until: Vec<Duration> = vec![Duration::ZERO; replicas.len()];
    for happening in steps {
        match happening {
            ModelStep::Pass(millis) => now += Duration::from_millis(*millis),
            ModelStep::Touch => {
                if let Some(mut lease) = server.lease.clone() {
                    lease["spec"]["renewTime"] = json!("2000-01-01T00:00:00.000000Z");
                    server.store(lease);
                }
            }
            // Once: a creation cannot tell an absent lease from one that was created and deleted
            // since it was seen.
            ModelStep::Delete if deleted => {}
            ModelStep::Delete => {
                deleted = true;
                server.delete();
            }
            ModelStep::Freeze(replica, millis) => {
                replicas[*replica].frozen_until = now + Duration::from_millis(*millis);
            }
            ModelStep::Deliver(number) => {
                let replica = &mut replicas[*number];
                if replica.frozen_until > now {
                    continue;
                }
                for (_, object, deleted) in &server.log[replica.delivered..] {
                    let lease = StoredLease::read(object.clone());
                    replica.candidate.changed(lease, *deleted, now + replica.offset);
                }
                replica.delivered = server.log.len();
            }
            ModelStep::Release(number) => {
                let replica = &mut replicas[*number];
                let leads = replica.candidate.leads_until();
                let leads = leads.is_some_and(|until| until > now + replica.offset);
                if leads && let Some(release) = replica.candidate.release() {
                    // No epoch of the replica is left when it frees the lease.
                    writes_until[*number] = Duration::ZERO;
                    replica.candidate.released();
                    server.write(&release);
                }
            }
            ModelStep::Step { replica: number, fate } => {
                let replica = &mut replicas[*number];
                if replica.frozen_until > now {
                    continue;
                }
                let here = now + replica.offset;
                match replica.candidate.decide(here, true) {
                    Step::Read => {
                        let lease = server.lease.clone().map(StoredLease::read);
                        replica.candidate.read(lease, here, 0.0);
                    }
                    Step::Write(write) => {
                        let acquires = replica.candidate.leads_until().is_none();
                        let stored = match fate {
                            RequestFate::Dropped => None,
                            RequestFate::Answered | RequestFate::Unanswered => server.write(&write),
                        };
                        if acquires && stored.is_some() {
                            for (other, until) in writes_until.iter().enumerate() {
                                prop_assert!(
                                    other == *number || *until <= now,
                                    "r{number} leads at {now:?}, r{other} may write until {until:?}"
                                );
                            }
                        }
                        let result = match (fate, stored) {
                            (RequestFate::Answered, Some(lease)) => WriteResult::Stored(lease),
                            (RequestFate::Answered, None) => WriteResult::Conflict,
                            (RequestFate::Unanswered | RequestFate::Dropped, _) => {
                                WriteResult::Failed
                            }
                        };
                        replica.candidate.written(&write, result, here, here, 0.0);
                    }
                    Step::Wait(_) | Step::Lost(_) => {}
                }
                let leads = replica.candidate.leads_until();
                if let Some(until) = leads.and_then(|until| until.checked_sub(replica.offset)) {
                    writes_until[*number] = until + times.write_timeout();
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_replica_leads_while_a_write_of_an_earlier_leader_may_arrive(
        steps in prop::collection::vec(happening(), 1..120)
    ) {
        run(&steps)?;
    }

    #[test]
    fn one_replica_leads_again_after_any_run(
        steps in prop::collection::vec(happening(), 1..60)
    ) {
        let times = ElectionTimes::default();
        let mut server = Server::default();
        let mut now = Duration::ZERO;
        let mut replica = Candidate::new("r".into(), times);
        for happening in steps {
            match happening {
                ModelStep::Pass(millis) => now += Duration::from_millis(millis),
                ModelStep::Delete => server.delete(),
                ModelStep::Touch | ModelStep::Release(_) | ModelStep::Freeze(..) => {
                    let alien = Record::acquired_by("alien", 15, 9);
                    server.store(alien.creation("ns", "a"));
                }
                ModelStep::Deliver(_) | ModelStep::Step { .. } => {
                    step(&mut replica, &mut server, now);
                }
            }
        }
        for _ in 0..40 {
            now += Duration::from_secs(1);
            step(&mut replica, &mut server, now);
            step(&mut replica, &mut server, now);
        }
        prop_assert!(replica.leads_until().is_some_and(|until| until > now));
        prop_assert_eq!(&replica.record().unwrap().holder, "r");
    }
}

fn step(replica: &mut Candidate, server: &mut Server, now: Duration) {
    match replica.decide(now, false) {
        Step::Read => replica.read(server.lease.clone().map(StoredLease::read), now, 1.0),
        Step::Write(write) => {
            let result = server.write(&write).map_or(WriteResult::Conflict, WriteResult::Stored);
            replica.written(&write, result, now, now, 1.0);
        }
        Step::Wait(_) | Step::Lost(_) => {}
    }
}
