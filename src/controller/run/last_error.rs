//! Last error of a controller, as its status shows it.

use std::time::Duration;

use tokio::time::Instant;

use crate::controller::Request;

/// Minimum time between the errors of two requests. Thousands of requests that fail together must
/// not change the status thousands of times.
const GAP: Duration = Duration::from_secs(1);

/// Error of the request that failed last, until that request succeeds.
#[derive(Debug, Default)]
pub(super) struct LastError {
    request: Option<Request>,
    shown: Option<Instant>,
}

impl LastError {
    /// Records a failure. Returns whether its error is to be shown. The error of the shown request,
    /// of a `final_attempt`, and the first one are shown at once; others at most once a second.
    pub(super) fn failed(&mut self, key: &Request, final_attempt: bool, now: Instant) -> bool {
        let just_now = self.shown.is_some_and(|shown| now.duration_since(shown) < GAP);
        let shows = !just_now
            || final_attempt
            || self.request.as_ref().is_none_or(|request| request == key);
        if shows {
            self.shown = Some(now);
            self.request = Some(key.clone());
        }
        shows
    }

    /// Returns the request whose error is shown.
    #[cfg(feature = "runtime")]
    pub(super) fn request(&self) -> Option<&Request> {
        self.request.as_ref()
    }

    /// Records that a request succeeded, or that its object is gone. Returns whether its error was
    /// the one shown.
    pub(super) fn succeeded(&mut self, key: &Request) -> bool {
        self.request.take_if(|request| request == key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_until_its_request_succeeds_or_another_one_fails() {
        let (mut last, mut now) = (LastError::default(), Instant::now());
        let [a, b, c] = ["a", "b", "c"].map(|name| Request::namespaced("ns", name));

        assert!(last.failed(&a, false, now));
        assert!(!last.failed(&b, false, now), "another one was shown just now");
        assert!(last.failed(&a, false, now), "the same request");
        assert!(last.failed(&c, true, now), "its final attempt");
        now += GAP;
        assert!(last.failed(&b, false, now));

        assert!(!last.succeeded(&a));
        assert!(last.succeeded(&b));
        assert!(!last.succeeded(&b), "no error is shown");
    }
}
