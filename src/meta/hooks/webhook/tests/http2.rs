//! Tests of hooks that choose HTTP/2 by TLS.

use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt;
use hyper::{
    Version,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    controller::{Cluster, ClusterOptions},
    meta::hooks::{
        credentials::HookCredentials,
        endpoint::{CaRule, EndpointRule},
    },
    testing::simulated::SimulatedServer,
};

/// Calls that a hook has received, and those that it has dropped before their response.
#[derive(Default)]
struct Counted {
    connections: AtomicUsize,
    calls: watch::Sender<usize>,
    dropped: watch::Sender<usize>,
    protocols: Mutex<Vec<Version>>,
    bodies: Mutex<Vec<Bytes>>,
}

/// Counts a call as dropped, unless it was answered.
struct Unanswered<'a>(&'a Counted);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.dropped.send_modify(|dropped| *dropped += 1);
    }
}

/// Answer of a hook, by the path of the request.
async fn answer(
    request: hyper::Request<Incoming>,
    counted: Arc<Counted>,
) -> Result<Response<Full<Bytes>>, h2::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    counted.protocols.lock().push(head.version);
    counted.bodies.lock().push(body);
    counted.calls.send_modify(|calls| *calls += 1);
    let refusal = match head.uri.path() {
        "/refused" => Some(h2::Reason::REFUSED_STREAM),
        "/refused-once" if *counted.calls.borrow() == 1 => Some(h2::Reason::REFUSED_STREAM),
        "/failed" => Some(h2::Reason::INTERNAL_ERROR),
        _ => None,
    };
    if let Some(reason) = refusal {
        return Err(reason.into());
    }
    let unanswered = Unanswered(&counted);
    let mut answer = Response::builder();
    let bytes = match head.uri.path() {
        "/never" => std::future::pending().await,
        "/header" => {
            answer = answer.header("a", "a".repeat(70 * 1024));
            2
        }
        "/refused-once" => 2,
        path => path[1..].parse().unwrap(),
    };
    std::mem::forget(unanswered);
    Ok(answer.body(Full::new(vec![b' '; bytes].into())).unwrap())
}

/// Hook over TLS with these protocols. A hook without any speaks HTTP/1.1.
struct SecureHook {
    port: u16,
    counted: Arc<Counted>,
    endpoint: Arc<HookEndpoint>,
    _tasks: JoinSet<()>,
}

impl SecureHook {
    async fn start(protocols: &[&str]) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = certified.cert.der().clone();
        let key = certified.signing_key.serialize_der().try_into().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (counted, mut tasks) = (Arc::<Counted>::default(), JoinSet::new());
        let counts = Arc::clone(&counted);
        tasks.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counts.connections.fetch_add(1, Ordering::SeqCst);
                serving.spawn(serve(acceptor.clone(), stream, Arc::clone(&counts)));
            }
        });
        let (cluster, _) = Cluster::new(SimulatedServer::new().client(), ClusterOptions::default());
        let ca_bundle = Some(CaRule::Inline(certified.cert.pem()));
        let rule = EndpointRule { ca_bundle, ..EndpointRule::default() };
        let endpoint = HookCredentials::new(&cluster).endpoint("a".into(), rule, |_| ());
        Self { port, counted, endpoint: Arc::new(endpoint), _tasks: tasks }
    }

    fn at(&self, path: &str, timeout: Duration) -> Webhook {
        let url = format!("https://localhost:{}{path}", self.port).parse().unwrap();
        Webhook::new(url, timeout).endpoint(Some(Arc::clone(&self.endpoint)))
    }
}

async fn serve(acceptor: TlsAcceptor, stream: tokio::net::TcpStream, counted: Arc<Counted>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| answer(request, Arc::clone(&counted)));
    let stream = TokioIo::new(stream);
    if is_http2 {
        drop(http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await);
    } else {
        drop(http1::Builder::new().serve_connection(stream, service).await);
    }
}

const REQUEST: Bytes = Bytes::from_static(b"{}");
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn hook_is_called_by_the_protocol_that_it_chooses() {
    for (protocols, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["h2"], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let server = SecureHook::start(protocols).await;
        let hook = server.at("/300000", PATIENCE);

        for _ in 0..3 {
            assert_eq!(hook.call(REQUEST).await.unwrap().len(), 300_000, "{protocols:?}");
        }

        assert_eq!(*server.counted.protocols.lock(), [version; 3]);
        assert_eq!(server.counted.connections.load(Ordering::SeqCst), 1, "{protocols:?}");
        hook.release().await;
    }
}

