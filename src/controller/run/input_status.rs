//! What a run knows of its inputs: their state for the report, their caches for the reconciler.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{mpsc, watch};

use crate::{
    discovery::TypeStatus,
    informer::{InformerKey, Store, Subscription},
    kind::{ServedType, TypeRef},
    manager::{Epoch, WatchReport, WatchState as State},
};

/// How an input follows its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum InputMode {
    /// The controller runs only while it holds.
    Required,
    /// The input comes and goes with it.
    Optional,
    /// It is waited for, for a while; a later loss is reported.
    Plain,
}

/// The inputs of one epoch.
#[derive(Debug)]
pub(in crate::controller) struct InputStatuses {
    epoch: Epoch,
    // The time to sync is over.
    overdue: AtomicBool,
    rows: Mutex<Vec<InputStatus>>,
    // An input that is synced, or need not be waited for. Sized by the number of inputs, and
    // each is sent once.
    settled: mpsc::Sender<usize>,
}

/// One input of a run.
#[derive(Debug)]
pub(in crate::controller) struct InputStatus {
    /// What it is called in messages.
    pub(in crate::controller) label: String,
    /// What it is a type of, if it is the built-in source.
    pub(in crate::controller) type_ref: Option<TypeRef>,
    pub(in crate::controller) mode: InputMode,
    pub(in crate::controller) state: State,
    /// What is wrong, while something is.
    pub(in crate::controller) error: Option<String>,
    pub(in crate::controller) attached: Option<Attached>,
    /// What is read from until the informer that takes its place is synced.
    pub(in crate::controller) held: Option<Subscription>,
    /// Acquired before the epoch began.
    pub(in crate::controller) prepared: Option<Subscription>,
    // How it was doing when its condition was lost, while nothing newer is known.
    interrupted: Option<(State, Option<String>)>,
    synced: bool,
    settled: bool,
}

/// A cache of an input.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Attached {
    pub(in crate::controller) served: Arc<ServedType>,
    pub(in crate::controller) store: Store,
    /// Which objects are in it.
    pub(in crate::controller) key: InformerKey,
    /// What has become of the type since.
    pub(in crate::controller) status: Option<watch::Receiver<TypeStatus>>,
}

impl InputStatuses {
    /// The statuses of an epoch, and the inputs that settle, by number.
    pub(in crate::controller) fn new(
        epoch: Epoch,
        rows: Vec<InputStatus>,
    ) -> (Arc<Self>, mpsc::Receiver<usize>) {
        let (settled, inputs) = mpsc::channel(rows.len().max(1));
        let statuses =
            Self { epoch, overdue: AtomicBool::new(false), rows: Mutex::new(rows), settled };
        statuses.report(&statuses.rows());
        (Arc::new(statuses), inputs)
    }

    /// One more input.
    pub(in crate::controller) fn push(&self, row: InputStatus) {
        self.rows().push(row);
    }

    /// Changes what is known of an input, and reports it.
    pub(in crate::controller) fn change<T>(
        &self,
        input: usize,
        change: impl FnOnce(&mut InputStatus) -> T,
    ) -> T {
        let mut rows = self.rows();
        let row = &mut rows[input];
        let changed = change(row);
        let settled = match row.mode {
            _ if row.synced => true,
            // What an optional type cannot do holds nobody up.
            InputMode::Optional => row.error.is_some(),
            InputMode::Required | InputMode::Plain => false,
        };
        if settled && !mem::replace(&mut row.settled, true) {
            // Fails only when nobody waits any more.
            self.settled.try_send(input).ok();
        }
        self.report(&rows);
        changed
    }

    /// The cache of an input, as it was named or as it turned out to be served.
    pub(in crate::controller) fn attached(&self, type_ref: &TypeRef) -> Option<Attached> {
        let rows = self.rows();
        let named =
            |row: &&InputStatus| row.attached.is_some() && row.type_ref.as_ref() == Some(type_ref);
        let found = rows.iter().find(named).or_else(|| {
            rows.iter().find(|row| {
                row.attached.as_ref().is_some_and(|attached| is(type_ref, &attached.served))
            })
        });
        found.and_then(|row| row.attached.clone())
    }

    /// Every cache there is of a type, at whatever version.
    pub(in crate::controller) fn caches(&self, group: &str, plural: &str) -> Vec<Attached> {
        let rows = self.rows();
        let attached = rows.iter().filter_map(|row| row.attached.as_ref());
        let is = |it: &&Attached| {
            let identity = &it.served.identity;
            *identity.group == *group && *identity.plural == *plural
        };
        attached.filter(is).cloned().collect()
    }

    /// Whether a cache is known to be behind.
    pub(in crate::controller) fn stale(&self) -> bool {
        self.rows().iter().any(InputStatus::stale)
    }

    /// Why an input is not synced.
    pub(in crate::controller) fn why(&self, input: usize) -> String {
        self.rows()[input].why()
    }

