//! Response bodies, which keep their place on a connection until they are read or dropped.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::{Error, connection::Slot, describe, pool::Pool};

/// The body of an answer of the API server.
pub struct ResponseBody {
    incoming: Incoming,
    host: Arc<str>,
    // Held for their drop: the stream's place on its connection, and the pool for HTTP/1.1.
    held: Option<Held>,
    deadline: Option<(Pin<Box<Sleep>>, Error)>,
}

/// What keeps the connection of a body open.
pub(super) enum Held {
    /// Its place on an HTTP/2 connection.
    Slot(#[expect(dead_code, reason = "held for its drop")] Slot),
    /// The pool, which ends its connections when it is dropped.
    Pool(#[expect(dead_code, reason = "held for its drop")] Arc<Pool>),
}

impl ResponseBody {
    /// A body that holds on to its connection until its end.
    pub(super) fn new(incoming: Incoming, host: Arc<str>, held: Held) -> Self {
        Self { incoming, host, held: Some(held), deadline: None }
    }

    /// Fails with `error` when it is not complete by then.
    pub(super) fn complete_by(mut self, deadline: Pin<Box<Sleep>>, error: Error) -> Self {
        self.deadline = Some((deadline, error));
        self
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => {
                self.held = None;
                Poll::Ready(Some(Err(Error::Broken {
                    host: self.host.to_string(),
                    message: describe(&error),
                })))
            }
            Poll::Ready(None) => {
                self.held = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Some((deadline, error)) = &mut self.deadline else { return Poll::Pending };
                deadline.as_mut().poll(context).map(|()| Some(Err(error.clone())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
