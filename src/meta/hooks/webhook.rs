//! Webhook: a hook that is called over HTTP.
//!
//! A call is one POST and one response: no retries, but of a request that an HTTP/2 server reports as
//! not processed, no content encoding, and no byte beyond the budget. Redirects are followed only if that is enabled. Success is status 200, as in
//! Metacontroller. If responses are kept by their ETag, 304 and 412 are success too, provided that
//! the request named one.

mod body;
mod client_identity;
mod connections;
mod connector;
mod etag;
mod handshake;
mod invalid_utf8;
mod redirect;
mod retry_after;
mod route;
mod surrogates;
pub(in crate::meta) mod tls;
mod trusted_leaf;

use std::{error::Error, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header, uri::Scheme,
};
use http_body_util::Full;
use hyper::{body::Incoming, rt::Executor};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

pub(crate) use self::retry_after::MAX_RETRY_AFTER;
use self::{
    body::read_excerpt,
    connections::{Connections, HttpClient, MAX_HEADER_BYTES},
    etag::{CachedResponse, EtagCache},
    retry_after::retry_after,
    route::Routes,
};
use super::{
    Hook,
    budget::{ControllerBudget, ResponseBudget},
    credentials::HookEndpoint,
    endpoint::Endpoint,
    error::HookError,
    metrics::HookSeries,
    rule::EtagRule,
};
use crate::{
    controller, duration, redaction,
    transport::{
        ConnectProxy, Proxies, basic_authorization, library_user_agent, was_not_processed,
    },
};

/// Hook at a URL.
pub(crate) struct Webhook {
    // Without user name and password.
    url: Uri,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    error_excerpts: bool,
    redirects: bool,
    replaces_invalid_utf8: bool,
    longest_retry_after: Duration,
    routes: Routes,
    user_agent: HeaderValue,
    budget: ControllerBudget,
    series: Option<Arc<HookSeries>>,
    etags: Option<EtagCache>,
    endpoint: Option<Arc<HookEndpoint>>,
    connections: Mutex<Option<Connections>>,
}

/// Parent of a call, and the kept response that the hook may confirm.
struct CallSubject<'a> {
    etags: &'a EtagCache,
    parent: &'a controller::Request,
    uid: &'a str,
    kept: Option<CachedResponse>,
}

/// Client of a call, and the endpoint that it was made for.
struct CurrentClient {
    http: HttpClient,
    generation: u64,
    endpoint: Option<Arc<Endpoint>>,
}

impl Webhook {
    /// Returns a hook at this URL; `timeout` bounds a whole exchange. A user name and a password in
    /// the URL are sent as basic authorization.
    pub(crate) fn new(url: Uri, timeout: Duration) -> Self {
        Self {
            authorization: basic_authorization(&url),
            url: without_user(url),
            timeout,
            error_excerpts: false,
            redirects: false,
            replaces_invalid_utf8: false,
            longest_retry_after: MAX_RETRY_AFTER,
            routes: Routes::default(),
            user_agent: library_user_agent(),
            budget: ResponseBudget::default().controller(""),
            series: None,
            etags: None,
            endpoint: None,
            connections: Mutex::new(None),
        }
    }

    /// Includes the first bytes of an error body in [`HookError::Status`], which is shown in
    /// Events, statuses and logs. Off by default, since the body may hold secrets.
    #[must_use]
    pub(crate) fn error_excerpts(mut self, shown: bool) -> Self {
        self.error_excerpts = shown;
        self
    }

    /// Follows redirects with status 307 and 308, at most ten in one call; off by default. The
    /// timeout covers them. Another host gets neither credentials nor a client certificate.
    #[must_use]
    pub(crate) fn redirects(mut self, followed: bool) -> Self {
        self.redirects = followed;
        self
    }

    /// Replaces bytes of a response that are not UTF-8, as Go does; off by default, so that such a
    /// response is refused.
    #[must_use]
    pub(crate) fn replaces_invalid_utf8(mut self, replaced: bool) -> Self {
        self.replaces_invalid_utf8 = replaced;
        self
    }

    /// Sets the longest wait that the hook may request by status 429; 5 min by default. A longer one
    /// is cut.
    #[must_use]
    pub(crate) fn longest_retry_after(mut self, longest: Duration) -> Self {
        self.longest_retry_after = longest;
        self
    }

    /// Reaches the hook through these proxies; none by default. A hook over http is called by
    /// requests to the proxy, whose header `Authorization` the proxy can read. A hook over https is
    /// called through a tunnel.
    #[must_use]
    pub(crate) fn proxies(mut self, proxies: Proxies) -> Self {
        self.routes.proxies = proxies;
        self
    }

