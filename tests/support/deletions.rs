//! Record of a manager's deletions and their preconditions.

use std::sync::{Arc, Mutex};

use http::{Method, Request};
use kube::client::Body;
use serde_json::Value;

/// Records the deletions among a manager's requests. Clones share the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deletions {
    /// Path and options of each deletion.
    seen: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Deletions {
    /// Records a request and passes it on.
    pub(crate) async fn note(&self, request: Request<Body>) -> Request<Body> {
        if request.method() != Method::DELETE {
            return request;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        // A deletion without a body has no options.
        let options = serde_json::from_slice(&body).unwrap_or_default();
        self.seen.lock().unwrap().push((parts.uri.path().to_owned(), options));
        Request::from_parts(parts, Body::from(body))
    }

    /// Asserts that each deletion named a uid, so that it cannot hit a later object of the same
    /// name. Returns their number.
    pub(crate) fn assert_guarded(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        for (path, options) in &*seen {
            let uid = options["preconditions"]["uid"].as_str().unwrap_or_default();
            assert!(!uid.is_empty(), "the deletion names no uid: {path} {options}");
        }
        seen.len()
    }
}
