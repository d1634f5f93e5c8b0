//! Requests of an epoch whose end closes its fence, over real connections.

#[path = "../../../crates/transport/src/server.rs"]
#[expect(dead_code, reason = "the tests of the transport use the other items")]
mod server;

use std::fs;

use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use self::server::Server;
use super::*;
use crate::transport::{Transport, TransportOptions};

/// Upper bound for waits of tests that fail.
const PATIENCE: Duration = Duration::from_secs(20);

const H2: &[&[u8]] = &[b"h2", b"http/1.1"];

/// A run that hands its epoch to the test and ends at a signal.
struct ExposesEpoch {
    epoch: mpsc::UnboundedSender<Epoch>,
    end: Arc<Notify>,
}

impl Runnable for ExposesEpoch {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let end = self.end.clone();
        self.epoch.send(epoch).unwrap();
        Box::pin(async move {
            end.notified().await;
            Ok(())
        })
    }
}

/// A manager with one epoch, which the test ends.
struct ManagedEpoch {
    epoch: Epoch,
    end: Arc<Notify>,
    handle: ManagerHandle,
    _tasks: JoinSet<()>,
}

impl ManagedEpoch {
    async fn start() -> Self {
        let (sender, mut epochs) = mpsc::unbounded_channel();
        let end = Arc::new(Notify::new());
        let mut manager = Manager::new(ManagerOptions::default());
        let options = RunnableOptions {
            restart: RestartPolicy::Never,
            grace: Duration::from_millis(50),
            ..RunnableOptions::default()
        };
        let lent = Arc::new(ExposesEpoch { epoch: sender, end: end.clone() });
        manager.add_runnable("lent", lent, options).unwrap();
        let handle = manager.handle();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { manager.run(CancellationToken::new()).await.unwrap() });
        Self { epoch: epochs.recv().await.unwrap(), end, handle, _tasks: tasks }
    }

    /// Ends the run, and waits until its epoch is done.
    async fn done(&self) -> Done {
        self.end.notify_one();
        let mut snapshots = self.handle.watch();
        let done = async {
            loop {
                let status = self.handle.status_of("lent").unwrap();
                if let Some(done) = &status.last_done {
                    return done.clone();
                }
                snapshots.changed().await.unwrap();
            }
        };
        timeout(PATIENCE, done).await.expect("it is done within its grace")
    }
}

fn transport(server: &Server) -> Transport {
    Transport::new(server.config(), TransportOptions::default()).unwrap()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn text(client: &kube::Client, path: &str) -> String {
    let body = client.send(get(path)).await.unwrap().into_body();
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Opens a watch and waits for its first line.
async fn watch(client: &kube::Client) -> Body {
    let mut body = client.send(get("/pods?watch=true")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    body
}

fn post(path: &str) -> Request<Body> {
    Request::post(path).body(Body::from(b"{}".to_vec())).unwrap()
}

fn lines(server: &Server) -> Vec<String> {
    server.received().into_iter().map(|received| received.line).collect()
}

/// Lets a detached task and a future that is polled no more send a write, waits until both
/// `wait`, and ends their epoch. Only then `open`s their way, and sends a request without a fence.
async fn check(
    server: &Server,
    transport: &Transport,
    waits: impl AsyncFnOnce(),
    open: impl FnOnce(),
) {
    let client = transport.client().unwrap();
    let managed = ManagedEpoch::start().await;
    let fenced = managed.epoch.client(&client);
    let mut detached = JoinSet::new();
    let escaped = fenced.clone();
    detached.spawn(async move { escaped.send(post("/detached")).await.map(drop) });
    let mut unpolled = Box::pin(fenced.send(post("/unpolled")));
    while managed.epoch.fence().under_way() < 2 {
        assert!(futures::poll!(&mut unpolled).is_pending());
        sleep(Duration::from_millis(1)).await;
    }
    let waiting = async {
        tokio::select! {
            biased;
            _ = &mut unpolled => panic!("it is answered"),
            () = waits() => {}
        }
    };
    timeout(PATIENCE, waiting).await.expect("both wait");
    let before = lines(server);

    let done = managed.done().await;
    open();
    assert_eq!(text(&client, "/after").await, "ok");
    let end = timeout(PATIENCE, detached.join_next()).await.expect("its caller gets an error");
    // The server has seen all that was sent on a connection when the connection has ended.
    transport.close().await;
    timeout(PATIENCE, server.open(0)).await.expect("no connection is left");

    let after = lines(server).split_off(before.len());
    assert_eq!(after, ["GET /after"], "requests received after done");
    assert_eq!(done.unknown_requests, 2);
    let error = end.unwrap().unwrap().unwrap_err().to_string();
    assert!(error.contains("the epoch is over"), "{error}");
    assert!(unpolled.await.is_err());
}

#[tokio::test]
async fn no_request_that_waits_for_an_http_2_connection_is_sent_after_done() {
    let server = Server::start(H2, 100).await;
    let transport = transport(&server);
    server.hold_handshakes();

    check(&server, &transport, async || server.waiting(1).await, || server.resume_handshakes())
        .await;
}

#[tokio::test]
async fn no_request_that_waits_for_an_http_1_connection_is_sent_after_done() {
    let server = Server::start(&[b"http/1.1"], 100).await;
    let transport = transport(&server);
    let client = transport.client().unwrap();
    // The only connection is in use, and the protocol is known.
    let watch = watch(&client).await;
    server.hold_handshakes();

    let open = || {
        server.resume_handshakes();
        drop(watch);
    };
    check(&server, &transport, async || server.waiting(2).await, open).await;
}

#[tokio::test]
async fn no_request_that_waits_for_credentials_is_sent_after_done() {
    let server = Server::start(H2, 100).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": { "token": "late" },
    });
    fs::write(path("credential"), credential.to_string()).unwrap();
    // Exec plugin that waits for its gate.
    let script = "cd \"$0\"; touch began; while [ ! -e gate ]; do sleep 0.02; done; cat credential";
    let mut config = server.config();
    let user = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", script, folder.path()],
        "interactiveMode": "Never",
    }});
    config.auth_info = serde_json::from_value(user).unwrap();
    let transport = Transport::new(config, TransportOptions::default()).unwrap();

    let waits = async || {
        while !path("began").exists() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let open = || fs::write(path("gate"), "").unwrap();
    check(&server, &transport, waits, open).await;
}

#[tokio::test]
async fn request_sent_before_done_is_aborted_and_its_write_is_unknown() {
    for protocols in [H2, &[b"http/1.1"]] {
        let server = Server::start(protocols, 100).await;
        let transport = transport(&server);
        let managed = ManagedEpoch::start().await;
        let client = managed.epoch.client(&transport.client().unwrap());
        let mut watch = watch(&client).await;
        let mut read = client.send(get("/flood")).await.unwrap().into_body();
        read.frame().await.unwrap().unwrap();
        let mut write = Box::pin(client.send(post("/silent")));
        let received = async {
            tokio::select! {
                _ = &mut write => panic!("it is answered"),
                () = server.receives("POST /silent") => {}
            }
        };
        timeout(PATIENCE, received).await.expect("it is sent");

        let done = managed.done().await;

        assert_eq!(done.unknown_requests, 1, "the write, and no read");
        for body in [&mut watch, &mut read] {
            let frame = timeout(PATIENCE, body.frame()).await.expect("it is cut");
            let error = frame.unwrap().unwrap_err().to_string();
            assert!(error.contains("the epoch is over"), "{error}");
        }
        assert!(write.await.is_err());
    }
}
