//! Panic guard: runs user code, and turns its panic into the panic's message.
//!
//! Three kinds of user code run implicitly: the `Drop` of a value, the `Drop` of a
//! future that has ended or was abandoned, and the `Drop` of a panic's payload. All of them are
//! guarded here. A `Drop` that panics while another panic unwinds through it aborts the process;
//! that is the language's rule, and no guard can change it.

use std::{
    any::Any,
    fmt, mem,
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use tracing::warn;

/// Runs `code`; returns the message of its panic.
pub(crate) fn run<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(message)
}

/// Drops a value; returns the message of its panic.
pub(crate) fn discard<T>(value: T) -> Result<(), String> {
    run(|| drop(value))
}

/// Message of a panic, whose payload is dropped.
pub(crate) fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic without a message").to_owned();
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // Leaked: its drop may panic in the same way, without end.
        mem::forget(again);
    }
    text
}

/// Guards each poll of `future`, and its `Drop`.
pub(crate) fn future<F: Future>(future: F) -> GuardedFuture<F> {
    GuardedFuture { future: Some(Box::pin(future)) }
}

/// Future that ends with the message of a panic, if its inner future panics.
pub(crate) struct GuardedFuture<F> {
    // `None` after its end.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for GuardedFuture<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.future.as_mut().expect("not polled after its end");
        let output = match run(|| future.as_mut().poll(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        match (output, discard(self.future.take())) {
            (Ok(output), Err(panic)) => {
                discard(output).unwrap_or_default();
                Poll::Ready(Err(panic))
            }
            (output, Ok(()) | Err(_)) => Poll::Ready(output),
        }
    }
}

impl<F> Drop for GuardedFuture<F> {
    fn drop(&mut self) {
        if let Err(error) = discard(self.future.take()) {
            warn!(error, "a future panicked when it was dropped");
        }
    }
}

/// Value of a user, whose `Drop` is guarded.
#[derive(Clone)]
pub(crate) struct GuardedDrop<T> {
    // `None` only during the drop.
    value: Option<T>,
}

impl<T> GuardedDrop<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value) }
    }
}

impl<T> Deref for GuardedDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> DerefMut for GuardedDrop<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until it is dropped")
    }
}

impl<T> Drop for GuardedDrop<T> {
    fn drop(&mut self) {
        if let Err(error) = discard(self.value.take()) {
            warn!(error, "a value panicked when it was dropped");
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for GuardedDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Value whose `Drop` panics with another such value.
    struct PanicsWithItself;

    impl Drop for PanicsWithItself {
        fn drop(&mut self) {
            panic_any(Self)
        }
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_leaked() {
        assert_eq!(
            run(|| panic_any(PanicsWithItself)),
            Err("a panic without a message".to_owned())
        );
        assert_eq!(discard(PanicsWithItself), Err("a panic without a message".to_owned()));
        drop(GuardedDrop::new(PanicsWithItself));
    }

    #[tokio::test]
    async fn a_future_is_guarded_until_it_is_dropped() {
        assert_eq!(future(async { 1 }).await, Ok(1));
        assert_eq!(future(async { panic!("boom") }).await, Err::<(), _>("boom".to_owned()));
        let kept = PanicsWithItself;
        let ends = future(async {
            let _kept = kept;
        });
        assert_eq!(ends.await, Err("a panic without a message".to_owned()));
        drop(future(async {
            let _kept = PanicsWithItself;
            std::future::pending::<()>().await;
        }));
    }
}
