//! Which requests fail, so that an error of theirs is shown as long as there is one.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::Request;

/// Errors of different requests are shown this far apart.
const GAP: Duration = Duration::from_secs(1);

/// Thousands of requests may fail together; so many of them are remembered. Others are heard of
/// again when they are repeated.
const MAX: usize = 16;

/// Requests that have failed and not succeeded since, each with its error.
#[derive(Debug, Default)]
pub(super) struct Failing {
    // The one that is shown first, then the others, the latest last.
    known: VecDeque<(Request, String)>,
    // When an error was last shown.
    shown: Option<Instant>,
}

impl Failing {
    /// A request failed: the error that is to be shown now, if that is another one.
    ///
    /// It waits for its turn while that of another request was shown just now, unless it is the
    /// last that is heard of this request.
    pub(super) fn failed(
        &mut self,
        key: &Request,
        error: String,
        last: bool,
        now: Instant,
    ) -> Option<&str> {
        let just_now = self.shown.is_some_and(|shown| now.duration_since(shown) < GAP);
        let shows = !just_now || last || self.first().is_none_or(|first| first == key);
        self.known.retain(|(known, _)| known != key);
        if self.known.len() == MAX {
            // The oldest of those that are not shown.
            self.known.remove(1);
        }
        let entry = (key.clone(), error);
        if !shows {
            self.known.push_back(entry);
            return None;
        }
        self.shown = Some(now);
        self.known.push_front(entry);
        self.known.front().map(|(_, error)| error.as_str())
    }

    /// A request succeeded: what is to be shown now, if its error was shown until now. Another
    /// one's takes its place, the latest, while there is one.
    pub(super) fn succeeded(&mut self, key: &Request) -> Option<Option<&str>> {
        let was_shown = self.first() == Some(key);
        self.known.retain(|(known, _)| known != key);
        if !was_shown {
            return None;
        }
        if let Some(latest) = self.known.pop_back() {
            self.known.push_front(latest);
        }
        Some(self.known.front().map(|(_, error)| error.as_str()))
    }

    /// Returns whether no request is known to fail.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn first(&self) -> Option<&Request> {
        self.known.front().map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str) -> Request {
        Request::namespaced("ns", name)
    }

    #[test]
    fn an_error_is_shown_until_nothing_fails_any_more() {
        let (mut failing, mut now) = (Failing::default(), Instant::now());
        let [a, b, c] = ["a", "b", "c"].map(request);

        assert_eq!(failing.failed(&a, "a 1".into(), false, now), Some("a 1"));
        assert_eq!(failing.failed(&b, "b 1".into(), false, now), None, "another one just now");
        assert_eq!(failing.failed(&a, "a 2".into(), false, now), Some("a 2"), "the same one");
        assert_eq!(failing.failed(&c, "c 1".into(), true, now), Some("c 1"), "its last");
        now += GAP;
        assert_eq!(failing.failed(&b, "b 2".into(), false, now), Some("b 2"));

        assert_eq!(failing.succeeded(&a), None);
        assert_eq!(failing.succeeded(&b), Some(Some("c 1")));
        assert_eq!(failing.succeeded(&b), None);
        assert_eq!(failing.succeeded(&c), Some(None));
    }

    #[test]
    fn the_one_that_is_shown_is_remembered_whatever_else_fails() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        let first = request("first");
        failing.failed(&first, "first".into(), false, now);

        for number in 0..10 * MAX {
            let key = request(&number.to_string());
            assert_eq!(failing.failed(&key, number.to_string(), false, now), None);
        }

        assert_eq!(failing.known.len(), MAX);
        assert_eq!(failing.succeeded(&first), Some(Some("159")));
    }
}
