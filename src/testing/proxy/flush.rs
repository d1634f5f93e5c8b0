//! Lets what was sent go out before an answer breaks.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use crate::testing::FaultBody;

/// hyper drops what it has not written yet when a body breaks, and does not say when it has written
/// it. Whoever asked would see an answer that breaks off earlier than the fault says.
const PARTING: Duration = Duration::from_millis(10);

/// An answer whose bytes are on the wire when it breaks.
#[derive(Debug)]
pub(super) struct PartingBody {
    inner: FaultBody,
    parting: Option<(Pin<Box<Sleep>>, Option<BoxError>)>,
}

impl PartingBody {
    pub(super) fn new(inner: FaultBody) -> Self {
        Self { inner, parting: None }
    }
}

impl Body for PartingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.parting.is_none() {
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Err(error)) => this.parting = Some((Box::pin(sleep(PARTING)), Some(error))),
                frame => return Poll::Ready(frame),
            }
        }
        let Some((sleep, error)) = &mut this.parting else { return Poll::Ready(None) };
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(error.take().map(Err))
    }

    fn is_end_stream(&self) -> bool {
        self.parting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
