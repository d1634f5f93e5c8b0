//! Live epoch of an entry, from its start until it is done.

use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span, warn};

use super::{
    event::{EntryKey, EntryTimer, TimerKey},
    parts::Parts,
};
use crate::manager::{
    Done, DoneReason, Epoch, StopReason, TransitionKind,
    command::ManagerReply,
    election::term::Leadership,
    end::RunEnd,
    run::{self, Overrun},
    runnable_spec::RunnableSpec,
};

pub(super) struct LiveEpoch {
    key: EntryKey,
    pub(super) epoch: Epoch,
    begun_at: Instant,
    /// Start timeout that the epoch has exceeded.
    pub(super) late: Option<Duration>,
    /// End of the run, once it has returned.
    pub(super) returned: Option<RunEnd>,
    /// Time at which the epoch was signalled to stop, or its run returned.
    stopped_at: Option<Instant>,
    /// Timer that ends the grace of a stop. After the grace, timer that reports an overdue stop.
    pub(super) stop_timer: Option<TimerKey>,
    /// Callers that wait for the epoch to be done, to be restarted.
    pub(super) restarters: Vec<ManagerReply>,
}

impl LiveEpoch {
    /// Creates an epoch, and spawns its run.
    pub(super) fn start(
        key: &EntryKey,
        number: u64,
        spec: &RunnableSpec,
        parts: &mut Parts,
    ) -> Self {
        let (id, name) = (key.id, key.name.clone());
        let elected = spec.needs_leadership().then(|| parts.election.of_new_epoch());
        let (leadership, term) = elected.unwrap_or((Leadership::NotNeeded, None));
        let panics = parts.metrics.panics(&name);
        let epoch = Epoch::counted(name, number, spec.options.grace, panics, leadership);
        if let Some(term) = term {
            epoch.lead(term);
        }
        parts.metrics.epoch(&key.name, number);
        info!(controller = %key.name, epoch = number, "epoch started");
        parts.watch_report(id, number, epoch.subscribe());
        parts.watch_return(id, number, epoch.subscribe_returned());
        // Building the future is the runnable's code too: its panic must not be ours.
        let (runnable, inside) = (spec.runnable.clone(), epoch.clone());
        let run = async move { runnable.start(inside).await };
        let overrun = if spec.keeps_grace { Overrun::WaitedFor } else { Overrun::Dropped };
        let tasks = parts.metrics.run(&epoch);
        let driven = run::drive(epoch.clone(), run.boxed(), overrun);
        let driven = async move {
            let _tasks = tasks;
            (id, driven.await)
        };
        let span = info_span!("runnable", controller = %key.name, epoch = number);
        parts.runs.spawn(driven.instrument(span));
        Self {
            key: key.clone(),
            epoch,
            begun_at: Instant::now(),
            late: None,
            returned: None,
            stopped_at: None,
            stop_timer: None,
            restarters: Vec::new(),
        }
    }

    /// Records that the epoch has reported running.
    pub(super) fn started(&self, parts: &Parts) {
        parts.metrics.started(&self.key.name, self.begun_at.elapsed().as_secs_f64());
        info!(controller = %self.key.name, epoch = self.epoch.number(), "epoch reported running");
    }

    /// Signals the epoch to stop, and begins its grace.
    pub(super) fn stop(&mut self, reason: StopReason, parts: &mut Parts) {
        self.epoch.stop(reason);
        info!(controller = %self.key.name, epoch = self.epoch.number(), ?reason, "stop signalled");
        self.drain(parts);
    }

    /// Begins the grace of the epoch. The manager owns the timer, so that a run that blocks its
    /// thread cannot delay it.
    pub(super) fn drain(&mut self, parts: &mut Parts) {
        let now = Instant::now();
        self.stopped_at = Some(now);
        let deadline = self.epoch.deadline().unwrap_or(now);
        self.stop_timer = Some(parts.set_timer(&self.key, EntryTimer::Grace, deadline));
    }

    /// Ends the grace when its timer has fired: aborts tasks and drops requests.
    pub(super) fn end_grace(&mut self, parts: &mut Parts) {
        self.epoch.close();
        let late_at = Instant::now() + run::LATE;
        self.stop_timer = Some(parts.set_timer(&self.key, EntryTimer::Overdue, late_at));
    }

    /// Reports that the epoch does not end, when the timer has fired.
    pub(super) fn report_overdue(&mut self) {
        self.stop_timer = None;
        let (epoch, late) = (self.epoch.number(), self.epoch.unfinished_work());
        warn!(controller = %self.key.name, epoch, late, "the epoch does not end");
    }

    /// Announces that the epoch is done, with the reason and the requests of unknown outcome.
    pub(super) fn done(self, reason: DoneReason, parts: &mut Parts) -> Done {
        let (name, epoch) = (&self.key.name, self.epoch.number());
        let unknown_requests = self.epoch.fence().unknown();
        parts.end_timer(self.stop_timer);
        if let Some(stopped_at) = self.stopped_at {
            parts.metrics.stopped(name, stopped_at.elapsed().as_secs_f64());
        }
        match reason.error() {
            // Already logged when the run returned.
            Some(error) => debug!(controller = %name, epoch, error, "epoch done"),
            None => info!(controller = %name, epoch, reason = reason.word(), "epoch done"),
        }
        if unknown_requests > 0 {
            warn!(controller = %name, epoch, unknown_requests, "outcome of requests is unknown");
        }
        parts.publisher.announce(name, epoch, TransitionKind::Done(reason.clone()));
        for restarter in self.restarters {
            parts.publisher.answer(restarter, Ok(()));
        }
        Done { epoch, reason, at: Timestamp::now(), unknown_requests }
    }
}
