//! Model test of subscribers, the informer's task and the set, in every schedule with few
//! preemptions.
//!
//! A thread plays the informer's task: only it writes to the informer, and it drops [`TaskEnd`]
//! after the informer is stopped. The task that the set spawns is never polled.

#![expect(clippy::print_stderr, reason = "the figures of a search")]

use std::convert::Infallible;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    informer::{
        Delta, Interest, Linger, Object, ObjectKey,
        fixture::{Fixture, widgets},
        schedule::{Scenario, ThreadBody, explore, wait},
        shared_informer::StoreChange,
        shared_set::TaskEnd,
    },
    kind::GroupKind,
};

/// A set on a runtime that runs no tasks.
struct Model {
    runtime: Runtime,
    set: InformerSet,
    key: InformerKey,
}

impl Model {
    fn new() -> Arc<Self> {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let entered = runtime.enter();
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
        });
        let set = InformerSet::new(Client::new(service, "default"), InformerOptions::default());
        drop(entered);
        let key = InformerKey::new(widgets().identity);
        Arc::new(Self { runtime, set, key })
    }

    fn subscribe(&self) -> Subscription {
        let _entered = self.runtime.enter();
        self.set.subscribe(&widgets(), self.key.clone())
    }

    fn subscribe_to(&self, interests: Interests) -> Subscription {
        let _entered = self.runtime.enter();
        self.set.subscribe_to(&widgets(), self.key.clone(), interests)
    }

    fn informer(&self) -> Option<Arc<SharedInformer>> {
        self.set.shared.lock().live.get(&self.key).cloned()
    }

    fn act(self: &Arc<Self>, act: impl FnOnce(&Self) + Send + 'static) -> ThreadBody {
        let model = self.clone();
        Box::new(move || act(&model))
    }

    /// Returns the thread that plays the informer's task until the informer is stopped.
    fn task(
        self: &Arc<Self>,
        informer: &Arc<SharedInformer>,
        work: impl FnOnce(&SharedInformer) + Send + 'static,
    ) -> ThreadBody {
        let ending = TaskEnd { set: self.set.shared.clone(), informer: informer.clone() };
        Box::new(move || {
            work(&ending.informer);
            wait(ending.informer.stopped());
            drop(ending);
        })
    }

    /// Checks that the count of types matches the live informers.
    fn check_counts(&self) {
        let live = self.set.shared.lock().live.len();
        assert_eq!(self.set.types().borrow().values().sum::<usize>(), live);
    }
}

fn object(name: &str, version: u64) -> Object {
    Fixture::new(name).version(version).object()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::cluster(name)
}

/// A subscriber's copy, built from its deltas alone.
#[derive(Default)]
struct View(BTreeMap<String, Object>);

impl View {
    fn see(&mut self, delta: Delta) {
        let name = delta.key.to_string();
        let version =
            |object: Option<&Object>| object.map(|it| it.header().resource_version.clone());
        let had = version(self.0.get(&name));
        // `old` may also be an object that was created and deleted unseen.
        assert!(had.is_none() || had == version(delta.old.as_ref()), "old object of {name}");
        assert!(delta.old.is_some() || delta.new.is_some());
        match delta.new {
            Some(new) => self.0.insert(name, new),
            None => self.0.remove(&name),
        };
    }

    fn see_what_is_there(&mut self, subscription: &mut Subscription) {
        while let Some(delta) = subscription.next().now_or_never() {
            self.see(delta.unwrap());
        }
    }

    fn check(&self, store: &crate::informer::Store) {
        let row =
            |object: &Object| (object.key().to_string(), object.header().resource_version.clone());
        let mut stored: Vec<_> = store.all().iter().map(row).collect();
        stored.sort();
        assert_eq!(self.0.values().map(row).collect::<Vec<_>>(), stored);
    }
}

#[test]
fn subscriber_that_joins_at_any_time_receives_the_objects_and_every_later_change() {
    let schedules = explore(1, || {
        let model = Model::new();
        let first = model.subscribe();
        let informer = model.informer().unwrap();
        // A joiner reads at once, and again after all threads have ended.
        let late: Arc<Mutex<Vec<(Subscription, View)>>> = Arc::default();
        let joins = || {
            let late = late.clone();
            model.act(move |model| {
                let mut subscription = model.subscribe();
                let mut view = View::default();
                view.see_what_is_there(&mut subscription);
                late.lock().push((subscription, view));
            })
        };
        let writer = {
            let informer = informer.clone();
            model.act(move |_| {
                let list = informer.begin_list();
                informer.put(&object("a", 1));
                informer.put(&object("b", 2));
                informer.complete(list);
                informer.remove(&key("a"));
                informer.put(&object("b", 3));
            })
        };
        let threads = vec![writer, joins(), joins()];
        let after = {
            let model = model.clone();
            move || {
                let mut all = std::mem::take(&mut *late.lock());
                all.push((first, View::default()));
                for (mut subscription, mut view) in all {
                    view.see_what_is_there(&mut subscription);
                    view.check(&informer.store);
                    assert!(
                        Arc::ptr_eq(&subscription.informer(), &informer),
                        "one informer for one key"
                    );
                    assert!(subscription.drained().now_or_never().is_some(), "in sync");
                }
                model.check_counts();
            }
        };
        Scenario { threads, after: Box::new(after) }
    });

    eprintln!("late joiners: {schedules} schedules");
}

