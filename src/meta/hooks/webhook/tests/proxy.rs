//! Tests of hooks behind a proxy, and of the measurement of their connections.

use hyper_rustls::MaybeHttpsStream;
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::*;
use crate::{
    meta::hooks::{
        metrics::HookMetrics,
        rule::HookKind,
        webhook::{connector::HookConnector, route::Routes},
    },
    transport::Proxies,
};

/// Proxies with this URL for both schemes.
fn proxies(url: &str) -> Proxies {
    let variable =
        |name: &str| matches!(name, "HTTP_PROXY" | "HTTPS_PROXY").then(|| url.to_owned());
    Proxies::from_environment(variable)
}

fn webhook(url: &str, proxy: &str) -> Webhook {
    Webhook::new(url.parse().unwrap(), Duration::from_secs(5)).proxies(proxies(proxy))
}

/// Proxy that answers `CONNECT` with this status, and is the TLS server itself after a 200. Returns
/// the heads that it received.
async fn tunnel(status: &'static str, tls: Option<TlsAcceptor>) -> (u16, JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let answer = format!("HTTP/1.1 {status}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        if let Some(tls) = tls {
            drop(tls.accept(stream).await.unwrap());
        }
        String::from_utf8(head).unwrap()
    });
    (port, tasks)
}

