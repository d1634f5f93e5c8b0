//! Requests with decoded responses.
//!
//! Replaces kube's own `request`, which logs the whole body when it cannot decode it; that may be
//! the body of a Secret.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body, core::Status};
use serde::de::DeserializeOwned;

use super::FencedSender;

/// Way of a request to the server.
#[derive(Clone, Copy)]
pub(crate) enum Requester<'a> {
    /// Client of kube's.
    Client(&'a Client),
    /// Fence of an epoch, without a client between.
    Fenced(&'a FencedSender),
}

impl<'a> From<&'a Client> for Requester<'a> {
    fn from(client: &'a Client) -> Self {
        Self::Client(client)
    }
}

/// Sends a request and decodes its response as kube does.
///
/// # Errors
///
/// [`kube::Error::Api`] if the server refuses the request. If the body is not a `Status`, its text
/// becomes the message. [`kube::Error::SerdeError`] if the body of a success cannot be decoded.
pub(crate) async fn request_json<T: DeserializeOwned>(
    requester: impl Into<Requester<'_>>,
    request: Request<impl Into<Body>>,
) -> Result<T, kube::Error> {
    let body = request_bytes(requester, request).await?;
    serde_json::from_slice(&body).map_err(kube::Error::SerdeError)
}

/// Sends a request and returns the body of its success.
///
/// # Errors
///
/// [`kube::Error::Api`] as for [`request_json`].
pub(crate) async fn request_bytes(
    requester: impl Into<Requester<'_>>,
    request: Request<impl Into<Body>>,
) -> Result<Bytes, kube::Error> {
    let request = request.map(Into::into);
    let (code, body) = match requester.into() {
        Requester::Client(client) => {
            let (head, body) = client.send(request).await?.into_parts();
            (head.status, body.collect().await?.to_bytes())
        }
        Requester::Fenced(sender) => {
            let (head, body) = sender.send(request).await?.into_parts();
            let body = body.collect().await.map_err(kube::Error::Service)?;
            (head.status, body.to_bytes())
        }
    };
    if !code.is_client_error() && !code.is_server_error() {
        return Ok(body);
    }
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), "Failed to parse error data").with_code(code.as_u16())
    });
    Err(kube::Error::Api(status.boxed()))
}
