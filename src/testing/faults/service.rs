//! Puts faults in front of a service.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::{sync::Mutex, time};
use tower::{BoxError, Layer, Service, ServiceExt};

use super::{Action, FaultBody, Faults, OpenGuard, Reply, RequestInfo, RuleId, body::Limit};

/// Puts [`Faults`] in front of a service.
#[derive(Clone, Debug)]
pub struct FaultLayer {
    faults: Faults,
}

impl FaultLayer {
    pub(super) fn new(faults: Faults) -> Self {
        Self { faults }
    }
}

impl<S> Layer<S> for FaultLayer {
    type Service = FaultService<S>;

    fn layer(&self, inner: S) -> FaultService<S> {
        FaultService { inner: Arc::new(Mutex::new(inner)), faults: self.faults.clone() }
    }
}

/// A service with [`Faults`] in front.
#[derive(Debug)]
pub struct FaultService<S> {
    /// Called only once a request is let through, and kube's own service cannot be cloned.
    inner: Arc<Mutex<S>>,
    faults: Faults,
}

impl<S> Clone for FaultService<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), faults: self.faults.clone() }
    }
}

impl<S, B> Service<Request<Body>> for FaultService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<FaultBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { inner, faults } = self.clone();
        Box::pin(async move {
            let info = RequestInfo::new(request.method(), request.uri());
            let (acting, open) = faults.enter(info);
            let cut = open.cut.clone();
            let answer = answer(inner, &faults, acting, request, open);
            cut.run_until_cancelled(answer).await.unwrap_or_else(|| Err("cut by a fault".into()))
        })
    }
}

async fn answer<S, B>(
    inner: Arc<Mutex<S>>,
    faults: &Faults,
    acting: Option<(RuleId, Action)>,
    request: Request<Body>,
    open: OpenGuard,
) -> Result<Response<FaultBody>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut limit = None;
    let mut edit = None;
    match acting {
        None => {}
        Some((_, Action::Reply(reply))) => return Ok(respond(reply)),
        Some((_, Action::Fail(message))) => return Err(message.into()),
        Some((_, Action::Delay(delay))) => time::sleep(delay).await,
        Some((id, Action::Hang)) => {
            faults.removed(id).await;
        }
        Some((_, Action::Cut { after_bytes: bytes })) => {
            limit = Some(Limit { bytes, clean: false })
        }
        Some((_, Action::End { after_bytes: bytes })) => limit = Some(Limit { bytes, clean: true }),
        Some((_, Action::Edit(change))) => edit = Some(change),
    }
    let response = {
        let mut inner = inner.lock().await;
        inner.ready().await.map_err(Into::into)?.call(request)
    };
    let response = response.await.map_err(Into::into)?;
    open.answered();
    let (mut head, body) = response.into_parts();
    if limit.is_some() || edit.is_some() {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let Some(edit) = edit else {
        return Ok(Response::from_parts(head, FaultBody::new(body, limit, open)));
    };
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    let mut value = serde_json::from_slice(&body)?;
    edit(&mut value);
    Ok(Response::from_parts(head, FaultBody::full(value.to_string().into())))
}

