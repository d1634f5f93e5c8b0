//! Requests that stay open.

use http::header::{CONNECTION, UPGRADE};

use super::{credentials::PATIENCE, *};

const FOLLOWED: &str = "/api/v1/namespaces/a/pods/b/log?follow=true&container=c";

fn impatient() -> TransportOptions {
    TransportOptions {
        request_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_secs(1),
        ..TransportOptions::default()
    }
}

#[tokio::test]
async fn followed_log_outlives_the_deadline_of_reads() {
    let server = Server::start(H2, 100).await;
    let client = client(server.config(), impatient()).unwrap();
    let mut body = client.send(get(FOLLOWED)).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();

    let silence = tokio::time::timeout(Duration::from_millis(1300), body.frame()).await;

    assert!(silence.is_err(), "it is silent, and neither ended nor failed: {silence:?}");
}

#[tokio::test]
async fn log_without_a_first_line_is_followed() {
    // A kubelet sends the head with the first line.
    let server = Server::start(H2, 100).await;
    let client = client(server.config(), impatient()).unwrap();

    let path = "/api/v1/namespaces/a/pods/b/log?container=silent&follow=true";
    let silence = tokio::time::timeout(Duration::from_millis(1300), client.send(get(path))).await;

    assert!(silence.is_err(), "{:?}", silence.unwrap().err());
}

#[tokio::test]
async fn an_upgrade_is_refused_before_it_is_sent() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    let exec = Request::get("/api/v1/namespaces/a/pods/b/exec?command=ls")
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .body(Body::empty())
        .unwrap();

    let error = client.send(exec).await.unwrap_err().to_string();

    assert!(error.contains("/api/v1/namespaces/a/pods/b/exec"), "{error}");
    assert!(error.contains("kube::Client::try_from"), "{error}");
    assert!(!error.contains("command=ls"), "{error}");
    assert_eq!(transport.connections(), 0);
}

#[tokio::test]
async fn unlimited_durations_are_accepted() {
    let server = Server::start(H2, 100).await;
    let options = TransportOptions {
        connect_timeout: Duration::MAX,
        request_timeout: Duration::MAX,
        read_timeout: Duration::MAX,
        lease_timeout: Duration::MAX,
        keep_alive_interval: Duration::MAX,
        keep_alive_timeout: Duration::MAX,
        idle_timeout: Duration::MAX,
        ..TransportOptions::default()
    };
    let client = client(server.config(), options).unwrap();

    assert_eq!(text(&client, "/pods").await, "ok");
    assert_eq!(text(&client, "/apis/coordination.k8s.io/v1/leases").await, "ok");
    watch(&client).await;
}

#[tokio::test]
async fn log_request_ends_when_its_connection_cannot_be_opened() {
    for protocols in [H2, &[b"http/1.1"]] {
        let server = Server::start(protocols, 100).await;
        let options = TransportOptions {
            connect_timeout: Duration::from_millis(500),
            ..TransportOptions::default()
        };
        let transport = Transport::new(server.config(), options).unwrap();
        let client = transport.client().unwrap();
        // The protocol is known, and over HTTP/1.1 the only connection is in use.
        let other = client.send(get("/flood")).await.unwrap();
        server.hold_handshakes();

        let followed = tokio::time::timeout(PATIENCE, client.send(get(FOLLOWED))).await;

        let error = followed.expect("the time to connect is bounded").unwrap_err().to_string();
        assert!(error.starts_with("ServiceError: connecting to 127.0.0.1:"), "{error}");
        assert!(error.contains("not open within 500ms"), "{error}");
        drop(other);
    }
}
