//! Delivery of requests that come from outside: kept until a reconcile has finished them.
//!
//! A request from outside is in no initial list, so that an epoch which drops its queue would lose
//! it. The source keeps each request that it takes, and each epoch begins with the kept ones. A
//! reconcile confirms the requests that were taken before it began.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Weak},
};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::controller::Request;

/// Requests that one source has taken and no reconcile has finished, merged by key.
#[derive(Debug, Default)]
pub(in crate::controller) struct UnfinishedRequests {
    numbers: Mutex<Numbers>,
    // Notified when a reconcile of one begins.
    begins: Notify,
}

#[derive(Debug, Default)]
struct Numbers {
    by_request: HashMap<Request, UnfinishedRequest, RandomState>,
    /// The same requests in the order in which they were taken.
    by_number: BTreeMap<u64, Request>,
    last: u64,
    /// Number of requests that wait for a reconcile to begin.
    waiting: usize,
}

#[derive(Debug)]
struct UnfinishedRequest {
    /// Number of the last time that the request was taken.
    number: u64,
    /// True if the request waits for a reconcile to begin.
    waits: bool,
    /// True once the request was added to a queue since it was taken last.
    queued: bool,
}

#[cfg(test)]
thread_local! {
    /// Number of requests that [`UnfinishedRequests::since`] has visited in this thread.
    static VISITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Sources of an epoch that keep the requests they take. A source of a removed input is forgotten once
/// its last clone is dropped.
#[derive(Debug, Default)]
pub(in crate::controller) struct Deliveries(Mutex<Vec<Weak<UnfinishedRequests>>>);

/// Confirmation of the requests taken before a reconcile began, and of none taken later.
#[derive(Debug, Default)]
pub(in crate::controller) struct Receipt(Vec<(Arc<UnfinishedRequests>, u64)>);

impl UnfinishedRequests {
    /// Keeps a request; to be called before it is added to a queue. Returns its number.
    pub(in crate::controller) fn take(&self, request: Request) -> u64 {
        let mut numbers = self.numbers();
        numbers.last += 1;
        let number = numbers.last;
        numbers.by_number.insert(number, request.clone());
        let taken = UnfinishedRequest { number, waits: true, queued: false };
        let before = numbers.by_request.insert(request, taken);
        if let Some(before) = &before {
            numbers.by_number.remove(&before.number);
        }
        numbers.waiting += usize::from(!before.is_some_and(|before| before.waits));
        number
    }

    /// Resolves when fewer than `capacity` requests wait for a reconcile to begin. Cancel safe.
    pub(in crate::controller) async fn wait_capacity(&self, capacity: usize) {
        loop {
            let begins = self.begins.notified();
            if self.numbers().waiting < capacity {
                return;
            }
            begins.await;
        }
    }

    /// Records that the request of a number was added to a queue.
    pub(in crate::controller) fn set_queued(&self, request: &Request, number: u64) {
        let mut numbers = self.numbers();
        let kept = numbers.by_request.get_mut(request).filter(|kept| kept.number == number);
        if let Some(kept) = kept {
            kept.queued = true;
        }
    }

    /// Returns whether the request of a number was added to a queue, and was not taken again since.
    pub(in crate::controller) fn was_queued(&self, request: &Request, number: u64) -> bool {
        let numbers = self.numbers();
        numbers.by_request.get(request).is_some_and(|kept| kept.number == number && kept.queued)
    }

    /// Returns the requests that are not confirmed and were taken after this number, with their
    /// numbers, in order. Its cost does not depend on the requests that were taken before.
    pub(in crate::controller) fn since(&self, last: u64) -> Vec<(u64, Request)> {
        let numbers = self.numbers();
        let later = numbers.by_number.range((Bound::Excluded(last), Bound::Unbounded));
        #[cfg(test)]
        let later = later.inspect(|_| VISITED.with(|visited| visited.set(visited.get() + 1)));
        later.map(|(number, request)| (*number, request.clone())).collect()
    }

    /// Sets whether a request waits for a reconcile to begin, rather than for a time of its own.
    pub(in crate::controller) fn set_waits(&self, request: &Request, waits: bool) {
        let mut numbers = self.numbers();
        let Some(kept) = numbers.by_request.get_mut(request) else { return };
        let before = std::mem::replace(&mut kept.waits, waits);
        numbers.waiting = numbers.waiting + usize::from(waits) - usize::from(before);
        drop(numbers);
        self.begins.notify_waiters();
    }

    /// Records that a reconcile of this request begins; returns the number that it confirms.
    fn begin(&self, request: &Request) -> Option<u64> {
        let number = self.numbers().by_request.get(request)?.number;
        self.set_waits(request, false);
        Some(number)
    }

    fn confirm(&self, request: &Request, number: u64) {
        let mut numbers = self.numbers();
        if numbers.by_request.get(request).is_none_or(|kept| kept.number != number) {
            return;
        }
        numbers.by_number.remove(&number);
        if numbers.by_request.remove(request).is_some_and(|kept| kept.waits) {
            numbers.waiting -= 1;
            drop(numbers);
            self.begins.notify_waiters();
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock()
    }
}

impl Deliveries {
    /// Adds a source that is to get confirmations; once, if it is added twice.
    pub(in crate::controller) fn join(&self, taken: &Arc<UnfinishedRequests>) {
        let (mut sources, taken) = (self.sources(), Arc::downgrade(taken));
        sources.retain(|source| source.strong_count() > 0);
        if !sources.iter().any(|source| source.ptr_eq(&taken)) {
            sources.push(taken);
        }
    }

    /// Returns the receipt of a reconcile that begins now.
    pub(in crate::controller) fn receipt(&self, request: &Request) -> Receipt {
        let mut taken = Vec::new();
        self.sources().retain(|source| {
            let Some(source) = source.upgrade() else { return false };
            if let Some(number) = source.begin(request) {
                taken.push((source, number));
            }
            true
        });
        Receipt(taken)
    }

    fn sources(&self) -> MutexGuard<'_, Vec<Weak<UnfinishedRequests>>> {
        self.0.lock()
    }
}

impl Receipt {
    /// Confirms the request at each of its sources: its reconcile has finished it.
    pub(in crate::controller) fn confirm(self, request: &Request) {
        for (taken, number) in self.0 {
            taken.confirm(request, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl UnfinishedRequests {
        /// Returns the requests that are not confirmed, in the order in which they were taken.
        fn requests(&self) -> Vec<Request> {
            self.since(0).into_iter().map(|(_, request)| request).collect()
        }
    }

    fn a() -> Request {
        Request::namespaced("ns", "a")
    }

    #[test]
    fn a_reconcile_confirms_what_was_taken_before_it_began() {
        let (taken, deliveries) = (Arc::new(UnfinishedRequests::default()), Deliveries::default());
        deliveries.join(&taken);
        taken.take(a());
        taken.take(a());
        assert_eq!(taken.requests(), [a()], "merged by key");

        deliveries.receipt(&a()).confirm(&a());

        assert_eq!(taken.requests(), []);
        deliveries.receipt(&a()).confirm(&a());
    }

    #[test]
    fn a_request_that_is_taken_during_its_reconcile_is_kept() {
        let (taken, deliveries) = (Arc::new(UnfinishedRequests::default()), Deliveries::default());
        deliveries.join(&taken);
        taken.take(a());
        let receipt = deliveries.receipt(&a());

        taken.take(a());
        receipt.confirm(&a());

        assert_eq!(taken.requests(), [a()]);
    }

    #[test]
    fn wakeup_visits_the_new_requests_alone_however_many_are_kept() {
        let taken = UnfinishedRequests::default();
        let name = |number: usize| Request::cluster(number.to_string());
        for number in 0..10_000 {
            taken.take(name(number));
        }
        let last = taken.since(0).last().unwrap().0;
        VISITED.set(0);

        taken.take(name(3));
        taken.take(name(10_000));
        taken.take(name(3));

        let new = taken.since(last);
        assert_eq!(new, [(last + 2, name(10_000)), (last + 3, name(3))], "in order, merged by key");
        assert_eq!(VISITED.get(), 2);
        assert_eq!(taken.since(last + 3), []);
        for (number, request) in taken.since(0) {
            taken.confirm(&request, number);
        }
        assert!(taken.numbers().by_number.is_empty(), "a confirmed request is dropped");
    }

    #[test]
    fn each_source_of_an_epoch_is_confirmed() {
        let (one, other, deliveries) = (Arc::default(), Arc::default(), Deliveries::default());
        for taken in [&one, &other, &one] {
            deliveries.join(taken);
            UnfinishedRequests::take(taken, a());
        }

        let receipt = deliveries.receipt(&a());

        assert_eq!(receipt.0.len(), 2);
        receipt.confirm(&a());
        assert_eq!((one.requests(), other.requests()), (vec![], vec![]));
    }

    #[test]
    fn dropped_source_is_looked_up_no_more() {
        let (kept, deliveries) = (Arc::default(), Deliveries::default());
        deliveries.join(&kept);
        for _ in 0..100 {
            let dropped = Arc::default();
            deliveries.join(&dropped);
            UnfinishedRequests::take(&dropped, a());
        }
        assert_eq!(deliveries.sources().len(), 2, "each join forgets the dropped ones");

        UnfinishedRequests::take(&kept, a());
        assert_eq!(deliveries.receipt(&a()).0.len(), 1);

        assert_eq!(deliveries.sources().len(), 1);
    }
}
