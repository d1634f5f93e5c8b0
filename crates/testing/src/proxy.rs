//! Proxy on loopback that applies faults on the real wire.
//!
//! The proxy is between an API server and a manager, or between a manager and a hook, and speaks
//! HTTP/1.1 and HTTP/2. A request is passed on once it has arrived completely; responses are
//! streamed, watches event by event. The [`Faults`] of the proxy disturb them, and [`WireRule`]s
//! disturb whole connections, below HTTP.
//!
//! ```no_run
//! # use pilotlight_testing::{Action, ControlPlane, Faults, Rule, Verb, proxy::Proxy};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let faults = Faults::default();
//! let proxy = Proxy::to_api_server(ControlPlane::shared().config(), &faults).await?;
//! let client = kube::Client::try_from(proxy.config())?; // Or a process, by `proxy.kubeconfig()`.
//!
//! faults.add(Rule::new(Action::Cut { after_bytes: 100 }).verb(Verb::Watch).times(1));
//! // … the client's first watch breaks after 100 bytes …
//! # drop(client);
//! proxy.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Upgraded connections (exec, port-forward) are not supported.

mod connection;
mod flush;
mod wire;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use http::Uri;
use kube::{Config, client::ClientBuilder};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tokio_util::sync::CancellationToken;

use self::connection::{ProxyTarget, ProxyTasks, Serving};
use self::wire::Wire;
pub use self::wire::{WireFault, WireRule};
use super::{
    Error, Faults,
    certificates::Authority,
    kubeconfig::{KubeconfigCredentials, ServerEndpoint},
};

/// Proxy that runs until it is stopped or dropped. It belongs to the runtime that creates it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    /// Endpoint, for a proxy with TLS.
    endpoint: Option<ServerEndpoint>,
    wire: Wire,
    open: watch::Receiver<usize>,
    /// Tasks that hyper and the upstream client spawn.
    tasks: ProxyTasks,
    stop: CancellationToken,
    accepting: JoinSet<()>,
}

impl Proxy {
    /// Passes requests on to the API server of this configuration, with its credentials: clients of
    /// the proxy need none. A configuration without credentials passes on the bearer tokens of its
    /// clients.
    ///
    /// The proxy uses TLS, with its own authority that [`config`](Self::config) trusts.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the configuration is unusable, [`Error::Certificate`], [`Error::Io`].
    pub async fn to_api_server(config: Config, faults: &Faults) -> Result<Self, Error> {
        let authority = Authority::new()?;
        let acceptor = acceptor(&authority)?;
        let mut proxy = Self::start(config, faults, Some(acceptor)).await?;
        proxy.endpoint = Some(ServerEndpoint {
            port: proxy.address.port(),
            authority_pem: authority.pem(),
            authority_der: authority.der(),
        });
        Ok(proxy)
    }

    /// Passes requests on to the hook at this URL; only its scheme, host and port count. The proxy
    /// uses plain HTTP.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the URL is unusable, [`Error::Io`].
    pub async fn to_hook(url: &Uri, faults: &Faults) -> Result<Self, Error> {
        let mut base = url.clone().into_parts();
        base.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        // The client refuses a URL without a scheme, with a reason.
        let base = Uri::from_parts(base).unwrap_or_default();
        let mut config = Config::new(base);
        config.default_retry = false;
        Self::start(config, faults, None).await
    }

    async fn start(
        mut config: Config,
        faults: &Faults,
        acceptor: Option<TlsAcceptor>,
    ) -> Result<Self, Error> {
        // Timeouts are left to both ends.
        config.read_timeout = None;
        config.write_timeout = None;
        let tasks = ProxyTasks::default();
        let upstream = ClientBuilder::try_from((config, tasks.clone()))
            .map_err(Error::api("making the proxy's client"))?
            .build();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(Error::io("opening a port for the proxy"))?;
        let address = listener.local_addr().map_err(Error::io("reading the proxy's port"))?;
        let wire = Wire::default();
        let (open, opened) = watch::channel(0);
        let stop = CancellationToken::new();
        let serving = Serving {
            upstream: ProxyTarget::new(upstream, faults),
            acceptor,
            wire: wire.clone(),
            open,
            tasks: tasks.clone(),
        };
        let mut accepting = JoinSet::new();
        accepting.spawn(serving.accept(listener, stop.clone()));
        Ok(Self { address, endpoint: None, wire, open: opened, tasks, stop, accepting })
    }

    /// Returns the address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        let scheme = if self.endpoint.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Returns the configuration of a client through the proxy; kube's own retries are disabled.
    pub fn config(&self) -> Config {
        match &self.endpoint {
            Some(endpoint) => endpoint.config(&KubeconfigCredentials::None),
            None => plain(self.address),
        }
    }

    /// Returns the content of a kubeconfig file for a process that uses an API server through the
    /// proxy; empty for a proxy to a hook.
    pub fn kubeconfig(&self) -> String {
        let endpoint = self.endpoint.as_ref();
        endpoint
            .map(|it| it.kubeconfig("proxied", &KubeconfigCredentials::None))
            .unwrap_or_default()
    }

    /// Adds a rule for connections after the others; the first that acts on a connection wins.
    pub fn disturb(&self, rule: WireRule) {
        self.wire.add(rule);
    }

    /// Removes all rules for connections, and resets those that they hold.
    pub fn clear(&self) {
        self.wire.clear();
    }

    /// Resets the open connections and returns their number.
    pub fn reset_connections(&self) -> usize {
        let open = self.connections();
        self.wire.reset();
        open
    }

    /// Returns the number of its open connections.
    pub fn connections(&self) -> usize {
        *self.open.borrow()
    }

    /// Returns the faults of connections that have happened, in order.
    pub fn fired(&self) -> Vec<WireFault> {
        self.wire.fired()
    }

    /// Waits until more than `count` faults of connections have happened.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn fired_more_than(&self, count: usize) {
        self.wire.fired_more_than(count).await;
    }

    /// Closes the port and all connections, and waits until all tasks of the proxy have ended.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: dropping the future drops the proxy.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.accepting.join_next().await.is_some() {}
        self.tasks.end().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
        self.tasks.cancel();
    }
}

fn plain(address: SocketAddr) -> Config {
    let url = format!("http://{address}");
    let mut config = Config::new(url.parse().expect("an address with a port is a URI"));
    config.default_retry = false;
    config
}

fn acceptor(authority: &Authority) -> Result<TlsAcceptor, Error> {
    let identity = authority.server()?;
    let unusable = |what: &str| {
        let what = format!("using the proxy's {what}");
        move |error: &dyn std::fmt::Display| Error::Io {
            what,
            source: io::Error::other(error.to_string()),
        }
    };
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())
        .map_err(|error| unusable("certificate")(&error))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .map_err(|error| unusable("key")(&error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key))
        .map_err(|error: rustls::Error| unusable("TLS configuration")(&error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}
