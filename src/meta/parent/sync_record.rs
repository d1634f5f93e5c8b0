//! Sync record of a parent: what its last sync saw and decided, so that the next sync need not decide
//! it again. It has digests alone, so that its size does not depend on the objects.
//!
//! - **Settled sync**: the input of a sync that found the parent as desired. A sync decides by the
//!   request to the hook, the types, the declaration and the response. The request contains the
//!   parent and its children as cached, with uid and resourceVersion, and the declaration as
//!   `controller`. A sync with equal input would find nothing either. It ends before it decodes the
//!   response or compares a child.
//! - **Equal children**: the result of a merge follows from the bytes of the child, the bytes that the
//!   hook has sent and the declaration. The bytes of the child are hashed in place of its uid and
//!   resourceVersion, since aggregated APIs may have no versions, and after a restore of etcd one
//!   version may name two contents.
//! - **Written children**: a child with the content of a write is the result of a merge with the
//!   desired state of that write, and a second merge would change nothing. Status and the metadata
//!   of the server are not part of the content. The desired state has a digest alone too: the content
//!   of a child is read only if a write had its desired state. Server-side apply knows the result
//!   only after the request: its digest is that of the stored child, without status, managed fields
//!   and resourceVersion.
//! - **Foreign objects**: versions of orphans that a live read has shown not to be the parent's, and of
//!   revisions that are reported as ignored. Metadata entries lack annotations, so that each sync
//!   would read the orphan again, and report the revision again.

use std::{collections::BTreeMap, hash::Hash, mem::take, time::Duration};

use bytes::Bytes;

use crate::{
    informer::Header,
    kind::{ServedType, TypeRef},
    meta::{definition::apply_strategy::FieldManager, json::digest::digest},
};

/// Maximum number of foreign objects that a sync remembers. The next sync reads the others again.
const MAX_FOREIGN: usize = 10_000;

/// Record of the last sync of one parent: eight bytes for each equal child, and eight for a write.
#[derive(Debug, Default)]
pub(crate) struct SyncRecord {
    // Last sync, if that found the parent as desired.
    settled: Option<SettledSync>,
    // Children that the last executed sync found or left as desired, sorted.
    equal: Box<[ChildDigest]>,
    foreign: BTreeMap<ChildDigest, ForeignReason>,
    // Foreign objects of the running sync.
    found: BTreeMap<ChildDigest, ForeignReason>,
}

/// Digest of the observed state: parent, children and types. Against chance, not against an attacker:
/// only the hook could choose two equal responses, and it decides on the parent anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedDigest(u64);

/// Input of a sync, and what its response requests besides children and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledSync {
    input: u64,
    /// Time until the next sync, as the response requests.
    pub(crate) resync_after: Option<Duration>,
}

/// Digest of a child and its desired state, or of a part of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChildDigest(u64);

/// Digests of a child: of its desired state, and of that with the observed object.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChildDigests {
    pub(crate) desired: Option<ChildDigest>,
    pub(crate) observed: Option<ChildDigest>,
}

/// Reason why an orphan is not a parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignReason {
    /// Metadata name another owner, or another controller.
    NotOurs,
    /// Evidence is missing that a controller has written it as a child.
    Unproven,
}

impl SyncRecord {
    /// Removes and returns the settled sync. A sync that does not complete leaves none.
    pub(crate) fn take_settled(&mut self) -> Option<SettledSync> {
        self.settled.take()
    }

    /// Keeps a sync that found the parent as desired.
    pub(crate) fn settle(&mut self, sync: SettledSync) {
        self.settled = Some(sync);
    }

    /// Returns whether the last executed sync found or left this as desired.
    pub(crate) fn is_equal(&self, digest: ChildDigest) -> bool {
        self.equal.binary_search(&digest).is_ok()
    }

    /// Replaces the equal children at the end of a sync that has come to all of them.
    pub(crate) fn replace_equal(&mut self, mut equal: Vec<ChildDigest>) {
        equal.sort_unstable();
        self.equal = equal.into();
    }

