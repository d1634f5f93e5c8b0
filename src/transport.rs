//! The connection to the API server, over HTTP/2.
//!
//! kube's own connector speaks HTTP/1.1 and so spends a TCP connection and a TLS session on every
//! watch. Here many requests share a connection. The pool is ours, because a server allows only so
//! many streams on a connection (kube-apiserver: 100) and a request beyond them waits for as long
//! as the watches before it live; nobody must wait behind a watch, least of all a lease renewal.
//!
//! kube's layers for the base address, authentication and impersonation are kept, its retry layer
//! is not: only work queues and informers repeat requests. The one exception is a request that the
//! server provably never looked at, because its connection was being closed.

mod body;
mod connection;
mod credentials;
mod deadline;
mod dialer;
mod identity;
mod lane;
mod metrics;
mod no_proxy;
mod pool;
#[cfg(test)]
mod server;
mod tasks;
mod tunnel;
pub(crate) mod user_agent;

pub use lane::Lane;
pub use metrics::TransportMetrics;
pub use no_proxy::proxy_from_environment;

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::AuthInfo,
};
use rustls::client::Resumption;
use tower::{BoxError, ServiceBuilder, ServiceExt, util::BoxService};

use body::ResponseBody;
use credentials::{Authorized, Credentials};
use deadline::Deadlines;
use dialer::Dialer;
use identity::Identity;
use metrics::Metered;
use pool::{Pool, PoolService};
use tunnel::Tunnel;

use crate::redaction;

/// Longest time of an option that has an effect: what is longer is as good as for ever, and would
/// overflow a clock.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Longest interval of TCP keep-alives that Linux takes.
const MAX_TCP_KEEP_ALIVE: Duration = Duration::from_secs(32_767);

/// Times and limits of a [`Transport`].
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// The longest a connection may take to be open, its TLS session included; 5 s.
    pub connect_timeout: Duration,
    /// The longest a request that is no watch may take until its body is complete, and a watch
    /// until its head arrives; 30 s. A read may pause for so long in the middle of its body. A log
    /// that is followed has no such limit.
    pub request_timeout: Duration,
    /// The longest a read may take while its body keeps arriving; 5 min.
    pub read_timeout: Duration,
    /// The same for requests about leases; 5 s.
    pub lease_timeout: Duration,
    /// Streams on one connection, or fewer where the server allows fewer; 80.
    ///
    /// Below the 100 of kube-apiserver on purpose: the server may still be ending a stream that
    /// we have reset already.
    pub max_streams: usize,
    /// How often a connection is asked whether it is still alive, also while it is idle; 30 s. The
    /// one for leases is asked twice within their timeout.
    pub keep_alive_interval: Duration,
    /// How long it may take to answer that; 10 s.
    pub keep_alive_timeout: Duration,
    /// How long a connection without a stream stays open; 90 s.
    pub idle_timeout: Duration,
    /// The longest that an exec plugin of the kubeconfig may run; 60 s. It is killed then.
    pub exec_timeout: Duration,
    /// The embedder's own product for `User-Agent`, such as `myoperator/1.0`; none. The library
    /// stands behind it: `myoperator/1.0 pilotlight/0.1.0 (linux/amd64)`.
    pub product: Option<String>,
    /// Where requests are counted.
    pub metrics: TransportMetrics,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(300),
            lease_timeout: Duration::from_secs(5),
            max_streams: 80,
            keep_alive_interval: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            exec_timeout: Duration::from_secs(60),
            product: None,
            metrics: TransportMetrics::default(),
        }
    }
}

impl TransportOptions {
    /// Times that clocks can add.
    fn limited(mut self) -> Self {
        for time in [
            &mut self.connect_timeout,
            &mut self.request_timeout,
            &mut self.read_timeout,
            &mut self.lease_timeout,
            &mut self.keep_alive_interval,
            &mut self.keep_alive_timeout,
            &mut self.idle_timeout,
            &mut self.exec_timeout,
        ] {
            *time = (*time).min(FOREVER);
        }
        self
    }
}