/// Widget with the owner `uid`.
fn owned(name: &str, version: u64, uid: &str) -> Object {
    Fixture::new(name).version(version).controller(uid).object()
}

#[test]
fn an_interest_that_is_set_before_the_store_is_read_misses_no_change() {
    let schedules = explore(2, || {
        let model = Model::new();
        let interests = Interests { deliver: Vec::new(), whole: vec![Interest::Everything] };
        let subscription = model.subscribe_to(interests);
        let informer = model.informer().unwrap();
        informer.complete(informer.begin_list());
        informer.put(&owned("a", 1, "p"));
        let read: Arc<Mutex<Option<(Subscription, View)>>> = Arc::default();
        let mover = {
            let read = read.clone();
            model.act(move |_| {
                let moving = subscription.moving_interests();
                moving.set(key("parent"), vec![Interest::OwnerUid("p".into())]);
                let mut view = View::default();
                for object in subscription.store().owned_by("p") {
                    view.see(Delta::created(object));
                }
                *read.lock() = Some((subscription, view));
            })
        };
        let writer = {
            let informer = informer.clone();
            model.act(move |_| {
                informer.put(&owned("b", 2, "p"));
                informer.put(&owned("a", 3, "other"));
                informer.put(&owned("c", 4, "p"));
                informer.remove(&key("c"));
            })
        };
        let after = move || {
            let _runtime = model;
            let (mut subscription, mut view) = read.lock().take().unwrap();
            while let Some(delta) = subscription.next().now_or_never() {
                let Delta { key, new, .. } = delta.unwrap();
                let name = key.to_string();
                let own = |new: &Object| new.controller().is_some_and(|it| &*it.uid == "p");
                match new.filter(own) {
                    Some(new) => view.0.insert(name, new),
                    None => view.0.remove(&name),
                };
            }
            assert_eq!(view.0.keys().collect::<Vec<_>>(), ["b"], "as the store has it");
        };
        Scenario { threads: vec![mover, writer], after: Box::new(after) }
    });

    eprintln!("moved interest: {schedules} schedules");
}

#[test]
fn a_late_interest_in_whole_objects_is_answered_by_a_list_whenever_it_comes() {
    let schedules = explore(2, || {
        let model = Model::new();
        let kind = GroupKind { group: String::new(), kind: "Owner".to_owned() };
        let of_owner =
            || Interests { deliver: vec![Interest::OwnerKind(kind.clone())], whole: Vec::new() };
        let _first = model.subscribe_to(Interests { deliver: Vec::new(), whole: Vec::new() });
        let informer = model.informer().unwrap();
        // The informer's task: it decodes an object before it stores it.
        let put = |informer: &SharedInformer| {
            let whole = owned("a", 1, "p");
            let reduced =
                if informer.keeps(whole.header()) { whole.clone() } else { whole.reduced() };
            if informer.put(&reduced) == StoreChange::Incomplete {
                informer.put(&whole);
            }
        };
        let writer = {
            let informer = informer.clone();
            model.act(move |_| {
                let list = informer.begin_list();
                put(&informer);
                informer.complete(list);
            })
        };
        let joined: Arc<Mutex<Option<Subscription>>> = Arc::default();
        let joins = {
            let (joined, interests) = (joined.clone(), of_owner());
            model.act(move |model| *joined.lock() = Some(model.subscribe_to(interests)))
        };
        let after = move || {
            let _runtime = model;
            let mut subscription = joined.lock().take().unwrap();
            if informer.relist_wanted().now_or_never().is_some() {
                assert!(subscription.next().now_or_never().is_none(), "its objects are not whole");
                assert!(subscription.complete().now_or_never().is_none(), "and not complete");
                let list = informer.begin_list();
                put(&informer);
                informer.complete(list);
            }
            let delta = subscription.next().now_or_never().unwrap().unwrap();
            assert!(delta.new.unwrap().is_whole());
            assert!(subscription.drained().now_or_never().is_some());
            assert!(informer.relist_wanted().now_or_never().is_none(), "no second list");
        };
        Scenario { threads: vec![writer, joins], after: Box::new(after) }
    });

    eprintln!("late interest: {schedules} schedules");
}

