//! Retention: which objects are kept whole.
//!
//! Depends on the object alone; whether its owner exists is not checked. A controller that starts
//! therefore finds its children whole. The interests of a subscriber that has left are honoured for
//! the linger time, so that its next epoch finds them whole too.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Header, Interest, interest::InterestIndex};
use crate::duration::after;

/// Interests of all subscribers in whole objects, and of those that have left lately.
#[derive(Debug, Default)]
pub(super) struct Retention {
    index: InterestIndex<()>,
    // Lingering interests, by deadline.
    lingering: VecDeque<(Instant, Vec<Interest>)>,
}

impl Retention {
    /// Returns whether an object is kept whole.
    pub(super) fn keeps(&self, object: &Header) -> bool {
        self.index.concerns(object)
    }

    pub(super) fn join(&mut self, whole: &[Interest]) {
        for interest in whole {
            self.index.insert(interest, ());
        }
    }

    /// Ends the interests of a subscriber after the linger time; returns the time of the next end.
    pub(super) fn leave(&mut self, whole: Vec<Interest>, linger: Duration) -> Option<Instant> {
        if !whole.is_empty() {
            let deadline = after(Instant::now(), linger);
            let at = self.lingering.partition_point(|(other, _)| *other <= deadline);
            self.lingering.insert(at, (deadline, whole));
        }
        self.next_end()
    }

    /// Ends the interests whose linger time is over; returns them without the kinds of owners that
    /// another interest names.
    pub(super) fn expire(&mut self) -> Vec<Interest> {
        let now = Instant::now();
        let mut expired = Vec::new();
        while let Some((_, whole)) = self.lingering.pop_front_if(|(deadline, _)| *deadline <= now) {
            for interest in whole {
                self.index.remove(&interest, &());
                let has_kind = |interest: &Interest| matches!(interest, Interest::OwnerKind(kind) if self.index.has_kind(kind));
                if !has_kind(&interest) {
                    expired.push(interest);
                }
            }
        }
        expired
    }

    /// Returns the time at which the next interests end.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.lingering.front().map(|(deadline, _)| *deadline)
    }
}