/// Why a request got no answer, or a transport could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is unusable; correct the kubeconfig.
    #[error("setting up the connection to the API server: {}", redaction::error(&**.0))]
    Config(Arc<kube::Error>),
    /// The server name in the configuration is none; correct `tls-server-name`.
    #[error("tls-server-name {name:?} is no server name: {message}")]
    ServerName {
        /// As configured.
        name: String,
        /// What is wrong with it.
        message: String,
    },
    /// The proxy is none that knows `CONNECT`; name one of http:// or https:// in `proxy-url` or
    /// `HTTPS_PROXY`.
    #[error(
        "the proxy {0} is not supported: only http:// and https:// proxies are, so change \
         proxy-url in the kubeconfig or HTTPS_PROXY, or list the API server in NO_PROXY"
    )]
    Proxy(Uri),
    /// A variable of the environment holds no URL; correct it.
    #[error("{variable} is not the URL of a proxy")]
    ProxyVariable {
        /// Name of the variable.
        variable: String,
    },
    /// The system's roots, by which a proxy of https:// is judged, cannot be used.
    #[error("reading the system's root certificates for the proxy: {message}")]
    ProxyRoots {
        /// The whole chain of causes.
        message: String,
    },
    /// The product for `User-Agent` is unusable; correct [`TransportOptions::product`].
    #[error("the product {product:?} cannot be sent as User-Agent")]
    Product {
        /// As configured.
        product: String,
    },
    /// There are no valid credentials: a file cannot be read, or an exec plugin failed. Asked for
    /// again by later requests.
    #[error("obtaining credentials for the API server: {message}")]
    Credentials {
        /// Failed part, and the reason.
        message: String,
    },
    /// The request asks for an upgraded connection (exec, attach, port-forward), which connections
    /// that requests share cannot become. It was not sent.
    #[error(
        "{path} needs a connection of its own, for exec, attach or port-forward: send it with \
         another client, made by kube::Client::try_from(config)"
    )]
    Upgrade {
        /// Path without the query.
        path: String,
    },
    /// No connection could be opened; the address or the server is wrong, or not up yet.
    #[error("connecting to {host}: {message}")]
    Connect {
        /// Host and port.
        host: String,
        /// The whole chain of causes.
        message: String,
    },
    /// A request was not answered in time. A write may have been carried out all the same.
    #[error("{method} {path} was not answered within {after:?}")]
    Deadline {
        /// Method of the request.
        method: http::Method,
        /// Path without the query.
        path: String,
        /// The time that was given.
        after: Duration,
    },
    /// The connection broke. A write may have been carried out all the same.
    #[error("the connection to {host} broke: {message}")]
    Broken {
        /// Host and port.
        host: String,
        /// The whole chain of causes.
        message: String,
    },
    /// The transport was closed.
    #[error("the connection to the API server has been closed")]
    Closed,
}

/// A service that carries requests to the API server: what to put layers on.
pub type ApiService = BoxService<Request<Body>, Response<ResponseBody>, BoxError>;

/// The connections to one API server, and whatever is needed to open more.
///
/// Cheap to clone. Connections are closed when the last clone, the last client made from it and
/// the last response that is being read are dropped.
#[derive(Clone)]
pub struct Transport {
    config: Arc<Config>,
    options: TransportOptions,
    pool: Arc<Pool>,
    credentials: Credentials,
    user_agent: HeaderValue,
}

impl Transport {
    /// Connections for `config`; opens none yet, and starts no exec plugin. Reads the files of a
    /// token and of a client certificate.
    ///
    /// # Errors
    ///
    /// When the TLS material, the credentials, the server's name or the proxy are unusable.
    pub fn new(config: Config, options: TransportOptions) -> Result<Self, Error> {
        let options = options.limited();
        // An embedder may have another provider installed, and that is fine; the error says so.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        }
        let identity = Arc::new(Identity::default());
        let connector = connector(&config, &options, identity.clone())?;
        let dialer = Dialer::new(config.cluster_url.clone(), connector, options.clone());
        let pool = Arc::new(Pool::new(dialer, identity.clone()));
        let user = &config.auth_info;
        let credentials = Credentials::new(user, options.exec_timeout, identity, pool.tasks())?;
        let user_agent = user_agent::value(options.product.as_deref())?;
        // The layers are built once here, so that what is wrong with them is said at the start.
        let config = credentials::without_sources(&config);
        config.auth_layer().map_err(|error| Error::Config(Arc::new(error)))?;
        config.extra_headers_layer().map_err(|error| Error::Config(Arc::new(error)))?;
        Ok(Self { config: Arc::new(config), options, pool, credentials, user_agent })
    }

