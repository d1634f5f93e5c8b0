//! Statuses of a run's inputs: their states for the report, their caches for the reconciler.

mod parts;
mod reads;
mod unlisted;

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};

use self::{
    parts::{parts_of, waits},
    unlisted::UnlistedRequests,
};
use crate::{
    controller::inputs::{
        attached::Attached,
        progress::InputState,
        status::{InputCache, InputMode, InputStatus, InputWait},
    },
    discovery::TypeRegistry,
    manager::{Epoch, WatchReport, WatchState},
};

/// Statuses of the inputs of one epoch.
#[derive(Debug)]
pub(in crate::controller) struct InputStatuses {
    epoch: Epoch,
    // Types of the controller's cluster; `None` for a context from `Context::new`.
    types: Option<TypeRegistry>,
    // True once the sync timeout is over.
    overdue: AtomicBool,
    inputs: Mutex<StatusByNumber>,
    // Inputs of the builder that are synced or not waited for. Capacity is their number, since each
    // is sent once.
    settled: mpsc::Sender<usize>,
    // Notified when a namespace of an input has changed.
    part_changed: Notify,
    unlisted: UnlistedRequests,
}

/// Statuses by number. Boxed: a node of the map has room for eleven, and most controllers have two.
type StatusByNumber = BTreeMap<usize, Box<InputStatus>>;

impl InputStatuses {
    /// Returns the statuses of an epoch, and a channel of the numbers of settled inputs.
    pub(in crate::controller) fn new(
        epoch: Epoch,
        types: Option<TypeRegistry>,
        inputs: Vec<InputStatus>,
    ) -> (Arc<Self>, mpsc::Receiver<usize>) {
        let (settled, numbers) = mpsc::channel(inputs.len().max(1));
        let inputs = inputs.into_iter().map(Box::new).enumerate().collect();
        let statuses = Self {
            epoch,
            types,
            overdue: AtomicBool::new(false),
            inputs: Mutex::new(inputs),
            settled,
            part_changed: Notify::new(),
            unlisted: UnlistedRequests::default(),
        };
        statuses.report(&statuses.inputs());
        (Arc::new(statuses), numbers)
    }

    /// Returns the requests that wait for the cache of the primary type.
    pub(in crate::controller) fn unlisted(&self) -> &UnlistedRequests {
        &self.unlisted
    }

    /// Adds an input, and returns its number.
    pub(in crate::controller) fn push(&self, input: InputStatus) -> usize {
        let mut inputs = self.inputs();
        let number = inputs.last_key_value().map_or(0, |(last, _)| last + 1);
        inputs.insert(number, Box::new(input));
        self.report(&inputs);
        number
    }

    /// Removes an input, whose task has ended.
    pub(in crate::controller) fn remove(&self, number: usize) {
        let mut inputs = self.inputs();
        let removed = inputs.remove(&number);
        self.report(&inputs);
        drop(inputs);
        drop(removed);
    }

    /// Changes the status of an input, and reports it.
    pub(in crate::controller) fn change<T>(
        &self,
        number: usize,
        change: impl FnOnce(&mut InputStatus) -> T,
    ) -> T {
        let mut inputs = self.inputs();
        let input =
            &mut **inputs.get_mut(&number).expect("an input is removed after its task has ended");
        let was_awaited = input.wait == InputWait::Awaited;
        let changed = change(input);
        let is_part = input.part_of.is_some();
        if was_awaited && input.is_synced() {
            self.settled(number, input);
        }
        self.excuse(&mut inputs, number);
        if let Some(progress) = &inputs[&number].progress {
            let late = parts_of(&inputs, number).filter(|(_, part)| !part.is_synced());
            progress.set(match late.min_by_key(|(part, _)| waits(&inputs, *part)) {
                None => InputState::Started,
                Some((_, part)) => InputState::Pending(part.explanation()),
            });
        }
        self.report(&inputs);
        if is_part {
            self.part_changed.notify_waiters();
        }
        changed
    }

    /// Attaches the cache that a custom source offers; ignored if the input was removed meanwhile.
    pub(in crate::controller) fn attach(&self, number: usize, attached: Attached) {
        let mut inputs = self.inputs();
        let before = inputs.get_mut(&number).map(|input| {
            input.cluster = attached.foreign.as_ref().map(|foreign| foreign.types.clone());
            mem::replace(&mut input.cache, InputCache::Delivered(attached))
        });
        drop(inputs);
        drop(before);
    }

    /// Returns whether a cache is known to be behind.
    pub(in crate::controller) fn stale(&self) -> bool {
        self.inputs().values().any(|input| input.is_stale())
    }

    /// Records that the sync timeout is over: from now on the report names the late inputs.
    pub(in crate::controller) fn overdue(&self) {
        self.overdue.store(true, Ordering::Relaxed);
        self.report(&self.inputs());
    }

    /// Drops every cache; contexts that outlive the run cannot read them.
    pub(in crate::controller) fn clear(&self) {
        let mut inputs = self.inputs();
        let caches: Vec<_> = inputs.values_mut().map(|input| input.detach()).collect();
        drop(inputs);
        drop(caches);
    }

    pub(in crate::controller) fn mode(&self, input: usize) -> InputMode {
        self.inputs()[&input].mode
    }

    fn inputs(&self) -> MutexGuard<'_, StatusByNumber> {
        self.inputs.lock()
    }

    fn report(&self, by_number: &StatusByNumber) {
        let inputs = || by_number.values().map(|input| &**input);
        let typed = |input: &InputStatus| input.type_ref.clone();
        let watches = inputs()
            .filter_map(|input| {
                let type_ref = typed(input)?;
                Some(WatchReport { type_ref, state: input.state(), error: input.error().cloned() })
            })
            .collect();
        let stale = inputs().any(InputStatus::is_stale);
        let errors = |state: WatchState| -> Vec<String> {
            let inputs = inputs().filter(|input| input.state() == state);
            inputs.filter_map(|input| input.error().cloned()).collect()
        };
        let forbidden = errors(WatchState::Forbidden);
        let unconverted = errors(WatchState::ConversionFailed);
        let is_late = |number: &usize, input: &InputStatus| {
            let is_awaited = input.wait == InputWait::Awaited && input.mode != InputMode::Optional;
            is_awaited && !waits(by_number, *number)
        };
        let late = by_number.iter().filter(|(number, input)| is_late(number, input));
        let late = if self.overdue.load(Ordering::Relaxed) {
            late.map(|(_, input)| input.explanation()).collect()
        } else {
            Vec::new()
        };
        let mut missing: Vec<_> = inputs()
            .filter(|input| {
                input.mode == InputMode::Optional && input.state() == WatchState::Waiting
            })
            .filter_map(typed)
            .collect();
        missing.dedup();
        self.epoch.report(|report| {
            report.watches = watches;
            report.stale = stale;
            report.late = late;
            report.forbidden = forbidden;
            report.unconverted = unconverted;
            report.missing = missing;
        });
    }
}
