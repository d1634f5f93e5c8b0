//! Write request, as the fence describes it to observers.

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;

/// Request that may change something on the server.
#[derive(Debug)]
pub(crate) struct Write {
    path: String,
    // Body of a creation, which names the object.
    body: Option<Body>,
}

impl Write {
    /// Returns the write that a request makes; `None` for a read.
    pub(super) fn of(request: &Request<Body>) -> Option<Self> {
        let method = request.method();
        if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
            return None;
        }
        let body = (*method == Method::POST).then(|| request.body().try_clone()).flatten();
        Some(Self { path: request.uri().path().to_owned(), body })
    }

    /// Path of the URL, without the query.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Body of a creation, if it is complete in memory.
    pub(crate) fn body(self) -> Option<Bytes> {
        // Only a body in memory can be cloned.
        Some(self.body?.collect().now_or_never()?.ok()?.to_bytes())
    }
}
