//! Proof that an object is a member of a set.
//!
//! The label [`SET_LABEL`] finds candidates, and proves nothing: labels are copied to other objects.
//! The annotation [`MEMBER_ANNOTATION`] has a digest over the set, the owner with its uid, and the
//! group, kind, namespace and name of the object. On a copy the digest does not match the name. The
//! annotation counts only if the field manager of the set wrote it, by the managed fields.

use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{
    digest::FieldDigest,
    managed_fields::{has_annotation_owner, owns_annotation},
    object_name::ObjectName,
    set_owner::{SetId, SetOwner},
};

/// Label of the members of a set, by which they are listed: a hash of the set and its owner.
pub const SET_LABEL: &str = "pilotlight.dev/set";

/// Annotation of a member: the set, its owner, and a digest over both and the object.
pub const MEMBER_ANNOTATION: &str = "pilotlight.dev/member";

/// Content of the annotation of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberRecord {
    set: String,
    owner: SetOwner,
    digest: String,
}

impl MemberRecord {
    /// Returns the record of an object as a member of a set.
    pub(super) fn of(set: &SetId, object: &ObjectName) -> Self {
        let SetOwner { group, kind, namespace, name, uid } = &set.owner;
        let text = |it: &Option<String>| it.clone().unwrap_or_default();
        let digest = FieldDigest::of(&[
            &set.name,
            group,
            kind,
            &text(namespace),
            name,
            &text(uid),
            &object.kind.group,
            &object.kind.kind,
            &text(&object.namespace),
            &object.name,
        ]);
        Self { set: set.name.clone(), owner: set.owner.clone(), digest: digest.to_string() }
    }

    /// Returns the owner of the set of which a live object is a member, if this manager wrote it.
    pub(super) fn owner_of(
        object: &ObjectName,
        live: &ObjectMeta,
        manager: &str,
    ) -> Option<SetOwner> {
        let record = Self::on(object, live)?;
        owns_annotation(live, manager, MEMBER_ANNOTATION).then_some(record.owner)
    }

    /// Returns the record of a live object, if its digest is that of this very object.
    fn on(object: &ObjectName, live: &ObjectMeta) -> Option<Self> {
        let text = live.annotations.as_ref()?.get(MEMBER_ANNOTATION)?;
        let record: Self = serde_json::from_str(text).ok()?;
        let set = SetId { name: record.set.clone(), owner: record.owner.clone() };
        (Self::of(&set, object) == record).then_some(record)
    }
}

/// Relation of a live object to a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// Member of the set.
    Member,
    /// Member of the same set of an earlier owner, which had the same kind and name.
    OfEarlierOwner,
    /// Object with the record of a member, which no managed fields attribute to a writer.
    Unattributed,
    /// Member of another set, or written by another field manager: the set, and its owner.
    OfOtherSet(String),
    /// Object without a record, or a copy of another object's record.
    Unproven,
}

impl Membership {
    /// Judges a live object. The owner of the set must be alive.
    pub(super) fn of(set: &SetId, object: &ObjectName, live: &ObjectMeta, manager: &str) -> Self {
        let Some(record) = MemberRecord::on(object, live) else { return Self::Unproven };
        let MemberRecord { set: name, owner, .. } = record;
        let is_written = owns_annotation(live, manager, MEMBER_ANNOTATION);
        let is_of_set = name == set.name && owner.is_namesake(&set.owner);
        if is_of_set && owner.uid == set.owner.uid && !has_annotation_owner(live, MEMBER_ANNOTATION)
        {
            return Self::Unattributed;
        }
        let is_same = is_written && is_of_set;
        if is_same && owner.uid == set.owner.uid {
            return Self::Member;
        }
        // A deletion that orphans its dependents removes their owner references: they are to stay.
        let is_orphaned =
            owner.is_in_reach(object.namespace.as_deref()) && !owner.is_only_owner(live);
        if is_same && owner.uid.is_some() && set.owner.uid.is_some() && !is_orphaned {
            return Self::OfEarlierOwner;
        }
        Self::OfOtherSet(format!("the set {name} of {owner}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kind::GroupKind;

    fn set(name: &str, owner: &str, uid: &str) -> SetId {
        let owner = SetOwner {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some("ns".to_owned()),
            name: owner.to_owned(),
            uid: Some(uid.to_owned()),
        };
        SetId { name: name.to_owned(), owner }
    }

    fn object(namespace: &str, name: &str) -> ObjectName {
        let kind = GroupKind { group: String::new(), kind: "Secret".to_owned() };
        ObjectName { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// Metadata as a manager writes it for a member, with owner references to these uids.
    fn live(set: &SetId, object: &ObjectName, manager: &str, owners: &[&str]) -> ObjectMeta {
        let record = serde_json::to_string(&MemberRecord::of(set, object)).unwrap();
        let fields =
            json!({ "f:metadata": { "f:annotations": { format!("f:{MEMBER_ANNOTATION}"): {} } } });
        let owners: Vec<Value> = owners
            .iter()
            .map(|uid| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid }))
            .collect();
        let metadata = json!({
            "name": object.name, "namespace": object.namespace,
            "annotations": { MEMBER_ANNOTATION: record }, "ownerReferences": owners,
            "managedFields": [{ "manager": manager, "operation": "Apply", "fieldsV1": fields }],
        });
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn member_is_the_object_that_was_written_for_this_owner_alone() {
        let (ours, one) = (set("a", "o", "1"), object("ns", "x"));
        let of =
            |set: &SetId, at: &ObjectName, live: &ObjectMeta| Membership::of(set, at, live, "m");

        let member = live(&ours, &one, "m", &["1"]);

        assert_eq!(of(&ours, &one, &member), Membership::Member);
        assert_eq!(of(&ours, &object("ns", "y"), &member), Membership::Unproven, "a copy");
        assert_eq!(of(&ours, &object("other", "x"), &member), Membership::Unproven, "a copy");
        let other = |set: SetId| of(&set, &one, &member);
        assert!(matches!(other(set("b", "o", "1")), Membership::OfOtherSet(_)));
        assert!(matches!(other(set("a", "p", "1")), Membership::OfOtherSet(_)));
        let forged = live(&ours, &one, "restore", &["1"]);
        assert!(matches!(of(&ours, &one, &forged), Membership::OfOtherSet(_)));
        assert_eq!(of(&ours, &one, &ObjectMeta::default()), Membership::Unproven);
        let unattributed = ObjectMeta { managed_fields: None, ..member.clone() };
        assert_eq!(of(&ours, &one, &unattributed), Membership::Unattributed);
        assert_eq!(of(&ours, &object("ns", "y"), &unattributed), Membership::Unproven);
    }

    #[test]
    fn object_of_an_earlier_owner_is_recognised_unless_it_was_orphaned() {
        let (earlier, now) = (set("a", "o", "1"), set("a", "o", "2"));
        let of = |at: &ObjectName, owners: &[&str]| {
            Membership::of(&now, at, &live(&earlier, at, "m", owners), "m")
        };

        assert_eq!(earlier.label(), now.label(), "one list finds both");
        assert_eq!(of(&object("ns", "x"), &["1"]), Membership::OfEarlierOwner);
        assert_eq!(
            of(&object("far", "x"), &[]),
            Membership::OfEarlierOwner,
            "no reference reaches"
        );
        for owners in [&[][..], &["1", "3"], &["2"]] {
            assert!(matches!(of(&object("ns", "x"), owners), Membership::OfOtherSet(_)));
        }
    }
}
