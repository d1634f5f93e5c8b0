//! Tests of redirects: requests to their targets.

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

/// Value of the header `Authorization` for [`with_credentials`].
const CREDENTIALS: &str = "Authorization: Basic bWU6aHVzaA==\r\n";

/// Hook at this URL with a user and a password that follows redirects.
fn with_credentials(url: &Uri) -> Webhook {
    let url = url.to_string().replace("http://", "http://me:hush@").parse().unwrap();
    Webhook::new(url, Duration::from_secs(5)).redirects(true)
}

async fn redirecting_to(target: &str) -> Server {
    server(response(&format!("308 Word\r\nLocation: {target}"), ""), false).await
}

async fn request_to(server: &mut Server) -> String {
    server.tasks.join_next().await.unwrap().unwrap()
}

#[tokio::test]
async fn redirect_is_an_error_and_is_not_followed() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target_url = format!("http://{}/", target.local_addr().unwrap());
    // A metadata service, plain http and a loop are treated like any other redirect.
    for location in [&target_url, "/sync", "http://169.254.169.254/latest/meta-data"] {
        for code in [301, 302, 303, 307, 308] {
            let answer =
                answer_of(response(&format!("{code} Word\r\nLocation: {location}"), "")).await;

            assert_eq!(answer, Err(HookError::Status { code, body: String::new(), proxy: None }));
        }
    }
    let accepted = timeout(Duration::from_millis(50), target.accept()).await;
    assert!(accepted.is_err(), "a connection was made: {accepted:?}");
}

#[tokio::test]
async fn redirect_is_followed_with_its_body_if_that_is_enabled() {
    for code in [307, 308] {
        let mut target = server(response("200 OK", "{\"a\":1}"), false).await;
        let location = format!("{code} Word\r\nLocation: {}", target.url);
        let first = server(response(&location, ""), false).await;
        let hook = Webhook::new(first.url.clone(), Duration::from_secs(5)).redirects(true);

        let answer = hook.call(Bytes::from_static(b"{}")).await;

        assert_eq!(answer.as_deref(), Ok(&b"{\"a\":1}"[..]));
        let request = target.tasks.join_next().await.unwrap().unwrap();
        assert!(request.starts_with("POST /sync"), "{request}");
        assert!(request.ends_with("\r\n\r\n{}"), "{request}");
    }
}

#[tokio::test]
async fn endless_redirect_is_an_error_after_ten() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let mut answering = JoinSet::new();
    answering.spawn(async move {
        for calls in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            while !stream.read(&mut buffer).await.is_ok_and(|read| buffer[..read].ends_with(b"{}"))
            {
            }
            let again = "308 Word\r\nLocation: /\r\nConnection: close";
            stream.write_all(response(again, "").as_bytes()).await.unwrap();
            if calls == 11 {
                return calls;
            }
        }
        0
    });
    let hook = Webhook::new(url, Duration::from_secs(5)).redirects(true);

    let answer = hook.call(Bytes::from_static(b"{}")).await;

    assert_eq!(answer, Err(HookError::Status { code: 308, body: String::new(), proxy: None }));
    let calls = timeout(Duration::from_secs(5), answering.join_next()).await;
    assert_eq!(calls.unwrap().unwrap().unwrap(), 11);
}

#[tokio::test]
async fn credentials_follow_a_redirect_to_their_host_on_any_port_and_to_no_other_host() {
    for (host, kept) in [("127.0.0.1", true), ("localhost", false)] {
        let mut target = server(response("200 OK", "{}"), false).await;
        let location = target.url.to_string().replace("127.0.0.1", host);
        let first = redirecting_to(&location).await;

        with_credentials(&first.url).call(Bytes::from_static(b"{}")).await.unwrap();

        let request = request_to(&mut target).await;
        assert_eq!(request.contains(CREDENTIALS), kept, "{request}");
    }
}

#[tokio::test]
async fn credentials_do_not_return_from_another_host() {
    let mut target = server(response("200 OK", "{}"), false).await;
    let other = redirecting_to(&target.url.to_string()).await;
    let first = redirecting_to(&other.url.to_string().replace("127.0.0.1", "localhost")).await;

    with_credentials(&first.url).call(Bytes::from_static(b"{}")).await.unwrap();

    let request = request_to(&mut target).await;
    assert!(!request.contains("Authorization"), "{request}");
}

#[tokio::test]
async fn credentials_follow_a_redirect_from_http_to_https() {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = certified.cert.der().clone();
    let key = certified.signing_key.serialize_der().try_into().unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = format!("https://{}/", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(Arc::new(tls)).accept(stream).await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n{}") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(response("200 OK", "{}").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        String::from_utf8(request).unwrap()
    });
    let first = redirecting_to(&location).await;
    let (cluster, _) = Cluster::new(SimulatedServer::new().client(), ClusterOptions::default());
    let ca_bundle = Some(CaRule::Inline(certified.cert.pem()));
    let rule = EndpointRule { ca_bundle, ..EndpointRule::default() };
    let endpoint = HookCredentials::new(&cluster).endpoint("a".into(), rule, |_| ());
    let hook = with_credentials(&first.url).endpoint(Some(Arc::new(endpoint)));

    hook.call(Bytes::from_static(b"{}")).await.unwrap();

    let request = tasks.join_next().await.unwrap().unwrap();
    assert!(request.contains(CREDENTIALS), "{request}");
}