    /// Returns why this version of an object is known to be foreign. It stays known.
    pub(crate) fn foreign(&mut self, object: &Header) -> Option<ForeignReason> {
        let version = ChildDigest::of_version(object);
        let reason = *self.found.get(&version).or_else(|| self.foreign.get(&version))?;
        self.found.insert(version, reason);
        Some(reason)
    }

    /// Adds a foreign object by its cached version. An object without a version is not added, since it
    /// may change unnoticed.
    pub(crate) fn add_foreign(&mut self, cached: &Header, reason: ForeignReason) {
        if !cached.resource_version.is_empty() && self.found.len() < MAX_FOREIGN {
            self.found.insert(ChildDigest::of_version(cached), reason);
        }
    }

    /// Forgets the foreign objects that the running sync has not found. Called once it has claimed all
    /// children.
    pub(crate) fn forget_foreign(&mut self) {
        self.foreign = take(&mut self.found);
    }
}

impl ObservedDigest {
    /// Digest of the request to the hook, of the identities of its types (the request has only their
    /// names), and of the revisions (the request has none).
    pub(crate) fn of<'t>(
        request: &[u8],
        types: impl Iterator<Item = &'t ServedType>,
        missing: &[TypeRef],
        revisions: u64,
    ) -> Self {
        let types = types.map(|served| (&served.identity, &served.kind));
        Self(digest((types.collect::<Vec<_>>(), missing, revisions, request)))
    }
}

impl SettledSync {
    /// Sync whose response is not decoded yet.
    pub(crate) fn new(ObservedDigest(observed): ObservedDigest, response: &[u8]) -> Self {
        Self { input: digest((observed, response)), resync_after: None }
    }

    /// Returns the last sync if it had the same input.
    pub(crate) fn unchanged_since(&self, last: Option<Self>) -> Option<Self> {
        last.filter(|last| last.input == self.input)
    }
}

impl ChildDigest {
    /// Digest of a desired state, to which `generate_selector` adds a label, and of the field manager
    /// of server-side apply.
    pub(crate) fn of_desired(
        desired: &Bytes,
        generate_selector: bool,
        manager: Option<&FieldManager>,
    ) -> Self {
        Self(digest((generate_selector, desired, manager.map(FieldManager::as_str))))
    }

    /// Adds the observed child: its bytes, or the digest of its content.
    pub(crate) fn with(self, child: impl Hash) -> Self {
        Self(digest((self.0, child)))
    }

