//! Flush of sent bytes before a response breaks.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use crate::FaultBody;

/// Delay before a body breaks, in which hyper writes what was sent. hyper drops unwritten bytes
/// when a body breaks, and does not report when it has written them. Without the delay the client
/// would see a response that breaks earlier than the fault specifies.
const FLUSH_DELAY: Duration = Duration::from_millis(10);

/// Body whose bytes are on the wire when it breaks.
#[derive(Debug)]
pub(super) struct FlushedBody {
    inner: FaultBody,
    pending: Option<(Pin<Box<Sleep>>, Option<BoxError>)>,
}

impl FlushedBody {
    pub(super) fn new(inner: FaultBody) -> Self {
        Self { inner, pending: None }
    }
}

impl Body for FlushedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.pending.is_none() {
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Err(error)) => {
                    this.pending = Some((Box::pin(sleep(FLUSH_DELAY)), Some(error)))
                }
                frame => return Poll::Ready(frame),
            }
        }
        let Some((sleep, error)) = &mut this.pending else { return Poll::Ready(None) };
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(error.take().map(Err))
    }

    fn is_end_stream(&self) -> bool {
        self.pending.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
