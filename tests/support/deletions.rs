//! What a manager deletes, and whether it says which one it means.

use std::sync::{Arc, Mutex};

use http::{Method, Request};
use kube::client::Body;
use serde_json::Value;

/// Reads the deletions among a manager's requests. Clones share what was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deletions {
    /// Of each, the path and its options.
    seen: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Deletions {
    /// Lets a request pass by.
    pub(crate) async fn note(&self, request: Request<Body>) -> Request<Body> {
        if request.method() != Method::DELETE {
            return request;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        // Without a body there are no options.
        let options = serde_json::from_slice(&body).unwrap_or_default();
        self.seen.lock().unwrap().push((parts.uri.path().to_owned(), options));
        Request::from_parts(parts, Body::from(body))
    }

    /// Asserts that each was for one uid, so that no later object of the same name is hit; how
    /// many there were.
    pub(crate) fn assert_guarded(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        for (path, options) in &*seen {
            let uid = options["preconditions"]["uid"].as_str().unwrap_or_default();
            assert!(!uid.is_empty(), "whatever has the name is deleted: {path} {options}");
        }
        seen.len()
    }
}
