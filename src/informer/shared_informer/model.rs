//! Property test: whatever joins, moves, changes and lists happen, each subscriber is delivered
//! what concerns it, and nothing else.
//!
//! The test plays the informer's task and all subscribers on one thread. Orders of threads are the
//! subject of the set's model.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use proptest::{prelude::*, sample::select};
use serde_json::json;

use super::*;
use crate::{
    informer::{
        Delta, Projection, Selection, Selector,
        decode::Decoder,
        fixture::{Fixture, widgets},
        mailbox::Extent,
    },
    kind::GroupKind,
};

/// Owner and label of an object, which interests are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    owner: Option<(&'static str, &'static str, bool)>,
    label: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Create or change an object.
    Put {
        name: usize,
        shape: Shape,
        seen: bool,
    },
    /// Delete an object, and create another of its name.
    Recreate {
        name: usize,
        shape: Shape,
        seen: bool,
    },
    Delete {
        name: usize,
        seen: bool,
    },
    Join {
        deliver: Vec<Interest>,
        whole: Vec<Interest>,
    },
    Leave {
        subscriber: usize,
    },
    Move {
        subscriber: usize,
        parent: usize,
        interests: Vec<Interest>,
    },
    /// Receive that many changes.
    Receive {
        subscriber: usize,
        changes: usize,
    },
    /// List anew: finds the changes that were not seen.
    List,
    /// The linger time of those that have left is over.
    Reduce,
}

/// A subscriber, with what it has to receive.
struct View {
    joined: Joined,
    deliver: Vec<Interest>,
    whole: Vec<Interest>,
    moving: BTreeMap<usize, Vec<Interest>>,
    /// Objects of the interests that the subscription began with, as delivered last: uid and
    /// version.
    known: BTreeMap<String, (String, u64)>,
    /// Objects with a change that concerned the subscriber.
    due: BTreeSet<String>,
    /// Objects with such a change that were delivered since.
    got: BTreeSet<String>,
    /// Objects with such a change since the last delivery.
    changed: BTreeSet<String>,
}

struct Model {
    informer: SharedInformer,
    decoder: Decoder,
    /// Objects of the server: JSON by name.
    server: BTreeMap<String, (Shape, u64, u64)>,
    version: u64,
    views: Vec<View>,
}

fn fixture(name: &str, (shape, uid, version): (Shape, u64, u64)) -> Fixture {
    let mut fixture =
        Fixture::new(name).namespace("n").uid(&format!("{name}-{uid}")).version(version);
    if let Some(label) = shape.label {
        fixture = fixture.label("app", label);
    }
    if let Some((kind, uid, controller)) = shape.owner {
        let owner = json!({
            "apiVersion": "v1", "kind": kind, "name": uid, "uid": uid, "controller": controller,
        });
        fixture = fixture.set("ownerReferences", json!([owner]));
    }
    fixture
}

fn identity(object: &Object) -> (String, u64) {
    let header = object.header();
    (header.uid.to_string(), header.resource_version.parse().unwrap())
}

impl View {
    fn concerns(&self, object: &Object) -> bool {
        let mut all = self.deliver.iter().chain(self.moving.values().flatten());
        all.any(|interest| interest.concerns(object.header()))
    }

    /// Returns whether an object concerns the interests that the subscription began with.
    fn delivers(&self, object: &Object) -> bool {
        self.deliver.iter().any(|interest| interest.concerns(object.header()))
    }

    fn keeps(&self, object: &Object) -> bool {
        self.whole.iter().chain(&self.deliver).any(|it| it.concerns(object.header()))
    }

    fn receive(&mut self, delta: Delta) {
        let key = delta.key.to_string();
        assert!(delta.old.is_some() || delta.new.is_some());
        let concerned = [&delta.old, &delta.new].into_iter().flatten().any(|it| self.concerns(it));
        assert!(self.changed.remove(&key) || concerned, "{key} does not concern it");
        if let Some(known) = self.known.get(&key) {
            assert_eq!(delta.old.as_ref().map(identity).as_ref(), Some(known), "{key}");
        }
        match delta.new.as_ref().filter(|new| self.delivers(new)) {
            Some(new) => self.known.insert(key.clone(), identity(new)),
            None => self.known.remove(&key),
        };
        self.got.insert(key);
    }
}

