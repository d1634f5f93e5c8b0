//! State of the inputs by name: the inputs wanted, and those that run in the current epoch.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::{
    error::InputError,
    progress::{InputProgress, InputState, added, idle},
};
use crate::{
    controller::{Cluster, Predicate, inputs::input::Input},
    kind::TypeRef,
    manager::ControllerName,
};

/// Inputs by name of one controller, through all its epochs.
pub(in crate::controller) struct NamedInputs {
    pub(in crate::controller) controller: ControllerName,
    pub(in crate::controller) cluster: Cluster,
    pub(in crate::controller) primaries: Arc<[TypeRef]>,
    pub(in crate::controller) event_filters: Vec<Predicate>,
    /// True if the reconciler takes custom keys, so that no input may name objects.
    pub(in crate::controller) takes_keys: bool,
    state: Mutex<InputsState>,
    // Wakes the run of the current epoch.
    wake: Arc<Notify>,
}

#[derive(Default)]
struct InputsState {
    wanted: BTreeMap<String, WantedInput>,
    running: BTreeMap<u64, RunningInput>,
    /// Number of the epoch that runs.
    epoch: Option<u64>,
    last: u64,
}

/// Input that is to run.
struct WantedInput {
    number: u64,
    /// Inputs, one for each namespace.
    parts: Vec<Input>,
    /// Epoch with which the input ends.
    until: Option<u64>,
    progress: InputProgress,
}

/// Input that a run has started and not joined yet.
struct RunningInput {
    name: String,
    progress: InputProgress,
    /// True once the input was removed: it does not wait for a replacement.
    removed: bool,
}

/// Step of a run towards the inputs wanted.
pub(in crate::controller) enum InputStep {
    Start { number: u64, parts: Vec<Input>, progress: InputProgress },
    Stop { number: u64 },
}

impl NamedInputs {
    pub(in crate::controller) fn new(
        controller: ControllerName,
        cluster: Cluster,
        primaries: Arc<[TypeRef]>,
        event_filters: Vec<Predicate>,
    ) -> Arc<Self> {
        let (takes_keys, state, wake) = (false, Mutex::default(), Arc::default());
        Arc::new(Self { controller, cluster, primaries, event_filters, takes_keys, state, wake })
    }

    /// Returns the inputs of a controller of custom keys, which has no primary type.
    pub(in crate::controller) fn of_keys(
        controller: ControllerName,
        cluster: Cluster,
        event_filters: Vec<Predicate>,
    ) -> Arc<Self> {
        let (primaries, takes_keys) = (Arc::default(), true);
        let (state, wake) = (Mutex::default(), Arc::default());
        Arc::new(Self { controller, cluster, primaries, event_filters, takes_keys, state, wake })
    }

    /// Declares an input. Returns its state, and the states of those that it replaces.
    pub(in crate::controller) fn declare(
        &self,
        name: String,
        parts: Vec<Input>,
        until: Option<u64>,
        replaces: bool,
    ) -> Result<(watch::Receiver<InputState>, Vec<watch::Receiver<InputState>>), InputError> {
        let mut state = self.state();
        if until.is_some() && until != state.epoch {
            return Err(InputError::EpochOver(self.controller.clone(), name));
        }
        if !replaces && state.wanted.contains_key(&name) {
            return Err(InputError::NameTaken(self.controller.clone(), name));
        }
        state.last += 1;
        let number = state.last;
        let first = state.epoch.map_or_else(idle, |_| added());
        let progress = InputProgress::new(&name, first, Arc::clone(&self.wake));
        let receiver = progress.subscribe();
        let replaced = state.running_of(&name);
        let before = state.wanted.insert(name, WantedInput { number, parts, until, progress });
        state.end_if_idle(before.as_ref());
        drop(state);
        // Code of the user may run with the drop, so that no lock is held here.
        drop(before);
        self.wake.notify_one();
        Ok((receiver, replaced))
    }

    /// Withdraws an input. Returns the states of all inputs of that name that have not ended.
    pub(super) fn withdraw(&self, name: &str) -> Vec<watch::Receiver<InputState>> {
        let mut state = self.state();
        let mut ending = state.running_of(name);
        let before = state.wanted.remove(name);
        state.running.values_mut().filter(|it| it.name == name).for_each(|it| it.removed = true);
        if let Some(before) = &before
            && !state.running.contains_key(&before.number)
        {
            ending.push(before.progress.subscribe());
        }
        state.end_if_idle(before.as_ref());
        drop(state);
        drop(before);
        self.wake.notify_one();
        ending
    }

    pub(super) fn states(&self) -> Vec<(String, InputState)> {
        let state = self.state();
        let of = |(name, wanted): (&String, &WantedInput)| (name.clone(), wanted.progress.get());
        state.wanted.iter().map(of).collect()
    }

    /// Returns the inputs that are to run.
    pub(in crate::controller) fn inputs(&self) -> Vec<Input> {
        self.state().wanted.values().flat_map(|wanted| wanted.parts.clone()).collect()
    }

    /// Returns the state of the input of a name.
    pub(in crate::controller) fn state_of(&self, name: &str) -> Option<InputState> {
        self.state().wanted.get(name).map(|wanted| wanted.progress.get())
    }

    /// Returns the input of a name, in its first namespace.
    pub(in crate::controller) fn input(&self, name: &str) -> Option<Input> {
        self.state().wanted.get(name).and_then(|wanted| wanted.parts.first().cloned())
    }

