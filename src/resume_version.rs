//! Resume version: the highest resourceVersion that a watch has seen.
//!
//! After a restore from backup, a server may be behind that version. A watch from there is silent
//! until the server has reached it, and misses all changes before.

use std::{sync::Arc, time::Duration};

use crate::kind::VersionOrder;

/// Silence after which a watch may be ahead of its server: bookmarks arrive every minute.
pub(crate) const SILENT: Duration = Duration::from_secs(90);

/// The position from which a watch resumes.
///
/// If versions are comparable, only a complete list moves it backwards. If they are opaque, the
/// version that arrived last is the position. After a list without a version there is no position:
/// changes between that list and the next event could be missed.
#[derive(Clone, Debug)]
pub(crate) struct ResumeVersion {
    version: Arc<str>,
    order: VersionOrder,
}

impl ResumeVersion {
    /// Creates the position of a list, which may be none.
    pub(crate) fn new(version: &str, order: VersionOrder) -> Self {
        Self { version: version.into(), order }
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Returns the version as a number; 0 if versions cannot be compared.
    pub(crate) fn number(&self) -> u64 {
        self.order.number(&self.version)
    }

    /// Returns whether a watch can resume from here.
    pub(crate) fn is_position(&self) -> bool {
        !self.version.is_empty()
    }

    /// Returns whether a version is known to be older than this one.
    pub(crate) fn is_past(&self, version: &str) -> bool {
        self.order.is_older(version, &self.version)
    }

    /// Returns whether a list of this version shows that a silent watch from here misses changes.
    /// If versions are comparable, the server is behind. If they are opaque, the versions differ.
    pub(crate) fn is_contradicted(&self, version: &str) -> bool {
        match self.order {
            VersionOrder::Comparable => self.is_past(version),
            VersionOrder::Opaque => !version.is_empty() && *self.version != *version,
        }
    }

    /// Moves to a version. Returns false and stays if the version is older or empty, or if there is
    /// no position.
    pub(crate) fn advance(&mut self, version: &str) -> bool {
        if version.is_empty() || !self.is_position() || self.is_past(version) {
            return false;
        }
        if *self.version != *version {
            self.version = version.into();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: &str, to: &str, expected: &str) {
        check_by(VersionOrder::Comparable, from, to, expected);
    }

    #[track_caller]
    fn check_by(order: VersionOrder, from: &str, to: &str, expected: &str) {
        let mut resume_version = ResumeVersion::new(from, order);

        let advanced = resume_version.advance(to);

        assert_eq!(resume_version.version(), expected);
        assert_eq!(advanced, expected == to);
    }

    #[test]
    fn resume_version_never_decreases() {
        check("9", "10", "10");
        check("10", "9", "10");
        check("10", "10", "10");
        check("10", "", "10");
    }

    #[test]
    fn a_list_without_a_version_has_no_position_whatever_comes_after_it() {
        for order in [VersionOrder::Comparable, VersionOrder::Opaque] {
            check_by(order, "", "7", "");
            assert!(!ResumeVersion::new("", order).is_position());
        }
    }

    #[test]
    fn where_versions_are_opaque_the_last_to_arrive_counts() {
        check_by(VersionOrder::Opaque, "10", "9", "9");
        check_by(VersionOrder::Opaque, "10", "", "10");
        let resume_version = ResumeVersion::new("10", VersionOrder::Opaque);
        assert!(!resume_version.is_past("9"));
        assert!(resume_version.is_contradicted("9") && resume_version.is_contradicted("11"));
        assert!(!resume_version.is_contradicted("10") && !resume_version.is_contradicted(""));
    }

    #[test]
    fn versions_that_are_not_numbers_are_not_compared() {
        check("b", "a", "a");
        check("10", "a", "a");
        check("99999999999999999999", "1", "1");
    }
}
