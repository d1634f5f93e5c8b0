//! Refusals: the delay that the server requests, and redaction of refusals about Secrets.
//!
//! kube turns a refusal into the `Status` in its body and drops the headers. The server's filters
//! in front (API Priority and Fairness, the limit of requests under way) answer with plain text and
//! put the delay only into the header `Retry-After`. This module copies the delay into the
//! `Status`, so that it reaches the caller with the error.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{
    client::Body,
    core::{Status, response::StatusDetails},
};

use crate::redaction;

/// Bytes of a refusal's body that are read at most; a `Status` is far smaller.
const MAX_BYTES: usize = 64 * 1024;
/// Longest delay that a server may request; longer ones are cut to this.
const LONGEST: Duration = Duration::from_secs(300);

/// Returns the delay that the server requests before a retry of a refused request, if any: 1 s to 5
/// min.
pub(crate) fn retry_after(status: &Status) -> Option<Duration> {
    if !may_delay(status.code) {
        return None;
    }
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST))
}

/// Copies the delay of a refusal from its header into the `Status` in its body; passes any other
/// response through.
pub(super) async fn with_retry_after(response: Response<Body>) -> Response<Body> {
    let code = response.status();
    let Some(seconds) = seconds(response.headers()).filter(|_| may_delay(code.as_u16())) else {
        return response;
    };
    let (mut head, body) = response.into_parts();
    // If the body is cut off or too long, the head alone is enough.
    let body = Limited::new(body, MAX_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let status = status_with_delay(&body, code, seconds);
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(&status).map_or_else(|_| Body::from(body), Body::from);
    Response::from_parts(head, body)
}

/// Returns whether a request with this path is about Secrets, of one or all namespaces.
pub(super) fn is_about_secrets(path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').strip_prefix("api/v1/").unwrap_or("").split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("namespaces"), Some(_), Some(resource)) => resource == "secrets",
        (Some(resource), ..) => resource == "secrets",
        (None, ..) => false,
    }
}

/// Removes the server's message from a refusal, so that its `Status` quotes no Secret; passes any
/// other response through.
pub(super) async fn without_message(response: Response<Body>) -> Response<Body> {
    let code = response.status();
    if !code.is_client_error() && !code.is_server_error() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let body = Limited::new(body, MAX_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let mut status = serde_json::from_slice::<Status>(&body).unwrap_or_default();
    status.code = code.as_u16();
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(&redaction::of_secret(status)).unwrap_or_default();
    Response::from_parts(head, Body::from(body))
}

/// Returns whether a status code may request a delay. Only 429 and 503 concern requests at this
/// moment; every other code concerns this request, whatever its headers say.
fn may_delay(code: u16) -> bool {
    code == StatusCode::TOO_MANY_REQUESTS || code == StatusCode::SERVICE_UNAVAILABLE
}

/// Returns the delay in seconds; at least 1, so that a server cannot cause a hot loop.
fn seconds(headers: &HeaderMap) -> Option<u32> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = value.trim().parse::<u64>().ok()?;
    Some(u32::try_from(seconds).unwrap_or(u32::MAX).max(1))
}

fn status_with_delay(body: &[u8], code: StatusCode, seconds: u32) -> Status {
    let mut status = match serde_json::from_slice::<Status>(body) {
        Ok(status) if status.code != 0 => status,
        Ok(_) | Err(_) => {
            let reason = match code {
                StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
                _ => "ServiceUnavailable",
            };
            let text = String::from_utf8_lossy(body);
            let text = if text.trim().is_empty() { code.as_str().into() } else { text };
            Status::failure(text.trim(), reason).with_code(code.as_u16())
        }
    };
    let details = status.details.get_or_insert_with(|| wait_details(seconds));
    if details.retry_after_seconds == 0 {
        details.retry_after_seconds = seconds;
    }
    status
}