#[tokio::test]
async fn bounds_of_a_call_hold_over_http_2() {
    let server = SecureHook::start(&["h2"]).await;
    let limits = ResponseLimits { response: 1000, ..ResponseLimits::default() };
    let budget = ResponseBudget::new(limits).controller("");

    let long = server.at("/1001", PATIENCE).budget(budget).call(REQUEST).await;
    let late = server.at("/never", Duration::from_millis(200)).call(REQUEST).await;
    let header = server.at("/header", PATIENCE).call(REQUEST).await;

    assert_eq!(long, Err(HookError::TooLarge { limit: 1000 }));
    assert_eq!(late, Err(HookError::Timeout(Duration::from_millis(200))));
    let Err(HookError::Transport(header)) = header else { panic!("{header:?}") };
    assert!(header.contains("longer than 64 KiB"), "{header}");
}

#[tokio::test]
async fn dropped_call_over_http_2_is_cancelled_and_others_of_its_connection_are_not() {
    let server = SecureHook::start(&["h2"]).await;
    let hook = server.at("/never", PATIENCE);
    let mut calls = server.counted.calls.subscribe();
    let mut dropped = server.counted.dropped.subscribe();
    let mut other = hook.call(REQUEST);
    let begun = async |calls: &mut watch::Receiver<usize>, wanted: usize| {
        calls.wait_for(|calls| *calls == wanted).await.map(|_| ()).unwrap();
    };
    tokio::select! {
        answer = &mut other => panic!("{answer:?}"),
        () = begun(&mut calls, 1) => {}
    }
    let mut call = hook.call(REQUEST);
    tokio::select! {
        answer = &mut call => panic!("{answer:?}"),
        answer = &mut other => panic!("{answer:?}"),
        () = begun(&mut calls, 2) => {}
    }

    drop(call);

    timeout(PATIENCE, dropped.wait_for(|dropped| *dropped == 1)).await.unwrap().unwrap();
    assert!(futures::poll!(&mut other).is_pending());
    assert_eq!(server.counted.connections.load(Ordering::SeqCst), 1);
    drop(other);
    hook.release().await;
}

#[tokio::test]
async fn responses_over_http_2_that_wait_for_the_budget_do_not_stop_the_one_that_is_read() {
    const BYTES: usize = 1 << 20;
    const CALLS: usize = 24;
    let server = SecureHook::start(&["h2"]).await;
    // Room for one response at a time.
    let budget = ResponseBudget::new(ResponseLimits::of_process(4 * BYTES)).controller("");
    let hook = server.at(&format!("/{BYTES}"), PATIENCE).budget(budget);

    let answers = futures::future::join_all(
        (0..CALLS).map(|_| async { hook.call(REQUEST).await.map(|answer| answer.len()) }),
    )
    .await;

    assert!(answers.iter().all(|answer| *answer == Ok(BYTES)), "{answers:?}");
    hook.release().await;
}

#[tokio::test]
async fn unprocessed_call_of_an_http_2_hook_is_sent_once_more() {
    let server = SecureHook::start(&["h2"]).await;
    let request = Bytes::from(vec![b' '; 100_000]);

    let answer = server.at("/refused-once", PATIENCE).call(request.clone()).await;

    assert_eq!(answer.unwrap().len(), 2);
    assert!(*server.counted.bodies.lock() == [request.clone(), request], "whole both times");

    let refused = server.at("/refused", PATIENCE).call(REQUEST).await;
    assert!(matches!(refused, Err(HookError::Transport(_))), "{refused:?}");
    assert_eq!(*server.counted.calls.borrow(), 4, "once more, and no third time");
}

#[tokio::test]
async fn call_that_an_http_2_hook_may_have_processed_is_sent_once() {
    let server = SecureHook::start(&["h2"]).await;

    let failed = server.at("/failed", PATIENCE).call(REQUEST).await;

    assert!(matches!(failed, Err(HookError::Transport(_))), "{failed:?}");
    assert_eq!(*server.counted.calls.borrow(), 1);
}