    /// The service under [`Transport::client`], to put layers on:
    /// `Client::new(ServiceBuilder::new().layer(faults).service(transport.service()?), "default")`.
    ///
    /// # Errors
    ///
    /// When the credentials are unusable.
    pub fn service(&self) -> Result<ApiService, Error> {
        let config = |error| Error::Config(Arc::new(error));
        let (credentials, user_agent) = (self.credentials.clone(), self.user_agent.clone());
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(self.config.auth_layer().map_err(config)?)
            .layer_fn(move |inner| Authorized::new(inner, credentials.clone()))
            .layer(self.config.extra_headers_layer().map_err(config)?)
            .map_request(move |request| user_agent::set(request, &user_agent))
            .map_err(BoxError::from)
            .service(PoolService::new(self.pool.clone()));
        let service = Deadlines::new(service, &self.options);
        Ok(Metered::new(service, self.options.metrics.clone(), &host(&self.config.cluster_url))
            .boxed())
    }

    /// A client over these connections. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the credentials are unusable.
    pub fn client(&self) -> Result<Client, Error> {
        Ok(Client::new(self.service()?, &self.config.default_namespace))
    }

    /// `User-Agent` of its requests: the embedder's product, if it has one, and the library. For
    /// requests that it does not send itself, such as those to hooks.
    pub fn user_agent(&self) -> &HeaderValue {
        &self.user_agent
    }

    /// How many connections are open or being opened.
    pub fn connections(&self) -> usize {
        self.pool.connections()
    }

    /// Breaks every connection and waits for their tasks; requests fail from now on.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("server", &redaction::url(&self.config.cluster_url))
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

/// A client whose requests share HTTP/2 connections. Must be called on a tokio runtime.
///
/// # Errors
///
/// When `config` is unusable: TLS material, credentials, server name or proxy.
pub fn client(config: Config, options: TransportOptions) -> Result<Client, Error> {
    Transport::new(config, options)?.client()
}

/// Connector: TCP or a proxy, and TLS with the client certificate at the time.
fn connector(
    config: &Config,
    options: &TransportOptions,
    identity: Arc<Identity>,
) -> Result<dialer::Connector, Error> {
    let mut anonymous = config.clone();
    anonymous.auth_info = AuthInfo::default();
    let mut tls =
        anonymous.rustls_client_config().map_err(|error| Error::Config(Arc::new(error)))?;
    tls.client_auth_cert_resolver = identity;
    // A session that is resumed keeps the client certificate that it began with.
    tls.resumption = Resumption::disabled();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(options.connect_timeout));
    // HTTP/1.1 has no pings.
    tcp.set_keepalive(Some(options.keep_alive_interval.min(MAX_TCP_KEEP_ALIVE)));
    tcp.set_keepalive_interval(Some(options.keep_alive_timeout.min(MAX_TCP_KEEP_ALIVE)));
    let tunnel = Tunnel::new(tcp, config.proxy_url.as_ref(), options.connect_timeout)?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let server_name = name
            .clone()
            .try_into()
            .map_err(|error| Error::ServerName { name: name.clone(), message: describe(&error) })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(server_name));
    }
    Ok(builder.enable_all_versions().wrap_connector(tunnel))
}

fn host(uri: &Uri) -> String {
    // Without user and password, which would be a label of every metric.
    uri.authority().map(redaction::url).unwrap_or_default()
}

/// An error with all its causes: hyper's say nothing but "client error" by themselves.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    redaction::error(error)
}

#[cfg(test)]
mod tests {
    mod credentials;
    mod pool;
    mod proxy;
    mod streams;

    use std::time::Duration;

    use futures::{StreamExt, stream::FuturesUnordered};
    use http_body_util::BodyExt;
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use tokio::time::Instant;

    use super::{server::Server, *};

    const H2: &[&[u8]] = &[b"h2", b"http/1.1"];

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    fn transport(server: &Server) -> Transport {
        Transport::new(server.config(), TransportOptions::default()).unwrap()
    }

