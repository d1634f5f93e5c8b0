//! Work queue under several threads, without a paused clock.

use std::{sync::atomic::AtomicBool, thread};

use super::*;

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
