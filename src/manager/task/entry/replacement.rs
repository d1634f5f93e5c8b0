//! Replacement of the specification of an entry, and restarts: a new epoch for the current one.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Parts, PendingReplacement, Preparation, PreparationResult, RunnableEntry};
use crate::manager::{
    AddError, ControllerState, Verdict, command::ManagerReply, lifecycle::LifecycleInput,
    runnable_spec::RunnableSpec,
};

impl RunnableEntry {
    pub(in crate::manager::task) fn replace(
        &mut self,
        spec: RunnableSpec,
        installed: oneshot::Sender<()>,
        parts: &mut Parts,
    ) -> Result<(), AddError> {
        spec.check_name(&self.key.name)?;
        self.check_restart()?;
        if std::ptr::addr_eq(Arc::as_ptr(&self.spec.runnable), Arc::as_ptr(&spec.runnable)) {
            self.drop_pending(parts);
            parts.publisher.resolve(installed);
            return Ok(());
        }
        spec.check_condition(&self.key.name)?;
        self.drop_pending(parts);
        self.pending = Some(PendingReplacement::new(&self.key, spec, installed, parts));
        self.judge_pending(parts);
        Ok(())
    }

    /// Ends the live epoch, or the wait for a back-off, so that the next epoch starts.
    pub(in crate::manager::task) fn restart(&mut self, reply: ManagerReply, parts: &mut Parts) {
        match (self.check_restart(), &mut self.live) {
            (Ok(()), Some(live)) => {
                live.restarters.push(reply);
                self.step(LifecycleInput::Supersede, parts);
            }
            (Ok(()), None) => {
                parts.publisher.answer(reply, Ok(()));
                self.start_again_if_stopped(parts);
            }
            (refused @ Err(_), _) => parts.publisher.answer(reply, refused),
        }
    }

    /// Checks that another epoch may begin in place of the current one.
    fn check_restart(&self) -> Result<(), AddError> {
        if !self.removers.is_empty() {
            return Err(AddError::NotThere(self.key.name.clone()));
        }
        if self.spec.runs_once {
            return Err(AddError::RunsOnce(self.key.name.clone()));
        }
        Ok(())
    }

    /// Starts the next epoch of an entry without a live one as if it were the first.
    pub(super) fn start_again_if_stopped(&mut self, parts: &mut Parts) {
        if self.live.is_none() {
            let before = self.lifecycle.state();
            self.lifecycle.renew(self.spec.restart_policy());
            self.entered(before, parts);
            self.ask(parts);
        }
    }

    /// Judges the pending specification. It takes over when it can run and is prepared, or when the
    /// current one has stopped or cannot run.
    pub(super) fn judge_pending(&mut self, parts: &mut Parts) {
        if !self.install_if_due(parts)
            && let Some(pending) = &mut self.pending
        {
            pending.follow_verdict(self.live.as_ref().map(|live| &live.epoch), parts);
        }
    }

    /// Ends the current epoch when the pending specification is prepared.
    pub(in crate::manager::task) fn on_prepared(
        &mut self,
        (_, attempt, result): PreparationResult,
        parts: &mut Parts,
    ) {
        let Some(pending) = &mut self.pending else { return };
        match (&pending.preparation, result) {
            (Preparation::Running(this, _), Ok(())) if *this == attempt => {
                // The condition still holds: its loss would have cancelled the preparation.
                pending.preparation = Preparation::Done;
                self.step(LifecycleInput::Supersede, parts);
            }
            (Preparation::Running(this, _), Err(error)) if *this == attempt => {
                pending.fail(error, self.live.as_ref().map(|live| &live.epoch), parts);
            }
            _ => {}
        }
    }

    /// Installs the pending specification, unless an epoch is live or only the current
    /// specification can run. Returns whether it was installed.
    pub(super) fn install_if_due(&mut self, parts: &mut Parts) -> bool {
        let before = self.lifecycle.state();
        let can_run = matches!(self.lifecycle.verdict(), Verdict::Met(_));
        let is_over = before == ControllerState::Stopped || !can_run;
        let is_due = |new: &mut PendingReplacement| is_over || new.is_met();
        let pending = self.pending.take_if(|new| self.live.is_none() && is_due(new));
        let Some(mut pending) = pending else { return false };
        if !matches!(pending.preparation, Preparation::Done) {
            pending.unprepare(None, parts);
        }
        self.condition.end(parts);
        self.condition = pending.condition;
        self.lifecycle.renew(pending.spec.restart_policy());
        self.spec = pending.spec;
        parts.publisher.resolve(pending.installed);
        self.entered(before, parts);
        // The new specification may be of another group.
        self.allow(parts);
        self.step(LifecycleInput::Verdict(pending.verdict), parts);
        if self.live.is_none() {
            self.spec.unprepare(&self.key.name, None);
        }
        true
    }

    /// Discards the pending specification.
    pub(super) fn drop_pending(&mut self, parts: &mut Parts) {
        if let Some(pending) = self.pending.take() {
            pending.discard(self.live.as_ref().map(|live| &live.epoch), parts);
        }
    }
}
