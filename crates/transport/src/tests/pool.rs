//! Connections that end while requests use them, and servers that change their protocol.

use super::*;

#[tokio::test]
async fn a_request_survives_any_number_of_connections_that_drain() {
    let server = Server::start(H2, 1).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    drop(watches(&client, 12).await);
    let open = transport.connections();
    assert!(open > 5, "{open}");

    server.refuse_streams();
    tokio::task::yield_now().await;
    watch(&client).await;

    assert!(server.refused() > 5, "{}", server.refused());
}

#[tokio::test(start_paused = true)]
async fn http_2_is_tried_again_after_a_while() {
    tokio::time::resume();
    let server = Server::start(&[b"http/1.1"], 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    assert_eq!(text(&client, "/pods").await, "ok");
    assert_eq!(transport.connections(), 0, "HTTP/1.1 has a pool of its own");

    server.speak(H2);
    assert_eq!(text(&client, "/pods").await, "ok");
    assert_eq!(transport.connections(), 0);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3600)).await;
    tokio::time::resume();
    assert_eq!(text(&client, "/pods").await, "ok");

    assert_eq!(transport.connections(), 1);
}

#[tokio::test]
async fn few_idle_connections_over_http_1_are_kept() {
    let server = Server::start(&[b"http/1.1"], 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    let watches = watches(&client, 40).await;

    let all = futures::future::join_all((0..40).map(|_| text(&client, "/pods"))).await;

    assert!(all.iter().all(|text| text == "ok"));
    server.open(40 + 25).await;
    drop(watches);
    server.open(25).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_have_tcp_keep_alive() {
    let server = Server::start(&[b"http/1.1"], 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    let port = server.config().cluster_url.port_u16().unwrap();

    assert_eq!(text(&client, "/pods").await, "ok");

    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Columns: number, local address, remote address, state, queues, timer and its time, ...
    let of_client = sockets.lines().find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let ours = columns.get(2)?.ends_with(&format!(":{port:04X}")) && columns[3] == "01";
        ours.then(|| columns[5].to_owned())
    });
    let timer = of_client.expect("the connection is open");
    assert!(timer.starts_with("02:"), "the keep-alive timer runs: {timer}");
}
