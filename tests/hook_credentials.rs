//! Hooks with a private authority, a client certificate and a token, all from objects of the
//! cluster.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use pilotlight::testing::CrdBuilder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{RootCertStore, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::support::{SimulatedHarness, sized};

/// Number of times that the credentials are replaced.
const ROTATIONS: usize = 20;

/// Hook that requires a client certificate and a token.
struct SecureHook {
    url: String,
    state: Arc<HookState>,
    _serving: JoinSet<()>,
}

/// State that all connections of a hook share.
struct HookState {
    /// Token of each call that was answered.
    tokens: Mutex<Vec<String>>,
    /// Number of the newest token. It and the two before are valid: a call may be under way.
    newest: AtomicUsize,
    /// Number of the current server certificate, and its acceptor.
    certificate: Mutex<(usize, TlsAcceptor)>,
    /// Number of the certificate of the last connection.
    accepted: AtomicUsize,
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Returns the acceptor of a new server certificate of `authority`, for clients of `clients`.
fn acceptor(authority: &Authority, clients: &Authority) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut trusted = RootCertStore::empty();
    trusted.add(clients.der().clone()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), Arc::clone(&provider));
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    TlsAcceptor::from(Arc::new(tls))
}

impl SecureHook {
    async fn start(authority: &Authority) -> Self {
        let state = Arc::new(HookState {
            tokens: Mutex::default(),
            newest: AtomicUsize::default(),
            certificate: Mutex::new((0, acceptor(authority, authority))),
            accepted: AtomicUsize::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/sync", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (number, acceptor) = shared.certificate.lock().unwrap().clone();
                let state = Arc::clone(&shared);
                serving.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    state.accepted.store(number, Ordering::SeqCst);
                    let answer = service_fn(|request| answer(request, number, &state));
                    drop(http1::Builder::new().serve_connection(TokioIo::new(tls), answer).await);
                });
            }
        });
        Self { url, state, _serving: accepting }
    }

    /// Replaces the server certificate for all later connections.
    fn presents(&self, acceptor: TlsAcceptor) {
        let mut current = self.state.certificate.lock().unwrap();
        *current = (current.0 + 1, acceptor);
    }

    /// Number of calls that were answered.
    fn calls(&self) -> usize {
        self.state.tokens.lock().unwrap().len()
    }

    fn last_token(&self) -> String {
        self.state.tokens.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

/// Answers a request on a connection with the server certificate of this number.
async fn answer(
    request: Request<Incoming>,
    certificate: usize,
    state: &HookState,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let token = request.headers().get(header::AUTHORIZATION).cloned();
    let token = token.and_then(|token| token.to_str().map(str::to_owned).ok()).unwrap_or_default();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let newest = state.newest.load(Ordering::SeqCst);
    let mut valid = newest.saturating_sub(2)..=newest;
    if !valid.any(|number| token == format!("Bearer token-{number}")) {
        let mut refusal = Response::new(Full::default());
        *refusal.status_mut() = StatusCode::UNAUTHORIZED;
        return Ok(refusal);
    }
    state.tokens.lock().unwrap().push(token);
    let request = serde_json::from_slice::<Value>(&body).unwrap();
    let mut response = Response::new(Full::from(sized(&request).to_string()));
    // A connection with an earlier certificate is closed after a response, which fails no call.
    if state.certificate.lock().unwrap().0 != certificate {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

fn secret(harness: &SimulatedHarness, name: &str, values: &[(&str, &str)]) {
    let bytes = |value: &str| json!(ByteString(value.as_bytes().to_vec()));
    let data: serde_json::Map<_, _> =
        values.iter().map(|(key, value)| ((*key).to_owned(), bytes(value))).collect();
    let metadata = json!({"name": name, "namespace": "default"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
    harness.server.apply(secret).unwrap();
}

/// Gives the client another certificate.
fn renew(harness: &SimulatedHarness, authority: &Authority) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["client".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, authority).unwrap().pem();
    let values = [("tls.crt", &*certificate), ("tls.key", &*key.serialize_pem())];
    secret(harness, "client", &values);
}

/// Gives the client another certificate and another token.
fn rotate(harness: &SimulatedHarness, authority: &Authority, number: usize) {
    renew(harness, authority);
    secret(harness, "token", &[("token", &format!("token-{number}"))]);
}

/// Gives the client another bundle and another token by one object: a call with the token trusts
/// the bundle.
fn trust(harness: &SimulatedHarness, hook: &SecureHook, bundle: &str, number: usize) {
    hook.state.newest.store(number, Ordering::SeqCst);
    let token = format!("token-{number}");
    secret(harness, "token", &[("ca.crt", bundle), ("token", &*token)]);
}

/// Changes a parent, whose hook is then called, until `holds`.
async fn call_until(
    harness: &SimulatedHarness,
    hook: &SecureHook,
    what: &str,
    holds: impl Fn() -> bool,
) {
    let calling = async {
        while !holds() {
            parent(harness, "one", &format!("{what} after {} calls", hook.calls()));
            sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = timeout(Duration::from_secs(30), calling).await.is_ok();
    assert!(in_time, "{what}: not in time: {:#?}", harness.list("v1", "Event"));
}

fn parent(harness: &SimulatedHarness, name: &str, text: &str) {
    let parent = json!({
        "apiVersion": "secure.test/v1", "kind": "Widget",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "size": 1, "text": text },
    });
    harness.server.apply(parent).unwrap();
}

fn state(harness: &SimulatedHarness) -> (String, Value) {
    let all = harness.list("metacontroller.k8s.io/v1alpha1", "CompositeController");
    let all = all.first().cloned().unwrap_or_default();
    let status = &all["status"];
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|it| it["type"] == "Ready").unwrap_or_default();
    (ready["message"].as_str().unwrap_or_default().to_owned(), status["epoch"].clone())
}

/// Controller whose hook needs an authority, a client certificate and a token.
fn secure_controller(url: &str) -> Value {
    let token = json!({"name": "token", "namespace": "default", "key": "token"});
    json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
        "metadata": { "name": "secure" },
        "spec": {
            "parentResource": { "apiVersion": "secure.test/v1", "resource": "widgets" },
            "childResources": [{
                "apiVersion": "v1", "resource": "configmaps",
                "updateStrategy": { "method": "InPlace" },
            }],
            "generateSelector": true,
            "hooks": { "sync": { "webhook": { "url": url } } },
            "endpointConfigs": [{
                "host": url.trim_start_matches("https://").trim_end_matches("/sync"),
                "caBundle": { "configMapRef": { "name": "authority", "namespace": "default" } },
                "clientTLS": { "secretRef": { "name": "client", "namespace": "default" } },
                "authorization": { "secretRef": token },
            }],
        },
    })
}

#[tokio::test]
async fn credentials_of_a_hook_are_awaited_and_rotated_without_a_failed_call() {
    let authority = authority();
    let hook = SecureHook::start(&authority).await;
    let harness = SimulatedHarness::with_web_hooks().await;
    let crd = CrdBuilder::new("secure.test", "Widget");
    harness.server.install(&crd.build()).unwrap();
    harness.server.wait_established(&crd.name()).await;
    harness.server.apply(secure_controller(&hook.url)).unwrap();
    harness
        .until("the missing authority is named", |harness| {
            state(harness).0.contains("default/authority does not exist")
        })
        .await;

    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "authority", "namespace": "default" },
        "data": { "ca.crt": authority.pem() },
    });
    harness.server.apply(map).unwrap();
    rotate(&harness, &authority, 0);
    parent(&harness, "one", "first");
    harness.until("the hook is called", |_| hook.calls() > 0).await;

    for number in 1..=ROTATIONS {
        hook.state.newest.store(number, Ordering::SeqCst);
        rotate(&harness, &authority, number);
        let token = format!("Bearer token-{number}");
        let used = async {
            while hook.last_token() != token {
                for name in ["one", "two", "three"] {
                    parent(&harness, name, &format!("{number}-{}", hook.calls()));
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(30), used).await.unwrap();
    }

    // The authority is replaced by text without a certificate: the last usable one stays in use.
    let broken = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "authority", "namespace": "default" }, "data": { "ca.crt": "none" },
    });
    harness.server.apply(broken).unwrap();
    let events = |harness: &SimulatedHarness| harness.list("v1", "Event");
    harness
        .until("the unusable authority is reported", |harness| {
            events(harness).iter().any(|event| event["reason"] == "HookCredentialsStale")
        })
        .await;
    let calls = hook.calls();
    parent(&harness, "one", "after");
    harness.until("the hook is called again", |_| hook.calls() > calls).await;

    let failed: Vec<_> =
        events(&harness).into_iter().filter(|event| event["reason"] == "SyncError").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    harness.until("the status counts the epochs", |harness| state(harness).1 != json!(0)).await;
    assert_eq!(state(&harness).1, json!(1), "no restart");
    harness.end().await;
}

