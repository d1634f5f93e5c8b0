//! TCP connections to the API server: direct, or a tunnel through a proxy.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tower::{BoxError, Service, ServiceExt};

use super::{Error, error::describe};

/// Longest head of a proxy's answer, in bytes.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Opens TCP connections to a server, through a proxy if one is configured.
#[derive(Clone)]
pub(super) struct Tunnel {
    tcp: HttpConnector,
    proxy: Option<Arc<Proxy>>,
    within: Duration,
}

/// Proxy that supports `CONNECT`.
struct Proxy {
    /// Address without credentials, for connecting and for errors.
    address: Uri,
    authorization: Option<HeaderValue>,
    connector: HttpsConnector<HttpConnector>,
}

impl Tunnel {
    /// Opens connections with `tcp`, through `proxy` if there is one, which must answer within
    /// `within`.
    ///
    /// # Errors
    ///
    /// If the proxy's scheme is neither http nor https.
    pub(super) fn new(
        tcp: HttpConnector,
        proxy: Option<&Uri>,
        within: Duration,
    ) -> Result<Self, Error> {
        let proxy = proxy.map(|proxy| Proxy::new(proxy, tcp.clone())).transpose()?.map(Arc::new);
        Ok(Self { tcp, proxy, within })
    }
}

impl Proxy {
    fn new(proxy: &Uri, tcp: HttpConnector) -> Result<Self, Error> {
        let address = without_credentials(proxy);
        if !matches!(address.scheme_str(), Some("http" | "https")) {
            return Err(Error::Proxy(address));
        }
        // The system's roots verify the proxy's certificate: the cluster's authority does not sign
        // it.
        let connector = HttpsConnectorBuilder::new()
            .try_with_platform_verifier()
            .map_err(|error| Error::ProxyRoots { message: describe(&error) })?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self { address, authorization: authorization(proxy), connector })
    }

    /// Opens a connection that the proxy forwards to `server`.
    async fn connect(
        &self,
        server: &Uri,
    ) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
        let failed = |error: String| format!("through the proxy {}: {error}", self.address);
        let stream = self.connector.clone().oneshot(self.address.clone()).await;
        let mut stream = TokioIo::new(stream.map_err(|error| failed(describe(&*error)))?);
        let host = server.host().unwrap_or_default();
        let port = server.port_u16().unwrap_or(match server.scheme_str() {
            Some("http") => 80,
            Some(_) | None => 443,
        });
        let target = format!("{host}:{port}");
        let status = ask(&mut stream, &target, self.authorization.as_ref()).await;
        match status.map_err(|error| failed(error.to_string()))? {
            200..300 => Ok(stream.into_inner()),
            407 => Err(failed(
                "it requires a user and a password in its URL, or refuses them (407)".into(),
            ))?,
            status => Err(failed(format!("it answered {status} to CONNECT {target}")))?,
        }
    }
}

impl Service<Uri> for Tunnel {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let Some(proxy) = this.proxy else {
                return Ok(MaybeHttpsStream::Http(this.tcp.oneshot(server).await?));
            };
            match timeout(this.within, proxy.connect(&server)).await {
                Ok(connected) => connected,
                Err(_) => {
                    let within = this.within;
                    Err(format!("the proxy {} did not answer within {within:?}", proxy.address))?
                }
            }
        })
    }
}

/// Requests a tunnel and returns the status code of the answer.
async fn ask(
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
    let mut answer = Vec::new();
    // The server behind the proxy does not send first, so nothing follows this head.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_HEAD_BYTES {
            return Err(io::Error::other("the header of its answer is too long"));
        }
        answer.push(stream.read_u8().await?);
    }
    let status = answer
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok());
    status.ok_or_else(|| io::Error::other("its answer is not HTTP"))
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
pub(crate) fn authorization(url: &Uri) -> Option<HeaderValue> {
    let (user, _) = url.authority()?.as_str().rsplit_once('@')?;
    let mut value =
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(decode(user)))).ok()?;
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
        check("https://me:p%40s%3as@proxy", "https://proxy/", Some("me:p@s:s"));
        check("http://me:100%25%+A%2@proxy", "http://proxy/", Some("me:100%%+A%2"));
        check("socks5://me:secret@[::1]:1080", "socks5://[::1]:1080/", Some("me:secret"));
    }
}
