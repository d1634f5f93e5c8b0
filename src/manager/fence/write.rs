//! Write request and its end, as the fence describes them to observers.

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;

/// Bytes of a response that an observer gets at most, 1 MiB. A longer one counts as unreadable.
const MAX_ANSWER: usize = 1 << 20;

/// Request that may change something on the server.
#[derive(Debug)]
pub(crate) struct WriteRequest {
    path: String,
    method: Method,
    // Body of a creation, which names the object.
    body: Option<Body>,
}

/// End of a write that the server has carried out, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteEnd {
    /// Success, with the body of the response; empty if that is longer than 1 MiB.
    Answered(Bytes),
    /// The outcome is unknown.
    Unknown,
}

/// Body of the response to a write, as far as it has arrived.
#[derive(Debug, Default)]
pub(super) struct WriteResponse {
    frames: Vec<Bytes>,
    length: usize,
}

impl WriteRequest {
    /// Returns the write that a request makes; `None` for a read and for a dry run.
    pub(super) fn of(request: &Request<Body>) -> Option<Self> {
        let method = request.method();
        if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) || is_dry_run(request) {
            return None;
        }
        let body = (*method == Method::POST).then(|| request.body().try_clone()).flatten();
        Some(Self { path: request.uri().path().to_owned(), method: method.clone(), body })
    }

    /// Path of the URL, without the query.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Method of the request.
    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    /// Body of a creation, if it is complete in memory.
    pub(crate) fn body(&self) -> Option<Bytes> {
        in_memory(self.body.as_ref()?)
    }
}

impl WriteResponse {
    /// Adds a part of the body. Bytes are shared, not copied.
    pub(super) fn push(&mut self, data: &Bytes) {
        self.length += data.len();
        match self.length > MAX_ANSWER {
            true => self.frames.clear(),
            false => self.frames.push(data.clone()),
        }
    }

    /// Returns the whole body; empty if it was too long.
    pub(super) fn into_bytes(self) -> Bytes {
        match &*self.frames {
            [whole] => whole.clone(),
            parts => parts
                .iter()
                .fold(BytesMut::new(), |mut whole, part| {
                    whole.extend_from_slice(part);
                    whole
                })
                .freeze(),
        }
    }
}

/// Returns whether a request only requests the response. kube names a dry run in the query, and of
/// a deletion in the body.
fn is_dry_run(request: &Request<Body>) -> bool {
    #[derive(Default, Deserialize)]
    struct DeleteOptions {
        #[serde(default, rename = "dryRun")]
        dry_run: Vec<String>,
    }
    let in_query =
        request.uri().query().unwrap_or_default().split('&').any(|it| it == "dryRun=All");
    in_query || {
        let body =
            (*request.method() == Method::DELETE).then(|| in_memory(request.body())).flatten();
        let options = body.and_then(|body| serde_json::from_slice::<DeleteOptions>(&body).ok());
        options.unwrap_or_default().dry_run.iter().any(|it| it == "All")
    }
}

/// Returns a body that is complete in memory: only such a body can be cloned.
fn in_memory(body: &Body) -> Option<Bytes> {
    Some(body.try_clone()?.collect().now_or_never()?.ok()?.to_bytes())
}
