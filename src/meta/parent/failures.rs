//! Failures of the children of one parent, as a message of bounded length.

use crate::meta::json::message::bounded;

/// Number of failures that a message names, since all of 10,000 children may fail.
const FAILURES: usize = 8;

/// Failures of the children of one parent: the first messages, and the number of others.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    first: Vec<String>,
    more: usize,
}

impl Failures {
    /// Adds a failure.
    pub(crate) fn push(&mut self, message: String) {
        if self.first.len() < FAILURES {
            self.first.push(bounded(message));
        } else {
            self.more += 1;
        }
    }

    /// Adds all failures of another list.
    pub(crate) fn extend(&mut self, other: Self) {
        self.more += other.more;
        for message in other.first {
            self.push(message);
        }
    }

    /// Returns whether there is no failure.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Returns the message; `None` without a failure.
    pub(crate) fn text(&self) -> Option<String> {
        let text = self.first.join("; ");
        match (self.first.is_empty(), self.more) {
            (true, _) => None,
            (false, 0) => Some(text),
            (false, more) => Some(format!("{text}; and {more} more")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_many_children_make_a_message_of_bounded_length() {
        let mut failed = Failures::default();
        assert_eq!(failed.text(), None);

        failed.push("creating a: no".to_owned());
        assert_eq!(failed.text().as_deref(), Some("creating a: no"));

        for _ in 0..9_999 {
            failed.push("x".repeat(10_000));
        }
        let text = failed.text().unwrap();
        assert!(text.len() < 8 * 600 && text.ends_with("; and 9992 more"), "{}", text.len());

        let mut all = Failures::default();
        all.push("first".to_owned());
        all.extend(failed);
        let text = all.text().unwrap();
        assert!(text.starts_with("first; creating") && text.ends_with("; and 9993 more"), "{text}");
    }
}
