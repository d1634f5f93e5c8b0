//! Reads from the server, for writes whose response was lost and for caches that stay behind.
//!
//! Each read is a list with the selectors of one cache: a controller that may watch a type may list
//! it, but perhaps not get it. A list without a resourceVersion is a consistent read.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::{HeaderValue, header::ACCEPT};
use kube::{
    Client,
    api::ListParams,
    core::{Request, request},
};
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{expectation::ObjectState, target::Target};
use crate::{
    controller::inputs::attached::Attached,
    informer::{Object, ObjectKey, Store},
    list_page::{ContinueTokens, EndlessList, ListPage},
    manager::{request_json, retry_after},
    redaction,
};

/// Timeout of one list request, 30 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// Number of objects in a list page.
const PAGE: u32 = 500;
/// Accepted content of a metadata list. A server without this projection sends whole objects,
/// which are decoded alike.
const METADATA: HeaderValue = HeaderValue::from_static(
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
);

/// Error of a read from the server.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum ReadError {
    #[error(transparent)]
    Path(#[from] request::Error),
    #[error("{}", redaction::error(.0))]
    Server(#[from] kube::Error),
    #[error("the response has no items")]
    NoList,
    #[error(transparent)]
    Endless(#[from] EndlessList),
    #[error("there was no response within {DEADLINE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
}

impl ReadError {
    /// Returns the wait that the server requests; zero if it requests none.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            Self::Server(kube::Error::Api(status)) => retry_after(status).unwrap_or_default(),
            Self::Server(_) | Self::Path(_) | Self::NoList | Self::Endless(_) | Self::Late(_) => {
                Duration::ZERO
            }
        }
    }
}

/// Reads an object, or a collection as metadata. Returns the states that a cache does not hold.
pub(super) async fn missing(
    target: &Target,
    cache: &Attached,
    client: &Client,
) -> Result<HashMap<ObjectKey, ObjectState>, ReadError> {
    let (mut states, version) = list(target, cache, client).await?;
    for key in cached_keys(target, &cache.store) {
        let absent = || ObjectState::Absent { version: Arc::clone(&version) };
        states.entry(key).or_insert_with(absent);
    }
    // A server may ignore the selector of a name.
    let is_of = |key: &ObjectKey| target.key().is_none_or(|of| of == *key);
    states.retain(|key, state| is_of(key) && !state.is_held(key, cache));
    Ok(states)
}

/// Returns the keys of the objects of a target that a cache may have.
fn cached_keys(target: &Target, store: &Store) -> Vec<ObjectKey> {
    let cached = match (target.key(), &target.namespace) {
        (Some(key), _) => return vec![key],
        (None, Some(namespace)) => store.all_in(namespace),
        (None, None) => store.all(),
    };
    cached.iter().map(|object| object.key().clone()).collect()
}

/// Lists a target. Returns the states of its objects, and the version of the list.
async fn list(
    target: &Target,
    cache: &Attached,
    client: &Client,
) -> Result<(HashMap<ObjectKey, ObjectState>, Arc<str>), ReadError> {
    let namespace = target.namespace.as_deref().or(cache.key.namespace.as_deref());
    let path = cache.served.identity.path(namespace);
    let by_name = target.name.as_ref().map(|name| format!("metadata.name={name}"));
    let fields: Vec<&str> =
        cache.key.fields.as_deref().into_iter().chain(by_name.as_deref()).collect();
    let mut parameters = ListParams {
        label_selector: cache.key.labels.as_deref().map(str::to_owned),
        field_selector: (!fields.is_empty()).then(|| fields.join(",")),
        limit: Some(PAGE),
        ..ListParams::default()
    };
    let mut states = HashMap::new();
    let mut tokens = ContinueTokens::default();
    loop {
        let mut request = Request::new(path.as_str()).list(&parameters)?;
        if target.name.is_none() {
            request.headers_mut().insert(ACCEPT, METADATA);
        }
        let page: ListPage<Box<RawValue>> =
            timeout(DEADLINE, request_json(client, request)).await??;
        parameters.continue_token = tokens.after(&page)?;
        let version = Arc::from(page.resource_version());
        // A response without a list is no proof that objects are gone.
        for item in page.items.ok_or(ReadError::NoList)? {
            let object = match &target.name {
                Some(_) => Object::cached_by(&cache.key, item.get(), &cache.served),
                None => Object::from_json(item.get(), &cache.served),
            };
            match object {
                Ok(object) => {
                    states.insert(object.key().clone(), stored(&object));
                }
                Err(error) => states.extend(error.key.map(|key| (key, ObjectState::Unreadable))),
            }
        }
        if parameters.continue_token.is_none() {
            return Ok((states, version));
        }
    }
}

fn stored(object: &Object) -> ObjectState {
    let header = object.header();
    let (uid, version) = (Arc::clone(&header.uid), Arc::clone(&header.resource_version));
    ObjectState::Stored { uid, version }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;
    use crate::{
        informer::{InformerKey, fixture::widgets},
        kind::TypeIdentity,
    };

    /// Reads widgets from a server whose every list is this page, for an empty cache.
    async fn read(
        name: Option<&str>,
        page: Value,
    ) -> Result<HashMap<ObjectKey, ObjectState>, ReadError> {
        let service = service_fn(move |_request: http::Request<Body>| {
            let body = Body::from(page.to_string().into_bytes());
            std::future::ready(Ok::<_, std::io::Error>(Response::new(body)))
        });
        let served = Arc::new(widgets());
        let TypeIdentity { group, plural, .. } = served.identity.clone();
        let (namespace, name) = (Some("ns".into()), name.map(Arc::from));
        let target = Target { cluster: None, group, plural, namespace, name };
        let cache = Attached {
            key: InformerKey::new(served.identity.clone()),
            served,
            store: Store::of([]),
            foreign: None,
            moving: None,
            status: None,
            others: Vec::new(),
        };
        let client = Client::new(service, "default");
        let read = missing(&target, &cache, &client);
        timeout(Duration::from_secs(20), read).await.expect("the list has an end")
    }

    #[tokio::test]
    async fn list_whose_server_repeats_its_continue_token_is_an_error() {
        let metadata = json!({ "resourceVersion": "7", "continue": "again" });

        let read = read(None, json!({ "metadata": metadata, "items": [] })).await;

        let error = read.expect_err("the list is no list");
        assert!(error.to_string().contains("same continue token"), "{error}");
    }

    #[tokio::test]
    async fn server_that_ignores_the_name_adds_no_other_object() {
        let widget = |name: &str| {
            json!({"metadata": {
                "namespace": "ns", "name": name, "uid": name, "resourceVersion": "7",
            }})
        };
        let items = [widget("a"), widget("b")];

        let read = read(Some("a"), json!({ "metadata": {}, "items": items })).await.unwrap();

        let keys: Vec<_> = read.keys().map(ToString::to_string).collect();
        assert_eq!(keys, ["ns/a"]);
    }
}
