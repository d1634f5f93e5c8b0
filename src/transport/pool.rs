//! The connections of a transport, and the tasks that drive them.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::{client::conn::http2, rt::Executor};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connection as _, HttpConnector},
    },
    rt::{TokioIo, TokioTimer},
};
use kube::client::Body;
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{BoxError, Service, ServiceExt};
use tracing::{debug, info};

use super::{
    Error, Lane, TransportOptions,
    body::{Held, ResponseBody},
    connection::{Connection, Opened, Slot},
    describe, host,
};

type Connector = HttpsConnector<HttpConnector>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// How often a request may meet a connection that was closed under it, before it is an error.
const ATTEMPTS: usize = 5;

/// What a stream may have buffered while nobody reads it, in bytes. A connection may have as much
/// for each of its streams, so that readers who are slow cannot hold up those who are not.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// No server allows so many streams: the value that stands until it has said how many it allows.
const NOT_SAID: usize = 0x5eed;

/// The connections to one server. Their tasks end when it is dropped.
pub(super) struct Pool {
    dialer: Dialer,
    lanes: [Mutex<Vec<Arc<Connection>>>; 3],
    http1: legacy::Client<Connector, Body>,
    // Set once the server has been found to speak nothing better; asked once in a process.
    http1_only: AtomicBool,
    tasks: Tasks,
}

impl Pool {
    pub(super) fn new(dialer: Dialer) -> Self {
        let tasks = Tasks::default();
        // The pool of hyper-util does well with HTTP/1.1, where a connection has one request.
        let http1 = legacy::Client::builder(tasks.clone())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(dialer.options.idle_timeout)
            .build(dialer.connector.clone());
        let http1_only = dialer.server.scheme() == Some(&http::uri::Scheme::HTTP);
        Self { dialer, lanes: Default::default(), http1, http1_only: http1_only.into(), tasks }
    }

    /// HTTP/2 connections that are open or being opened.
    pub(super) fn connections(&self) -> usize {
        let open = |lane: &Mutex<Vec<Arc<Connection>>>| {
            let lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
            lane.iter().filter(|connection| connection.usable()).count()
        };
        self.lanes.iter().map(open).sum()
    }

    /// Ends every task and waits for them.
    pub(super) async fn close(&self) {
        self.tasks.token.cancel();
        self.tasks.tracker.close();
        self.tasks.tracker.wait().await;
    }

    /// A place for one request: on the first connection that has one, else on a new one.
    fn slot(self: &Arc<Self>, lane: Lane) -> Slot {
        let connections = match lane {
            Lane::Requests => &self.lanes[0],
            Lane::Watches => &self.lanes[1],
            Lane::Leases => &self.lanes[2],
        };
        let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.usable());
        // First come, first filled: the later ones run empty and are closed.
        if let Some(slot) = connections.iter().find_map(|connection| connection.slot(self)) {
            return slot;
        }
        let dialer = self.dialer.clone();
        let connection = Arc::new(Connection::opening(dialer.allowed.load(Ordering::Relaxed)));
        let slot = connection.slot(self).expect("a new connection has a place");
        let driver = dialer.drive(lane, connection.clone(), self.tasks.clone());
        debug!(lane = lane.word(), connections = connections.len() + 1, "opening a connection");
        connections.push(connection);
        drop(connections);
        self.tasks.execute(driver);
        slot
    }

    async fn send(
        self: Arc<Self>,
        mut request: Request<Body>,
    ) -> Result<Response<ResponseBody>, Error> {
        let lane = Lane::of(&request);
        let mut last = self.dialer.error("closed as soon as it was open".to_owned());
        for _ in 0..ATTEMPTS {
            if self.tasks.token.is_cancelled() {
                return Err(Error::Closed);
            }
            if self.http1_only.load(Ordering::Relaxed) {
                let answer = self.http1.request(request).await;
                let response = answer.map_err(|error| self.broken(&error))?;
                let (host, held) = (self.dialer.host.clone(), Held::Pool(self));
                return Ok(response.map(|body| ResponseBody::new(body, host, held)));
            }
            let slot = self.slot(lane);
            let mut sender = match slot.opened().await? {
                Opened::Http2(sender) => sender,
                Opened::Http1 => {
                    self.http1_only.store(true, Ordering::Relaxed);
                    continue;
                }
                Opened::Elsewhere => continue,
            };
            let spare = spare(&request);
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => {
                    let (host, held) = (self.dialer.host.clone(), Held::Slot(slot));
                    return Ok(response.map(|body| ResponseBody::new(body, host, held)));
                }
                Err(error) => error,
            };
            last = self.broken(error.error());
            let unsent = match error.take_message() {
                Some(unsent) => Some(unsent),
                None if never_looked_at(error.error()) => spare,
                None => None,
            };
            let Some(unsent) = unsent else { return Err(last) };
            debug!(error = %last, "the connection was closed under a request, sent again");
            slot.retire_connection();
            request = unsent;
        }
        Err(last)
    }

    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        Error::Broken { host: self.dialer.host.to_string(), message: describe(error) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.tasks.token.cancel();
    }
}