fn respond(reply: Reply) -> Response<FaultBody> {
    let code = reply.status_code();
    let mut response = Response::new(FaultBody::full(reply.body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(&reply.content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    if let Some(seconds) = reply.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, pin::pin, time::Duration};

    use futures::poll;
    use http_body_util::Full;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Rule, Verb};

    type Answer = Result<Response<FaultBody>, BoxError>;

    /// Asks a server whose every answer is the same JSON.
    fn get(faults: &Faults, uri: &str) -> impl Future<Output = Answer> + use<> {
        let server = tower::service_fn(async |_| {
            let body = Full::new(Bytes::from_static(br#"{"items":[1,2,3]}"#));
            Ok::<_, Infallible>(Response::new(body))
        });
        faults.layer().layer(server).call(Request::get(uri).body(Body::empty()).unwrap())
    }

    async fn body(answer: Answer) -> Result<Bytes, BoxError> {
        Ok(answer?.into_body().collect().await?.to_bytes())
    }

    #[tokio::test]
    async fn a_request_that_no_rule_matches_passes_and_is_recorded() {
        let faults = Faults::default();
        let rule = faults.add(Rule::new(Action::Fail("down".to_owned())).verb(Verb::Watch));

        let passed = body(get(&faults, "/api/v1/pods").await).await.unwrap();

        assert_eq!(passed, r#"{"items":[1,2,3]}"#);
        assert_eq!(faults.hits(rule), 0);
        assert_eq!(faults.seen()[0].resource, "pods");
        assert!(faults.open().is_empty());
    }

    #[tokio::test]
    async fn a_reply_has_code_reason_and_retry_after() {
        let faults = Faults::default();
        let reply = Reply::status(429, "TooManyRequests", "later").retry_after(1);
        let rule = faults.add(Rule::new(Action::Reply(reply)).times(1));

        let answer = get(&faults, "/api/v1/pods").await.unwrap();

        assert_eq!((answer.status().as_u16(), faults.hits(rule)), (429, 1));
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
        let status: Value = serde_json::from_slice(&body(Ok(answer)).await.unwrap()).unwrap();
        assert_eq!(status["reason"], "TooManyRequests");
        assert_eq!(get(&faults, "/api/v1/pods").await.unwrap().status(), 200);
    }

    #[tokio::test]
    async fn a_cut_breaks_and_an_end_ends_after_so_many_bytes() {
        let faults = Faults::default();
        let cut = faults.add(Rule::new(Action::Cut { after_bytes: 5 }));
        let mut broken = get(&faults, "/api/v1/pods").await.unwrap().into_body();
        assert_eq!(broken.frame().await.unwrap().unwrap().into_data().unwrap(), r#"{"ite"#);
        assert!(broken.frame().await.unwrap().is_err());
        assert!(broken.frame().await.is_none());

        faults.remove(cut);
        faults.add(Rule::new(Action::End { after_bytes: 5 }));
        assert_eq!(body(get(&faults, "/api/v1/pods").await).await.unwrap(), r#"{"ite"#);
    }

    #[tokio::test]
    async fn a_hanging_request_goes_on_when_its_rule_is_removed() {
        let faults = Faults::default();
        let rule = faults.add(Rule::new(Action::Hang));
        let mut request = pin!(get(&faults, "/api/v1/pods"));
        assert!(poll!(&mut request).is_pending());
        assert!(!faults.open()[0].answered);

        faults.remove(rule);

        request.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_request_is_sent_later() {
        let faults = Faults::default();
        faults.add(Rule::new(Action::Delay(Duration::from_secs(60))));
        let start = time::Instant::now();

        get(&faults, "/api/v1/pods").await.unwrap();

        assert_eq!(start.elapsed(), Duration::from_secs(60));
    }

    #[tokio::test]
    async fn an_edit_changes_what_the_server_answered() {
        let faults = Faults::default();
        faults.add(Rule::new(Action::edit(|value| value["items"] = json!([]))));

        let edited = body(get(&faults, "/api/v1/pods").await).await.unwrap();

        assert_eq!(edited, r#"{"items":[]}"#);
    }

    #[tokio::test]
    async fn an_open_answer_can_be_cut_from_outside() {
        let faults = Faults::default();
        let answer = get(&faults, "/api/v1/pods?watch=1").await.unwrap();
        assert!(faults.open()[0].answered);

        assert_eq!(faults.cut_open(|info| info.verb == Verb::Watch), 1);

        assert!(body(Ok(answer)).await.is_err());
        assert!(faults.open().is_empty());
    }

    #[tokio::test]
    async fn the_first_rule_that_acts_wins() {
        let faults = Faults::default();
        let first = faults.add(Rule::new(Action::Reply(Reply::text(404, "no"))).times(1));
        let second = faults.add(Rule::new(Action::Reply(Reply::text(503, "no"))));

        let codes = [get(&faults, "/apis").await, get(&faults, "/apis").await]
            .map(|it| it.unwrap().status());

        assert_eq!(codes, [404, 503]);
        assert_eq!((faults.hits(first), faults.hits(second)), (1, 1));
    }
}
