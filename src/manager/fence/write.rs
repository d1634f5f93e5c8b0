//! A request that changes something, as the fence tells of it.

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;

/// A request that changes something.
#[derive(Debug)]
pub(crate) struct Write {
    path: String,
    // Of a request that creates something; it names what.
    body: Option<Body>,
}

impl Write {
    /// `None` for a read.
    pub(super) fn of(request: &Request<Body>) -> Option<Self> {
        let method = request.method();
        if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
            return None;
        }
        let body = (*method == Method::POST).then(|| request.body().try_clone()).flatten();
        Some(Self { path: request.uri().path().to_owned(), body })
    }

    /// The path of its URL, without the query.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// What it would create, if it is all there.
    pub(crate) fn body(self) -> Option<Bytes> {
        // A body that could be cloned is in memory.
        Some(self.body?.collect().now_or_never()?.ok()?.to_bytes())
    }
}
