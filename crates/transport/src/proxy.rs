//! Proxy of HTTP: its address, its credentials, and connections through it.

use std::{fmt, io, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri, uri::Scheme};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tower::{BoxError, Service, ServiceExt};

use super::{Error, error::describe};

/// Longest head of a proxy's response, in bytes.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// TCP connection, or a TLS session over one for a proxy of https.
pub type ProxyStream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Proxy that supports `CONNECT`.
pub struct ConnectProxy {
    /// Address without credentials, for connecting and for errors.
    pub(super) address: Uri,
    authorization: Option<HeaderValue>,
    tls: Arc<ClientConfig>,
}

impl ConnectProxy {
    /// Returns the proxy at a URL; opens no connection.
    ///
    /// # Errors
    ///
    /// If the URL has no host, or its scheme is neither http nor https.
    pub(super) fn new(proxy: &Uri) -> Result<Self, Error> {
        if !is_address(proxy) {
            return Err(Error::ProxyUrl);
        }
        let address = without_credentials(proxy);
        let is_secure = match address.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(Error::Proxy(address)),
        };
        Ok(Self { address, authorization: authorization(proxy), tls: Arc::new(tls(is_secure)?) })
    }

    /// Address without credentials.
    pub fn address(&self) -> &Uri {
        &self.address
    }

    /// Value of `Proxy-Authorization`, for requests that are sent to the proxy itself.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Opens a connection to the proxy itself.
    ///
    /// # Errors
    ///
    /// If the proxy cannot be reached; the error names it without its credentials.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the connection.
    pub async fn dial<T>(&self, tcp: T) -> Result<ProxyStream, BoxError>
    where
        T: Service<Uri, Response = TokioIo<TcpStream>> + Send + 'static,
        T::Future: Send + 'static,
        T::Error: Into<BoxError>,
    {
        let connector = HttpsConnector::from((tcp, Arc::clone(&self.tls)));
        let stream = connector.oneshot(self.address.clone()).await;
        stream.map_err(|error| self.failed(&describe(&*error)))
    }

    /// Opens a connection that the proxy forwards to `server`.
    ///
    /// # Errors
    ///
    /// If the proxy cannot be reached, or refuses; the error names it without its credentials.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the connection.
    pub async fn connect<T>(&self, tcp: T, server: &Uri) -> Result<ProxyStream, BoxError>
    where
        T: Service<Uri, Response = TokioIo<TcpStream>> + Send + 'static,
        T::Future: Send + 'static,
        T::Error: Into<BoxError>,
    {
        let mut stream = TokioIo::new(self.dial(tcp).await?);
        let host = server.host().unwrap_or_default();
        let target = format!("{host}:{}", port(server));
        let status = request_tunnel(&mut stream, &target, self.authorization.as_ref()).await;
        match status.map_err(|error| self.failed(&error.to_string()))? {
            200..300 => Ok(stream.into_inner()),
            407 => Err(self.unauthorized()),
            status => Err(self.failed(&format!("it answered {status} to CONNECT {target}"))),
        }
    }

    /// Returns the error of a proxy that refused the credentials.
    pub fn unauthorized(&self) -> BoxError {
        self.failed("it requires a user and a password in its URL, or refuses them (407)")
    }

    /// Returns the error of a proxy that did not answer within this time.
    pub(super) fn silent(&self, within: Duration) -> BoxError {
        format!("the proxy {} did not answer within {within:?}", self.address).into()
    }

    /// Returns an error that names the proxy without its credentials.
    fn failed(&self, error: &str) -> BoxError {
        format!("through the proxy {}: {error}", self.address).into()
    }
}

impl fmt::Debug for ConnectProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectProxy").field(&self.address).finish()
    }
}

/// Returns the port of a URL: the default of its scheme if it names none.
pub(super) fn port(url: &Uri) -> u16 {
    let usual = if url.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
    url.port_u16().unwrap_or(usual)
}

