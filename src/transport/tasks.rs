//! Tasks of a pool.

use std::{
    future::{Future, poll_fn},
    sync::Weak,
};

use hyper::rt::Executor;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::metrics::HostLabels;
use crate::owner_gauge::Part;

/// Owner of a pool's tasks, which end when its token is cancelled.
#[derive(Clone)]
pub(super) struct PoolTasks {
    tracker: TaskTracker,
    token: CancellationToken,
    alive: Part<HostLabels>,
}

impl PoolTasks {
    /// Creates an owner without tasks; `alive` counts its later ones.
    pub(super) fn new(alive: Part<HostLabels>) -> Self {
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

/// Executor that notifies `polled` whenever a task of the connection has been polled, until the
/// receiver is dropped: hyper has no event for the arrival of the server's settings.
#[derive(Clone)]
pub(super) struct WatchedTasks {
    pub(super) tasks: PoolTasks,
    pub(super) polled: Weak<Notify>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for WatchedTasks {
    fn execute(&self, future: F) {
        let polled = self.polled.clone();
        let mut future = Box::pin(future);
        self.tasks.execute(async move {
            poll_fn(|context| {
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
