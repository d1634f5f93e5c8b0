//! Tower layer and service that apply faults.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use tokio::{sync::Mutex, time};
use tower::{BoxError, Layer, Service, ServiceExt};

use super::{
    Acting, Action, FaultBody, Faults, OpenGuard, Reply, RequestInfo, action::make_partial,
    body::Hold, effect::Effect,
};

/// Layer that puts [`Faults`] in front of a service.
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

/// Service with [`Faults`] in front.
#[derive(Debug)]
pub struct FaultService<S> {
    /// Locked only once a request is admitted, since kube's own service cannot be cloned.
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
    acting: Option<Acting>,
    request: Request<Body>,
    open: OpenGuard,
) -> Result<Response<FaultBody>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let acting = acting.as_ref();
    let action = acting.map(|it| &it.action);
    if let Some(response) = before_the_server(faults, acting, &open).await? {
        return Ok(response);
    }
    let response = {
        let mut inner = inner.lock().await;
        inner.ready().await.map_err(Into::into)?.call(request)
    };
    let response = response.await.map_err(Into::into)?;
    match action {
        Some(Action::Withhold) => {
            open.happened();
            faults.released(acting).await;
        }
        Some(Action::Lose) => {
            open.happened();
            return Err("the answer was lost by a fault".into());
        }
        Some(Action::Instead(reply)) => {
            open.happened();
            return Ok(respond(reply.clone()));
        }
        Some(_) | None => {}
    }
    open.answered();
    let (mut head, body) = response.into_parts();
    let edit = action.filter(|it| matches!(it, Action::Edit(_) | Action::Partial { .. }));
    if let Some(edit) = edit {
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        let body = edited(edit, &body, &open)?;
        head.headers.remove(header::CONTENT_LENGTH);
        return Ok(Response::from_parts(head, FaultBody::full(body)));
    }
    if head.status.is_success() && faults.remembers(&open) {
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        faults.remember(&open, &head, &body);
        let body = Full::new(body);
        return Ok(Response::from_parts(
            head,
            FaultBody::new(body, Effect::None, Hold::None, open),
        ));
    }
    let effect = acting.map_or(Effect::None, |it| Effect::of(&it.action, it.at_most));
    if !effect.keeps_length() {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let held = match action {
        Some(Action::Behind { group, resource, at_most }) => {
            let (faults, at_most) = (faults.clone(), *at_most);
            let (group, resource) = (group.clone(), resource.clone());
            Hold::Armed(Box::new(move || Box::pin(faults.behind(group, resource, at_most))))
        }
        Some(_) | None => Hold::None,
    };
    Ok(Response::from_parts(head, FaultBody::new(body, effect, held, open)))
}

/// Delays a request, or answers it in place of the server.
async fn before_the_server(
    faults: &Faults,
    acting: Option<&Acting>,
    open: &OpenGuard,
) -> Result<Option<Response<FaultBody>>, BoxError> {
    match acting.map(|it| &it.action) {
        Some(Action::Reply(reply)) => {
            open.happened();
            return Ok(Some(respond(reply.clone())));
        }
        Some(Action::Fail(message)) => {
            open.happened();
            return Err(message.clone().into());
        }
        Some(Action::Delay(delay)) => {
            open.happened();
            time::sleep(*delay).await;
        }
        Some(Action::Hang) => {
            open.happened();
            faults.released(acting).await;
        }
        Some(Action::Stale) => {
            if let Some((head, body)) = acting.and_then(|it| faults.remembered(it.rule, &open.info))
            {
                open.happened();
                return Ok(Some(Response::from_parts(head, FaultBody::full(body))));
            }
        }
        None
        | Some(
            Action::Cut { .. }
            | Action::End { .. }
            | Action::Stall { .. }
            | Action::Drip { .. }
            | Action::Repeat { .. }
            | Action::Garbage { .. }
            | Action::Behind { .. }
            | Action::Partial { .. }
            | Action::Withhold
            | Action::Lose
            | Action::Instead(_)
            | Action::Edit(_),
        ) => {}
    }
    Ok(None)
}

