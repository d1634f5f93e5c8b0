//! Connections of the server, bounded in number, bytes and time.
//!
//! Every pod of the cluster may connect. Without bounds, clients that send an endless header, or
//! read no response, would take the memory of the process and the connections of its probes.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    task::{AbortHandle, JoinSet, yield_now},
    time::{Instant, sleep, sleep_until},
};
use tower::ServiceExt;
use tracing::warn;

use crate::manager::Epoch;

/// Largest number of connections of one listener; probes and scrapes need a few.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Time for a request's header to arrive. Also the longest time between two requests.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest header of a request in bytes; those of kubelets and scrapers have less than 1 KiB.
pub(super) const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Time from a request's header until its response is sent.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a page to answer. The rest of the request's time is for sending an error.
const PAGE_TIMEOUT: Duration = Duration::from_secs(9);
/// Pause after a failed accept, as of a process that has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Time at which a connection is closed. A request moves it.
#[derive(Clone)]
struct Deadline(Arc<Mutex<Instant>>);

/// Serves the connections of a listener until the epoch stops, and then until each is closed.
///
/// A connection more than [`MAX_CONNECTIONS`] closes the oldest one, so that idle clients keep no
/// probe waiting.
pub(super) async fn serve(listener: TcpListener, pages: Router, epoch: Epoch) {
    let stop = epoch.token();
    // From the oldest to the newest.
    let (mut tasks, mut open) = (JoinSet::new(), Vec::<AbortHandle>::new());
    loop {
        let accepted = select! {
            biased;
            () = stop.cancelled() => break,
            // A panic of a page has been logged, and ends its connection alone.
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                make_room(&mut open);
                open.push(tasks.spawn(drive(stream, pages.clone(), epoch.clone())));
                // Reads its request, before the next connection takes the place of one without.
                yield_now().await;
            }
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                warn!(%error, "accepting a connection failed; the next attempt is in 1 s");
                stop.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Closes the oldest connection if there is no room for another one.
fn make_room(open: &mut Vec<AbortHandle>) {
    open.retain(|connection| !connection.is_finished());
    if open.len() >= MAX_CONNECTIONS {
        open.remove(0).abort();
    }
}

/// Serves one connection until it ends or its deadline has passed.
async fn drive(stream: TcpStream, pages: Router, epoch: Epoch) {
    let deadline = Deadline::after(HEADER_TIMEOUT);
    let (stop, requested) = (epoch.token(), deadline.clone());
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        requested.set(REQUEST_TIMEOUT);
        respond(pages.clone(), request.map(Body::new), epoch.clone())
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut is_stopping = false;
    loop {
        select! {
            // An error of a connection is its client's.
            _ended = &mut connection => return,
            () = deadline.passed() => return,
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Returns the response of a page, or an error if it is late: no page may outlive the grace.
async fn respond(pages: Router, request: Request, epoch: Epoch) -> Result<Response, Infallible> {
    let unavailable = |message| Ok((StatusCode::SERVICE_UNAVAILABLE, message).into_response());
    select! {
        response = pages.oneshot(request) => response,
        () = sleep(PAGE_TIMEOUT) => unavailable("the page took longer than 9 s\n"),
        () = epoch.wait_grace_over() => unavailable("the server has stopped\n"),
    }
}

/// Returns whether a failed accept is about one client, and says nothing about the next one.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

impl Deadline {
    fn after(time: Duration) -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + time)))
    }

    fn get(&self) -> Instant {
        *self.0.lock()
    }

    fn set(&self, after: Duration) {
        *self.0.lock() = Instant::now() + after;
    }

    /// Waits until the deadline has passed, also if it is moved meanwhile.
    async fn passed(&self) {
        while self.get() > Instant::now() {
            sleep_until(self.get()).await;
        }
    }
}
