//! Property test: whatever joins, moves, changes and lists happen, each subscriber is delivered
//! what concerns it, and nothing else.
//!
//! The test plays the informer's task and all subscribers on one thread. Orders of threads are the
//! subject of the set's model.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use proptest::{prelude::*, sample::select};
use serde_json::json;
use tokio::runtime::{Builder, Handle};

use super::*;
use crate::{
    informer::{
        Delta, InterestName, Projection, Selection, Selector,
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
        linger: Linger,
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
    /// Deliver objects again.
    Resync {
        subscriber: usize,
        after: usize,
        examine: usize,
    },
    /// Receive so many objects of a list, which finds the changes that were not seen. Begins it if
    /// none is under way; meanwhile no change is seen.
    List {
        objects: usize,
    },
    /// The list under way fails, and the watch before it continues.
    FailList,
    /// Time passes.
    Wait {
        seconds: u64,
    },
    /// Reduce what is past its linger time.
    Reduce,
}

/// Shape, uid and version of an object of the server.
type State = (Shape, u64, u64);

/// Version of an object: uid and resourceVersion.
type Version = (String, u64);

/// Change that concerned a subscriber.
#[derive(Clone, Debug)]
struct Concerned {
    old: Option<Version>,
    new: Option<Version>,
    /// Interests of parents that the old or the new object concerned then.
    interests: Vec<Interest>,
    /// Parents with such an interest that have kept it since the change.
    kept: Vec<(usize, Interest)>,
    /// True if the scan of the subscriber had ended before.
    settled: bool,
}

/// A subscriber, with what it has to receive.
struct View {
    joined: JoinedSubscription,
    deliver: Vec<Interest>,
    whole: Vec<Interest>,
    moving: BTreeMap<usize, Vec<Interest>>,
    /// Objects of the interests that the subscription began with, as delivered last.
    known: BTreeMap<ObjectKey, Version>,
    /// Changes that concerned the subscriber since the last delivery of their object.
    due: BTreeMap<ObjectKey, Vec<Concerned>>,
    /// Changes during the scan, whose parents may be named by the object that it finds.
    scanned: BTreeMap<ObjectKey, Vec<Concerned>>,
}

struct Model {
    informer: SharedInformer,
    decoder: Decoder,
    server: BTreeMap<ObjectKey, State>,
    version: u64,
    listing: Option<Listing>,
    views: Vec<View>,
    linger: Duration,
    /// Interests of those that have left, until the end of their linger time.
    lingering: Vec<(Instant, Vec<Interest>)>,
}

/// List under way, with the objects that are to be received.
struct Listing {
    list: OngoingList,
    rest: BTreeMap<ObjectKey, State>,
}

fn fixture(key: &ObjectKey, (shape, uid, version): State) -> Fixture {
    let namespace = key.namespace.as_deref().unwrap();
    let mut fixture =
        Fixture::new(&key.name).namespace(namespace).uid(&uid_of(key, uid)).version(version);
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

fn uid_of(key: &ObjectKey, uid: u64) -> String {
    format!("{key}-{uid}")
}

/// Name of the interests of a parent.
fn name_of(parent: usize) -> Arc<InterestName> {
    Arc::new(ObjectKey::cluster(format!("p{parent}")).into())
}

/// Key of an object: each name is used in two namespaces.
fn key(number: usize) -> ObjectKey {
    ObjectKey::namespaced(["n", "m"][number % 2], format!("o{}", number / 2))
}

/// Returns the old object of the one delivery of these changes, none of which was delivered.
fn old_of(changes: &[Concerned]) -> Option<&Version> {
    let (first, last) = (changes.first()?, changes.last()?);
    let deletion = changes.iter().rev().find(|change| change.new.is_none());
    match (&first.old, deletion) {
        // The subscriber knows the object.
        (Some(known), _) => Some(known),
        // Created and deleted since: delivered in its last state, unless the same object returned.
        (None, Some(deleted)) => {
            let (old, new) = (deleted.old.as_ref(), last.new.as_ref());
            old.filter(|old| new.is_none_or(|new| new.0 != old.0))
        }
        (None, None) => None,
    }
}

fn identity(object: &Object) -> Version {
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

    /// Returns the change from an object to another, with the interests of parents that they
    /// concern.
    fn change(&self, old: Option<&Object>, new: Option<&Object>) -> Concerned {
        let settled = self.joined.mailbox.reaches(Extent::Drained).now_or_never().is_some();
        let all =
            self.moving.iter().flat_map(|(parent, of)| of.iter().map(move |it| (*parent, it)));
        let concerns = |interest: &Interest| {
            [old, new].into_iter().flatten().any(|object| interest.concerns(object.header()))
        };
        let kept = all.filter(|(_, it)| concerns(it)).map(|(parent, it)| (parent, it.clone()));
        let kept: Vec<_> = kept.collect();
        let interests = kept.iter().map(|(_, interest)| interest.clone()).collect();
        Concerned { old: old.map(identity), new: new.map(identity), interests, kept, settled }
    }

    /// Moves the interests of a parent.
    fn move_to(&mut self, parent: usize, interests: Vec<Interest>) {
        for change in self.due.values_mut().chain(self.scanned.values_mut()).flatten() {
            change.kept.retain(|(of, interest)| *of != parent || interests.contains(interest));
        }
        self.moving.insert(parent, interests);
    }

    /// Checks the parents that a change names: those that had an interest in it, unless they have
    /// moved since, and no parent without such an interest.
    fn check_names(&mut self, delta: &Delta, due: &[Concerned], stored: Option<&Object>) {
        let names: BTreeSet<_> = delta.interests.iter().cloned().collect();
        let mut due = [self.scanned.remove(&delta.key).unwrap_or_default(), due.to_vec()].concat();
        // The scan finds the object of the store.
        let scanned = stored.filter(|_| due.first().is_none_or(|change| !change.settled));
        let may_be_named = |interests: &Vec<Interest>| {
            let mut concerned = due.iter().flat_map(|change| &change.interests);
            concerned.any(|interest| interests.contains(interest))
                || scanned.is_some_and(|it| interests.iter().any(|of| of.concerns(it.header())))
        };
        let allowed = self.moving.iter().filter(|(_, interests)| may_be_named(interests));
        let allowed: BTreeSet<_> = allowed.map(|(parent, _)| name_of(*parent)).collect();
        assert!(names.is_subset(&allowed), "{names:?} of {allowed:?}: {due:?}");
        for change in &mut due {
            change.kept.retain(|(parent, _)| !names.contains(&name_of(*parent)));
        }
        if due.iter().all(|change| change.settled) {
            assert!(due.iter().all(|change| change.kept.is_empty()), "{names:?} of {due:?}");
        } else {
            self.scanned.insert(delta.key.clone(), due);
        }
    }

    fn keeps(&self, object: &Object) -> bool {
        self.whole.iter().chain(&self.deliver).any(|it| it.concerns(object.header()))
    }

    fn receive(&mut self, delta: Delta, stored: Option<&Object>) {
        let key = &delta.key;
        assert!(delta.old.is_some() || delta.new.is_some());
        if let Some(new) = &delta.new {
            assert!(new.is_whole() || !self.keeps(new), "{key} is delivered without its content");
        }
        let [old, new] = [&delta.old, &delta.new].map(|it| it.as_ref().map(identity));
        let due = self.due.remove(key).unwrap_or_default();
        self.check_names(&delta, &due, stored);
        match due.last() {
            None => {
                let scanned = delta.new.as_ref().is_some_and(|new| self.delivers(new));
                assert!(delta.initial && scanned, "{key} does not concern it: {delta:?}");
                assert_eq!((old.as_ref(), &new), (None, &stored.map(identity)), "{key}");
            }
            Some(last) if due.iter().all(|change| change.settled) => {
                assert_eq!((old.as_ref(), &new), (old_of(&due), &last.new), "{key}: {due:?}");
            }
            // The scan and the changes between its steps deliver one version or a later one.
            Some(_) => {
                let current = stored.map(identity);
                let is_one = due.iter().any(|change| change.new == new) || new == current;
                assert!(is_one, "{key}: {delta:?} of {due:?}");
            }
        }
        if let Some(known) = self.known.get(key) {
            assert_eq!(old.as_ref(), Some(known), "{key}");
        }
        match delta.new.as_ref().filter(|new| self.delivers(new)) {
            Some(new) => self.known.insert(key.clone(), identity(new)),
            None => self.known.remove(key),
        };
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
            listing: None,
            views: Vec::new(),
            linger,
            lingering: Vec::new(),
        }
    }

    /// Records a change for each view that it concerns.
    fn due(&mut self, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        for view in &mut self.views {
            if old.is_some_and(|it| view.concerns(it)) || new.is_some_and(|it| view.concerns(it)) {
                let change = view.change(old, new);
                view.due.entry(key.clone()).or_default().push(change);
            }
        }
    }

    /// The informer's task receives an object.
    fn put(&mut self, key: &ObjectKey, state: State) {
        let json = fixture(key, state).json().to_string();
        let old = self.informer.store.stored(key);
        let object = self.decoder.decode(&json, |header| self.informer.keeps(header)).unwrap();
        if old.as_ref().is_none_or(|old| !old.is_same_version(&object)) {
            self.due(key, old.as_ref(), Some(&object));
        }
        let change = self.informer.put(&object);
        assert_ne!(change, StoreChange::Incomplete, "decided under one lock here");
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(old) = self.informer.store.stored(key) {
            self.due(key, Some(&old), None);
        }
        self.informer.remove(key);
    }

    fn list(&mut self, objects: usize) {
        let begin = || Listing { list: self.informer.begin_list(), rest: self.server.clone() };
        let mut listing = self.listing.take().unwrap_or_else(begin);
        for _ in 0..objects {
            let Some((key, state)) = listing.rest.pop_first() else {
                for key in self.informer.store.not_in(listing.list.number) {
                    self.remove(&key);
                }
                self.informer.complete(listing.list);
                return self.catch_up();
            };
            self.put(&key, state);
        }
        self.listing = Some(listing);
    }

    fn fail_list(&mut self) {
        if self.listing.take().is_some() && self.informer.is_complete() {
            self.informer.repeat_fill();
            self.catch_up();
        }
    }

    /// The watch delivers what has changed during a list.
    fn catch_up(&mut self) {
        for object in self.informer.store.all() {
            let known = self.server.get(object.key());
            if known.is_none_or(|(_, uid, _)| *object.header().uid != *uid_of(object.key(), *uid)) {
                self.remove(object.key());
            }
        }
        for (key, state) in self.server.clone() {
            let stored = self.informer.store.stored(&key);
            if stored.is_none_or(|stored| identity(&stored).1 != state.2) {
                self.put(&key, state);
            }
        }
    }

    fn leave(&mut self, view: View, linger: Linger) {
        let length = match linger {
            Linger::Default => self.linger,
            Linger::None => Duration::ZERO,
        };
        self.informer.leave(view.joined.id, linger);
        let whole = [view.whole, view.deliver].concat();
        self.lingering.push((Instant::now() + length, whole));
    }

    fn step(&mut self, step: Step) {
        let some = |views: &[View], subscriber: usize| {
            (!views.is_empty()).then(|| subscriber % views.len())
        };
        // Before the first list no change is received, and while a list is missing none is seen.
        let listed = self.informer.is_complete() && self.listing.is_none();
        match step {
            Step::Put { name: at, shape, seen } => {
                self.version += 1;
                let uid = self.server.get(&key(at)).map_or(self.version, |known| known.1);
                self.server.insert(key(at), (shape, uid, self.version));
                if seen && listed {
                    self.put(&key(at), self.server[&key(at)]);
                }
            }
            Step::Recreate { name: at, shape, seen } => {
                if self.server.contains_key(&key(at)) && seen && listed {
                    self.remove(&key(at));
                }
                self.version += 1;
                self.server.insert(key(at), (shape, self.version, self.version));
                if seen && listed {
                    self.put(&key(at), self.server[&key(at)]);
                }
            }
            Step::Delete { name: at, seen } => {
                self.server.remove(&key(at));
                if seen && listed {
                    self.remove(&key(at));
                }
            }
            Step::Join { deliver, whole } => {
                let interests = Interests { deliver: deliver.clone(), whole: whole.clone() };
                let joined = self.informer.join(interests).unwrap();
                let (moving, known) = (BTreeMap::new(), BTreeMap::new());
                let (due, scanned) = (BTreeMap::new(), BTreeMap::new());
                self.views.push(View { joined, deliver, whole, moving, known, due, scanned });
            }
            Step::Leave { subscriber, linger } => {
                if let Some(at) = some(&self.views, subscriber) {
                    let view = self.views.remove(at);
                    self.leave(view, linger);
                }
            }
            Step::Move { subscriber, parent, interests } => {
                if let Some(at) = some(&self.views, subscriber) {
                    let view = &mut self.views[at];
                    let name = name_of(parent);
                    self.informer.set_interests(view.joined.id, &name, interests.clone());
                    view.move_to(parent, interests);
                    self.check_lookups(at);
                }
            }
            Step::Receive { subscriber, changes } => {
                if let Some(at) = some(&self.views, subscriber) {
                    for _ in 0..changes {
                        self.receive(at);
                    }
                }
            }
            Step::Resync { subscriber, after, examine } => {
                if let Some(at) = some(&self.views, subscriber) {
                    self.resync(at, after.checked_sub(1).map(key).as_ref(), examine);
                }
            }
            Step::List { objects } => self.list(objects),
            Step::FailList => self.fail_list(),
            Step::Wait { seconds } => {
                Handle::current().block_on(tokio::time::advance(Duration::from_secs(seconds)));
            }
            Step::Reduce => self.reduce(),
        }
    }

    /// Delivers the next objects after a key again, as `Subscription::resync` does after the sync.
    fn resync(&mut self, at: usize, after: Option<&ObjectKey>, examine: usize) {
        let view = &mut self.views[at];
        if view.joined.mailbox.reaches(Extent::Drained).now_or_never().is_none() {
            return;
        }
        let last = self.informer.resync(view.joined.id, after, examine);
        for object in self.informer.store.all() {
            let key = object.key();
            let is_examined = after.is_none_or(|after| key > after)
                && last.as_ref().is_none_or(|last| key <= last);
            if is_examined && view.concerns(&object) {
                let same = view.change(Some(&object), Some(&object));
                let due = view.due.entry(key.clone()).or_default();
                // A pending change stays as it is.
                if due.is_empty() {
                    due.push(same);
                }
            }
        }
    }

    fn reduce(&mut self) {
        // Few objects: the task does not pause.
        assert!(self.informer.reduce().now_or_never().is_some());
        let now = Instant::now();
        self.lingering.retain(|(end, _)| *end > now);
        for object in self.informer.store.all() {
            let lingering = self.lingering.iter().flat_map(|(_, whole)| whole);
            let mut lingering = lingering.filter(|it| it.concerns(object.header()));
            let kept = self.views.iter().any(|view| view.keeps(&object));
            assert!(!object.is_whole() || kept || lingering.next().is_some(), "{object:?}");
        }
    }

    /// The store finds what the moving interests of a subscriber concern, by index.
    fn check_lookups(&self, at: usize) {
        let view = &self.views[at];
        let all = self.informer.store.all();
        for interest in view.moving.values().flatten() {
            let mut found: Vec<_> = view.joined.store.concerned_by(interest);
            found.sort_by_key(|object| object.key().clone());
            let found: Vec<_> = found.iter().map(identity).collect();
            let concerned = all.iter().filter(|object| interest.concerns(object.header()));
            assert_eq!(found, concerned.map(identity).collect::<Vec<_>>(), "{interest:?}");
        }
    }

    /// Does what `Subscription::next` does, without waiting; returns whether there was a change.
    fn receive(&mut self, at: usize) -> bool {
        let view = &mut self.views[at];
        loop {
            let mailbox = &view.joined.mailbox;
            let scanned = mailbox.needs_scan() && self.informer.scan(view.joined.id);
            match mailbox.take() {
                Some(delta) => {
                    let delta = delta.unwrap().into_delta();
                    let stored = self.informer.store.stored(&delta.key);
                    view.receive(delta, stored.as_ref());
                    return true;
                }
                None if scanned => {}
                None => return false,
            }
        }
    }

    /// The informer ends. Each change is pending then, or its object is stored.
    fn end(&mut self) {
        self.informer.close(EndReason::TypeGone);
        for view in &mut self.views {
            assert!(view.joined.mailbox.take().is_some_and(|taken| taken.is_err()), "it has ended");
            for change in view.joined.mailbox.take_pending() {
                let delta = change.into_delta();
                let stored = self.informer.store.stored(&delta.key);
                view.receive(delta, stored.as_ref());
            }
            let stored = self.informer.concerned(view.joined.id);
            view.due.retain(|key, _| stored.iter().all(|change| change.key != *key));
            assert!(view.due.is_empty(), "{:?} concerned it and is lost", view.due);
        }
    }

    fn check(&mut self) {
        self.list(usize::MAX);
        // A list for those that joined during the one before.
        self.list(usize::MAX);
        self.reduce();
        for object in self.informer.store.all() {
            let mut lingering = self.lingering.iter().flat_map(|(_, whole)| whole);
            let is_kept = self.views.iter().any(|view| view.keeps(&object))
                || lingering.any(|interest| interest.concerns(object.header()));
            assert_eq!(object.is_whole(), is_kept, "{object:?}");
        }
        for at in 0..self.views.len() {
            while self.receive(at) {}
            self.check_lookups(at);
            let view = &mut self.views[at];
            let stored = self.informer.store.all();
            for object in &stored {
                let key = object.key();
                let read = view.joined.store.get(key).unwrap();
                assert_eq!(read.is_whole(), view.keeps(object), "{key} as its own interests say");
                assert_eq!(read.json().is_empty(), !view.keeps(object));
            }
            assert!(view.due.is_empty(), "{:?} concerned it and was not delivered", view.due);
            let mut scanned = view.scanned.values().flatten();
            assert!(scanned.all(|change| change.kept.is_empty()), "{:?}", view.scanned);
            let delivered = stored.iter().filter(|object| view.delivers(object));
            let delivered = delivered.map(|it| (it.key().clone(), identity(it))).collect();
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
    let selection = |texts: Vec<&'static str>| {
        let namespace = prop::option::of(select(vec!["n", "m"]));
        (namespace, select(texts)).prop_map(|(namespace, text)| Selection {
            namespace: namespace.map(Arc::from),
            selector: text.parse::<Selector>().unwrap(),
        })
    };
    prop_oneof![
        Just(Interest::Everything),
        select(vec!["A", "B"]).prop_map(kind),
        select(vec!["u", "v"]).prop_map(|uid| Interest::OwnerUid(uid.into())),
        selection(vec!["app=x", "app!=x"]).prop_map(Interest::Selected),
        selection(vec!["app=x", "app in (x,y)"]).prop_map(Interest::Orphans),
        (0..4_usize).prop_map(|number| Interest::Named(key(number))),
        (0..3_usize).prop_map(|name| Interest::NamedAnywhere(format!("o{name}").into())),
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
        1 => (0..4_usize, select(vec![Linger::Default, Linger::None]))
            .prop_map(|(subscriber, linger)| Step::Leave { subscriber, linger }),
        2 => (0..4_usize, 0..2_usize, interests(0..3)).prop_map(|(subscriber, parent, interests)| {
            Step::Move { subscriber, parent, interests }
        }),
        4 => (0..4_usize, 1..4_usize)
            .prop_map(|(subscriber, changes)| Step::Receive { subscriber, changes }),
        2 => (0..4_usize, 0..7_usize, 1..5_usize).prop_map(|(subscriber, after, examine)| {
            Step::Resync { subscriber, after, examine }
        }),
        2 => prop_oneof![1..4_usize, Just(usize::MAX)].prop_map(|objects| Step::List { objects }),
        1 => Just(Step::FailList),
        1 => (1..8_u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Reduce),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_subscriber_is_delivered_exactly_what_concerns_it(
        steps in prop::collection::vec(step(), 0..40),
        linger in select(vec![0, 10, 3600]),
        ends in any::<bool>(),
    ) {
        let time = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _clock = time.enter();
        let mut model = Model::new(Duration::from_secs(linger));
        for step in steps {
            model.step(step);
        }
        if ends {
            model.end();
            return Ok(());
        }
        model.check();
        // After the last subscriber and its linger time, no object is whole and no index is left.
        for view in std::mem::take(&mut model.views) {
            model.leave(view, Linger::Default);
        }
        model.step(Step::Wait { seconds: linger });
        model.reduce();
        prop_assert!(model.informer.store.all().iter().all(|object| !object.is_whole()));
        prop_assert_eq!(model.informer.store.lookup_places(), 0);
        prop_assert!(model.informer.lock().index.is_empty());
    }
}
