//! A TLS server to test the transport against.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use hyper::{body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Config;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Sleep, sleep},
};
use tokio_rustls::{TlsAcceptor, rustls};

/// What a server does with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Serve,
    /// Sends GOAWAY on those that are open now.
    GoAway,
    /// Breaks those that are open now.
    Break,
}

pub(super) struct Server {
    config: Config,
    opened: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    open: watch::Sender<usize>,
    order: watch::Sender<Order>,
    _accepting: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(protocols: &[&[u8]], max_streams: u32) -> Self {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            key.signing_key.serialize_der().try_into().unwrap(),
        )
        .unwrap();
        tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = Config::new(format!("https://{address}").parse().unwrap());
        config.root_cert = Some(vec![key.cert.der().to_vec()]);

        let server = Self {
            config,
            opened: Arc::default(),
            refused: Arc::default(),
            open: watch::Sender::new(0),
            order: watch::Sender::new(Order::Serve),
            _accepting: JoinSet::new(),
        };
        let (opened, open) = (server.opened.clone(), server.open.clone());
        let order = server.order.clone();
        let refused = server.refused.clone();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, opened, open) = (acceptor.clone(), opened.clone(), open.clone());
                let refused = refused.clone();
                let mut order = order.subscribe();
                order.mark_unchanged();
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    opened.fetch_add(1, Ordering::SeqCst);
                    open.send_modify(|open| *open += 1);
                    let answer = service_fn(move |request| answer(request, refused.clone()));
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let stream = TokioIo::new(stream);
                    if h2 {
                        let mut builder = conn::http2::Builder::new(TokioExecutor::new());
                        builder.max_concurrent_streams(max_streams);
                        let mut serving = std::pin::pin!(builder.serve_connection(stream, answer));
                        loop {
                            tokio::select! {
                                _ = &mut serving => break,
                                Ok(()) = order.changed() => {
                                    let order = *order.borrow_and_update();
                                    match order {
                                        Order::GoAway => serving.as_mut().graceful_shutdown(),
                                        Order::Break => break,
                                        Order::Serve => {}
                                    }
                                }
                            }
                        }
                    } else {
                        drop(conn::http1::Builder::new().serve_connection(stream, answer).await);
                    }
                    open.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { _accepting: accepting, ..server }
    }

    pub(super) fn config(&self) -> Config {
        self.config.clone()
    }

    /// Streams ever refused.
    pub(super) fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    /// Connections ever accepted.
    pub(super) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    /// Waits until so many connections are open.
    pub(super) async fn open(&self, wanted: usize) {
        self.open.subscribe().wait_for(|open| *open == wanted).await.unwrap();
    }

    pub(super) fn go_away(&self) {
        self.order.send_replace(Order::GoAway);
    }

    pub(super) fn break_all(&self) {
        self.order.send_replace(Order::Break);
    }
}

/// Answers by path: `/silent` never, `/stuck` with a head alone, `/flood` without end, `/trickle`
/// with eight bytes in two seconds, a watch with one line and then nothing, and anything else with
/// `ok`. Refuses the first stream that asks for `/refused-once`.
async fn answer(
    request: Request<Incoming>,
    refused: Arc<AtomicUsize>,
) -> Result<Response<Answer>, h2::Error> {
    let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let body = match request.uri().path() {
        "/silent" => std::future::pending().await,
        "/refused-once" if refused.fetch_max(1, Ordering::SeqCst) == 0 => {
            return Err(h2::Reason::REFUSED_STREAM.into());
        }
        "/stuck" => Answer { first: Some("{"), then: Then::Nothing },
        "/trickle" => {
            Answer { first: None, then: Then::Trickle { left: 8, next: Box::pin(sleep(TRICKLE)) } }
        }
        "/flood" => Answer { first: None, then: Then::Flood },
        _ if watch => Answer { first: Some("{}\n"), then: Then::Nothing },
        _ => Answer { first: Some("ok"), then: Then::End },
    };
    Ok(Response::new(body))
}

struct Answer {
    first: Option<&'static str>,
    then: Then,
}

/// Between two bytes of a trickle.
const TRICKLE: Duration = Duration::from_millis(250);

enum Then {
    End,
    Trickle { left: u32, next: Pin<Box<Sleep>> },
    Nothing,
    Flood,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(first.as_bytes())))));
        }
        match &mut self.then {
            Then::End | Then::Trickle { left: 0, .. } => Poll::Ready(None),
            Then::Trickle { left, next } => {
                ready!(next.as_mut().poll(context));
                *left -= 1;
                next.set(sleep(TRICKLE));
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b".")))))
            }
            Then::Nothing => Poll::Pending,
            Then::Flood => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16384]))))),
        }
    }
}
