//! Fill: a list of whole objects, for subscribers that need objects which are kept as metadata
//! entries.
//!
//! The list of one subscriber does not delay the changes of all others: the watch continues until
//! the list is due and has its slot, and continues from its position if the list fails.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use super::Reflector;
use crate::{
    duration::{after, doubled},
    informer::{
        classify::{Cause, Classification, RequestFailure, RequestPace},
        shared_informer::SharedInformer,
        wire::ListSlot,
    },
    resume_version::ResumeVersion,
};

/// Time in which subscribers that need objects whole share one list.
const DELAY: Duration = Duration::from_millis(100);
/// First and last wait before a failed list is repeated; doubles.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Waits until a fill is wanted and due, and for its slot.
///
/// Kept from one watch to the next, with its place among those that wait for a slot. A slot may
/// arrive at any time, so it is polled or dropped while others may need that slot.
pub(super) type FillDue = Pin<Box<dyn Future<Output = ListSlot> + Send>>;

/// State of the fills of one reflector.
#[derive(Default)]
pub(super) struct Fill {
    /// Position of the watch that the list has interrupted; `None` without such a list.
    interrupted: Option<ResumeVersion>,
    /// Failures in a row.
    failures: u32,
    /// Time before which no list follows a failed one.
    next: Option<Instant>,
    /// Slot of the next list, acquired while the watch continued.
    slot: Option<ListSlot>,
    /// Next fill, between two watches.
    due: Option<FillDue>,
}

impl Fill {
    /// Returns whether the last list failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Takes the slot of the list that begins.
    pub(super) fn take_slot(&mut self) -> Option<ListSlot> {
        self.slot.take()
    }

    /// Returns the future of the next fill.
    pub(super) fn take_due(
        &mut self,
        informer: &Arc<SharedInformer>,
        lists: &Arc<Semaphore>,
    ) -> FillDue {
        let (retry, informer, lists) = (self.next, informer.clone(), lists.clone());
        self.due.take().unwrap_or_else(|| {
            Box::pin(async move {
                informer.relist_wanted().await;
                // Others receive what the watch has at once.
                let soon = Instant::now() + DELAY;
                sleep_until(retry.map_or(soon, |retry| retry.max(soon))).await;
                ListSlot::acquire(lists).await
            })
        })
    }

    /// Keeps the future of the next fill for the next watch.
    pub(super) fn keep_due(&mut self, due: FillDue) {
        self.due = Some(due);
    }

    /// Drops the future of the next fill: a list begins, which may wait for the same slot.
    pub(super) fn drop_due(&mut self) {
        self.due = None;
    }

    /// Takes the position from which the watch continues after a failed list.
    pub(super) fn take_interrupted(&mut self) -> Option<ResumeVersion> {
        // Without a position, deletions of this moment would be missed.
        self.interrupted.take().filter(ResumeVersion::is_position)
    }
}

impl Reflector {
    /// Makes the next request a list that has its slot. The caller ends the watch.
    pub(super) fn begin_fill(&mut self, slot: ListSlot) {
        self.metrics.restarted(Cause::Wanted);
        self.fill.slot = Some(slot);
        self.fill.interrupted = self.resume_version.take();
    }

    /// Reports a failed fill to the subscribers that wait for it, and sets the time of the next
    /// one.
    pub(super) fn fill_failed(&mut self, failure: &RequestFailure, classified: Classification) {
        let pace = classified.pace;
        if self.fill.failures > 0 || !matches!(pace, RequestPace::Prompt | RequestPace::Quick) {
            self.informer.fill_failed(self.failed_progress(failure, classified, false));
        }
        match self.fill.failures {
            0 => warn!(error = %failure, "list of whole objects failed"),
            _ => debug!(error = %failure, "list of whole objects failed again"),
        }
        let wait = doubled(FIRST_RETRY, self.fill.failures, LAST_RETRY);
        let wait = match pace {
            // Spread upwards: the server's Retry-After is a minimum.
            RequestPace::After(refused) => wait.max(refused.mul_f64(1.0 + fastrand::f64() / 10.0)),
            RequestPace::Prompt
            | RequestPace::Quick
            | RequestPace::Slow
            | RequestPace::Forbidden => wait,
        };
        self.fill.failures = self.fill.failures.saturating_add(1);
        self.fill.next = Some(after(Instant::now(), wait));
        self.informer.repeat_fill();
    }
}

#[cfg(test)]
mod tests;
