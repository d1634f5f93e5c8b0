//! HTTP server for probes and metrics, as a runnable of the manager, on axum.
//!
//! Checks are served as by controller-runtime (`pkg/healthz`): `?verbose` adds a line for each check,
//! `?exclude=NAME` omits one, and a path such as `/readyz/NAME` runs one alone.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use pilotlight::{
//!     manager::{Manager, ManagerOptions},
//!     server::{HttpServer, metrics, probes, process},
//! };
//!
//! let mut manager = Manager::new(ManagerOptions::default());
//! let handle = manager.handle();
//! handle.add_metrics("process", process::register);
//! // Pages of the program join by `merge`, too.
//! let pages = probes(&handle).merge(metrics(&handle));
//! HttpServer::bind("0.0.0.0:8081", pages)?.add_to(&mut manager, "server")?;
//! # Ok(())
//! # }
//! ```

mod connections;
pub mod process;

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::{Arc, Weak},
};

/// Router and handlers, of the version that [`HttpServer`] takes.
pub use axum;
use axum::{
    Router,
    extract::{Path, RawQuery},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::manager::{
    AddError, Check, Checks, ControllerName, Epoch, Manager, ManagerHandle, RunResult, Runnable,
    RunnableGroup, RunnableOptions, metrics_text,
};

/// Returns the probes of a manager: its liveness at `/healthz` and `/livez`, its readiness at
/// `/readyz`.
pub fn probes(manager: &ManagerHandle) -> Router {
    checks("healthz", manager.liveness())
        .merge(checks("livez", manager.liveness()))
        .merge(checks("readyz", manager.readiness()))
}

/// Returns a page for checks, `/NAME`, and one for each of them, `/NAME/CHECK`. The status is 503 if
/// a check has failed.
///
/// # Panics
///
/// If `name` cannot be part of a path of axum's router.
pub fn checks(name: &'static str, checks: Checks) -> Router {
    let all = checks.clone();
    let all = move |RawQuery(query): RawQuery| async move {
        all_checks(name, &query.unwrap_or_default(), &all)
    };
    let one = move |Path(named): Path<String>| async move {
        let found = checks.results_of(|name| name == named);
        match found.first() {
            Some(check) => (status(&found), format!("{check}\n")),
            None => (StatusCode::NOT_FOUND, "no check has this name\n".to_owned()),
        }
    };
    Router::new()
        .route(&format!("/{name}"), get(all.clone()))
        .route(&format!("/{name}/"), get(all))
        .route(&format!("/{name}/{{*check}}"), get(one))
}

/// Metrics of a page: those of a manager, which are registered at each scrape, or of a registry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MetricsSource {
    /// All metrics of a manager, with its clusters as they come and go.
    Manager(ManagerHandle),
    /// A registry.
    Registry(Arc<Registry>),
}

impl From<&ManagerHandle> for MetricsSource {
    fn from(manager: &ManagerHandle) -> Self {
        Self::Manager(manager.clone())
    }
}

impl From<Registry> for MetricsSource {
    fn from(registry: Registry) -> Self {
        Self::Registry(Arc::new(registry))
    }
}

impl MetricsSource {
    fn text(&self) -> Result<String, fmt::Error> {
        match self {
            Self::Manager(manager) => {
                let mut registry = Registry::default();
                manager.register_metrics(&mut registry);
                metrics_text(&registry)
            }
            Self::Registry(registry) => metrics_text(registry),
        }
    }
}

/// Number of texts of scrapes that are kept for their readers. Readers that read nothing would
/// otherwise hold a text for each connection.
const MAX_TEXTS: usize = 4;

/// Texts of scrapes that are being sent, from the oldest to the newest.
#[derive(Default)]
struct SentTexts(Mutex<Vec<Weak<String>>>);

impl SentTexts {
    /// Returns a new text, or the newest one while [`MAX_TEXTS`] are being sent.
    fn next(&self, source: &MetricsSource) -> Result<Arc<String>, fmt::Error> {
        let mut texts = self.0.lock();
        texts.retain(|text| text.strong_count() > 0);
        if texts.len() >= MAX_TEXTS
            && let Some(newest) = texts.last().and_then(Weak::upgrade)
        {
            return Ok(newest);
        }
        let text = Arc::new(source.text()?);
        texts.push(Arc::downgrade(&text));
        Ok(text)
    }
}

