//! Model test: after any history of a server, with any faults, every view equals the server's
//! state, and has the objects whole that it wants whole.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use http::StatusCode;
use serde_json::{Value, json};

use crate::informer::{
    Interest, Interests, ObjectKey, Subscription,
    fixture::{Fixture, widgets},
    script::{Harness, OpenBody, ReceivedRequest, stored},
};

/// uid and resourceVersion by name.
type State = BTreeMap<String, (String, u64)>;

/// A server of one type, with random faults.
struct Server {
    rng: Rng,
    version: u64,
    state: State,
    /// All changes: version, event type and object.
    history: Vec<(u64, &'static str, Value)>,
    /// Changes up to this version are compacted.
    compacted: u64,
    /// Lists in progress, by token: their version and the remaining objects.
    lists: BTreeMap<String, (u64, Vec<Value>)>,
    watch: Option<OpenBody>,
    faulty: bool,
}

impl Server {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            version: 1,
            state: State::new(),
            history: Vec::new(),
            compacted: 0,
            lists: BTreeMap::new(),
            watch: None,
            faulty: true,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.faulty && self.rng.u32(0..100) < percent
    }

    fn object(name: &str, uid: &str, version: u64) -> Value {
        Fixture::new(name).uid(uid).version(version).json()
    }

    fn change(&mut self) {
        self.version += 1;
        let version = self.version;
        let name = format!("w{}", self.rng.u32(0..6));
        let (kind, uid) = match (self.state.get(&name), self.rng.bool()) {
            (Some((uid, _)), true) => ("MODIFIED", uid.clone()),
            (Some((uid, _)), false) => ("DELETED", uid.clone()),
            (None, _) => ("ADDED", format!("uid-{version}")),
        };
        let mut object = Self::object(&name, &uid, version);
        if kind == "DELETED" {
            self.state.remove(&name);
        } else {
            self.state.insert(name, (uid, version));
            if self.chance(5) {
                // The object cannot be decoded; its next change, right after, repairs it.
                object["metadata"]["labels"] = json!(["bad"]);
            }
        }
        let bad = object["metadata"]["labels"].is_array();
        self.record(kind, object.clone());
        if bad {
            self.version += 1;
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            self.record("MODIFIED", Self::object(&name, &uid, self.version));
            self.state.insert(name, (uid, self.version));
        }
    }

    fn record(&mut self, kind: &'static str, object: Value) {
        self.history.push((self.version, kind, object.clone()));
        let twice = self.chance(10);
        if let Some(watch) = &self.watch {
            watch.event(kind, &object);
            if twice {
                watch.event(kind, &object);
            }
        }
    }

    fn cut(&mut self) {
        let text = self.rng.bool();
        if let Some(watch) = self.watch.take() {
            if text {
                watch.text("{\"type\":\"MODIFIED\",\"object\":{\"meta");
            }
            if self.rng.bool() {
                watch.reset();
            }
        }
    }

    fn compact(&mut self) {
        self.compacted = self.version;
        self.lists.clear();
    }

    fn answer(&mut self, request: ReceivedRequest) {
        if self.chance(20) {
            match self.rng.u32(0..6) {
                0 => request.refuse(500, "InternalError", "a bad day"),
                1 => request.text(StatusCode::NOT_FOUND, "404 page not found"),
                2 => request.refuse(429, "TooManyRequests", "storage is (re)initializing"),
                3 => request.text(StatusCode::OK, "{\"type\":"),
                4 => request.refuse(403, "Forbidden", "no"),
                _ => drop(request),
            }
        } else if request.is_stream() {
            self.stream(request);
        } else if request.is_watch() {
            self.watch(request);
        } else {
            self.list(request);
        }
    }

    fn items(&self) -> Vec<Value> {
        self.state.iter().map(|(name, (uid, version))| Self::object(name, uid, *version)).collect()
    }

    fn list(&mut self, request: ReceivedRequest) {
        let (version, mut items) = match request.query.get("continue") {
            Some(token) => match self.lists.remove(token) {
                Some(rest) => rest,
                None => return request.refuse(410, "Expired", "the token has expired"),
            },
            None => (self.version, self.items()),
        };
        let rest = items.split_off(items.len().min(2));
        if rest.is_empty() || !request.query.contains_key("limit") {
            items.extend(rest);
            return request.page(version, "", &items);
        }
        let token = format!("t{}", self.rng.u64(..));
        self.lists.insert(token.clone(), (version, rest));
        request.page(version, &token, &items);
    }

    fn watch(&mut self, request: ReceivedRequest) {
        let position: u64 = request.query["resourceVersion"].parse().unwrap();
        if position < self.compacted {
            if self.rng.bool() {
                return request.refuse(410, "Expired", "too old");
            }
            return request.open().error(410, "Expired", "too old");
        }
        let watch = request.open();
        for (version, kind, object) in &self.history {
            if *version > position {
                watch.event(kind, object);
            }
        }
        self.watch = Some(watch);
    }

