//! Requests to a running manager.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pilotlight::redaction;
use serde::de::DeserializeOwned;
use tokio::{net::TcpStream, task::JoinSet};

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest response, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Reads the JSON document at `path` of the metrics server at `address` (`HOST:PORT` or a URL).
pub(super) async fn get<T: DeserializeOwned>(address: &str, path: &str) -> anyhow::Result<T> {
    let base =
        if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let uri: http::Uri =
        format!("{}{path}", base.trim_end_matches('/')).parse().with_context(|| {
            format!("--address {}: give HOST:PORT of the metrics server", redaction::url(address))
        })?;
    if uri.scheme_str() != Some("http") {
        bail!(
            "--address {}: use http://, the only scheme of the metrics server",
            redaction::url(address)
        );
    }
    let requested = async {
        let host = uri.host().unwrap_or_default();
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((name, uri.port_u16().unwrap_or(80))).await.context(
            "no manager accepts connections there; give --address the value of the manager's \
             --metrics-address",
        )?;
        // A plain connection: a pooled client would add much code to the binary for one request.
        let (mut sender, connection) =
            http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        // The host alone, since the URL may have a user and a password.
        let authority = uri.port().map_or(host.to_owned(), |port| format!("{host}:{port}"));
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let request = Request::get(target).header(header::HOST, authority).body(Empty::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        if !status.is_success() {
            bail!(
                "the server responded {status}; give --address the value of the manager's \
                 --metrics-address"
            );
        }
        Ok(serde_json::from_slice(&body)?)
    };
    let shown = redaction::url(&uri);
    match tokio::time::timeout(TIMEOUT, requested).await {
        Ok(answer) => answer.with_context(|| format!("requesting {shown}")),
        Err(_) => bail!("requesting {shown}: no response within {TIMEOUT:?}"),
    }
}
