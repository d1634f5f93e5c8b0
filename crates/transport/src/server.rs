//! TLS server for tests of the transport.

use std::{
    collections::HashSet,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{AUTHORIZATION, USER_AGENT},
};
use http_body::Frame;
use hyper::{body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Config;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, DnType, IsCa, KeyPair,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Sleep, sleep},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, RootCertStore, server::WebPkiClientVerifier},
};

/// Behaviour of a server towards its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Serve,
    /// Sends GOAWAY on the open connections.
    GoAway,
    /// Breaks the open connections.
    Break,
    /// Refuses every further stream on the open connections.
    RefuseStreams,
}

/// Client certificate with its key, as PEM.
pub(super) struct ClientPem {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Request that a server has received.
#[derive(Clone, Debug)]
pub(super) struct Received {
    /// Method and path with its query.
    pub(super) line: String,
    pub(super) user_agent: String,
}

pub(super) struct Server {
    config: Config,
    shared: Shared,
    authority: CertifiedIssuer<'static, KeyPair>,
    _accepting: JoinSet<()>,
}

/// State that a server shares with its connections.
#[derive(Clone)]
struct Shared {
    max_streams: u32,
    received: Arc<Mutex<Vec<Received>>>,
    /// True while TLS handshakes wait.
    held: watch::Sender<bool>,
    /// TCP connections whose TLS handshake waits.
    waiting: watch::Sender<usize>,
    opened: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    open: watch::Sender<usize>,
    order: watch::Sender<Order>,
    tls: Arc<Mutex<rustls::ServerConfig>>,
    unauthorized: Arc<Mutex<HashSet<String>>>,
}

impl Server {
    pub(super) async fn start(protocols: &[&[u8]], max_streams: u32) -> Self {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = Config::new(format!("https://{address}").parse().unwrap());
        config.root_cert = Some(vec![key.cert.der().to_vec()]);
        let shared = Shared {
            max_streams,
            received: Arc::default(),
            held: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
            opened: Arc::default(),
            refused: Arc::default(),
            open: watch::Sender::new(0),
            order: watch::Sender::new(Order::Serve),
            tls: Arc::new(Mutex::new(tls(&key, &authority, protocols))),
            unauthorized: Arc::default(),
        };

        let accepting = shared.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(accepting.serve(stream));
            }
        });
        Self { config, shared, authority, _accepting: tasks }
    }

    pub(super) fn config(&self) -> Config {
        self.config.clone()
    }

    /// Requests ever received, in their order.
    pub(super) fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// Waits until a request with this line has been received.
    pub(super) async fn receives(&self, line: &str) {
        while !self.received().iter().any(|received| received.line == line) {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Finishes no TLS handshake from now on, until [`Server::resume_handshakes`].
    pub(super) fn hold_handshakes(&self) {
        self.shared.held.send_replace(true);
    }

    pub(super) fn resume_handshakes(&self) {
        self.shared.held.send_replace(false);
    }

    /// Waits until so many connections wait for their TLS handshake.
    pub(super) async fn waiting(&self, wanted: usize) {
        self.shared.waiting.subscribe().wait_for(|waiting| *waiting == wanted).await.unwrap();
    }

    /// Streams ever refused.
    pub(super) fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Total number of connections accepted.
    pub(super) fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// Waits until exactly `wanted` connections are open.
    pub(super) async fn open(&self, wanted: usize) {
        self.shared.open.subscribe().wait_for(|open| *open == wanted).await.unwrap();
    }

    pub(super) fn go_away(&self) {
        self.shared.order.send_replace(Order::GoAway);
    }

    pub(super) fn break_all(&self) {
        self.shared.order.send_replace(Order::Break);
    }

    pub(super) fn refuse_streams(&self) {
        self.shared.order.send_replace(Order::RefuseStreams);
    }

    /// Sets the protocols that are offered on new connections.
    pub(super) fn speak(&self, protocols: &[&[u8]]) {
        self.shared.tls.lock().unwrap().alpn_protocols =
            protocols.iter().map(|protocol| protocol.to_vec()).collect();
    }

    /// Answers 401 to this value of `Authorization` from now on.
    pub(super) fn refuse(&self, authorization: &str) {
        self.shared.unauthorized.lock().unwrap().insert(authorization.to_owned());
    }

    /// Issues a client certificate with this common name, which the server accepts.
    pub(super) fn client(&self, name: &str) -> ClientPem {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        ClientPem { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// Returns the configuration of a server with this certificate, which accepts client certificates
/// of the authority.
fn tls(
    key: &CertifiedKey<KeyPair>,
    authority: &CertifiedIssuer<'static, KeyPair>,
    protocols: &[&[u8]],
) -> rustls::ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut clients = RootCertStore::empty();
    clients.add(authority.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![key.cert.der().clone()],
            key.signing_key.serialize_der().try_into().unwrap(),
        )
        .unwrap();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    tls
}

impl Shared {
    /// Serves one connection until it ends. Orders that were given earlier do not apply to it.
    fn serve(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        let (shared, acceptor) =
            (self.clone(), TlsAcceptor::from(Arc::new(self.tls.lock().unwrap().clone())));
        let (mut order, mut held) = (self.order.subscribe(), self.held.subscribe());
        async move {
            shared.waiting.send_modify(|waiting| *waiting += 1);
            // The sender lives as long as the server.
            drop(held.wait_for(|held| !held).await);
            shared.waiting.send_modify(|waiting| *waiting -= 1);
            let Ok(stream) = acceptor.accept(stream).await else { return };
            shared.opened.fetch_add(1, Ordering::SeqCst);
            shared.open.send_modify(|open| *open += 1);
            let certificate = stream.get_ref().1.peer_certificates();
            let refusing = Arc::new(AtomicBool::new(false));
            let peer = Peer {
                certificate: certificate
                    .map(|chain| String::from_utf8_lossy(&chain[0]).into_owned()),
                received: shared.received,
                refused: shared.refused,
                refusing: refusing.clone(),
                unauthorized: shared.unauthorized,
            };
            let response = service_fn(move |request| response(request, peer.clone()));
            let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let stream = TokioIo::new(stream);
            if h2 {
                let mut builder = conn::http2::Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(shared.max_streams);
                let mut serving = std::pin::pin!(builder.serve_connection(stream, response));
                loop {
                    tokio::select! {
                        _ = &mut serving => break,
                        Ok(()) = order.changed() => {
                            let order = *order.borrow_and_update();
                            match order {
                                Order::GoAway => serving.as_mut().graceful_shutdown(),
                                Order::Break => break,
                                Order::RefuseStreams => refusing.store(true, Ordering::SeqCst),
                                Order::Serve => {}
                            }
                        }
                    }
                }
            } else {
                drop(conn::http1::Builder::new().serve_connection(stream, response).await);
            }
            shared.open.send_modify(|open| *open -= 1);
        }
    }
}

/// State of a connection on which its responses depend.
#[derive(Clone)]
struct Peer {
    /// Bytes of the client certificate, which contain its common name.
    certificate: Option<String>,
    received: Arc<Mutex<Vec<Received>>>,
    refused: Arc<AtomicUsize>,
    refusing: Arc<AtomicBool>,
    unauthorized: Arc<Mutex<HashSet<String>>>,
}

/// Records each request, and answers by path: `/certificate` with the client's certificate,
/// `/headers` with its `Authorization` and `User-Agent`, `/silent` never, `/stuck` with only a
/// head, `/flood` without end, `/trickle` with eight bytes in two seconds, a watch and a followed
/// log with one line and then nothing, and any other path with `ok`. Refuses the first stream that
/// requests `/refused-once`.
async fn response(
    request: Request<Incoming>,
    peer: Peer,
) -> Result<Response<ScriptedBody>, h2::Error> {
    let header = |name| {
        let value = request.headers().get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    peer.received.lock().unwrap().push(Received {
        line: format!("{} {}", request.method(), request.uri().path_and_query().unwrap()),
        user_agent: header(USER_AGENT),
    });
    if peer.refusing.load(Ordering::SeqCst) {
        peer.refused.fetch_add(1, Ordering::SeqCst);
        return Err(h2::Reason::REFUSED_STREAM.into());
    }
    let authorization = header(AUTHORIZATION);
    if peer.unauthorized.lock().unwrap().contains(&authorization) {
        let mut refusal = Response::new(ScriptedBody { first: None, end: BodyEnd::End });
        *refusal.status_mut() = StatusCode::UNAUTHORIZED;
        return Ok(refusal);
    }
    let query = request.uri().query().unwrap_or_default();
    let watch = query.contains("watch=true") || query.contains("follow=true");
    let text = |text| ScriptedBody { first: Some(text), end: BodyEnd::End };
    let body = match request.uri().path() {
        "/silent" => std::future::pending().await,
        _ if query.contains("container=silent") => std::future::pending().await,
        "/refused-once" if peer.refused.fetch_max(1, Ordering::SeqCst) == 0 => {
            return Err(h2::Reason::REFUSED_STREAM.into());
        }
        "/certificate" => text(peer.certificate.unwrap_or_default().into()),
        "/headers" => text(format!("{authorization}\n{}", header(USER_AGENT)).into()),
        "/stuck" => ScriptedBody { first: Some("{".into()), end: BodyEnd::Nothing },
        "/trickle" => ScriptedBody {
            first: None,
            end: BodyEnd::Trickle { left: 8, next: Box::pin(sleep(TRICKLE)) },
        },
        "/flood" => ScriptedBody { first: None, end: BodyEnd::Flood },
        _ if watch => ScriptedBody { first: Some("{}\n".into()), end: BodyEnd::Nothing },
        _ => text("ok".into()),
    };
    Ok(Response::new(body))
}

struct ScriptedBody {
    first: Option<Bytes>,
    end: BodyEnd,
}

/// Time between two bytes of a trickle.
const TRICKLE: Duration = Duration::from_millis(250);

enum BodyEnd {
    End,
    Trickle { left: u32, next: Pin<Box<Sleep>> },
    Nothing,
    Flood,
}

impl http_body::Body for ScriptedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match &mut self.end {
            BodyEnd::End | BodyEnd::Trickle { left: 0, .. } => Poll::Ready(None),
            BodyEnd::Trickle { left, next } => {
                ready!(next.as_mut().poll(context));
                *left -= 1;
                next.set(sleep(TRICKLE));
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b".")))))
            }
            BodyEnd::Nothing => Poll::Pending,
            BodyEnd::Flood => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16384])))))
            }
        }
    }
}
