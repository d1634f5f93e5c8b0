//! Requests to a running manager.

use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use pilotlight::redaction;
use serde::de::DeserializeOwned;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest answer, in bytes.
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
        bail!("--address {}: the metrics server speaks http", redaction::url(address));
    }
    let asked = async {
        let client: Client<_, Empty<bytes::Bytes>> =
            Client::builder(TokioExecutor::new()).build_http();
        let response = client.get(uri.clone()).await.map_err(|error| {
            anyhow::Error::from(error).context(
                "is the manager running there? --address is that of \
                 --metrics-address",
            )
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        if !status.is_success() {
            bail!("answered {status}; --address is that of --metrics-address");
        }
        Ok(serde_json::from_slice(&body)?)
    };
    let shown = redaction::url(&uri);
    match tokio::time::timeout(TIMEOUT, asked).await {
        Ok(answer) => answer.with_context(|| format!("asking {shown}")),
        Err(_) => bail!("asking {shown}: no answer within {TIMEOUT:?}"),
    }
}
