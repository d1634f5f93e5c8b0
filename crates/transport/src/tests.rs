//! The transport against a server over TLS.

mod credentials;
mod pool;
mod streams;
mod user_agent;

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use http_body_util::BodyExt;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::time::Instant;

use super::{server::Server, *};

const H2: &[&[u8]] = &[b"h2", b"http/1.1"];

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

fn transport(server: &Server) -> Transport {
    Transport::new(server.config(), TransportOptions::default()).unwrap()
}

async fn text(client: &Client, path: &str) -> String {
    let body = client.send(get(path)).await.unwrap().into_body();
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Opens a watch and waits for its first line.
async fn watch(client: &Client) -> Body {
    let mut body = client.send(get("/pods?watch=true")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    body
}

async fn watches(client: &Client, count: usize) -> Vec<Body> {
    let watches: FuturesUnordered<_> = (0..count).map(|_| watch(client)).collect();
    watches.collect().await
}

#[tokio::test]
async fn a_write_does_not_wait_behind_any_number_of_watches() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();

    let watches = watches(&client, 250).await;
    let write = Request::post("/pods").body(Body::from(b"{}".to_vec())).unwrap();
    let response = client.send(write).await.unwrap();
    drop(response);
    text(&client, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b").await;

    // 80, 80, 80 and 10 watches, one connection for the write and one for the lease.
    assert_eq!(watches.len(), 250);
    assert_eq!((transport.connections(), server.opened()), (6, 6));

    drop((watches, client, transport));
    server.open(0).await;
}

#[tokio::test]
async fn number_of_streams_stays_within_the_servers_limit() {
    let server = Server::start(H2, 7).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();

    let watches = watches(&client, 20).await;

    assert_eq!(watches.len(), 20);
    assert_eq!(transport.connections(), 3);
}

#[tokio::test]
async fn stream_is_released_when_its_body_is_dropped() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();

    for _ in 0..3 {
        drop(watches(&client, 80).await);
    }

    assert_eq!(transport.connections(), 1);
    assert_eq!(server.opened(), 1);
}

#[tokio::test]
async fn no_request_is_sent_on_a_connection_after_goaway() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    let old = watch(&client).await;
    text(&client, "/pods").await;

    server.go_away();
    let new = watch(&client).await;
    assert_eq!(text(&client, "/pods").await, "ok");

    assert_eq!(transport.connections(), 2, "those that go away no longer count");
    drop(old);
    // The old connection closes once its last stream has ended.
    server.open(2).await;
    drop(new);
}

#[tokio::test]
async fn a_broken_connection_ends_its_streams_and_is_replaced() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    let mut body = watch(&client).await;

    server.break_all();
    let end = body.frame().await.unwrap();
    server.open(0).await;

    let error = end.unwrap_err().to_string();
    assert!(error.contains("broke: "), "{error}");
    watch(&client).await;
    assert_eq!(server.opened(), 2);
}

#[tokio::test]
async fn request_that_the_server_did_not_process_is_sent_again() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();

    let write = Request::post("/refused-once").body(Body::from(b"{}".to_vec())).unwrap();
    let response = client.send(write).await.unwrap();

    assert_eq!(response.status(), 200);
    assert_eq!((server.refused(), server.opened()), (1, 2));
}

#[tokio::test]
async fn unanswered_request_ends_at_its_deadline() {
    let server = Server::start(H2, 100).await;
    let options = TransportOptions {
        request_timeout: Duration::from_millis(100),
        ..TransportOptions::default()
    };
    let client = client(server.config(), options).unwrap();

    let error = client.send(get("/silent")).await.unwrap_err().to_string();
    let stuck = client.send(get("/stuck")).await.unwrap().into_body().collect().await;

    assert!(error.contains("GET /silent was not answered within 100ms"), "{error}");
    let error = stuck.unwrap_err().to_string();
    assert!(error.contains("GET /stuck was not answered within 100ms"), "{error}");
}

