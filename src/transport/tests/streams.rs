//! Requests that stay open.

use super::*;

const FOLLOWED: &str = "/api/v1/namespaces/a/pods/b/log?follow=true&container=c";

fn impatient() -> TransportOptions {
    TransportOptions {
        request_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_secs(1),
        ..TransportOptions::default()
    }
}

#[tokio::test]
async fn a_log_that_is_followed_outlives_the_deadline_of_reads() {
    let server = Server::start(H2, 100).await;
    let client = client(server.config(), impatient()).unwrap();
    let mut body = client.send(get(FOLLOWED)).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();

    let silence = tokio::time::timeout(Duration::from_millis(1300), body.frame()).await;

    assert!(silence.is_err(), "it is silent, and neither ended nor failed: {silence:?}");
}

#[tokio::test]
async fn a_log_without_a_first_line_is_followed_all_the_same() {
    // A kubelet sends the head with the first line.
    let server = Server::start(H2, 100).await;
    let client = client(server.config(), impatient()).unwrap();

    let path = "/api/v1/namespaces/a/pods/b/log?container=silent&follow=true";
    let silence = tokio::time::timeout(Duration::from_millis(1300), client.send(get(path))).await;

    assert!(silence.is_err(), "{:?}", silence.unwrap().err());
}
