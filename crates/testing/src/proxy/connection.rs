//! Connections of a proxy, and the forwarding of their requests.

use std::{future::Future, pin::pin, sync::Arc};

use http::{HeaderMap, Request, Response, Uri, Version, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use kube::{Client, client::Body};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{BoxError, Layer, Service, util::BoxCloneSyncService};

use super::{flush::FlushedBody, wire::Wire};
use crate::{FaultBody, Faults};

/// Headers of one connection (RFC 9110, 7.6.1), and the name of the host.
const OF_A_CONNECTION: [header::HeaderName; 7] = [
    header::HOST,
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Tasks that end with their proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyTasks {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl ProxyTasks {
    pub(super) fn cancel(&self) {
        self.token.cancel();
    }

    /// Aborts them and waits for their end.
    pub(super) async fn end(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for ProxyTasks {
    fn execute(&self, future: F) {
        let token = self.token.clone();
        drop(self.tracker.spawn(async move { token.run_until_cancelled_owned(future).await }));
    }
}

/// Target of requests, with faults in front.
#[derive(Clone)]
pub(super) struct ProxyTarget {
    service: BoxCloneSyncService<Request<Body>, Response<FaultBody>, BoxError>,
}

impl ProxyTarget {
    pub(super) fn new(client: Client, faults: &Faults) -> Self {
        let client = Arc::new(client);
        let service = tower::service_fn(move |request: Request<Body>| {
            let client = Arc::clone(&client);
            async move { client.send(request).await }
        });
        Self { service: BoxCloneSyncService::new(faults.layer().layer(service)) }
    }

    /// Passes one request on; an error aborts the response: the connection, or the stream of it.
    async fn pass(mut self, request: Request<Incoming>) -> Result<Response<FlushedBody>, BoxError> {
        let (mut head, body) = request.into_parts();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        head.uri = target.parse::<Uri>()?;
        head.version = Version::HTTP_11;
        drop_headers_of_a_connection(&mut head.headers);
        // kube's client accepts no stream; requests to an API server and to hooks are finite.
        let body = body.collect().await?.to_bytes();
        let request = Request::from_parts(head, Body::from(body));
        let mut response = self.service.call(request).await?;
        *response.version_mut() = Version::HTTP_11;
        drop_headers_of_a_connection(response.headers_mut());
        Ok(response.map(FlushedBody::new))
    }
}

fn drop_headers_of_a_connection(headers: &mut HeaderMap) {
    for name in OF_A_CONNECTION {
        headers.remove(name);
    }
}

/// Shared state of all connections.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) upstream: ProxyTarget,
    pub(super) acceptor: Option<TlsAcceptor>,
    pub(super) wire: Wire,
    /// Number of open connections.
    pub(super) open: watch::Sender<usize>,
    pub(super) tasks: ProxyTasks,
}

impl Serving {
    /// Serves until `stop` is cancelled; its connections end with it.
    pub(super) async fn accept(self, listener: TcpListener, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(self.clone().serve(stream))),
                    // The client has disconnected, or no descriptor is free.
                    Err(_) => tokio::task::yield_now().await,
                },
            }
        }
        connections.shutdown().await;
    }

    async fn serve(self, stream: TcpStream) {
        let _open = Open::count(self.open.clone());
        // Responses are passed on at once.
        stream.set_nodelay(true).ok();
        let (socket, reset) = self.wire.enter(stream);
        if socket.is_black_hole() {
            reset.cancelled().await;
            return;
        }
        match self.acceptor.clone() {
            None => {
                let answering = self.answer(socket);
                reset.run_until_cancelled(answering).await;
            }
            Some(acceptor) => {
                let mut accepting = pin!(acceptor.accept(socket));
                let Some(Ok(stream)) = reset.run_until_cancelled(&mut accepting).await else {
                    return;
                };
                let answering = self.answer(stream);
                reset.run_until_cancelled(answering).await;
            }
        }
    }

    async fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let upstream = self.upstream.clone();
        let service = service_fn(move |request| upstream.clone().pass(request));
        // The end of a connection is the client's to judge.
        auto::Builder::new(self.tasks.clone())
            .serve_connection(TokioIo::new(stream), service)
            .await
            .ok();
    }
}

/// Counts a connection while it is open.
struct Open(watch::Sender<usize>);

impl Open {
    fn count(open: watch::Sender<usize>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}
