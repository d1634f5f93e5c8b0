//! Budgets of hook calls, their responses and their requests. They bound the concurrent calls of a
//! process, and the decoded bytes of a process, a controller and a response.
//!
//! A response of up to 64 KiB is read without a reservation; each sync holds at most one. Before
//! more is read, a longer response reserves its maximum length: responses that reserve piece by
//! piece could wait for each other for ever. The unused part is released after the response was
//! read, and the rest when the sync drops the response.
//!
//! Responses that are kept by their ETag have a second budget of half the size, so that a kept
//! response never delays one that is being read. Requests have a third budget, also of half the
//! size: a request of more than 64 KiB reserves its length before it is built, until it has been
//! sent. No request is refused: a request that is longer than the share of its controller reserves
//! the whole share. A write of more than 64 KiB takes its room from the budget of requests too.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest response that is read without a reservation, in bytes.
pub(crate) const UNRESERVED_BYTES: usize = 64 * 1024;
/// Default limit of one response in bytes, unless the budget is smaller: no useful response is
/// longer.
const RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// Default budget of a process in bytes. With half as much for kept responses, it is three eighths
/// of the shipped memory limit. A controller's share holds two responses of the default limit, so
/// that a response whose sync takes long does not block the next one.
const PROCESS_BYTES: usize = 128 * 1024 * 1024;
/// Divisor of each budget; the result is the additional budget of responses that are kept by their
/// ETag.
const KEPT_DIVISOR: usize = 2;
/// Share of each budget that requests may take in addition.
const REQUESTS_DIVISOR: usize = 2;
/// Controllers that can exhaust the budget of a process only together.
const SHARES: usize = 4;

/// Limits of hook responses, in decoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// All responses of a process; 128 MiB by default. Responses kept by their ETag may take half
    /// as much again, and so may requests.
    pub process: usize,
    /// Responses of one controller; a quarter of `process` by default and at most.
    pub controller: usize,
    /// A single response; 16 MiB by default, and at most `controller`.
    pub response: usize,
}

impl ResponseLimits {
    /// Returns the default limits for a budget of the process.
    #[must_use]
    pub fn of_process(process: usize) -> Self {
        let controller = process / SHARES;
        Self { process, controller, response: RESPONSE_BYTES.min(controller) }
    }

    /// Lowers the limits to their bounds. The whole budget is at most 4 GiB, which is what one
    /// request to a semaphore can count.
    fn clamped(self) -> Self {
        let most = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
        let process = self.process.min(most);
        let controller = self.controller.min(process / SHARES);
        Self { process, controller, response: self.response.min(controller) }
    }
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self::of_process(PROCESS_BYTES)
    }
}

/// Budget of one process. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct ResponseBudget {
    limits: ResponseLimits,
    responses: Arc<Semaphore>,
    kept: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
    // `None` without a bound.
    calls: Option<Arc<Semaphore>>,
    // Shares by controller, while any part of one is held.
    shares: Arc<Mutex<BTreeMap<String, Share>>>,
}

/// Share of one controller. Permits hold its semaphores: bytes count until they are released, even
/// after their hook is gone.
#[derive(Clone, Debug, Default)]
struct Share {
    responses: Weak<Semaphore>,
    kept: Weak<Semaphore>,
    requests: Weak<Semaphore>,
}

impl Share {
    fn is_held(&self) -> bool {
        [&self.responses, &self.kept, &self.requests].iter().any(|it| it.strong_count() > 0)
    }
}

impl ResponseBudget {
    /// Returns an unused budget. Limits beyond their bounds are lowered to them.
    pub fn new(limits: ResponseLimits) -> Self {
        let limits = limits.clamped();
        let pool = |bytes| Arc::new(Semaphore::new(bytes));
        let (responses, kept) = (pool(limits.process), pool(limits.process / KEPT_DIVISOR));
        let requests = pool(limits.process / REQUESTS_DIVISOR);
        let (decoding, shares) = (pool(1), Arc::default());
        Self { limits, responses, kept, requests, decoding, calls: None, shares }
    }

    /// Bounds the concurrent hook calls of the process; 0 for no bound. Calls beyond it wait in the
    /// order in which they were made. Applies to controllers that take their share afterwards.
    #[must_use]
    pub(crate) fn most_calls(mut self, most: usize) -> Self {
        let calls = || Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        self.calls = (most > 0).then(calls);
        self
    }

    /// Returns the effective limits.
    pub fn limits(&self) -> ResponseLimits {
        self.limits
    }

    /// Share of the controller of this name. Epochs of one name share it, because they overlap when
    /// a controller is edited.
    pub(crate) fn controller(&self, name: &str) -> ControllerBudget {
        let mut shares = self.shares.lock();
        shares.retain(|_, share| share.is_held());
        let share = shares.entry(name.to_owned()).or_default();
        let bytes = self.limits.controller;
        let responses = held(&mut share.responses, bytes);
        let kept = held(&mut share.kept, bytes / KEPT_DIVISOR);
        let requests = held(&mut share.requests, bytes / REQUESTS_DIVISOR);
        ControllerBudget { process: self.clone(), responses, kept, requests }
    }
}

