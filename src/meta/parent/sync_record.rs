//! Record of a sync that found its parent as desired, so that an equal sync can end early.
//!
//! A sync decides by the request to the hook, the types, the declaration and the response. The
//! request contains the parent and its children as cached, with uid and resourceVersion, and the
//! declaration as `controller`. If request, types and response equal those of the last sync, which
//! found nothing to do, this sync would find nothing either. It ends before it decodes the response
//! or compares a child.
//!
//! The record has digests instead of the texts, so that its size does not depend on theirs.

use std::{hash::Hash, time::Duration};

use crate::{
    kind::{ServedType, TypeRef},
    meta::json::digest::digest,
};

/// Hash of bytes, with their number. Against chance, not against an attacker: only the hook could
/// choose two equal responses, and it decides on the parent anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest {
    hash: u64,
    bytes: usize,
}

impl Digest {
    /// Digest of a text and of its context.
    fn of(text: &[u8], beside: impl Hash) -> Self {
        Self { hash: digest((beside, text)), bytes: text.len() }
    }
}

/// Digest of the observed state: parent, children and types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedDigest(Digest);

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
        Self(Digest::of(request, (types.collect::<Vec<_>>(), missing, revisions)))
    }
}

/// Input of a sync, and what its response requests besides children and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncRecord {
    observed: ObservedDigest,
    response: Digest,
    /// Time until the next sync, as the response requests.
    pub(crate) resync_after: Option<Duration>,
}

impl SyncRecord {
    /// Record of a sync whose response is not decoded yet.
    pub(crate) fn new(observed: ObservedDigest, response: &[u8]) -> Self {
        let response = Digest::of(response, ());
        Self { observed, response, resync_after: None }
    }

    /// Returns the last record if it has the same input.
    pub(crate) fn unchanged_since(&self, last: Option<Self>) -> Option<Self> {
        last.filter(|last| (last.observed, last.response) == (self.observed, self.response))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
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

    fn record(
        request: &str,
        groups: &[ServedChildType],
        missing: &[TypeRef],
        response: &str,
    ) -> SyncRecord {
        let types = groups.iter().map(|group| &*group.served);
        let observed = ObservedDigest::of(request.as_bytes(), types, missing, 0);
        SyncRecord::new(observed, response.as_bytes())
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
        let mut last = record(request, &groups, &missing, response);
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
            let found = record(request, groups, missing, response);

            let unchanged = found.unchanged_since(Some(last));

            assert_eq!(unchanged, expected.then_some(last), "{now:?}");
            assert_eq!(found.unchanged_since(None), None);
        }
    }
}