/// Returns the TLS configuration for the proxy itself. The system's roots verify its certificate:
/// the cluster's authority does not sign it. A proxy without TLS works on a system without roots.
fn tls(is_secure: bool) -> Result<ClientConfig, Error> {
    let failed = |error: rustls::Error| Error::ProxyRoots { message: describe(&error) };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match is_secure {
        true => builder.try_with_platform_verifier().map_err(failed)?,
        false => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

/// Requests a tunnel and returns the status code of the response.
async fn request_tunnel(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    target: &str,
    authorization: Option<&HeaderValue>,
) -> io::Result<u16> {
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if let Some(authorization) = authorization {
        head.extend_from_slice(b"Proxy-Authorization: ");
        head.extend_from_slice(authorization.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head).await?;
    stream.flush().await?;
    let mut response = Vec::new();
    // The server behind the proxy does not send first, so nothing follows this head.
    while !response.ends_with(b"\r\n\r\n") {
        if response.len() >= MAX_HEAD_BYTES {
            return Err(io::Error::other("the header of its response is too long"));
        }
        response.push(stream.read_u8().await?);
    }
    let status = response
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok());
    status.ok_or_else(|| io::Error::other("its response is not HTTP"))
}

/// Returns whether a URL has a host and a valid port, and no `@` behind them: a password with an
/// unencoded `/` would be read as a host and a path.
fn is_address(proxy: &Uri) -> bool {
    let Some(authority) = proxy.authority() else { return false };
    let address = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = address.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
    let is_port = port.is_none_or(|(_, port)| port.is_empty() || proxy.port_u16().is_some());
    let path = proxy.path_and_query().map_or("", |path| path.as_str());
    is_port && !authority.host().is_empty() && !path.contains('@')
}

/// Returns the address of a proxy without user and password. A missing scheme means http, as in Go.
pub(super) fn without_credentials(proxy: &Uri) -> Uri {
    let Some(host) = proxy.host() else { return Uri::default() };
    let authority = proxy.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    Uri::builder()
        .scheme(proxy.scheme_str().unwrap_or("http"))
        .authority(authority)
        .path_and_query("/")
        .build()
        .unwrap_or_default()
}

/// Returns the value of `Authorization` or `Proxy-Authorization` for the user and the password in a
/// URL.
pub fn authorization(url: &Uri) -> Option<HeaderValue> {
    let (user, _) = url.authority()?.as_str().rsplit_once('@')?;
    let mut credentials = decode(user);
    if !user.contains(':') {
        // As RFC 7617 has it for an empty password.
        credentials.push(b':');
    }
    let mut value =
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(credentials))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Decodes percent-encoded bytes of a text.
fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let encoded = bytes
            .get(at + 1..at + 3)
            .filter(|digits| bytes[at] == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let digits = encoded.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(proxy: &str, address: &str, user: Option<&str>) {
        let proxy: Uri = proxy.parse().unwrap();

        assert_eq!(without_credentials(&proxy).to_string(), address);
        let expected = user.map(|user| format!("Basic {}", STANDARD.encode(user)));
        let value = authorization(&proxy);
        assert_eq!(value.as_ref().map(|value| value.to_str().unwrap()), expected.as_deref());
        assert!(value.is_none_or(|value| value.is_sensitive()));
    }

    #[test]
    fn user_and_password_are_removed_from_the_address_and_decoded() {
        check("http://proxy:3128", "http://proxy:3128/", None);
        check("proxy:3128", "http://proxy:3128/", None);
        check("http://me:secret@proxy:3128", "http://proxy:3128/", Some("me:secret"));
        check("http://me@proxy:3128", "http://proxy:3128/", Some("me:"));
        check("http://me:@proxy:3128", "http://proxy:3128/", Some("me:"));
        check("http://a%3ab@proxy:3128", "http://proxy:3128/", Some("a:b:"));
        check("https://me:p%40s%3as@proxy", "https://proxy/", Some("me:p@s:s"));
        check("http://me:100%25%+A%2@proxy", "http://proxy/", Some("me:100%%+A%2"));
        check("socks5://me:secret@[::1]:1080", "socks5://[::1]:1080/", Some("me:secret"));
    }

    #[test]
    fn url_whose_password_has_an_unencoded_slash_is_refused_without_it() {
        for url in [
            "http://me:12/34@proxy:3128",
            "http://me:12?34@proxy:3128",
            "http://me:no/34@proxy",
            "http://me:12x#34@proxy",
            "/12/34",
        ] {
            let error = ConnectProxy::new(&url.parse().unwrap()).unwrap_err().to_string();

            assert!(!error.contains("12") && !error.contains("34"), "{url}: {error}");
        }
        for url in
            ["http://proxy", "proxy:3128", "http://me@[::1]", "http://[::1]:3128/", "http://p:"]
        {
            assert!(ConnectProxy::new(&url.parse().unwrap()).is_ok(), "{url}");
        }
    }
}