/// The semaphore that is held, or a new one.
fn held(semaphore: &mut Weak<Semaphore>, bytes: usize) -> Arc<Semaphore> {
    semaphore.upgrade().unwrap_or_else(|| {
        let new = Arc::new(Semaphore::new(bytes));
        *semaphore = Arc::downgrade(&new);
        new
    })
}

impl Default for ResponseBudget {
    fn default() -> Self {
        Self::new(ResponseLimits::default())
    }
}

/// Share of one controller in the budget of its process. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ControllerBudget {
    process: ResponseBudget,
    responses: Arc<Semaphore>,
    kept: Arc<Semaphore>,
    requests: Arc<Semaphore>,
}

impl ControllerBudget {
    /// Returns the limits of the process.
    pub(crate) fn limits(&self) -> ResponseLimits {
        self.process.limits
    }

    /// Returns the maximum number of bytes of kept responses that one controller may hold.
    pub(crate) fn most_kept(&self) -> usize {
        self.process.limits.controller / KEPT_DIVISOR
    }

    /// Reserves bytes for a response, and waits until they are free. The controller's share comes
    /// first, so that a controller without free bytes takes none from the others.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future reserves nothing.
    pub(crate) async fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let count = u32::try_from(bytes).ok()?;
        let own = self.responses.clone().acquire_many_owned(count).await.ok()?;
        let of_process = self.process.responses.clone().acquire_many_owned(count).await.ok()?;
        Some(Reservation { permits: [own, of_process] })
    }

    /// Reserves bytes for a request, and waits until they are free. `None` for a small request.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future reserves nothing.
    pub(crate) async fn request(&self, bytes: usize) -> Option<Reservation> {
        if bytes <= UNRESERVED_BYTES {
            return None;
        }
        let share = self.process.limits.controller / REQUESTS_DIVISOR;
        let count = u32::try_from(bytes.min(share)).ok()?;
        let own = self.requests.clone().acquire_many_owned(count).await.ok()?;
        let of_process = self.process.requests.clone().acquire_many_owned(count).await.ok()?;
        Some(Reservation { permits: [own, of_process] })
    }

    /// Waits until one more hook call may be made; the permit belongs to the call. `None` without a
    /// bound.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes no permit; the call loses its place.
    pub(crate) async fn call(&self) -> Option<OwnedSemaphorePermit> {
        self.process.calls.clone()?.acquire_owned().await.ok()
    }

    /// Reserves bytes for a response that is kept, if there are as many now.
    pub(crate) fn try_keep(&self, bytes: usize) -> Option<Reservation> {
        let count = u32::try_from(bytes).ok()?;
        let own = self.kept.clone().try_acquire_many_owned(count).ok()?;
        let of_process = self.process.kept.clone().try_acquire_many_owned(count).ok()?;
        Some(Reservation { permits: [own, of_process] })
    }

    /// Waits for the permit to decode a document of this size. Large ones are decoded one at a time
    /// in a process, because a decoded tree takes 20 to 80 times the memory of its text. `None` for
    /// a small one.
    ///
    /// Do not hold the permit across another await.
    pub(crate) async fn decode_permit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= UNRESERVED_BYTES {
            return None;
        }
        self.process.decoding.clone().acquire_owned().await.ok()
    }
}

/// Reserved bytes, released when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    permits: [OwnedSemaphorePermit; 2],
}

impl Reservation {
    /// Releases all but this many bytes.
    fn shrink_to(&mut self, bytes: usize) {
        for permit in &mut self.permits {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }

    /// Returns the bytes, which hold their part of the reservation as long as any slice of them
    /// lives.
    pub(crate) fn hold(mut self, bytes: Vec<u8>) -> Bytes {
        self.shrink_to(bytes.len());
        self.hold_all(bytes)
    }

    /// Like [`Reservation::hold`], but keeps the whole reservation.
    pub(crate) fn hold_all(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(ReservedBytes { bytes, _reservation: self })
    }
}

struct ReservedBytes {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn budget(process: usize) -> ResponseBudget {
        ResponseBudget::new(ResponseLimits::of_process(process))
    }

    #[test]
    fn no_controller_holds_more_than_a_quarter_of_the_budget() {
        for (given, expected) in [
            (ResponseLimits { process: 400, controller: 400, response: 400 }, (400, 100, 100)),
            (ResponseLimits { process: 400, controller: 50, response: 10 }, (400, 50, 10)),
            (ResponseLimits::of_process(100 << 20), (100 << 20, 25 << 20, 16 << 20)),
            (ResponseLimits::default(), (128 << 20, 32 << 20, 16 << 20)),
        ] {
            let limits = ResponseBudget::new(given).limits;

            assert_eq!((limits.process, limits.controller, limits.response), expected, "{given:?}");
        }
    }