/// The request once more, where its body allows it.
fn spare(request: &Request<Body>) -> Option<Request<Body>> {
    let mut spare = Request::new(request.body().try_clone()?);
    *spare.method_mut() = request.method().clone();
    *spare.uri_mut() = request.uri().clone();
    *spare.headers_mut() = request.headers().clone();
    Some(spare)
}

/// Whether the server said that it did nothing about a request: it refused the stream, or it was
/// closing the connection and the stream came after the last one that it would look at.
fn never_looked_at(error: &hyper::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let closing = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
            let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (closing || refused);
        }
        cause = error.source();
    }
    false
}

/// What it takes to open a connection.
#[derive(Clone)]
pub(super) struct Dialer {
    server: Uri,
    host: Arc<str>,
    connector: Connector,
    options: TransportOptions,
    // Streams on a connection, as far as is known: what is counted on while one is being opened.
    allowed: Arc<AtomicUsize>,
}

impl Dialer {
    pub(super) fn new(server: Uri, connector: Connector, options: TransportOptions) -> Self {
        let allowed = Arc::new(AtomicUsize::new(options.max_streams.max(1)));
        Self { host: host(&server).into(), server, connector, options, allowed }
    }

    /// Opens a connection and drives it until it is closed.
    async fn drive(self, lane: Lane, connection: Arc<Connection>, tasks: Tasks) {
        // Whoever waits for the connection is told, also when this is dropped.
        let ending = Ending(connection);
        let connection = &ending.0;
        let polled = Arc::new(Notify::new());
        let executor = Watched { tasks, polled: Arc::downgrade(&polled) };
        let within = self.options.connect_timeout;
        let opened = match timeout(within, self.open(lane, executor, polled)).await {
            Ok(opened) => opened,
            Err(_) => Err(self.error(format!("not open within {within:?}"))),
        };
        let (sender, driver) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                info!(host = %self.host, "the API server does not speak HTTP/2, using HTTP/1.1");
                return connection.is_http1();
            }
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
                // Another stream that comes and goes meanwhile begins the wait anew.
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

    /// An open connection over which the server has said how many streams it allows, or none
    /// when it does not speak HTTP/2.
    async fn open(
        &self,
        lane: Lane,
        executor: Watched,
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
            // A dead connection must be found before the lease is lost over it.
            Lane::Leases => (options.lease_timeout / 2, options.lease_timeout / 2),
        };
        let (sender, mut driver) = http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .initial_max_send_streams(NOT_SAID)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(window)
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true)
            .handshake(stream)
            .await
            .map_err(|error| self.error(describe(&error)))?;
        while driver.current_max_send_streams() == NOT_SAID {
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

    fn error(&self, message: String) -> Error {
        Error::Connect { host: self.host.to_string(), message }
    }
}

type Driver = http2::Connection<Stream, Body, Watched>;

struct Ending(Arc<Connection>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// The tasks of a pool: they end when its token is cancelled.
#[derive(Clone, Default)]
struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        let token = self.token.clone();
        drop(self.tracker.spawn(async move { token.run_until_cancelled_owned(future).await }));
    }
}

/// Rings whenever one of a connection's tasks has been polled, until nobody listens any more:
/// hyper tells nobody that the server's settings have arrived.
#[derive(Clone)]
struct Watched {
    tasks: Tasks,
    polled: Weak<Notify>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Watched {
    fn execute(&self, future: F) {
        let polled = self.polled.clone();
        self.tasks.execute(async move {
            let mut future = pin!(future);
            poll_fn(|context| {
                let end = future.as_mut().poll(context);
                if let Some(polled) = polled.upgrade() {
                    polled.notify_one();
                }
                end
            })
            .await;
        });
    }
}

/// The pool as a service.
#[derive(Clone)]
pub(super) struct PoolService(Arc<Pool>);

impl PoolService {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self(pool)
    }
}

impl Service<Request<Body>> for PoolService {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let pool = self.0.clone();
        Box::pin(async move { pool.send(request).await.map_err(BoxError::from) })
    }
}
