//! Connection of a harness to its server: a client whose requests pass the faults, and a runtime of
//! its own on the control plane.

use http::Request;
use kube::{Client, client::Body};
use pilotlight::{
    testing::{Faults, proxy::Proxy},
    transport::{Transport, TransportMetrics, TransportOptions},
};
use tokio::runtime::{self, Runtime};

use super::{HarnessOptions, Server};

/// Client of a harness, with the parts that carry its requests.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) proxy: Option<Proxy>,
    pub(super) transport: Option<Transport>,
    pub(super) runtime: Option<Runtime>,
}

impl Connection {
    /// Opens the connection of a user. `faults` and `wire` disturb requests and connections.
    pub(super) async fn open(
        server: &Server<'_>,
        (name, user): (&str, &str),
        options: &HarnessOptions,
        (faults, wire): (&Faults, &Faults),
        metrics: &TransportMetrics,
    ) -> Self {
        let plane = match server {
            Server::Real(plane) => plane,
            Server::Simulated(simulated) => {
                assert!(!options.proxied, "no wire leads to a simulated server");
                let client = disturbed(simulated.client_as(user), faults);
                return Self { client, proxy: None, transport: None, runtime: None };
            }
        };
        let mut config = plane.user(user, &options.groups).unwrap();
        let mut proxy = None;
        if options.proxied {
            let between = Proxy::to_api_server(config, wire).await.unwrap();
            config = between.config();
            proxy = Some(between);
        }
        let runtime = own_runtime(name);
        let (metrics, idle_timeout) = (metrics.clone(), options.idle_timeout);
        let options = TransportOptions { metrics, idle_timeout, ..TransportOptions::default() };
        let entered = runtime.enter();
        let transport = Transport::new(config, options).unwrap();
        let client = disturbed(transport.client().unwrap(), faults);
        drop(entered);
        Self { client, proxy, transport: Some(transport), runtime: Some(runtime) }
    }
}

fn own_runtime(name: &str) -> Runtime {
    let mut builder = runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

/// Wraps a client so that its requests pass the faults. The wrapper belongs to the runtime in which
/// it is created.
fn disturbed(inner: Client, faults: &Faults) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    let service = tower::ServiceBuilder::new().layer(faults.layer()).service(service);
    Client::new(service, "default")
}
