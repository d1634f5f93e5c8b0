//! Replacement of a running specification: the new one is prepared before the old one stops.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        AddError, ControllerName, ControllerState, TransitionKind, Verdict, command::ManagerReply,
        lifecycle::LifecycleInput, runnable_spec::RunnableSpec,
    },
    Id, ManagerTask, QueuedMessage, conditions,
    entry::{PendingReplacement, Preparation, RunnableEntry},
    event::{EntryTimer, PreparationResult, Timers},
};
use crate::{guard, redaction};

/// Delay before a failed preparation is retried.
const PREPARE_RETRY: Duration = Duration::from_secs(5);

impl ManagerTask {
    pub(super) fn replace(
        &mut self,
        name: &ControllerName,
        spec: RunnableSpec,
        installed: oneshot::Sender<()>,
    ) -> Result<(), AddError> {
        if self.is_closing() {
            return Err(AddError::Stopping);
        }
        let id = *self.names.get(name).ok_or_else(|| AddError::NotThere(name.clone()))?;
        spec.check_name(name)?;
        let serial = self.serial();
        let is_removed = |entry: &RunnableEntry| !entry.removers.is_empty();
        if self.entries.get(&id).is_none_or(is_removed) {
            return Err(AddError::NotThere(name.clone()));
        }
        if self.entries.get(&id).is_some_and(|entry| entry.spec.runs_once) {
            return Err(AddError::RunsOnce(name.clone()));
        }
        let entry = self.entries.get(&id).expect("a name leads to its entry");
        if std::ptr::addr_eq(Arc::as_ptr(&entry.spec.runnable), Arc::as_ptr(&spec.runnable)) {
            self.drop_pending(id);
            self.dirty.push(id);
            self.outgoing.push(QueuedMessage::Resolve(installed));
            return Ok(());
        }
        spec.check_condition(name)?;
        self.drop_pending(id);
        let (condition, verdict) = self.subscribe(id, name, spec.ready(), 0);
        let entry = self.entries.get_mut(&id).expect("a name leads to its entry");
        entry.pending = Some(PendingReplacement {
            spec,
            serial,
            condition,
            verdict: Verdict::Unknown(Vec::new()),
            why: String::new(),
            preparation: Preparation::None,
            retry: None,
            installed,
        });
        self.judge_pending(id, verdict);
        Ok(())
    }

    /// Ends the live epoch, or the wait for a back-off, so that the next epoch starts.
    pub(super) fn restart(&mut self, name: &ControllerName, reply: ManagerReply) {
        let (id, closing) = (self.names.get(name).copied(), self.is_closing());
        let entry = id.and_then(|id| Some((id, self.entries.get_mut(&id)?)));
        let refused = match &entry {
            _ if closing => Some(AddError::Stopping),
            Some((_, entry)) if entry.removers.is_empty() => {
                entry.spec.runs_once.then(|| AddError::RunsOnce(name.clone()))
            }
            Some(_) | None => Some(AddError::NotThere(name.clone())),
        };
        let (Some((id, entry)), None) = (entry, &refused) else {
            let response = refused.map_or(Ok(()), Err);
            return self.outgoing.push(QueuedMessage::Answer(reply, response));
        };
        if entry.lifecycle.live() {
            entry.restarters.push(reply);
            return self.step(id, LifecycleInput::Supersede);
        }
        self.outgoing.push(QueuedMessage::Answer(reply, Ok(())));
        self.start_again_if_stopped(id);
    }

