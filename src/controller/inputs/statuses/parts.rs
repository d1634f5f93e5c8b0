//! Parts of an input: its namespaces, which are read, and deliver, once all of them are listed.
//!
//! A request of a namespace that is listed early would find the input unreadable, and no event would
//! follow for its object once the last namespace is listed.

use std::{pin::pin, sync::Arc};

use super::{Attached, InputMode, InputStatus, InputStatuses, InputWait, StatusByNumber};

impl InputStatuses {
    /// Returns whether another namespace of an input has all objects: those of a cluster-scoped type
    /// are delivered by the first one.
    pub(in crate::controller) fn is_covered(&self, number: usize, is_cluster_scoped: bool) -> bool {
        let first = parts_of(&self.inputs(), number).map(|(part, _)| part).next();
        is_cluster_scoped && first != Some(number)
    }

    /// Returns whether all namespaces of an input are listed.
    pub(in crate::controller) fn is_listed(&self, number: usize) -> bool {
        parts_of(&self.inputs(), number).all(|(_, part)| part.cache.is_listed())
    }

    /// Waits until all namespaces of an input are listed. Cancel safe.
    pub(in crate::controller) async fn listed(self: Arc<Self>, number: usize) {
        loop {
            let changed = pin!(self.part_changed.notified());
            if self.is_listed(number) {
                return;
            }
            changed.await;
        }
    }

    /// Records that a namespace of an input has delivered all objects that existed. Returns whether
    /// all namespaces have.
    pub(in crate::controller) fn drained(&self, number: usize) -> bool {
        // Under one lock, so that one of two namespaces is the last one.
        let mut inputs = self.inputs();
        if let Some(input) = inputs.get_mut(&number) {
            input.cache.delivered();
        }
        parts_of(&inputs, number).all(|(_, part)| part.cache.is_delivered())
    }

    /// Returns the reasons why inputs are not synced, without those that wait for another namespace.
    pub(in crate::controller) fn reasons(&self, late: &[usize]) -> Vec<String> {
        let inputs = self.inputs();
        let late = late.iter().filter(|number| !waits(&inputs, **number));
        late.map(|number| inputs[number].explanation()).collect()
    }

    /// Excuses the awaited parts of an optional input with an error.
    pub(super) fn excuse(&self, inputs: &mut StatusByNumber, number: usize) {
        let is_optional = inputs[&number].mode == InputMode::Optional;
        if !is_optional || parts_of(inputs, number).all(|(_, part)| part.error().is_none()) {
            return;
        }
        let awaited = parts_of(inputs, number).filter(|(_, it)| it.wait == InputWait::Awaited);
        let awaited: Vec<_> = awaited.map(|(part, _)| part).collect();
        for part in awaited {
            let input = inputs.get_mut(&part).expect("the number is one of the map");
            input.wait = InputWait::Excused;
            self.settled(part, input);
        }
    }

    /// Sends the number of an input of the builder that is not waited for from now on.
    pub(super) fn settled(&self, number: usize, input: &InputStatus) {
        if input.progress.is_none() {
            // Fails only after the run has stopped waiting.
            self.settled.try_send(number).ok();
        }
    }
}

impl InputStatus {
    /// Returns the cache of the input, joined with those of its other namespaces among these inputs;
    /// `None` until all are listed.
    pub(super) fn with_parts<'a>(
        &self,
        inputs: impl Iterator<Item = &'a Self>,
    ) -> Option<Attached> {
        let mut attached = self.cache.attached().cloned()?;
        for part in inputs.filter(|input| self.part_of.is_some() && input.is_part_with(self)) {
            if part.cache.is_covered() {
                continue;
            }
            let part = part.cache.attached().cloned()?;
            // The first part is this input, for example.
            let is_known = attached.all().any(|known| known.key == part.key);
            attached.others.extend((!is_known).then_some(part));
        }
        Some(attached)
    }

    /// Returns whether two inputs are namespaces of one.
    pub(super) fn is_part_with(&self, other: &Self) -> bool {
        self.part_of == other.part_of
            && match (&self.progress, &other.progress) {
                (None, None) => true,
                (Some(one), Some(other)) => one.is(other),
                (None, Some(_)) | (Some(_), None) => false,
            }
    }
}

/// Returns an input, with the other namespaces of the same one, in order.
pub(super) fn parts_of(
    inputs: &StatusByNumber,
    number: usize,
) -> impl Iterator<Item = (usize, &InputStatus)> {
    let of = inputs.get(&number);
    let is_part = move |part: &InputStatus| {
        part.part_of.is_some() && of.is_some_and(|of| part.is_part_with(of))
    };
    let numbered = inputs.iter().map(|(part, input)| (*part, &**input));
    numbered.filter(move |(part, input)| *part == number || is_part(input))
}

/// Returns whether a listed input waits until another of its namespaces is listed.
pub(super) fn waits(inputs: &StatusByNumber, number: usize) -> bool {
    inputs.get(&number).is_some_and(|input| input.cache.is_listed() && !input.is_synced())
        && parts_of(inputs, number).any(|(_, part)| !part.cache.is_listed())
}
