//! Values of a user that panic, and the test that each panic is contained.

use std::fmt;

use tokio::task::JoinSet;

/// Value whose `Drop` panics.
pub(crate) struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("boom")
    }
}

/// Error whose `Display` or `Drop` panics.
#[derive(Debug)]
pub(crate) struct PanickingError {
    pub(crate) dropped: bool,
}

impl fmt::Display for PanickingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.dropped, "boom");
        f.write_str("an error")
    }
}

impl std::error::Error for PanickingError {}

impl Drop for PanickingError {
    fn drop(&mut self) {
        assert!(!self.dropped, "boom");
    }
}

/// Returns whether a status names the panic of one of these values.
pub(crate) fn is_named(status: &impl fmt::Debug) -> bool {
    let text = format!("{status:?}");
    text.contains("boom") || text.contains("a panic without a message")
}

/// Tries one point after the other, and fails with those whose trial has panicked.
pub(crate) async fn check_each<S, T>(points: &[S], try_point: impl Fn(S) -> T)
where
    S: Copy + fmt::Debug,
    T: Future<Output = ()> + Send + 'static,
{
    let mut wrong = Vec::new();
    for &point in points {
        let mut tasks = JoinSet::new();
        tasks.spawn(try_point(point));
        if tasks.join_next().await.is_some_and(|end| end.is_err()) {
            wrong.push(point);
        }
    }
    assert!(wrong.is_empty(), "not contained: {wrong:?}");
}
