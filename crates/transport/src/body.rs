//! Response bodies, which keep their place on a connection until they are read or dropped.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    Error,
    connection::{ConnectionOwner, Slot},
    error::describe,
};

/// Body of a response of the API server.
pub struct ResponseBody {
    incoming: Incoming,
    host: Arc<str>,
    // Dropped with the body: the stream's place on its connection, or the pool for HTTP/1.1.
    held: Option<ConnectionHold>,
    deadline: Option<Deadline>,
}

/// Deadline of a body.
struct Deadline {
    // Fires when the body must be complete, or when more of it must have arrived.
    sleep: Pin<Box<Sleep>>,
    error: Error,
    progress: Option<Arrival>,
}

/// Limits of a body that may take longer while it keeps arriving.
struct Arrival {
    /// Longest pause between two frames.
    pause: Duration,
    end: Instant,
    // Error at `end`.
    error: Error,
    /// Arrival of the data that the reader received last, until it polls for more.
    arrived: Option<Instant>,
}

/// Owner of a body's connection.
pub(super) enum ConnectionHold {
    /// Place of the stream on an HTTP/2 connection.
    Slot(#[expect(dead_code, reason = "held for its drop")] Slot),
    /// Pool, which ends its connections when it is dropped.
    Pool(#[expect(dead_code, reason = "held for its drop")] ConnectionOwner),
}

impl ResponseBody {
    /// Creates a body that holds its connection until its end.
    pub(super) fn new(incoming: Incoming, host: Arc<str>, held: ConnectionHold) -> Self {
        Self { incoming, host, held: Some(held), deadline: None }
    }

    /// Makes the body fail with `error` if it is not complete at `end`.
    pub(super) fn complete_by(mut self, end: Instant, error: Error) -> Self {
        self.deadline = Some(Deadline { sleep: Box::pin(sleep_until(end)), error, progress: None });
        self
    }

    /// Makes the body fail with `paused` if nothing arrives for `pause`, and with `late` if it is
    /// not complete at `end`, however steadily it arrives. Time until the reader polls for more does
    /// not count.
    pub(super) fn arriving(
        mut self,
        pause: Duration,
        paused: Error,
        end: Instant,
        late: Error,
    ) -> Self {
        self.deadline = Some(Deadline::arriving(pause, paused, end, late));
        self
    }
}

impl Deadline {
    /// Deadline of a body whose head has arrived.
    fn arriving(pause: Duration, paused: Error, end: Instant, late: Error) -> Self {
        let now = Instant::now();
        let sleep = Box::pin(sleep_until(end.min(now + pause)));
        let progress = Arrival { pause, end, error: late, arrived: Some(now) };
        Self { sleep, error: paused, progress: Some(progress) }
    }

    /// Restarts the clocks, because the reader polls for more.
    fn polled(&mut self) {
        let Some(progress) = &mut self.progress else { return };
        let Some(arrived) = progress.arrived.take() else { return };
        let now = Instant::now();
        progress.end += now - arrived;
        self.sleep.as_mut().reset(progress.end.min(now + progress.pause));
    }

    /// Records that data has arrived before its deadline.
    fn arrived(&mut self) -> Result<(), Error> {
        let Some(progress) = &mut self.progress else { return Ok(()) };
        let now = Instant::now();
        if now >= progress.end {
            return Err(progress.error.clone());
        }
        progress.arrived = Some(now);
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        let error = match &self.progress {
            Some(progress) if self.sleep.deadline() == progress.end => &progress.error,
            Some(_) | None => &self.error,
        };
        self.sleep.as_mut().poll(context).map(|()| error.clone())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(deadline) = &mut self.deadline {
            deadline.polled();
        }
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let arrived = self.deadline.as_mut().map_or(Ok(()), Deadline::arrived);
                Poll::Ready(Some(arrived.map(|()| frame)))
            }
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
                let Some(deadline) = &mut self.deadline else { return Poll::Pending };
                deadline.poll(context).map(|error| Some(Err(error)))
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{advance, timeout};

    use super::*;

    /// Deadline with 30 s for a pause and 300 s in all.
    fn deadline() -> Deadline {
        let error = |message: &str| Error::Credentials { message: message.to_owned() };
        let end = Instant::now() + Duration::from_secs(300);
        Deadline::arriving(Duration::from_secs(30), error("paused"), end, error("late"))
    }

    /// Time for which the reader waits before the deadline ends the body.
    async fn wait(deadline: &mut Deadline) -> (u64, String) {
        let begun = Instant::now();
        deadline.polled();
        let error = poll_fn(|context| deadline.poll(context)).await;
        (begun.elapsed().as_secs(), error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn time_between_reads_does_not_count() {
        let mut deadline = deadline();
        for _ in 0..9 {
            // The reader is busy, then it waits.
            advance(Duration::from_secs(1000)).await;
            deadline.polled();
            let pause = poll_fn(|context| deadline.poll(context));
            timeout(Duration::from_secs(29), pause).await.unwrap_err();
            deadline.arrived().unwrap();
        }

        let (waited, error) = wait(&mut deadline).await;

        assert_eq!(waited, 30, "{error}");
        assert!(error.ends_with("paused"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_keeps_arriving_ends_at_the_limit() {
        let mut deadline = deadline();
        for _ in 0..29 {
            deadline.polled();
            advance(Duration::from_secs(10)).await;
            deadline.arrived().unwrap();
        }

        let (waited, error) = wait(&mut deadline).await;

        assert_eq!(waited, 10, "{error}");
        assert!(error.ends_with("late"), "{error}");
    }
}
