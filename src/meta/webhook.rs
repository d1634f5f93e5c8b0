//! Webhook: a hook that is called over HTTP.
//!
//! A call is one POST and one response: no redirects, no retries, no content encoding, and no byte
//! beyond the budget. Success is status 200, as in Metacontroller. If responses are kept by their
//! ETag, 304 and 412 are success too, provided that the request named one.

mod connections;
mod etag;
mod handshake;
mod retry_after;

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, rt::Executor};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use self::{
    connections::{Connections, HttpClient},
    etag::{EtagCache, Kept},
    retry_after::retry_after,
};
use super::{
    AnswerBudget, ControllerBudget, EtagRule, Hook, HookError, HookSeries,
    budget::{Reservation, UNRESERVED_BYTES},
};
use crate::{informer::ObjectKey, redaction, transport::user_agent};

/// Default limit of a response in bytes, which is that of the default budget.
pub const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// Longest excerpt of an error body, in bytes.
const EXCERPT_BYTES: usize = 256;

/// Hook at a URL.
pub struct Webhook {
    url: Uri,
    timeout: Duration,
    max_response_bytes: usize,
    error_excerpts: bool,
    user_agent: HeaderValue,
    budget: ControllerBudget,
    series: Option<HookSeries>,
    etags: Option<EtagCache>,
    connections: Mutex<Option<Connections>>,
}

/// Parent of a call, and the kept response that the hook may confirm.
struct About<'a> {
    etags: &'a EtagCache,
    parent: &'a ObjectKey,
    uid: &'a str,
    kept: Option<Kept>,
}

impl Webhook {
    /// Returns a hook at this URL; `timeout` bounds a whole exchange.
    pub fn new(url: Uri, timeout: Duration) -> Self {
        Self {
            url,
            timeout,
            max_response_bytes: usize::MAX,
            error_excerpts: false,
            user_agent: user_agent::library(),
            budget: AnswerBudget::default().controller(""),
            series: None,
            etags: None,
            connections: Mutex::new(None),
        }
    }

    /// Sets the limit of a response in bytes; by default as the budget allows, which is
    /// [`MAX_RESPONSE_BYTES`] for a default budget.
    #[must_use]
    pub fn max_response_bytes(mut self, limit: usize) -> Self {
        self.max_response_bytes = limit;
        self
    }

    /// Includes the first bytes of an error body in [`HookError::Status`], which is shown in
    /// Events, statuses and logs. Off by default, since the body may hold secrets.
    #[must_use]
    pub fn error_excerpts(mut self, shown: bool) -> Self {
        self.error_excerpts = shown;
        self
    }

    /// Sends this `User-Agent`, such as [`Transport::user_agent`](crate::transport::Transport::user_agent),
    /// which names the embedder's product; the library alone by default.
    #[must_use]
    pub fn user_agent(mut self, user_agent: HeaderValue) -> Self {
        self.user_agent = user_agent;
        self
    }

    /// Holds answers within this share of a process's budget, instead of a budget of its own.
    #[must_use]
    pub fn budget(mut self, budget: ControllerBudget) -> Self {
        if let Some(etags) = &mut self.etags {
            etags.set_budget(budget.clone());
        }
        self.budget = budget;
        self
    }

    /// Counts calls in these metrics.
    #[must_use]
    pub fn series(mut self, series: HookSeries) -> Self {
        self.series = Some(series);
        self
    }

    /// Keeps responses that have an ETag, one for each parent, until the hook is released. A
    /// request names the tag in `If-None-Match`, and the hook may confirm the response with status
    /// 304 or 412 instead of sending it again.
    #[must_use]
    pub fn etag(mut self, rule: Option<EtagRule>) -> Self {
        self.etags = rule.map(|rule| EtagCache::new(rule, self.budget.clone()));
        self
    }

    fn client(&self) -> Result<HttpClient, HookError> {
        let mut connections = self.connections.lock();
        if let Some(connections) = &*connections {
            return Ok(connections.client.clone());
        }
        let alive = self.series.as_ref().map(HookSeries::tasks);
        let new = connections.insert(Connections::new(&self.url, alive)?);
        // Among the connections' tasks, so that it ends when the hook is released.
        if let Some(etags) = &self.etags
            && let Some(period) = etags.sweep_period()
        {
            new.tasks.execute(etags.clone().sweep_every(period));
        }
        Ok(new.client.clone())
    }