    async fn text(client: &Client, path: &str) -> String {
        let body = client.send(get(path)).await.unwrap().into_body();
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    /// A watch whose first line has arrived.
    async fn watch(client: &Client) -> Body {
        let mut body = client.send(get("/pods?watch=true")).await.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        body
    }

    async fn watches(client: &Client, count: usize) -> Vec<Body> {
        let watches: FuturesUnordered<_> = (0..count).map(|_| watch(client)).collect();
        watches.collect().await
    }

    #[tokio::test]
    async fn a_write_does_not_wait_behind_any_number_of_watches() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();

        let watches = watches(&client, 250).await;
        let write = Request::post("/pods").body(Body::from(b"{}".to_vec())).unwrap();
        let response = client.send(write).await.unwrap();
        drop(response);
        text(&client, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b").await;

        // 80, 80, 80 and 10 watches, one connection for the write and one for the lease.
        assert_eq!(watches.len(), 250);
        assert_eq!((transport.connections(), server.opened()), (6, 6));

        drop((watches, client, transport));
        server.open(0).await;
    }

    #[tokio::test]
    async fn a_server_that_allows_few_streams_gets_no_more_of_them() {
        let server = Server::start(H2, 7).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();

        let watches = watches(&client, 20).await;

        assert_eq!(watches.len(), 20);
        assert_eq!(transport.connections(), 3);
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_its_body_is_dropped() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();

        for _ in 0..3 {
            drop(watches(&client, 80).await);
        }

        assert_eq!(transport.connections(), 1);
        assert_eq!(server.opened(), 1);
    }

    #[tokio::test]
    async fn nothing_new_is_sent_on_a_connection_that_is_going_away() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();
        let old = watch(&client).await;
        text(&client, "/pods").await;

        server.go_away();
        let new = watch(&client).await;
        assert_eq!(text(&client, "/pods").await, "ok");

        assert_eq!(transport.connections(), 2, "those that go away no longer count");
        drop(old);
        // The old connection goes once its last stream has ended.
        server.open(2).await;
        drop(new);
    }

    #[tokio::test]
    async fn a_broken_connection_ends_its_streams_and_is_replaced() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();
        let mut body = watch(&client).await;

        server.break_all();
        let end = body.frame().await.unwrap();
        server.open(0).await;

