//! Futures on a separate thread and runtime, so that they neither block the caller's runtime nor
//! depend on its clock and lifetime.

use std::{future::Future, panic, thread};

use tokio::{runtime, sync::oneshot};

/// Runs the future on a separate thread and blocks until its end; a panic is passed on.
pub(super) fn block_on<T, F>(future: impl FnOnce() -> F + Send) -> T
where
    T: Send,
    F: Future<Output = T>,
{
    thread::scope(|scope| {
        match scope.spawn(|| current_thread_runtime().block_on(future())).join() {
            Ok(output) => output,
            Err(panic) => panic::resume_unwind(panic),
        }
    })
}

/// Runs the future on a separate thread and waits for its end; a panic is passed on.
///
/// # Cancel safety
///
/// Dropping this future drops the other one soon after; its thread is not awaited.
pub(super) async fn run<T, F>(future: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (mut sender, receiver) = oneshot::channel();
    let thread = thread::spawn(move || {
        current_thread_runtime().block_on(async {
            let output = tokio::select! {
                output = future() => output,
                () = sender.closed() => return,
            };
            // A dropped receiver drops the output here.
            drop(sender.send(output));
        });
    });
    match receiver.await {
        Ok(output) => output,
        Err(_) => match thread.join() {
            Ok(()) => unreachable!("the thread sends its output or panics"),
            Err(panic) => panic::resume_unwind(panic),
        },
    }
}

fn current_thread_runtime() -> runtime::Runtime {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built where a thread can be started")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_time_of_the_caller_does_not_reach_the_other_runtime() {
        let waited = run(|| async {
            let start = tokio::time::Instant::now();
            tokio::time::sleep(Duration::from_millis(20)).await;
            start.elapsed()
        })
        .await;

        assert!(waited >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn blocking_works_inside_a_runtime() {
        assert_eq!(block_on(|| async { 42 }), 42);
    }
}
