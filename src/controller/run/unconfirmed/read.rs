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

use super::{
    state::{Comparison, ObjectState},
    target::Target,
};
use crate::{
    controller::run::input_status::Attached,
    informer::{Object, ObjectKey},
    list_page::{ContinueTokens, EndlessList, ListPage},
    manager::request_json,
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

/// Reads an object.
pub(super) async fn object(
    target: &Target,
    key: &ObjectKey,
    cache: &Attached,
    client: &Client,
) -> Result<ObjectState, ReadError> {
    let (mut states, version) = list(target, cache, client).await?;
    Ok(states.remove(key).unwrap_or(ObjectState::Absent { version }))
}

/// Reads a collection as metadata. Returns the objects that a cache does not hold.
pub(super) async fn missing(
    target: &Target,
    cache: &Attached,
    client: &Client,
) -> Result<Vec<(ObjectKey, ObjectState)>, ReadError> {
    let (mut states, version) = list(target, cache, client).await?;
    let cached = match &target.namespace {
        Some(namespace) => cache.store.all_in(namespace),
        None => cache.store.all(),
    };
    for cached in cached {
        let absent = || ObjectState::Absent { version: Arc::clone(&version) };
        states.entry(cached.key().clone()).or_insert_with(absent);
    }
    let is_missing =
        |(key, state): &(_, ObjectState)| state.compare(key, cache) != Comparison::Held;
    Ok(states.into_iter().filter(is_missing).collect())
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
        limit: target.name.is_none().then_some(PAGE),
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
                    states.insert(object.key().clone(), stored(object, target.name.is_some()));
                }
                Err(error) => states.extend(error.key.map(|key| (key, ObjectState::Unreadable))),
            }
        }
        if parameters.continue_token.is_none() {
            return Ok((states, version));
        }
    }
}

fn stored(object: Object, whole: bool) -> ObjectState {
    let header = object.header();
    let (uid, version) = (Arc::clone(&header.uid), Arc::clone(&header.resource_version));
    let content = whole.then_some(object);
    ObjectState::Stored { uid, version, content }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::{
        informer::{InformerKey, Store, fixture::widgets},
        kind::TypeIdentity,
    };

    #[tokio::test]
    async fn list_whose_server_repeats_its_continue_token_is_an_error() {
        let service = service_fn(|_request: http::Request<Body>| {
            let metadata = json!({ "resourceVersion": "7", "continue": "again" });
            let page = json!({ "metadata": metadata, "items": [] }).to_string();
            std::future::ready(Ok::<_, std::io::Error>(Response::new(Body::from(
                page.into_bytes(),
            ))))
        });
        let served = Arc::new(widgets());
        let TypeIdentity { group, plural, .. } = served.identity.clone();
        let target = Target { cluster: None, group, plural, namespace: None, name: None };
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
        let read = timeout(Duration::from_secs(20), read).await.expect("the list has an end");

        let error = read.expect_err("the list is no list");
        assert!(error.to_string().contains("same continue token"), "{error}");
    }
}