    /// Looks the host of the URL up below `.svc` if it is the name of a service with its namespace.
    #[must_use]
    pub(crate) fn service(mut self, is_service: bool) -> Self {
        self.routes.service = self.url.host().filter(|_| is_service).map(Into::into);
        self
    }

    /// Sends this `User-Agent`, such as
    /// [`Transport::user_agent`](crate::transport::Transport::user_agent), which names the
    /// embedder's product; the library alone by default.
    #[must_use]
    pub(crate) fn user_agent(mut self, user_agent: HeaderValue) -> Self {
        self.user_agent = user_agent;
        self
    }

    /// Holds responses within this share of a process's budget, instead of a budget of its own.
    #[must_use]
    pub(crate) fn budget(mut self, budget: ControllerBudget) -> Self {
        if let Some(etags) = &mut self.etags {
            etags.set_budget(budget.clone());
        }
        self.budget = budget;
        self
    }

    /// Counts calls in these metrics.
    #[must_use]
    pub(crate) fn series(mut self, series: HookSeries) -> Self {
        self.series = Some(Arc::new(series));
        self
    }

    /// Keeps responses that have an ETag, one for each parent, until the hook is released. A
    /// request names the tag in `If-None-Match`, and the hook may confirm the response with status
    /// 304 or 412 instead of sending it again.
    #[must_use]
    pub(crate) fn etag(mut self, rule: Option<EtagRule>) -> Self {
        self.etags = rule.map(|rule| EtagCache::new(rule, self.budget.clone()));
        self
    }

    /// Uses the TLS configuration and the credentials of an endpoint.
    #[must_use]
    pub(in crate::meta) fn endpoint(mut self, endpoint: Option<Arc<HookEndpoint>>) -> Self {
        self.endpoint = endpoint;
        self
    }

    /// Returns the current endpoint, and a client for it with its generation.
    fn client(&self) -> Result<CurrentClient, HookError> {
        let endpoint = match &self.endpoint {
            None => None,
            Some(declared) => {
                let unread = "its credentials have not been read yet";
                let unread = || HookError::Transport(unread.to_owned());
                Some(declared.current().ok_or_else(unread)?)
            }
        };
        let mut connections = self.connections.lock();
        if let Some(connections) = &mut *connections {
            connections.switch(&self.url, endpoint.as_ref())?;
            let (http, generation) = (connections.client.clone(), connections.generation);
            return Ok(CurrentClient { http, generation, endpoint });
        }
        let (routes, series) = (self.routes.clone(), self.series.clone());
        let new = Connections::new(&self.url, endpoint.clone(), routes, series)?;
        let new = connections.insert(new);
        // Among the connections' tasks, so that it ends when the hook is released.
        if let Some(etags) = &self.etags
            && let Some(period) = etags.sweep_period()
        {
            new.tasks.execute(etags.clone().sweep_every(period));
        }
        let (http, generation) = (new.client.clone(), new.generation);
        Ok(CurrentClient { http, generation, endpoint })
    }

    async fn request_response(
        &self,
        subject: Option<CallSubject<'_>>,
        request: Bytes,
    ) -> Result<Bytes, HookError> {
        let observation = self.series.as_deref().map(HookSeries::begin);
        let deadline = duration::after(Instant::now(), self.timeout);
        let (status, response) = timeout_at(deadline, self.exchange(subject, request, deadline))
            .await
            .unwrap_or_else(|_| (None, Err(self.late())));
        if let Some(observation) = observation {
            observation.end(status);
        }
        response
    }

