//! Work queue under several threads, without a paused clock.

use std::{
    collections::HashMap,
    future::poll_fn,
    pin::pin,
    sync::atomic::AtomicBool,
    task::{Poll, ready},
    thread,
};

use prometheus_client::{encoding::text::encode, registry::Registry};

use super::*;
use crate::controller::metrics::ControllerMetrics;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn closing_ends_every_getter_while_threads_add_keys_and_takes_no_key_twice() {
    for _ in 0..20 {
        let (queue, ends) = (queue(), Arc::new(AtomicBool::new(false)));
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, ends) = (queue.clone(), Arc::clone(&ends));
                let add = move || {
                    let mut key = 0;
                    while !ends.load(Ordering::Relaxed) {
                        queue.add(key % 100);
                        key += 1;
                        thread::yield_now();
                    }
                };
                thread::spawn(add)
            })
            .collect();
        let (held, taken) = (Arc::new(Mutex::new(HashSet::new())), Arc::new(AtomicUsize::new(0)));
        let mut getters = JoinSet::new();
        for _ in 0..8 {
            let (queue, held, taken) = (queue.clone(), Arc::clone(&held), Arc::clone(&taken));
            getters.spawn(async move {
                while let Some(item) = queue.get().await {
                    assert!(held.lock().insert(item.key), "{} is held twice", item.key);
                    tokio::task::yield_now().await;
                    held.lock().remove(&item.key);
                    queue.done(&item.key);
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while taken.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }

        queue.close();

        let ended = timeout(Duration::from_secs(60), getters.join_all()).await;
        ended.expect("every getter ends");
        ends.store(true, Ordering::Relaxed);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert!(queue.is_empty(), "an add after the end is ignored");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiting_getters_are_woken_though_a_thread_takes_keys_without_waiting() {
    let (queue, ends) = (queue(), Arc::new(AtomicBool::new(false)));
    let taker = {
        let (queue, ends) = (queue.clone(), Arc::clone(&ends));
        let take = move || {
            while !ends.load(Ordering::Relaxed) {
                if let Some(item) = queue.try_get() {
                    queue.done(&item.key);
                }
            }
        };
        thread::spawn(take)
    };
    let mut getters = JoinSet::new();
    for _ in 0..3 {
        let queue = queue.clone();
        getters.spawn(async move {
            while let Some(item) = queue.get().await {
                queue.done(&item.key);
            }
        });
    }

    for round in 0..2_000 {
        (0..4).for_each(|key| queue.add(round * 4 + key));
        tokio::task::yield_now().await;
    }
    ends.store(true, Ordering::Relaxed);
    taker.join().unwrap();
    queue.add(0);

    let emptied = async {
        while !queue.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), emptied).await.expect("no key waits beside idle getters");
    queue.close();
    getters.join_all().await;
}

/// Returns the exported depth of each priority.
fn depths(registry: &Registry) -> Vec<i64> {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let depths = text.lines().filter(|line| line.starts_with("workqueue_depth{"));
    depths.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn key_is_handed_out_with_its_highest_priority_and_no_depth_is_ever_below_0() {
    let (families, mut registry) = (ControllerMetrics::default(), Registry::default());
    families.register(&mut registry);
    let metrics = families.series(&"a".into()).queue();
    let queue = Queue::<u32>::with_metrics(QueueOptions::default(), metrics);
    // Highest priority of each key since it was last handed out.
    let added = Arc::new(Mutex::new(HashMap::<u32, i32>::new()));
    let held = Arc::new(Mutex::new(HashSet::new()));
    let mut consumers = JoinSet::new();
    for _ in 0..100 {
        let (queue, added, held) = (queue.clone(), Arc::clone(&added), Arc::clone(&held));
        consumers.spawn(async move {
            loop {
                let mut get = pin!(queue.get());
                // Polled under the lock of the producers, so that no add comes between.
                let taken = poll_fn(|context| {
                    let mut added = added.lock();
                    let item = ready!(get.as_mut().poll(context));
                    Poll::Ready(item.map(|item| (added.remove(&item.key), item)))
                });
                let Some((highest, item)) = taken.await else { break };
                assert_eq!(Some(item.priority), highest, "{}", item.key);
                assert!(held.lock().insert(item.key), "{} is held twice", item.key);
                tokio::task::yield_now().await;
                held.lock().remove(&item.key);
                queue.done(&item.key);
            }
        });
    }
    let ends = Arc::new(AtomicBool::new(false));
    let sampler = {
        let ends = Arc::clone(&ends);
        let sample = move || {
            let mut lowest = 0;
            while !ends.load(Ordering::Relaxed) {
                lowest = depths(&registry).into_iter().fold(lowest, i64::min);
            }
            (lowest, registry)
        };
        thread::spawn(sample)
    };
    let producers: Vec<_> = (0..10u32)
        .map(|producer| {
            let (queue, added) = (queue.clone(), Arc::clone(&added));
            let add = move || {
                for number in 0..1000 {
                    let key = (producer * 131 + number * 7) % 300;
                    let priority = i32::try_from((producer + number * 13) % 7).unwrap() - 3;
                    let mut added = added.lock();
                    let highest = added.entry(key).or_insert(priority);
                    *highest = priority.max(*highest);
                    let after = Duration::from_micros(u64::from(number % 3) * 300);
                    queue.add_with(key, Add { priority, after, ..Add::default() });
                }
            };
            thread::spawn(add)
        })
        .collect();

    let has_ended = || producers.iter().all(thread::JoinHandle::is_finished);
    let emptied = async {
        while !(has_ended() && added.lock().is_empty() && held.lock().is_empty()) {
            assert!(consumers.try_join_next().is_none(), "a consumer failed");
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), emptied).await.expect("every key is handed out");
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    ends.store(true, Ordering::Relaxed);
    let (lowest, registry) = sampler.join().unwrap();

    assert_eq!(lowest, 0);
    let depths = depths(&registry);
    assert!(depths.len() >= 7 && depths.iter().all(|depth| *depth == 0), "{depths:?}");
    queue.close();
    consumers.join_all().await;
}
