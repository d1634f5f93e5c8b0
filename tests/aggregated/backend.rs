//! Minimal extension API server: one resource, `gauges`, with one object.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;

/// Responses of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// Refuses every request and breaks open connections.
    Ill,
}

/// Format of the backend's discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    Aggregated,
    /// Discovery from before aggregated discovery.
    Legacy,
}

pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    health: watch::Sender<Health>,
    _tasks: JoinSet<()>,
}

type BackendResponse = Response<BoxBody<Bytes, Infallible>>;

impl Backend {
    pub(crate) async fn start(
        (certificate, key): (String, String),
        group: &str,
        discovery: Discovery,
    ) -> Self {
        let certificates = CertificateDer::pem_slice_iter(certificate.as_bytes());
        let certificates = certificates.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = watch::Sender::new(Health::Well);
        let mut tasks = JoinSet::new();
        let (healths, group) = (health.clone(), group.to_owned());
        tasks.spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), healths, group, discovery));
        Self { address, health, _tasks: tasks }
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.health.send_replace(health);
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    health: watch::Sender<Health>,
    group: String,
    discovery: Discovery,
) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let (acceptor, group) = (acceptor.clone(), group.clone());
        let (mut breaks, health) = (health.subscribe(), health.subscribe());
        breaks.mark_unchanged();
        connections.spawn(async move {
            // An aborted handshake is expected.
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            let service = service_fn(move |request: Request<Incoming>| {
                let well = *health.borrow() == Health::Well;
                let answer = if well { answer(&request, &group, discovery) } else { refuse() };
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(tls), service);
            tokio::select! {
                // The other side may close the connection.
                _ended = connection => {}
                _changed = breaks.changed() => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

fn answer(request: &Request<Incoming>, group: &str, discovery: Discovery) -> BackendResponse {
    let version = format!("{group}/v1");
    let resources = "/gauges";
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let accept = request.headers().get(header::ACCEPT).and_then(|it| it.to_str().ok());
    let aggregated = accept.is_some_and(|it| it.contains("g=apidiscovery.k8s.io;v=v2;"));
    if path == "/apis" && aggregated && discovery == Discovery::Aggregated {
        let body = json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {}, "items": [{ "metadata": { "name": group }, "versions": [{
                "version": "v1", "freshness": "Current", "resources": [{
                    "resource": "gauges", "singularResource": "gauge", "scope": "Namespaced",
                    "responseKind": { "group": group, "version": "v1", "kind": "Gauge" },
                    "verbs": ["get", "list", "watch"],
                }],
            }] }],
        });
        let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        return reply(kind, &body);
    }
    let offered = json!({ "groupVersion": version, "version": "v1" });
    let body = if path == "/apis" {
        json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [{
            "name": group, "versions": [offered], "preferredVersion": offered,
        }] })
    } else if path == format!("/apis/{group}") {
        json!({ "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [offered],
            "preferredVersion": offered })
    } else if path == format!("/apis/{version}") {
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
            "resources": [{ "name": "gauges", "singularName": "gauge", "namespaced": true,
                "kind": "Gauge", "verbs": ["get", "list", "watch"] }] })
    } else if path.ends_with(resources) && query.contains("sendInitialEvents") {
        return refuse();
    } else if path.ends_with(resources) && query.contains("watch=true") {
        // The object never changes.
        let silence = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        return Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(BodyExt::boxed(StreamBody::new(silence)))
            .unwrap();
    } else if path.ends_with(resources) {
        json!({ "kind": "GaugeList", "apiVersion": version,
            "metadata": { "resourceVersion": "7" }, "items": [{ "metadata": {
                "name": "pressure", "namespace": "default", "uid": "one", "resourceVersion": "5",
            } }] })
    } else {
        return Response::builder()
            .status(StatusCode::NOT_FOUND)
            .body(Full::default().boxed())
            .unwrap();
    };
    reply("application/json", &body)
}

fn reply(kind: &str, body: &Value) -> BackendResponse {
    let body = Full::from(body.to_string()).boxed();
    Response::builder().header(header::CONTENT_TYPE, kind).body(body).unwrap()
}

fn refuse() -> BackendResponse {
    let body = Full::from("not well").boxed();
    Response::builder().status(StatusCode::SERVICE_UNAVAILABLE).body(body).unwrap()
}
