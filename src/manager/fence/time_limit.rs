//! Longest time of a write that needs leadership.

use std::time::Duration;

use http::{Request, Response, Uri};
use kube::{Client, client::Body};
use tokio::time::timeout;

use super::BoxError;

/// The write of an elected epoch was not answered in time. Its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the write was not answered within {0:?}; a longer lease duration, above the renew deadline, \
     leaves it more time"
)]
struct WriteTimeout(Duration);

/// Time limit of one request; none for a read, and for a write that needs no leadership.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeLimit(pub(super) Option<Duration>);

impl TimeLimit {
    /// Sends a request. The server gets the limit as the parameter `timeout`, so that it does not
    /// carry out a write that its sender has abandoned.
    pub(super) async fn send(
        self,
        client: &Client,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let Some(limit) = self.0 else { return Ok(client.send(request).await?) };
        if let Some(uri) = limited(request.uri(), limit) {
            *request.uri_mut() = uri;
        }
        match timeout(limit, client.send(request)).await {
            Ok(response) => Ok(response?),
            Err(_) => Err(WriteTimeout(limit).into()),
        }
    }
}

/// Returns the URI with the parameter `timeout`; `None` if it has one. `None` also for a request
/// that the API server forwards to a container or a server in the cluster, which would get the
/// parameter.
fn limited(uri: &Uri, limit: Duration) -> Option<Uri> {
    let query = uri.query().unwrap_or_default();
    if is_passed_on(uri.path()) || query.split('&').any(|pair| pair.starts_with("timeout=")) {
        return None;
    }
    let separator = if query.is_empty() { "" } else { "&" };
    let path = uri.path();
    let path_and_query = format!("{path}?{query}{separator}timeout={}ms", limit.as_millis().max(1));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path_and_query.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Returns whether a path names a subresource that the API server connects to: `exec`, `attach`,
/// `portforward` or `proxy` of a pod, a service or a node.
fn is_passed_on(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/api/v1/") else { return false };
    let mut parts = rest.split('/');
    let mut collection = parts.next();
    if collection == Some("namespaces") {
        // Past the name of the namespace.
        collection = parts.nth(1);
    }
    let subresource = parts.nth(1).unwrap_or_default();
    matches!(collection, Some("pods" | "services" | "nodes"))
        && matches!(subresource, "exec" | "attach" | "portforward" | "proxy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uri: &str, expected: Option<&str>) {
        let uri = uri.parse().unwrap();
        let limited = limited(&uri, Duration::from_secs(4));

        assert_eq!(limited.map(|uri| uri.to_string()).as_deref(), expected, "{uri}");
    }

    #[test]
    fn server_receives_the_limit() {
        check("/api/v1/pods", Some("/api/v1/pods?timeout=4000ms"));
        check("/api/v1/pods?", Some("/api/v1/pods?timeout=4000ms"));
        check("/a?fieldManager=b", Some("/a?fieldManager=b&timeout=4000ms"));
        check("/a?timeout=1s", None);
    }

    #[test]
    fn request_that_is_passed_on_gets_no_limit() {
        for subresource in ["exec", "attach", "portforward", "proxy", "proxy/a/b"] {
            check(&format!("/api/v1/namespaces/a/pods/b/{subresource}?c=d"), None);
        }
        check("/api/v1/namespaces/a/services/b/proxy/c", None);
        check("/api/v1/nodes/a/proxy", None);
        let eviction = "/api/v1/namespaces/a/pods/exec/eviction";
        check(eviction, Some(&format!("{eviction}?timeout=4000ms")));
        let named = "/api/v1/namespaces/proxy/pods/exec";
        check(named, Some(&format!("{named}?timeout=4000ms")));
    }
}
