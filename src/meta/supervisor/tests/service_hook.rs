//! Call of a hook that is declared as a service, as a proxy sees it.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::transport::Proxies;

/// HTTP proxy that answers one request itself, as a hook without children. The task returns the
/// first line of the request.
async fn proxy() -> (Proxies, JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            stream.read_buf(&mut request).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
        let request = String::from_utf8(request).unwrap();
        request.lines().next().unwrap().to_owned()
    });
    (Proxies::from_environment(|name| (name == "HTTP_PROXY").then(|| url.clone())), tasks)
}

// Real time: the calls are sent over a socket.
#[tokio::test]
async fn hook_of_a_service_is_called_by_its_name_below_svc() {
    let (hook_proxies, mut proxy) = proxy().await;
    let options = MetaOptions { hook_proxies, ..MetaOptions::default() };
    let server = SimulatedServer::new();
    let client = server.client();
    let harness = Harness::over(server, client, options).await;
    let thing = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(thing).unwrap();
    let mut spec = good();
    let service = json!({"name": "hooks", "namespace": "dev"});
    spec["hooks"]["sync"]["webhook"] = json!({"service": service, "path": "/sync"});

    harness.declare("a", spec);

    let called = timeout(Duration::from_secs(60), proxy.join_next()).await;
    let line = called.expect("the hook is called").unwrap().unwrap();
    assert_eq!(line, "POST http://hooks.dev.svc:80/sync HTTP/1.1");
    harness.end().await;
}
