//! Scripted API server for discovery tests: CRDs, APIServices, `/api` and `/apis`.
//!
//! Unlike the simulated server, its parts may contradict each other: a test sets each discovery
//! document freely, and may delete an object without a watch event.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// The server; clones share their state.
#[derive(Clone, Default)]
pub(super) struct Server(Arc<Mutex<ServerState>>);

#[derive(Default)]
struct ServerState {
    version: u64,
    objects: HashMap<&'static str, BTreeMap<String, Value>>,
    watches: HashMap<&'static str, Vec<mpsc::UnboundedSender<Bytes>>>,
    documents: HashMap<String, Value>,
    /// Faults: status and delay. Keys such as `watch PATH` and `list PATH` are distinct.
    faults: HashMap<String, (u16, Duration)>,
    /// True if each page of a list has the same continue token.
    is_endless: bool,
    requests: Vec<(Instant, String)>,
}

type ScriptedResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl Server {
    /// A server with the built-in group `apps`.
    pub(super) fn new() -> Self {
        let server = Self::default();
        server.set_service("", "v1", json!({}), true);
        server.set_service("apps", "v1", json!({}), true);
        server.discover("/api", json!([]));
        server.discover("/apis", json!([apps()]));
        server
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.0.lock().unwrap()
    }

    /// Creates or updates a CRD.
    pub(super) fn apply_crd(&self, name: &str, crd: Value) {
        self.apply(CRDS, name, crd);
    }

    pub(super) fn delete_crd(&self, name: &str) {
        self.delete(CRDS, name);
    }

    /// Creates or updates an APIService; `extra` is merged into it.
    pub(super) fn set_service(&self, group: &str, version: &str, extra: Value, built_in: bool) {
        let name = format!("{version}.{group}");
        let label = if built_in { "onstart" } else { "true" };
        let mut object = json!({
            "metadata": { "name": name, "uid": format!("uid-of-{name}"),
                "labels": { "kube-aggregator.kubernetes.io/automanaged": label } },
            "spec": { "group": group, "version": version },
        });
        merge(&mut object, extra);
        self.apply(SERVICES, &name, object);
    }

    pub(super) fn delete_service(&self, group: &str, version: &str) {
        self.delete(SERVICES, &format!("{version}.{group}"));
    }

    /// Sets the response of aggregated discovery at `path`.
    pub(super) fn discover(&self, path: &str, items: Value) {
        let items = if path == "/api" {
            json!([{ "metadata": { "name": "" }, "versions": [
                version("v1", "Current", &[("pods", "Pod")])] }])
        } else {
            items
        };
        self.set_document(path, json!({ "kind": "APIGroupDiscoveryList", "items": items }));
    }

    /// Sets the response at `path` to any document.
    pub(super) fn set_document(&self, path: &str, document: Value) {
        self.state().documents.insert(path.into(), document);
    }

    /// Answers `request` (`get PATH`, `list PATH`, `watch PATH`) with a status, after a delay.
    pub(super) fn fail(&self, request: &str, code: u16, delay: Duration) {
        self.state().faults.insert(request.into(), (code, delay));
    }

    pub(super) fn heal(&self, request: &str) {
        self.state().faults.remove(request);
    }

    /// Sends the same continue token with each page of a list, or no token.
    pub(super) fn repeat_token(&self, is_endless: bool) {
        self.state().is_endless = is_endless;
    }

    /// Returns to an older version with other objects, like a restore from backup. All watches end.
    pub(super) fn restore(&self, change: impl FnOnce(&Self)) {
        self.state().watches.clear();
        change(self);
        self.state().version = 1;
    }

    /// Ends all watches of a collection, like a lost connection.
    pub(super) fn cut(&self, path: &'static str) {
        self.state().watches.remove(path);
    }

    /// Changes objects without sending watch events.
    pub(super) fn silently(&self, path: &'static str, change: impl FnOnce(&Self)) {
        let watches = self.state().watches.remove(path);
        change(self);
        if let Some(watches) = watches {
            self.state().watches.insert(path, watches);
        }
    }

    /// Returns when each request that begins with `prefix` was made.
    pub(super) fn requests(&self, prefix: &str) -> Vec<Instant> {
        let state = self.state();
        let matching = state.requests.iter().filter(|(_, name)| name.starts_with(prefix));
        matching.map(|(when, _)| *when).collect()
    }

    /// Returns the number of discovery requests.
    pub(super) fn discovery_requests(&self) -> usize {
        self.requests("get /apis").len()
    }

    /// Returns the number of open watches.
    pub(super) fn open_watches(&self) -> usize {
        let state = self.state();
        state.watches.values().flatten().filter(|watch| !watch.is_closed()).count()
    }

    fn apply(&self, path: &'static str, name: &str, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let objects = state.objects.entry(path).or_default();
        let is_new = objects.insert(name.into(), object.clone()).is_none();
        state.send(path, if is_new { "ADDED" } else { "MODIFIED" }, object);
    }

    fn delete(&self, path: &'static str, name: &str) {
        let mut state = self.state();
        state.version += 1;
        let mut object = state.objects.get_mut(path).unwrap().remove(name).unwrap();
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.send(path, "DELETED", object);
    }

    async fn answer(&self, request: Request<Body>) -> ScriptedResponse {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        let collection = [CRDS, SERVICES].into_iter().find(|own| *own == path);
        let verb = match collection {
            Some(_) if is_watch => "watch",
            Some(_) => "list",
            None => "get",
        };
        let name = format!("{verb} {path}");
        let fault = {
            let mut state = self.state();
            state.requests.push((Instant::now(), name.clone()));
            state.faults.get(&name).copied()
        };
        if let Some((code, delay)) = fault {
            tokio::time::sleep(delay).await;
            return status(code);
        }
        let mut state = self.state();
        match collection {
            Some(collection) if is_watch => {
                let (sender, receiver) = mpsc::unbounded_channel::<Bytes>();
                state.watches.entry(collection).or_default().push(sender);
                let frames = stream::unfold(receiver, |mut receiver| async {
                    let line = receiver.recv().await?;
                    Some((Ok(Frame::data(line)), receiver))
                });
                Response::new(StreamBody::new(frames).boxed_unsync())
            }
            Some(collection) => {
                let items: Vec<&Value> =
                    state.objects.get(collection).into_iter().flat_map(BTreeMap::values).collect();
                let version = state.version.to_string();
                let token = if state.is_endless { "again" } else { "" };
                let metadata = json!({ "resourceVersion": version, "continue": token });
                json_body(&json!({ "metadata": metadata, "items": items }))
            }
            None => match state.documents.get(&path) {
                Some(document) => json_body(document),
                None => status(404),
            },
        }
    }
}