/// TLS of a server named `hook.test`, and of a client that trusts it.
fn tls() -> (TlsAcceptor, rustls::ClientConfig) {
    let names = vec!["hook.test".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate: CertificateDer<'static> = certified.cert.der().clone();
    let key = certified.signing_key.serialize_der().try_into().unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let client = tls::configuration(Some(&[certificate]), None).unwrap();
    (TlsAcceptor::from(Arc::new(server)), client)
}

#[tokio::test]
async fn hook_over_http_is_called_by_a_request_to_the_proxy() {
    let mut proxy = server(response("200 OK", "{}"), false).await;
    let address = format!("http://me:p%40ss@{}", proxy.url.authority().unwrap());
    let hook = webhook("http://user:word@hook.test/sync?a=b", &address);

    hook.call(Bytes::from_static(b"{}")).await.unwrap();

    let request = proxy.tasks.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("POST http://hook.test/sync?a=b HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("Host: hook.test\r\n"), "{request}");
    // me:p@ss
    assert!(request.contains("Proxy-Authorization: Basic bWU6cEBzcw==\r\n"), "{request}");
}

#[tokio::test]
async fn proxy_is_asked_for_a_service_below_svc() {
    let mut proxy = server(response("200 OK", "{}"), false).await;
    let address = format!("http://{}", proxy.url.authority().unwrap());
    let plain = webhook("http://hooks.dev:80/sync", &address).service(true);
    let (port, mut tunnel) = tunnel("200 OK", None).await;
    let address = format!("http://127.0.0.1:{port}");
    let secure = webhook("https://hooks.dev:8443/sync", &address).service(true);

    plain.call(Bytes::from_static(b"{}")).await.unwrap();
    // The tunnel ends without a server.
    secure.call(Bytes::from_static(b"{}")).await.unwrap_err();

    let request = proxy.tasks.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("POST http://hooks.dev.svc:80/sync HTTP/1.1\r\n"), "{request}");
    let head = tunnel.join_next().await.unwrap().unwrap();
    assert!(head.starts_with("CONNECT hooks.dev.svc:8443 HTTP/1.1\r\n"), "{head}");
}

#[tokio::test]
async fn hook_over_https_is_called_through_a_tunnel_and_its_connection_is_measured() {
    let (acceptor, client) = tls();
    let (port, mut tasks) = tunnel("200 OK", Some(acceptor)).await;
    let (metrics, mut registry) = (HookMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    let mut bare = String::new();
    prometheus_client::encoding::text::encode(&mut bare, &registry).unwrap();
    let series = metrics.series(HookKind::Sync, "c", "CompositeController", "https://hook.test/");
    let proxy = proxies(&format!("http://me:secret@localhost:{port}"));
    let connector = HookConnector::new(
        client,
        Routes { proxies: proxy, service: None },
        Some(Arc::new(series)),
    );

    let stream = connector.clone().oneshot("https://hook.test/sync".parse().unwrap()).await;

    assert!(matches!(stream, Ok(MaybeHttpsStream::Https(_))), "{:?}", stream.err());
    let head = tasks.join_next().await.unwrap().unwrap();
    assert!(head.starts_with("CONNECT hook.test:443 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{head}");
    let mut counted = String::new();
    prometheus_client::encoding::text::encode(&mut counted, &registry).unwrap();
    for (family, event) in [
        ("dns", "dns_start"),
        ("dns", "dns_done"),
        ("tls", "tls_handshake_start"),
        ("tls", "tls_handshake_done"),
    ] {
        let one = format!(
            "metacontroller_sync_{family}_duration_histogram_seconds_count{{\
             controller_name=\"c\",controller_type=\"CompositeController\",\
             url=\"https://hook.test/\",event=\"{event}\"}} 1\n"
        );
        assert!(counted.contains(&one), "{one}{counted}");
    }
    for bound in ["dns_duration_histogram_seconds_bucket{le=\"0.005", "_bucket{le=\"0.5\""] {
        assert!(counted.contains(bound), "{bound}: {counted}");
    }
    drop((stream, connector));
    let mut left = String::new();
    prometheus_client::encoding::text::encode(&mut left, &registry).unwrap();
    assert_eq!(left, bare, "the series end with their hook");
}

#[tokio::test]
async fn proxy_that_refuses_is_named_without_its_password() {
    let failed = async |hook: Webhook| match hook.call(Bytes::from_static(b"{}")).await {
        Err(HookError::Transport(message)) => message,
        other => panic!("{other:?}"),
    };
    let mut messages = Vec::new();
    let proxy = server(response("407 Proxy Authentication Required", ""), false).await;
    let address = proxy.url.authority().unwrap().to_string();
    let hook = webhook("http://hook.test/sync", &format!("http://me:secret@{address}"));
    messages.push((failed(hook).await, address, "a user and a password"));
    for (status, reason) in [
        ("407 Proxy Authentication Required", "a user and a password"),
        ("403 Forbidden", "it answered 403 to CONNECT hook.test:8443"),
    ] {
        let (port, _tasks) = tunnel(status, None).await;
        let address = format!("127.0.0.1:{port}");
        let hook = webhook("https://hook.test:8443/sync", &format!("http://me:secret@{address}"));
        messages.push((failed(hook).await, address, reason));
    }
    let hook = webhook("http://hook.test/sync", "http://me:secret@127.0.0.1:1");
    messages.push((failed(hook).await, "127.0.0.1:1".to_owned(), "efused"));

    for (message, address, reason) in messages {
        assert!(message.contains(&format!("through the proxy http://{address}/: ")), "{message}");
        assert!(message.contains(reason), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[tokio::test]
async fn hook_on_loopback_is_called_without_the_proxy() {
    let server = server(response("200 OK", "{}"), false).await;
    let hook = webhook(&server.url.to_string(), "http://127.0.0.1:1");

    let answer = hook.call(Bytes::from_static(b"{}")).await;

    assert_eq!(answer.as_deref(), Ok(&b"{}"[..]));
}

#[tokio::test]
async fn status_that_came_through_a_proxy_of_http_is_the_hooks_and_names_the_proxy() {
    for code in [400, 404, 500, 502, 503, 504] {
        let proxy = server(response(&format!("{code} Reason"), "text"), false).await;
        let address = format!("http://{}/", proxy.url.authority().unwrap());
        let url = address.replace("http://", "http://me:secret@");
        let hook = webhook("http://hook.test/sync", &url).error_excerpts(true);

        let error = hook.call(Bytes::from_static(b"{}")).await.unwrap_err();

        let (body, through) = ("text".to_owned(), Some(address.clone()));
        assert_eq!(error, HookError::Status { code, body, proxy: through });
        let message = format!("status {code} through the proxy {address}: \"text\"");
        assert!(error.to_string().ends_with(&message), "{error}");
    }
}

#[tokio::test]
async fn proxy_that_does_not_answer_is_named_when_the_call_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let timeout = Duration::from_millis(200);
    for url in ["http://hook.test/", "https://hook.test/"] {
        let hook = Webhook::new(url.parse().unwrap(), timeout).proxies(proxies(&address));

        let error = hook.call(Bytes::from_static(b"{}")).await.unwrap_err();

        let late = HookError::ProxyTimeout { waited: timeout, proxy: address.clone() };
        assert_eq!(error, late, "{url}");
    }
}

#[tokio::test]
async fn call_that_needs_an_unusable_proxy_fails_with_its_reason() {
    let hook = webhook("http://hook.test/sync", "socks5://me:secret@proxy:1080");

    let error = hook.call(Bytes::from_static(b"{}")).await.unwrap_err().to_string();

    assert!(
        error.contains("HTTP_PROXY: the proxy socks5://proxy:1080/ is not supported"),
        "{error}"
    );
    assert!(!error.contains("secret"), "{error}");
}
