use std::{cell::Cell, time::Duration};

use futures::FutureExt;

use super::*;
use crate::{
    informer::{
        Index, Interest, Linger, Object, ObjectKey,
        fixture::{Fixture, widgets},
        interest::COMPARED,
        script::{Harness, change, run_until_idle, stored, widget},
    },
    kind::GroupKind,
};

impl InformerSet {
    fn tasks(&self) -> usize {
        self.shared.tasks.len()
    }
}

#[tokio::test(start_paused = true)]
async fn constructing_and_reading_starts_nothing() {
    let mut harness = Harness::new();

    assert!(harness.set.status().is_empty());
    assert_eq!(harness.set.ended(&harness.key).await, EndReason::Released);
    harness.set.type_gone(&harness.key.identity);
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn a_late_joiner_gets_everything_and_then_every_change_without_a_request() {
    let mut harness = Harness::new();
    let (mut first, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    let mut late = harness.subscribe();
    watch.event("DELETED", &widget("b", 11));
    watch.event("ADDED", &widget("c", 12));
    assert_eq!(change(&mut first).await, ("b".into(), 2, 0));
    assert_eq!(change(&mut first).await, ("c".into(), 0, 12));

    let mut both = [late.next().await.unwrap(), late.next().await.unwrap()];
    both.sort_by_key(|delta| delta.key.name.to_string());
    let [a, b] = &both;
    assert!(a.initial && a.old.is_none() && a.new.is_some());
    // The subscriber's store contained `b`, though `b` was never popped.
    assert!(!b.initial && b.old.is_some() && b.new.is_none());
    // `c` came before the scan of the store had ended, which found it.
    assert_eq!(change(&mut late).await, ("c".into(), 0, 12));
    late.drained().await;
    watch.event("DELETED", &widget("a", 13));
    assert_eq!(change(&mut late).await, ("a".into(), 1, 0));
    harness.script.assert_quiet();
    assert_eq!(harness.set.status()[0].subscribers, 2);
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_joins_before_the_first_list_waits_for_its_end() {
    let mut harness = Harness::new();
    let first = harness.subscribe();
    harness.script.list().await.page(10, "more", &[widget("a", 1)]);
    let last_page = harness.script.list().await;

    let mut second = harness.subscribe();
    assert_eq!(change(&mut second).await, ("a".into(), 0, 1));
    let mut drained = Box::pin(second.drained());
    assert!(futures::poll!(&mut drained).is_pending());

    last_page.page(10, "", &[]);
    drained.await;
    let mut drained = Box::pin(first.drained());
    assert!(futures::poll!(&mut drained).is_pending());
}

#[tokio::test(start_paused = true)]
async fn slow_subscriber_delays_no_other_and_receives_the_last_state() {
    let mut harness = Harness::new();
    let (mut fast, watch) = harness.synced(&[widget("a", 1)]).await;
    let mut slow = harness.subscribe();
    assert_eq!(change(&mut slow).await, ("a".into(), 0, 1));

    for version in 11..1000 {
        watch.event("MODIFIED", &widget("a", version));
        assert_eq!(change(&mut fast).await.2, version);
    }

    assert_eq!(change(&mut slow).await, ("a".into(), 1, 999));
    run_until_idle().await;
    assert!(slow.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_last_to_leave_closes_the_watch_after_the_linger() {
    let mut harness = Harness::new();
    let (first, watch) = harness.synced(&[widget("a", 1)]).await;
    let second = harness.subscribe();
    let store = second.store();
    let ended = harness.set.ended(&harness.key);

    drop(first);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.set.status().len(), 1);
    second.release(Linger::Default).await;
    let left = tokio::time::Instant::now();

    assert_eq!(ended.await, EndReason::Released);
    assert_eq!(left.elapsed(), Duration::from_secs(10));
    watch.dropped().await;
    assert!(harness.set.status().is_empty() && store.is_empty());
    run_until_idle().await;
    assert_eq!(harness.set.tasks(), 0);
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_joins_during_the_linger_costs_no_request() {
    let mut harness = Harness::new();
    let (first, watch) = harness.synced(&[widget("a", 1)]).await;

    drop(first);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        let mut next = harness.subscribe();
        assert_eq!(change(&mut next).await, ("a".into(), 0, 1));
        next.drained().await;
    }
    let mut last = harness.subscribe();
    assert_eq!(change(&mut last).await, ("a".into(), 0, 1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    watch.event("MODIFIED", &widget("a", 11));

    assert_eq!(change(&mut last).await.2, 11);
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn a_release_without_linger_resolves_when_nothing_is_left() {
    let mut harness = Harness::new();
    let (first, watch) = harness.synced(&[widget("a", 1)]).await;
    let second = harness.subscribe();
    let store = first.store();
    let ended = harness.set.ended(&harness.key);

    first.release(Linger::None).await;
    assert_eq!(store.len(), 1);
    second.release(Linger::None).await;

    assert!(watch.dropped().now_or_never().is_some());
    assert_eq!((store.len(), store.bytes()), (0, 0));
    assert_eq!(ended.now_or_never(), Some(EndReason::TypeGone));
    run_until_idle().await;
    assert_eq!(harness.set.tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_drops_a_request_that_was_not_answered() {
    let mut harness = Harness::new();
    let subscription = harness.subscribe();
    let list = harness.script.list().await;

    subscription.release(Linger::None).await;

    list.abandoned().await;
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_joins_during_the_end_gets_another_informer() {
    let mut harness = Harness::new();
    let (first, watch) = harness.synced(&[widget("a", 1)]).await;
    let mut release = Box::pin(first.release(Linger::None));
    assert!(futures::poll!(&mut release).is_pending());

    let mut second = harness.subscribe();
    release.await;
    watch.dropped().await;
    harness.script.list().await.page(20, "", &[widget("a", 15)]);

    assert_eq!(change(&mut second).await, ("a".into(), 0, 15));
    harness.script.watch(20).await;
    assert_eq!(harness.set.status().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pending_changes_of_an_ended_informer_are_taken_once() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;
    watch.event("MODIFIED", &widget("a", 11));
    watch.event("MODIFIED", &widget("b", 12));
    watch.event("DELETED", &widget("a", 13));
    run_until_idle().await;

    harness.set.type_gone(&harness.key.identity);

    assert!(subscription.next().now_or_never().unwrap().is_err());
    let version =
        |object: Option<Object>| object.map(|object| object.header().resource_version.to_string());
    let pending: Vec<_> = subscription
        .take_pending()
        .into_iter()
        .map(|delta| (delta.key.to_string(), version(delta.old), version(delta.new)))
        .collect();
    let [one, two, twelve] = ["1", "2", "12"].map(|version| Some(version.to_owned()));
    assert_eq!(pending, [("a".to_owned(), one, None), ("b".to_owned(), two, twelve)]);
    assert!(subscription.take_pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn removal_of_a_type_ends_its_informers_with_their_subscribers() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;
    let (store, progress) = (subscription.store(), subscription.progress());
    let ended = harness.set.ended(&harness.key);
    watch.event("MODIFIED", &widget("a", 11));
    run_until_idle().await;
    let mut other = harness.key.identity.clone();
    other.uid = Some("another".into());

    harness.set.type_gone(&other);
    assert_eq!(harness.set.status().len(), 1);
    harness.set.type_gone(&harness.key.identity);

    assert_eq!(subscription.next().now_or_never().unwrap().unwrap_err(), EndReason::TypeGone);
    assert_eq!(store.len(), 1, "running reconciles keep reading the store");
    assert_eq!(*progress.borrow(), InformerProgress::Ended(EndReason::TypeGone));
    assert!(harness.set.types().borrow().is_empty());

    // The type is served again before the subscriber has left.
    let mut again = harness.subscribe();
    harness.script.list().await.page(20, "", &[widget("b", 15)]);
    assert_eq!(change(&mut again).await, ("b".into(), 0, 15));
    again.drained().await;
    let rewatch = harness.script.watch(20).await.open();
    run_until_idle().await;
    assert_eq!(*again.progress().borrow(), InformerProgress::Synced);
    assert_eq!(subscription.next().now_or_never().unwrap().unwrap_err(), EndReason::TypeGone);
    assert_eq!(*progress.borrow(), InformerProgress::Ended(EndReason::TypeGone));
    assert_eq!(stored(&subscription), [("a".to_owned(), 11)], "the stores are separate");

    subscription.release(Linger::None).await;
    assert!(store.is_empty());
    assert!(watch.dropped().now_or_never().is_some());
    assert_eq!(ended.await, EndReason::TypeGone);
    rewatch.event("MODIFIED", &widget("b", 21));
    assert_eq!(change(&mut again).await, ("b".into(), 15, 21));
    assert_eq!(harness.set.status().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn panic_ends_one_informer_and_is_reported() {
    let mut harness = Harness::new();
    let (mut first, watch) = harness.synced(&[widget("a", 1)]).await;
    drop(watch);
    let bystander_key = InformerKey { namespace: Some("ns".into()), ..harness.key.clone() };
    harness.script.watch(10).await.explode();

    let ended = first.next().await.unwrap_err();
    assert_eq!(ended, EndReason::Panicked("a defect of ours".into()));
    assert_eq!(first.ended().await, ended);
    assert!(harness.set.status().is_empty());

    harness.key = bystander_key;
    let (_bystander, _watch) = harness.synced(&[widget("b", 1)]).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_all_informers_and_refuses_new_subscribers() {
    let mut harness = Harness::new();
    let (mut first, watch) = harness.synced(&[widget("a", 1)]).await;
    harness.key.namespace = Some("ns".into());
    let mut second = harness.subscribe();
    let list = harness.script.list().await;

    harness.set.shutdown().await;

    assert_eq!(first.next().await.unwrap_err(), EndReason::Shutdown);
    assert_eq!(second.next().await.unwrap_err(), EndReason::Shutdown);
    watch.dropped().await;
    list.abandoned().await;
    assert_eq!(harness.set.tasks(), 0);
    let mut late = harness.subscribe();
    assert_eq!(late.next().await.unwrap_err(), EndReason::Shutdown);
    late.release(Linger::None).await;
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_early_is_no_sync() {
    let mut harness = Harness::new();
    let subscription = harness.subscribe();
    let drained = subscription.drained();
    harness.script.list().await.page(10, "more", &[widget("a", 1)]);

    harness.set.type_gone(&harness.key.identity);
    drop(subscription);

    run_until_idle().await;
    assert!(drained.now_or_never().is_none());
}

fn encoded(set: &InformerSet) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    set.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn objects_that_become_entries_are_counted_as_such_at_once() {
    let mut harness = Harness::new();
    let entries = |set: &InformerSet| {
        let text = encoded(set);
        let line = text.lines().find(|line| line.starts_with("pilotlight_informer_entries{"));
        line.and_then(|line| line.rsplit_once(' ')).map(|(_, count)| count.to_owned())
    };
    let (everything, _watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;
    let _named = harness.subscribe_to(vec![Interest::Named(ObjectKey::cluster("b"))]);
    run_until_idle().await;
    assert_eq!(entries(&harness.set).as_deref(), Some("0"));

    drop(everything);
    tokio::time::sleep(Duration::from_secs(60)).await;

    assert_eq!(entries(&harness.set).as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn last_objects_of_a_subscriber_are_found_by_the_kind_of_their_owner() {
    let mut harness = Harness::new();
    let kind = GroupKind { group: String::new(), kind: "Owner".to_owned() };
    let subscription = harness.subscribe_to(vec![Interest::OwnerKind(kind)]);
    let foreign = (0..1_000).map(|number| widget(&format!("w{number}"), 1));
    let own = Fixture::new("a").version(1).controller("u").json();
    let items: Vec<_> = foreign.chain([own]).collect();
    harness.script.list().await.page(10, "", &items);
    let _watch = harness.script.watch(10).await.open();
    run_until_idle().await;

    let before = COMPARED.with(Cell::get);
    let concerned = subscription.concerned();

    assert_eq!(concerned.len(), 1);
    let compared = COMPARED.with(Cell::get) - before;
    assert!(compared < 10, "{compared}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_any_number_of_informers() {
    let mut harness = Harness::new();
    let (first, _watch) = harness.synced(&[widget("a", 1)]).await;
    first.release(Linger::None).await;
    run_until_idle().await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let metrics = encoded(&harness.set);

    for round in 0..100 {
        let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        match round % 4 {
            0 => subscription.release(Linger::None).await,
            1 => harness.set.type_gone(&harness.key.identity),
            2 => {
                drop(watch);
                harness.script.watch(10).await.explode();
                subscription.ended().await;
            }
            _ => {
                drop(subscription);
                tokio::time::sleep(Duration::from_secs(11)).await;
            }
        }
    }

    run_until_idle().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), tasks);
    assert_eq!(encoded(&harness.set), metrics);
    harness.script.assert_quiet();
}

#[tokio::test(start_paused = true)]
async fn unequal_keys_have_watches_of_their_own() {
    let mut harness = Harness::new();
    let (first, _watch) = harness.synced(&[widget("a", 1)]).await;
    harness.key.labels = Some("x=y".into());
    let (second, _other) = harness.synced(&[]).await;

    assert_eq!(stored(&first).len(), 1);
    assert!(stored(&second).is_empty());
    assert_eq!(harness.set.status().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn any_number_of_threads_may_join_leave_and_end_it() {
    let mut harness = Harness::new();
    let set = harness.set.clone();
    let mut users = tokio::task::JoinSet::new();
    for user in 0..8 {
        let (set, key) = (set.clone(), harness.key.clone());
        users.spawn(async move {
            for round in 0..200 {
                let mut subscription = set.subscribe(&widgets(), key.clone());
                match subscription.next().await {
                    Ok(delta) => assert_eq!(&*delta.key.name, "a"),
                    Err(ended) => assert_eq!(ended, EndReason::TypeGone),
                }
                match (user, round % 3) {
                    (0, 0) => set.type_gone(&key.identity),
                    (_, 0) => drop(subscription),
                    (_, 1) => subscription.release(Linger::Default).await,
                    (..) => subscription.release(Linger::None).await,
                }
            }
        });
    }

    let mut watches = Vec::new();
    loop {
        tokio::select! {
            request = harness.script.next() => {
                if request.is_watch() {
                    watches.push(request.open());
                } else {
                    request.page(10, "", &[widget("a", 1)]);
                }
            }
            ended = users.join_next() => match ended {
                Some(ended) => ended.unwrap(),
                None => break,
            },
        }
    }

    set.shutdown().await;
    assert_eq!(set.tasks(), 0);
    for watch in watches {
        watch.dropped().await;
    }
}

#[tokio::test]
async fn a_runtime_that_ends_ends_its_informers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut subscription = {
        let guard = runtime.enter();
        let subscription = Harness::new().subscribe();
        drop(guard);
        subscription
    };

    runtime.shutdown_background();

    assert_eq!(subscription.next().await.unwrap_err(), EndReason::Shutdown);
    subscription.release(Linger::None).await;
}

#[tokio::test(start_paused = true)]
async fn indexes_of_one_name_are_each_subscribers_own() {
    let mut harness = Harness::new();
    let (one, _watch) = harness.synced(&[widget("a", 1)]).await;
    let other = harness.subscribe();

    one.store().add_index(Index::new("by", |object| vec![object.key().name.to_string()]));
    other.store().add_index(Index::new("by", |_object| vec!["all".to_owned()]));

    assert_eq!(one.store().by_index("by", "a").unwrap().len(), 1);
    assert_eq!(other.store().by_index("by", "all").unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn index_is_removed_with_its_subscriber() {
    let mut harness = Harness::new();
    let (one, _watch) = harness.synced(&[widget("a", 1)]).await;
    let other = harness.subscribe();
    let held = Arc::new(());
    let captured = Arc::clone(&held);
    one.store().add_index(Index::new("by", move |object| {
        let _held = &captured;
        vec![object.key().name.to_string()]
    }));

    let store = one.store();
    assert!(store.by_index("by", "none").unwrap().is_empty());
    one.release(Linger::Default).await;
    run_until_idle().await;

    assert!(store.by_index("by", "a").is_err(), "no result would look like no object");
    assert_eq!(Arc::strong_count(&held), 1, "its function is kept, and called for every object");
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn closing_frees_no_object_under_the_locks_that_it_is_done_under() {
    let mut harness = Harness::new();
    let (first, _watch) = harness.synced(&[widget("a", 1)]).await;
    let (informer, store) = (first.informer(), first.store());
    drop(first);

    let guard = harness.set.shared.lock();
    assert!(informer.close_if_unused(EndReason::Released));
    assert_eq!(store.len(), 1, "no store is cleared under the set's lock");
    drop(guard);

    run_until_idle().await;
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn interests_of_every_clone_move_to_the_replacement() {
    let mut harness = Harness::new();
    let named = |name: &str| vec![Interest::Named(ObjectKey::cluster(name))];
    let (key, other) = (ObjectKey::cluster("parent"), ObjectKey::cluster("other"));
    let mut replaced = harness.subscribe_to(Vec::new());
    harness.script.list().await.page(10, "", &[widget("a", 1), widget("b", 2)]);
    let watch = harness.script.watch(10).await.open();
    let moving = replaced.moving_interests();
    moving.set(key.clone(), named("a"));
    moving.set(other.clone(), named("b"));
    let mut replacement = harness.subscribe_to(Vec::new());
    let early = moving.clone();

    moving.move_to(&replacement);
    early.set(key.clone(), named("b"));
    early.remove(other.clone());
    watch.event("MODIFIED", &widget("b", 11));
    assert_eq!(change(&mut replaced).await, ("b".into(), 2, 11));
    assert_eq!(change(&mut replacement).await, ("b".into(), 2, 11));

    moving.end_move();
    drop(replaced);
    early.set(key.clone(), named("a"));
    watch.event("MODIFIED", &widget("b", 12));
    watch.event("MODIFIED", &widget("a", 13));
    assert_eq!(change(&mut replacement).await, ("a".into(), 1, 13));
    moving.remove(key.clone());
    watch.event("MODIFIED", &widget("a", 14));
    run_until_idle().await;
    assert!(replacement.next().now_or_never().is_none(), "no interest is left");
}

#[tokio::test(start_paused = true)]
async fn interest_set_during_a_move_reaches_both_and_later_ones_the_replacement() {
    let mut harness = Harness::new();
    let named = |name: &str| vec![Interest::Named(ObjectKey::cluster(name))];
    let key = ObjectKey::cluster("parent");
    let mut replaced = harness.subscribe_to(Vec::new());
    let objects = [widget("a", 1), widget("b", 2), widget("c", 3)];
    harness.script.list().await.page(10, "", &objects);
    let watch = harness.script.watch(10).await.open();
    let moving = replaced.moving_interests();
    moving.set(key.clone(), named("a"));
    let mut replacement = harness.subscribe_to(Vec::new());

    moving.move_to(&replacement);
    watch.event("MODIFIED", &widget("a", 11));
    assert_eq!(change(&mut replaced).await, ("a".into(), 1, 11));
    assert_eq!(change(&mut replacement).await, ("a".into(), 1, 11));
    moving.set(key.clone(), named("b"));
    watch.event("MODIFIED", &widget("b", 12));
    assert_eq!(change(&mut replaced).await, ("b".into(), 2, 12));
    assert_eq!(change(&mut replacement).await, ("b".into(), 2, 12));
    moving.end_move();
    moving.set(key.clone(), named("c"));
    watch.event("MODIFIED", &widget("c", 13));

    assert_eq!(change(&mut replacement).await, ("c".into(), 3, 13));
    run_until_idle().await;
    assert!(replaced.next().now_or_never().is_none(), "the move has ended");
}
