//! Comparison of the caches with the server, for the targets of unconfirmed writes.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use http::{HeaderValue, header::ACCEPT};
use kube::{
    Client,
    api::ListParams,
    core::{Request, request},
};
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::target::Target;
use crate::{
    controller::{Context, run::input_status::Attached},
    informer::{Object, ObjectKey, Projection},
    kind::{Scope, TypeIdentity, VersionOrder},
    list_page::ListPage,
    manager::{ask, retry_after},
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

/// State of a target on the server.
#[derive(Debug, Default)]
pub(super) struct Live {
    version: String,
    order: VersionOrder,
    // True if listed and cached objects are whole, so that their content can be compared.
    whole: bool,
    objects: HashMap<ObjectKey, Object>,
    // Objects that cannot be decoded, so that no cache has their current state.
    unreadable: HashSet<ObjectKey>,
}

/// Error: the caches could not be shown to include a write.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum Unconfirmed {
    /// Wait for the watch to deliver the change.
    #[error("the cache of {resource} has not caught up with {key}")]
    Behind { resource: TypeIdentity, key: ObjectKey },
    /// Fix what the reason names; the read is retried.
    #[error("{resource} cannot be read from the server: {source}")]
    Unread { resource: TypeIdentity, source: ReadError },
}

/// Error of a read from the server.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum ReadError {
    #[error(transparent)]
    Path(#[from] request::Error),
    #[error("{}", redaction::error(.0))]
    Server(#[from] kube::Error),
    #[error("the response has no items")]
    NoList,
    #[error("there was no answer within {DEADLINE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
}

/// Reads a target from the server, and compares every cache of its type.
///
/// A collection is listed once, as metadata. Returns those of its objects that a cache lacks, each
/// with its state on the server, for the `seen` of a later call. A single object is listed by its
/// name, unless the caches include the state `seen`.
///
/// # Errors
///
/// A cache is behind a single object, or the server cannot be read.
pub(super) async fn caught_up(
    target: &Target,
    seen: Option<&Live>,
    context: &Context,
) -> Result<Vec<(Target, Live)>, Unconfirmed> {
    let mut missed = Vec::new();
    for cache in context.caches(&target.group, &target.plural) {
        let only = cache.key.namespace.as_ref();
        if only.is_some_and(|only| target.namespace.as_ref().is_some_and(|it| it != only)) {
            // The cache holds another namespace only.
            continue;
        }
        if seen.is_some_and(|seen| seen.missed_by(&cached(target, &cache)).is_empty()) {
            continue;
        }
        let resource = &cache.served.identity;
        let live = live(target, &cache, context.client())
            .await
            .map_err(|source| Unconfirmed::Unread { resource: resource.clone(), source })?;
        let keys = live.missed_by(&cached(target, &cache));
        if target.name.is_none() {
            missed.extend(live.split(keys).map(|(key, live)| (target.object(key), live)));
        } else if let Some(key) = keys.into_iter().next() {
            return Err(Unconfirmed::Behind { resource: resource.clone(), key });
        }
    }
    Ok(missed)
}

/// Reads a target from the server by a list: a controller that may watch a type may list it, but
/// perhaps not get it. A list without a resourceVersion is a consistent read.
async fn live(target: &Target, cache: &Attached, client: &Client) -> Result<Live, ReadError> {
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
    let mut live = Live {
        order: cache.served.version_order,
        // A collection is read as metadata.
        whole: target.name.is_some()
            && cache.key.projection == Projection::Full
            && !cache.key.managed_fields,
        ..Live::default()
    };
    loop {
        let mut request = Request::new(path.as_str()).list(&parameters)?;
        if target.name.is_none() {
            request.headers_mut().insert(ACCEPT, METADATA);
        }
        let page: ListPage<Box<RawValue>> = timeout(DEADLINE, ask(client, request)).await??;
        live.version = page.resource_version().to_owned();
        parameters.continue_token = page.continue_token().map(str::to_owned);
        // A response without a list is no proof that objects are gone.
        for item in page.items.ok_or(ReadError::NoList)? {
            match Object::from_json(item.get(), &cache.served) {
                Ok(object) if target.includes(object.key()) => {
                    live.objects.insert(object.key().clone(), object);
                }
                Ok(_) => {}
                Err(error) => live.unreadable.extend(error.key),
            }
        }
        if parameters.continue_token.is_none() {
            return Ok(live);
        }
    }
}

/// Returns the objects of a target in a cache.
fn cached(target: &Target, cache: &Attached) -> Vec<Object> {
    let (store, scope) = (&cache.store, cache.served.identity.scope);
    let mut objects = match (&target.name, &target.namespace) {
        (Some(name), namespace) if namespace.is_some() || scope == Scope::Cluster => {
            let key = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            store.get(&key).into_iter().collect()
        }
        (_, Some(namespace)) => store.in_namespace(namespace),
        (_, None) => store.list(),
    };
    objects.retain(|object| target.includes(object.key()));
    objects
}

impl Unconfirmed {
    /// Returns the wait that the server asked for if it could not be read; zero if it asked for
    /// none.
    pub(super) fn unanswered(&self) -> Option<Duration> {
        match self {
            Self::Behind { .. } => None,
            Self::Unread { source: ReadError::Server(kube::Error::Api(status)), .. } => {
                Some(retry_after(status).unwrap_or_default())
            }
            Self::Unread { .. } => Some(Duration::ZERO),
        }
    }
}

impl Live {
    /// Returns the keys of objects that are newer on the server than in a cache, or deleted there.
    fn missed_by(&self, cached: &[Object]) -> Vec<ObjectKey> {
        let known: HashMap<&ObjectKey, &Object> =
            cached.iter().map(|object| (object.key(), object)).collect();
        let newer = self.objects.values().filter(|live| {
            let cached = known.get(live.key());
            cached.is_none_or(|cached| !self.is_as_new(cached, live))
        });
        let gone = cached.iter().filter(|cached| {
            let key = cached.key();
            !self.objects.contains_key(key)
                && !self.unreadable.contains(key)
                && !self.is_newer(&cached.header().resource_version, &self.version)
        });
        newer.chain(gone).map(|object| object.key().clone()).collect()
    }

    /// Splits the state into one for each of these objects; a deleted object's state is empty.
    fn split(self, keys: Vec<ObjectKey>) -> impl Iterator<Item = (ObjectKey, Self)> {
        let Self { version, order, whole, mut objects, unreadable: _ } = self;
        keys.into_iter().map(move |key| {
            let object = objects.remove_entry(&key);
            let version = version.clone();
            let objects = object.into_iter().collect();
            (key, Self { version, order, whole, objects, ..Self::default() })
        })
    }

    fn is_as_new(&self, cached: &Object, live: &Object) -> bool {
        let (mine, theirs) = (cached.header(), live.header());
        let is_same = if self.whole {
            cached.is_same_version(live)
        } else {
            (&mine.uid, &mine.resource_version) == (&theirs.uid, &theirs.resource_version)
        };
        is_same || self.is_newer(&mine.resource_version, &theirs.resource_version)
    }

    /// Returns whether one version is newer than another; if they cannot be compared, the next
    /// comparison decides.
    fn is_newer(&self, version: &str, than: &str) -> bool {
        self.order.is_older(than, version)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixture::widget;

    fn object(name: &str, uid: &str, version: &str) -> Object {
        widget(json!({"name": name, "uid": uid, "resourceVersion": version}))
    }

    #[track_caller]
    fn check(live: &[Object], cached: &[Object], missed: Option<&str>) {
        let objects = live.iter().map(|it| (it.key().clone(), it.clone())).collect();
        let order = VersionOrder::Comparable;
        let live = Live { version: "10".to_owned(), order, objects, ..Live::default() };

        let keys: Vec<_> = live.missed_by(cached).iter().map(ToString::to_string).collect();

        assert_eq!(keys, Vec::from_iter(missed));
    }

    #[test]
    fn opaque_versions_are_not_compared() {
        let check = |live: &[Object], cached: &[Object], missed: Option<&str>| {
            let objects = live.iter().map(|it| (it.key().clone(), it.clone())).collect();
            let order = VersionOrder::Opaque;
            let (version, whole) = ("10".to_owned(), true);
            let live = Live { version, order, whole, objects, ..Live::default() };
            let keys: Vec<_> = live.missed_by(cached).iter().map(ToString::to_string).collect();
            assert_eq!(keys, Vec::from_iter(missed));
        };
        check(&[object("a", "a", "7")], &[object("a", "a", "7")], None);
        check(&[object("a", "a", "7")], &[object("a", "a", "12")], Some("ns/a"));
        check(&[], &[object("a", "a", "11")], Some("ns/a"));
        let bare = |labels: Value| {
            widget(json!({"name": "a", "uid": "a", "resourceVersion": "", "labels": labels}))
        };
        let (plain, labelled) = (bare(json!({})), bare(json!({"x": "y"})));
        check(std::slice::from_ref(&labelled), std::slice::from_ref(&plain), Some("ns/a"));
        check(std::slice::from_ref(&labelled), std::slice::from_ref(&labelled), None);
    }

    #[test]
    fn cache_has_caught_up_when_it_has_everything_at_least_as_new() {
        check(&[], &[], None);
        check(&[object("a", "a", "7")], &[object("a", "a", "7")], None);
        check(&[object("a", "a", "7")], &[object("a", "a", "12")], None);
        check(&[object("a", "a", "x")], &[object("a", "a", "x")], None);
        // Created after the list.
        check(&[], &[object("a", "a", "11")], None);
        check(&[object("a", "a", "7")], &[object("a", "b", "12")], None);
    }

    #[test]
    fn cache_is_behind_what_it_has_not_seen_come_change_or_go() {
        check(&[object("a", "a", "7")], &[], Some("ns/a"));
        check(&[object("a", "a", "7")], &[object("a", "a", "6")], Some("ns/a"));
        check(&[object("a", "b", "7")], &[object("a", "a", "6")], Some("ns/a"));
        check(&[object("a", "a", "y")], &[object("a", "a", "x")], Some("ns/a"));
        check(&[], &[object("a", "a", "6")], Some("ns/a"));
    }

    #[test]
    fn object_that_no_cache_can_read_is_not_waited_for() {
        let key = ObjectKey::namespaced("ns", "a");
        let live = Live { version: "10".to_owned(), unreadable: [key].into(), ..Live::default() };

        assert_eq!(live.missed_by(&[object("a", "a", "6")]), []);
    }
}
