//! Server as a tower service, with streaming responses.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{self, Sleep};
use tower::{BoxError, Service};

use super::{
    call::{Call, CallResult, HttpReply},
    shared::{BodyItem, RequestGuard, SharedServer},
    watches::WatchId,
};

/// Service that answers requests of one user. Place it under [`kube::Client::new`], within layers
/// such as [`Faults`](crate::Faults) if needed.
#[derive(Clone, Debug)]
pub struct SimulatedService {
    shared: Arc<SharedServer>,
    user: Arc<str>,
}

impl SimulatedService {
    pub(super) fn new(shared: Arc<SharedServer>, user: &str) -> Self {
        Self { shared, user: user.into() }
    }
}

impl<B> Service<Request<B>> for SimulatedService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<SimulatedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { shared, user } = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let mut call = Call::new(&user, &head.method, &head.uri);
            let text = |name| text_of(&head.headers, name);
            call.accept = text(header::ACCEPT);
            call.content_type = text(header::CONTENT_TYPE);
            call.user_agent = text(header::USER_AGENT);
            call.if_none_match = text(header::IF_NONE_MATCH);
            let guard = shared.begin(&call);
            call.body = body.collect().await.map_err(Into::into)?.to_bytes();
            answer(shared, call, guard).await
        })
    }
}

async fn answer(
    shared: Arc<SharedServer>,
    mut call: Call,
    guard: RequestGuard,
) -> Result<Response<SimulatedBody>, BoxError> {
    let latency = shared.latency();
    if !latency.is_zero() {
        time::sleep(latency).await;
    }
    loop {
        guard.check_connection()?;
        match shared.respond(&call) {
            CallResult::Later(wait) => {
                time::sleep(wait).await;
                call.waited = true;
            }
            CallResult::Done(reply) => {
                guard.answered(reply.code);
                return Ok(response(reply));
            }
            CallResult::Watch(id) => {
                guard.answered(200);
                let watch = WatchBody { id, shared, guard, sleep: None };
                let mut response = Response::new(SimulatedBody(Inner::Watch(Box::new(watch))));
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                return Ok(response);
            }
        }
    }
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> String {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.collect::<Vec<_>>().join(",")
}

fn response(reply: HttpReply) -> Response<SimulatedBody> {
    let mut response = Response::new(SimulatedBody(Inner::Full(Some(reply.body))));
    *response.status_mut() = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    if !reply.content_type.is_empty() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    }
    if let Some(etag) = reply.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        headers.insert(header::ETAG, etag);
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    }
    for warning in &reply.warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            headers.append(header::WARNING, value);
        }
    }
    if let Some(seconds) = reply.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Body of a response: complete, or the events of a watch as they occur.
#[derive(Debug)]
pub struct SimulatedBody(Inner);

#[derive(Debug)]
enum Inner {
    Full(Option<Bytes>),
    Watch(Box<WatchBody>),
}

impl http_body::Body for SimulatedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Inner::Full(bytes) => {
                Poll::Ready(bytes.take().filter(|it| !it.is_empty()).map(Frame::data).map(Ok))
            }
            Inner::Watch(watch) => watch.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Inner::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Inner::Watch(_) => SizeHint::default(),
        }
    }
}

#[derive(Debug)]
struct WatchBody {
    id: WatchId,
    shared: Arc<SharedServer>,
    guard: RequestGuard,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl WatchBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Err(broken) = self.guard.check_connection() {
                return Poll::Ready(Some(Err(broken)));
            }
            let wait = match self.shared.next(self.id, context.waker()) {
                BodyItem::Line(line) => return Poll::Ready(Some(Ok(Frame::data(line)))),
                BodyItem::End => return Poll::Ready(None),
                BodyItem::Wait(wait) => wait,
            };
            // A new timer each time, since the next due time may have changed.
            let timer = time::sleep(wait.max(Duration::from_nanos(1)));
            let sleep = self.sleep.insert(Box::pin(timer));
            std::task::ready!(sleep.as_mut().poll(context));
        }
    }
}

impl Drop for WatchBody {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}
