//! Simulated server on a socket, for kubectl, curl and other processes.

use std::{io, net::SocketAddr};

use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower::{BoxError, Service};

use super::{SimulatedServer, script::ADMIN};

/// Socket of a simulated server, over HTTP/1.1 and HTTP/2 without TLS. Dropping it closes the
/// socket and all its connections; the server continues.
#[derive(Debug)]
pub struct SimulatedSocket {
    address: SocketAddr,
    // Aborted with the socket.
    _tasks: JoinSet<()>,
}

impl SimulatedServer {
    /// Listens at an address; port 0 selects a free one. Every client of the socket has full
    /// access, except for denied requests, so use a loopback address.
    ///
    /// # Errors
    ///
    /// When it cannot listen at the address.
    pub async fn serve(&self, address: SocketAddr) -> io::Result<SimulatedSocket> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let server = self.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server));
        Ok(SimulatedSocket { address, _tasks: tasks })
    }
}

impl SimulatedSocket {
    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a configuration for kube.
    ///
    /// # Panics
    ///
    /// Never: an address with a port is an authority.
    pub fn config(&self) -> kube::Config {
        let uri = format!("http://{}", self.address);
        kube::Config::new(uri.parse().expect("an address with a port is an authority"))
    }

    /// Returns a kubeconfig for kubectl.
    pub fn kubeconfig(&self) -> String {
        // JSON is valid YAML.
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "simulated",
            "clusters": [{
                "name": "simulated",
                "cluster": { "server": format!("http://{}", self.address) },
            }],
            "users": [{ "name": "admin", "user": {} }],
            "contexts": [{
                "name": "simulated",
                "context": { "cluster": "simulated", "user": "admin" },
            }],
        });
        format!("{config:#}\n")
    }
}

async fn accept(listener: TcpListener, server: SimulatedServer) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Small responses are sent at once.
                    stream.set_nodelay(true).ok();
                    connections.spawn(connection(stream, server.clone()));
                }
                // The process may be out of file descriptors; others may be closed meanwhile.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: tokio::net::TcpStream, server: SimulatedServer) {
    let service = server.service(ADMIN);
    let service = service_fn(move |request| {
        let answer = service.clone().call(request);
        async move {
            let response = answer.await.map_err(broken)?;
            Ok::<_, io::Error>(response.map(|body| body.map_err(broken)))
        }
    });
    // hyper gives each HTTP/2 stream a task, which ends with the connection.
    let builder = auto::Builder::new(TokioExecutor::new());
    // A dropped connection is not an error.
    builder.serve_connection(TokioIo::new(stream), service).await.ok();
}

fn broken(error: BoxError) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::{Api, Client};

    use super::*;

    #[tokio::test]
    async fn a_client_connects_over_a_socket() {
        let server = SimulatedServer::new();
        let socket = server.serve(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();

        let client = Client::try_from(socket.config()).unwrap();
        let namespaces = Api::<Namespace>::all(client).list(&Default::default()).await.unwrap();

        assert_eq!(namespaces.items.len(), 4);
        assert!(socket.kubeconfig().contains(&socket.address().to_string()));
        assert_eq!(server.requests().len(), 1);
    }
}
