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
    /// Aggregated discovery of a resource that can be listed and not watched. Its object has neither
    /// uid nor resourceVersion.
    ListOnly,
}

pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    health: watch::Sender<Health>,
    size: watch::Sender<i64>,
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
        let size = watch::Sender::new(0);
        let served = ServedGroup { group: group.into(), discovery, size: size.subscribe() };
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        tasks.spawn(accept(listener, acceptor, health.clone(), served));
        Self { address, health, size, _tasks: tasks }
    }

    /// Sets the content of an object that can be listed and not watched.
    pub(crate) fn set_size(&self, size: i64) {
        self.size.send_replace(size);
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.health.send_replace(health);
    }
}

/// Group of the backend, and the content of its object.
#[derive(Clone)]
struct ServedGroup {
    group: Arc<str>,
    discovery: Discovery,
    size: watch::Receiver<i64>,
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    health: watch::Sender<Health>,
    served: ServedGroup,
) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let (acceptor, served) = (acceptor.clone(), served.clone());
        let (mut breaks, health) = (health.subscribe(), health.subscribe());
        breaks.mark_unchanged();
        connections.spawn(async move {
            // An aborted handshake is expected.
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            let service = service_fn(move |request: Request<Incoming>| {
                let well = *health.borrow() == Health::Well;
                let answer = if well { answer(&request, &served) } else { refuse() };
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

fn answer(request: &Request<Incoming>, served: &ServedGroup) -> BackendResponse {
    let ServedGroup { group, discovery, size } = served;
    let version = format!("{group}/v1");
    let is_list_only = *discovery == Discovery::ListOnly;
    let resources = "/gauges";
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let accept = request.headers().get(header::ACCEPT).and_then(|it| it.to_str().ok());
    let aggregated = accept.is_some_and(|it| it.contains("g=apidiscovery.k8s.io;v=v2;"));
    if path == "/apis" && aggregated && *discovery != Discovery::Legacy {
        let verbs: &[&str] =
            if is_list_only { &["get", "list"] } else { &["get", "list", "watch"] };
        let body = json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {}, "items": [{ "metadata": { "name": group }, "versions": [{
                "version": "v1", "freshness": "Current", "resources": [{
                    "resource": "gauges", "singularResource": "gauge", "scope": "Namespaced",
                    "responseKind": { "group": group, "version": "v1", "kind": "Gauge" },
                    "verbs": verbs,
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
    } else if path.ends_with(resources) && query.contains("watch=true") && is_list_only {
        return Response::builder()
            .status(StatusCode::METHOD_NOT_ALLOWED)
            .body(Full::default().boxed())
            .unwrap();
    } else if path.ends_with(resources) && query.contains("watch=true") {
        // The object never changes.
        let silence = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        return Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(BodyExt::boxed(StreamBody::new(silence)))
            .unwrap();
    } else if path.ends_with(resources) && is_list_only {
        json!({ "kind": "GaugeList", "apiVersion": version, "metadata": {}, "items": [{
            "metadata": {
                "name": "pressure", "namespace": "default", "labels": { "of": "boiler" },
            },
            "spec": { "size": *size.borrow() },
        }] })
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
