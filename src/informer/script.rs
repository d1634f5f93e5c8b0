//! Scripted client: the test receives every request and answers it by hand.
//!
//! Unlike the simulated server, which always answers, the test decides when the next byte arrives,
//! and it fails on any unexpected request.

use std::{collections::HashMap, convert::Infallible, io, pin::Pin};

use bytes::Bytes;
use futures::Stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tower::service_fn;

use super::{
    InformerKey, InformerOptions, InformerProgress, InformerSet, Interest, Interests, Object,
    Subscription,
    fixture::{Fixture, widgets},
};
use crate::kind::{ServedType, VersionOrder};

type Chunk = io::Result<Frame<Bytes>>;
type Chunks = StreamBody<Pin<Box<dyn Stream<Item = Chunk> + Send>>>;

/// Server side of the scripted client.
pub(super) struct Script {
    requests: mpsc::UnboundedReceiver<ReceivedRequest>,
}

/// A request without a response yet.
pub(super) struct ReceivedRequest {
    pub(super) path: String,
    pub(super) query: HashMap<String, String>,
    pub(super) accept: String,
    answer: oneshot::Sender<Response<Chunks>>,
}

/// An open response body; closed when dropped.
#[derive(Debug)]
pub(super) struct OpenBody {
    chunks: mpsc::UnboundedSender<Chunk>,
}

/// Creates a client and its server side.
pub(super) fn script() -> (Client, Script) {
    let (sender, requests) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<Body>| {
        let (answer, answered) = oneshot::channel();
        let query = request.uri().query().unwrap_or_default();
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let accept = request.headers().get("accept").map(|value| value.to_str().unwrap());
        let request = ReceivedRequest {
            path: request.uri().path().to_owned(),
            query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            accept: accept.unwrap_or_default().to_owned(),
            answer,
        };
        let sent = sender.send(request);
        async move {
            sent.map_err(|_gone| io::Error::other("the server is gone"))?;
            answered.await.map_err(|_dropped| io::Error::other("connection reset"))
        }
    });
    (Client::new(service, "default"), Script { requests })
}

/// Creates a body that arrives in these chunks.
pub(super) async fn body(chunks: &[&[u8]]) -> Body {
    let frames: Vec<Chunk> =
        chunks.iter().map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk)))).collect();
    let mut frames = Some(frames);
    let service = service_fn(move |_request: Request<Body>| {
        let frames = futures::stream::iter(frames.take().unwrap());
        async move { Ok::<_, Infallible>(Response::new(StreamBody::new(frames))) }
    });
    let request = Request::get("/").body(Body::empty()).unwrap();
    Client::new(service, "default").send(request).await.unwrap().into_body()
}

impl Script {
    /// Waits for the next request.
    pub(super) async fn next(&mut self) -> ReceivedRequest {
        soon(self.requests.recv()).await.expect("the client is alive")
    }

    /// Returns a request that has already arrived.
    pub(super) fn try_next(&mut self) -> Option<ReceivedRequest> {
        self.requests.try_recv().ok()
    }

    /// Waits for the next request, which must be a list.
    #[track_caller]
    pub(super) fn list(&mut self) -> impl Future<Output = ReceivedRequest> + '_ {
        let caller = std::panic::Location::caller();
        async move {
            let request = self.next().await;
            assert!(!request.is_watch(), "{caller}: {:?} is no list", request.query);
            request
        }
    }

    /// Waits for the next request, which must be a watch from this position.
    #[track_caller]
    pub(super) fn watch(&mut self, version: u64) -> impl Future<Output = ReceivedRequest> + '_ {
        let caller = std::panic::Location::caller();
        async move {
            let request = self.next().await;
            assert!(request.is_watch(), "{caller}: {:?} is no watch", request.query);
            let position = request.query.get("resourceVersion").cloned();
            assert_eq!(position, Some(version.to_string()), "{caller}");
            request
        }
    }

    /// Waits for the next request, which must be a streaming list.
    #[track_caller]
    pub(super) fn stream(&mut self) -> impl Future<Output = ReceivedRequest> + '_ {
        let caller = std::panic::Location::caller();
        async move {
            let request = self.next().await;
            assert!(request.is_stream(), "{caller}: {:?} is no streaming list", request.query);
            request
        }
    }

    /// Asserts that no request has arrived.
    #[track_caller]
    pub(super) fn assert_quiet(&mut self) {
        if let Ok(request) = self.requests.try_recv() {
            panic!("unexpected request of {} {:?}", request.path, request.query);
        }
    }
}

