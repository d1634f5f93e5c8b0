//! Subscriptions to the conditions of specifications.
//!
//! A condition is asked at the addition, again after each epoch and each back-off, and at a restart: a
//! verdict that was published once may stand for ever, although the user's `ready` would answer
//! otherwise now. A condition that panicked is asked again after a pause.

use std::time::Duration;

use futures::FutureExt;

use super::{
    super::{
        ControllerName, Readiness, Reason, UnmetRequirement, Verdict, lifecycle::LifecycleInput,
    },
    Id, ManagerTask,
    condition_watch::ConditionWatch,
    event::{EntryTimer, ManagerEvent, Timers},
};
use crate::duration::doubled;

/// First pause before a condition that panicked is asked again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a condition that panicked is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Ends a subscription, and the pause after a panic.
pub(super) fn end(condition: &mut ConditionWatch, timers: &mut Timers) {
    condition.ended.cancel();
    if let Some(retry) = condition.retry.take() {
        timers.try_remove(&retry);
    }
}

impl ManagerTask {
    /// Subscribes to the condition that `ready` of a specification returned, or asks again after a
    /// pause if it panicked, for the `panics + 1`th time in a row. Returns the verdict too.
    pub(super) fn subscribe(
        &mut self,
        id: Id,
        name: &ControllerName,
        ready: Result<Readiness, String>,
        panics: u32,
    ) -> (ConditionWatch, Verdict) {
        let mut watch = ConditionWatch { serial: self.serial(), ..ConditionWatch::default() };
        let mut readiness = ready.unwrap_or_else(|panic| {
            let pause = doubled(FIRST_PAUSE, panics, LONGEST_PAUSE);
            let timer = EntryTimer::Ask(watch.serial);
            let counted = self.metrics.timer(name, timer.word());
            watch.panics = panics.saturating_add(1);
            watch.retry = Some(self.timers.insert((id, timer, counted), pause));
            let message = format!("its condition panicked, and is asked again: {panic}");
            let reason = Reason::ConditionPanicked;
            let unmet = UnmetRequirement { reason, message, type_ref: None };
            Readiness::fixed(Verdict::Unknown(vec![unmet]))
        });
        let verdict = readiness.verdict();
        self.watch(id, readiness, &watch);
        (watch, verdict)
    }

    /// Waits for the next verdict of a condition.
    fn watch(&self, id: Id, mut readiness: Readiness, watch: &ConditionWatch) {
        let (serial, ended) = (watch.serial, watch.ended.clone().cancelled_owned());
        self.watches.push(
            async move {
                tokio::select! {
                    biased;
                    () = ended => return None,
                    () = readiness.changed() => {}
                }
                Some(ManagerEvent::Verdict(id, serial, readiness))
            }
            .boxed(),
        );
    }

    /// Asks the specification in place for its condition again. Its earlier subscription ends. The
    /// entry must have no live epoch.
    pub(super) fn ask_again(&mut self, id: Id) {
        let Some(entry) = self.entries.get(&id) else { return };
        let (name, ready) = (entry.name.clone(), entry.spec.ready());
        let (condition, verdict) = self.subscribe(id, &name, ready, entry.condition.panics);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        end(&mut std::mem::replace(&mut entry.condition, condition), &mut self.timers);
        let is_known = !matches!(verdict, Verdict::Unknown(_));
        self.step(id, LifecycleInput::Verdict(verdict));
        // The first verdict may be published later. It decides then whether the specification that
        // waits takes over.
        if is_known {
            self.install_if_due(id);
        }
    }

    /// Asks a condition again that panicked: that of the specification in place, or of the one that
    /// waits to replace it.
    pub(super) fn ask_after_panic(&mut self, id: Id, serial: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        // The key of a timer that has fired may be that of another one by now.
        if entry.condition.serial == serial {
            entry.condition.retry = None;
            return self.ask_again(id);
        }
        let Some(pending) = entry.pending.as_mut().filter(|new| new.condition.serial == serial)
        else {
            return;
        };
        pending.condition.retry = None;
        let (ready, panics) = (pending.spec.ready(), pending.condition.panics);
        let name = entry.name.clone();
        let (condition, verdict) = self.subscribe(id, &name, ready, panics);
        let pending = self.entries.get_mut(&id).and_then(|entry| entry.pending.as_mut());
        let Some(pending) = pending else { return };
        end(&mut std::mem::replace(&mut pending.condition, condition), &mut self.timers);
        self.judge_pending(id, verdict);
    }

    /// Passes a new verdict to the specification in place, or to the one that waits to replace it.
    pub(super) fn on_verdict(&mut self, id: Id, serial: u64, mut readiness: Readiness) {
        let Some(entry) = self.entries.get(&id) else { return };
        let verdict = readiness.verdict();
        if entry.condition.serial == serial {
            self.watch(id, readiness, &entry.condition);
            self.step(id, LifecycleInput::Verdict(verdict));
            self.install_if_due(id);
        } else if let Some(pending) =
            entry.pending.as_ref().filter(|new| new.condition.serial == serial)
        {
            self.watch(id, readiness, &pending.condition);
            self.judge_pending(id, verdict);
        }
    }
}
