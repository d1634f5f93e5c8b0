//! HTTPS hooks with an invalid certificate or an outdated TLS version.

use std::{
    convert::Infallible,
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use pilotlight::testing::CrdBuilder;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::support::{SimulatedHarness, alone_where, sized};

/// Deadline for the report of a certificate error, by an Event of the parent and by the status of
/// its controller.
const REPORT_DEADLINE: Duration = Duration::from_secs(10);
/// Environment variable with the path of the key of the trusted authority, as PEM.
const KEY: &str = "PILOTLIGHT_TEST_AUTHORITY_KEY";
/// Start of a ServerHello that chooses TLS 1.1; a random number follows.
const HELLO_OF_TLS_11: &[u8] = &[22, 3, 2, 0, 42, 2, 0, 0, 38, 3, 2];

/// Listener at the URL of a hook.
enum ListenerKind {
    /// Hook with this certificate.
    Certificate(Box<CertificateParams>, Signed),
    Tls11,
    PlainHttp,
}

enum Signed {
    ByTheAuthority,
    ByItself,
}

/// Server of a hook, with the number of its connections.
struct Server {
    url: String,
    connections: Arc<AtomicUsize>,
    _accepting: JoinSet<()>,
}

impl Server {
    async fn start(listens: ListenerKind, authority: &Issuer<'_, KeyPair>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/sync", listener.local_addr().unwrap());
        let protocol = match listens {
            ListenerKind::Tls11 => ServerProtocol::Tls11,
            ListenerKind::PlainHttp => ServerProtocol::Http,
            ListenerKind::Certificate(params, signed) => {
                ServerProtocol::Tls(acceptor(&params, &signed, authority))
            }
        };
        let connections = Arc::<AtomicUsize>::default();
        let (count, mut accepting) = (Arc::clone(&connections), JoinSet::new());
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                serving.spawn(protocol.clone().to(tcp));
                while serving.try_join_next().is_some() {}
            }
        });
        Self { url, connections, _accepting: accepting }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
enum ServerProtocol {
    Tls(TlsAcceptor),
    Tls11,
    Http,
}

impl ServerProtocol {
    /// An aborted handshake is expected.
    async fn to(self, mut tcp: TcpStream) {
        match self {
            Self::Tls(acceptor) => {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                drop(http1::Builder::new().serve_connection(TokioIo::new(tls), hook()).await);
            }
            Self::Http => {
                drop(http1::Builder::new().serve_connection(TokioIo::new(tcp), hook()).await);
            }
            Self::Tls11 => {
                let mut hello = [0; 1024];
                drop(tcp.read(&mut hello).await);
                // No session, ECDHE with AES-128-CBC, no compression.
                let answer = [HELLO_OF_TLS_11, &[0; 32], &[0, 0xc0, 0x13, 0]].concat();
                drop(tcp.write_all(&answer).await);
                drop(tcp.read(&mut hello).await);
            }
        }
    }
}

/// Hook with the same response as every hook of the harness.
fn hook() -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Full<bytes::Bytes>>,
    Error = Infallible,
    Future: Send,
> {
    service_fn(|request: Request<Incoming>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let request = serde_json::from_slice::<Value>(&body).unwrap();
        Ok(Response::new(Full::from(sized(&request).to_string())))
    })
}

fn acceptor(
    params: &CertificateParams,
    signed: &Signed,
    authority: &Issuer<'_, KeyPair>,
) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let certificate = match signed {
        Signed::ByTheAuthority => params.signed_by(&key, authority),
        Signed::ByItself => params.self_signed(&key),
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.unwrap().der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    TlsAcceptor::from(Arc::new(tls))
}

/// Certificate for this name, valid from the first day of `from` until the first day of `until`,
/// which are years.
fn certificate(name: &str, from: i32, until: i32, signed: Signed) -> ListenerKind {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    ListenerKind::Certificate(Box::new(params), signed)
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "trusted");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// Reason and message of the condition `HooksHealthy` of a declared controller.
fn hook_condition(harness: &SimulatedHarness, name: &str) -> (String, String) {
    let all = harness.list("metacontroller.k8s.io/v1alpha1", "CompositeController");
    let own = all.iter().find(|it| it["metadata"]["name"] == name).cloned().unwrap_or_default();
    let conditions = own["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let hooks = conditions.iter().find(|it| it["type"] == "HooksHealthy").cloned();
    let text = |field: &str| match &hooks {
        Some(hooks) => hooks[field].as_str().unwrap_or_default().to_owned(),
        None => String::new(),
    };
    (text("reason"), text("message"))
}

/// Messages of a parent's Events, with their counts.
fn events_of(harness: &SimulatedHarness, parent: &str) -> Vec<(String, u64)> {
    let all = harness.list("v1", "Event").into_iter();
    let about = all.filter(|event| event["involvedObject"]["name"] == parent);
    about
        .map(|event| {
            let message = event["message"].as_str().unwrap_or_default().to_owned();
            (message, event["count"].as_u64().unwrap_or_default())
        })
        .collect()
}

fn parent(harness: &SimulatedHarness, group: &str, name: &str, size: i64) {
    let parent = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "size": size, "text": name },
    });
    harness.server.apply(parent).unwrap();
}