#[test]
fn a_waiting_subscriber_is_woken_for_each_change_and_for_the_end() {
    let schedules = explore(1, || {
        let model = Model::new();
        let mut subscription = model.subscribe();
        let informer = model.informer().unwrap();
        let (see, ended) = (CancellationToken::new(), model.set.ended(&model.key));
        // Changes not read before the end are lost, so the end waits for the reader.
        let seen = see.clone();
        let reader = model.act(move |_| {
            let mut view = View::default();
            while !view.0.contains_key("last") {
                view.see(wait(subscription.next()).unwrap());
            }
            wait(subscription.drained());
            seen.cancel();
            assert_eq!(wait(subscription.next()).unwrap_err(), EndReason::TypeGone);
            assert_eq!(wait(subscription.ended()), EndReason::TypeGone);
        });
        let waits = model.act(move |_| assert_eq!(wait(ended), EndReason::TypeGone));
        let set = model.set.clone();
        let task = model.task(&informer, move |informer| {
            let list = informer.begin_list();
            informer.put(&object("a", 1));
            informer.complete(list);
            informer.put(&object("last", 2));
            wait(see.cancelled());
            set.type_gone(&informer.key.identity);
        });
        let threads = vec![reader, waits, task];
        let after = move || {
            assert!(model.informer().is_none());
            model.check_counts();
        };
        Scenario { threads, after: Box::new(after) }
    });

    eprintln!("waiting subscriber: {schedules} schedules");
}

#[test]
fn no_subscriber_keeps_an_informer_that_ends_when_the_last_one_leaves() {
    let schedules = explore(2, || {
        let model = Model::new();
        let last = model.subscribe();
        let informer = model.informer().unwrap();
        informer.put(&object("a", 1));
        let over = CancellationToken::new();
        let leaves = {
            let over = over.clone();
            model.act(move |_| {
                wait(last.release(Linger::None));
                over.cancel();
            })
        };
        let joined: Arc<Mutex<Option<Subscription>>> = Arc::default();
        let joins = {
            let joined = joined.clone();
            model.act(move |model| *joined.lock() = Some(model.subscribe()))
        };
        // The task ends if the informer is stopped, and stays alive otherwise.
        let going: Arc<Mutex<Option<TaskEnd>>> = Arc::default();
        let task: ThreadBody = {
            let ending = TaskEnd { set: model.set.shared.clone(), informer: informer.clone() };
            let going = going.clone();
            Box::new(move || {
                let stopped = wait(async {
                    tokio::select! {
                        biased;
                        () = ending.informer.stopped() => true,
                        () = over.cancelled() => false,
                    }
                });
                match stopped {
                    true => drop(ending),
                    false => *going.lock() = Some(ending),
                }
            })
        };
        let threads = vec![leaves, joins, task];
        let after = {
            let model = model.clone();
            move || {
                let subscription = joined.lock().take().unwrap();
                let its = subscription.informer();
                assert_eq!(its.closed(), None, "it is open");
                assert!(Arc::ptr_eq(&its, &model.informer().unwrap()), "it is in the set");
                match informer.closed() {
                    Some(reason) => {
                        assert_eq!(reason, EndReason::TypeGone);
                        assert_eq!(informer.done().now_or_never(), Some(EndReason::TypeGone));
                        assert!(informer.store.is_empty() && !Arc::ptr_eq(&its, &informer));
                    }
                    None => assert!(Arc::ptr_eq(&its, &informer)),
                }
                model.check_counts();
                // After the last subscriber leaves, no informer is left.
                let _going = going;
                assert!(subscription.release(Linger::None).now_or_never().is_none(), "awaits it");
                assert!(
                    model.informer().is_none() && its.store.is_empty() && its.subscribers() == 0
                );
                model.check_counts();
            }
        };
        Scenario { threads, after: Box::new(after) }
    });

    eprintln!("last leaves, new joins: {schedules} schedules");
}

#[test]
fn a_type_that_goes_ends_its_informer_and_a_shut_down_set_starts_none() {
    let schedules = explore(1, || {
        let model = Model::new();
        let first = model.subscribe();
        let informer = model.informer().unwrap();
        let joined: Arc<Mutex<Option<Subscription>>> = Arc::default();
        let joins = {
            let joined = joined.clone();
            model.act(move |model| *joined.lock() = Some(model.subscribe()))
        };
        let gone = model.act(|model| model.set.type_gone(&model.key.identity));
        let down = model.act(|model| {
            // The tasks it waits for are never polled here.
            assert!(model.set.shutdown().now_or_never().is_none());
        });
        let task = model.task(&informer, |informer| {
            informer.put(&object("a", 1));
        });
        let threads = vec![joins, gone, down, task];
        let after = {
            let model = model.clone();
            move || {
                let reason = informer.closed().unwrap();
                assert_eq!(
                    informer.done().now_or_never(),
                    Some(reason.clone()),
                    "once, with its reason"
                );
                assert_eq!(*informer.progress().borrow(), InformerProgress::Ended(reason.clone()));
                let mut first = first;
                assert_eq!(first.next().now_or_never().unwrap().unwrap_err(), reason);
                let mut second = joined.lock().take().unwrap();
                let end = second.next().now_or_never().unwrap().unwrap_err();
                assert_eq!(Some(end), second.informer().closed());
                assert_eq!(informer.closed(), Some(reason), "the first reason stands");
                drop((first, second));
                assert!(informer.store.is_empty(), "nothing is left");
                assert!(model.informer().is_none());
                model.check_counts();
            }
        };
        Scenario { threads, after: Box::new(after) }
    });

    eprintln!("type gone and shut down: {schedules} schedules");
}
