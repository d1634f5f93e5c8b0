//! A small scripted API server for the tests of this room: CRDs and objects of their types.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future::pending,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// The server; a clone is the same one.
#[derive(Clone, Default)]
pub(super) struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    // Objects by collection and `namespace/name`; a collection that is not there is a 404.
    collections: BTreeMap<String, BTreeMap<String, Value>>,
    // Collections of versions that are not served now; their objects exist all the same.
    hidden: BTreeMap<String, BTreeMap<String, Value>>,
    // What every watch has been told, for those that come later.
    events: Vec<(u64, String, Bytes)>,
    watches: Vec<Watch>,
    forbidden: BTreeSet<String>,
    requests: Vec<String>,
    // Collections whose watches are told nothing, and what they would have been told.
    withheld: BTreeMap<String, Vec<Bytes>>,
    // Of the next creations, one each.
    mishaps: Vec<Mishap>,
    creations: usize,
}

/// What becomes of the answer to a creation that is carried out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mishap {
    /// It never comes.
    Hangs,
    /// The connection is lost before it.
    Lost,
    /// The connection is lost within it.
    CutOff,
    /// A gateway answers in the server's place.
    GatewayTimeout,
    /// The server says that it failed.
    Failed,
}

struct Watch {
    path: String,
    lines: mpsc::UnboundedSender<Bytes>,
}

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

