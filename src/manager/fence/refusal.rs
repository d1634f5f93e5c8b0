//! A refusal that asks to wait: until when.
//!
//! kube turns a refusal into the `Status` in its body and drops the headers. The server's filters
//! in front (API Priority and Fairness, the limit of requests under way) answer with plain text
//! though, and say in `Retry-After` alone how long to wait. Here that is put where a `Status` has a
//! place for it, so that whoever gets the error finds it.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{
    client::Body,
    core::{Status, response::StatusDetails},
};

use crate::redaction;

/// The most of a refusal that is read.
const MAX_BYTES: usize = 64 * 1024;
/// The longest that a server may ask for.
const LONGEST: Duration = Duration::from_secs(300);

/// How long a refused request is to wait, if the server says so: a second to five minutes.
pub(crate) fn retry_after(status: &Status) -> Option<Duration> {
    if !asks(status.code) {
        return None;
    }
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST))
}

/// The same response; if it is a refusal that asks to wait in a header, its body does too.
pub(super) async fn with_retry_after(response: Response<Body>) -> Response<Body> {
    let code = response.status();
    let Some(seconds) = seconds(response.headers()).filter(|_| asks(code.as_u16())) else {
        return response;
    };
    let (mut head, body) = response.into_parts();
    // Cut off or too long, the head says enough.
    let body = Limited::new(body, MAX_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let status = told(&body, code, seconds);
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

/// The same response; if it is a refusal, its body is a `Status` that quotes no Secret.
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

/// Those are about requests at this moment. Any other is about this request, whatever its headers
/// say.
fn asks(code: u16) -> bool {
    code == StatusCode::TOO_MANY_REQUESTS || code == StatusCode::SERVICE_UNAVAILABLE
}

/// At least one, so that nobody asks for a hot loop.
fn seconds(headers: &HeaderMap) -> Option<u32> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = value.trim().parse::<u64>().ok()?;
    Some(u32::try_from(seconds).unwrap_or(u32::MAX).max(1))
}

fn told(body: &[u8], code: StatusCode, seconds: u32) -> Status {
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

/// Of a refusal that says no more than for how many seconds to wait.
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

    /// What somebody behind a fence hears of such an answer, as an error: code, reason, message,
    /// and how long to wait.
    async fn hear(
        code: u16,
        header: Option<&'static str>,
        body: String,
    ) -> (u16, String, String, Option<u64>) {
        let service = service_fn(move |_request: http::Request<Body>| {
            let mut answer = Response::builder().status(code);
            if let Some(value) = header {
                answer = answer.header("Retry-After", value);
            }
            let answer = answer.body(Body::from(body.clone().into_bytes())).unwrap();
            std::future::ready(Ok::<_, kube::Error>(answer))
        });
        let client = Fence::new().client(&Client::new(service, "default"));
        let request = http::Request::post("/api/v1/pods").body(Vec::new()).unwrap();
        let answer = client.request::<serde_json::Value>(request).await;
        let Err(kube::Error::Api(status)) = answer else { panic!("{answer:?}") };
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
                let answer = Response::builder().status(422);
                let answer = answer.body(Body::from(body.clone().into_bytes())).unwrap();
                std::future::ready(Ok::<_, kube::Error>(answer))
            });
            let client = Fence::new().client(&Client::new(service, "default"));
            let request = http::Request::post(path).body(Vec::new()).unwrap();
            let answer = client.request::<serde_json::Value>(request).await;
            let Err(kube::Error::Api(status)) = answer else { panic!("{answer:?}") };
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
    async fn a_refusal_in_plain_text_is_heard_with_the_time_in_its_header() {
        // Word for word as the filter for priority and fairness answers.
        let text = "Too many requests, please try again later.\n".to_owned();

        let (code, reason, message, after) = hear(429, Some("1"), text).await;

        assert_eq!((code, reason.as_str(), after), (429, "TooManyRequests", Some(1)));
        assert_eq!(message, "Too many requests, please try again later.");
        let (code, reason, _, after) = hear(503, Some("10"), String::new()).await;
        assert_eq!((code, reason.as_str(), after), (503, "ServiceUnavailable", Some(10)));
    }

    #[tokio::test]
    async fn the_time_is_heard_from_the_status_or_from_the_header() {
        for (header, told, expected) in [
            (None, Some(7), Some(7)),
            (Some("7"), None, Some(7)),
            (Some("1"), Some(7), Some(7)),
            (Some("0"), None, Some(1)),
            (Some("86400"), None, Some(300)),
            (Some("99999999999999"), None, Some(300)),
            (Some("soon"), None, None),
            (None, None, None),
        ] {
            let (code, _, message, after) = hear(429, header, status(429, told)).await;

            assert_eq!((code, message.as_str(), after), (429, "later", expected), "{header:?}");
        }
    }

    #[tokio::test]
    async fn no_other_answer_asks_to_wait() {
        for code in [400, 403, 404, 409, 422, 500, 502, 504] {
            let (_, _, _, after) = hear(code, Some("7"), status(code, Some(7))).await;

            assert_eq!(after, None, "{code}");
        }
    }
}
