//! Rotation of the authority (CA) of the API server's certificate, in the file that holds it.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{Config, config::Kubeconfig};
use pilotlight::{
    testing::{ControlPlane, Faults, proxy::Proxy},
    transport::{TransportOptions, client},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

/// Deadline for a reload of the authority: a minute, as for the token in the same volume, and a
/// margin for two connections on a busy machine.
const READ_AGAIN: Duration = Duration::from_secs(75);

/// Authority of a proxy's certificate, as PEM.
fn authority_of(proxy: &Proxy) -> Vec<u8> {
    let kubeconfig = Kubeconfig::from_yaml(&proxy.kubeconfig()).unwrap();
    let cluster = kubeconfig.clusters[0].cluster.as_ref().unwrap();
    STANDARD.decode(cluster.certificate_authority_data.as_ref().unwrap()).unwrap()
}

/// Listens on one address and forwards each connection to the current server.
async fn address(server: watch::Receiver<SocketAddr>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let server = *server.borrow();
            connections.spawn(async move {
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                // Either side may close the connection.
                drop(copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn the_authority_of_the_api_server_is_read_again_within_a_minute() {
    let plane = ControlPlane::shared();
    let old = Proxy::to_api_server(plane.config(), &Faults::default()).await.unwrap();
    let new = Proxy::to_api_server(plane.config(), &Faults::default()).await.unwrap();
    let (server, at_the_time) = watch::channel(old.address());
    let (address, _forwarding) = address(at_the_time).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority_of(&old)).unwrap();
    let mut config = Config::new(format!("https://{address}").parse().unwrap());
    config.root_cert = old.config().root_cert;
    config.root_cert_file = Some(file.path().to_owned());
    let client = client(config, TransportOptions::default()).unwrap();
    client.apiserver_version().await.unwrap();

    std::fs::write(file.path(), authority_of(&new)).unwrap();
    server.send_replace(new.address());
    // Closes the open connection too, which would otherwise outlive the rotation.
    old.stop().await;

    let since = Instant::now();
    let mut refused = false;
    // The first request finds the old connection closed.
    while let Err(error) = client.apiserver_version().await {
        refused |= error.to_string().contains("invalid peer certificate");
        assert!(since.elapsed() < READ_AGAIN, "the old authority is still in use: {error}");
        sleep(Duration::from_millis(500)).await;
    }
    assert!(refused, "the new certificate was never refused");
    new.stop().await;
}
