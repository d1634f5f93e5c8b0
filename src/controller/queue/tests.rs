//! Work queue under a clock that is paused, with real getters.

mod metrics;
mod threads;

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Wake, Waker},
    time::Duration,
};

use futures::future::BoxFuture;

use tokio::{
    task::JoinSet,
    time::{advance, sleep, timeout},
};

use super::*;

fn queue() -> Queue<u32> {
    Queue::new(QueueOptions::default())
}

fn after(millis: u64) -> Add {
    Add { after: Duration::from_millis(millis), ..Add::default() }
}

async fn key(queue: &Queue<u32>) -> Option<u32> {
    queue.get().await.map(|item| item.key)
}

#[tokio::test(start_paused = true)]
async fn delayed_key_is_handed_out_when_its_time_is_over() {
    let queue = queue();
    let start = Instant::now();
    queue.add_with(1, after(50));
    queue.add_with(2, after(20));

    assert_eq!(key(&queue).await, Some(2));
    assert_eq!(start.elapsed(), Duration::from_millis(20));
    assert_eq!(key(&queue).await, Some(1));
    assert_eq!(start.elapsed(), Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn waiting_getter_wakes_for_a_key_that_is_due_earlier() {
    let queue = queue();
    let start = Instant::now();
    queue.add_with(1, after(500));
    let mut getters = JoinSet::new();
    let getter = queue.clone();
    getters.spawn(async move { key(&getter).await });
    sleep(Duration::from_millis(10)).await;

    queue.add_with(2, after(20));

    assert_eq!(getters.join_next().await.unwrap().unwrap(), Some(2));
    assert_eq!(start.elapsed(), Duration::from_millis(30));
}

#[tokio::test(start_paused = true)]
async fn keys_due_in_the_same_millisecond_come_in_the_order_of_their_times() {
    let queue = queue();
    for number in 0..20 {
        queue.add_with(
            number,
            Add { after: Duration::from_micros(u64::from(number) + 1), ..Add::default() },
        );
    }

    for number in 0..20 {
        assert_eq!(key(&queue).await, Some(number));
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_made_ready_in_time_while_no_worker_is_free() {
    let queue = queue();
    queue.add_with(1, after(10));
    let idle = timeout(Duration::from_millis(20), queue.get_if(false)).await;
    assert!(idle.is_err());

    queue.add(2);

    assert_eq!(key(&queue).await, Some(1), "it was ready first");
    assert_eq!(key(&queue).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn adding_with_a_delay_needs_no_runtime() {
    let queue = queue();
    let adder = queue.clone();

    std::thread::spawn(move || adder.add_with(1, after(10))).join().unwrap();

    assert_eq!(key(&queue).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn delay_of_centuries_does_no_harm() {
    let queue = queue();

    queue.add_with(1, Add { after: Duration::MAX, ..Add::default() });

    assert!(timeout(Duration::from_secs(60), queue.get()).await.is_err());
    queue.add(1);
    assert_eq!(key(&queue).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn dropped_getter_loses_nothing_and_another_one_keeps_the_time() {
    let queue = queue();
    queue.add_with(1, after(50));
    let mut getters = JoinSet::new();
    for _ in 0..3 {
        let queue = queue.clone();
        getters.spawn(async move { key(&queue).await });
    }
    sleep(Duration::from_millis(1)).await;
    for _ in 0..2 {
        // Any of the getters may have driven the timers.
        assert!(timeout(Duration::from_millis(1), queue.get()).await.is_err());
    }

    assert_eq!(getters.join_next().await.unwrap().unwrap(), Some(1));
    queue.close();
    assert_eq!(getters.join_all().await, [None, None]);
}

#[tokio::test(start_paused = true)]
async fn closing_wakes_every_getter() {
    let queue = queue();
    let mut getters = JoinSet::new();
    for _ in 0..5 {
        let queue = queue.clone();
        getters.spawn(async move { queue.get().await });
    }
    sleep(Duration::from_millis(1)).await;

    queue.close();

    assert!(getters.join_all().await.iter().all(Option::is_none));
    assert_eq!(queue.get().await, None);
}

#[tokio::test(start_paused = true)]
async fn drain_resolves_when_the_last_key_is_done() {
    let queue = queue();
    queue.add(1);
    queue.add(2);
    queue.add_with(3, after(10));
    let mut drain = pin!(queue.drain());
    assert!(timeout(Duration::from_millis(20), &mut drain).await.is_err());

    for number in [1, 2] {
        assert_eq!(key(&queue).await, Some(number));
    }
    queue.done(&1);
    assert!(timeout(Duration::from_millis(20), &mut drain).await.is_err());
    queue.done(&2);

    drain.await;
    assert_eq!(queue.get().await, None);
}

#[tokio::test(start_paused = true)]
async fn drain_of_an_empty_queue_resolves_at_once_and_ends_getters() {
    let queue = queue();
    let mut getters = JoinSet::new();
    let getter = queue.clone();
    getters.spawn(async move { key(&getter).await });
    advance(Duration::from_millis(1)).await;

    queue.drain().await;

    assert_eq!(getters.join_next().await.unwrap().unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_producers_and_consumers_never_hold_a_key_twice_and_lose_none() {
    let queue = queue();
    let held = Arc::new(Mutex::new(HashSet::new()));
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let mut producers = JoinSet::new();
    let mut consumers = JoinSet::new();
    for producer in 0..8u32 {
        let queue = queue.clone();
        producers.spawn(async move {
            for number in 0..500 {
                let key = (producer * 131 + number * 7) % 300;
                let after = Duration::from_micros(u64::from(number % 3) * 300);
                let rate_limited = number % 11 == 0;
                queue.add_with(
                    key,
                    Add { priority: (number % 3) as i32, after, rate_limited, ..Add::default() },
                );
                if number % 50 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    for _ in 0..16 {
        let (queue, held, seen) = (queue.clone(), Arc::clone(&held), Arc::clone(&seen));
        consumers.spawn(async move {
            while let Some(item) = queue.get().await {
                assert!(held.lock().insert(item.key), "{} is held twice", item.key);
                tokio::task::yield_now().await;
                held.lock().remove(&item.key);
                seen.lock().insert(item.key);
                queue.forget(&item.key);
                queue.done(&item.key);
            }
        });
    }

    producers.join_all().await;
    timeout(Duration::from_secs(30), async {
        while seen.lock().len() < 300 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    queue.drain().await;

    consumers.join_all().await;
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn keys_due_at_the_same_time_wake_as_many_getters() {
    let queue = queue();
    let mut getters = JoinSet::new();
    for _ in 0..3 {
        let getter = queue.clone();
        getters.spawn(async move { key(&getter).await });
    }
    sleep(Duration::from_millis(1)).await;

    // Each getter keeps its key: none of them requests again.
    (0..3).for_each(|key| queue.add_with(key, after(10)));

    let taken = timeout(Duration::from_millis(11), getters.join_all()).await.unwrap();
    assert_eq!(taken.into_iter().collect::<HashSet<_>>(), HashSet::from([0, 1, 2].map(Some)));
}

#[tokio::test(start_paused = true)]
async fn getter_that_is_dropped_after_its_wake_leaves_the_key_to_another_one() {
    let queue = queue();
    let mut first = pin!(key(&queue));
    let mut second = pin!(key(&queue));
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert!(futures::poll!(second.as_mut()).is_pending());

    queue.add(1);
    first.set(key(&queue));

    assert_eq!(timeout(Duration::from_millis(1), second).await.unwrap(), Some(1));
}

/// Getter that is polled by hand, and counts its wakes.
struct PolledGetter {
    key: BoxFuture<'static, Option<u32>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl PolledGetter {
    /// Returns a getter that waits.
    fn waiting(queue: &Queue<u32>) -> Self {
        let queue = queue.clone();
        let key = Box::pin(async move { key(&queue).await });
        let mut getter = Self { key, wakes: Arc::default() };
        assert!(getter.poll().is_pending());
        getter
    }

    fn is_woken(&self) -> bool {
        self.wakes.0.load(Ordering::Relaxed) > 0
    }

    fn poll(&mut self) -> Poll<Option<u32>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.key.as_mut().poll(&mut task::Context::from_waker(&waker))
    }
}

/// Polls the getters that are woken, until no other one is; returns their keys.
fn poll_woken(getters: &mut Vec<PolledGetter>) -> Vec<u32> {
    let mut keys = Vec::new();
    while let Some(woken) = getters.iter().position(PolledGetter::is_woken) {
        let mut getter = getters.remove(woken);
        match getter.poll() {
            Poll::Ready(key) => keys.extend(key),
            Poll::Pending => panic!("woken without a key"),
        }
    }
    keys
}

#[tokio::test(start_paused = true)]
async fn burst_of_adds_wakes_few_getters_and_each_wakes_the_next() {
    let queue = queue();
    let mut getters: Vec<_> = (0..20).map(|_| PolledGetter::waiting(&queue)).collect();

    (0..10).for_each(|key| queue.add(key));

    let woken = getters.iter().filter(|getter| getter.is_woken()).count();
    assert_eq!(woken, MAX_NOTIFIED);
    assert_eq!(poll_woken(&mut getters), (0..10).collect::<Vec<_>>());
    assert_eq!(getters.len(), 10, "no other one is woken");
}

#[tokio::test(start_paused = true)]
async fn getters_that_are_dropped_after_their_wakes_block_no_later_ones() {
    let queue = queue();
    for round in 0..5 {
        let dropped: Vec<_> = (0..3).map(|_| PolledGetter::waiting(&queue)).collect();
        (0..3).for_each(|key| queue.add(key));
        assert!(dropped.iter().any(PolledGetter::is_woken), "round {round}");
        drop(dropped);
        for _ in 0..3 {
            queue.done(&key(&queue).await.unwrap());
        }

        let mut getters: Vec<_> = (0..3).map(|_| PolledGetter::waiting(&queue)).collect();
        (0..3).for_each(|key| queue.add(key));

        assert_eq!(poll_woken(&mut getters), [0, 1, 2], "round {round}");
        (0..3).for_each(|key| queue.done(&key));
    }
}

#[tokio::test(start_paused = true)]
async fn getter_that_takes_a_key_leaves_the_timers_to_another_one() {
    let queue = queue();
    let mut getters = JoinSet::new();
    for _ in 0..2 {
        let getter = queue.clone();
        getters.spawn(async move { key(&getter).await });
    }
    sleep(Duration::from_millis(1)).await;
    queue.add_with(1, after(10));
    sleep(Duration::from_millis(1)).await;

    queue.add(2);

    assert_eq!(getters.join_next().await.unwrap().unwrap(), Some(2));
    let second = timeout(Duration::from_millis(20), getters.join_next()).await;
    assert_eq!(second.unwrap().unwrap().unwrap(), Some(1));
}