/// Text as the owner of the bytes of a response.
struct SharedText(Arc<String>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Returns the page `/metrics`, in the OpenMetrics format: of a manager, `metrics(&manager.handle())`,
/// or of a registry.
pub fn metrics(source: impl Into<MetricsSource>) -> Router {
    let (source, texts) = (source.into(), Arc::new(SentTexts::default()));
    let scrape = move || async move {
        match texts.next(&source) {
            Ok(text) => {
                let text = Bytes::from_owner(SharedText(text));
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                ([(CONTENT_TYPE, kind)], text).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().route("/metrics", get(scrape))
}

/// HTTP server of a manager, over HTTP/1.1 without TLS.
///
/// Starts before every other group of runnables, and ends after them.
///
/// Bounds of its connections, since any client of the network may open them: 64 at a time, where
/// one more closes the oldest; 5 s for the header of a request, of at most
/// 16 KiB; 10 s from there to the end of the response, of which the page has 9 s.
///
/// ```no_run
/// # use pilotlight::manager::Manager;
/// # fn example(manager: &mut Manager) -> Result<(), Box<dyn std::error::Error>> {
/// use pilotlight::server::{HttpServer, axum::routing::get, probes};
///
/// let pages = probes(&manager.handle()).route("/version", get(async || "1.0"));
/// HttpServer::bind("0.0.0.0:8081", pages)?.add_to(manager, "server")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    pages: Router,
}

impl HttpServer {
    /// Binds an address, so that a port in use is known before anything starts. Port 0 selects a
    /// free one.
    ///
    /// # Errors
    ///
    /// If it cannot listen at the address.
    pub fn bind(address: impl ToSocketAddrs, pages: Router) -> io::Result<Self> {
        Self::new(TcpListener::bind(address)?, pages)
    }

    /// Returns a server that accepts the connections of a listener.
    ///
    /// # Errors
    ///
    /// If the listener cannot be made non-blocking.
    pub fn new(listener: TcpListener, pages: Router) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, pages })
    }

    /// Returns the address.
    ///
    /// # Errors
    ///
    /// If the system does not know it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Adds the server to a manager that does not run yet: the manager ends if it fails.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_to(
        self,
        manager: &mut Manager,
        name: impl Into<ControllerName>,
    ) -> Result<(), AddError> {
        manager.add_runnable(name, Arc::new(self), RunnableOptions::fail_fast())
    }

    /// Adds the server by a handle of a manager that may run already: the manager ends if it fails.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, it may or may not have been added.
    pub async fn add_to_running(
        self,
        manager: &ManagerHandle,
        name: impl Into<ControllerName>,
    ) -> Result<(), AddError> {
        manager.add_runnable(name, Arc::new(self), RunnableOptions::fail_fast()).await
    }
}

impl Runnable for HttpServer {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let (listener, pages) = (self.listener.try_clone(), self.pages.clone());
        Box::pin(async move {
            let listener = tokio::net::TcpListener::from_std(listener?)?;
            connections::serve(listener, pages, epoch).await;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::HttpServers
    }
}

fn all_checks(name: &str, query: &str, checks: &Checks) -> Response {
    let words = || query.split('&');
    let excluded: Vec<_> =
        words().filter_map(|it| it.strip_prefix("exclude=")).map(decoded).collect();
    let checks = checks.results_of(|name| excluded.iter().all(|excluded| excluded != name));
    let is_verbose = words().any(|it| it.split('=').next() == Some("verbose"));
    let status = status(&checks);
    let failed = status != StatusCode::OK;
    if !failed && !is_verbose {
        return "ok".into_response();
    }
    let shown = checks.iter().filter(|check| is_verbose || check.result.is_failed());
    let mut body: String = shown.map(|check| format!("{check}\n")).collect();
    let end = if failed { "failed" } else { "passed" };
    body.push_str(&format!("{name} check {end}\n"));
    (status, body).into_response()
}

/// Decodes a value of a query: `+` is a blank, and `%` begins a byte in hexadecimal digits.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let is_byte = |it: &&[u8]| *first == b'%' && it.iter().all(u8::is_ascii_hexdigit);
        let digits = after.get(..2).filter(is_byte).and_then(|it| str::from_utf8(it).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = if byte.is_some() { &after[2..] } else { after };
        bytes.push(byte.unwrap_or(if *first == b'+' { b' ' } else { *first }));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status(checks: &[Check]) -> StatusCode {
    match checks.iter().any(|check| check.result.is_failed()) {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests;
