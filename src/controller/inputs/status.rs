//! Status of one input of a run: its cache, the state of its watch, and whether the run waits for it.

use std::{mem, sync::Arc};

use crate::{
    controller::inputs::{attached::Attached, progress::InputProgress},
    discovery::TypeRegistry,
    informer::Subscription,
    kind::{ServedType, TypeRef},
    manager::WatchState,
};

/// Effect of an input's condition on the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum InputMode {
    /// The controller runs only while the condition holds.
    Required,
    /// The source runs only while the condition holds; the controller runs without it.
    Optional,
    /// The source must sync within the sync timeout; a later loss is only reported.
    Plain,
}

/// Part of the objects of a type that an input holds: which of several inputs of one type is read.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::controller) struct InputCoverage {
    /// True for the input of a primary type.
    pub(in crate::controller) is_primary: bool,
    /// True if some objects are missing, or not whole: by namespace, selector, projection or
    /// interest.
    pub(in crate::controller) is_partial: bool,
}

/// Status of one input of a run.
#[derive(Debug)]
pub(in crate::controller) struct InputStatus {
    /// Name in messages.
    pub(in crate::controller) label: String,
    /// Type of the input's objects, for the built-in source.
    pub(in crate::controller) type_ref: Option<TypeRef>,
    /// Cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) cluster: Option<TypeRegistry>,
    /// Number of the builder's input, if it has several namespaces.
    pub(in crate::controller) part_of: Option<usize>,
    pub(in crate::controller) coverage: InputCoverage,
    pub(in crate::controller) mode: InputMode,
    /// State of an input that was added by name; `None` for an input of the builder.
    pub(in crate::controller) progress: Option<InputProgress>,
    pub(in crate::controller) cache: InputCache,
    pub(super) wait: InputWait,
    /// State and error as the source has reported them last.
    reported: (WatchState, Option<String>),
    /// Reason why the condition does not hold for now, while the source continues.
    interrupted: Option<String>,
}

/// Cache of an input.
#[derive(Debug, Default)]
pub(in crate::controller) enum InputCache {
    /// No cache.
    #[default]
    Absent,
    /// No cache any more; a custom source had offered one of this type.
    Withdrawn(Arc<ServedType>),
    /// Subscription that was acquired before the epoch began.
    Prepared(Subscription),
    /// The cache of another namespace of the input has all objects, since the type has no
    /// namespaces.
    Covered,
    /// Listed; the objects that existed are being delivered.
    Listed(Attached),
    /// All objects that existed at the start of the source are delivered.
    Delivered(Attached),
    /// Cache of a subscription that has ended; readable until its replacement is listed.
    Held(Attached, Subscription),
}

/// Wait of the run for an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputWait {
    /// Not synced yet.
    Awaited,
    /// Not synced, and not waited for: an optional input with an error, or whose type is gone.
    Excused,
    /// Synced once.
    Synced,
}

impl InputCache {
    /// Returns the cache that can be read.
    pub(in crate::controller) fn attached(&self) -> Option<&Attached> {
        match self {
            Self::Listed(attached) | Self::Delivered(attached) | Self::Held(attached, _) => {
                Some(attached)
            }
            Self::Absent | Self::Withdrawn(_) | Self::Prepared(_) | Self::Covered => None,
        }
    }

    /// Returns the subscription that has ended, if its cache can still be read.
    pub(in crate::controller) fn held(&self) -> Option<&Subscription> {
        match self {
            Self::Held(_, subscription) => Some(subscription),
            Self::Absent
            | Self::Withdrawn(_)
            | Self::Prepared(_)
            | Self::Covered
            | Self::Listed(_)
            | Self::Delivered(_) => None,
        }
    }

    /// Takes the subscription that was acquired before the epoch began.
    pub(in crate::controller) fn take_prepared(&mut self) -> Option<Subscription> {
        let cache = mem::take(self);
        if let Self::Prepared(subscription) = cache {
            return Some(subscription);
        }
        *self = cache;
        None
    }

    /// Holds the subscription of the attached cache, so that it can be read until its replacement is
    /// listed. Returns the subscription if it was never read, or if another one is held already.
    pub(in crate::controller) fn hold(
        &mut self,
        subscription: Subscription,
    ) -> Option<Subscription> {
        let cache = mem::take(self);
        if let Self::Listed(attached) | Self::Delivered(attached) = cache {
            *self = Self::Held(attached, subscription);
            return None;
        }
        *self = cache;
        Some(subscription)
    }

