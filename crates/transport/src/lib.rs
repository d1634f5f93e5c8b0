//! Transport: connections of a [`kube::Client`] to the API server, over HTTP/2.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use pilotlight_transport::{Transport, TransportOptions};
//!
//! let transport = Transport::new(kube::Config::infer().await?, TransportOptions::default())?;
//! let client = transport.client()?; // An ordinary client of kube.
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! kube's own connector speaks HTTP/1.1 and needs a TCP connection and a TLS session for every
//! watch. Here many requests share a connection. A server limits the streams on a connection
//! (kube-apiserver: 100). In other pools a request beyond the limit waits until a watch ends. The
//! pool of this crate lets no request wait behind a watch, least of all a lease renewal.
//!
//! kube's layers for the base address, authentication and impersonation are kept. Its retry layer
//! is not: only work queues and informers retry. The one exception is a request that the server
//! provably did not process, because it refused the stream or was closing the connection.
//!
//! [`Proxies`], [`ConnectProxy`], [`was_not_processed`], [`basic_authorization`] and
//! [`library_user_agent`] serve requests to other servers, such as webhooks, by the same rules.

#![forbid(unsafe_code)]

mod body;
mod connection;
mod credentials;
mod deadline;
mod dialer;
mod error;
mod identity;
mod lane;
mod metrics;
mod metrics_service;
mod no_proxy;
mod options;
mod pool;
mod proxies;
mod proxy;
#[cfg(test)]
#[expect(dead_code, reason = "tests of fences use the other items")]
mod server;
mod tasks;
mod tunnel;
mod user_agent;

pub use error::Error;
pub use lane::Lane;
pub use metrics::TransportMetrics;
pub use no_proxy::proxy_from_environment;
pub use options::TransportOptions;
pub use pool::was_not_processed;
pub use proxies::Proxies;
pub use proxy::{ConnectProxy, ProxyStream, authorization as basic_authorization};
pub use user_agent::library as library_user_agent;

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::AuthInfo,
};
use pilotlight_redaction as redaction;
use rustls::client::Resumption;
use tower::{BoxError, ServiceBuilder, ServiceExt, util::BoxService};

use body::ResponseBody;
use credentials::{CredentialService, Credentials};
use deadline::Deadlines;
use dialer::{Dialer, host};
use error::describe;
use identity::Identity;
use metrics_service::MetricsService;
use pool::{Pool, PoolService};
use tunnel::Tunnel;

/// Longest interval of TCP keep-alives that Linux accepts.
const MAX_TCP_KEEP_ALIVE: Duration = Duration::from_secs(32_767);

/// Service that carries requests to the API server.
pub type ApiService = BoxService<Request<Body>, Response<ResponseBody>, BoxError>;

/// Connections to one API server, with everything that is needed to open more.
///
/// Cheap to clone. Connections are closed when the last clone, the last client made from it and the
/// last response that is being read are dropped.
#[derive(Clone)]
pub struct Transport {
    config: Arc<Config>,
    options: TransportOptions,
    pool: Arc<Pool>,
    credentials: Credentials,
    user_agent: HeaderValue,
}

impl Transport {
    /// Creates the transport for `config`. Opens no connection yet and starts no exec plugin, but
    /// reads the files of a token and of a client certificate.
    ///
    /// # Errors
    ///
    /// If the TLS material, the credentials, the server's name or the proxy are unusable.
    pub fn new(config: Config, options: TransportOptions) -> Result<Self, Error> {
        let options = options.limited();
        // An embedder may have installed another provider, which also works; an error here means
        // only that.
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
        // The layers are built once here, so that errors in them are reported at the start.
        let config = credentials::without_sources(&config);
        config.auth_layer().map_err(|error| Error::Config(Arc::new(error)))?;
        config.extra_headers_layer().map_err(|error| Error::Config(Arc::new(error)))?;
        Ok(Self { config: Arc::new(config), options, pool, credentials, user_agent })
    }

    /// Returns the service under [`Transport::client`], to which layers can be added:
    /// `Client::new(ServiceBuilder::new().layer(faults).service(transport.service()?), "default")`.
    ///
    /// # Errors
    ///
    /// If the credentials are unusable.
    pub fn service(&self) -> Result<ApiService, Error> {
        let config = |error| Error::Config(Arc::new(error));
        let (credentials, user_agent) = (self.credentials.clone(), self.user_agent.clone());
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(self.config.auth_layer().map_err(config)?)
            .layer_fn(move |inner| CredentialService::new(inner, credentials.clone()))
            .layer(self.config.extra_headers_layer().map_err(config)?)
            .map_request(move |request| user_agent::set(request, &user_agent))
            .map_err(BoxError::from)
            .service(PoolService::new(self.pool.clone()));
        let service = Deadlines::new(service, &self.options);
        Ok(MetricsService::new(
            service,
            self.options.metrics.clone(),
            &host(&self.config.cluster_url),
        )
        .boxed())
    }

    /// Returns a client over these connections. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the credentials are unusable.
    pub fn client(&self) -> Result<Client, Error> {
        Ok(Client::new(self.service()?, &self.config.default_namespace))
    }

    /// Returns the `User-Agent` of the requests: the embedder's product, if any, and the library.
    /// For requests outside the transport, such as those to hooks.
    pub fn user_agent(&self) -> &HeaderValue {
        &self.user_agent
    }

    /// Number of connections that are open or being opened.
    pub fn connections(&self) -> usize {
        self.pool.connections()
    }

    /// Closes every connection and waits until their tasks have ended; requests fail from now on.
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

/// Returns a client whose requests share HTTP/2 connections. Must be called on a tokio runtime.
///
/// ```no_run
/// # use pilotlight_transport::TransportOptions;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = TransportOptions { product: Some("a/1.0".into()), ..TransportOptions::default() };
/// let client = pilotlight_transport::client(kube::Config::infer().await?, options)?;
/// # drop(client);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// If `config` is unusable: TLS material, credentials, server name or proxy.
pub fn client(config: Config, options: TransportOptions) -> Result<Client, Error> {
    Transport::new(config, options)?.client()
}

/// Returns the connector: TCP or a proxy, then TLS with the current client certificate.
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
    // A resumed session keeps the client certificate with which it began.
    tls.resumption = Resumption::disabled();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(options.connect_timeout));
    // For HTTP/1.1, which has no pings.
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

#[cfg(test)]
mod tests;