    /// Starts the next epoch of an entry without a live one as if it were the first.
    pub(super) fn start_again_if_stopped(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.lifecycle.live()) else {
            return;
        };
        let before = entry.lifecycle.state();
        entry.lifecycle.renew(entry.spec.restart_policy());
        if before != ControllerState::Waiting {
            self.entered_waiting(id, before);
        }
        self.ask_again(id);
    }

    /// Announces that an entry between two epochs waits for its condition.
    fn entered_waiting(&mut self, id: Id, before: ControllerState) {
        let Some(entry) = self.entries.get(&id) else { return };
        let (name, epoch) = (entry.name.clone(), entry.epoch_number);
        self.metrics.entered(&name, before, ControllerState::Waiting);
        self.announce(&name, epoch, TransitionKind::Entered(ControllerState::Waiting));
    }

    /// Judges the pending specification. It takes over when it can run and is prepared, or when the
    /// current one has stopped or cannot run.
    pub(super) fn judge_pending(&mut self, id: Id, verdict: Verdict) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(pending) = &mut entry.pending else { return };
        pending.verdict = verdict;
        self.dirty.push(id);
        if self.install_if_due(id) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(pending) = &mut entry.pending else { return };
        match &pending.verdict {
            Verdict::Met(_) if matches!(pending.preparation, Preparation::None) => {
                self.prepare(id);
            }
            Verdict::Met(_) => {}
            Verdict::Unmet(unmet) | Verdict::Unknown(unmet) => {
                let all: Vec<_> = unmet.iter().map(|part| part.message.as_str()).collect();
                pending.why = all.join("; ");
                // Releases resources that would be held without use.
                pending.unprepare(&entry.name, entry.epoch.as_ref());
            }
        }
    }

    pub(super) fn prepare(&mut self, id: Id) {
        let attempt = self.serial();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(pending) = entry.pending.as_mut() else { return };
        end_retry(pending, &mut self.timers);
        let task = self.metrics.preparation(&entry.name);
        let given_up = CancellationToken::new();
        pending.why = "its caches are syncing".to_owned();
        pending.preparation = Preparation::Running(attempt, given_up.clone());
        let runnable = pending.spec.runnable.clone();
        self.prepares.spawn(async move {
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

    pub(super) fn on_prepared(&mut self, (id, attempt, result): PreparationResult) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(pending) = &mut entry.pending else { return };
        if !matches!(pending.preparation, Preparation::Running(this, _) if this == attempt) {
            return;
        }
        self.dirty.push(id);
        match result {
            Ok(()) => {
                // The condition still holds: its loss would have cancelled the preparation.
                pending.preparation = Preparation::Done;
                self.step(id, LifecycleInput::Supersede);
            }
            Err(error) => {
                pending.preparation = Preparation::None;
                pending.spec.unprepare(&entry.name, entry.epoch.as_ref());
                pending.why = format!("it cannot be prepared: {error}");
                let retry = EntryTimer::Retry(pending.serial);
                let counted = self.metrics.timer(&entry.name, retry.word());
                pending.retry = Some(self.timers.insert((id, retry, counted), PREPARE_RETRY));
            }
        }
    }

    /// Installs the pending specification, unless an epoch is live or only the current
    /// specification can run. Returns whether it was installed.
    pub(super) fn install_if_due(&mut self, id: Id) -> bool {
        let Some(entry) = self.entries.get(&id) else { return false };
        let Some(pending) = &entry.pending else { return false };
        if entry.lifecycle.live() {
            return false;
        }
        let can_run = |verdict: &Verdict| matches!(verdict, Verdict::Met(_));
        let old_is_stopped = entry.lifecycle.state() == ControllerState::Stopped;
        let due =
            can_run(&pending.verdict) || old_is_stopped || !can_run(entry.lifecycle.verdict());
        if due {
            self.install(id);
        }
        due
    }

    /// Discards the pending specification.
    pub(super) fn drop_pending(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(mut pending) = entry.pending.take() else { return };
        end_retry(&mut pending, &mut self.timers);
        conditions::end(&mut pending.condition, &mut self.timers);
        pending.unprepare(&entry.name, entry.epoch.as_ref());
        self.outgoing.push(QueuedMessage::Discard(pending.installed));
    }

    /// Installs the pending specification. The entry must have no live epoch.
    pub(super) fn install(&mut self, id: Id) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(mut pending) = entry.pending.take() else { return };
        end_retry(&mut pending, &mut self.timers);
        if !matches!(pending.preparation, Preparation::Done) {
            pending.unprepare(&entry.name, entry.epoch.as_ref());
        }
        let before = entry.lifecycle.state();
        conditions::end(
            &mut std::mem::replace(&mut entry.condition, pending.condition),
            &mut self.timers,
        );
        entry.lifecycle.renew(pending.spec.restart_policy());
        entry.spec = pending.spec;
        self.outgoing.push(QueuedMessage::Resolve(pending.installed));
        if before != ControllerState::Waiting {
            self.entered_waiting(id, before);
        }
        // The new specification may be of another group.
        self.allow(id);
        self.step(id, LifecycleInput::Verdict(pending.verdict));
        if let Some(entry) = self.entries.get(&id).filter(|entry| !entry.lifecycle.live()) {
            entry.spec.unprepare(&entry.name, entry.epoch.as_ref());
        }
    }
}

/// Removes the retry timer, which would have no effect any more.
fn end_retry(pending: &mut PendingReplacement, timers: &mut Timers) {
    if let Some(retry) = pending.retry.take() {
        timers.try_remove(&retry);
    }
}