    /// Begins an epoch, whose run starts and stops the inputs from now on.
    pub(in crate::controller) fn begin(&self, epoch: u64) {
        self.state().epoch = Some(epoch);
        self.wake.notify_one();
    }

    /// Ends an epoch, whose run has joined all its inputs.
    pub(in crate::controller) fn end(&self, epoch: u64) {
        let mut state = self.state();
        if state.epoch != Some(epoch) {
            return;
        }
        state.epoch = None;
        let (kept, over) = mem::take(&mut state.wanted)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, wanted)| wanted.until.is_none());
        state.wanted = kept;
        let kept: BTreeSet<_> = state.wanted.values().map(|wanted| wanted.number).collect();
        for (number, running) in mem::take(&mut state.running) {
            if !kept.contains(&number) {
                running.progress.set(InputState::Ended);
            }
        }
        over.values().for_each(|wanted| wanted.progress.set(InputState::Ended));
        state.wanted.values().for_each(|wanted| wanted.progress.set(idle()));
        drop(state);
        drop(over);
    }

    /// Waits until a step may be due. Cancel safe.
    pub(in crate::controller) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Returns the steps that are due, and records the inputs to be started as running.
    pub(in crate::controller) fn steps(&self) -> Vec<InputStep> {
        let mut state = self.state();
        let wanted = state.wanted.iter().map(|(name, wanted)| {
            let is_started = wanted.progress.is_started();
            (name.as_str(), wanted.number, is_started)
        });
        let running = state.running.iter().map(|(number, running)| {
            let is_started = running.progress.is_started();
            (running.name.as_str(), *number, is_started && !running.removed)
        });
        let (start, stop) = plan(&wanted.collect::<Vec<_>>(), &running.collect::<Vec<_>>());
        let mut steps: Vec<_> = stop.into_iter().map(|number| InputStep::Stop { number }).collect();
        let InputsState { wanted, running, .. } = &mut *state;
        for (name, wanted) in wanted.iter().filter(|(_, wanted)| start.contains(&wanted.number)) {
            let (number, progress) = (wanted.number, wanted.progress.clone());
            let (name, removed) = (name.clone(), false);
            running.insert(number, RunningInput { name, progress: progress.clone(), removed });
            steps.push(InputStep::Start { number, parts: wanted.parts.clone(), progress });
        }
        steps
    }

    /// Records that all tasks of an input have ended.
    pub(in crate::controller) fn joined(&self, number: u64) {
        let mut state = self.state();
        if let Some(RunningInput { name, progress, .. }) = state.running.remove(&number) {
            let is_wanted = state.wanted.get(&name).is_some_and(|wanted| wanted.number == number);
            progress.set(if is_wanted { idle() } else { InputState::Ended });
        }
        drop(state);
        self.wake.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, InputsState> {
        self.state.lock()
    }
}

impl InputsState {
    fn running_of(&self, name: &str) -> Vec<watch::Receiver<InputState>> {
        let of = self.running.values().filter(|running| running.name == name);
        of.map(|running| running.progress.subscribe()).collect()
    }

    /// Publishes the end of an input that is no longer wanted, unless a run has to join it first.
    fn end_if_idle(&self, unwanted: Option<&WantedInput>) {
        if let Some(unwanted) = unwanted
            && !self.running.contains_key(&unwanted.number)
        {
            unwanted.progress.set(InputState::Ended);
        }
    }
}

/// Returns the numbers of the inputs to start and to stop. Both arguments have names, numbers and
/// whether the input has started; a removed input counts as not started.
///
/// A started input continues until the one that replaces it has started.
fn plan(wanted: &[(&str, u64, bool)], running: &[(&str, u64, bool)]) -> (BTreeSet<u64>, Vec<u64>) {
    let is_running = |number: u64| running.iter().any(|(_, other, _)| *other == number);
    let start = wanted.iter().map(|(_, number, _)| *number).filter(|number| !is_running(*number));
    let replacement = |name: &str| wanted.iter().find(|(other, ..)| *other == name);
    let is_over = |(name, number, is_started): &&(&str, u64, bool)| match replacement(name) {
        None => true,
        Some((_, wanted, _)) if wanted == number => false,
        Some((_, _, has_started)) => *has_started || !is_started,
    };
    (start.collect(), running.iter().filter(is_over).map(|(_, number, _)| *number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        wanted: &[(&str, u64, bool)],
        running: &[(&str, u64, bool)],
        start: &[u64],
        stop: &[u64],
    ) {
        let (starts, stops) = plan(wanted, running);

        assert_eq!((starts.into_iter().collect(), stops), (start.to_vec(), stop.to_vec()));
    }

    #[test]
    fn replaced_input_continues_until_its_replacement_has_started() {
        check(&[("a", 1, false)], &[], &[1], &[]);
        check(&[("a", 1, true)], &[("a", 1, true)], &[], &[]);
        check(&[("a", 2, false)], &[("a", 1, true)], &[2], &[]);
        check(&[("a", 2, false)], &[("a", 1, true), ("a", 2, false)], &[], &[]);
        check(&[("a", 2, true)], &[("a", 1, true), ("a", 2, true)], &[], &[1]);
        check(&[("a", 3, false)], &[("a", 1, true), ("a", 2, false)], &[3], &[2]);
        check(&[("a", 2, false)], &[("a", 1, false)], &[2], &[1]);
    }

    #[test]
    fn removed_input_stops_whether_it_has_started_or_not() {
        check(&[], &[("a", 1, true), ("b", 2, false)], &[], &[1, 2]);
        check(&[("b", 2, true)], &[("a", 1, true), ("b", 2, true)], &[], &[1]);
    }
}
