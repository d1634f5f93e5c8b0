//! The same faults on the real wire: a small proxy on loopback.
//!
//! It stands between an API server and a manager, or between a manager and a hook, and answers over
//! HTTP/1.1 and HTTP/2. A request goes on once it has come in whole; answers stream, watches event by
//! event. The [`Faults`] of the proxy disturb them, and [`WireRule`]s disturb whole connections,
//! below HTTP.
//!
//! ```no_run
//! # use pilotlight::testing::{Action, ControlPlane, Faults, Rule, Verb, proxy::Proxy};
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
//! What it is not for: upgraded connections (exec, port-forward) do not pass.

mod connection;
mod parting;
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

use self::connection::{Serving, Tasks, Upstream};
use self::wire::Wire;
pub use self::wire::{WireFault, WireRule};
use super::{
    Error, Faults,
    certificates::Authority,
    kubeconfig::{Credentials, Endpoint},
};

/// A proxy that runs until it is stopped or dropped. It belongs to the runtime in which it is made.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    /// Of a proxy that speaks TLS.
    endpoint: Option<Endpoint>,
    wire: Wire,
    open: watch::Receiver<usize>,
    /// What hyper and the client upstream spawn.
    tasks: Tasks,
    stop: CancellationToken,
    accepting: JoinSet<()>,
}

impl Proxy {
    /// Passes requests on to the API server of this configuration, with its credentials: whoever
    /// asks the proxy needs none. A configuration without credentials passes on the bearer tokens
    /// of those who ask.
    ///
    /// The proxy speaks TLS, with an authority of its own that [`config`](Self::config) trusts.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the configuration is unusable, [`Error::Certificate`], [`Error::Io`].
    pub async fn to_api_server(config: Config, faults: &Faults) -> Result<Self, Error> {
        let authority = Authority::new()?;
        let acceptor = acceptor(&authority)?;
        let mut proxy = Self::start(config, faults, Some(acceptor)).await?;
        proxy.endpoint = Some(Endpoint {
            port: proxy.address.port(),
            authority_pem: authority.pem(),
            authority_der: authority.der(),
        });
        Ok(proxy)
    }

    /// Passes requests on to the hook that has this URL; only its scheme, host and port count. The
    /// proxy speaks plain HTTP.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the URL is unusable, [`Error::Io`].
    pub async fn to_hook(url: &Uri, faults: &Faults) -> Result<Self, Error> {
        let mut base = url.clone().into_parts();
        base.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        // One without a scheme is refused by the client, which says why.
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
        // Who waits for how long is the business of those at either end.
        config.read_timeout = None;
        config.write_timeout = None;
        let tasks = Tasks::default();
        let upstream = ClientBuilder::try_from((config, tasks.clone()))
            .map_err(Error::api("making the proxy's client"))?
            .build();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(Error::io("opening a port for the proxy"))?;
        let address = listener.local_addr().map_err(Error::io("asking for the proxy's port"))?;
        let wire = Wire::default();
        let (open, opened) = watch::channel(0);
        let stop = CancellationToken::new();
        let serving = Serving {
            upstream: Upstream::new(upstream, faults),
            acceptor,
            wire: wire.clone(),
            open,
            tasks: tasks.clone(),
        };
        let mut accepting = JoinSet::new();
        accepting.spawn(serving.accept(listener, stop.clone()));
        Ok(Self { address, endpoint: None, wire, open: opened, tasks, stop, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        let scheme = if self.endpoint.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The configuration of a client that asks through the proxy; kube's own retries are off.
    pub fn config(&self) -> Config {
        match &self.endpoint {
            Some(endpoint) => endpoint.config(&Credentials::None),
            None => plain(self.address),
        }
    }

    /// The content of a kubeconfig file for a process that asks an API server through the proxy;
    /// empty for one to a hook.
    pub fn kubeconfig(&self) -> String {
        let endpoint = self.endpoint.as_ref();
        endpoint.map(|it| it.kubeconfig("proxied", &Credentials::None)).unwrap_or_default()
    }

    /// Adds a rule about connections behind the others; the first that acts on a connection wins.
    pub fn disturb(&self, rule: WireRule) {
        self.wire.add(rule);
    }

    /// Removes all rules about connections, and resets those that they hold.
    pub fn clear(&self) {
        self.wire.clear();
    }

    /// Resets the connections that are open, and says how many there were.
    pub fn reset_connections(&self) -> usize {
        let open = self.connections();
        self.wire.reset();
        open
    }

    /// The connections to it that are open.
    pub fn connections(&self) -> usize {
        *self.open.borrow()
    }

    /// Faults of connections that have happened, in order.
    pub fn fired(&self) -> Vec<WireFault> {
        self.wire.fired()
    }

    /// Waits until a fault of a connection has happened that is none of the first `count`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn fired_more_than(&self, count: usize) {
        self.wire.fired_more_than(count).await;
    }

    /// Closes the port and all connections, and waits until nothing of the proxy is left.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: when dropped, it is as if the proxy were dropped.
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
