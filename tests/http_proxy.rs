//! Connections to the API server through an HTTP proxy, from clients and from the binary.

use std::{
    net::SocketAddr,
    process::Output,
    sync::{Arc, Mutex},
};

use http::Request;
use kube::{Client, Config, client::Body};
use pilotlight::{
    testing::{
        Faults,
        proxy::Proxy,
        simulated::{SimulatedServer, SimulatedSocket},
    },
    transport::{TransportOptions, client},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::support::PATIENCE;

/// URL of the API server, whose name only the proxy can resolve.
const SERVER: &str = "https://kubernetes.invalid:6443";

/// HTTP proxy that connects to one server, whatever the requested host.
struct ConnectProxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _accepting: JoinSet<()>,
}

impl ConnectProxy {
    /// Answers `CONNECT` with this status, over TLS if there is an acceptor.
    async fn start(server: SocketAddr, status: &'static str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = heads.clone();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (seen, tls) = (seen.clone(), tls.clone());
                connections.spawn(async move {
                    let Some(tls) = tls else {
                        return pass_on(client, server, status, &seen).await;
                    };
                    // A client that does not trust the certificate closes the connection.
                    let Ok(client) = tls.accept(client).await else { return };
                    pass_on(client, server, status, &seen).await;
                });
            }
        });
        Self { address, heads, _accepting: accepting }
    }

    /// Heads of the requests since the last call.
    fn heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().unwrap())
    }
}

async fn pass_on(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: SocketAddr,
    status: &str,
    seen: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { return };
        head.push(byte);
    }
    seen.lock().unwrap().push(String::from_utf8(head).unwrap());
    let answer = format!("HTTP/1.1 {status}\r\nVia: test\r\n\r\n");
    client.write_all(answer.as_bytes()).await.unwrap();
    client.flush().await.unwrap();
    if status.starts_with("200") {
        let mut server = TcpStream::connect(server).await.unwrap();
        // Either side may close the connection.
        drop(copy_bidirectional(&mut client, &mut server).await);
    }
}

/// Acceptor with a certificate for loopback, and its authority as PEM.
fn acceptor() -> (TlsAcceptor, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
        .unwrap();
    (TlsAcceptor::from(Arc::new(tls)), authority.pem())
}

/// Simulated API server behind TLS and HTTP/2.
struct ApiServer {
    plain: SimulatedSocket,
    tls: Proxy,
}

impl ApiServer {
    async fn start() -> Self {
        let plain = SimulatedServer::new().serve(([127, 0, 0, 1], 0).into()).await.unwrap();
        let tls = Proxy::to_api_server(plain.config(), &Faults::default()).await.unwrap();
        Self { plain, tls }
    }

    /// Configuration with the name that only the proxy can resolve.
    fn config(&self) -> Config {
        let mut config = self.tls.config();
        config.cluster_url = SERVER.parse().unwrap();
        config.tls_server_name = Some("localhost".to_owned());
        config
    }

    /// The same configuration as a file.
    fn kubeconfig(&self) -> NamedTempFile {
        let mut kubeconfig: Value = serde_json::from_str(&self.tls.kubeconfig()).unwrap();
        let cluster = &mut kubeconfig["clusters"][0]["cluster"];
        cluster["server"] = SERVER.into();
        cluster["tls-server-name"] = "localhost".into();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
        file
    }
}

/// Runs `pilotlight types` with only these environment variables.
async fn types(kubeconfig: &NamedTempFile, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
    command.args(["--log-level=debug", "types", "--kubeconfig"]).arg(kubeconfig.path());
    command.kill_on_drop(true);
    for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    timeout(PATIENCE, command.output()).await.expect("it ends").unwrap()
}

async fn get(client: &Client, path: &str) -> Result<http::Response<Body>, String> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    assert_eq!(response.status(), 200);
    Ok(response)
}