    #[test]
    fn controller_whose_share_is_used_up_waits_and_no_other_does() {
        let budget = budget(400);
        let (greedy, other) = (budget.controller("greedy"), budget.controller("other"));
        let held = greedy.reserve(100).now_or_never().flatten().unwrap().hold(vec![0; 100]);

        assert!(greedy.reserve(1).now_or_never().is_none());
        assert!(other.reserve(100).now_or_never().is_some());

        drop(held);
        assert!(greedy.reserve(100).now_or_never().is_some());
    }

    #[test]
    fn edited_controller_keeps_a_single_share() {
        let budget = budget(400);
        let old = budget.controller("a");
        let response = old.reserve(100).now_or_never().flatten().unwrap().hold(vec![0; 100]);
        let kept = old.try_keep(50);

        let new = budget.controller("a");
        assert!(new.reserve(1).now_or_never().is_none());
        assert!(new.try_keep(1).is_none());

        // Bytes outlive the hook that read them.
        drop((old, new));
        let newer = budget.controller("a");
        assert!(newer.reserve(1).now_or_never().is_none());
        drop((response, kept));
        assert!(newer.reserve(100).now_or_never().is_some());
        drop(newer);
        budget.controller("b");
        assert_eq!(budget.shares.lock().len(), 1, "shares without an owner are forgotten");
    }

    #[test]
    fn responses_of_several_controllers_stay_within_the_budget_of_the_process() {
        let budget = budget(400);
        let shares: Vec<_> = (0..5).map(|number| budget.controller(&number.to_string())).collect();
        let mut held: Vec<_> =
            shares[..4].iter().map(|share| share.reserve(100).now_or_never().flatten()).collect();
        assert!(held.iter().all(Option::is_some));
        let mut late = Box::pin(shares[4].reserve(100));

        assert!(late.as_mut().now_or_never().is_none());

        held.pop();
        assert!(late.now_or_never().is_some());
    }

    #[test]
    fn unused_bytes_of_a_response_are_released_at_once_and_the_others_with_its_last_slice() {
        let share = budget(400).controller("a");
        let response = share.reserve(100).now_or_never().flatten().unwrap().hold(vec![7; 40]);
        let slice = response.slice(10..20);
        drop(response);

        assert!(share.reserve(61).now_or_never().is_none());
        assert!(share.reserve(60).now_or_never().is_some());
        drop(slice);
        assert!(share.reserve(100).now_or_never().is_some());
    }

    #[test]
    fn cached_responses_delay_no_other_response() {
        let share = budget(400).controller("a");

        let kept = share.try_keep(50);

        assert!(kept.is_some() && share.try_keep(1).is_none());
        assert!(share.reserve(100).now_or_never().is_some());
    }

    #[test]
    fn request_waits_for_others_of_its_controller_and_a_long_one_takes_the_whole_share() {
        let budget = budget(8 * UNRESERVED_BYTES * 4);
        let (greedy, other) = (budget.controller("greedy"), budget.controller("other"));
        let long = greedy.request(usize::MAX).now_or_never().flatten();
        let sent = long.unwrap().hold_all(vec![0; 10]);

        assert!(greedy.request(UNRESERVED_BYTES + 1).now_or_never().is_none());
        assert!(greedy.request(UNRESERVED_BYTES).now_or_never().is_some(), "a small one");
        assert!(other.request(UNRESERVED_BYTES + 1).now_or_never().is_some());
        assert!(greedy.reserve(UNRESERVED_BYTES).now_or_never().is_some(), "responses are apart");

        drop(sent);
        assert!(greedy.request(usize::MAX).now_or_never().is_some());
    }

    #[test]
    fn hook_calls_beyond_the_bound_wait_in_their_order() {
        let bounded = budget(400).most_calls(2);
        let (greedy, other) = (bounded.controller("greedy"), bounded.controller("other"));
        let mut held: Vec<_> = (0..2).map(|_| greedy.call().now_or_never().flatten()).collect();
        assert!(held.iter().all(Option::is_some));
        let (mut first, mut second) = (Box::pin(other.call()), Box::pin(greedy.call()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());

        held.pop();
        assert!(second.as_mut().now_or_never().is_none(), "the other controller comes first");
        drop(first);
        assert!(second.now_or_never().flatten().is_some(), "a dropped call takes no permit");

        let unbounded = budget(400).most_calls(0).controller("a");
        assert!(unbounded.call().now_or_never().expect("it does not wait").is_none());
    }

    #[test]
    fn large_documents_are_decoded_one_at_a_time() {
        let budget = budget(400);
        let (one, other) = (budget.controller("one"), budget.controller("other"));
        let large = UNRESERVED_BYTES + 1;
        let permit = one.decode_permit(large).now_or_never();
        assert!(permit.is_some());

        assert!(other.decode_permit(large).now_or_never().is_none());
        assert!(other.decode_permit(UNRESERVED_BYTES).now_or_never().is_some());

        drop(permit);
        assert!(other.decode_permit(large).now_or_never().is_some());
    }
}