    fn of_version(object: &Header) -> Self {
        Self(digest((&object.uid, &object.resource_version)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        informer::fixture::Fixture,
        kind::{Scope, TypeIdentity},
        meta::{
            children::{ServedChildType, fixtures::served},
            definition::UpdateMethod,
        },
    };

    fn group(served: ServedType) -> ServedChildType {
        ServedChildType { served: Arc::new(served), strategy: UpdateMethod::InPlace }
    }

    fn config_map() -> ServedType {
        (*served("", "configmaps", "ConfigMap", Scope::Namespaced)).clone()
    }

    fn sync(
        request: &str,
        groups: &[ServedChildType],
        missing: &[TypeRef],
        response: &str,
    ) -> SettledSync {
        let types = groups.iter().map(|group| &*group.served);
        let observed = ObservedDigest::of(request.as_bytes(), types, missing, 0);
        SettledSync::new(observed, response.as_bytes())
    }

    #[test]
    fn sync_is_unchanged_if_request_types_and_response_are_equal() {
        let thing = || TypeRef::resource("example.com", "v1", "things");
        let with_uid = |uid: &str| {
            let identity = TypeIdentity { uid: Some(uid.into()), ..config_map().identity };
            group(ServedType { identity, ..config_map() })
        };
        let as_before = || (r#"{"v":"1"}"#, vec![with_uid("u")], vec![thing()], r#"{"a":1}"#);
        let (request, groups, missing, response) = as_before();
        let mut last = sync(request, &groups, &missing, response);
        last.resync_after = Some(Duration::from_secs(7));
        let other_kind = group(ServedType { kind: "Other".into(), ..config_map() });
        for (now, expected) in [
            (as_before(), true),
            ((r#"{"v":"2"}"#, groups.clone(), missing.clone(), response), false),
            ((r#"{"v":"1"} "#, groups.clone(), missing.clone(), response), false),
            ((request, groups.clone(), missing.clone(), r#"{"a":2}"#), false),
            ((request, groups.clone(), missing.clone(), r#"{"a":1} "#), false),
            ((request, groups.clone(), missing.clone(), ""), false),
            ((request, vec![with_uid("v")], missing.clone(), response), false),
            ((request, vec![other_kind], missing.clone(), response), false),
            ((request, vec![], missing.clone(), response), false),
            ((request, vec![with_uid("u"), with_uid("u")], missing.clone(), response), false),
            ((request, groups.clone(), vec![], response), false),
            ((request, groups.clone(), vec![thing(), thing()], response), false),
        ] {
            let (request, groups, missing, response) = &now;
            let found = sync(request, groups, missing, response);

            let unchanged = found.unchanged_since(Some(last));

            assert_eq!(unchanged, expected.then_some(last), "{now:?}");
            assert_eq!(found.unchanged_since(None), None);
        }
    }

    fn equal(uid: &str, version: &str, data: &str, desired: &str) -> ChildDigest {
        let object = json!({
            "metadata": {"name": "a", "uid": uid, "resourceVersion": version}, "data": {"v": data},
        });
        let desired = ChildDigest::of_desired(&desired.to_owned().into(), false, None);
        desired.with(object.to_string().as_bytes())
    }

    #[test]
    fn child_is_equal_only_with_the_same_content_and_desired_state() {
        let mut record = SyncRecord::default();
        record.replace_equal(vec![
            equal("u", "7", "x", "{}"),
            equal("u", "1", "y", "{}"),
            equal("u", "2", "z", "{}"),
        ]);
        for (now, expected) in [
            (equal("u", "7", "x", "{}"), true),
            (equal("u", "2", "z", "{}"), true),
            (equal("v", "7", "x", "{}"), false),
            (equal("u", "8", "x", "{}"), false),
            (equal("u", "7", "y", "{}"), false),
            (equal("u", "7", "x", r#"{"a":1}"#), false),
        ] {
            assert_eq!(record.is_equal(now), expected, "{now:?}");
        }
    }

    #[test]
    fn digest_separates_the_child_from_its_desired_state() {
        let of = |child: &str, desired: &str| {
            let desired = desired.to_owned().into();
            [false, true]
                .map(|generates| ChildDigest::of_desired(&desired, generates, None).with(child))
        };

        assert_ne!(of("ab", "c"), of("a", "bc"));
        let [without, with] = of("a", "b");
        assert_ne!(without, with, "a generated label is part of the desired state");
    }

    #[test]
    fn foreign_object_is_known_by_its_version_while_each_sync_finds_it() {
        let mut record = SyncRecord::default();
        let object = |version: u64| Fixture::new("a").version(version).object();

        record.add_foreign(object(1).header(), ForeignReason::Unproven);
        record.forget_foreign();

        assert_eq!(record.foreign(object(1).header()), Some(ForeignReason::Unproven));
        assert_eq!(record.foreign(object(2).header()), None);
        record.forget_foreign();
        assert_eq!(record.foreign(object(1).header()), Some(ForeignReason::Unproven));
        record.forget_foreign();
        record.forget_foreign();
        assert_eq!(record.foreign(object(1).header()), None, "the last sync did not find it");
        let unversioned = Fixture::new("a").set("resourceVersion", json!("")).object();
        record.add_foreign(unversioned.header(), ForeignReason::NotOurs);
        assert_eq!(record.foreign(unversioned.header()), None, "it may have changed");
    }

    #[test]
    fn foreign_objects_beyond_the_limit_are_read_again() {
        let mut record = SyncRecord::default();
        let object = |version: usize| Fixture::new("a").version(version as u64).object();

        (0..=MAX_FOREIGN).for_each(|version| {
            record.add_foreign(object(version).header(), ForeignReason::Unproven);
        });

        let mut known = |version: &usize| record.foreign(object(*version).header()).is_some();
        assert_eq!((0..=MAX_FOREIGN).filter(|version| known(version)).count(), MAX_FOREIGN);
    }
}