#[tokio::test]
async fn authority_of_a_hook_is_replaced_while_calls_run_and_none_fails() {
    let (old, new) = (authority(), authority());
    let hook = SecureHook::start(&old).await;
    let harness = SimulatedHarness::with_web_hooks().await;
    let crd = CrdBuilder::new("secure.test", "Widget");
    harness.server.install(&crd.build()).unwrap();
    harness.server.wait_established(&crd.name()).await;
    renew(&harness, &old);
    trust(&harness, &hook, &old.pem(), 0);
    let mut controller = secure_controller(&hook.url);
    let reference = json!({"name": "token", "namespace": "default", "key": "ca.crt"});
    controller["spec"]["endpointConfigs"][0]["caBundle"] = json!({"secretRef": reference});
    harness.server.apply(controller).unwrap();
    let called_with = |number: usize| hook.last_token() == format!("Bearer token-{number}");
    call_until(&harness, &hook, "the old authority is trusted", || called_with(0)).await;

    trust(&harness, &hook, &format!("{}\n{}", old.pem(), new.pem()), 1);
    call_until(&harness, &hook, "both authorities are trusted", || called_with(1)).await;
    hook.presents(acceptor(&new, &old));
    let is_new = || hook.state.accepted.load(Ordering::SeqCst) == 1;
    call_until(&harness, &hook, "the new certificate is presented", is_new).await;
    trust(&harness, &hook, &new.pem(), 2);
    call_until(&harness, &hook, "the new authority is trusted", || called_with(2)).await;
    let calls = hook.calls();
    call_until(&harness, &hook, "calls continue", || hook.calls() > calls + 5).await;

    let events = |reason: &str| harness.events(reason);
    assert_eq!(events("SyncError"), [""; 0], "a call has failed");
    assert_eq!(events("HookCredentialsStale"), [""; 0]);
    harness.until("the status counts the epochs", |harness| state(harness).1 != json!(0)).await;
    assert_eq!(state(&harness).1, json!(1), "no restart");

    // A failed call would have been seen: the old authority alone trusts the hook no more.
    trust(&harness, &hook, &old.pem(), 3);
    let fails = || !events("SyncError").is_empty();
    call_until(&harness, &hook, "the new certificate is refused", fails).await;
    harness.end().await;
}
