//! HTTP server of a hook with scripted answers; records its calls.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    response::Response,
    routing::post,
};
use futures::{StreamExt, stream};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::PATIENCE;

/// Response of the hook to a request.
pub(crate) enum Answer {
    Json(Value),
    /// Status 200 with this body.
    Bytes(Vec<u8>),
    /// Sends these bytes, then cuts the connection.
    Cut(&'static [u8]),
    /// Status and headers, with a short body.
    Status(u16, Vec<(&'static str, String)>),
    /// This ETag and value, or status 304 if the request names the tag.
    Tagged(String, Value),
    /// No response until the receiver holds `true`, then this one.
    Hold(watch::Receiver<bool>, Box<Answer>),
}

/// Request to the hook.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) body: Value,
    pub(crate) headers: HeaderMap,
    pub(crate) at: Instant,
}

impl Call {
    pub(crate) fn parent(&self) -> &str {
        let parent = self.body.get("object").unwrap_or(&self.body["parent"]);
        parent["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// ETag in the request's `If-None-Match`.
    pub(crate) fn named(&self) -> Option<&str> {
        self.headers.get(header::IF_NONE_MATCH)?.to_str().ok()
    }
}

type Respond = Arc<dyn Fn(&Value) -> Answer + Send + Sync>;

#[derive(Clone)]
struct Shared {
    respond: Arc<Mutex<Respond>>,
    calls: watch::Sender<Vec<Call>>,
    /// Number of calls whose caller disconnected before the response.
    cancelled: watch::Sender<usize>,
}

/// Counts a call as cancelled if it is dropped before its end.
struct UnderWay {
    answered: bool,
    cancelled: watch::Sender<usize>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.answered {
            self.cancelled.send_modify(|count| *count += 1);
        }
    }
}

/// Hook on a free port of loopback until dropped. Answers with [`one_config_map`] by default.
pub(crate) struct HookServer {
    pub(crate) url: String,
    shared: Shared,
    _serving: JoinSet<std::io::Result<()>>,
}

impl HookServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap());
        let respond: Respond = Arc::new(one_config_map);
        let shared = Shared {
            respond: Arc::new(Mutex::new(respond)),
            calls: watch::Sender::default(),
            cancelled: watch::Sender::default(),
        };
        let router = Router::new().route("/sync", post(answer)).with_state(shared.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async { axum::serve(listener, router).await });
        Self { url, shared, _serving: serving }
    }

    /// Replaces the response for all later calls.
    pub(crate) fn answers(&self, respond: impl Fn(&Value) -> Answer + Send + Sync + 'static) {
        *self.shared.respond.lock().unwrap() = Arc::new(respond);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.borrow().clone()
    }

    /// Number of calls that the caller cancelled, as the server sees it.
    pub(crate) fn cancelled(&self) -> watch::Receiver<usize> {
        self.shared.cancelled.subscribe()
    }

    /// Number of calls for a parent.
    pub(crate) fn count(&self, parent: &str) -> usize {
        self.shared.calls.borrow().iter().filter(|call| call.parent() == parent).count()
    }

    /// Waits for a call that satisfies `wanted` and returns it.
    pub(crate) async fn called(&self, what: &str, wanted: impl Fn(&Call) -> bool) -> Call {
        let mut calls = self.shared.calls.subscribe();
        let found = calls.wait_for(|calls| calls.iter().any(&wanted));
        match timeout(PATIENCE, found).await {
            Ok(calls) => calls.unwrap().iter().find(|call| wanted(call)).unwrap().clone(),
            Err(_) => panic!("the hook was not called in time: {what}: {:#?}", self.calls().last()),
        }
    }

    /// Waits until there are more than `before` calls for a parent.
    pub(crate) async fn called_again(&self, parent: &str, before: usize) {
        let mut calls = self.shared.calls.subscribe();
        let more = |calls: &Vec<Call>| {
            calls.iter().filter(|call| call.parent() == parent).count() > before
        };
        let late = timeout(PATIENCE, calls.wait_for(more)).await.is_err();
        assert!(!late, "the hook was not called again for {parent} in time");
    }
}

async fn answer(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let named = headers.get(header::IF_NONE_MATCH).cloned();
    let call = Call { body: body.clone(), headers, at: Instant::now() };
    shared.calls.send_modify(|calls| calls.push(call));
    let respond = shared.respond.lock().unwrap().clone();
    let mut answer = respond(&body);
    let mut under_way = UnderWay { answered: false, cancelled: shared.cancelled.clone() };
    loop {
        under_way.answered = !matches!(answer, Answer::Hold(..));
        return match answer {
            Answer::Hold(mut free, then) => {
                // The sender is dropped with its test; the call then gets no response.
                if free.wait_for(|free| *free).await.is_err() {
                    std::future::pending::<()>().await;
                }
                answer = *then;
                continue;
            }
            Answer::Json(value) => Response::new(Body::from(value.to_string())),
            Answer::Tagged(tag, value) => {
                let confirmed = named.is_some_and(|named| named == tag);
                let mut response = match confirmed {
                    true => Response::new(Body::empty()),
                    false => Response::new(Body::from(value.to_string())),
                };
                if confirmed {
                    *response.status_mut() = StatusCode::NOT_MODIFIED;
                }
                response.headers_mut().insert(header::ETAG, tag.parse().unwrap());
                response
            }
            Answer::Bytes(bytes) => Response::new(Body::from(bytes)),
            Answer::Cut(bytes) => {
                let cut = stream::once(async { Err(std::io::Error::other("cut")) });
                let begun = stream::once(async move { Ok(Bytes::from_static(bytes)) });
                Response::new(Body::from_stream(begun.chain(cut)))
            }
            Answer::Status(status, headers) => {
                let mut response = Response::new(Body::from("a few words"));
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                for (name, value) in headers {
                    response.headers_mut().insert(name, value.parse().unwrap());
                }
                response
            }
        };
    }
}

/// Answer with one ConfigMap of the parent's name that holds the parent's size.
pub(crate) fn one_config_map(request: &Value) -> Answer {
    Answer::Json(json!({ "status": status_of(request), "children": [config_map(request)] }))
}

/// Status with the parent's size.
pub(crate) fn status_of(request: &Value) -> Value {
    json!({ "size": request["parent"]["spec"]["size"] })
}

/// ConfigMap of the parent's name that holds the parent's size.
pub(crate) fn config_map(request: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": request["parent"]["metadata"]["name"] },
        "data": { "size": request["parent"]["spec"]["size"].to_string() },
    })
}
