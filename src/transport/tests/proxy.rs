//! Connections to the API server through a proxy.

use std::sync::Mutex;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;

/// Proxy on loopback that connects to one server, whatever host a request names.
struct ConnectProxy {
    address: String,
    heads: Arc<Mutex<Vec<String>>>,
    _accepting: JoinSet<()>,
}

impl ConnectProxy {
    async fn to(server: &Server, status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let target = host(&server.config().cluster_url);
        let mut accepting = JoinSet::new();
        let seen = heads.clone();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let (target, seen) = (target.clone(), seen.clone());
                connections.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = client.read_u8().await else { return };
                        head.push(byte);
                    }
                    seen.lock().unwrap().push(String::from_utf8(head).unwrap());
                    let answer = format!("HTTP/1.1 {status}\r\nVia: test\r\n\r\n");
                    client.write_all(answer.as_bytes()).await.unwrap();
                    if status.starts_with("200") {
                        let mut server = TcpStream::connect(target).await.unwrap();
                        drop(copy_bidirectional(&mut client, &mut server).await);
                    }
                });
            }
        });
        Self { address, heads, _accepting: accepting }
    }

    /// Configuration for a server whose name only the proxy can resolve.
    fn config(&self, server: &Server, proxy: &str) -> Config {
        let mut config = server.config();
        config.cluster_url = "https://kubernetes.test:6443".parse().unwrap();
        config.tls_server_name = Some("127.0.0.1".to_owned());
        config.proxy_url = Some(format!("{proxy}{}", self.address).parse().unwrap());
        config
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn requests_and_watches_go_through_a_proxy() {
    for protocols in [H2, &[b"http/1.1"]] {
        let server = Server::start(protocols, 100).await;
        let proxy = ConnectProxy::to(&server, "200 Connection established").await;
        let config = proxy.config(&server, "http://me:p%40ss@");
        let client = client(config, TransportOptions::default()).unwrap();

        assert_eq!(text(&client, "/pods").await, "ok");
        let watch = watch(&client).await;

        let heads = proxy.heads();
        assert!(heads.len() >= 2, "a connection for each lane: {heads:?}");
        for head in heads {
            assert!(head.starts_with("CONNECT kubernetes.test:6443 HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nHost: kubernetes.test:6443\r\n"), "{head}");
            // me:p@ss
            assert!(head.contains("\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n"), "{head}");
        }
        drop(watch);
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_with_its_status_and_without_its_password() {
    for (status, expected) in [
        ("403 Forbidden", "it answered 403 to CONNECT kubernetes.test:6443"),
        ("407 Proxy Authentication Required", "(407)"),
        ("nonsense", "its answer is not HTTP"),
    ] {
        let server = Server::start(H2, 100).await;
        let proxy = ConnectProxy::to(&server, status).await;
        let config = proxy.config(&server, "http://me:secret@");
        let client = client(config, TransportOptions::default()).unwrap();

        let error = client.send(get("/pods")).await.unwrap_err().to_string();

        let named = format!("through the proxy http://{}/: ", proxy.address);
        assert!(error.contains(&named), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_proxy_over_tls_is_judged_by_the_systems_roots() {
    let server = Server::start(H2, 100).await;
    let mut config = server.config();
    // The server itself stands in for the proxy: only the cluster's authority signs its
    // certificate.
    config.proxy_url = Some(config.cluster_url.clone());
    let client = client(config, TransportOptions::default()).unwrap();

    let error = client.send(get("/pods")).await.unwrap_err().to_string();

    assert!(error.contains("through the proxy https://127.0.0.1:"), "{error}");
    assert!(error.contains("certificate"), "{error}");
}