    async fn ask(&self, about: Option<About<'_>>, request: Bytes) -> Result<Bytes, HookError> {
        let observation = self.series.as_ref().map(HookSeries::begin);
        let deadline = Instant::now().checked_add(self.timeout);
        let (status, answer) = timeout(self.timeout, self.exchange(about, request, deadline))
            .await
            .unwrap_or((None, Err(HookError::Timeout(self.timeout))));
        if let Some(observation) = observation {
            observation.end(status);
        }
        answer
    }

    async fn exchange(
        &self,
        about: Option<About<'_>>,
        request: Bytes,
        deadline: Option<Instant>,
    ) -> (Option<StatusCode>, Result<Bytes, HookError>) {
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => return (None, Err(error)),
        };
        let mut builder = Request::builder()
            .method(Method::POST)
            .uri(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::ACCEPT_ENCODING, "identity")
            .header(header::USER_AGENT, self.user_agent.clone());
        if let Some(kept) = about.as_ref().and_then(|about| about.kept.as_ref()) {
            builder = builder.header(header::IF_NONE_MATCH, kept.tag.clone());
        }
        let request = match builder.body(Full::new(request)) {
            Ok(request) => request,
            Err(error) => return (None, Err(HookError::Transport(error.to_string()))),
        };
        match client.request(request).await {
            Ok(response) => (Some(response.status()), self.read(about, response, deadline).await),
            Err(error) => {
                let message = handshake::explain(&error);
                let message = message.unwrap_or_else(|| redaction::error(&error));
                (None, Err(HookError::Transport(message)))
            }
        }
    }

    async fn read(
        &self,
        about: Option<About<'_>>,
        response: Response<Incoming>,
        deadline: Option<Instant>,
    ) -> Result<Bytes, HookError> {
        let (head, body) = response.into_parts();
        let encoding = head.headers.get(header::CONTENT_ENCODING);
        let encoding = encoding.map(|encoding| String::from_utf8_lossy(encoding.as_bytes()));
        match (head.status, about) {
            (StatusCode::OK, about) => {
                if let Some(encoding) = encoding
                    && !encoding.eq_ignore_ascii_case("identity")
                {
                    return Err(HookError::Encoded(known_coding(&encoding).to_owned()));
                }
                let body = self.read_body(body, deadline).await?;
                if let Some(About { etags, parent, uid, .. }) = about {
                    etags.answered(parent, uid, &head.headers, &body, Instant::now());
                }
                Ok(body)
            }
            // HTTP specifies 412 for a request that is not a GET.
            (
                status @ (StatusCode::NOT_MODIFIED | StatusCode::PRECONDITION_FAILED),
                Some(About { kept, .. }),
            ) => {
                // A short body is read, so that the connection can be reused.
                drop(read_excerpt(body).await);
                // The response that the request named, even if it was removed meanwhile.
                let code = status.as_u16();
                kept.map(|kept| kept.body).ok_or(HookError::NothingToConfirm { code })
            }
            (StatusCode::TOO_MANY_REQUESTS, _) => {
                let value = head.headers.get(header::RETRY_AFTER);
                let value = value.and_then(|value| value.to_str().ok());
                Err(HookError::Busy(retry_after(value, Timestamp::now())))
            }
            (status, _) => {
                // Read even if it is not shown, so that the connection can be reused.
                let excerpt = read_excerpt(body).await;
                let body = if self.error_excerpts { excerpt } else { String::new() };
                Err(HookError::Status { code: status.as_u16(), body })
            }
        }
    }

    /// Reads a response within the budget. Nothing is read while the reservation waits, so that
    /// flow control also pauses the hook.
    async fn read_body(
        &self,
        mut body: Incoming,
        deadline: Option<Instant>,
    ) -> Result<Bytes, HookError> {
        let limit = self.max_response_bytes.min(self.budget.limits().answer);
        // A declared length is refused or reserved before a byte is read.
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > limit {
            return Err(HookError::TooLarge { limit });
        }
        // A body is not longer than it declares. Without a declared length it may reach the limit.
        let most = if body.size_hint().exact().is_some() { declared } else { limit };
        let mut reservation = None;
        if declared > UNRESERVED_BYTES {
            reservation = Some(self.reserve(most, deadline).await?);
        }
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| HookError::Transport(redaction::error(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len().saturating_add(data.len());
            if length > limit {
                return Err(HookError::TooLarge { limit });
            }
            if length > UNRESERVED_BYTES && reservation.is_none() {
                reservation = Some(self.reserve(most, deadline).await?);
            }
            if length > bytes.capacity() {
                // Capacity is doubled, but not beyond the reservation.
                let capacity = length.max(bytes.len().saturating_mul(2)).min(most.max(length));
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        bytes.shrink_to_fit();
        Ok(match reservation {
            Some(reservation) => reservation.hold(bytes),
            None => bytes.into(),
        })
    }

    async fn reserve(
        &self,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<Reservation, HookError> {
        let reserved = self.budget.reserve(bytes);
        let reserved = match deadline {
            Some(deadline) => timeout_at(deadline, reserved).await.ok().flatten(),
            None => reserved.await,
        };
        reserved.ok_or(HookError::NoBudget { bytes, waited: self.timeout })
    }
}

impl Hook for Webhook {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        Box::pin(self.ask(None, request))
    }

    fn call_about<'a>(
        &'a self,
        parent: &'a ObjectKey,
        uid: &'a str,
        request: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, HookError>> {
        let about = self.etags.as_ref().map(|etags| {
            let kept = etags.get(parent, uid, Instant::now());
            About { etags, parent, uid, kept }
        });
        Box::pin(self.ask(about, request))
    }

    fn forget(&self, parent: &ObjectKey) {
        if let Some(etags) = &self.etags {
            etags.forget(parent);
        }
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        if let Some(etags) = &self.etags {
            etags.clear();
        }
        let connections = self.connections.lock().take();
        Box::pin(async move {
            if let Some(connections) = connections {
                connections.tasks.end().await;
            }
        })
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("url", &redaction::url(&self.url))
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Returns the first bytes of an error body, as far as it can be read.
async fn read_excerpt(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < EXCERPT_BYTES {
        let Some(Ok(frame)) = body.frame().await else { break };
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data[..data.len().min(EXCERPT_BYTES - bytes.len())]);
        }
    }
    redaction::text(&String::from_utf8_lossy(&bytes)).trim().to_owned()
}

/// Returns the name of a registered content coding; the header itself is not shown.
fn known_coding(coding: &str) -> &'static str {
    let registered = ["gzip", "br", "deflate", "zstd", "compress"];
    let known = registered.into_iter().find(|known| coding.eq_ignore_ascii_case(known));
    known.unwrap_or("another")
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
    };

    use super::*;
    use crate::{
        meta::AnswerLimits,
        transport::{Transport, TransportOptions},
    };

    /// Server that sends these bytes to its first request, then closes.
    struct Server {
        url: Uri,
        tasks: JoinSet<String>,
    }

    async fn server(answer: impl Into<Vec<u8>>, linger: bool) -> Server {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap()).parse().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{}") {
                let mut buffer = [0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                if read == 0 {
                    break;
                }
                request.extend_from_slice(&buffer[..read]);
            }
            // The client may close the connection before it has read everything.
            drop(stream.write_all(&answer).await);
            if linger {
                std::future::pending::<()>().await;
            }
            drop(stream.shutdown().await);
            String::from_utf8(request).unwrap()
        });
        Server { url, tasks }
    }

    async fn ask(answer: impl Into<Vec<u8>>) -> Result<Bytes, HookError> {
        let server = server(answer, false).await;
        Webhook::new(server.url.clone(), Duration::from_secs(5))
            .max_response_bytes(1000)
            .call(Bytes::from_static(b"{}"))
            .await
    }

    fn response(head: &str, body: &str) -> String {
        format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn status_200_is_success_and_the_request_is_json() {
        let mut server = server(response("200 OK", "{\"a\":1}"), false).await;
        let hook = Webhook::new(server.url.clone(), Duration::from_secs(5));

        let answer = hook.call(Bytes::from_static(b"{}")).await.unwrap();

        assert_eq!(&answer[..], b"{\"a\":1}");
        let request = server.tasks.join_next().await.unwrap().unwrap().to_lowercase();
        assert!(request.starts_with("post /sync http/1.1\r\n"), "{request}");
        assert!(request.contains("content-type: application/json\r\n"), "{request}");
        assert!(request.contains("accept-encoding: identity\r\n"), "{request}");
    }

    #[tokio::test]
    async fn request_names_the_embedders_product_before_the_library() {
        let sent = async |given: Option<HeaderValue>| {
            let mut server = server(response("200 OK", "{}"), false).await;
            let mut hook = Webhook::new(server.url.clone(), Duration::from_secs(5));
            if let Some(given) = given {
                hook = hook.user_agent(given);
            }
            hook.call(Bytes::from_static(b"{}")).await.unwrap();
            let request = server.tasks.join_next().await.unwrap().unwrap();
            let mut lines = request.lines().filter_map(|line| line.split_once(": "));
            let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("user-agent"));
            found.unwrap().1.to_owned()
        };
        let options = TransportOptions {
            product: Some("myoperator/1.0".to_owned()),
            ..TransportOptions::default()
        };
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let transport = Transport::new(config, options).unwrap();

        let alone = sent(None).await;
        let with_product = sent(Some(transport.user_agent().clone())).await;

        let (version, rest) = alone.split_once(' ').unwrap();
        assert_eq!(version, concat!("pilotlight/", env!("CARGO_PKG_VERSION")));
        assert!(rest.starts_with('(') && rest.contains('/') && rest.ends_with(')'), "{alone}");
        assert_eq!(with_product, format!("myoperator/1.0 {alone}"));
    }

    #[tokio::test]
    async fn endless_timeout_and_endless_times_of_kept_answers_are_none() {
        let endless = Some(Duration::MAX);
        let rule = EtagRule { lifetime: endless, sweep: endless };
        let server = server(response("200 OK\r\nETag: \"a\"", "{}"), true).await;
        let hook = Webhook::new(server.url.clone(), Duration::MAX).etag(Some(rule));
        let parent = ObjectKey::namespaced("ns", "a");

        hook.call_about(&parent, "u", Bytes::from_static(b"{}")).await.unwrap();

        let kept = hook.etags.as_ref().unwrap().get(&parent, "u", Instant::now());
        assert_eq!(&kept.unwrap().body[..], b"{}");
        hook.release().await;
    }

    #[tokio::test]
    async fn no_other_status_is_success() {
        for code in [201, 204, 302, 304, 400, 404, 412, 500, 503] {
            let head = format!("{code} Word\r\nLocation: http://127.0.0.1:1/");
            let body = if matches!(code, 204 | 304) { "" } else { "sorry" };
            let answer = ask(response(&head, body)).await;

            // The body may hold data of the request.
            assert_eq!(answer, Err(HookError::Status { code, body: String::new() }));
        }
    }

    #[tokio::test]
    async fn redirect_is_an_error_and_is_not_followed() {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target_url = format!("http://{}/", target.local_addr().unwrap());
        // A metadata service, plain http and a loop are treated like any other redirect.
        for location in [&target_url, "/sync", "http://169.254.169.254/latest/meta-data"] {
            for code in [301, 302, 303, 307, 308] {
                let answer =
                    ask(response(&format!("{code} Word\r\nLocation: {location}"), "")).await;

                assert_eq!(answer, Err(HookError::Status { code, body: String::new() }));
            }
        }
        let asked = timeout(Duration::from_millis(50), target.accept()).await;
        assert!(asked.is_err(), "somebody came by: {asked:?}");
    }

    #[tokio::test]
    async fn error_quotes_an_excerpt_only_if_it_is_enabled() {
        let body = format!("\u{1b}[31m{}", "x".repeat(5000));
        let server = server(response("500 Word", &body), false).await;
        let hook = Webhook::new(server.url.clone(), Duration::from_secs(5)).error_excerpts(true);

        let answer = hook.call(Bytes::from_static(b"{}")).await;

        let Err(HookError::Status { body, .. }) = answer else { panic!("no status") };
        // The escape sequence is removed, but counts among the bytes that are read.
        assert_eq!(body, "x".repeat(EXCERPT_BYTES - 5));
        let answer = ask(response("500 Word", "sorry")).await;
        assert_eq!(answer, Err(HookError::Status { code: 500, body: String::new() }));
    }

    #[tokio::test]
    async fn status_429_is_no_error() {
        let answer = ask(response("429 Busy\r\nRetry-After: 7", "")).await;

        assert_eq!(answer, Err(HookError::Busy(Duration::from_secs(7))));
    }

    #[tokio::test]
    async fn a_body_that_is_cut_is_an_error() {
        let answer = ask("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"children\":[").await;

        assert!(matches!(answer, Err(HookError::Transport(_))), "{answer:?}");

        let chunked = ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"chi").await;

        assert!(matches!(chunked, Err(HookError::Transport(_))), "{chunked:?}");
    }

    #[tokio::test]
    async fn a_body_beyond_the_budget_is_refused() {
        let too_large = Err(HookError::TooLarge { limit: 1000 });

        assert_eq!(ask(response("200 OK", &"x".repeat(1001))).await, too_large);
        let endless = format!("{}\r\n\r\n{}", "HTTP/1.1 200 OK", "x".repeat(5000));
        assert_eq!(ask(endless).await, too_large);
        assert!(ask(response("200 OK", &"x".repeat(1000))).await.is_ok());
    }

    #[tokio::test]
    async fn answer_without_free_budget_is_not_read_and_names_the_flag() {
        let budget = AnswerBudget::new(AnswerLimits::of_process(4 << 20)).controller("a");
        let long = "x".repeat(UNRESERVED_BYTES + 1);
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (answer, bytes) in [
            (response("200 OK", &long), long.len()),
            (format!("{chunked}{:x}\r\n{long}\r\n0\r\n\r\n", long.len()), 1 << 20),
        ] {
            let others = budget.reserve(1 << 20).await.unwrap();
            let waited = Duration::from_millis(50);
            let hook =
                |url: &Uri, timeout| Webhook::new(url.clone(), timeout).budget(budget.clone());
            let full = server(answer.clone(), true).await;

            let refused = hook(&full.url, waited).call(Bytes::from_static(b"{}")).await;

            let Err(refused) = refused else { panic!("{refused:?}") };
            assert_eq!(refused, HookError::NoBudget { bytes, waited });
            assert!(refused.to_string().contains("--hook-answer-budget"), "{refused}");
            let later = server(answer, true).await;
            let hook = hook(&later.url, Duration::from_secs(30));
            let read = hook.call(Bytes::from_static(b"{}"));
            let (read, ()) = futures::join!(read, async { drop(others) });
            assert_eq!(read.unwrap().len(), long.len());
        }
    }

    #[tokio::test]
    async fn answer_holds_its_budget_until_it_is_dropped_and_a_short_one_needs_none() {
        let budget = AnswerBudget::new(AnswerLimits::of_process(4 << 20)).controller("a");
        let ask = async |bytes: usize| {
            let server = server(response("200 OK", &"x".repeat(bytes)), true).await;
            let hook = Webhook::new(server.url.clone(), Duration::from_secs(30));
            hook.budget(budget.clone()).call(Bytes::from_static(b"{}")).await.unwrap()
        };
        let free = async |bytes| timeout(Duration::ZERO, budget.reserve(bytes)).await.is_ok();

        let short = ask(UNRESERVED_BYTES).await;
        assert!(free(1 << 20).await, "{}", short.len());
        let long = ask(1 << 19).await;
        assert!(!free((1 << 19) + 1).await);
        assert!(free(1 << 19).await, "it holds what it has become");
        drop(long);
        assert!(free(1 << 20).await);
    }

    #[tokio::test]
    async fn an_encoded_body_is_refused() {
        let answer = ask(response("200 OK\r\nContent-Encoding: gzip", "xx")).await;

        assert_eq!(answer, Err(HookError::Encoded("gzip".to_owned())));
    }

    #[tokio::test]
    async fn the_timeout_covers_the_whole_exchange() {
        let slow = Duration::from_millis(50);
        for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"] {
            let server = server(answer, true).await;
            let hook = Webhook::new(server.url.clone(), slow);

            let answer = hook.call(Bytes::from_static(b"{}")).await;

            assert_eq!(answer, Err(HookError::Timeout(slow)));
        }
    }

    #[tokio::test]
    async fn refused_connection_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);

        let answer = Webhook::new(url, Duration::from_secs(5)).call(Bytes::new()).await;

        let Err(HookError::Transport(message)) = answer else { panic!("{answer:?}") };
        assert!(message.to_lowercase().contains("refused"), "{message}");
    }

    #[tokio::test]
    async fn garbage_instead_of_http_is_an_error() {
        let answer = ask("hello\r\n\r\n").await;

        assert!(matches!(answer, Err(HookError::Transport(_))), "{answer:?}");
    }

    #[tokio::test]
    async fn nothing_is_left_after_release() {
        let server = server(response("200 OK", "{}"), true).await;
        let hook = Webhook::new(server.url.clone(), Duration::from_secs(5));
        hook.call(Bytes::from_static(b"{}")).await.unwrap();
        let tracker = hook.connections.lock().as_ref().unwrap().tasks.tracker.clone();
        assert!(!tracker.is_empty());

        hook.release().await;

        assert!(tracker.is_empty());
    }

    #[tokio::test]
    async fn release_does_not_wait_for_a_handshake_that_is_never_answered() {
        let server = server("", true).await;
        let url = server.url.to_string().replace("http:", "https:").parse().unwrap();
        let hook = Webhook::new(url, Duration::from_secs(30));
        let mut asked = hook.call(Bytes::from_static(b"{}"));
        let asked = timeout(Duration::from_millis(50), &mut asked).await;
        assert!(asked.is_err(), "{asked:?}");

        let released = timeout(Duration::from_secs(10), hook.release()).await;

        assert!(released.is_ok());
    }
}
