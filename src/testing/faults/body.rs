//! The body of an answer that may be cut.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use super::OpenGuard;

/// What a disturbed service answers with.
#[derive(Debug)]
pub struct FaultBody {
    inner: UnsyncBoxBody<Bytes, BoxError>,
    limit: Option<Limit>,
    /// Cut from outside.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    ended: bool,
    /// Says that the request is open.
    _open: Option<OpenGuard>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) bytes: usize,
    pub(super) clean: bool,
}

impl FaultBody {
    pub(super) fn new<B>(body: B, limit: Option<Limit>, open: OpenGuard) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self {
            inner: body.map_err(Into::into).boxed_unsync(),
            limit,
            cut: Some(Box::pin(open.cut.clone().cancelled_owned())),
            ended: false,
            _open: Some(open),
        }
    }

    /// A body that is there already.
    pub(super) fn full(bytes: Bytes) -> Self {
        let inner = Full::new(bytes).map_err(Into::into).boxed_unsync();
        Self { inner, limit: None, cut: None, ended: false, _open: None }
    }

    fn end<T>(&mut self, error: Option<BoxError>) -> Poll<Option<Result<T, BoxError>>> {
        self.ended = true;
        self.cut = None;
        self._open = None;
        Poll::Ready(error.map(Err))
    }
}

impl Body for FaultBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.cut.as_mut().is_some_and(|cut| cut.as_mut().poll(context).is_ready()) {
            return self.end(Some(broken()));
        }
        if let Some(Limit { bytes: 0, clean }) = self.limit {
            return self.end((!clean).then(broken));
        }
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
        let Some(Ok(frame)) = frame else { return self.end(frame.and_then(Result::err)) };
        Poll::Ready(Some(Ok(self.shorten(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.limit.is_none() && self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self.limit {
            Some(_) => SizeHint::default(),
            None => self.inner.size_hint(),
        }
    }
}

impl FaultBody {
    fn shorten(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let Some(limit) = &mut self.limit else { return frame };
        match frame.into_data() {
            Ok(mut data) => {
                data.truncate(limit.bytes);
                limit.bytes -= data.len();
                Frame::data(data)
            }
            Err(frame) => frame,
        }
    }
}

fn broken() -> BoxError {
    Box::new(io::Error::new(io::ErrorKind::ConnectionReset, "cut by a fault"))
}
