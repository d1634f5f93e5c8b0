//! A scripted API server for the supervisor's tests: cluster-scoped types that come and go, their
//! objects, and watches. Whatever else it is asked is not found.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The server; a clone is the same one.
#[derive(Clone, Default)]
pub(super) struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    collections: BTreeMap<String, Collection>,
    // Statuses that were offered; none is kept.
    offered: usize,
}

#[derive(Default)]
struct Collection {
    objects: BTreeMap<String, Value>,
    // All events, for watches that begin later than their list.
    told: Vec<(u64, Bytes)>,
    watches: Vec<mpsc::UnboundedSender<Bytes>>,
}

impl Server {
    pub(super) fn new() -> Self {
        let server = Self::default();
        for path in [CRDS, SERVICES] {
            server.state().collections.entry(path.to_owned()).or_default();
        }
        server
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |request: Request<Body>| {
            std::future::ready(Ok::<_, Infallible>(server.answer(&request)))
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// Begins to serve the type of this collection, under a CRD of that uid.
    pub(super) fn install(&self, collection: &str, kind: &str, uid: &str) {
        let [group, version, plural] = parts(collection);
        let names = json!({"plural": plural, "kind": kind, "listKind": format!("{kind}List")});
        let crd = json!({
            "metadata": {"name": format!("{plural}.{group}"), "uid": uid},
            "spec": {
                "group": group, "scope": "Cluster", "names": names,
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "subresources": {"status": {}},
                }],
            },
            "status": {
                "acceptedNames": names,
                "conditions": [
                    {"type": "NamesAccepted", "status": "True"},
                    {"type": "Established", "status": "True"},
                ],
            },
        });
        self.state().collections.entry(collection.to_owned()).or_default();
        self.apply(CRDS, crd);
    }

    /// Deletes the objects of this collection, and then their CRD.
    pub(super) fn uninstall(&self, collection: &str) {
        let names: Vec<_> = self.state().collections[collection].objects.keys().cloned().collect();
        for name in names {
            self.delete(collection, &name);
        }
        self.state().collections.remove(collection);
        let [group, _, plural] = parts(collection);
        self.delete(CRDS, &format!("{plural}.{group}"));
    }

    /// Creates or changes an object.
    pub(super) fn apply(&self, collection: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut state = self.state();
        let known = state.collections[collection].objects.contains_key(&name);
        state.tell(collection, if known { "MODIFIED" } else { "ADDED" }, &name, object);
    }

    /// How many times a status was to be written.
    pub(super) fn statuses_offered(&self) -> usize {
        self.state().offered
    }

    fn delete(&self, collection: &str, name: &str) {
        let mut state = self.state();
        let object = state.collections[collection].objects[name].clone();
        state.tell(collection, "DELETED", name, object);
    }

    fn answer(&self, request: &Request<Body>) -> Answer {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let mut state = self.state();
        state.offered += usize::from(path.ends_with("/status"));
        let version = state.version.to_string();
        let metadata = json!({"resourceVersion": version});
        let collection = state.collections.get_mut(path);
        match collection.filter(|_| *request.method() == Method::GET) {
            Some(collection) if query.contains("watch=true") => collection.watch(query, &version),
            Some(collection) => {
                let items: Vec<_> = collection.objects.values().collect();
                body(StatusCode::OK, &json!({"metadata": metadata, "items": items}))
            }
            None if matches!(path, "/api" | "/apis") => {
                body(StatusCode::OK, &json!({"kind": "APIGroupDiscoveryList", "items": []}))
            }
            None => {
                let status = json!({
                    "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                    "message": "there is nothing", "details": { "name": path },
                });
                body(StatusCode::NOT_FOUND, &status)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn tell(&mut self, collection: &str, event: &str, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let line = line(event, &object);
        let collection = self.collections.get_mut(collection).unwrap();
        collection.told.push((self.version, line.clone()));
        collection.watches.retain(|watch| watch.send(line.clone()).is_ok());
        if event == "DELETED" {
            collection.objects.remove(name);
        } else {
            collection.objects.insert(name.to_owned(), object);
        }
    }
}

impl Collection {
    fn watch(&mut self, query: &str, version: &str) -> Answer {
        let (lines, receiver) = mpsc::unbounded_channel();
        if query.contains("sendInitialEvents=true") {
            for object in self.objects.values() {
                lines.send(line("ADDED", object)).unwrap();
            }
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let metadata = json!({"resourceVersion": version, "annotations": annotations});
            lines.send(line("BOOKMARK", &json!({"metadata": metadata}))).unwrap();
        } else {
            let since = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
            let since: u64 = since.unwrap().parse().unwrap();
            for (_, line) in self.told.iter().filter(|(version, _)| *version > since) {
                lines.send(line.clone()).unwrap();
            }
        }
        self.watches.push(lines);
        let frames = stream::unfold(receiver, async |mut receiver| {
            let line = receiver.recv().await?;
            Some((Ok(Frame::data(line)), receiver))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// Group, version and plural of `/apis/GROUP/VERSION/PLURAL`.
fn parts(collection: &str) -> [&str; 3] {
    let parts: Vec<_> = collection.split('/').skip(2).collect();
    parts.try_into().unwrap()
}

fn line(event: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": event, "object": object})).into()
}

fn body(code: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(Full::from(value.to_string()).boxed_unsync());
    *answer.status_mut() = code;
    answer
}
