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

/// Replicas of an election, and the server that stores their lease.
struct Model {
    times: ElectionTimes,
    server: Server,
    now: Duration,
    is_deleted: bool,
    replicas: Vec<Replica>,
    // Time until which a write that an earlier leader was allowed to send may arrive.
    writes_until: Vec<Duration>,
}

impl Model {
    fn new() -> Self {
        let (times, now, mut server) =
            (ElectionTimes::default(), Duration::ZERO, Server::default());
        let mut replicas: Vec<_> = (0..3_u64)
            .map(|number| Replica {
                candidate: Candidate::new(format!("r{number}").into(), times),
                offset: Duration::from_secs(number * 1_000_000),
                delivered: 0,
                frozen_until: Duration::ZERO,
            })
            .collect();
        // Every replica has seen the lease once: a lease that is deleted before is free for a new
        // one.
        let released = Record { seconds: 1, ..Record::default() };
        let first = server.store(released.creation("ns", "a"));
        for replica in &mut replicas {
            let lease = StoredLease::read(first.clone());
            replica.candidate.read(Some(lease), now + replica.offset, 0.0);
        }
        let writes_until = vec![Duration::ZERO; replicas.len()];
        Self { times, server, now, is_deleted: false, replicas, writes_until }
    }

    /// Returns whether the replica does not run now.
    fn is_frozen(&self, number: usize) -> bool {
        self.replicas[number].frozen_until > self.now
    }

    /// Applies a step; an error if a replica leads while another may write.
    fn apply(&mut self, step: &ModelStep) -> Result<(), TestCaseError> {
        match step {
            ModelStep::Pass(millis) => self.now += Duration::from_millis(*millis),
            ModelStep::Touch => {
                if let Some(mut lease) = self.server.lease.clone() {
                    lease["spec"]["renewTime"] = json!("2000-01-01T00:00:00.000000Z");
                    self.server.store(lease);
                }
            }
            // Once: a creation cannot tell an absent lease from one that was created and deleted
            // since it was seen.
            ModelStep::Delete if self.is_deleted => {}
            ModelStep::Delete => {
                self.is_deleted = true;
                self.server.delete();
            }
            ModelStep::Freeze(replica, millis) => {
                self.replicas[*replica].frozen_until = self.now + Duration::from_millis(*millis);
            }
            ModelStep::Deliver(number) if !self.is_frozen(*number) => self.deliver(*number),
            ModelStep::Release(number) => self.release(*number),
            ModelStep::Step { replica, fate } if !self.is_frozen(*replica) => {
                self.step(*replica, *fate)?;
            }
            ModelStep::Deliver(_) | ModelStep::Step { .. } => {}
        }
        Ok(())
    }

    fn deliver(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        for (_, object, deleted) in &self.server.log[replica.delivered..] {
            let lease = StoredLease::read(object.clone());
            replica.candidate.changed(lease, *deleted, self.now + replica.offset);
        }
        replica.delivered = self.server.log.len();
    }

    fn release(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        let leads = replica.candidate.leads_until();
        let leads = leads.is_some_and(|until| until > self.now + replica.offset);
        if leads && let Some(release) = replica.candidate.release() {
            // No epoch of the replica is left when it frees the lease.
            self.writes_until[number] = Duration::ZERO;
            replica.candidate.released();
            self.server.write(&release);
        }
    }

    fn step(&mut self, number: usize, fate: RequestFate) -> Result<(), TestCaseError> {
        let (now, replica) = (self.now, &mut self.replicas[number]);
        let here = now + replica.offset;
        match replica.candidate.decide(here, true) {
            Step::Read => {
                let lease = self.server.lease.clone().map(StoredLease::read);
                replica.candidate.read(lease, here, 0.0);
            }
            Step::Write(write) => {
                let acquires = replica.candidate.leads_until().is_none();
                let stored = match fate {
                    RequestFate::Dropped => None,
                    RequestFate::Answered | RequestFate::Unanswered => self.server.write(&write),
                };
                if acquires && stored.is_some() {
                    for (other, until) in self.writes_until.iter().enumerate() {
                        prop_assert!(
                            other == number || *until <= now,
                            "r{number} leads at {now:?}, r{other} may write until {until:?}"
                        );
                    }
                }
                let result = match (fate, stored) {
                    (RequestFate::Answered, Some(lease)) => WriteResult::Stored(lease),
                    (RequestFate::Answered, None) => WriteResult::Conflict,
                    (RequestFate::Unanswered | RequestFate::Dropped, _) => WriteResult::Failed,
                };
                replica.candidate.written(&write, result, here, here, 0.0);
            }
            Step::Wait(_) | Step::Lost(_) => {}
        }
        let leads = replica.candidate.leads_until();
        if let Some(until) = leads.and_then(|until| until.checked_sub(replica.offset)) {
            self.writes_until[number] = until + self.times.write_timeout();
        }
        Ok(())
    }
}

/// Runs the steps; an error if a replica leads while another may write.
fn run(steps: &[ModelStep]) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    steps.iter().try_for_each(|step| model.apply(step))
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