    fn stream(&mut self, request: ReceivedRequest) {
        if self.chance(10) {
            return request.refuse(400, "BadRequest", "unknown parameter");
        }
        let watch = request.open();
        for item in self.items() {
            if self.chance(10) {
                return watch.reset();
            }
            watch.event("ADDED", &item);
        }
        if self.chance(10) {
            return drop(watch);
        }
        watch.end_of_list(self.version);
        self.watch = Some(watch);
    }
}

/// A subscriber's state, built from its deltas alone.
struct View {
    subscription: Subscription,
    /// Objects that are kept whole.
    whole: Interest,
    /// True if they are delivered too.
    is_delivered: bool,
    state: State,
}

impl View {
    /// Subscribes to all objects or to one, or only keeps them whole.
    fn random(harness: &Harness, rng: &mut Rng) -> Self {
        let whole = match rng.u32(0..3) {
            0 => Interest::Everything,
            _ => Interest::Named(ObjectKey::cluster(format!("w{}", rng.u32(0..6)))),
        };
        let is_delivered = rng.u32(0..4) > 0;
        let deliver = if is_delivered { vec![whole.clone()] } else { Vec::new() };
        let interests = Interests { deliver, whole: vec![whole.clone()] };
        let subscription = harness.set.subscribe_to(&widgets(), harness.key.clone(), interests);
        Self { subscription, whole, is_delivered, state: State::new() }
    }

    fn has_entries(&self) -> bool {
        self.subscription.store().entries() > 0
    }

    /// Returns what the deltas should amount to.
    fn expected(&self, server: &State) -> State {
        let is_concerned = |name: &str| {
            self.whole == Interest::Everything
                || self.whole == Interest::Named(ObjectKey::cluster(name))
        };
        let mut expected = server.clone();
        expected.retain(|name, _| self.is_delivered && is_concerned(name));
        expected
    }

    fn look(&mut self) -> bool {
        let Some(next) = futures::FutureExt::now_or_never(self.subscription.next()) else {
            return false;
        };
        let delta = next.expect("the informer runs");
        let version = |object: &crate::informer::Object| {
            let header = object.header();
            (header.uid.to_string(), header.resource_version.parse::<u64>().unwrap())
        };
        let name = delta.key.name.to_string();
        let old = match &delta.new {
            Some(new) => self.state.insert(name, version(new)),
            None => self.state.remove(&name),
        };
        // `old` may also be an object that was created and deleted unseen.
        assert!(delta.old.as_ref().map(version) == old || old.is_none());
        true
    }
}

/// Returns whether a view came that needed entries whole.
async fn check(seed: u64) -> bool {
    let mut harness = Harness::new();
    let mut server = Server::new(seed);
    let mut views = vec![View::random(&harness, &mut server.rng)];
    let mut is_filled = false;

    for _ in 0..150 {
        match server.rng.u32(0..20) {
            0..9 => server.change(),
            9 => server.cut(),
            10 => server.compact(),
            11 if views.len() < 4 => {
                let view = View::random(&harness, &mut server.rng);
                is_filled |= view.has_entries() && view.whole == Interest::Everything;
                views.push(view);
            }
            12..15 => {
                let view = server.rng.usize(0..views.len());
                views[view].look();
            }
            15 => tokio::time::sleep(Duration::from_secs(server.rng.u64(0..60))).await,
            _ => tokio::time::sleep(Duration::from_millis(server.rng.u64(0..2000))).await,
        }
        while let Some(request) = harness.script.try_next() {
            server.answer(request);
        }
    }

    server.faulty = false;
    // A final list would hide that an event was lost.
    if seed.is_multiple_of(2) {
        server.compact();
        server.cut();
    }
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        while let Some(request) = harness.script.try_next() {
            server.answer(request);
        }
    }
    let expected: Vec<_> =
        server.state.iter().map(|(name, (_, version))| (name.clone(), *version)).collect();
    for view in &mut views {
        assert_eq!(stored(&view.subscription), expected, "seed {seed}");
        while view.look() {}
        assert_eq!(view.state, view.expected(&server.state), "seed {seed}");
    }
    for view in &views {
        view.subscription.drained().await;
        for object in view.subscription.store().all() {
            let is_wanted = view.whole.concerns(object.header());
            assert!(object.is_whole() || !is_wanted, "seed {seed}: {}", object.key());
        }
    }
    is_filled
}

#[tokio::test(start_paused = true)]
async fn every_view_ends_equal_to_the_server() {
    let mut filled = 0;
    for seed in 0..300 {
        filled += u32::from(check(seed).await);
    }
    assert!(filled > 50, "{filled}");
}
