//! New specification of an entry, which is prepared before the old one stops.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    condition_watch::ConditionWatch,
    event::{EntryKey, EntryTimer, TimerKey},
    parts::Parts,
};
use crate::{
    guard,
    manager::{Epoch, Verdict, runnable_spec::RunnableSpec},
    redaction,
};

/// Delay before a failed preparation is retried.
const PREPARE_RETRY: Duration = Duration::from_secs(5);

/// New specification that waits to take over.
pub(super) struct PendingReplacement {
    key: EntryKey,
    pub(super) spec: RunnableSpec,
    pub(super) condition: ConditionWatch,
    pub(super) verdict: Verdict,
    pub(super) preparation: Preparation,
    /// Waiter for the installation, who learns by the drop that it is discarded.
    pub(super) installed: oneshot::Sender<()>,
}

/// State of the preparation of a new specification.
pub(super) enum Preparation {
    /// Not begun: the condition is not met.
    None,
    /// Under way: number of the attempt, to recognise its result, and the token that cancels it.
    Running(u64, CancellationToken),
    /// Failed with this error; retried when the timer fires.
    Failed(String, TimerKey),
    Done,
}

impl PendingReplacement {
    pub(super) fn new(
        key: &EntryKey,
        spec: RunnableSpec,
        installed: oneshot::Sender<()>,
        parts: &mut Parts,
    ) -> Self {
        let mut condition = ConditionWatch::new(key);
        let verdict = condition.ask(&spec, parts);
        let preparation = Preparation::None;
        Self { key: key.clone(), spec, condition, verdict, preparation, installed }
    }

    pub(super) fn is_met(&self) -> bool {
        matches!(self.verdict, Verdict::Met(_))
    }

    /// Reason for which the specification has not taken over yet.
    pub(super) fn reason(&self) -> String {
        match &self.preparation {
            Preparation::None => {
                let unmet: Vec<_> =
                    self.verdict.reasons().iter().map(|part| part.message.as_str()).collect();
                unmet.join("; ")
            }
            Preparation::Running(..) | Preparation::Done => "its caches are syncing".to_owned(),
            Preparation::Failed(error, _) => format!("it cannot be prepared: {error}"),
        }
    }

    /// Prepares the specification if its condition is met. Otherwise releases the resources, which
    /// would be held without use. `epoch` is the one that runs meanwhile.
    pub(super) fn follow_verdict(&mut self, epoch: Option<&Epoch>, parts: &mut Parts) {
        match self.preparation {
            _ if !self.is_met() => self.unprepare(epoch, parts),
            Preparation::None | Preparation::Failed(..) => self.prepare(parts),
            Preparation::Running(..) | Preparation::Done => {}
        }
    }

    fn prepare(&mut self, parts: &mut Parts) {
        let (id, attempt) = (self.key.id, parts.serial());
        let given_up = CancellationToken::new();
        let running = Preparation::Running(attempt, given_up.clone());
        if let Preparation::Failed(_, retry) = std::mem::replace(&mut self.preparation, running) {
            parts.end_timer(Some(retry));
        }
        let task = parts.metrics.preparation(&self.key.name);
        let runnable = self.spec.runnable.clone();
        parts.prepares.spawn(async move {
            let _task = task;
            // `Display` and `Drop` of the error are the runnable's code too.
            let prepare = guard::future(async move {
                runnable.prepare().await.map_err(|error| redaction::message(error.as_ref()))
            });
            tokio::select! {
                biased;
                () = given_up.cancelled() => None,
                result = prepare => Some((id, attempt, result.flatten())),
            }
        });
    }

    /// Releases the resources of a failed attempt, and sets the timer of the next one.
    pub(super) fn fail(&mut self, error: String, epoch: Option<&Epoch>, parts: &mut Parts) {
        self.spec.unprepare(&self.key.name, epoch);
        let at = Instant::now() + PREPARE_RETRY;
        let retry = parts.set_timer(&self.key, EntryTimer::Retry, at);
        self.preparation = Preparation::Failed(error, retry);
    }

    /// Cancels the preparation and releases its resources.
    pub(super) fn unprepare(&mut self, epoch: Option<&Epoch>, parts: &mut Parts) {
        match std::mem::replace(&mut self.preparation, Preparation::None) {
            Preparation::None => return,
            Preparation::Failed(_, retry) => return parts.end_timer(Some(retry)),
            Preparation::Running(_, given_up) => given_up.cancel(),
            Preparation::Done => {}
        }
        self.spec.unprepare(&self.key.name, epoch);
    }

    /// Discards the specification, which its waiter learns.
    pub(super) fn discard(mut self, epoch: Option<&Epoch>, parts: &mut Parts) {
        self.condition.end(parts);
        self.unprepare(epoch, parts);
        parts.publisher.discard(self.installed);
    }
}
