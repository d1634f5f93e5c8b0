//! Errors of the connection to the API server.

use std::{sync::Arc, time::Duration};

use http::Uri;

use crate::redaction;

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