    /// Sends a request and reads the response; follows redirects where that is allowed.
    async fn exchange(
        &self,
        subject: Option<CallSubject<'_>>,
        request: Bytes,
        deadline: Instant,
    ) -> (Option<StatusCode>, Result<Bytes, HookError>) {
        let current = match self.client() {
            Ok(current) => current,
            Err(error) => return (None, Err(error)),
        };
        let endpoint = current.endpoint.as_deref();
        let kept =
            subject.as_ref().and_then(|subject| subject.kept.as_ref()).map(|kept| kept.tag.clone());
        let (mut url, mut redirects, mut is_own) = (self.url.clone(), 0, true);
        let (mut request, mut was_resent) = (Some(request), false);
        loop {
            let body = request.take().unwrap_or_default();
            // Held for a redirect and HTTP/2 alone, since the bytes count in the budget until they
            // are dropped.
            let is_held = self.redirects || url.scheme() == Some(&Scheme::HTTPS);
            let again = is_held.then(|| body.clone());
            let client = if is_own && url.scheme() == self.url.scheme() {
                Ok(current.http.clone())
            } else {
                self.redirected(&url, endpoint, is_own)
            };
            // As in Go, credentials of the URL count if no others are declared.
            let declared = endpoint.and_then(|endpoint| endpoint.authorization.clone());
            let authorization = declared.or_else(|| self.authorization.clone());
            let authorization = authorization.filter(|_| is_own);
            let sent = match (client, self.request(&url, authorization, kept.clone(), body)) {
                (Ok(client), Ok(request)) => timeout_at(deadline, client.request(request)).await,
                (Err(error), _) | (_, Err(error)) => return (None, Err(error)),
            };
            let response = match sent {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => {
                    // Sent once more, as by Go: another connection, or a later stream.
                    if !was_resent && was_not_processed(&error) {
                        (was_resent, request) = (true, again);
                        continue;
                    }
                    self.drop_idle(current.generation);
                    return (None, Err(HookError::Transport(explanation(&error))));
                }
                Err(_) => {
                    self.drop_idle(current.generation);
                    return (None, Err(self.late()));
                }
            };
            match redirect::target(response.status(), response.headers(), &url) {
                Some(target) if self.redirects && redirects < redirect::MAX_REDIRECTS => {
                    // A short body is read, so that the connection can be reused.
                    drop(read_excerpt(response.into_body()).await);
                    // As in Go, no host after another one gets credentials.
                    is_own &= redirect::is_same_host(&target, &self.url);
                    (url, redirects, request) = (target, redirects + 1, again);
                }
                Some(_) | None => {
                    drop(again);
                    let status = response.status();
                    let proxy = self.connect_proxy(&url);
                    if let Some(proxy) = proxy
                        && status == StatusCode::PROXY_AUTHENTICATION_REQUIRED
                    {
                        let error = HookError::Transport(proxy.unauthorized().to_string());
                        return (Some(status), Err(error));
                    }
                    return (Some(status), self.read(subject, response, proxy, deadline).await);
                }
            }
        }
    }

    /// Drops the idle connections after a call without any response.
    fn drop_idle(&self, generation: u64) {
        let Some(connections) = &mut *self.connections.lock() else { return };
        if let Err(error) = connections.drop_idle(&self.url, generation) {
            tracing::debug!(%error, "idle connections of a hook are kept");
        }
    }

    /// Returns a client for the target of a redirect: another scheme or another host.
    fn redirected(
        &self,
        url: &Uri,
        endpoint: Option<&Endpoint>,
        is_own: bool,
    ) -> Result<HttpClient, HookError> {
        let connections = self.connections.lock();
        let connections = connections.as_ref().ok_or(HookError::Cancelled)?;
        connections.redirected(url, endpoint, is_own)
    }

