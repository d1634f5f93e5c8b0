//! Requests about one Lease.

use std::sync::Arc;

use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{Method, Request, StatusCode};
use kube::{Client, core::WatchEvent};
use serde_json::Value;

use super::{candidate::LeaseWrite, record::StoredLease};
use crate::manager::{BoxError, request_json};

/// Lease on the server.
#[derive(Clone)]
pub(super) struct LeaseClient {
    client: Client,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// Failure of a write.
pub(super) enum LeaseWriteError {
    /// The lease is another than the one that was seen.
    Conflict,
    Failed(BoxError),
}

/// Event of the watch.
pub(super) enum LeaseEvent {
    Changed(StoredLease),
    Deleted(StoredLease),
    Bookmark,
}

impl LeaseClient {
    pub(super) fn new(client: Client, namespace: Arc<str>, name: Arc<str>) -> Self {
        Self { client, namespace, name }
    }

    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// Reads the lease; `None` if there is none.
    pub(super) async fn read(&self) -> Result<Option<StoredLease>, BoxError> {
        let path = format!("{}/{}", self.collection(), self.name);
        match request_json::<Value>(&self.client, request(Method::GET, &path, Vec::new())?).await {
            Ok(object) => Ok(Some(StoredLease::read(object))),
            Err(kube::Error::Api(status)) if status.code == StatusCode::NOT_FOUND => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates or replaces the lease.
    pub(super) async fn write(&self, write: &LeaseWrite) -> Result<StoredLease, LeaseWriteError> {
        let written = async {
            let (method, path, body) = match &write.over {
                Some(over) => {
                    let path = format!("{}/{}", self.collection(), self.name);
                    (Method::PUT, path, over.with(&write.record))
                }
                None => {
                    let body = write.record.creation(&self.namespace, &self.name);
                    (Method::POST, self.collection(), body)
                }
            };
            let body = serde_json::to_vec(&body)?;
            let request = request(method, &path, body)?;
            Ok::<_, BoxError>(request_json::<Value>(&self.client, request).await)
        };
        match written.await.map_err(LeaseWriteError::Failed)? {
            Ok(object) => Ok(StoredLease::read(object)),
            // A lease that is gone is another one, too.
            Err(kube::Error::Api(status))
                if status.code == StatusCode::CONFLICT
                    || (status.code == StatusCode::NOT_FOUND && write.over.is_some()) =>
            {
                Err(LeaseWriteError::Conflict)
            }
            Err(error) => Err(LeaseWriteError::Failed(error.into())),
        }
    }

    /// Returns the changes of the lease after a version. Sends the request at the first poll.
    pub(super) fn watch(
        &self,
        version: &str,
    ) -> impl Stream<Item = Result<LeaseEvent, BoxError>> + Send + use<> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3D{}&resourceVersion={version}",
            self.collection(),
            self.name,
        );
        let client = self.client.clone();
        let opened = async move {
            let request = request(Method::GET, &path, Vec::new())?;
            let events = client.request_events::<Value>(request).await?;
            Ok::<_, BoxError>(events.map(|event| event.map_err(BoxError::from)))
        };
        stream::once(opened).try_flatten().and_then(|event| async {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    Ok(LeaseEvent::Changed(StoredLease::read(object)))
                }
                WatchEvent::Deleted(object) => Ok(LeaseEvent::Deleted(StoredLease::read(object))),
                WatchEvent::Bookmark(_) => Ok(LeaseEvent::Bookmark),
                WatchEvent::Error(status) => Err(kube::Error::Api(status).into()),
            }
        })
    }
}

fn request(method: Method, path: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>, http::Error> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
}
