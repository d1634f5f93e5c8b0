//! Server as a client sees it.

mod bounds;
mod standby;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::manager::{CheckResult, ManagerOptions};

/// Returns the response to a request of one line.
async fn send(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

fn bind(pages: Router) -> (HttpServer, SocketAddr) {
    let server = HttpServer::bind("127.0.0.1:0", pages).unwrap();
    let address = server.address().unwrap();
    (server, address)
}

/// Runs a manager with this server until `requests` end.
async fn run<T>(mut manager: Manager, server: HttpServer, requests: impl Future<Output = T>) -> T {
    server.add_to(&mut manager, "server").unwrap();
    let stop = CancellationToken::new();
    let requests = async {
        let answers = requests.await;
        stop.cancel();
        answers
    };
    let (ended, answers) = tokio::join!(manager.run(stop.clone()), requests);
    ended.unwrap();
    answers
}

#[tokio::test]
async fn manager_without_a_cluster_serves_its_checks_and_metrics() {
    let manager = Manager::new(ManagerOptions::default());
    let readiness = manager.handle().readiness();
    let (server, address) = bind(probes(&manager.handle()).merge(metrics(&manager.handle())));

    let answers = run(manager, server, async {
        let get = async |path: &str| send(address, &format!("GET {path}")).await;
        let healthy = get("/healthz").await;
        readiness.add("queue", || CheckResult::Degraded("long".into()));
        let degraded = get("/readyz?verbose").await;
        readiness.add("database", || Err("no connection"));
        let failed = get("/readyz").await;
        let one = (get("/readyz/queue").await, get("/readyz/database").await);
        let excluded = get("/readyz?exclude=database").await;
        readiness.add("may create jobs", || Err("no"));
        let encoded = get("/readyz/?exclude=may+create%20jobs&exclude=d%61tabase").await;
        readiness.remove("may create jobs");
        let (runs, counted) = (Arc::new(AtomicUsize::new(0)), readiness.clone());
        let count = Arc::clone(&runs);
        counted.add("slow", move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, String>(())
        });
        let others = (get("/readyz/queue").await, get("/readyz?exclude=slow").await);
        assert_eq!(runs.load(Ordering::Relaxed), 0, "{others:?}");
        get("/readyz/slow").await;
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        readiness.remove("slow");
        assert!(encoded.starts_with("HTTP/1.1 200 OK"), "{encoded}");
        readiness.remove("database");
        let removed = (get("/readyz").await, get("/readyz/database").await);
        (healthy, degraded, failed, one, excluded, removed, get("/metrics").await)
    })
    .await;

    let (healthy, degraded, failed, one, excluded, removed, metrics) = answers;
    let passed = |response: &str| response.starts_with("HTTP/1.1 200 OK");
    assert!(passed(&healthy) && healthy.ends_with("\r\nok"), "{healthy}");
    assert!(passed(&degraded), "{degraded}");
    let lines = "\r\n[!]queue long\n[+]controller/server Running Running\nreadyz check passed\n";
    assert!(degraded.ends_with(lines), "{degraded}");
    assert!(failed.starts_with("HTTP/1.1 503"), "{failed}");
    let lines = "\r\n[-]database no connection\nreadyz check failed\n";
    assert!(failed.ends_with(lines), "only the failed ones: {failed}");
    assert!(passed(&one.0) && one.0.ends_with("\r\n[!]queue long\n"), "{}", one.0);
    assert!(one.1.starts_with("HTTP/1.1 503"), "{}", one.1);
    assert!(passed(&excluded) && passed(&removed.0), "{excluded} {}", removed.0);
    assert!(removed.1.starts_with("HTTP/1.1 404"), "{}", removed.1);
    assert!(metrics.contains("pilotlight_controller_state{controller=\"server\""), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
}

#[tokio::test]
async fn panic_in_a_page_of_the_program_ends_its_own_request_alone() {
    let manager = Manager::new(ManagerOptions::default());
    async fn panics() -> &'static str {
        panic!("expected by the test")
    }
    let pages = Router::new().route("/own", get(|| async { "own" }));
    let pages = probes(&manager.handle()).merge(pages.route("/panics", get(panics)));
    let (server, address) = bind(pages);

    let answers = run(manager, server, async {
        let mut codes = Vec::new();
        for path in ["/own", "/panics", "/own", "/livez", "/elsewhere"] {
            let answer = send(address, &format!("GET {path}")).await;
            codes.push(answer.split(' ').nth(1).unwrap_or("none").to_owned());
        }
        codes
    })
    .await;

    assert_eq!(answers, ["200", "none", "200", "200", "404"]);
}

#[tokio::test]
async fn port_in_use_is_an_error_before_anything_starts() {
    let (_server, address) = bind(Router::new());

    let again = HttpServer::bind(address, Router::new());

    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn idle_connection_delays_no_end_of_the_server() {
    let manager = Manager::new(ManagerOptions::default());
    let (server, address) = bind(probes(&manager.handle()));

    let idle = run(manager, server, async {
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
        let mut begin = [0; 12];
        idle.read_exact(&mut begin).await.unwrap();
        idle
    });

    drop(tokio::time::timeout(Duration::from_secs(4), idle).await.expect("within the grace"));
}

#[tokio::test]
async fn page_that_never_answers_ends_with_the_grace_of_the_server() {
    let mut manager = Manager::new(ManagerOptions::default());
    let reached = Arc::new(Notify::new());
    let begins = Arc::clone(&reached);
    let never = move || {
        begins.notify_one();
        std::future::pending::<()>()
    };
    let (server, address) = bind(Router::new().route("/never", get(never)));
    let grace = Duration::from_millis(200);
    let options = RunnableOptions { grace, ..RunnableOptions::fail_fast() };
    manager.add_runnable("server", Arc::new(server), options).unwrap();
    let stop = CancellationToken::new();
    let requested = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /never HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
        reached.notified().await;
        stop.cancel();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    };

    let (ended, response) = tokio::join!(manager.run(stop.clone()), requested);

    ended.unwrap();
    assert!(
        response.starts_with("HTTP/1.1 503") && response.ends_with("has stopped\n"),
        "{response}"
    );
    assert!(TcpStream::connect(address).await.is_err(), "it does not listen any longer");
}

#[tokio::test]
async fn server_has_only_the_pages_it_was_given_and_ends_with_its_manager() {
    for (serves_probes, expected) in [(true, ["200", "200", "404"]), (false, ["404", "404", "200"])]
    {
        let manager = Manager::new(ManagerOptions::default());
        let handle = manager.handle();
        let pages = if serves_probes { probes(&handle) } else { metrics(&handle) };
        let (server, address) = bind(pages);

        let codes = run(manager, server, async {
            let mut codes = Vec::new();
            for path in ["/healthz", "/readyz", "/metrics"] {
                let answer = send(address, &format!("GET {path}")).await;
                codes.push(answer.split(' ').nth(1).unwrap_or("none").to_owned());
            }
            codes
        })
        .await;

        assert_eq!(codes, expected);
        assert!(TcpStream::connect(address).await.is_err(), "it does not listen any longer");
        HttpServer::bind(address, Router::new()).expect("the port is free");
    }
}
