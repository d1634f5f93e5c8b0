//! Record of a sync that found its parent as desired, so that an equal sync can end early.
//!
//! A sync decides by the request to the hook, the types, the declaration and the answer. The request
//! contains the parent and its children as cached, with uid and resourceVersion. The declaration is
//! the same for all syncs of one runnable. If the others are equal too, the sync would find nothing
//! to do again, so that it need not decode the answer, nor merge and compare any child.
//!
//! The record has digests instead of the texts, so that its size does not depend on theirs.

use std::{hash::Hash, time::Duration};

use super::{children::Group, digest::digest};
use crate::kind::TypeRef;

/// Hash of bytes, with their number. Against chance, not against an attacker: only the hook could
/// choose two equal answers, and it decides on the parent anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    hash: u64,
    bytes: usize,
}

impl Digest {
    /// Digest of a text, and of what belongs to it.
    fn of(text: &[u8], beside: impl Hash) -> Self {
        Self { hash: digest((beside, text)), bytes: text.len() }
    }
}

/// Digest of the observed state: parent, children and types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedDigest(Digest);

impl ObservedDigest {
    /// Digest of the request to the hook, of the types, of which the request has the names only, and
    /// of the revisions, which it does not have.
    pub(crate) fn of(
        request: &[u8],
        groups: &[Group],
        missing: &[TypeRef],
        revisions: u64,
    ) -> Self {
        let types = groups.iter().map(|group| (&group.served.identity, &group.served.kind));
        Self(Digest::of(request, (types.collect::<Vec<_>>(), missing, revisions)))
    }
}

/// Input of a sync, and what its answer requests besides children and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncRecord {
    observed: ObservedDigest,
    answer: Digest,
    /// Time until the next sync, as the answer requests.
    pub(crate) resync_after: Option<Duration>,
}

impl SyncRecord {
    /// Record of a sync whose answer is not decoded yet.
    pub(crate) fn new(observed: ObservedDigest, answer: &[u8]) -> Self {
        let answer = Digest::of(answer, ());
        Self { observed, answer, resync_after: None }
    }

    /// Returns the last record if it has the same input.
    pub(crate) fn unchanged_since(&self, last: Option<Self>) -> Option<Self> {
        last.filter(|last| (last.observed, last.answer) == (self.observed, self.answer))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        kind::{Scope, ServedType, TypeIdentity},
        meta::{UpdateMethod, children::fixtures::served},
    };

    fn group(served: ServedType) -> Group {
        Group { served: Arc::new(served), strategy: UpdateMethod::InPlace }
    }

    fn config_map() -> ServedType {
        (*served("", "configmaps", "ConfigMap", Scope::Namespaced)).clone()
    }

    fn record(request: &str, groups: &[Group], missing: &[TypeRef], answer: &str) -> SyncRecord {
        let observed = ObservedDigest::of(request.as_bytes(), groups, missing, 0);
        SyncRecord::new(observed, answer.as_bytes())
    }

    #[test]
    fn sync_is_unchanged_if_request_types_and_answer_are_equal() {
        let thing = || TypeRef::resource("example.com", "v1", "things");
        let with_uid = |uid: &str| {
            let identity = TypeIdentity { uid: Some(uid.into()), ..config_map().identity };
            group(ServedType { identity, ..config_map() })
        };
        let as_before = || (r#"{"v":"1"}"#, vec![with_uid("u")], vec![thing()], r#"{"a":1}"#);
        let (request, groups, missing, answer) = as_before();
        let mut last = record(request, &groups, &missing, answer);
        last.resync_after = Some(Duration::from_secs(7));
        let other_kind = group(ServedType { kind: "Other".into(), ..config_map() });
        for (now, expected) in [
            (as_before(), true),
            ((r#"{"v":"2"}"#, groups.clone(), missing.clone(), answer), false),
            ((r#"{"v":"1"} "#, groups.clone(), missing.clone(), answer), false),
            ((request, groups.clone(), missing.clone(), r#"{"a":2}"#), false),
            ((request, groups.clone(), missing.clone(), r#"{"a":1} "#), false),
            ((request, groups.clone(), missing.clone(), ""), false),
            ((request, vec![with_uid("v")], missing.clone(), answer), false),
            ((request, vec![other_kind], missing.clone(), answer), false),
            ((request, vec![], missing.clone(), answer), false),
            ((request, vec![with_uid("u"), with_uid("u")], missing.clone(), answer), false),
            ((request, groups.clone(), vec![], answer), false),
            ((request, groups.clone(), vec![thing(), thing()], answer), false),
        ] {
            let (request, groups, missing, answer) = &now;
            let found = record(request, groups, missing, answer);

            let unchanged = found.unchanged_since(Some(last));

            assert_eq!(unchanged, expected.then_some(last), "{now:?}");
            assert_eq!(found.unchanged_since(None), None);
        }
    }
}