    fn request(
        &self,
        url: &Uri,
        authorization: Option<HeaderValue>,
        kept: Option<HeaderValue>,
        request: Bytes,
    ) -> Result<Request<Full<Bytes>>, HookError> {
        let proxy = self.connect_proxy(url);
        let target = if proxy.is_some() { self.routes.address(url) } else { url.clone() };
        let mut builder = Request::builder().method(Method::POST);
        // As Go writes it, with the port of the URL. Over TLS the protocol is not known yet, and
        // HTTP/2 has no such header.
        if target.scheme() == Some(&Scheme::HTTP) {
            builder = builder.header(header::HOST, host_and_port(&target));
        }
        // No other headers than those of Metacontroller: a strict server may refuse them.
        builder = builder
            .uri(target)
            .header(header::USER_AGENT, self.user_agent.clone())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = authorization {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        if let Some(authorization) = proxy.and_then(|proxy| proxy.authorization()) {
            builder = builder.header(header::PROXY_AUTHORIZATION, authorization);
        }
        if let Some(tag) = kept {
            builder = builder.header(header::IF_NONE_MATCH, tag);
        }
        let request = builder.body(Full::new(request));
        request.map_err(|error| HookError::Transport(error.to_string()))
    }

    /// Returns the proxy that receives the requests to a URL and can read them.
    fn connect_proxy(&self, url: &Uri) -> Option<&ConnectProxy> {
        let is_plain = url.scheme() == Some(&Scheme::HTTP);
        let proxy = self.routes.proxy(url).ok().flatten();
        proxy.filter(|_| is_plain).map(|proxy| &**proxy)
    }

    /// Returns the error of a call that took longer than the timeout.
    fn late(&self) -> HookError {
        match self.routes.proxy(&self.url) {
            Ok(Some(proxy)) => {
                HookError::ProxyTimeout { waited: self.timeout, proxy: proxy.address().to_string() }
            }
            Ok(None) | Err(_) => HookError::Timeout(self.timeout),
        }
    }

    async fn read(
        &self,
        subject: Option<CallSubject<'_>>,
        response: Response<Incoming>,
        proxy: Option<&ConnectProxy>,
        deadline: Instant,
    ) -> Result<Bytes, HookError> {
        let (head, body) = response.into_parts();
        if is_long(&head.headers) {
            return Err(HookError::Transport(long_header()));
        }
        let encoding = head.headers.get(header::CONTENT_ENCODING);
        let encoding = encoding.map(|encoding| String::from_utf8_lossy(encoding.as_bytes()));
        match (head.status, subject) {
            (StatusCode::OK, subject) => {
                if let Some(encoding) = encoding
                    && !encoding.eq_ignore_ascii_case("identity")
                {
                    return Err(HookError::Encoded(known_coding(&encoding).to_owned()));
                }
                let body = self.read_body(body, deadline).await?;
                if let Some(CallSubject { etags, parent, uid, .. }) = subject {
                    etags.answered(parent, uid, &head.headers, &body, Instant::now());
                }
                Ok(body)
            }
            // HTTP specifies 412 for a request that is not a GET.
            (
                status @ (StatusCode::NOT_MODIFIED | StatusCode::PRECONDITION_FAILED),
                Some(CallSubject { kept, .. }),
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
                Err(HookError::Busy(retry_after(value, Timestamp::now(), self.longest_retry_after)))
            }
            (status, _) => {
                // Read even if it is not shown, so that the connection can be reused.
                let excerpt = read_excerpt(body).await;
                let body = if self.error_excerpts { excerpt } else { String::new() };
                let proxy = proxy.map(|proxy| proxy.address().to_string());
                Err(HookError::Status { code: status.as_u16(), body, proxy })
            }
        }
    }
}

impl Hook for Webhook {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        Box::pin(self.request_response(None, request))
    }

    fn call_about<'a>(
        &'a self,
        parent: &'a controller::Request,
        uid: &'a str,
        request: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, HookError>> {
        let subject = self.etags.as_ref().map(|etags| {
            let kept = etags.get(parent, uid, Instant::now());
            CallSubject { etags, parent, uid, kept }
        });
        Box::pin(self.request_response(subject, request))
    }

    fn forget(&self, parent: &controller::Request) {
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

/// Returns the name of a registered content coding; the header itself is not shown.
fn known_coding(coding: &str) -> &'static str {
    let registered = ["gzip", "br", "deflate", "zstd", "compress"];
    let known = registered.into_iter().find(|known| coding.eq_ignore_ascii_case(known));
    known.unwrap_or("another")
}

/// Returns what is said about a call that ended without a response.
fn explanation(error: &(dyn Error + 'static)) -> String {
    let http = |error: &(dyn Error + 'static)| {
        let http = error.downcast_ref::<hyper::Error>();
        http.is_some_and(hyper::Error::is_parse_too_large)
    };
    if redaction::chain(error).any(http) {
        return long_header();
    }
    // The library has reset the stream, which it does for a long header above all.
    let http2 = |error: &(dyn Error + 'static)| {
        let http2 = error.downcast_ref::<h2::Error>();
        http2.is_some_and(|it| it.is_library() && it.reason() == Some(h2::Reason::PROTOCOL_ERROR))
    };
    if redaction::chain(error).any(http2) {
        return format!("its response breaks the rules of HTTP/2, or {}", long_header());
    }
    handshake::explain(error).unwrap_or_else(|| redaction::error(error))
}

fn long_header() -> String {
    let kib = MAX_HEADER_BYTES / 1024;
    format!("the header of its response is longer than {kib} KiB or 100 fields")
}

/// Returns whether a header is longer than a hook may send. The HTTP client counts what it has
/// buffered, which may be more or less.
fn is_long(headers: &HeaderMap) -> bool {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    bytes.sum::<usize>() > MAX_HEADER_BYTES as usize
}

/// Returns the host of a URL with the port that it names.
fn host_and_port(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns a URL without its user name and password.
fn without_user(url: Uri) -> Uri {
    let address = url.authority().and_then(|it| it.as_str().rsplit_once('@'));
    let address = address.and_then(|(_, address)| address.parse().ok());
    let mut parts = url.into_parts();
    parts.authority = address.or(parts.authority);
    Uri::from_parts(parts).unwrap_or_default()
}

#[cfg(test)]
mod tests;
