//! Requests with decoded answers.
//!
//! Replaces kube's own `request`, which logs the whole body when it cannot decode it; that may be
//! the body of a Secret.

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body, core::Status};
use serde::de::DeserializeOwned;

/// Sends a request and decodes its answer as kube does.
///
/// # Errors
///
/// [`kube::Error::Api`] if the server refuses the request. If the body is not a `Status`, its text
/// becomes the message.
pub(crate) async fn ask<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, kube::Error> {
    let response = client.send(request.map(Body::from)).await?;
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if !code.is_client_error() && !code.is_server_error() {
        return serde_json::from_slice(&body).map_err(kube::Error::SerdeError);
    }
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), "Failed to parse error data").with_code(code.as_u16())
    });
    Err(kube::Error::Api(status.boxed()))
}