impl Model {
    fn new(linger: Duration) -> Self {
        let key = InformerKey::new(widgets().identity);
        Self {
            informer: SharedInformer::new(key, "Widget".into(), linger),
            decoder: Decoder::new(&widgets(), Projection::Full, false),
            server: BTreeMap::new(),
            version: 0,
            views: Vec::new(),
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("n", name)
    }

    /// Records for each view whether a change concerns it.
    fn due(&mut self, name: &str, old: Option<&Object>, new: Option<&Object>) {
        for view in &mut self.views {
            if old.is_some_and(|it| view.concerns(it)) || new.is_some_and(|it| view.concerns(it)) {
                view.due.insert(Self::key(name).to_string());
                view.changed.insert(Self::key(name).to_string());
                // A delivery before this change is none of it.
                view.got.remove(&Self::key(name).to_string());
            }
        }
    }

    /// The informer's task receives an object.
    fn put(&mut self, name: &str) {
        let json = fixture(name, self.server[name]).json().to_string();
        let old = self.informer.store.stored(&Self::key(name));
        let object = self.decoder.decode(&json, |header| self.informer.keeps(header)).unwrap();
        if old.as_ref().is_none_or(|old| !old.is_same_version(&object)) {
            self.due(name, old.as_ref(), Some(&object));
        }
        let change = self.informer.put(&object);
        assert_ne!(change, StoreChange::Incomplete, "decided under one lock here");
    }

    fn remove(&mut self, name: &str) {
        if let Some(old) = self.informer.store.stored(&Self::key(name)) {
            self.due(name, Some(&old), None);
        }
        self.informer.remove(&Self::key(name));
    }

    fn list(&mut self) {
        let list = self.informer.begin_list();
        let names: Vec<_> = self.server.keys().cloned().collect();
        for name in names {
            self.put(&name);
        }
        for key in self.informer.store.not_in(list.number) {
            self.remove(&key.name);
        }
        self.informer.complete(list);
    }

    fn step(&mut self, step: Step) {
        let name = |name: usize| format!("o{name}");
        let some = |views: &[View], subscriber: usize| {
            (!views.is_empty()).then(|| subscriber % views.len())
        };
        // Before the first list no change is received, and while a list is missing none is seen.
        let listed = self.informer.is_complete();
        match step {
            Step::Put { name: at, shape, seen } => {
                self.version += 1;
                let uid = self.server.get(&name(at)).map_or(self.version, |known| known.1);
                self.server.insert(name(at), (shape, uid, self.version));
                if seen && listed {
                    self.put(&name(at));
                }
            }
            Step::Recreate { name: at, shape, seen } => {
                if self.server.contains_key(&name(at)) && seen && listed {
                    self.remove(&name(at));
                }
                self.version += 1;
                self.server.insert(name(at), (shape, self.version, self.version));
                if seen && listed {
                    self.put(&name(at));
                }
            }
            Step::Delete { name: at, seen } => {
                self.server.remove(&name(at));
                if seen && listed {
                    self.remove(&name(at));
                }
            }
            Step::Join { deliver, whole } => {
                let interests = Interests { deliver: deliver.clone(), whole: whole.clone() };
                let joined = self.informer.join(interests).unwrap();
                let (moving, known) = (BTreeMap::new(), BTreeMap::new());
                let (due, got, changed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
                self.views.push(View { joined, deliver, whole, moving, known, due, got, changed });
            }
            Step::Leave { subscriber } => {
                if let Some(at) = some(&self.views, subscriber) {
                    let view = self.views.remove(at);
                    self.informer.leave(view.joined.id, Linger::Default);
                }
            }
            Step::Move { subscriber, parent, interests } => {
                if let Some(at) = some(&self.views, subscriber) {
                    let view = &mut self.views[at];
                    let slot = ObjectKey::cluster(format!("p{parent}"));
                    self.informer.set_interests(view.joined.id, (0, &slot), interests.clone());
                    view.moving.insert(parent, interests);
                }
            }
            Step::Receive { subscriber, changes } => {
                if let Some(at) = some(&self.views, subscriber) {
                    for _ in 0..changes {
                        self.receive(at);
                    }
                }
            }
            Step::List => self.list(),
            Step::Reduce => self.reduce(),
        }
    }

    fn reduce(&self) {
        // Few objects: the task does not pause.
        assert!(self.informer.reduce().now_or_never().is_some());
    }

    /// Does what `Subscription::next` does, without waiting; returns whether there was a change.
    fn receive(&mut self, at: usize) -> bool {
        let view = &mut self.views[at];
        loop {
            let mailbox = &view.joined.mailbox;
            let scanned = mailbox.wants_scan() && self.informer.scan(view.joined.id);
            match mailbox.take() {
                Some(delta) => {
                    view.receive(delta.unwrap());
                    return true;
                }
                None if scanned => {}
                None => return false,
            }
        }
    }

    fn check(&mut self) {
        self.list();
        // A list for those that joined during the one before.
        self.list();
        for at in 0..self.views.len() {
            while self.receive(at) {}
            let view = &mut self.views[at];
            let stored = self.informer.store.all();
            for object in &stored {
                let key = object.key();
                let read = view.joined.store.get(key).unwrap();
                assert_eq!(read.is_whole(), view.keeps(object), "{key} as its own interests say");
                assert_eq!(read.json().is_empty(), !view.keeps(object));
            }
            let missed: Vec<_> = view.due.difference(&view.got).collect();
            assert!(missed.is_empty(), "{missed:?} concerned it and was not delivered");
            let delivered = stored.iter().filter(|object| view.delivers(object));
            let delivered = delivered.map(|it| (it.key().to_string(), identity(it))).collect();
            assert_eq!(view.known, delivered);
            assert!(
                view.joined.mailbox.reaches(Extent::Drained).now_or_never().is_some(),
                "in sync"
            );
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let owner = prop::option::of((select(vec!["A", "B"]), select(vec!["u", "v"]), any::<bool>()));
    let label = prop::option::of(select(vec!["x", "y"]));
    (owner, label).prop_map(|(owner, label)| Shape { owner, label })
}

fn interest() -> impl Strategy<Value = Interest> {
    let kind = |kind: &'static str| {
        Interest::OwnerKind(GroupKind { group: String::new(), kind: kind.to_owned() })
    };
    let selection = |text: &'static str| Selection {
        namespace: Some("n".into()),
        selector: text.parse::<Selector>().unwrap(),
    };
    prop_oneof![
        Just(Interest::Everything),
        select(vec!["A", "B"]).prop_map(kind),
        select(vec!["u", "v"]).prop_map(|uid| Interest::OwnerUid(uid.into())),
        select(vec!["app=x", "app!=x"]).prop_map(move |it| Interest::Selected(selection(it))),
        select(vec!["app=x", "app in (x,y)"]).prop_map(move |it| Interest::Orphans(selection(it))),
        (0..4_usize).prop_map(|name| Interest::Named(Model::key(&format!("o{name}")))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..6_usize;
    let seen = || prop::bool::weighted(0.85);
    let interests = |range| prop::collection::vec(interest(), range);
    prop_oneof![
        6 => (name(), shape(), seen())
            .prop_map(|(name, shape, seen)| Step::Put { name, shape, seen }),
        1 => (name(), shape(), seen())
            .prop_map(|(name, shape, seen)| Step::Recreate { name, shape, seen }),
        2 => (name(), seen()).prop_map(|(name, seen)| Step::Delete { name, seen }),
        2 => (interests(0..3), interests(0..2))
            .prop_map(|(deliver, whole)| Step::Join { deliver, whole }),
        1 => (0..4_usize).prop_map(|subscriber| Step::Leave { subscriber }),
        2 => (0..4_usize, 0..2_usize, interests(0..3)).prop_map(|(subscriber, parent, interests)| {
            Step::Move { subscriber, parent, interests }
        }),
        4 => (0..4_usize, 1..4_usize)
            .prop_map(|(subscriber, changes)| Step::Receive { subscriber, changes }),
        1 => Just(Step::List),
        1 => Just(Step::Reduce),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_subscriber_is_delivered_exactly_what_concerns_it(
        steps in prop::collection::vec(step(), 0..40),
        lingers in any::<bool>(),
    ) {
        let linger = if lingers { Duration::from_secs(3600) } else { Duration::ZERO };
        let mut model = Model::new(linger);
        for step in steps {
            model.step(step);
        }
        model.check();
        // After the last subscriber and its linger time, nothing is kept whole.
        for view in std::mem::take(&mut model.views) {
            model.informer.leave(view.joined.id, Linger::Default);
        }
        model.reduce();
        let objects = model.informer.store.all();
        prop_assert!(lingers || objects.iter().all(|object| !object.is_whole()));
    }
}