    /// Records that all objects that existed at the start of the source are delivered.
    pub(super) fn delivered(&mut self) {
        let cache = mem::take(self);
        *self = if let Self::Listed(attached) = cache { Self::Delivered(attached) } else { cache };
    }

    /// Returns whether the objects can be read.
    pub(super) fn is_listed(&self) -> bool {
        self.attached().is_some() || self.is_covered()
    }

    /// Returns whether the cache of another namespace has all objects.
    pub(super) fn is_covered(&self) -> bool {
        matches!(self, Self::Covered)
    }

    /// Returns whether all objects that existed at the start of the source are delivered.
    pub(super) fn is_delivered(&self) -> bool {
        matches!(self, Self::Delivered(_) | Self::Covered)
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
            cluster: None,
            part_of: None,
            coverage: InputCoverage::default(),
            mode,
            progress: None,
            cache: InputCache::Absent,
            wait: InputWait::Awaited,
            reported: (WatchState::Waiting, None),
            interrupted: None,
        }
    }

    /// Returns the state of the watch.
    pub(in crate::controller) fn state(&self) -> WatchState {
        if self.interrupted.is_some() { self.lost() } else { self.reported.0 }
    }

    /// Returns the current error.
    pub(in crate::controller) fn error(&self) -> Option<&String> {
        self.interrupted.as_ref().or(self.reported.1.as_ref())
    }

    pub(in crate::controller) fn set(&mut self, state: WatchState, error: Option<String>) {
        if state.is_synced() {
            self.wait = InputWait::Synced;
        }
        self.reported = (state, error);
        self.interrupted = None;
    }

    /// Records that the condition does not hold; a cache is stale from now on.
    pub(in crate::controller) fn wait(&mut self, why: String) {
        self.set(self.lost(), Some(why));
    }

    /// Records that the condition does not hold for now, while the source continues.
    pub(in crate::controller) fn interrupt(&mut self, why: String) {
        self.interrupted = Some(why);
    }

    /// Records that the condition holds again, with the same basis as at the start of the source.
    pub(in crate::controller) fn resume(&mut self) {
        self.interrupted = None;
    }

    /// Records that the source has ended by itself, while its condition holds.
    pub(in crate::controller) fn ended(&mut self, why: String) {
        self.set(self.reported.0, Some(why));
    }

    /// Removes the caches of the input and returns them. A removed optional input is not stale.
    pub(in crate::controller) fn detach(&mut self) -> InputCache {
        if self.is_synced() && self.mode == InputMode::Optional {
            self.wait = InputWait::Excused;
        }
        self.withdraw()
    }

    /// Removes the cache that a custom source offered, and returns it.
    pub(in crate::controller) fn withdraw(&mut self) -> InputCache {
        let offered = self.offered().cloned();
        mem::replace(&mut self.cache, offered.map(InputCache::Withdrawn).unwrap_or_default())
    }

    /// Returns whether the input has synced once.
    pub(super) fn is_synced(&self) -> bool {
        self.wait == InputWait::Synced
    }

    /// Returns whether the input has synced once and is not synced now.
    pub(super) fn is_stale(&self) -> bool {
        self.is_synced() && !self.state().is_synced()
    }

    /// Returns the type of the objects that a custom source offers, or has offered last.
    pub(super) fn offered(&self) -> Option<&Arc<ServedType>> {
        if let InputCache::Withdrawn(served) = &self.cache {
            return Some(served);
        }
        // The input of a custom source declares no type.
        self.cache.attached().map(|it| &it.served).filter(|_| self.type_ref.is_none())
    }

    /// Returns whether the objects are those of a cluster; `None` for that of the controller.
    pub(super) fn is_of(&self, cluster: Option<&TypeRegistry>) -> bool {
        match (&self.cluster, cluster) {
            (None, None) => true,
            (Some(own), Some(cluster)) => own.is(cluster),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Returns whether the input was added by this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.progress.as_ref().is_some_and(|progress| *progress.name == *name)
    }

    /// Returns the reason why the input is not synced.
    pub(super) fn explanation(&self) -> String {
        match self.error() {
            Some(error) => error.clone(),
            None => format!("{} is {}", self.label, self.state().word().to_lowercase()),
        }
    }

    /// Returns the state of the watch while the condition does not hold.
    fn lost(&self) -> WatchState {
        if self.is_synced() { WatchState::Stale } else { WatchState::Waiting }
    }
}
