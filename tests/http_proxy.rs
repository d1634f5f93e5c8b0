//! The binary behind an HTTP proxy that the environment names.

use std::{
    net::SocketAddr,
    process::Output,
    sync::{Arc, Mutex},
};

use pilotlight::testing::{Faults, proxy::Proxy, simulated::SimulatedServer};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
    time::timeout,
};

use crate::support::PATIENCE;

/// Passes every connection on to `server`, whatever host it is asked for, and keeps what it was
/// asked.
async fn connect_proxy(server: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = asked.clone();
    let mut accepting = JoinSet::new();
    accepting.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let seen = seen.clone();
            connections.spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = client.read_u8().await else { return };
                    head.push(byte);
                }
                seen.lock().unwrap().push(String::from_utf8(head).unwrap());
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                // Broken by either side.
                drop(copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (address, asked, accepting)
}

/// `pilotlight types`, with these variables alone.
async fn types(kubeconfig: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
    command.args(["--log-level=debug", "types", "--kubeconfig", kubeconfig]).kill_on_drop(true);
    for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    timeout(PATIENCE, command.output()).await.expect("it ends").unwrap()
}

#[tokio::test]
async fn the_environment_names_the_proxy_and_its_exceptions() {
    let socket = SimulatedServer::new().serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let tls = Proxy::to_api_server(socket.config(), &Faults::default()).await.unwrap();
    let (proxy, asked, _accepting) = connect_proxy(tls.address()).await;
    let mut kubeconfig: Value = serde_json::from_str(&tls.kubeconfig()).unwrap();
    let cluster = &mut kubeconfig["clusters"][0]["cluster"];
    // No name server knows it: the proxy does.
    cluster["server"] = "https://kubernetes.invalid:6443".into();
    cluster["tls-server-name"] = "localhost".into();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
    let file = file.path().to_str().unwrap();
    let proxy = format!("http://me:secret@{proxy}");

    let through = types(file, &[("HTTPS_PROXY", &proxy)]).await;
    let asked_through = std::mem::take(&mut *asked.lock().unwrap());
    let beside = types(file, &[("https_proxy", &proxy), ("NO_PROXY", ".invalid")]).await;

    let errors = String::from_utf8_lossy(&through.stderr);
    assert!(through.status.success(), "{errors}");
    assert!(!errors.contains("secret"), "{errors}");
    assert!(!asked_through.is_empty());
    for head in asked_through {
        assert!(head.starts_with("CONNECT kubernetes.invalid:6443 HTTP/1.1\r\n"), "{head}");
    }
    let errors = String::from_utf8_lossy(&beside.stderr);
    assert!(!beside.status.success(), "nothing finds that host");
    assert!(errors.contains("connecting to kubernetes.invalid:6443"), "{errors}");
    assert!(asked.lock().unwrap().is_empty(), "{:?}", asked.lock().unwrap());
}