impl Server {
    pub(super) fn new() -> Self {
        let server = Self::default();
        for path in [CRDS, SERVICES] {
            server.state().collections.insert(path.to_owned(), BTreeMap::new());
        }
        server
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                if *request.method() == Method::POST {
                    return match server.create(request) {
                        Some(answer) => answer,
                        None => pending().await,
                    };
                }
                Ok(server.answer(&request))
            }
        });
        Client::new(service, "default")
    }

    /// Installs the CRD of a type of `example.com`, served at these versions.
    pub(super) fn install(
        &self,
        plural: &str,
        kind: &str,
        scope: &str,
        uid: &str,
        served: &[&str],
    ) {
        for version in ["v1", "v2"] {
            let path = format!("/apis/example.com/{version}/{plural}");
            let mut state = self.state();
            // One storage behind all versions would be more than these tests look at.
            if served.contains(&version) {
                let objects = state.hidden.remove(&path).unwrap_or_default();
                state.collections.entry(path).or_insert(objects);
            } else {
                state.close(&path);
            }
        }
        let versions: Vec<_> = ["v1", "v2"]
            .iter()
            .map(|it| json!({"name": it, "served": served.contains(it), "storage": *it == "v1"}))
            .collect();
        self.establish("example.com", plural, kind, scope, uid, json!(versions));
    }

    fn establish(
        &self,
        group: &str,
        plural: &str,
        kind: &str,
        scope: &str,
        uid: &str,
        versions: Value,
    ) {
        let names = json!({"plural": plural, "kind": kind, "listKind": format!("{kind}List")});
        let crd = json!({
            "metadata": {"name": format!("{plural}.{group}"), "uid": uid},
            "spec": {"group": group, "scope": scope, "names": names, "versions": versions},
            "status": {
                "acceptedNames": names,
                "conditions": [
                    {"type": "NamesAccepted", "status": "True"},
                    {"type": "Established", "status": "True"},
                ],
            },
        });
        self.apply(CRDS, crd);
    }

    fn delete_all(&self, path: &str) {
        let objects: Vec<_> = self.state().collections[path].keys().cloned().collect();
        for object in objects {
            self.delete(path, &object);
        }
    }

    /// Deletes a CRD and everything of its type.
    pub(super) fn uninstall(&self, plural: &str) {
        let path = format!("/apis/example.com/v1/{plural}");
        self.delete_all(&path);
        let mut state = self.state();
        state.close(&path);
        state.hidden.retain(|hidden, _| !hidden.ends_with(plural));
        drop(state);
        self.delete(CRDS, &format!("/{plural}.example.com"));
    }

    /// Creates or changes an object.
    pub(super) fn apply(&self, path: &str, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let key = format!("{namespace}/{name}");
        let objects = state.collections.get_mut(path).unwrap();
        let event = if objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        objects.insert(key, object.clone());
        state.tell(path, event, &object);
    }

    pub(super) fn delete(&self, path: &str, key: &str) {
        let mut state = self.state();
        state.version += 1;
        let mut object = state.collections.get_mut(path).unwrap().remove(key).unwrap();
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.tell(path, "DELETED", &object);
    }

    /// The answers to the next creations, the first one's first.
    pub(super) fn mishaps(&self, mishaps: &[Mishap]) {
        self.state().mishaps = mishaps.iter().rev().copied().collect();
    }

    /// How many creations were asked for.
    pub(super) fn creations(&self) -> usize {
        self.state().creations
    }

    /// Tells the watches of a collection nothing until it is released.
    pub(super) fn withhold(&self, path: &str) {
        self.state().withheld.insert(path.to_owned(), Vec::new());
    }

    pub(super) fn release(&self, path: &str) {
        let mut state = self.state();
        for line in state.withheld.remove(path).unwrap() {
            state.watches.retain(|it| it.path != path || it.lines.send(line.clone()).is_ok());
        }
    }

    pub(super) fn forbid(&self, path: &str) {
        self.state().forbidden.insert(path.to_owned());
    }

    pub(super) fn allow(&self, path: &str) {
        self.state().forbidden.remove(path);
    }

    pub(super) fn serves(&self, path: &str) -> bool {
        self.state().collections.contains_key(path)
    }

    pub(super) fn count(&self, path: &str) -> usize {
        self.state().collections[path].len()
    }

    /// Open watches of a collection.
    pub(super) fn watches(&self, path: &str) -> usize {
        let state = self.state();
        state.watches.iter().filter(|it| it.path == path && !it.lines.is_closed()).count()
    }

    /// How often this was asked, so far.
    pub(super) fn asked(&self, path: &str) -> usize {
        self.state().requests.iter().filter(|request| *request == path).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Creates an object; `None` when that is never answered.
    fn create(&self, request: Request<Body>) -> Option<Result<Answer, io::Error>> {
        let (path, namespace) = collection(request.uri().path());
        let body = request.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        let mut object: Value = serde_json::from_slice(&body).unwrap();
        let mut state = self.state();
        state.creations += 1;
        let (number, mishap) = (state.creations, state.mishaps.pop());
        let metadata = &mut object["metadata"];
        if let Some(prefix) = metadata["generateName"].as_str() {
            metadata["name"] = json!(format!("{prefix}{number}"));
        }
        metadata["namespace"] = json!(namespace);
        metadata["uid"] = json!(format!("uid-{number}"));
        let key = format!("{}/{}", namespace.unwrap(), metadata["name"].as_str().unwrap());
        let Some(objects) = state.collections.get(&path) else {
            return Some(Ok(status(StatusCode::NOT_FOUND, "NotFound", "404 page not found")));
        };
        if objects.contains_key(&key) {
            return Some(Ok(status(StatusCode::CONFLICT, "AlreadyExists", "it exists already")));
        }
        drop(state);
        self.apply(&path, object.clone());
        Some(match mishap {
            None => Ok(self::body(&object)),
            Some(Mishap::Hangs) => return None,
            Some(Mishap::Lost) => Err(io::ErrorKind::ConnectionReset.into()),
            Some(Mishap::CutOff) => {
                let frames =
                    [Ok(Frame::data("{".into())), Err(io::ErrorKind::UnexpectedEof.into())];
                Ok(Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync()))
            }
            Some(Mishap::GatewayTimeout) => {
                Ok(status(StatusCode::GATEWAY_TIMEOUT, "Timeout", "the server did not answer"))
            }
            Some(Mishap::Failed) => {
                Ok(status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "it failed"))
            }
        })
    }

    fn answer(&self, request: &Request<Body>) -> Answer {
        let (path, namespace) = collection(request.uri().path());
        let query = request.uri().query().unwrap_or_default();
        let mut state = self.state();
        state.requests.push(path.clone());
        if state.forbidden.contains(&path) {
            return status(StatusCode::FORBIDDEN, "Forbidden", "no rule lets you");
        }
        if path == "/api" || path == "/apis" {
            let group = if path == "/api" { "" } else { "apps" };
            let versions = json!([{"version": "v1", "freshness": "Current"}]);
            let items = json!([{"metadata": {"name": group}, "versions": versions}]);
            return body(&json!({"kind": "APIGroupDiscoveryList", "items": items}));
        }
        let version = state.version.to_string();
        let Some(objects) = state.collections.get(&path) else {
            return status(StatusCode::NOT_FOUND, "NotFound", "404 page not found");
        };
        let inside = |object: &&Value| {
            namespace.as_ref().is_none_or(|it| object["metadata"]["namespace"] == **it)
        };
        let objects: Vec<_> = objects.values().filter(inside).cloned().collect();
        if !query.contains("watch=true") {
            let metadata = json!({"resourceVersion": version});
            return body(&json!({"kind": "List", "metadata": metadata, "items": objects}));
        }
        let (lines, receiver) = mpsc::unbounded_channel::<Bytes>();
        if query.contains("sendInitialEvents=true") {
            for object in &objects {
                lines.send(line("ADDED", object)).unwrap();
            }
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let metadata = json!({"resourceVersion": version, "annotations": annotations});
            lines.send(line("BOOKMARK", &json!({"metadata": metadata}))).unwrap();
        }
        let number = |name: &str| -> Option<u64> {
            let value = |pair: &str| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
            query.split('&').find_map(value)
        };
        let end = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(300));
        if let Some(since) = number("resourceVersion") {
            let tells = !state.withheld.contains_key(&path);
            let missed = state.events.iter();
            let missed = missed.filter(|(at, its, _)| tells && *at > since && *its == path);
            for (_, _, line) in missed {
                lines.send(line.clone()).unwrap();
            }
        }
        state.watches.push(Watch { path, lines });
        let frames = stream::unfold(receiver, move |mut receiver| async move {
            let line = timeout_at(end, receiver.recv()).await.ok()??;
            Some((Ok(Frame::data(line)), receiver))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

impl State {
    fn tell(&mut self, path: &str, event: &str, object: &Value) {
        let line = line(event, object);
        self.events.push((self.version, path.to_owned(), line.clone()));
        if let Some(withheld) = self.withheld.get_mut(path) {
            withheld.push(line);
            return;
        }
        self.watches.retain(|it| it.path != path || it.lines.send(line.clone()).is_ok());
    }

    /// Serves a collection no more.
    fn close(&mut self, path: &str) {
        if let Some(objects) = self.collections.remove(path) {
            self.hidden.insert(path.to_owned(), objects);
        }
        self.watches.retain(|it| it.path != path);
    }
}

/// The collection of all namespaces that a path is about, and the one namespace.
fn collection(path: &str) -> (String, Option<String>) {
    match path
        .split_once("/namespaces/")
        .and_then(|(head, tail)| Some((head, tail.split_once('/')?)))
    {
        Some((head, (namespace, plural))) => {
            (format!("{head}/{plural}"), Some(namespace.to_owned()))
        }
        None => (path.to_owned(), None),
    }
}

fn line(event: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": event, "object": object})).into()
}

fn body(value: &Value) -> Answer {
    let body = Full::from(value.to_string()).map_err(|never: Infallible| match never {});
    Response::new(body.boxed_unsync())
}

fn status(code: StatusCode, reason: &str, message: &str) -> Answer {
    let mut answer = body(&json!({
        "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": message,
    }));
    *answer.status_mut() = code;
    answer
}
