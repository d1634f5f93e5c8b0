//! Lanes: separate sets of connections for kinds of requests.

use http::Request;

/// Set of connections for one kind of requests, so that it never waits for another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Reads and writes.
    Requests,
    /// Watches and followed logs, which stay open.
    Watches,
    /// Leases: a late renewal costs the leadership.
    Leases,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Self; 3] = [Self::Requests, Self::Watches, Self::Leases];

    /// Returns the lane of a request. A watch of leases is a watch.
    pub fn of<B>(request: &Request<B>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let is_watch =
            query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"));
        if is_watch || follows_a_log(request) {
            return Self::Watches;
        }
        let path = request.uri().path();
        let of_leases = path.contains("/apis/coordination.k8s.io/")
            && path.split('/').any(|segment| segment == "leases");
        if of_leases { Self::Leases } else { Self::Requests }
    }

    /// Returns the lane as one word, for metrics and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Watches => "watches",
            Self::Leases => "leases",
        }
    }
}

/// Returns whether a request follows the log of a pod.
pub(super) fn follows_a_log<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    uri.path().ends_with("/log")
        && uri.path().contains("/pods/")
        && query.split('&').any(|pair| matches!(pair, "follow=true" | "follow=1" | "follow"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uri: &str, expected: Lane) {
        let request = Request::get(uri).body(()).unwrap();

        assert_eq!(Lane::of(&request), expected, "{uri}");
    }

    #[test]
    fn watches_and_leases_have_lanes_of_their_own() {
        check("/api/v1/pods?limit=500", Lane::Requests);
        check("/api/v1/pods?limit=500&watch=true&resourceVersion=7", Lane::Watches);
        check("/api/v1/pods?watch=1", Lane::Watches);
        check("/api/v1/pods?watch=false", Lane::Requests);
        check("/api/v1/pods?labelSelector=watch%3Dtrue", Lane::Requests);
        check("/apis/example.com/v1/namespaces/a/leases/x", Lane::Requests);
        check("/apis/coordination.k8s.io/v1/namespaces/a/leases/x", Lane::Leases);
        check("/k8s/clusters/c-1/apis/coordination.k8s.io/v1/leases", Lane::Leases);
        check("/apis/coordination.k8s.io/v1/leases?watch=true", Lane::Watches);
        check("/apis/apps/v1/namespaces/leases/deployments", Lane::Requests);
        check("/api/v1/namespaces/a/pods/b/log?follow=true&container=c", Lane::Watches);
        check("/api/v1/namespaces/a/pods/b/log?container=c&follow=true", Lane::Watches);
        check("/api/v1/namespaces/a/pods/b/log?container=c", Lane::Requests);
        check("/api/v1/namespaces/a/pods/b/log?follow=false", Lane::Requests);
        check("/apis/example.com/v1/namespaces/a/trees/log?follow=true", Lane::Requests);
    }
}
