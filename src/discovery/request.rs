//! GET requests with a deadline and a byte budget.
//!
//! kube's own `request` has no read deadline, and logs the whole body if decoding fails.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body, core::Status};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{list_page::EndlessList, redaction};

/// Largest accepted body. Discovery of a cluster with thousands of CRDs is some 10 MB.
const BODY_BUDGET_BYTES: usize = 256 * 1024 * 1024;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The server is slow or unreachable. Retried with back-off.
    #[error("{path} was not answered within {after:?}")]
    Deadline { path: String, after: Duration },
    /// The path is not valid in a URL.
    #[error("{path} is not a valid path: {source}")]
    Path { path: String, source: http::Error },
    /// The connection failed. Retried with back-off.
    #[error("requesting {path}: {}", redaction::error(&**source))]
    Request { path: String, source: Box<kube::Error> },
    /// The server refused the request.
    #[error("{path} was answered with {code}: {}", redaction::text(message))]
    Status { path: String, code: u16, message: String },
    /// The body ended early or exceeds the budget.
    #[error("reading the response to {path}: {}", redaction::error(&**source))]
    Body { path: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The body does not have the expected shape.
    #[error("decoding the response to {path}: {}", redaction::decoding(source))]
    Decode { path: String, source: serde_json::Error },
    /// The pages of a list do not lead to its end.
    #[error("listing {path}: {source}")]
    EndlessList { path: String, source: EndlessList },
    /// The watch reported an error instead of an event.
    #[error("watching {path}: {}", redaction::error(&**source))]
    Watch { path: String, source: Box<kube::Error> },
}

impl Error {
    /// Returns the HTTP status, if the server answered with one.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Request { source, .. } | Self::Watch { source, .. } => {
                if let kube::Error::Api(status) = &**source { Some(status.code) } else { None }
            }
            Self::Deadline { .. }
            | Self::Path { .. }
            | Self::Body { .. }
            | Self::Decode { .. }
            | Self::EndlessList { .. } => None,
        }
    }

    /// Returns whether the server refuses the request permanently: no permission, or no such verb.
    ///
    /// A 404 does not count: a server that is starting, or a proxy, sends it too.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.code(), Some(403 | 405))
    }
}

/// Returns the body of a successful response.
pub(super) async fn get(
    client: &Client,
    path: &str,
    accept: &str,
    deadline: Duration,
) -> Result<Bytes, Error> {
    let request = Request::get(path)
        .header(http::header::ACCEPT, accept)
        .body(Body::empty())
        .map_err(|source| Error::Path { path: path.into(), source })?;
    let answered = async {
        let response = client
            .send(request)
            .await
            .map_err(|source| Error::Request { path: path.into(), source: Box::new(source) })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BUDGET_BYTES)
            .collect()
            .await
            .map_err(|source| Error::Body { path: path.into(), source })?
            .to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        // For readers: the message of a `Status`, or else the beginning of the body.
        let message = match serde_json::from_slice::<Status>(&body) {
            Ok(status) => status.message,
            Err(_) => String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned(),
        };
        Err(Error::Status { path: path.into(), code: status.as_u16(), message })
    };
    match timeout(deadline, answered).await {
        Ok(result) => result,
        Err(_elapsed) => Err(Error::Deadline { path: path.into(), after: deadline }),
    }
}

/// Returns the decoded body of a successful response.
pub(super) async fn get_json<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    accept: &str,
    deadline: Duration,
) -> Result<T, Error> {
    let body = get(client, path, accept, deadline).await?;
    serde_json::from_slice(&body).map_err(|source| Error::Decode { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_found_is_an_error_and_no_refusal() {
        for (code, expected) in [(401, false), (403, true), (404, false), (405, true), (500, false)]
        {
            let error = Error::Status { path: "/apis".into(), code, message: String::new() };

            assert_eq!(error.is_refusal(), expected, "{code}");
        }
    }
}
