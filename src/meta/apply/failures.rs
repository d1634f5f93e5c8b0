//! Failures of the children of one parent, as a message of bounded length.

use crate::meta::protocol::bounded;

/// Number of failures that a message names, since all of 10,000 children may fail.
const FAILURES: usize = 8;

/// Failures of the children of one parent: the first messages, and the number of others.
#[derive(Debug, Default)]
pub(super) struct Failures {
    first: Vec<String>,
    more: usize,
}

impl Failures {
    /// Adds a failure.
    pub(super) fn push(&mut self, message: String) {
        if self.first.len() < FAILURES {
            self.first.push(bounded(message));
        } else {
            self.more += 1;
        }
    }

    /// Returns the message; `None` without a failure.
    pub(super) fn text(&self) -> Option<String> {
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
    }
}
