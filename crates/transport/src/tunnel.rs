//! TCP connections to the API server: direct, or a tunnel through a proxy.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt};

use super::{
    Error,
    proxy::{ConnectProxy, ProxyStream},
};

/// Opens TCP connections to a server, through a proxy if one is configured.
#[derive(Clone)]
pub(super) struct Tunnel {
    tcp: HttpConnector,
    proxy: Option<Arc<ConnectProxy>>,
    within: Duration,
}

impl Tunnel {
    /// Opens connections with `tcp`, through `proxy` if there is one, which must answer within
    /// `within`.
    ///
    /// # Errors
    ///
    /// If the proxy's scheme is neither http nor https.
    pub(super) fn new(
        tcp: HttpConnector,
        proxy: Option<&Uri>,
        within: Duration,
    ) -> Result<Self, Error> {
        let proxy = proxy.map(ConnectProxy::new).transpose()?.map(Arc::new);
        Ok(Self { tcp, proxy, within })
    }
}

impl Service<Uri> for Tunnel {
    type Response = ProxyStream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let Some(proxy) = this.proxy else {
                return Ok(MaybeHttpsStream::Http(this.tcp.oneshot(server).await?));
            };
            match timeout(this.within, proxy.connect(this.tcp, &server)).await {
                Ok(connected) => connected,
                Err(_) => {
                    let within = this.within;
                    Err(proxy.silent(within))
                }
            }
        })
    }
}
