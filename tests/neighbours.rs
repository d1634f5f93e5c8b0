//! Clients of the probes and metrics that another pod might be: many, slow and large.

use std::{net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use pilotlight::testing::simulated::SimulatedServer;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Command,
    task::JoinSet,
    time::timeout,
};

use crate::support::PATIENCE;

/// Number of connections to each server, of which one more than the bound would be a fault already.
const CONNECTIONS: usize = 300;
/// Begin of a header without an end. A buffer of this length in each connection is 240 MB.
const HEADER_BYTES: usize = 400_000;
/// Limit of the growth of the process's anonymous memory, in KiB.
const MOST_KIB: u64 = 48 * 1024;
/// Deadline of a probe on a busy machine; a pod may have 1 s.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the anonymous memory of a process, in KiB.
fn anonymous_kib(process: u32) -> u64 {
    let status = PathBuf::from(format!("/proc/{process}/status"));
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the first bytes of the response to a probe.
async fn probe(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: probe\r\n\r\n").await.unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).await.unwrap();
    String::from_utf8(begin.to_vec()).unwrap()
}

#[tokio::test]
async fn endless_headers_take_no_memory_of_the_process_and_no_probe() {
    let server = SimulatedServer::new();
    for crd in pilotlight::meta::crds() {
        server.install(&crd).unwrap();
    }
    let socket = server.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kubeconfig.path(), socket.kubeconfig()).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_pilotlight"))
        .args(["run", "--metrics-address=127.0.0.1:0"])
        .args(["--health-probe-bind-address=127.0.0.1:0", "--kubeconfig"])
        .arg(kubeconfig.path())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let starting = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("probes=") {
                return line;
            }
        }
        panic!("it names no address");
    };
    let line = timeout(PATIENCE, starting).await.unwrap();
    let address = |field: &str| -> SocketAddr {
        line.split(field).nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let (probes, metrics) = (address("probes="), address("metrics="));
    let mut reading = JoinSet::new();
    reading.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    assert_eq!(probe(probes).await, "HTTP/1.1 200 OK");
    let id = process.id().unwrap();
    let before = anonymous_kib(id);

    let mut header = b"GET / HTTP/1.1\r\nA: ".to_vec();
    header.resize(HEADER_BYTES, b'a');
    let (mut open, mut most, mut answers) = (Vec::new(), 0, Vec::new());
    for number in 0..CONNECTIONS {
        for address in [probes, metrics] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The server may have closed it, or stopped to read it.
            drop(timeout(Duration::from_millis(100), stream.write_all(&header)).await);
            open.push(stream);
        }
        most = most.max(anonymous_kib(id));
        if number % 50 == 49 {
            answers.push(timeout(PROBE_TIMEOUT, probe(probes)).await);
        }
    }

    let grown = most.saturating_sub(before);
    assert!(grown < MOST_KIB, "it has grown by {} MiB", grown / 1024);
    let is_answered = |answer: &Result<String, _>| answer.as_deref() == Ok("HTTP/1.1 200 OK");
    assert!(answers.iter().all(is_answered), "{answers:?}");
}
