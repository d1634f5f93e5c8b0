//! Connections of one webhook: their trusted roots, and the tasks that drive them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{Uri, uri::Scheme};
use http_body_util::Full;
use hyper::rt::Executor;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioTimer,
};
use rustls::{ClientConfig, RootCertStore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::meta::{HookError, hook_metrics::HookTasks};

/// Timeout of connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which an unused connection is kept for the next call. The buffers of a connection take
/// 25 KiB. Shorter than the 5 s after which common servers, such as Node.js and uvicorn, close an idle
/// connection: a call on a connection that is being closed would fail.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Connections that are kept for the next call, and the tasks that drive them.
pub(super) struct Connections {
    pub(super) client: HttpClient,
    pub(super) tasks: Tasks,
}

/// Tasks that drive connections until they are cancelled, since a handshake without an answer would
/// not end by itself.
#[derive(Clone, Default)]
pub(super) struct Tasks {
    pub(super) tracker: TaskTracker,
    token: CancellationToken,
    alive: Option<HookTasks>,
}

impl Connections {
    /// Opens no connection; the first call does.
    pub(super) fn new(url: &Uri, alive: Option<HookTasks>) -> Result<Self, HookError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(url)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let tasks = Tasks { alive, ..Tasks::default() };
        let client = Client::builder(tasks.clone())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(32)
            .build(connector);
        Ok(Self { client, tasks })
    }
}

impl Tasks {
    /// Cancels all tasks and waits for their end.
    pub(super) async fn end(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl<F> Executor<F> for Tasks
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

/// Returns the TLS configuration: the system's roots, loaded once. A hook without TLS gets no roots, and
/// so works on a system that has no root certificates. Hooks share each configuration with its cache
/// of sessions, which takes 14 KiB.
fn tls(url: &Uri) -> Result<ClientConfig, HookError> {
    static TRUSTED: OnceLock<ClientConfig> = OnceLock::new();
    static WITHOUT_ROOTS: OnceLock<ClientConfig> = OnceLock::new();
    let secure = url.scheme() == Some(&Scheme::HTTPS);
    let configuration = if secure { &TRUSTED } else { &WITHOUT_ROOTS };
    if let Some(configuration) = configuration.get() {
        return Ok(configuration.clone());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let failed = |error: rustls::Error| HookError::Transport(format!("preparing TLS: {error}"));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let created = if secure {
        builder.try_with_platform_verifier().map_err(failed)?.with_no_client_auth()
    } else {
        builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
    };
    Ok(configuration.get_or_init(|| created).clone())
}