/// Returns a JSON body as the action changes it.
fn edited(action: &Action, body: &[u8], open: &OpenGuard) -> Result<Bytes, serde_json::Error> {
    let mut value = serde_json::from_slice(body)?;
    let changed = if let Action::Partial { missing, stale } = action {
        make_partial(&mut value, missing, stale)
    } else if let Action::Edit(edit) = action {
        edit(&mut value);
        true
    } else {
        false
    };
    if changed {
        open.happened();
    }
    Ok(value.to_string().into())
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
    use serde_json::{Value, json};

    use super::*;
    use crate::{Rule, Verb};

    type FaultyResponse = Result<Response<FaultBody>, BoxError>;

    /// Sends a request to a server whose every response is the same JSON.
    fn get(faults: &Faults, uri: &str) -> impl Future<Output = FaultyResponse> + use<> {
        let server = tower::service_fn(async |_| {
            let body = Full::new(Bytes::from_static(br#"{"items":[1,2,3]}"#));
            Ok::<_, Infallible>(Response::new(body))
        });
        faults.layer().layer(server).call(Request::get(uri).body(Body::empty()).unwrap())
    }

    async fn body(answer: FaultyResponse) -> Result<Bytes, BoxError> {
        Ok(answer?.into_body().collect().await?.to_bytes())
    }

    #[tokio::test]
    async fn unmatched_request_passes_and_is_recorded() {
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
    async fn a_hanging_request_resumes_when_its_rule_is_removed() {
        let faults = Faults::default();
        let rule = faults.add(Rule::new(Action::Hang));
        let mut request = pin!(get(&faults, "/api/v1/pods"));
        assert!(poll!(&mut request).is_pending());
        assert!(!faults.open()[0].answered);

        faults.remove(rule);

        request.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_request_resumes_at_the_limit_of_its_rule() {
        let (faults, long) = (Faults::default(), Duration::from_secs(60));
        for action in [Action::Hang, Action::Withhold] {
            let rule = faults.add(Rule::new(action).at_most(long));
            let start = time::Instant::now();

            get(&faults, "/api/v1/pods").await.unwrap();

            assert_eq!(start.elapsed(), long);
            faults.remove(rule);
        }
        faults.add(Rule::new(Action::Stall { after_bytes: 2 }).at_most(long));
        let start = time::Instant::now();
        body(get(&faults, "/api/v1/pods").await).await.unwrap_err();
        assert_eq!(start.elapsed(), long);
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
    async fn an_open_response_can_be_cut_from_outside() {
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

    /// Sends a request to a server that counts its requests, and answers a watch with three events.
    fn response_to(faults: &Faults, uri: &str) -> impl Future<Output = FaultyResponse> + use<> {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(faults.seen().len()));
        let server = tower::service_fn(move |request: Request<Body>| {
            let count = count.clone();
            async move {
                let body = match request.uri().query() {
                    Some("watch=1") => "a\nb\nc\n".to_owned(),
                    _ => format!("{}", count.fetch_add(1, std::sync::atomic::Ordering::SeqCst)),
                };
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
            }
        });
        faults.layer().layer(server).call(Request::get(uri).body(Body::empty()).unwrap())
    }

    #[tokio::test]
    async fn an_old_list_is_repeated() {
        let faults = Faults::default();
        let rule = faults.add(Rule::new(Action::Stale).skip(1).verb(Verb::List));
        let list = async |uri: &str| body(response_to(&faults, uri).await).await.unwrap();

        assert_eq!(list("/api/v1/pods").await, "0");
        assert_eq!(list("/api/v1/pods?resourceVersion=5").await, "0", "{:?}", faults.fired());
        // No older response exists for these.
        assert_eq!(list("/api/v1/nodes").await, "2");
        assert_eq!(faults.fired().len(), 1);
        faults.remove(rule);
        assert_eq!(list("/api/v1/pods").await, "3");
    }

    #[tokio::test]
    async fn a_fault_is_logged_after_it_has_happened() {
        let faults = Faults::default();
        let rule = faults.add(Rule::new(Action::Cut { after_bytes: 3 }).every(2));
        faults.add(Rule::new(Action::duplicate(2)).verb(Verb::Watch));

        // The body is too short to be cut.
        body(response_to(&faults, "/api/v1/pods").await).await.unwrap();
        assert_eq!((faults.hits(rule), faults.fired().len()), (1, 0));
        let twice = body(response_to(&faults, "/api/v1/pods?watch=1").await).await.unwrap();
        body(response_to(&faults, "/api/v1/pods?watch=1").await).await.unwrap_err();

        assert_eq!(twice, "a\nb\nb\nc\n");
        let fired: Vec<_> = faults.fired().iter().map(|it| (it.action, it.number)).collect();
        assert_eq!(fired, [("repeat", 1), ("cut", 3)]);
        let text = faults.fired()[1].to_string();
        assert_eq!(text, "cut of request 3: Watch /api/v1/pods");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_drips_and_another_stalls_until_it_is_cut() {
        let faults = Faults::default();
        let every = Duration::from_secs(1);
        faults.add(Rule::new(Action::Drip { bytes: 4, every }).times(1));
        faults.add(Rule::new(Action::Stall { after_bytes: 2 }));
        let start = time::Instant::now();

        assert_eq!(body(response_to(&faults, "/a?watch=1").await).await.unwrap(), "a\nb\nc\n");
        assert_eq!(start.elapsed(), every);

        let mut stalled = response_to(&faults, "/a?watch=1").await.unwrap().into_body();
        assert_eq!(stalled.frame().await.unwrap().unwrap().into_data().unwrap(), "a\n");
        time::timeout(every, stalled.frame()).await.unwrap_err();
        faults.cut_open(|_| true);
        stalled.frame().await.unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn response_of_the_server_is_delayed_or_lost() {
        let faults = Faults::default();
        let rule = faults.add(Rule::new(Action::Withhold));
        let mut request = pin!(response_to(&faults, "/api/v1/pods"));
        assert!(poll!(&mut request).is_pending());
        assert_eq!(faults.fired().len(), 1);
        faults.remove(rule);
        assert_eq!(body(request.await).await.unwrap(), "0");

        faults.add(Rule::new(Action::Lose));

        assert!(
            response_to(&faults, "/api/v1/pods").await.unwrap_err().to_string().contains("lost")
        );
    }

    #[tokio::test]
    async fn request_with_a_replaced_response_is_executed() {
        let faults = Faults::default();
        let reply = Reply::status(504, "Timeout", "the server did not answer");
        let rule = faults.add(Rule::new(Action::Instead(reply)));
        let (carry_out, mut carried_out) = tokio::sync::mpsc::unbounded_channel();
        let server = tower::service_fn(move |request: Request<Body>| {
            carry_out.send(request.uri().path().to_owned()).unwrap();
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))))
        });
        let request = Request::post("/api/v1/pods").body(Body::empty()).unwrap();

        let answer = faults.layer().layer(server).call(request).await.unwrap();

        assert_eq!((answer.status().as_u16(), faults.hits(rule)), (504, 1));
        assert_eq!(carried_out.recv().await.as_deref(), Some("/api/v1/pods"));
        assert_eq!(faults.fired().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_a_type_are_delayed_behind_those_of_another() {
        let faults = Faults::default();
        let at_most = Duration::from_secs(60);
        let behind = |resource: &str| Action::Behind {
            group: String::new(),
            resource: resource.to_owned(),
            at_most,
        };
        faults.add(Rule::new(behind("nodes")).resource("", "pods"));
        let pods = response_to(&faults, "/api/v1/pods?watch=1").await.unwrap();
        let mut pods = pin!(body(Ok(pods)));
        assert!(poll!(&mut pods).is_pending());

        body(response_to(&faults, "/api/v1/nodes?watch=1").await).await.unwrap();

        let start = time::Instant::now();
        assert_eq!(pods.await.unwrap(), "a\nb\nc\n");
        assert_eq!(start.elapsed(), Duration::ZERO);
        // Without such an event the held ones resume.
        body(response_to(&faults, "/api/v1/pods?watch=1").await).await.unwrap();
        assert_eq!(start.elapsed(), at_most);
    }
}