impl ServerState {
    fn send(&mut self, path: &'static str, event: &str, object: Value) {
        let line = format!("{}\n", json!({ "type": event, "object": object }));
        self.watches
            .entry(path)
            .or_default()
            .retain(|watch| watch.send(line.clone().into()).is_ok());
    }
}

/// A version in aggregated discovery.
pub(super) fn version(name: &str, freshness: &str, resources: &[(&str, &str)]) -> Value {
    let resources: Vec<Value> = resources
        .iter()
        .map(|(plural, kind)| {
            json!({ "resource": plural, "scope": "Namespaced", "responseKind": { "kind": kind },
                "verbs": ["get", "list", "watch"] })
        })
        .collect();
    json!({ "version": name, "freshness": freshness, "resources": resources })
}

/// The built-in group of the script.
pub(super) fn apps() -> Value {
    group("apps", "Current", &[("deployments", "Deployment")])
}

/// A group of aggregated discovery with the version `v1`.
pub(super) fn group(name: &str, freshness: &str, resources: &[(&str, &str)]) -> Value {
    json!({ "metadata": { "name": name }, "versions": [version("v1", freshness, resources)] })
}

/// An established CRD of `example.com`.
pub(super) fn crd(plural: &str, kind: &str, uid: &str) -> Value {
    json!({
        "metadata": { "name": format!("{plural}.example.com"), "uid": uid },
        "spec": { "group": "example.com", "scope": "Namespaced",
            "names": { "plural": plural, "kind": kind, "listKind": format!("{kind}List") },
            "versions": [{ "name": "v1", "served": true, "storage": true }] },
        "status": { "acceptedNames": { "plural": plural, "kind": kind },
            "conditions": [{ "type": "NamesAccepted", "status": "True" },
                { "type": "Established", "status": "True" }] },
    })
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn json_body(value: &Value) -> ScriptedResponse {
    Response::new(Full::from(value.to_string()).boxed_unsync())
}

fn status(code: u16) -> ScriptedResponse {
    let body = json!({ "kind": "Status", "status": "Failure", "code": code,
        "message": format!("scripted {code}"), "reason": "Scripted" });
    let mut response = json_body(&body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}