/// Details of a `Status` that contain only a delay in seconds.
pub(crate) fn wait_details(seconds: u32) -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: seconds,
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::manager::Fence;

    /// Sends a request through a fence to a server with this response. Returns the error as code,
    /// reason, message and delay.
    async fn refused(
        code: u16,
        header: Option<&'static str>,
        body: String,
    ) -> (u16, String, String, Option<u64>) {
        let service = service_fn(move |_request: http::Request<Body>| {
            let mut response = Response::builder().status(code);
            if let Some(value) = header {
                response = response.header("Retry-After", value);
            }
            let response = response.body(Body::from(body.clone().into_bytes())).unwrap();
            std::future::ready(Ok::<_, kube::Error>(response))
        });
        let client = Fence::new().client(&Client::new(service, "default"));
        let request = http::Request::post("/api/v1/pods").body(Vec::new()).unwrap();
        let response = client.request::<serde_json::Value>(request).await;
        let Err(kube::Error::Api(status)) = response else { panic!("{response:?}") };
        let after = retry_after(&status).map(|after| after.as_secs());
        (status.code, status.reason.clone(), status.message.clone(), after)
    }

    fn status(code: u16, seconds: Option<u32>) -> String {
        let details = seconds.map(|seconds| json!({ "name": "a", "retryAfterSeconds": seconds }));
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": "TooManyRequests", "message": "later", "code": code, "details": details,
        })
        .to_string()
    }

    #[tokio::test]
    async fn a_refusal_about_secrets_comes_without_the_servers_message() {
        let said = |path: &'static str, body: String| async move {
            let service = service_fn(move |_request: http::Request<Body>| {
                let response = Response::builder().status(422);
                let response = response.body(Body::from(body.clone().into_bytes())).unwrap();
                std::future::ready(Ok::<_, kube::Error>(response))
            });
            let client = Fence::new().client(&Client::new(service, "default"));
            let request = http::Request::post(path).body(Vec::new()).unwrap();
            let response = client.request::<serde_json::Value>(request).await;
            let Err(kube::Error::Api(status)) = response else { panic!("{response:?}") };
            (status.code, format!("{status:?}"))
        };
        let invalid = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
            "reason": "Invalid", "message": "data: Invalid value: \"hush\"",
        });

        for path in [
            "/api/v1/namespaces/a/secrets?dryRun=All",
            "/api/v1/namespaces/a/secrets/b",
            "/api/v1/secrets",
        ] {
            for body in [invalid.to_string(), "hush".to_owned()] {
                let (code, said) = said(path, body).await;
                assert_eq!(code, 422);
                assert!(!said.contains("hush"), "{path}: {said}");
            }
        }
        for path in ["/api/v1/namespaces/secrets/configmaps", "/apis/a/v1/secrets"] {
            assert!(said(path, invalid.to_string()).await.1.contains("hush"), "{path}");
        }
    }

    #[tokio::test]
    async fn a_refusal_in_plain_text_keeps_the_delay_of_its_header() {
        // Text of the filter for API Priority and Fairness, verbatim.
        let text = "Too many requests, please try again later.\n".to_owned();

        let (code, reason, message, after) = refused(429, Some("1"), text).await;

        assert_eq!((code, reason.as_str(), after), (429, "TooManyRequests", Some(1)));
        assert_eq!(message, "Too many requests, please try again later.");
        let (code, reason, _, after) = refused(503, Some("10"), String::new()).await;
        assert_eq!((code, reason.as_str(), after), (503, "ServiceUnavailable", Some(10)));
    }

    #[tokio::test]
    async fn the_delay_is_read_from_the_status_or_from_the_header() {
        for (header, in_status, expected) in [
            (None, Some(7), Some(7)),
            (Some("7"), None, Some(7)),
            (Some("1"), Some(7), Some(7)),
            (Some("0"), None, Some(1)),
            (Some("86400"), None, Some(300)),
            (Some("99999999999999"), None, Some(300)),
            (Some("soon"), None, None),
            (None, None, None),
        ] {
            let (code, _, message, after) = refused(429, header, status(429, in_status)).await;

            assert_eq!((code, message.as_str(), after), (429, "later", expected), "{header:?}");
        }
    }

    #[tokio::test]
    async fn no_other_response_is_throttling() {
        for code in [400, 403, 404, 409, 422, 500, 502, 504] {
            let (_, _, _, after) = refused(code, Some("7"), status(code, Some(7))).await;

            assert_eq!(after, None, "{code}");
        }
    }
}
