//! Connector of a hook: opens and measures TCP connections and TLS sessions, through a proxy if the
//! environment names one.
//!
//! The times are those of Metacontroller: each counts from the begin of the call that opens the
//! connection. A call to an IP address has no time of a look-up. A call on a kept connection has no
//! time at all.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Uri, uri::Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{
    Connected, Connection, HttpConnector,
    dns::{GaiAddrs, GaiResolver, Name},
};
use rustls::ClientConfig;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt};

use super::route::Routes;
use crate::{
    meta::hooks::metrics::{ConnectEvent, HookSeries},
    transport::ProxyStream,
};

/// Timeout of connecting to one address. `CONNECT` and TLS handshakes are bounded by the call
/// alone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the connections of one hook.
#[derive(Clone)]
pub(super) struct HookConnector {
    tls: Arc<ClientConfig>,
    dialer: HookDialer,
}

/// Opens TCP connections, direct or through a proxy.
#[derive(Clone)]
struct HookDialer {
    routes: Routes,
    clock: ConnectionTiming,
}

/// Resolver that measures each look-up of a name.
#[derive(Clone)]
struct MeasuredResolver(ConnectionTiming);

/// Measurement of one connection.
#[derive(Clone)]
struct ConnectionTiming {
    series: Option<Arc<HookSeries>>,
    begun: Instant,
}

/// Connection to the hook, or to a proxy.
pub(super) struct HookStream {
    stream: ProxyStream,
    /// True if requests are sent to the proxy itself, with their whole URL.
    to_proxy: bool,
}

impl HookConnector {
    pub(super) fn new(tls: ClientConfig, routes: Routes, series: Option<Arc<HookSeries>>) -> Self {
        let clock = ConnectionTiming { series, begun: Instant::now() };
        Self { tls: Arc::new(tls), dialer: HookDialer { routes, clock } }
    }
}

impl Service<Uri> for HookConnector {
    type Response = MaybeHttpsStream<HookStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let mut dialer = self.dialer.clone();
        dialer.clock.begun = Instant::now();
        let clock = dialer.clock.clone();
        let connector = HttpsConnector::from((dialer, Arc::clone(&self.tls)));
        Box::pin(async move {
            let stream = connector.oneshot(url).await?;
            if matches!(stream, MaybeHttpsStream::Https(_)) {
                clock.observe(ConnectEvent::TlsHandshakeDone);
            }
            Ok(stream)
        })
    }
}

impl HookDialer {
    async fn dial(self, url: Uri) -> Result<HookStream, BoxError> {
        let mut tcp = HttpConnector::new_with_resolver(MeasuredResolver(self.clock.clone()));
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let is_secure = url.scheme() == Some(&Scheme::HTTPS);
        let (address, proxy) = (self.routes.address(&url), self.routes.proxy(&url)?);
        let to_proxy = !is_secure && proxy.is_some();
        let stream = match proxy {
            None => MaybeHttpsStream::Http(tcp.oneshot(address).await?),
            Some(proxy) if is_secure => proxy.connect(tcp, &address).await?,
            Some(proxy) => proxy.dial(tcp).await?,
        };
        if is_secure {
            self.clock.observe(ConnectEvent::TlsHandshakeStart);
        }
        Ok(HookStream { stream, to_proxy })
    }
}

impl Service<Uri> for HookDialer {
    type Response = HookStream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<HookStream, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        Box::pin(self.clone().dial(url))
    }
}

impl Service<Name> for MeasuredResolver {
    type Response = GaiAddrs;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<GaiAddrs>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let clock = self.0.clone();
        Box::pin(async move {
            clock.observe(ConnectEvent::DnsStart);
            let addresses = GaiResolver::new().oneshot(name).await;
            clock.observe(ConnectEvent::DnsDone);
            addresses
        })
    }
}

impl ConnectionTiming {
    fn observe(&self, event: ConnectEvent) {
        if let Some(series) = &self.series {
            series.connecting(event, self.begun.elapsed());
        }
    }
}

impl Connection for HookStream {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.to_proxy)
    }
}

impl Read for HookStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for HookStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}
