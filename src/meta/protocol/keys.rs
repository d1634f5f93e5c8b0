//! Type maps of requests: keys of types and of objects.
//!
//! Both versions name a type by its kind and version. In version 1 the key of an object is relative
//! to the parent, in version 2 it always has the namespace.

use std::{cmp::Ordering, fmt};

use serde::Serialize;

use crate::{
    informer::{Object, ObjectKey},
    kind::{Scope, ServedType},
    meta::{hooks::rule::HookVersion, parent::Parent, related::RelatedGroup},
};

/// Objects of a type.
pub(super) type TypeObjects<'a> = (&'a ServedType, Vec<(&'a ObjectKey, &'a Object)>);

pub(super) fn members_of(group: &RelatedGroup) -> TypeObjects<'_> {
    let members = group.objects.iter().map(|object| (object.key(), object));
    (&group.served, members.collect())
}

/// Appends the type map of a request: the objects of each type by their keys.
pub(super) fn push_groups(
    body: &mut Vec<u8>,
    version: HookVersion,
    parent: &Parent,
    groups: Vec<TypeObjects<'_>>,
) {
    let mut order: Vec<_> =
        groups.into_iter().map(|(served, members)| (group_key(served), served, members)).collect();
    order.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    body.push(b'{');
    for (position, (name, served, members)) in order.iter().enumerate() {
        if position > 0 {
            body.push(b',');
        }
        push_text(body, name);
        body.extend_from_slice(b":{");
        let scope = served.identity.scope;
        let keyed = members
            .iter()
            .filter_map(|(key, it)| Some((MemberKey::of(version, parent, scope, key)?, *it)));
        let mut keyed: Vec<_> = keyed.collect();
        keyed.sort_by(|(one, _), (other, _)| one.compare(other));
        for (position, (key, object)) in keyed.iter().enumerate() {
            if position > 0 {
                body.push(b',');
            }
            push_text(body, format_args!("{key}"));
            body.push(b':');
            object.append_json(body);
        }
        body.push(b'}');
    }
    body.push(b'}');
}

/// Returns the key of a group: `Pod.v1`, `Deployment.apps/v1`.
fn group_key(served: &ServedType) -> String {
    format!("{}.{}", served.kind, served.identity.api_version())
}

/// Key of a child within its group: `name`, or `namespace/name`.
struct MemberKey<'a> {
    namespace: Option<&'a str>,
    name: &'a str,
}

impl<'a> MemberKey<'a> {
    /// Returns the key of a child; `None` for children that version 1 does not include.
    fn of(version: HookVersion, parent: &Parent, scope: Scope, key: &'a ObjectKey) -> Option<Self> {
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        match (version, parent.key.namespace.as_deref(), scope) {
            (HookVersion::V2, _, _) | (HookVersion::V1, None, _) => Some(Self { namespace, name }),
            (HookVersion::V1, Some(_), Scope::Cluster) => None,
            (HookVersion::V1, Some(own), Scope::Namespaced) => {
                (namespace == Some(own)).then_some(Self { namespace: None, name })
            }
        }
    }

    /// Compares the texts of two keys.
    fn compare(&self, other: &Self) -> Ordering {
        let bytes = |key: &Self| {
            let namespace = key.namespace.map(|namespace| namespace.bytes().chain([b'/']));
            namespace.into_iter().flatten().chain(key.name.bytes())
        };
        if self.namespace == other.namespace {
            return self.name.cmp(other.name);
        }
        bytes(self).cmp(bytes(other))
    }
}

impl fmt::Display for MemberKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(self.name)
    }
}

fn push_text(body: &mut Vec<u8>, text: impl Serialize) {
    serde_json::to_writer(body, &text).expect("a vector takes all bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_children_are_sorted_as_texts_and_escaped() {
        let key = |namespace, name| MemberKey { namespace, name };
        let keys = [
            key(None, "a"),
            key(None, "a\"b"),
            key(Some("a"), "b"),
            key(Some("a"), "c"),
            key(Some("a-b"), "a"),
            key(Some("a.b"), "a"),
            key(Some("a0"), "a"),
        ];
        for (one, other) in keys.iter().flat_map(|one| keys.iter().map(move |other| (one, other))) {
            let as_texts = one.to_string().cmp(&other.to_string());

            assert_eq!(one.compare(other), as_texts, "{one} {other}");
        }
        let mut body = Vec::new();
        push_text(&mut body, format_args!("{}", keys[1]));
        assert_eq!(body, br#""a\"b""#);
    }
}
