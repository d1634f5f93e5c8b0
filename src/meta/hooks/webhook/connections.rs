//! Connections of one webhook: their trusted roots, and the tasks that drive them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::rt::Executor;
use hyper_util::{client::legacy::Client, rt::TokioTimer};
use rustls::ClientConfig;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{connector::HookConnector, route::Routes, tls};
use crate::meta::hooks::{
    endpoint::Endpoint,
    error::HookError,
    metrics::{HookSeries, HookTasks},
};

/// Time for which an unused connection is kept for the next call. The buffers of a connection take
/// 25 KiB. Shorter than the idle timeout of common servers (5 s for Node.js and uvicorn), since a
/// call on a closing connection fails.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Longest header of a response in bytes, which no budget counts. The API server's own limit for
/// annotations is four times as much, and common servers send less than 1 KiB.
pub(super) const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// Bytes of a response over HTTP/2 that are received before they are read, as by a connection of
/// HTTP/1.1. They are outside of the budget, while the reservation waits.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Bytes of all responses of a connection over HTTP/2 that are received before they are read; the
/// protocol's maximum. The calls bound the number of responses. With a smaller window, responses
/// that wait for the budget could stop the one that they wait for.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

pub(super) type HttpClient = Client<HookConnector, Full<Bytes>>;

/// Connections that are kept for the next call, and the tasks that drive them.
pub(super) struct Connections {
    pub(super) client: HttpClient,
    /// Number of clients before this one.
    pub(super) generation: u64,
    /// Endpoint that they were made for.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    pub(super) tasks: ConnectionTasks,
    routes: Routes,
    series: Option<Arc<HookSeries>>,
}

/// Tasks that drive connections until they are cancelled, since a handshake without a response
/// would not end by itself.
#[derive(Clone, Default)]
pub(super) struct ConnectionTasks {
    pub(super) tracker: TaskTracker,
    token: CancellationToken,
    alive: Option<HookTasks>,
}

impl Connections {
    /// Opens no connection; the first call does.
    pub(super) fn new(
        url: &Uri,
        endpoint: Option<Arc<Endpoint>>,
        routes: Routes,
        series: Option<Arc<HookSeries>>,
    ) -> Result<Self, HookError> {
        let tls = tls_of(url, endpoint.as_deref())?;
        let alive = series.as_deref().map(HookSeries::tasks);
        let tasks = ConnectionTasks { alive, ..ConnectionTasks::default() };
        let client = client(tls, routes.clone(), series.clone(), tasks.clone());
        Ok(Self { client, generation: 0, endpoint, tasks, routes, series })
    }

    /// Returns a client for the target of a redirect, with the trusted certificates of the
    /// endpoint, and on the hook's own host with its client certificate. Its connections close with
    /// it.
    pub(super) fn redirected(
        &self,
        url: &Uri,
        endpoint: Option<&Endpoint>,
        is_own: bool,
    ) -> Result<HttpClient, HookError> {
        let declared = endpoint.and_then(|endpoint| {
            if is_own { endpoint.tls.clone() } else { endpoint.anonymous_tls.clone() }
        });
        Ok(self.client_of(declared.map_or_else(|| tls::shared(url), Ok)?))
    }

    /// Uses another endpoint from the next call on. Calls under way keep their connections.
    pub(super) fn switch(
        &mut self,
        url: &Uri,
        endpoint: Option<&Arc<Endpoint>>,
    ) -> Result<(), HookError> {
        let is_same = match (&self.endpoint, endpoint) {
            (None, None) => true,
            (Some(used), Some(current)) => Arc::ptr_eq(used, current),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_same {
            self.replace(url, endpoint.cloned())?;
        }
        Ok(())
    }

    /// Drops the idle connections of a client, so that the next call opens one. Does nothing if that
    /// client has been replaced already. Calls under way keep their connections.
    ///
    /// A hook that has moved leaves connections on which no request is answered.
    pub(super) fn drop_idle(&mut self, url: &Uri, generation: u64) -> Result<(), HookError> {
        if self.generation == generation {
            self.replace(url, self.endpoint.clone())?;
        }
        Ok(())
    }

    fn replace(&mut self, url: &Uri, endpoint: Option<Arc<Endpoint>>) -> Result<(), HookError> {
        self.client = self.client_of(tls_of(url, endpoint.as_deref())?);
        self.endpoint = endpoint;
        self.generation += 1;
        Ok(())
    }

    fn client_of(&self, tls: ClientConfig) -> HttpClient {
        client(tls, self.routes.clone(), self.series.clone(), self.tasks.clone())
    }
}

fn tls_of(url: &Uri, endpoint: Option<&Endpoint>) -> Result<ClientConfig, HookError> {
    let declared = endpoint.and_then(|endpoint| endpoint.tls.clone());
    declared.map_or_else(|| tls::shared(url), Ok)
}

/// Returns a client with its own connections, which `tasks` drives.
fn client(
    tls: ClientConfig,
    routes: Routes,
    series: Option<Arc<HookSeries>>,
    tasks: ConnectionTasks,
) -> HttpClient {
    Client::builder(tasks)
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(32)
        // As Go writes them: some servers compare them by case.
        .http1_title_case_headers(true)
        .http1_max_buf_size(MAX_HEADER_BYTES as usize)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(HookConnector::new(tls, routes, series))
}

impl ConnectionTasks {
    /// Cancels all tasks and waits for their end.
    pub(super) async fn end(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl<F> Executor<F> for ConnectionTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, connection: F) {
        let token = self.token.clone();
        let alive = self.alive.as_ref().map(HookTasks::count);
        drop(self.tracker.spawn(async move {
            let _alive = alive;
            token.run_until_cancelled_owned(connection).await;
        }));
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        // For a hook that was dropped without being released.
        self.tasks.token.cancel();
    }
}