    /// From now on the report names those that are still waited for.
    pub(in crate::controller) fn overdue(&self) {
        self.overdue.store(true, Ordering::Relaxed);
        self.report(&self.rows());
    }

    /// Lets go of every cache, whoever still holds a context.
    pub(in crate::controller) fn clear(&self) {
        let mut rows = self.rows();
        let held: Vec<_> = rows.iter_mut().map(|row| (row.detach(), row.prepared.take())).collect();
        drop(rows);
        drop(held);
    }

    pub(in crate::controller) fn mode(&self, input: usize) -> InputMode {
        self.rows()[input].mode
    }

    fn rows(&self) -> MutexGuard<'_, Vec<InputStatus>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, rows: &[InputStatus]) {
        let typed = |row: &InputStatus| row.type_ref.clone();
        let watches = rows
            .iter()
            .filter_map(|row| {
                let (state, error) = (row.state, row.error.clone());
                typed(row).map(|type_ref| WatchReport { type_ref, state, error })
            })
            .collect();
        let stale = rows.iter().any(InputStatus::stale);
        let errors = |state: State| -> Vec<String> {
            let rows = rows.iter().filter(|row| row.state == state);
            rows.filter_map(|row| row.error.clone()).collect()
        };
        let forbidden = errors(State::Forbidden);
        let unconverted = errors(State::ConversionFailed);
        let waited_for = |row: &&InputStatus| !row.settled && row.mode != InputMode::Optional;
        let late = match self.overdue.load(Ordering::Relaxed) {
            true => rows.iter().filter(waited_for).map(InputStatus::why).collect(),
            false => Vec::new(),
        };
        let missing = rows
            .iter()
            .filter(|row| row.mode == InputMode::Optional && row.state == State::Waiting)
            .filter_map(typed)
            .collect();
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

impl Attached {
    /// How to talk to the type now. Subresources come and go while it stays the same one, and who
    /// serves it may become known later; nothing else changes.
    pub(in crate::controller) fn current(&self) -> Arc<ServedType> {
        let now = self.status.as_ref().and_then(|status| status.borrow().served.clone());
        let is_same = |now: &Arc<ServedType>| {
            let ServedType { subresources, version_order, .. } = *self.served;
            ServedType { subresources, version_order, ..ServedType::clone(now) } == *self.served
        };
        now.filter(is_same).unwrap_or_else(|| Arc::clone(&self.served))
    }
}

impl InputStatus {
    pub(in crate::controller) fn new(
        label: String,
        type_ref: Option<TypeRef>,
        mode: InputMode,
    ) -> Self {
        Self {
            label,
            type_ref,
            mode,
            state: State::Waiting,
            error: None,
            attached: None,
            held: None,
            prepared: None,
            interrupted: None,
            synced: false,
            settled: false,
        }
    }

    pub(in crate::controller) fn set(&mut self, state: State, error: Option<String>) {
        self.state = state;
        self.synced |= state == State::Synced;
        self.error = error;
        self.interrupted = None;
    }

    /// Why it is not synced.
    fn why(&self) -> String {
        match &self.error {
            Some(error) => error.clone(),
            None => format!("{} is {}", self.label, self.state.word().to_lowercase()),
        }
    }

    /// Its condition does not hold. What was cached is behind from now on.
    pub(in crate::controller) fn wait(&mut self, why: String) {
        let state = if self.synced { State::Stale } else { State::Waiting };
        self.set(state, Some(why));
    }

    /// Its condition does not hold for now, and its source goes on.
    pub(in crate::controller) fn interrupt(&mut self, why: String) {
        let before = self.interrupted.take().unwrap_or_else(|| (self.state, self.error.take()));
        self.wait(why);
        self.interrupted = Some(before);
    }

    /// Its condition holds again, as it did when the source was started.
    pub(in crate::controller) fn resume(&mut self) {
        if let Some((state, error)) = self.interrupted.take() {
            self.set(state, error);
        }
    }

    /// Nothing of it can be read from now on. Without an optional one nothing is behind.
    pub(in crate::controller) fn detach(&mut self) -> (Option<Attached>, Option<Subscription>) {
        self.synced &= self.mode != InputMode::Optional;
        (self.attached.take(), self.held.take())
    }

    /// It was synced once, and is not now.
    fn stale(&self) -> bool {
        self.synced && self.state != State::Synced
    }
}

/// Whether this served type is what is asked for.
fn is(type_ref: &TypeRef, served: &ServedType) -> bool {
    use crate::kind::TypeName::{Kind, Resource};
    let named = match &type_ref.name {
        Resource(plural) => **plural == *served.identity.plural,
        Kind(kind) => **kind == *served.kind,
    };
    named
        && *type_ref.group == *served.identity.group
        && type_ref.version.as_ref().is_none_or(|version| **version == *served.identity.version)
}
