//! Tasks of a pool.

use std::{
    future::{Future, poll_fn},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use hyper::rt::Executor;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::metrics::TaskGauge;

/// Owner of a pool's tasks, which end when its token is cancelled.
#[derive(Clone)]
pub(super) struct PoolTasks {
    tracker: TaskTracker,
    token: CancellationToken,
    alive: TaskGauge,
}

impl PoolTasks {
    /// Creates an owner without tasks; `alive` counts its later ones.
    pub(super) fn new(alive: TaskGauge) -> Self {
        Self { tracker: TaskTracker::new(), token: CancellationToken::new(), alive }
    }

    /// Cancels all tasks, and later ones as soon as they are spawned.
    pub(super) fn cancel(&self) {
        self.token.cancel();
    }

    pub(super) fn are_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Cancels all tasks and waits for their end.
    pub(super) async fn end(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for PoolTasks {
    fn execute(&self, future: F) {
        // Boxed first: hyper's future of a stream has the size of a connection, and each future
        // around it would move and contain it again.
        let future = Box::pin(future);
        let (token, alive) = (self.token.clone(), self.alive.count());
        drop(self.tracker.spawn(async move {
            let _alive = alive;
            token.run_until_cancelled_owned(future).await;
        }));
    }
}

/// Executor of the tasks of one HTTP/2 connection. Notifies `polled` whenever one of them has been
/// polled, until the receiver is dropped: hyper has no event for the arrival of the server's settings.
///
/// The first task reads and writes the connection. It runs after the tasks that are ready when it
/// wakes, so that their requests leave in one write to the socket instead of one each.
#[derive(Clone)]
pub(super) struct ConnectionTasks {
    tasks: PoolTasks,
    polled: Weak<Notify>,
    has_first: Arc<AtomicBool>,
}

impl ConnectionTasks {
    pub(super) fn new(tasks: PoolTasks, polled: &Arc<Notify>) -> Self {
        Self { tasks, polled: Arc::downgrade(polled), has_first: Arc::default() }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for ConnectionTasks {
    fn execute(&self, future: F) {
        let polled = self.polled.clone();
        let is_first = !self.has_first.swap(true, Ordering::Relaxed);
        let mut future = Box::pin(future);
        let mut waits = is_first;
        self.tasks.execute(async move {
            poll_fn(|context| {
                if waits {
                    waits = false;
                    // Woken while it runs, a task of tokio is queued behind the others.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                waits = is_first;
                let end = future.as_mut().poll(context);
                if let Some(polled) = polled.upgrade() {
                    polled.notify_one();
                }
                end
            })
            .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::mpsc, task::JoinSet};

    use super::*;
    use crate::TransportMetrics;

    /// Returns the sizes of the batches that a task of a connection sees of ten messages, each sent
    /// by another task that is ready.
    async fn batches(tasks: &ConnectionTasks) -> Vec<usize> {
        let (sender, mut messages) = mpsc::unbounded_channel();
        let (seen, mut sizes) = mpsc::unbounded_channel();
        tasks.execute(async move {
            let mut batch = Vec::new();
            while messages.recv_many(&mut batch, 100).await > 0 {
                seen.send(batch.len()).unwrap();
                batch.clear();
            }
        });
        tokio::task::yield_now().await;
        let mut senders = JoinSet::new();
        for number in 0..10 {
            let sender = sender.clone();
            senders.spawn(async move { sender.send(number).unwrap() });
        }
        let mut all = Vec::new();
        while all.iter().sum::<usize>() < 10 {
            all.push(sizes.recv().await.unwrap());
        }
        // Awaited last, since a sender that wakes this task would delay the one of the connection.
        senders.join_all().await;
        all
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn requests_of_tasks_that_are_ready_leave_in_one_write() {
        let mut worker = JoinSet::new();
        worker.spawn(async {
            let alive = TransportMetrics::default().tasks(&"host".into());
            let tasks = ConnectionTasks::new(PoolTasks::new(alive), &Arc::default());
            let connection = batches(&tasks).await;
            (connection, batches(&tasks).await.len())
        });

        let (connection, of_stream) = worker.join_next().await.unwrap().unwrap();

        assert_eq!(connection, [10]);
        assert!(of_stream > 1, "{of_stream}: a later task runs as soon as it is woken");
    }
}
