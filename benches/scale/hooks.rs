//! Hooks of all measured controllers: one plain HTTP server on the loopback.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path},
    routing::post,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::noise::noise;

/// Label of each child, by which the bench selects them.
pub(crate) const CHILD: &str = "bench-child";

/// Running hook server, and its record of calls.
pub(crate) struct Hooks {
    url: String,
    record: Arc<Record>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Record {
    calls: AtomicU64,
    parents: watch::Sender<HashMap<String, Calls>>,
}

/// Calls for one parent.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) count: u64,
    pub(crate) first: Instant,
    pub(crate) last: Instant,
}

#[derive(Deserialize)]
struct Request {
    parent: Parent,
}

#[derive(Deserialize)]
struct Parent {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// Spec of a parent, which says how many children of how many bytes it has.
#[derive(Deserialize)]
struct Spec {
    children: usize,
    bytes: usize,
}

impl Hooks {
    pub(crate) async fn start() -> Self {
        let record = Arc::<Record>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap());
        let recorded = Arc::clone(&record);
        let answer = move |Path(revision): Path<String>, Json(request): Json<Request>| {
            recorded.add(&request.parent.metadata.name);
            let answer = Json(answer(&revision, &request.parent));
            async move { answer }
        };
        let router = Router::new()
            .route("/sync/{revision}", post(answer))
            .layer(DefaultBodyLimit::disable());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, record, _tasks: tasks }
    }

    /// Returns the URL of the hook that writes `revision` into each child and status.
    pub(crate) fn url(&self, revision: &str) -> String {
        format!("{}/{revision}", self.url)
    }

    /// Returns the number of calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.record.calls.load(Ordering::Relaxed)
    }

    /// Forgets all calls of all parents.
    pub(crate) fn forget(&self) {
        self.record.parents.send_modify(HashMap::clear);
    }

    /// Returns the number of calls for a parent.
    pub(crate) fn calls_of(&self, parent: &str) -> u64 {
        self.record.parents.borrow().get(parent).map_or(0, |calls| calls.count)
    }

    /// Waits for more than `count` calls for a parent; returns the time of the last one.
    pub(crate) async fn call_after(
        &self,
        parent: &str,
        count: u64,
        patience: Duration,
    ) -> Option<Instant> {
        let mut parents = self.record.parents.subscribe();
        let called = parents
            .wait_for(|parents| parents.get(parent).is_some_and(|calls| calls.count > count));
        let parents = timeout(patience, called).await.ok()?.unwrap();
        Some(parents[parent].last)
    }

    /// Waits until hooks were called for so many parents; returns the times of their first calls,
    /// which are fewer if the time is over.
    pub(crate) async fn first_calls(&self, count: usize, patience: Duration) -> Vec<Instant> {
        let mut parents = self.record.parents.subscribe();
        let called = parents.wait_for(|parents| parents.len() >= count);
        drop(timeout(patience, called).await);
        self.record.parents.borrow().values().map(|calls| calls.first).collect()
    }
}

impl Record {
    fn add(&self, parent: &str) {
        let now = Instant::now();
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.parents.send_modify(|parents| match parents.get_mut(parent) {
            Some(calls) => (calls.count, calls.last) = (calls.count + 1, now),
            None => {
                parents.insert(parent.to_owned(), Calls { count: 1, first: now, last: now });
            }
        });
    }
}

fn answer(revision: &str, parent: &Parent) -> Value {
    let name = &parent.metadata.name;
    let child = |index: usize| {
        let child = format!("{name}-{index}");
        let text = noise(parent.spec.bytes, &child);
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": child, "labels": {CHILD: "true"}},
            "data": {"revision": revision, "text": text},
        })
    };
    let children: Vec<_> = (0..parent.spec.children).map(child).collect();
    json!({"status": {"revision": revision}, "children": children})
}
