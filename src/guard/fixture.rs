//! Values of a user that panic, and the test that each panic is contained.

use std::fmt;

use tokio::task::JoinSet;

/// Value whose `Drop` panics.
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("boom")
    }
}

/// Error whose `Display` or `Drop` panics.
#[derive(Debug)]
pub(crate) struct Unspeakable {
    pub(crate) dropped: bool,
}

impl fmt::Display for Unspeakable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(self.dropped, "boom");
        f.write_str("an error")
    }
}

impl std::error::Error for Unspeakable {}

impl Drop for Unspeakable {
    fn drop(&mut self) {
        assert!(!self.dropped, "boom");
    }
}

/// Returns whether a status names the panic of one of these values.
pub(crate) fn is_named(status: &impl fmt::Debug) -> bool {
    let text = format!("{status:?}");
    text.contains("boom") || text.contains("a panic without a message")
}

/// Tries one seam after the other, and fails with those whose trial has panicked.
pub(crate) async fn check_each<S, T>(seams: &[S], try_seam: impl Fn(S) -> T)
where
    S: Copy + fmt::Debug,
    T: Future<Output = ()> + Send + 'static,
{
    let mut wrong = Vec::new();
    for &seam in seams {
        let mut tasks = JoinSet::new();
        tasks.spawn(try_seam(seam));
        if tasks.join_next().await.is_some_and(|end| end.is_err()) {
            wrong.push(seam);
        }
    }
    assert!(wrong.is_empty(), "not contained: {wrong:?}");
}
