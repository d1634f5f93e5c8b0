//! Deadlines of requests.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use tokio::time::{Instant, timeout_at};
use tower::{BoxError, Service};

use super::{Error, Lane, TransportOptions, body::ResponseBody, lane::follows_a_log};

/// Ends every request that is not answered in time; without a deadline, a black hole looks like a
/// slow server for many minutes. For a watch the deadline applies only to its head; its informer
/// judges how long it may be silent afterwards. The body of a read may take longer while it keeps
/// arriving, up to a limit: a long list whose objects are converted one by one takes its time.
///
/// A followed log has no deadline: a container may print nothing for days, and its kubelet sends
/// the head with the first line. The pings of the connection detect a dead server.
#[derive(Clone, Debug)]
pub(super) struct Deadlines<S> {
    inner: S,
    requests: Duration,
    reads: Duration,
    leases: Duration,
}

impl<S> Deadlines<S> {
    pub(super) fn new(inner: S, options: &TransportOptions) -> Self {
        Self {
            inner,
            requests: options.request_timeout,
            reads: options.read_timeout,
            leases: options.lease_timeout,
        }
    }
}

impl<S, B> Service<Request<B>> for Deadlines<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if follows_a_log(&request) {
            return Box::pin(self.inner.call(request));
        }
        let lane = Lane::of(&request);
        let after = match lane {
            Lane::Requests | Lane::Watches => self.requests,
            Lane::Leases => self.leases,
        };
        let is_read = lane == Lane::Requests && request.method() == Method::GET;
        let reads = self.reads.max(after);
        let started = Instant::now();
        let deadline = started + after;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let late = move |after| Error::Deadline { method, path, after };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = match timeout_at(deadline, answer).await {
                Ok(response) => response?,
                Err(_) => return Err(late(after).into()),
            };
            Ok(match lane {
                Lane::Watches => response,
                Lane::Requests if is_read => response.map(|body| {
                    let end = started + reads;
                    body.arriving(after, late.clone()(after), end, late(reads))
                }),
                Lane::Requests | Lane::Leases => {
                    response.map(|body| body.complete_by(deadline, late(after)))
                }
            })
        })
    }
}