        let error = end.unwrap_err().to_string();
        assert!(error.contains("broke: "), "{error}");
        watch(&client).await;
        assert_eq!(server.opened(), 2);
    }

    #[tokio::test]
    async fn a_request_that_the_server_never_looked_at_is_sent_again() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();

        let write = Request::post("/refused-once").body(Body::from(b"{}".to_vec())).unwrap();
        let response = client.send(write).await.unwrap();

        assert_eq!(response.status(), 200);
        assert_eq!((server.refused(), server.opened()), (1, 2));
    }

    #[tokio::test]
    async fn a_request_that_is_not_answered_ends_at_its_deadline() {
        let server = Server::start(H2, 100).await;
        let options = TransportOptions {
            request_timeout: Duration::from_millis(100),
            ..TransportOptions::default()
        };
        let client = client(server.config(), options).unwrap();

        let error = client.send(get("/silent")).await.unwrap_err().to_string();
        let stuck = client.send(get("/stuck")).await.unwrap().into_body().collect().await;

        assert!(error.contains("GET /silent was not answered within 100ms"), "{error}");
        let error = stuck.unwrap_err().to_string();
        assert!(error.contains("GET /stuck was not answered within 100ms"), "{error}");
    }

    #[tokio::test]
    async fn a_list_may_take_long_while_it_keeps_arriving() {
        let server = Server::start(H2, 100).await;
        let options = TransportOptions {
            request_timeout: Duration::from_millis(1500),
            ..TransportOptions::default()
        };
        let client = client(server.config(), options).unwrap();

        let started = Instant::now();
        let list = text(&client, "/trickle?limit=500").await;

        assert_eq!(list, "........");
        assert!(started.elapsed() > Duration::from_millis(1500), "{:?}", started.elapsed());
        let write = Request::post("/trickle").body(Body::empty()).unwrap();
        let cut = client.send(write).await.unwrap().into_body().collect().await.unwrap_err();
        assert!(cut.to_string().contains("was not answered within 1.5s"), "{cut}");
    }

    #[tokio::test]
    async fn a_list_that_arrives_for_ever_ends_at_its_deadline() {
        let server = Server::start(H2, 100).await;
        let options = TransportOptions {
            // Long enough for a machine with other work to open the connection.
            request_timeout: Duration::from_secs(1),
            read_timeout: Duration::from_millis(1500),
            ..TransportOptions::default()
        };
        let client = client(server.config(), options).unwrap();

        let mut body = client.send(get("/flood")).await.unwrap().into_body();
        let error = loop {
            if let Err(error) = body.frame().await.unwrap() {
                break error.to_string();
            }
        };

        assert!(error.contains("GET /flood was not answered within 1.5s"), "{error}");
    }

    #[tokio::test]
    async fn a_watch_outlives_the_deadline_of_requests() {
        let server = Server::start(H2, 100).await;
        let options = TransportOptions {
            // Long enough for a machine with other work to open the watch.
            request_timeout: Duration::from_secs(1),
            ..TransportOptions::default()
        };
        let client = client(server.config(), options).unwrap();
        let mut body = watch(&client).await;

        let silence = tokio::time::timeout(Duration::from_millis(1300), body.frame()).await;

        assert!(silence.is_err(), "it is silent, and neither ended nor failed: {silence:?}");
    }

    #[tokio::test]
    async fn watches_that_nobody_reads_hold_up_no_other() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();

        let mut unread = Vec::new();
        for _ in 0..79 {
            unread.push(client.send(get("/flood?watch=true")).await.unwrap());
        }
        watch(&client).await;

        assert_eq!(transport.connections(), 1);
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed() {
        let server = Server::start(H2, 100).await;
        let options = TransportOptions {
            idle_timeout: Duration::from_millis(20),
            ..TransportOptions::default()
        };
        let transport = Transport::new(server.config(), options).unwrap();
        let client = transport.client().unwrap();

        text(&client, "/pods").await;
        server.open(0).await;

        assert_eq!(transport.connections(), 0);
        assert_eq!(text(&client, "/pods").await, "ok");
    }

    #[tokio::test]
    async fn a_server_without_http_2_is_spoken_to_in_http_1() {
        let server = Server::start(&[b"http/1.1"], 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();

        let watches = watches(&client, 3).await;
        assert_eq!(text(&client, "/pods").await, "ok");

        drop((watches, client, transport));
        server.open(0).await;
    }

    #[tokio::test]
    async fn a_closed_transport_fails_every_request() {
        let server = Server::start(H2, 100).await;
        let transport = transport(&server);
        let client = transport.client().unwrap();
        let mut body = watch(&client).await;

        transport.close().await;

        assert!(body.frame().await.unwrap().is_err());
        let error = client.send(get("/pods")).await.unwrap_err().to_string();
        assert!(error.contains("has been closed"), "{error}");
        server.open(0).await;
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named() {
        let config = Config::new("https://127.0.0.1:1".parse().unwrap());
        let client = client(config, TransportOptions::default()).unwrap();

        let error = client.send(get("/pods")).await.unwrap_err().to_string();

        assert!(error.contains("connecting to 127.0.0.1:1: "), "{error}");
        assert!(error.contains("refused"), "{error}");
    }

    #[test]
    fn a_socks_proxy_is_refused_without_its_password() {
        let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
        config.proxy_url = Some("socks5://me:secret@proxy:3128".parse().unwrap());

        let error = Transport::new(config, TransportOptions::default()).unwrap_err().to_string();

        assert!(error.contains("socks5://proxy:3128/"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[tokio::test]
    async fn requests_are_counted_by_code_method_and_host() {
        let server = Server::start(H2, 100).await;
        let options = TransportOptions::default();
        let mut registry = Registry::default();
        options.metrics.register(&mut registry);
        let config = server.config();
        let host = host(&config.cluster_url);
        let client = client(config, options).unwrap();

        text(&client, "/pods").await;
        text(&client, "/pods").await;

        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        let line = format!(
            "rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"{host}\"}} 2\n"
        );
        assert!(page.contains(&line), "{page}");
    }
}
