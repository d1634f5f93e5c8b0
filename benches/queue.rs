//! Bench: work queue, as a ratio to a plain reference in the same run.
//!
//! `cargo bench --bench queue` prints the median time of each case. The reference is a `VecDeque`
//! and a `HashSet` behind a mutex: it deduplicates, and has neither priorities nor delays, nor does
//! it know which keys are in processing. Compare ratios; times depend on the machine.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and fails loudly")]

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pilotlight::controller::{Add, Queue, QueueOptions};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep},
};

/// Items of one round.
const ITEMS: u64 = 1_000;
/// Workers of the contended case.
const WORKERS: usize = 1_000;
/// Producers of the contended case.
const PRODUCERS: u64 = 4;
const ROUNDS: usize = 101;
/// Delays of the delayed case are spread over this time.
const SPREAD: Duration = Duration::from_millis(5);

/// Queue under test, or the reference.
trait Subject: Clone + Send + Sync + 'static {
    fn new() -> Self;
    fn add(&self, key: u64);
    fn get(&self) -> impl Future<Output = u64> + Send;
    fn done(&self, key: u64);
    /// Adds all items, each after its delay.
    fn add_delayed(&self, delays: impl Iterator<Item = (u64, Duration)>);
}

#[derive(Clone)]
struct Reference {
    state: Arc<Mutex<(VecDeque<u64>, HashSet<u64>)>>,
    changed: Arc<Notify>,
}

impl Subject for Reference {
    fn new() -> Self {
        Self { state: Arc::default(), changed: Arc::default() }
    }

    fn add(&self, key: u64) {
        let mut state = self.state.lock().unwrap();
        if state.1.insert(key) {
            state.0.push_back(key);
            drop(state);
            self.changed.notify_one();
        }
    }

    async fn get(&self) -> u64 {
        loop {
            let changed = self.changed.notified();
            let next = self.state.lock().unwrap().0.pop_front();
            if let Some(key) = next {
                return key;
            }
            changed.await;
        }
    }

    fn done(&self, key: u64) {
        self.state.lock().unwrap().1.remove(&key);
    }

    fn add_delayed(&self, delays: impl Iterator<Item = (u64, Duration)>) {
        for (key, after) in delays {
            let queue = self.clone();
            #[expect(clippy::disallowed_methods, reason = "the reference has no owner of tasks")]
            drop(tokio::spawn(async move {
                sleep(after).await;
                queue.add(key);
            }));
        }
    }
}

impl Subject for Queue<u64> {
    fn new() -> Self {
        Queue::new(QueueOptions::default())
    }

    fn add(&self, key: u64) {
        Queue::add(self, key);
    }

    async fn get(&self) -> u64 {
        Queue::get(self).await.unwrap().key
    }

    fn done(&self, key: u64) {
        Queue::done(self, &key);
    }

    fn add_delayed(&self, delays: impl Iterator<Item = (u64, Duration)>) {
        for (key, after) in delays {
            self.add_with(key, Add { after, ..Add::default() });
        }
    }
}

/// Adds, gets and ends 1,000 items in one task.
fn uncontended<S: Subject>(runtime: &Runtime) -> Duration {
    let queue = S::new();
    let round = async {
        (0..ITEMS).for_each(|key| queue.add(key));
        for _ in 0..ITEMS {
            let key = queue.get().await;
            queue.done(key);
        }
    };
    runtime.block_on(async {
        // The first round allocates.
        round.await;
        let start = Instant::now();
        (0..ITEMS).for_each(|key| queue.add(key));
        for _ in 0..ITEMS {
            let key = queue.get().await;
            queue.done(key);
        }
        start.elapsed()
    })
}

/// Adds 1,000 items from several tasks to a queue with 1,000 workers that wait.
fn contended<S: Subject>(runtime: &Runtime) -> Duration {
    let queue = S::new();
    let ended = Arc::new(AtomicUsize::new(0));
    let all_ended = Arc::new(Notify::new());
    runtime.block_on(async {
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let (queue, ended, all) = (queue.clone(), Arc::clone(&ended), Arc::clone(&all_ended));
            workers.spawn(async move {
                loop {
                    let key = queue.get().await;
                    queue.done(key);
                    if ended.fetch_add(1, Ordering::SeqCst) + 1 == usize::try_from(ITEMS).unwrap() {
                        all.notify_one();
                    }
                }
            });
        }
        sleep(Duration::from_millis(5)).await;
        let start = Instant::now();
        let mut producers = JoinSet::new();
        for producer in 0..PRODUCERS {
            let queue = queue.clone();
            producers.spawn(async move {
                (0..ITEMS).filter(|key| key % PRODUCERS == producer).for_each(|key| queue.add(key));
            });
        }
        all_ended.notified().await;
        let elapsed = start.elapsed();
        producers.join_all().await;
        workers.shutdown().await;
        elapsed
    })
}

/// Adds 1,000 items with delays, and ends each when it is due; the time beyond the longest delay.
fn delayed<S: Subject>(runtime: &Runtime) -> Duration {
    let queue = S::new();
    let step = SPREAD / u32::try_from(ITEMS).unwrap();
    runtime.block_on(async {
        let start = Instant::now();
        // A permutation, so that the times are not in order.
        let items = (0..ITEMS).map(|key| (key, step * u32::try_from(key * 7 % ITEMS).unwrap()));
        queue.add_delayed(items);
        for _ in 0..ITEMS {
            let key = queue.get().await;
            queue.done(key);
        }
        start.elapsed().saturating_sub(SPREAD)
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn compare(name: &str, own: impl Fn() -> Duration, reference: impl Fn() -> Duration) {
    // In turns, so that both see the same load of the machine.
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (own(), reference())).collect();
    let (own, reference): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    let (own, reference) = (median(own), median(reference));
    let ratio = own.as_secs_f64() / reference.as_secs_f64();
    let items = u32::try_from(ITEMS).unwrap();
    println!(
        "{name:<12} {:>10.1?} {:>10.1?} {ratio:>6.2} {:>8.0?} an item",
        own,
        reference,
        own / items
    );
}

fn main() {
    println!("{:<12} {:>10} {:>10} {:>6}", "", "queue", "reference", "ratio");
    let single = Builder::new_current_thread().enable_all().build().unwrap();
    let multi = Builder::new_multi_thread().enable_all().build().unwrap();
    type Own = Queue<u64>;
    compare("uncontended", || uncontended::<Own>(&single), || uncontended::<Reference>(&single));
    compare("contended", || contended::<Own>(&multi), || contended::<Reference>(&multi));
    compare("delayed", || delayed::<Own>(&single), || delayed::<Reference>(&single));
}