#[tokio::test]
async fn hook_with_an_invalid_certificate_is_reported_with_its_reason_and_affects_no_other() {
    let files = tempfile::tempdir().unwrap();
    // A process reads its trusted authorities once, from the path in its environment.
    let trusting = || {
        let issuer =
            CertifiedIssuer::self_signed(authority(), KeyPair::generate().unwrap()).unwrap();
        let (trusted, key) = (files.path().join("ca.pem"), files.path().join("key.pem"));
        fs::write(&trusted, issuer.pem()).unwrap();
        fs::write(&key, issuer.key().serialize_pem()).unwrap();
        vec![("SSL_CERT_FILE", trusted.into_os_string()), (KEY, key.into_os_string())]
    };
    let name = concat!(
        "hook_certificates::",
        "hook_with_an_invalid_certificate_is_reported_with_its_reason_and_affects_no_other"
    );
    alone_where(name, trusting, hooks_with_wrong_certificates()).await;
}

async fn hooks_with_wrong_certificates() {
    let key = fs::read_to_string(env::var_os(KEY).unwrap()).unwrap();
    let authority = Issuer::new(authority(), KeyPair::from_pem(&key).unwrap());
    let own = "127.0.0.1";
    let cases = [
        ("unknown", certificate(own, 2020, 2100, Signed::ByItself), "has an unknown issuer"),
        ("expired", certificate(own, 2000, 2020, Signed::ByTheAuthority), "expired at 2020-01-01"),
        ("early", certificate(own, 2090, 2100, Signed::ByTheAuthority), "before 2090-01-01"),
        (
            "misnamed",
            certificate("other.test", 2020, 2100, Signed::ByTheAuthority),
            "not valid for name \"127.0.0.1\"; certificate is only valid for DnsName(\"other.test\")",
        ),
        ("old", ListenerKind::Tls11, "neither TLS 1.2 nor 1.3"),
        ("plain", ListenerKind::PlainHttp, "does not speak TLS"),
    ];
    let mut servers = Vec::new();
    for (name, listens, reason) in cases {
        servers.push((name, Server::start(listens, &authority).await, reason));
    }
    let good = certificate(own, 2020, 2100, Signed::ByTheAuthority);
    let good = Server::start(good, &authority).await;
    let harness = SimulatedHarness::with_web_hooks().await;
    let all = servers.iter().map(|(name, server, _)| (*name, server));
    for (name, server) in all.chain([("good", &good)]) {
        let crd = CrdBuilder::new(format!("{name}.test"), "Widget");
        harness.server.install(&crd.build()).unwrap();
        harness.server.wait_established(&crd.name()).await;
        harness.declare(name, &crd, &server.url);
    }
    parent(&harness, "good.test", "of-good", 1);
    harness.until("the good hook is called", |harness| harness.children().len() == 1).await;

    let begin = Instant::now();
    for (name, ..) in &servers {
        parent(&harness, &format!("{name}.test"), &format!("of-{name}"), 1);
    }

    let all_reported = harness.server.wait_until(|_| {
        servers.iter().all(|(name, _, reason)| {
            let (word, text) = hook_condition(&harness, name);
            let event = events_of(&harness, &format!("of-{name}"));
            let by_event = event.iter().any(|(message, _)| message.contains(reason));
            by_event && word == "HookUnreachable" && text.contains(reason)
        })
    });
    let late = timeout(REPORT_DEADLINE, all_reported).await.is_err();
    let said = servers.iter().map(|(name, ..)| {
        (*name, hook_condition(&harness, name), events_of(&harness, &format!("of-{name}")))
    });
    assert!(!late, "{:#?}", said.collect::<Vec<_>>());
    // The other hooks are still called at once.
    for size in 2..=4 {
        let begun = Instant::now();
        parent(&harness, "good.test", "of-good", size);
        let wanted = usize::try_from(size).unwrap();
        harness
            .until("the good hook is called again", |harness| harness.children().len() == wanted)
            .await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        sleep(Duration::from_millis(1500)).await;
    }
    for (name, server, _) in &servers {
        let events = events_of(&harness, &format!("of-{name}"));
        assert!(
            events.len() == 1 && events[0].1 > 1,
            "{name}: one Event that is counted: {events:#?}"
        );
        // Back-off from 5 ms, doubling up to a second: at most eight tries in the first second.
        let most = 9 + begin.elapsed().as_secs();
        let tries = server.connections();
        assert!(tries > 1 && tries as u64 <= most, "{name}: {tries} in {:?}", begin.elapsed());
    }
    assert_eq!(events_of(&harness, "of-good"), []);
    assert_eq!(good.connections(), 1, "one connection is reused");
    harness.end().await;
}