impl ReceivedRequest {
    pub(super) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    pub(super) fn is_stream(&self) -> bool {
        self.query.get("sendInitialEvents").is_some_and(|value| value == "true")
    }

    /// Answers with a list page; an empty token ends the list.
    pub(super) fn page(self, version: u64, token: &str, items: &[Value]) {
        let list = json!({
            "apiVersion": "example.com/v1",
            "kind": "WidgetList",
            "metadata": {"resourceVersion": version.to_string(), "continue": token},
            "items": items,
        });
        self.text(StatusCode::OK, &list.to_string());
    }

    /// Answers with a `Status`, like the API server.
    pub(super) fn refuse(self, code: u16, reason: &str, message: &str) {
        let status = status(code, reason, message).to_string();
        self.text(StatusCode::from_u16(code).unwrap(), &status);
    }

    pub(super) fn text(self, code: StatusCode, text: &str) {
        self.head(code, None).text(text);
    }

    /// Answers with the head of a response; the body stays open.
    pub(super) fn open(self) -> OpenBody {
        self.head(StatusCode::OK, None)
    }

    pub(super) fn head(self, code: StatusCode, retry_after: Option<u64>) -> OpenBody {
        let (chunks, receiver) = mpsc::unbounded_channel();
        let stream = futures::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        let stream: Pin<Box<dyn Stream<Item = Chunk> + Send>> = Box::pin(stream);
        self.respond(code, retry_after, stream);
        OpenBody { chunks }
    }

    /// Answers with a body whose reader panics.
    pub(super) fn explode(self) {
        let stream = futures::stream::poll_fn(|_context| -> std::task::Poll<Option<Chunk>> {
            panic!("a defect of ours")
        });
        self.respond(StatusCode::OK, None, Box::pin(stream));
    }

    fn respond(
        self,
        code: StatusCode,
        retry_after: Option<u64>,
        stream: Pin<Box<dyn Stream<Item = Chunk> + Send>>,
    ) {
        let mut response = Response::builder().status(code);
        if let Some(seconds) = retry_after {
            response = response.header("retry-after", seconds);
        }
        // The client may have dropped the request.
        drop(self.answer.send(response.body(StreamBody::new(stream)).unwrap()));
    }

    /// Waits until the client has dropped the request.
    pub(super) async fn abandoned(mut self) {
        soon(self.answer.closed()).await;
    }
}

