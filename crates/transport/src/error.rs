//! Errors of the connection to the API server.

use std::{sync::Arc, time::Duration};

use http::Uri;
use pilotlight_redaction as redaction;

/// Error of a request without a response, or of the construction of a transport.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is unusable; correct the kubeconfig.
    #[error("setting up the connection to the API server: {}", redaction::error(&**.0))]
    Config(Arc<kube::Error>),
    /// The configured server name is not valid; correct `tls-server-name`.
    #[error("tls-server-name {name:?} is not a valid server name: {message}")]
    ServerName {
        /// Name as configured.
        name: String,
        /// Description of the problem.
        message: String,
    },
    /// The proxy's scheme is not supported; name a proxy of http:// or https:// in `proxy-url`,
    /// `HTTPS_PROXY` or `HTTP_PROXY`.
    #[error(
        "the proxy {0} is not supported: only http:// and https:// proxies are, so change \
         proxy-url in the kubeconfig, HTTPS_PROXY or HTTP_PROXY"
    )]
    Proxy(Uri),
    /// The text is not the URL of a proxy; correct `proxy-url`, and encode special characters of
    /// its user and password.
    #[error(
        "the URL of the proxy is invalid: correct proxy-url in the kubeconfig, HTTPS_PROXY or \
         HTTP_PROXY, and write special characters of the user and the password as %XX"
    )]
    ProxyUrl,
    /// An environment variable does not hold a URL; correct it.
    #[error(
        "{variable} is not the URL of a proxy; special characters of its user and password are \
         written as %XX"
    )]
    ProxyVariable {
        /// Name of the variable.
        variable: String,
    },
    /// The system's root certificates, which verify a proxy of https://, cannot be used.
    #[error("reading the system's root certificates for the proxy: {message}")]
    ProxyRoots {
        /// The whole chain of causes.
        message: String,
    },
    /// The product for `User-Agent` is invalid; correct `TransportOptions::product`.
    #[error("the product {product:?} cannot be sent as User-Agent")]
    Product {
        /// Product as configured.
        product: String,
    },
    /// There are no valid credentials: a file cannot be read, or an exec plugin failed. Later
    /// requests try to obtain them again.
    #[error("obtaining credentials for the API server: {message}")]
    Credentials {
        /// Failed part, and the reason.
        message: String,
    },
    /// The request requires an upgraded connection (exec, attach, port-forward), which is
    /// impossible on shared connections. It was not sent; use a client of kube's own.
    #[error(
        "{path} needs a connection of its own, for exec, attach or port-forward: send it with \
         another client, made by kube::Client::try_from(config)"
    )]
    Upgrade {
        /// Path without the query.
        path: String,
    },
    /// No connection could be opened: the address is wrong, or the server is unreachable or not
    /// ready.
    #[error("connecting to {host}: {message}")]
    Connect {
        /// Host and port.
        host: String,
        /// The whole chain of causes.
        message: String,
    },
    /// A request was not answered in time. A write may have been carried out nevertheless.
    #[error("{method} {path} was not answered within {after:?}")]
    Deadline {
        /// Method of the request.
        method: http::Method,
        /// Path without the query.
        path: String,
        /// Time that the request had.
        after: Duration,
    },
    /// The connection broke. A write may have been carried out nevertheless.
    #[error("the connection to {host} broke: {message}")]
    Broken {
        /// Host and port.
        host: String,
        /// The whole chain of causes.
        message: String,
    },
    /// The transport was closed; create another one.
    #[error("the connection to the API server has been closed")]
    Closed,
}

/// Formats an error with all its causes: hyper's errors alone say only "client error".
pub(super) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    redaction::error(error)
}