/// Runs the binary with the proxy in its environment, and then with the API server in NO_PROXY.
async fn check_environment(tls: Option<(TlsAcceptor, String)>) {
    let server = ApiServer::start().await;
    let kubeconfig = server.kubeconfig();
    let roots = NamedTempFile::new().unwrap();
    let mut variables = Vec::new();
    let (scheme, acceptor) = match tls {
        None => ("http", None),
        Some((acceptor, authority)) => {
            std::fs::write(roots.path(), authority).unwrap();
            variables.push(("SSL_CERT_FILE", roots.path().to_str().unwrap()));
            ("https", Some(acceptor))
        }
    };
    let proxy = ConnectProxy::start(server.tls.address(), "200 OK", acceptor).await;
    let url = format!("{scheme}://me:p%40ss@{}", proxy.address);

    let through = [&variables[..], &[("HTTPS_PROXY", &*url)]].concat();
    let through = types(&kubeconfig, &through).await;
    let proxied = proxy.heads();
    let beside = [&variables[..], &[("https_proxy", &*url), ("NO_PROXY", ".invalid")]].concat();
    let beside = types(&kubeconfig, &beside).await;

    let errors = String::from_utf8_lossy(&through.stderr);
    assert!(through.status.success(), "{errors}");
    for secret in ["p%40ss", "p@ss"] {
        assert!(!errors.contains(secret), "{errors}");
    }
    assert!(!proxied.is_empty());
    for head in proxied {
        assert!(head.starts_with("CONNECT kubernetes.invalid:6443 HTTP/1.1\r\n"), "{head}");
        // me:p@ss
        assert!(head.contains("\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n"), "{head}");
    }
    let errors = String::from_utf8_lossy(&beside.stderr);
    assert!(!beside.status.success(), "the host cannot be resolved");
    assert!(errors.contains("connecting to kubernetes.invalid:6443"), "{errors}");
    assert_eq!(proxy.heads(), [""; 0], "the proxy got a request despite NO_PROXY");
}

#[tokio::test]
async fn the_environment_names_the_proxy_and_its_exceptions() {
    check_environment(None).await;
}

#[tokio::test]
async fn a_proxy_over_tls_that_the_system_trusts_carries_tls_to_the_server() {
    check_environment(Some(acceptor())).await;
}

#[tokio::test]
async fn requests_and_watches_go_through_a_proxy() {
    let server = ApiServer::start().await;
    let mut plain = server.plain.config();
    plain.cluster_url = "http://kubernetes.invalid:6443".parse().unwrap();
    // HTTP/2 over TLS uses one connection per lane; HTTP/1.1 reuses an idle connection.
    for (mut config, address, connections) in
        [(server.config(), server.tls.address(), 2), (plain, server.plain.address(), 1)]
    {
        let proxy = ConnectProxy::start(address, "200 Connection established", None).await;
        config.proxy_url = Some(format!("http://me:p%40ss@{}", proxy.address).parse().unwrap());
        let client = client(config, TransportOptions::default()).unwrap();

        get(&client, "/version").await.unwrap();
        let watch = get(&client, "/api/v1/namespaces?watch=true").await.unwrap();

        let heads = proxy.heads();
        assert_eq!(heads.len(), connections, "{heads:?}");
        for head in heads {
            assert!(head.starts_with("CONNECT kubernetes.invalid:6443 HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nHost: kubernetes.invalid:6443\r\n"), "{head}");
            assert!(head.contains("\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n"), "{head}");
        }
        drop(watch);
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_with_its_status_and_without_its_password() {
    let server = ApiServer::start().await;
    for (status, expected) in [
        ("403 Forbidden", "it answered 403 to CONNECT kubernetes.invalid:6443"),
        ("407 Proxy Authentication Required", "(407)"),
        ("nonsense", "its response is not HTTP"),
    ] {
        let proxy = ConnectProxy::start(server.tls.address(), status, None).await;
        let mut config = server.config();
        config.proxy_url = Some(format!("http://me:secret@{}", proxy.address).parse().unwrap());
        let client = client(config, TransportOptions::default()).unwrap();

        let error = get(&client, "/version").await.unwrap_err();

        let named = format!("through the proxy http://{}/: ", proxy.address);
        assert!(error.contains(&named), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_proxy_over_tls_is_verified_by_the_systems_roots() {
    let server = ApiServer::start().await;
    let (acceptor, _) = acceptor();
    let proxy = ConnectProxy::start(server.tls.address(), "200 OK", Some(acceptor)).await;
    let mut config = server.config();
    config.proxy_url = Some(format!("https://{}", proxy.address).parse().unwrap());
    let client = client(config, TransportOptions::default()).unwrap();

    let error = get(&client, "/version").await.unwrap_err();

    assert!(error.contains(&format!("through the proxy https://{}", proxy.address)), "{error}");
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(proxy.heads(), [""; 0], "nothing is sent to a proxy that is not trusted");
}
