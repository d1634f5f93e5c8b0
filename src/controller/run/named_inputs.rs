//! Inputs by name of a run: starts and stops their sources while the epoch runs.

use std::{collections::HashMap, sync::Arc};

use tokio::{
    select,
    task::{AbortHandle, Id},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::EpochRun;
use crate::{
    controller::inputs::{
        input::Input,
        state::{InputStep, NamedInputs},
        status::InputStatus,
    },
    duration::after,
};

/// Tasks of the inputs by name in one epoch.
pub(in crate::controller) struct NamedTasks {
    named: Arc<NamedInputs>,
    epoch: u64,
    tasks: HashMap<Id, Task>,
}

struct Task {
    /// Number among the inputs by name.
    number: u64,
    /// Numbers of its status, and of those of the parts of its input that have ended.
    statuses: Vec<usize>,
    feed: CancellationToken,
    release: CancellationToken,
    abort: AbortHandle,
    /// Time to drop the source, once it is to stop.
    deadline: Option<Instant>,
}

impl NamedTasks {
    pub(super) fn new(named: Arc<NamedInputs>, epoch: u64) -> Self {
        named.begin(epoch);
        Self { named, epoch, tasks: HashMap::new() }
    }

    /// Waits until [`EpochRun::update_inputs`] may have something to do. Cancel safe.
    pub(super) async fn changed(&self) {
        let deadline = self.tasks.values().filter_map(|task| task.deadline).min();
        select! {
            () = self.named.changed() => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
        }
    }

    /// Forgets a task that has ended. Returns an input by name whose last part it was, with the
    /// numbers of its statuses: until then, the input is not read in part.
    fn joined(&mut self, id: Id) -> Option<(u64, Vec<usize>)> {
        let Task { number, statuses, .. } = self.tasks.remove(&id)?;
        match self.tasks.values_mut().find(|task| task.number == number) {
            Some(other) => {
                other.statuses.extend(statuses);
                None
            }
            None => Some((number, statuses)),
        }
    }

    /// Drops the sources that have not ended within the grace.
    fn drop_late(&mut self) {
        let now = Instant::now();
        for task in self.tasks.values_mut() {
            if task.deadline.take_if(|deadline| *deadline <= now).is_some() {
                warn!("source of a removed input did not end and is dropped");
                task.abort.abort();
            }
        }
    }

    fn stop(&mut self, number: u64, deadline: Instant) {
        let running = self.tasks.values_mut().filter(|task| task.number == number);
        for task in running.filter(|task| !task.feed.is_cancelled()) {
            task.feed.cancel();
            // Reconciles that still read its cache keep a reader of their own.
            task.release.cancel();
            task.deadline = Some(deadline);
        }
    }
}

impl Drop for NamedTasks {
    fn drop(&mut self) {
        self.named.end(self.epoch);
    }
}

impl EpochRun {
    /// Starts the inputs by name that are wanted, and stops the others.
    pub(super) fn update_inputs(&mut self) {
        self.named.drop_late();
        for step in self.spec.named.steps() {
            match step {
                InputStep::Stop { number } => {
                    self.named.stop(number, after(Instant::now(), self.epoch.grace()));
                }
                InputStep::Start { number, parts, progress } => {
                    let status = |part: Input| {
                        let mut status = status_of(&part);
                        status.progress = Some(progress.clone());
                        (part, self.statuses.push(status))
                    };
                    // All have a status before the first can report that it has started.
                    let parts: Vec<_> = parts.into_iter().map(status).collect();
                    for (part, status) in parts {
                        self.start_input(number, part, status);
                    }
                }
            }
        }
    }

    /// Starts an input by name, or one namespace of it.
    fn start_input(&mut self, number: u64, input: Input, status: usize) {
        let (feed, release) = (self.cancel.child_token(), self.release.child_token());
        let abort = self.start_source(input, status, feed.clone(), release.clone());
        let (id, statuses, deadline) = (abort.id(), vec![status], None);
        self.named.tasks.insert(id, Task { number, statuses, feed, release, abort, deadline });
    }

    /// Forgets the input by name of a task that has ended.
    pub(super) fn input_joined(&mut self, id: Id) {
        if let Some((number, statuses)) = self.named.joined(id) {
            statuses.into_iter().for_each(|status| self.statuses.remove(status));
            self.spec.named.joined(number);
        }
    }
}

/// Returns the first status of an input.
pub(super) fn status_of(input: &Input) -> InputStatus {
    let mut status = InputStatus::new(input.name(), input.type_ref().cloned(), input.mode);
    status.cluster = input.cluster();
    status.part_of = input.part_of;
    status.coverage = input.coverage();
    status
}
