//! Exchange: a request and its response, owned by the fence that the request passed.
//!
//! A cancellation signal has no effect on a future that is not polled. Therefore the fence and the
//! caller share a slot that holds the request's future, and later the response's body. The caller
//! takes the content out of the slot for each poll; [`Fence::close`] takes it for good and drops
//! it.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use parking_lot::{Mutex, MutexGuard};

use super::{BoxError, Fence, FenceClosed, Passage};

/// Future of a response's head.
type ResponseFuture = BoxFuture<'static, Result<Response<Body>, BoxError>>;

/// Content of one exchange, shared by its caller and its fence.
#[derive(Debug, Default)]
pub(super) struct ExchangeSlot(Mutex<ExchangePhase>);

#[derive(Default)]
enum ExchangePhase {
    /// The caller holds the content and polls it at this moment.
    #[default]
    Polled,
    /// The exchange was cut while the caller polled the content; the caller drops it.
    CutWhilePolled,
    /// The slot holds the content between two polls. The waker is the caller's.
    Held(HeldExchange, Waker),
    /// The exchange was cut, and the content has been dropped.
    Cut,
}

/// Remaining content of an exchange.
struct HeldExchange {
    content: ExchangeContent,
    // Present for a write until its outcome is known, for a read until its head has arrived.
    passage: Option<Passage>,
}

enum ExchangeContent {
    Request(ResponseFuture),
    Body(Body),
    Nothing,
}

/// Caller's end of a slot. Dropping it drops the content.
struct OwnedSlot {
    fence: Fence,
    id: u64,
    slot: Arc<ExchangeSlot>,
}

/// Future of a request under way.
pub(super) struct Exchange(Option<OwnedSlot>);

/// Body of a response. The body of a write's response keeps the write under way until it has been
/// read.
pub(super) struct FencedResponse {
    owned: OwnedSlot,
    // True once the caller has received the error for the cut.
    cut: bool,
}

impl ExchangeSlot {
    /// Cuts the exchange; returns whether none of its content is left. A body that was read to its
    /// end stays ended.
    pub(super) fn cut(&self) -> bool {
        let mut phase = self.lock();
        if let ExchangePhase::Held(HeldExchange { content: ExchangeContent::Nothing, .. }, _) =
            &*phase
        {
            return true;
        }
        let (held, waker) = match mem::replace(&mut *phase, ExchangePhase::Cut) {
            ExchangePhase::Held(held, waker) => (held, waker),
            ExchangePhase::Polled | ExchangePhase::CutWhilePolled => {
                *phase = ExchangePhase::CutWhilePolled;
                return false;
            }
            ExchangePhase::Cut => return false,
        };
        drop(phase);
        drop_quietly(held);
        waker.wake();
        true
    }

    // No change under this lock can panic half-way, so the state stays consistent.
    fn lock(&self) -> MutexGuard<'_, ExchangePhase> {
        self.0.lock()
    }
}

/// Drops the content, which is code of the client's author and may panic.
fn drop_quietly(held: HeldExchange) {
    if catch_unwind(AssertUnwindSafe(|| drop(held))).is_err() {
        tracing::warn!("a request panicked when it was dropped");
    }
}

impl OwnedSlot {
    /// Polls the content; `None` once the exchange has been cut.
    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut HeldExchange, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let mut held = self.take()?;
        let polled = poll(&mut held, context);
        self.put(held, context.waker().clone()).then_some(polled)
    }

    fn take(&self) -> Option<HeldExchange> {
        let mut phase = self.slot.lock();
        match mem::replace(&mut *phase, ExchangePhase::Polled) {
            ExchangePhase::Held(held, _) => Some(held),
            other
            @ (ExchangePhase::Polled | ExchangePhase::CutWhilePolled | ExchangePhase::Cut) => {
                *phase = other;
                None
            }
        }
    }

    /// Puts the content back; `false` if the exchange has been cut meanwhile.
    fn put(&self, held: HeldExchange, waker: Waker) -> bool {
        let mut phase = self.slot.lock();
        if matches!(*phase, ExchangePhase::CutWhilePolled) {
            drop(phase);
            drop(held);
            self.finished();
            return false;
        }
        *phase = ExchangePhase::Held(held, waker);
        true
    }

    /// Records that the content is gone, so that the fence no longer waits for it.
    fn finished(&self) {
        *self.slot.lock() = ExchangePhase::Cut;
        self.fence.forget(self.id);
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        let phase = mem::replace(&mut *self.slot.lock(), ExchangePhase::Cut);
        match phase {
            // A panic of the content must not keep the fence from forgetting the exchange.
            ExchangePhase::Held(held, _) => drop_quietly(held),
            // A poll has panicked and dropped the content.
            ExchangePhase::Polled | ExchangePhase::CutWhilePolled => {}
            // The fence forgot the exchange when the content was dropped.
            ExchangePhase::Cut => return,
        }
        self.fence.forget(self.id);
    }
}