impl OpenBody {
    pub(super) fn event(&self, kind: &str, object: &Value) {
        // In the order of the API server.
        self.text(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"));
    }

    pub(super) fn bookmark(&self, version: u64) {
        self.event("BOOKMARK", &json!({"metadata": {"resourceVersion": version.to_string()}}));
    }

    /// Sends the bookmark that ends a streaming list.
    pub(super) fn end_of_list(&self, version: u64) {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
        self.event("BOOKMARK", &json!({"metadata": metadata}));
    }

    pub(super) fn error(&self, code: u16, reason: &str, message: &str) {
        self.event("ERROR", &status(code, reason, message));
    }

    pub(super) fn text(&self, text: &str) {
        self.chunk(text.as_bytes());
    }

    pub(super) fn chunk(&self, chunk: &[u8]) {
        // The client may have dropped the body.
        drop(self.chunks.send(Ok(Frame::data(Bytes::copy_from_slice(chunk)))));
    }

    /// Resets the connection.
    pub(super) fn reset(self) {
        drop(self.chunks.send(Err(io::Error::from(io::ErrorKind::ConnectionReset))));
    }

    /// Returns whether the client has dropped the body.
    pub(super) fn is_dropped(&self) -> bool {
        self.chunks.is_closed()
    }

    /// Waits until the client has dropped the body.
    pub(super) async fn dropped(&self) {
        soon(self.chunks.closed()).await;
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

/// An informer set whose server is the test, and one key of it.
pub(super) struct Harness {
    pub(super) set: InformerSet,
    pub(super) script: Script,
    pub(super) key: InformerKey,
    served: ServedType,
}

impl Harness {
    pub(super) fn new() -> Self {
        Self::with(InformerOptions::default())
    }

    pub(super) fn with(options: InformerOptions) -> Self {
        let (client, script) = script();
        let set = InformerSet::new(client, options);
        Self { set, script, key: InformerKey::new(widgets().identity), served: widgets() }
    }

    /// A harness for a type with opaque versions.
    pub(super) fn opaque() -> Self {
        let mut harness = Self::new();
        harness.served.version_order = VersionOrder::Opaque;
        harness
    }

    /// A harness for a type that can be listed and not watched.
    pub(super) fn polled(options: InformerOptions) -> Self {
        let mut harness = Self::with(options);
        harness.served.version_order = VersionOrder::Opaque;
        harness.served.polled = true;
        harness
    }

    pub(super) fn subscribe_to(&self, deliver: Vec<Interest>) -> Subscription {
        let interests = Interests { deliver, whole: Vec::new() };
        self.set.subscribe_to(&self.served, self.key.clone(), interests)
    }

    pub(super) fn subscribe(&self) -> Subscription {
        self.set.subscribe(&self.served, self.key.clone())
    }

    /// Returns a synced subscriber of these objects, and its watch from position 10.
    pub(super) async fn synced(&mut self, items: &[Value]) -> (Subscription, OpenBody) {
        let mut subscription = self.subscribe();
        self.script.list().await.page(10, "", items);
        let watch = self.script.watch(10).await.open();
        for _ in items {
            subscription.next().await.unwrap();
        }
        subscription.drained().await;
        (subscription, watch)
    }
}

/// Returns name, old and new resourceVersion of the next change.
pub(super) async fn change(subscription: &mut Subscription) -> (String, u64, u64) {
    let delta = soon(subscription.next()).await.unwrap();
    let version = |object: Option<Object>| {
        object.map_or(0, |object| object.header().resource_version.parse().unwrap())
    };
    (delta.key.to_string(), version(delta.old), version(delta.new))
}

/// Returns name and resourceVersion of every object in the store.
pub(super) fn stored(subscription: &Subscription) -> Vec<(String, u64)> {
    let mut stored: Vec<_> = subscription
        .store()
        .all()
        .iter()
        .map(|object| (object.key().to_string(), object.header().resource_version.parse().unwrap()))
        .collect();
    stored.sort();
    stored
}

/// Fails a test that would wait for ever; paused time makes the timeout immediate.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(std::time::Duration::from_secs(600), future).await.expect("within 600 s")
}

/// Lets every task run until it is pending.
pub(super) async fn run_until_idle() {
    // With paused time, a sleep ends only when nothing else can run.
    tokio::time::sleep(std::time::Duration::from_micros(1)).await;
}

/// Returns a widget of this name and resourceVersion.
pub(super) fn widget(name: &str, version: u64) -> Value {
    Fixture::new(name).version(version).json()
}

/// Returns the value of [`stored`] for these objects.
pub(super) fn names(stored: &[(&str, u64)]) -> Vec<(String, u64)> {
    stored.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
}

/// Returns the progress of the subscriber's informer.
pub(super) fn progress(subscription: &Subscription) -> InformerProgress {
    subscription.progress().borrow().clone()
}
