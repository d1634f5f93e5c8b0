//! Body of a response that may be disturbed.

use std::{
    collections::VecDeque,
    fmt::{self, Debug, Formatter},
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use super::{
    OpenGuard,
    effect::{Effect, Piece},
};

/// Response body of a service with faults.
pub struct FaultBody {
    inner: UnsyncBoxBody<Bytes, BoxError>,
    effect: Effect,
    /// Pieces that the effect has made of the received bytes.
    pieces: VecDeque<Piece>,
    pause: Option<Pin<Box<Sleep>>>,
    /// First received bytes, held until another event has passed.
    held: Hold,
    /// Signal of a cut from outside.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    begun: bool,
    /// True once the response itself has ended.
    finished: bool,
    ended: bool,
    /// Guard of the open request.
    open: Option<OpenGuard>,
}

/// Wait that begins with the first byte.
pub(super) enum Hold {
    None,
    Armed(Box<dyn FnOnce() -> PendingDelay + Send>),
    Waiting(PendingDelay),
}

pub(super) type PendingDelay = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Debug for FaultBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultBody")
            .field("effect", &self.effect)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl FaultBody {
    pub(super) fn new<B>(body: B, effect: Effect, held: Hold, open: OpenGuard) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self {
            inner: body.map_err(Into::into).boxed_unsync(),
            effect,
            pieces: VecDeque::new(),
            pause: None,
            held,
            cut: Some(Box::pin(open.cut.clone().cancelled_owned())),
            begun: false,
            finished: false,
            ended: false,
            open: Some(open),
        }
    }

    /// Returns a complete body.
    pub(super) fn full(bytes: Bytes) -> Self {
        Self {
            inner: Full::new(bytes).map_err(Into::into).boxed_unsync(),
            effect: Effect::None,
            pieces: VecDeque::new(),
            pause: None,
            held: Hold::None,
            cut: None,
            begun: false,
            finished: false,
            ended: false,
            open: None,
        }
    }

    fn end<T>(&mut self, error: Option<BoxError>) -> Poll<Option<Result<T, BoxError>>> {
        self.ended = true;
        self.cut = None;
        self.open = None;
        Poll::Ready(error.map(Err))
    }

    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Hold::Armed(_) = &self.held
            && let Hold::Armed(arm) = std::mem::replace(&mut self.held, Hold::None)
        {
            self.happened();
            self.held = Hold::Waiting(arm());
        }
        if let Hold::Waiting(waiting) = &mut self.held {
            ready!(waiting.as_mut().poll(context));
            self.held = Hold::None;
        }
        Poll::Ready(())
    }

    fn happened(&self) {
        if let Some(open) = &self.open {
            open.happened();
        }
    }
}

impl Body for FaultBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if this.cut.as_mut().is_some_and(|cut| cut.as_mut().poll(context).is_ready()) {
            return this.end(Some(broken()));
        }
        if !std::mem::replace(&mut this.begun, true) {
            this.pieces.extend(this.effect.begin());
        }
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            if !this.pieces.is_empty() {
                ready!(this.poll_held(context));
            }
            match this.pieces.pop_front() {
                Some(Piece::Data(data)) => {
                    if let Some(open) = &this.open {
                        open.passed(&data);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Piece::Pause(pause)) => this.pause = Some(Box::pin(sleep(pause))),
                Some(Piece::Happened) => this.happened(),
                Some(Piece::End) => return this.end(None),
                Some(Piece::Break) => return this.end(Some(broken())),
                Some(Piece::Stall) => {
                    // Put back for the next poll: only a cut from outside ends it.
                    this.pieces.push_front(Piece::Stall);
                    return Poll::Pending;
                }
                None if this.finished => return this.end(None),
                None => match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => this.pieces.extend(this.effect.feed(data)),
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    },
                    Some(Err(error)) => return this.end(Some(error)),
                    None => {
                        this.finished = true;
                        this.pieces.extend(this.effect.finish());
                    }
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let untouched = matches!(self.effect, Effect::None) && self.pieces.is_empty();
        self.ended || (untouched && self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self.effect {
            Effect::None if self.pieces.is_empty() => self.inner.size_hint(),
            Effect::None
            | Effect::Limit { .. }
            | Effect::Drip { .. }
            | Effect::Lines(_)
            | Effect::Instead(_) => SizeHint::default(),
        }
    }
}

fn broken() -> BoxError {
    Box::new(io::Error::new(io::ErrorKind::ConnectionReset, "cut by a fault"))
}
