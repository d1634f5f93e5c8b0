//! Pool of the connections of a transport.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Request, Response, header::UPGRADE};
use hyper::rt::Executor;
use hyper_util::{client::legacy, rt::TokioTimer};
use kube::client::Body;
use parking_lot::{Mutex, MutexGuard};
use pilotlight_redaction as redaction;
use tokio::time::Instant;
use tower::{BoxError, Service};
use tracing::{debug, info};

use super::{
    Error, Lane,
    body::{ConnectionHold, ResponseBody},
    connection::{Connection, ConnectionOrigin, ConnectionOwner, OpenOutcome, Slot},
    dialer::{Dialer, TimedConnector},
    error::describe,
    identity::Identity,
    tasks::PoolTasks,
};

/// New connections to try for one request before it fails, if each ends before it can be used.
/// Connections that existed before the request are not counted, since all of them may drain at
/// once.
const ATTEMPTS: usize = 5;

/// Time before HTTP/2 is tried again with a server that has spoken only HTTP/1.1. A proxy or an
/// older server may have answered for it temporarily.
const HTTP1_FOR: Duration = Duration::from_secs(300);

/// Maximum number of idle connections over HTTP/1.1; that of client-go (`transport/cache.go`). Each
/// takes about 20 KiB.
const HTTP1_IDLE: usize = 25;

/// Connections to one server. Their tasks end when the pool is dropped.
pub(super) struct Pool {
    dialer: Dialer,
    identity: Arc<Identity>,
    lanes: [Mutex<Vec<Arc<Connection>>>; 3],
    /// Number of HTTP/2 connections begun so far.
    begun: AtomicU64,
    http1: Mutex<Http1>,
    tasks: PoolTasks,
}

/// State of the fallback to HTTP/1.1.
struct Http1 {
    client: legacy::Client<TimedConnector, Body>,
    /// Generation of the client certificate with which the client's connections are opened.
    identity: u64,
    until: Until,
    /// True if the fallback has been logged.
    reported: bool,
}

/// Validity of the fallback to HTTP/1.1.
#[derive(Clone, Copy)]
enum Until {
    /// HTTP/2 is spoken.
    Past,
    /// HTTP/1.1 is spoken until this time, then HTTP/2 is tried again.
    Then(Instant),
    /// HTTP/1.1 is spoken for ever: without TLS, HTTP/2 is not used.
    End,
}

impl Pool {
    pub(super) fn new(dialer: Dialer, identity: Arc<Identity>) -> Self {
        let tasks = PoolTasks::new(dialer.options.metrics.tasks(&dialer.host));
        let plain = dialer.server.scheme() == Some(&http::uri::Scheme::HTTP);
        let http1 = Http1 {
            client: http1_client(&dialer, &tasks),
            identity: identity.generation(),
            until: if plain { Until::End } else { Until::Past },
            reported: false,
        };
        Self {
            dialer,
            identity,
            lanes: Default::default(),
            begun: AtomicU64::new(0),
            http1: Mutex::new(http1),
            tasks,
        }
    }

    /// Owner of the tasks of these connections.
    pub(super) fn tasks(&self) -> &PoolTasks {
        &self.tasks
    }

    /// Number of HTTP/2 connections that are open or being opened.
    pub(super) fn connections(&self) -> usize {
        let open = |lane: &Mutex<Vec<Arc<Connection>>>| {
            let lane = lane.lock();
            lane.iter().filter(|connection| connection.usable()).count()
        };
        self.lanes.iter().map(open).sum()
    }

    /// Cancels every task and waits for their end.
    pub(super) async fn close(&self) {
        self.tasks.end().await;
    }