#[tokio::test]
async fn a_list_may_take_long_while_it_keeps_arriving() {
    let server = Server::start(H2, 100).await;
    let options = TransportOptions {
        request_timeout: Duration::from_millis(1500),
        ..TransportOptions::default()
    };
    let client = client(server.config(), options).unwrap();

    let started = Instant::now();
    let list = text(&client, "/trickle?limit=500").await;

    assert_eq!(list, "........");
    assert!(started.elapsed() > Duration::from_millis(1500), "{:?}", started.elapsed());
    let write = Request::post("/trickle").body(Body::empty()).unwrap();
    let cut = client.send(write).await.unwrap().into_body().collect().await.unwrap_err();
    assert!(cut.to_string().contains("was not answered within 1.5s"), "{cut}");
}

#[tokio::test]
async fn endless_list_ends_at_its_deadline() {
    let server = Server::start(H2, 100).await;
    let options = TransportOptions {
        // Long enough for a machine with other work to open the connection.
        request_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_millis(1500),
        ..TransportOptions::default()
    };
    let client = client(server.config(), options).unwrap();

    let mut body = client.send(get("/flood")).await.unwrap().into_body();
    let error = loop {
        if let Err(error) = body.frame().await.unwrap() {
            break error.to_string();
        }
    };

    assert!(error.contains("GET /flood was not answered within 1.5s"), "{error}");
}

#[tokio::test]
async fn a_watch_outlives_the_deadline_of_requests() {
    let server = Server::start(H2, 100).await;
    let options = TransportOptions {
        // Long enough for a machine with other work to open the watch.
        request_timeout: Duration::from_secs(1),
        ..TransportOptions::default()
    };
    let client = client(server.config(), options).unwrap();
    let mut body = watch(&client).await;

    let silence = tokio::time::timeout(Duration::from_millis(1300), body.frame()).await;

    assert!(silence.is_err(), "it is silent, and neither ended nor failed: {silence:?}");
}

#[tokio::test]
async fn unread_watches_do_not_delay_other_requests() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();

    let mut unread = Vec::new();
    for _ in 0..79 {
        unread.push(client.send(get("/flood?watch=true")).await.unwrap());
    }
    watch(&client).await;

    assert_eq!(transport.connections(), 1);
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = Server::start(H2, 100).await;
    let options =
        TransportOptions { idle_timeout: Duration::from_millis(20), ..TransportOptions::default() };
    let transport = Transport::new(server.config(), options).unwrap();
    let client = transport.client().unwrap();

    text(&client, "/pods").await;
    server.open(0).await;

    assert_eq!(transport.connections(), 0);
    assert_eq!(text(&client, "/pods").await, "ok");
}

#[tokio::test]
async fn server_without_http_2_gets_http_1() {
    let server = Server::start(&[b"http/1.1"], 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();

    let watches = watches(&client, 3).await;
    assert_eq!(text(&client, "/pods").await, "ok");

    drop((watches, client, transport));
    server.open(0).await;
}

#[tokio::test]
async fn a_closed_transport_fails_every_request() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    let mut body = watch(&client).await;

    transport.close().await;

    assert!(body.frame().await.unwrap().is_err());
    let error = client.send(get("/pods")).await.unwrap_err().to_string();
    assert!(error.contains("has been closed"), "{error}");
    server.open(0).await;
}

#[tokio::test]
async fn unreachable_server_is_named() {
    let config = Config::new("https://127.0.0.1:1".parse().unwrap());
    let client = client(config, TransportOptions::default()).unwrap();

    let error = client.send(get("/pods")).await.unwrap_err().to_string();

    assert!(error.contains("connecting to 127.0.0.1:1: "), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_socks_proxy_is_refused_without_its_password() {
    let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
    config.proxy_url = Some("socks5://me:secret@proxy:3128".parse().unwrap());

    let error = Transport::new(config, TransportOptions::default()).unwrap_err().to_string();

    assert!(error.contains("socks5://proxy:3128/"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[tokio::test]
async fn requests_are_counted_by_code_method_and_host() {
    let server = Server::start(H2, 100).await;
    let options = TransportOptions::default();
    let mut registry = Registry::default();
    options.metrics.register(&mut registry);
    let config = server.config();
    let host = host(&config.cluster_url);
    let client = client(config, options).unwrap();

    text(&client, "/pods").await;
    text(&client, "/pods").await;

    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let line =
        format!("rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"{host}\"}} 2\n");
    assert!(page.contains(&line), "{page}");
    let line =
        format!("rest_client_request_duration_seconds_count{{verb=\"GET\",host=\"{host}\"}} 2\n");
    assert!(page.contains(&line), "{page}");
}