impl HeldExchange {
    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<http::response::Parts, BoxError>> {
        let ExchangeContent::Request(request) = &mut self.content else {
            return Poll::Ready(Err(FenceClosed.into()));
        };
        let response = ready!(request.as_mut().poll(context));
        self.content = ExchangeContent::Nothing;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                self.passage = None;
                return Poll::Ready(Err(error));
            }
        };
        let (head, body) = response.into_parts();
        let ended = HttpBody::is_end_stream(&body);
        if let Some(passage) = self.passage.take() {
            self.passage = of_head(passage, head.status, ended);
        }
        if !ended {
            self.content = ExchangeContent::Body(body);
        }
        Poll::Ready(Ok(head))
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, kube::Error>>> {
        let ExchangeContent::Body(body) = &mut self.content else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(passage), Some(data)) = (&mut self.passage, data) {
            passage.response.push(data);
        }
        match &frame {
            Some(Ok(_)) if !HttpBody::is_end_stream(body) => return Poll::Ready(frame),
            Some(Ok(_)) | None => {
                if let Some(passage) = self.passage.take() {
                    passage.succeeded();
                }
            }
            // The body was cut off: dropped without a response.
            Some(Err(_)) => drop(self.passage.take()),
        }
        self.content = ExchangeContent::Nothing;
        Poll::Ready(frame)
    }
}

/// Returns the passage if it stays open after the head of a response: the outcome of a successful
/// write is known only when its whole response was read.
fn of_head(passage: Passage, status: StatusCode, ended: bool) -> Option<Passage> {
    match status {
        _ if passage.on_end.is_some() && status.is_success() => match ended {
            true => passage.succeeded(),
            false => return Some(passage),
        },
        // A gateway answered; the server's own response is missing.
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => drop(passage),
        _ if status.is_server_error() => passage.ended_unknown(),
        _ => passage.answered(),
    }
    None
}

impl Exchange {
    /// Creates the exchange of a request that has passed. The request is sent at the first poll.
    pub(super) fn new(passage: Passage, request: ResponseFuture) -> Self {
        let fence = passage.fence.clone();
        let slot = Arc::new(ExchangeSlot::default());
        let Some(id) = fence.remember(&slot) else {
            // The fence was closed since the request passed, so it is not sent.
            passage.answered();
            return Self(None);
        };
        let owned = OwnedSlot { fence, id, slot };
        let held =
            HeldExchange { content: ExchangeContent::Request(request), passage: Some(passage) };
        owned.put(held, Waker::noop().clone());
        Self(Some(owned))
    }
}

impl Future for Exchange {
    type Output = Result<Response<FencedResponse>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let head = match &self.0 {
            Some(owned) => owned.poll(context, HeldExchange::poll_head),
            None => None,
        };
        match (head, self.0.take()) {
            (Some(Poll::Pending), owned) => {
                self.0 = owned;
                Poll::Pending
            }
            (Some(Poll::Ready(Ok(head))), Some(owned)) => {
                Poll::Ready(Ok(Response::from_parts(head, FencedResponse { owned, cut: false })))
            }
            (Some(Poll::Ready(Err(error))), _) => Poll::Ready(Err(error)),
            (Some(Poll::Ready(Ok(_))) | None, _) => Poll::Ready(Err(FenceClosed.into())),
        }
    }
}

impl HttpBody for FencedResponse {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.owned.poll(context, HeldExchange::poll_frame) {
            Some(frame) => frame.map(|frame| frame.map(|frame| frame.map_err(BoxError::from))),
            None if self.cut => Poll::Ready(None),
            None => {
                self.cut = true;
                Poll::Ready(Some(Err(FenceClosed.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &*self.owned.slot.lock() {
            ExchangePhase::Held(held, _) => matches!(held.content, ExchangeContent::Nothing),
            ExchangePhase::Polled | ExchangePhase::CutWhilePolled | ExchangePhase::Cut => self.cut,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &*self.owned.slot.lock() {
            ExchangePhase::Held(HeldExchange { content: ExchangeContent::Body(body), .. }, _) => {
                HttpBody::size_hint(body)
            }
            ExchangePhase::Held(HeldExchange { content: ExchangeContent::Nothing, .. }, _) => {
                SizeHint::with_exact(0)
            }
            ExchangePhase::Held(..)
            | ExchangePhase::Polled
            | ExchangePhase::CutWhilePolled
            | ExchangePhase::Cut => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for ExchangePhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Polled => "Polled",
            Self::CutWhilePolled => "CutWhilePolled",
            Self::Held(..) => "Held",
            Self::Cut => "Cut",
        })
    }
}
