//! Owner chains: parents that are children of parents of the same type.
//!
//! If children are of their parents' type, each child becomes a parent. The chain has no end if the
//! hook desires children for every one of them. A chain that leads through several types is not
//! detected, since each controller knows the owners of its own parents alone.

use crate::{
    informer::{Object, ObjectKey},
    meta::{
        api::controller_kind::ControllerKind, children::ServedChildType,
        definition::MAX_OWNER_DEPTH, parent::Parent,
    },
};

/// Reason of the Event and the condition.
pub(super) const TOO_DEEP: &str = "OwnerChainTooDeep";

/// Returns whether children of this group are of the parent's type, in whichever version.
pub(super) fn is_same_type(group: &ServedChildType, parent: &Parent) -> bool {
    let (child, own) = (&group.served, &parent.served);
    child.identity.group == own.identity.group && child.identity.plural == own.identity.plural
}

/// Returns the length of the chain of owners of the parent's own type, as far as the cache knows
/// them. The length is at most `limit`, which also ends a cycle.
pub(super) fn depth(
    parent: &Parent,
    object: &Object,
    limit: usize,
    get: impl Fn(&ObjectKey) -> Option<Object>,
) -> usize {
    let mut next = Some(object.clone());
    let mut depth = 0;
    while depth < limit
        && let Some(object) = next
        && let Some(owner) = object.controller()
        && *owner.kind == parent.served.group_kind()
    {
        depth += 1;
        let key = ObjectKey { namespace: parent.key.namespace.clone(), name: owner.name.clone() };
        next = get(&key).filter(|above| above.header().uid == owner.uid);
    }
    depth
}

/// Returns the message of the refusal, with the way to allow a longer chain.
pub(super) fn explain(parent: &Parent, controller: ControllerKind, limit: usize) -> String {
    let kind = &parent.served.kind;
    format!(
        "the hook returns children of type {kind} for a parent with a chain of {limit} owners of \
         that type, which is the limit; to raise it, set the annotation {MAX_OWNER_DEPTH} of the \
         {controller}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::meta::children::fixtures;

    fn thing(name: &str, owner: Option<(&str, &str)>) -> Object {
        let owners: Vec<_> = owner
            .into_iter()
            .map(|(kind, name)| {
                json!({
                    "apiVersion": "example.com/v2", "kind": kind, "name": name, "uid": name,
                    "controller": true,
                })
            })
            .collect();
        let json = json!({
            "metadata": { "namespace": "ns", "name": name, "uid": name, "ownerReferences": owners },
        });
        Object::from_json(json.to_string(), &fixtures::parent(Some("ns")).served).unwrap()
    }

    #[track_caller]
    fn check(objects: &[Object], of: usize, expected: usize) {
        let parent = fixtures::parent(Some("ns"));
        let get = |key: &ObjectKey| objects.iter().find(|object| object.key() == key).cloned();

        assert_eq!(depth(&parent, &objects[of], 5, get), expected);
    }

    #[test]
    fn owners_of_the_same_type_are_counted_up_to_the_limit() {
        let chain: Vec<Object> = (0..10)
            .map(|number: usize| {
                let above = number.checked_sub(1).map(|above| format!("t{above}"));
                thing(&format!("t{number}"), above.as_deref().map(|above| ("Thing", above)))
            })
            .collect();

        check(&chain, 0, 0);
        check(&chain, 1, 1);
        check(&chain, 5, 5);
        check(&chain, 9, 5);
    }

    #[test]
    fn chain_ends_at_another_type_a_deleted_owner_or_a_cycle() {
        check(&[thing("a", Some(("Other", "b"))), thing("b", Some(("Thing", "a")))], 0, 0);
        check(&[thing("a", Some(("Thing", "gone")))], 0, 1);
        check(&[thing("a", Some(("Thing", "b"))), thing("b", Some(("Thing", "a")))], 0, 5);
    }
}
