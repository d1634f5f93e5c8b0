//! Bench: work queue, as a ratio to two references in the same run.
//!
//! `cargo bench --bench queue` prints the median time of each case, or with `-- NAME` of one case.
//! Compare ratios; times depend on the machine. Neither reference has priorities, delays, rate
//! limits or a debug dump.
//!
//! - `plain` is a `VecDeque` and a `HashSet` behind a mutex. It is no work queue: an add during the
//!   processing of its key is lost. In the row `no waits` it cannot wait for a key either.
//! - `client-go` has a second set, so that such a key is queued again when it is done. These are the
//!   rules of client-go's `workqueue`, by its own algorithm.

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

/// Queue under test, or a reference.
trait Subject: Clone + Send + Sync + 'static {
    fn new() -> Self;
    fn add(&self, key: u64);
    fn get(&self) -> impl Future<Output = u64> + Send;
    fn done(&self, key: u64);
    /// Adds all items, each after its delay.
    fn add_delayed(&self, delays: impl Iterator<Item = (u64, Duration)>);
}

/// Queue that loses adds of a key in processing, with or without the wait for a key.
#[derive(Clone)]
struct Plain<const WAITS: bool> {
    state: Arc<Mutex<(VecDeque<u64>, HashSet<u64>)>>,
    changed: Arc<Notify>,
}

impl<const WAITS: bool> Subject for Plain<WAITS> {
    fn new() -> Self {
        Self { state: Arc::default(), changed: Arc::default() }
    }

    fn add(&self, key: u64) {
        let mut state = self.state.lock().unwrap();
        if state.1.insert(key) {
            state.0.push_back(key);
            drop(state);
            if WAITS {
                self.changed.notify_one();
            }
        }
    }

    async fn get(&self) -> u64 {
        let pop = || self.state.lock().unwrap().0.pop_front();
        match WAITS {
            true => wait_for(&self.changed, pop).await,
            false => pop().unwrap(),
        }
    }

    fn done(&self, key: u64) {
        self.state.lock().unwrap().1.remove(&key);
    }

    fn add_delayed(&self, delays: impl Iterator<Item = (u64, Duration)>) {
        add_by_tasks(self, delays);
    }
}

/// Queue with the algorithm of client-go.
#[derive(Clone)]
struct ClientGo {
    state: Arc<Mutex<ClientGoState>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct ClientGoState {
    queue: VecDeque<u64>,
    // Keys that need processing, queued or not.
    dirty: HashSet<u64>,
    processing: HashSet<u64>,
}

impl Subject for ClientGo {
    fn new() -> Self {
        Self { state: Arc::default(), changed: Arc::default() }
    }

    fn add(&self, key: u64) {
        let mut state = self.state.lock().unwrap();
        if state.dirty.insert(key) && !state.processing.contains(&key) {
            state.queue.push_back(key);
            drop(state);
            self.changed.notify_one();
        }
    }

    async fn get(&self) -> u64 {
        let pop = || {
            let mut state = self.state.lock().unwrap();
            let key = state.queue.pop_front()?;
            state.processing.insert(key);
            state.dirty.remove(&key);
            Some(key)
        };
        wait_for(&self.changed, pop).await
    }

    fn done(&self, key: u64) {
        let mut state = self.state.lock().unwrap();
        state.processing.remove(&key);
        if state.dirty.contains(&key) {
            state.queue.push_back(key);
            drop(state);
            self.changed.notify_one();
        }
    }

    fn add_delayed(&self, delays: impl Iterator<Item = (u64, Duration)>) {
        add_by_tasks(self, delays);
    }
}

async fn wait_for(changed: &Notify, pop: impl Fn() -> Option<u64>) -> u64 {
    loop {
        let notified = changed.notified();
        if let Some(key) = pop() {
            return key;
        }
        notified.await;
    }
}

fn add_by_tasks<S: Subject>(queue: &S, delays: impl Iterator<Item = (u64, Duration)>) {
    for (key, after) in delays {
        let queue = queue.clone();
        #[expect(clippy::disallowed_methods, reason = "the reference has no owner of tasks")]
        drop(tokio::spawn(async move {
            sleep(after).await;
            queue.add(key);
        }));
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

/// Prints the times of one case for each subject, and the ratios to the references.
fn compare(
    name: &str,
    own: impl Fn() -> Duration,
    plain: impl Fn() -> Duration,
    client_go: impl Fn() -> Duration,
) {
    // Cases that are named on the command line; all by default.
    let named: Vec<_> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    if !named.is_empty() && !named.iter().any(|it| it == name) {
        return;
    }
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        // In turns, so that all see the same load of the machine.
        times[0].push(own());
        times[1].push(plain());
        times[2].push(client_go());
    }
    let [own, plain, client_go] = times.map(median);
    let ratio = |reference: Duration| own.as_secs_f64() / reference.as_secs_f64();
    let items = u32::try_from(ITEMS).unwrap();
    println!(
        "{name:<12} {:>8.0?} {:>10.0?} {:>10.0?} {:>14.2} {:>14.2}",
        own / items,
        plain / items,
        client_go / items,
        ratio(plain),
        ratio(client_go),
    );
}

fn main() {
    println!(
        "{:<12} {:>8} {:>10} {:>10} {:>14} {:>14}",
        "an item", "queue", "plain", "client-go", "queue/plain", "queue/client-go"
    );
    let single = Builder::new_current_thread().enable_all().build().unwrap();
    let multi = Builder::new_multi_thread().enable_all().build().unwrap();
    type Own = Queue<u64>;
    compare(
        "uncontended",
        || uncontended::<Own>(&single),
        || uncontended::<Plain<true>>(&single),
        || uncontended::<ClientGo>(&single),
    );
    compare(
        "no waits",
        || uncontended::<Own>(&single),
        || uncontended::<Plain<false>>(&single),
        || uncontended::<ClientGo>(&single),
    );
    compare(
        "contended",
        || contended::<Own>(&multi),
        || contended::<Plain<true>>(&multi),
        || contended::<ClientGo>(&multi),
    );
    compare(
        "delayed",
        || delayed::<Own>(&single),
        || delayed::<Plain<true>>(&single),
        || delayed::<ClientGo>(&single),
    );
}
