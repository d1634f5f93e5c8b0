//! State of one connection: being opened, open, or closed to new streams.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hyper::client::conn::http2;
use kube::client::Body;
use tokio::sync::{Notify, watch};

use super::Error;

/// Added to the number of streams of a retired connection. Larger than any limit of streams, so
/// that no place is ever free again.
const RETIRED: usize = usize::MAX / 2;

/// Connection as the pool and its streams see it; the task that drives it is in `dialer.rs`.
pub(super) struct Connection {
    state: watch::Sender<ConnectionState>,
    // Number of streams with a place; RETIRED or more once the connection accepts no more.
    streams: AtomicUsize,
    limit: AtomicUsize,
    // Notified when the last stream leaves.
    emptied: Notify,
    origin: ConnectionOrigin,
}

/// Circumstances under which a connection was begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionOrigin {
    /// Number among the connections of the pool.
    pub(super) serial: u64,
    /// Generation of the client certificate.
    pub(super) identity: u64,
}

#[derive(Clone)]
enum ConnectionState {
    Opening,
    Http2(http2::SendRequest<Body>),
    /// The server does not speak HTTP/2.
    Http1,
    Closed,
    Failed(Error),
}

/// Outcome of opening a connection, for a request that waits for it.
pub(super) enum OpenOutcome {
    Http2(http2::SendRequest<Body>),
    Http1,
    /// Use another connection: this one is closed, or the server allows fewer streams than were
    /// assumed while it was being opened.
    Elsewhere,
}

impl Connection {
    /// Creates a connection that is being opened, with places for `limit` streams.
    pub(super) fn opening(limit: usize, origin: ConnectionOrigin) -> Self {
        Self {
            origin,
            state: watch::Sender::new(ConnectionState::Opening),
            streams: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            emptied: Notify::new(),
        }
    }

    /// Takes a place for a stream; `None` if all are taken.
    pub(super) fn slot(self: &Arc<Self>, owner: &ConnectionOwner) -> Option<Slot> {
        let limit = self.limit.load(Ordering::Acquire);
        let streams = &self.streams;
        streams
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |streams| {
                (streams < limit).then_some(streams + 1)
            })
            .ok()?;
        Some(Slot { connection: self.clone(), _owner: owner.clone() })
    }

    /// Generation of the client certificate with which it was opened.
    pub(super) fn identity(&self) -> u64 {
        self.origin.identity
    }

    /// Returns whether the connection is not retired, so that new streams may find a place.
    pub(super) fn usable(&self) -> bool {
        self.streams.load(Ordering::Acquire) < RETIRED
    }

    /// Records that the connection is open, with the number of streams that the server allows. If
    /// it was retired meanwhile, `sender` is dropped, so that it closes.
    pub(super) fn opened(&self, sender: http2::SendRequest<Body>, limit: usize) {
        self.limit(limit);
        self.state.send_if_modified(|state| {
            let opening = matches!(state, ConnectionState::Opening);
            if opening {
                *state = ConnectionState::Http2(sender);
            }
            opening
        });
    }

    /// Sets the number of streams that the server now allows.
    pub(super) fn limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Release);
    }

    /// Records that the server speaks only HTTP/1.1.
    pub(super) fn is_http1(&self) {
        self.end(ConnectionState::Http1);
    }

    /// Records that the connection could not be opened.
    pub(super) fn failed(&self, error: Error) {
        self.end(ConnectionState::Failed(error));
    }

    /// Retires the connection: it accepts no more streams, and those that it has continue.
    pub(super) fn retire(&self) {
        self.end(ConnectionState::Closed);
    }

    fn end(&self, state: ConnectionState) {
        // Places that are held stay counted above RETIRED, so returning them cannot revive the
        // connection.
        let retire = |streams: usize| (streams < RETIRED).then(|| streams + RETIRED);
        if self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, retire).is_ok() {
            self.state.send_replace(state);
        }
    }

    /// Retires the connection if it has no stream at this moment; returns whether it did.
    pub(super) fn retire_if_empty(&self) -> bool {
        let retired =
            self.streams.compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if retired {
            self.state.send_replace(ConnectionState::Closed);
        }
        retired
    }

    /// Waits until the last stream may have left since the last call. Cancel safe.
    pub(super) async fn emptied(&self) {
        self.emptied.notified().await;
    }
}

/// Owner of connections, the pool, which ends them when it is dropped.
pub(super) type ConnectionOwner = Arc<dyn Any + Send + Sync>;

/// Place of one stream on a connection, returned when dropped. Keeps the owner, and thereby the
/// connection, alive.
pub(super) struct Slot {
    connection: Arc<Connection>,
    _owner: ConnectionOwner,
}

impl Slot {
    /// Waits until the connection is open or has ended.
    ///
    /// # Errors
    ///
    /// The error with which opening failed.
    pub(super) async fn opened(&self) -> Result<OpenOutcome, Error> {
        let mut state = self.connection.state.subscribe();
        let state = state.wait_for(|state| !matches!(state, ConnectionState::Opening)).await;
        match state.as_deref() {
            Ok(ConnectionState::Http2(sender)) => {
                let limit = self.connection.limit.load(Ordering::Acquire);
                let crowded = self.connection.streams.load(Ordering::Acquire) > limit;
                Ok(if crowded {
                    OpenOutcome::Elsewhere
                } else {
                    OpenOutcome::Http2(sender.clone())
                })
            }
            Ok(ConnectionState::Http1) => Ok(OpenOutcome::Http1),
            Ok(ConnectionState::Failed(error)) => Err(error.clone()),
            Ok(ConnectionState::Opening | ConnectionState::Closed) | Err(_) => {
                Ok(OpenOutcome::Elsewhere)
            }
        }
    }

    /// Number of the connection among those of the pool.
    pub(super) fn serial(&self) -> u64 {
        self.connection.origin.serial
    }

    /// Retires the connection: it accepts no more streams.
    pub(super) fn retire_connection(&self) {
        self.connection.retire();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let before = self.connection.streams.fetch_sub(1, Ordering::AcqRel);
        if before == 1 {
            self.connection.emptied.notify_one();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("streams", &self.streams)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