    /// Takes a place for one request: on the first connection that has one, else on a new one.
    fn slot(self: &Arc<Self>, lane: Lane) -> Slot {
        let connections = match lane {
            Lane::Requests => &self.lanes[0],
            Lane::Watches => &self.lanes[1],
            Lane::Leases => &self.lanes[2],
        };
        let mut connections = connections.lock();
        let identity = self.identity.generation();
        for old in connections.iter().filter(|connection| connection.identity() != identity) {
            // The streams of the old connection continue, and it closes after the last one.
            old.retire();
        }
        connections.retain(|connection| connection.usable());
        let owner: ConnectionOwner = self.clone();
        // Earlier connections are filled first, so that later ones become idle and are closed.
        if let Some(slot) = connections.iter().find_map(|connection| connection.slot(&owner)) {
            return slot;
        }
        let dialer = self.dialer.clone();
        let origin =
            ConnectionOrigin { serial: self.begun.fetch_add(1, Ordering::Relaxed), identity };
        let connection =
            Arc::new(Connection::opening(dialer.allowed.load(Ordering::Relaxed), origin));
        let slot = connection.slot(&owner).expect("a new connection has a place");
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
        let mut last = self.dialer.error("closed before its first request".to_owned());
        let begun_before = self.begun.load(Ordering::Relaxed);
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            if self.tasks.are_cancelled() {
                return Err(Error::Closed);
            }
            if let Some(client) = self.http1() {
                let answer = client.request(request).await;
                let response = answer.map_err(|error| match error.is_connect() {
                    true => self.dialer.error(describe(&error)),
                    false => self.broken(&error),
                })?;
                let (host, held) = (self.dialer.host.clone(), ConnectionHold::Pool(self));
                return Ok(response.map(|body| ResponseBody::new(body, host, held)));
            }
            let slot = self.slot(lane);
            if slot.serial() >= begun_before {
                attempts += 1;
            }
            let mut sender = match slot.opened().await? {
                OpenOutcome::Http2(sender) => sender,
                OpenOutcome::Http1 => {
                    self.fall_back();
                    continue;
                }
                OpenOutcome::Elsewhere => continue,
            };
            let copy = copy(&request);
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => {
                    let (host, held) = (self.dialer.host.clone(), ConnectionHold::Slot(slot));
                    return Ok(response.map(|body| ResponseBody::new(body, host, held)));
                }
                Err(error) => error,
            };
            last = self.broken(error.error());
            let unsent = match error.take_message() {
                Some(unsent) => Some(unsent),
                None if was_not_processed(error.error()) => copy,
                None => None,
            };
            let Some(unsent) = unsent else { return Err(last) };
            debug!(error = %last, "connection closed, retrying the unprocessed request");
            slot.retire_connection();
            request = unsent;
        }
        Err(last)
    }

    /// Client for HTTP/1.1, if the server does not speak HTTP/2.
    fn http1(&self) -> Option<legacy::Client<TimedConnector, Body>> {
        let mut http1 = self.http1_state();
        match http1.until {
            Until::Past => return None,
            Until::Then(then) if then <= Instant::now() => {
                http1.until = Until::Past;
                return None;
            }
            Until::Then(_) | Until::End => {}
        }
        let identity = self.identity.generation();
        if http1.identity != identity {
            // Requests under way end with the old client, whose idle connections close now.
            http1.client = http1_client(&self.dialer, &self.tasks);
            http1.identity = identity;
        }
        Some(http1.client.clone())
    }

    /// Falls back to HTTP/1.1 for a while, since the server does not speak HTTP/2.
    fn fall_back(&self) {
        let mut http1 = self.http1_state();
        if matches!(http1.until, Until::Past) {
            if !std::mem::replace(&mut http1.reported, true) {
                let host = &self.dialer.host;
                info!(%host, "the API server does not speak HTTP/2, using HTTP/1.1");
            }
            http1.until = Until::Then(Instant::now() + HTTP1_FOR);
        }
    }

    fn http1_state(&self) -> MutexGuard<'_, Http1> {
        self.http1.lock()
    }

    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        Error::Broken { host: self.dialer.host.to_string(), message: describe(error) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

/// The pool of hyper-util does well with HTTP/1.1, where a connection has one request.
fn http1_client(dialer: &Dialer, tasks: &PoolTasks) -> legacy::Client<TimedConnector, Body> {
    legacy::Client::builder(tasks.clone())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(dialer.options.idle_timeout)
        .pool_max_idle_per_host(HTTP1_IDLE)
        .build(dialer.http1())
}

/// Clones a request, if its body can be cloned.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// Returns whether the server reported that it did not process a request. It refused the stream, or
/// it was closing the connection and the stream came after the last one that it would process.
pub fn was_not_processed(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = redaction::chain(error).find_map(|error| error.downcast_ref::<h2::Error>());
    error.is_some_and(|error| {
        let closing = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (closing || refused)
    })
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
        Box::pin(async move {
            if request.headers().contains_key(UPGRADE) {
                let path = request.uri().path().to_owned();
                return Err(Error::Upgrade { path }.into());
            }
            pool.send(request).await.map_err(BoxError::from)
        })
    }
}
