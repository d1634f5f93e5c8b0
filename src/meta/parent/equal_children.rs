//! Children that a sync found equal to the desired ones, so that later syncs need not merge them.
//!
//! The result of a merge follows from the bytes of the child, the bytes that the hook has sent and
//! the declaration. The bytes of the child contain its uid and resourceVersion. They are hashed
//! instead of these two, since aggregated APIs may have no versions, and after a restore of etcd
//! one version may name two contents.
//!
//! A write has a digest too: of its content and of its desired state. A child with this content is
//! the result of a merge with that state, and a second merge would change nothing. Status and the
//! metadata of the server are not part of the content. The sync after a write merges nothing.
//!
//! Beside it stands the digest of the desired state alone: the content of a child is read only if a
//! write had its desired state.
//!
//! Server-side apply knows the result only after the request. Its digest is that of the stored
//! child, without status, managed fields and resourceVersion.

use bytes::Bytes;

use crate::meta::{
    definition::apply_strategy::FieldManager,
    json::{digest::digest, fingerprint::Fingerprint},
};

/// Digest of a child and its desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChildDigest(u64);

impl ChildDigest {
    /// Digest of the JSON of a child, as it is stored, and of its desired state, to which
    /// `generate_selector` adds a label.
    pub(crate) fn of(child: &[u8], desired: &Bytes, generate_selector: bool) -> Self {
        Self(digest((generate_selector, child, desired)))
    }

    /// Digest of the desired state of a write.
    pub(crate) fn of_written(desired: &Bytes, generate_selector: bool) -> Self {
        Self(digest((generate_selector, desired)))
    }

    /// Adds the content of a child, or of the body of its write.
    pub(crate) fn with_content(self, content: Fingerprint) -> Self {
        Self(digest((self.0, content)))
    }

    /// Digest of a desired child, and of the field manager that applies it.
    pub(crate) fn of_desired(
        desired: &Bytes,
        generate_selector: bool,
        manager: &FieldManager,
    ) -> Self {
        Self(digest((generate_selector, desired, manager.as_str())))
    }

    /// Digest of a desired child, and of the object that it was applied to; `None` if that is
    /// unreadable.
    pub(crate) fn with_object(self, object: &[u8]) -> Option<Self> {
        let object = Fingerprint::of_declared(object).ok()?;
        Some(Self(digest((self.0, object))))
    }
}

/// Equal children of one parent: eight bytes for each, and eight for a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EqualChildren(Box<[ChildDigest]>);

impl EqualChildren {
    /// Returns whether no child is known to be equal.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the child of this digest was equal.
    pub(crate) fn contains(&self, digest: ChildDigest) -> bool {
        self.0.binary_search(&digest).is_ok()
    }
}

impl From<Vec<ChildDigest>> for EqualChildren {
    fn from(mut digests: Vec<ChildDigest>) -> Self {
        digests.sort_unstable();
        Self(digests.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(uid: &str, version: &str, data: &str, desired: &str) -> ChildDigest {
        let object = json!({
            "metadata": {"name": "a", "uid": uid, "resourceVersion": version}, "data": {"v": data},
        });
        ChildDigest::of(object.to_string().as_bytes(), &desired.to_owned().into(), false)
    }

    #[test]
    fn child_is_equal_only_with_the_same_content_and_desired_state() {
        let known = EqualChildren::from(vec![
            digest("u", "7", "x", "{}"),
            digest("u", "1", "y", "{}"),
            digest("u", "2", "z", "{}"),
        ]);
        for (now, expected) in [
            (digest("u", "7", "x", "{}"), true),
            (digest("u", "2", "z", "{}"), true),
            (digest("v", "7", "x", "{}"), false),
            (digest("u", "8", "x", "{}"), false),
            (digest("u", "7", "y", "{}"), false),
            (digest("u", "7", "x", r#"{"a":1}"#), false),
        ] {
            assert_eq!(known.contains(now), expected, "{now:?}");
        }
    }

    #[test]
    fn digest_separates_the_child_from_its_desired_state() {
        let of = |child: &str, desired: &str| {
            let desired = desired.to_owned().into();
            [false, true].map(|generates| ChildDigest::of(child.as_bytes(), &desired, generates))
        };

        assert_ne!(of("ab", "c"), of("a", "bc"));
        let [without, with] = of("a", "b");
        assert_ne!(without, with, "a generated label is part of the desired state");
    }
}
