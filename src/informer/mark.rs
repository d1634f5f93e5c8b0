//! How far an informer has come: the highest resourceVersion it has seen.

use std::sync::Arc;

/// The position from which a watch resumes. It never goes back but by a complete list.
///
/// A resourceVersion is a number for every server we know; two that are not both numbers are not
/// compared, and the later one to arrive counts.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    version: Arc<str>,
}

impl Mark {
    pub(super) fn new(version: &str) -> Self {
        Self { version: version.into() }
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Whether a version is from before this one.
    pub(super) fn is_past(&self, version: &str) -> bool {
        is_older(version, &self.version)
    }

    /// Moves to a version, unless that is older or none at all; whether it is not older.
    pub(super) fn advance(&mut self, version: &str) -> bool {
        if version.is_empty() || self.is_past(version) {
            return false;
        }
        if *self.version != *version {
            self.version = version.into();
        }
        true
    }
}

/// Whether one version is older than another; no, when they cannot be compared.
pub(super) fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        (Err(_), _) | (_, Err(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: &str, to: &str, expected: &str) {
        let mut mark = Mark::new(from);

        let advanced = mark.advance(to);

        assert_eq!(mark.version(), expected);
        assert_eq!(advanced, expected == to);
    }

    #[test]
    fn it_goes_forward_only() {
        check("9", "10", "10");
        check("10", "9", "10");
        check("10", "10", "10");
        check("10", "", "10");
        check("", "7", "7");
    }

    #[test]
    fn what_is_no_number_is_not_compared() {
        check("b", "a", "a");
        check("10", "a", "a");
        check("99999999999999999999", "1", "1");
    }
}
