//! Opens connections and drives them.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper::client::conn::http2;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::Connection as _,
    rt::{TokioIo, TokioTimer},
};
use kube::client::Body;
use pilotlight_redaction as redaction;
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use tower::{BoxError, Service, ServiceExt};
use tracing::debug;

use super::{
    Error, Lane, TransportOptions,
    connection::Connection,
    error::describe,
    tasks::{ConnectionTasks, PoolTasks},
    tunnel::Tunnel,
};

pub(super) type Connector = HttpsConnector<Tunnel>;

/// Connector whose connections are open, their TLS session included, within a time.
#[derive(Clone)]
pub(super) struct TimedConnector {
    connector: Connector,
    within: Duration,
}

// TLS stream to the server, over that to the proxy.
type Stream = MaybeHttpsStream<MaybeHttpsStream<TokioIo<TcpStream>>>;
type Driver = http2::Connection<Stream, Body, ConnectionTasks>;

/// Bytes that a stream may have buffered while they are not read. A connection may buffer this much
/// for each of its streams, so that slow readers cannot block the others.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Initial limit of streams until the server's settings arrive. An arbitrary number that no server
/// sends, so that their arrival can be detected.
const NO_SETTINGS: usize = 0x5eed;

/// Opens connections to one server.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) server: Uri,
    pub(super) host: Arc<str>,
    connector: Connector,
    pub(super) options: TransportOptions,
    // Number of streams on a connection according to the last settings received; assumed while a
    // connection is being opened.
    pub(super) allowed: Arc<AtomicUsize>,
}

impl Service<Uri> for TimedConnector {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (opened, within) = (self.connector.call(server), self.within);
        Box::pin(async move {
            timeout(within, opened).await.unwrap_or_else(|_| Err(not_open(within).into()))
        })
    }
}

fn not_open(within: Duration) -> String {
    format!("not open within {within:?}")
}

impl Dialer {
    pub(super) fn new(server: Uri, connector: Connector, options: TransportOptions) -> Self {
        let allowed = Arc::new(AtomicUsize::new(options.max_streams.max(1)));
        Self { host: host(&server).into(), server, connector, options, allowed }
    }

    /// Opens a connection and drives it until it is closed.
    pub(super) async fn drive(self, lane: Lane, connection: Arc<Connection>, tasks: PoolTasks) {
        // Retires the connection at the end, also when this future is dropped, so that its waiters
        // wake.
        let ending = RetireGuard(connection);
        let connection = &ending.0;
        let polled = Arc::new(Notify::new());
        let executor = ConnectionTasks::new(tasks, &polled);
        let within = self.options.connect_timeout;
        let opened = match timeout(within, self.open(lane, executor, polled)).await {
            Ok(opened) => opened,
            Err(_) => Err(self.error(not_open(within))),
        };
        let (sender, driver) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => return connection.is_http1(),
            Err(error) => return connection.failed(error),
        };
        let allowed = |driver: &Driver| {
            driver.current_max_send_streams().clamp(1, self.options.max_streams.max(1))
        };
        self.allowed.store(allowed(&driver), Ordering::Relaxed);
        connection.opened(sender, allowed(&driver));

        let mut driver = driver;
        let driven = poll_fn(|context| {
            let end = pin!(&mut driver).poll(context);
            connection.limit(allowed(&driver));
            end
        });
        let idle = async {
            loop {
                connection.emptied().await;
                // Another stream that ends meanwhile restarts the wait.
                while timeout(self.options.idle_timeout, connection.emptied()).await.is_ok() {}
                if connection.retire_if_empty() {
                    break;
                }
            }
        };
        let mut driven = pin!(driven);
        tokio::select! {
            end = &mut driven => match end {
                Ok(()) => debug!(host = %self.host, "the connection ended"),
                Err(error) => debug!(host = %self.host, error = describe(&error), "the connection broke"),
            },
            () = idle => debug!(host = %self.host, "closing an idle connection"),
        }
    }

    /// Opens a connection and waits for the server's settings, which contain the limit of streams.
    /// `None` if the server does not speak HTTP/2.
    async fn open(
        &self,
        lane: Lane,
        executor: ConnectionTasks,
        polled: Arc<Notify>,
    ) -> Result<Option<(http2::SendRequest<Body>, Driver)>, Error> {
        let stream = self.connector.clone().oneshot(self.server.clone()).await;
        let stream = stream.map_err(|error| self.error(describe(&*error)))?;
        if !stream.connected().is_negotiated_h2() {
            return Ok(None);
        }
        let streams = u32::try_from(self.options.max_streams).unwrap_or(u32::MAX);
        let window = STREAM_WINDOW_BYTES.saturating_mul(streams.max(1)).min(i32::MAX as u32);
        let options = &self.options;
        let (interval, timeout) = match lane {
            Lane::Requests | Lane::Watches => {
                (options.keep_alive_interval, options.keep_alive_timeout)
            }
            // A dead connection must be detected before it costs the lease.
            Lane::Leases => (options.lease_timeout / 2, options.lease_timeout / 2),
        };
        let (sender, mut driver) = http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .initial_max_send_streams(NO_SETTINGS)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(window)
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true)
            .handshake(stream)
            .await
            .map_err(|error| self.error(describe(&error)))?;
        while driver.current_max_send_streams() == NO_SETTINGS {
            tokio::select! {
                end = &mut driver => {
                    let why = end.err().map_or_else(
                        || "closed by the server".to_owned(),
                        |error| describe(&error),
                    );
                    return Err(self.error(why));
                }
                () = polled.notified() => {}
            }
        }
        Ok(Some((sender, driver)))
    }

    /// Connector for HTTP/1.1, whose connections the client of hyper-util drives.
    pub(super) fn http1(&self) -> TimedConnector {
        TimedConnector { connector: self.connector.clone(), within: self.options.connect_timeout }
    }

    pub(super) fn error(&self, message: String) -> Error {
        Error::Connect { host: self.host.to_string(), message }
    }
}

struct RetireGuard(Arc<Connection>);

impl Drop for RetireGuard {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// Returns host and port of a server. Its user and password would become a label of every metric.
pub(super) fn host(server: &Uri) -> String {
    server.authority().map(redaction::url).unwrap_or_default()
}
