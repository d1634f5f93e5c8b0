//! Subscription of the manager to the condition of one specification.
//!
//! A condition is asked at the addition, again after each epoch and each back-off, and at a restart: a
//! verdict that was published once may stand for ever, although the user's `ready` would answer
//! otherwise now. A condition that panicked is asked again after a pause.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    event::{EntryKey, EntryTimer, ManagerEvent, TimerKey},
    parts::Parts,
};
use crate::{
    duration::doubled,
    manager::{Readiness, Reason, UnmetRequirement, Verdict, runnable_spec::RunnableSpec},
};

/// First pause before a condition that panicked is asked again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a condition that panicked is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct ConditionWatch {
    key: EntryKey,
    /// Serial number; verdicts of an earlier subscription carry another one.
    pub(super) serial: u64,
    /// Ends the wait for the next verdict.
    ended: CancellationToken,
    /// Number of panics of the condition in a row.
    panics: u32,
    /// Timer after which a condition that panicked is asked again; `None` once it has fired.
    pub(super) retry: Option<TimerKey>,
}

impl ConditionWatch {
    pub(super) fn new(key: &EntryKey) -> Self {
        let ended = CancellationToken::new();
        Self { key: key.clone(), serial: 0, ended, panics: 0, retry: None }
    }

    /// Asks a specification for its condition, and subscribes to that. Asks again after a pause if
    /// this panics. An earlier subscription ends.
    pub(super) fn ask(&mut self, spec: &RunnableSpec, parts: &mut Parts) -> Verdict {
        self.end(parts);
        self.ended = CancellationToken::new();
        self.serial = parts.serial();
        let panics = std::mem::take(&mut self.panics);
        let readiness = spec.ready().unwrap_or_else(|panic| {
            let at = Instant::now() + doubled(FIRST_PAUSE, panics, LONGEST_PAUSE);
            self.retry = Some(parts.set_timer(&self.key, EntryTimer::Ask(self.serial), at));
            self.panics = panics.saturating_add(1);
            let message = format!("its condition panicked, and is asked again: {panic}");
            let reason = Reason::ConditionPanicked;
            let unmet = UnmetRequirement { reason, message, type_ref: None };
            Readiness::fixed(Verdict::Unknown(vec![unmet]))
        });
        self.follow(readiness, parts)
    }

    /// Returns the verdict of the condition, and waits for the next one.
    pub(super) fn follow(&self, mut readiness: Readiness, parts: &Parts) -> Verdict {
        let verdict = readiness.verdict();
        let (id, serial) = (self.key.id, self.serial);
        let ended = self.ended.clone().cancelled_owned();
        parts.watches.push(Box::pin(async move {
            tokio::select! {
                biased;
                () = ended => return None,
                () = readiness.changed() => {}
            }
            Some(ManagerEvent::Verdict(id, serial, readiness))
        }));
        verdict
    }

    /// Ends the subscription, and the pause after a panic.
    pub(super) fn end(&mut self, parts: &mut Parts) {
        self.ended.cancel();
        parts.end_timer(self.retry.take());
    }
}
