//! Steps of server-side apply: the configuration that is applied, and what precedes it.

use bytes::Bytes;
use serde_json::Value;

use super::{Child, ChildContext, DesiredChild, PlannedChild, WriteStep, last_applied, merge};
use crate::{
    apply::intent::as_yaml,
    kind::VersionOrder,
    meta::{definition::UpdateMethod, json::go_json},
    redaction,
};

impl ChildContext<'_> {
    /// Returns the write of server-side apply for one child whose digest is not known; `None` if
    /// the child needs none.
    ///
    /// An observed child that dynamic apply has written has its fields transferred first, and the next sync
    /// applies. A child that is not observed is read before it is created. A child that is
    /// recreated is compared by a dry run, unless its server may carry that out.
    ///
    /// # Errors
    ///
    /// Names an observed child that cannot be decoded, or a desired one that cannot be applied.
    pub(crate) fn apply_step(
        &self,
        planned: PlannedChild<'_>,
    ) -> Result<Option<WriteStep>, String> {
        let (child, desired) = match planned {
            PlannedChild::Delete(_) => return self.step(planned),
            PlannedChild::Create(desired) => {
                let desired = self.object(&desired);
                let body = encoded(&desired.applied()?);
                return Ok(Some(WriteStep::Create(desired.write(body, None, None))));
            }
            PlannedChild::Compare(child, desired) => (child, desired),
        };
        let group = &self.groups[child.group];
        let json = child.object.json();
        let observed: Value =
            serde_json::from_slice(&json).map_err(|error| self.unreadable(child, error))?;
        if last_applied::is_on(&observed) {
            let (group, key, uid) = (child.group, child.key.clone(), child.uid.clone());
            return Ok(Some(WriteStep::TransferFields { group, key, uid, back: None }));
        }
        let desired = self.object(&desired);
        let mut wanted = desired.applied()?;
        let version = observed.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let replaces = version.map(str::to_owned);
        match group.strategy {
            UpdateMethod::OnDelete => Ok(None),
            UpdateMethod::Recreate | UpdateMethod::RollingRecreate => {
                let is_local = group.served.version_order != VersionOrder::Comparable;
                if is_local && contains(&observed, &wanted) {
                    return Ok(None);
                }
                let body = encoded(&wanted);
                wanted["metadata"]["uid"] = (*child.uid).into();
                if let Some(version) = replaces {
                    wanted["metadata"]["resourceVersion"] = version.into();
                }
                Ok(Some(WriteStep::Recreate {
                    uid: child.uid.clone(),
                    created: desired.write(body, None, None),
                    observed: json.into_owned().into(),
                    merged: encoded(&wanted),
                }))
            }
            UpdateMethod::InPlace | UpdateMethod::RollingInPlace => {
                wanted["metadata"]["uid"] = (*child.uid).into();
                let body = encoded(&wanted);
                Ok(Some(WriteStep::Update(desired.write(body, replaces, None))))
            }
        }
    }

    /// Returns whether an observed child has all fields of the desired one. It may have some that it
    /// should not: what an apply would change is known to its server alone.
    ///
    /// # Errors
    ///
    /// Names an observed child that cannot be decoded, or a desired one that cannot be applied.
    pub(crate) fn contains_desired(
        &self,
        child: &Child,
        desired: &DesiredChild,
    ) -> Result<bool, String> {
        let observed: Value = serde_json::from_slice(&child.object.json())
            .map_err(|error| self.unreadable(child, error))?;
        Ok(contains(&observed, &self.object(desired).applied()?))
    }

    /// Returns whether the configuration of a desired child has all fields of another one.
    pub(crate) fn includes(&self, desired: &DesiredChild, other: &DesiredChild) -> bool {
        match (self.object(desired).applied(), self.object(other).applied()) {
            (Ok(desired), Ok(other)) => contains(&desired, &other),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }
}

/// Returns a configuration with the uid of the object that it is applied to.
///
/// # Errors
///
/// If the configuration cannot be decoded.
pub(crate) fn with_uid(configuration: &Bytes, uid: &str) -> Result<Bytes, String> {
    let mut object: Value = serde_json::from_slice(configuration).map_err(redaction::decoding)?;
    object["metadata"]["uid"] = uid.into();
    Ok(encoded(&object))
}

/// Encodes a configuration for server-side apply.
pub(super) fn encoded(object: &Value) -> Bytes {
    as_yaml(go_json::encode(object)).into()
}

/// Returns whether an object has all these fields.
fn contains(observed: &Value, wanted: &Value) -> bool {
    !merge::merge(&mut observed.clone(), None, wanted)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        informer::Selector,
        meta::children::{Write, adoption::AdoptionRule, fixtures::*, ownership::Ownership},
    };

    fn config_map(data: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "ns", "name": "a", "labels": {"app": "x"}},
            "data": {"v": data},
        })
    }

    /// Child as server-side apply has stored it.
    fn applied(data: &str) -> Value {
        let mut object = config_map(data);
        object["metadata"]["uid"] = json!("u");
        object["metadata"]["resourceVersion"] = json!("7");
        object["metadata"]["ownerReferences"] = json!([owner_of_p()]);
        object
    }

    fn owner_of_p() -> Value {
        json!({
            "apiVersion": "example.com/v1", "kind": "Thing", "name": "p",
            "uid": "parent-uid", "controller": true, "blockOwnerDeletion": true
        })
    }

    /// Returns the step for an observed object, or none, that is wanted with this content.
    fn step(method: UpdateMethod, observed: Option<Value>, wanted: Value) -> Option<WriteStep> {
        let (parent, groups) = (parent(Some("ns")), groups(method));
        let ownership = Ownership::Selected {
            selector: Selector::label("app", "x"),
            generated: false,
            rule: AdoptionRule::default(),
        };
        let observed: Vec<Child> =
            observed.into_iter().map(|object| child(0, "a", object)).collect();
        let rules = ChildContext {
            parent: &parent,
            groups: &groups,
            missing: &[],
            ownership: &ownership,
            observed: &observed,
            restricted: None,
        };
        let desired = rules.check(vec![wanted.to_string().into()]).unwrap();
        let planned = rules.plan(desired).pop()?;
        rules.apply_step(planned).unwrap()
    }

    fn body(write: &Write) -> Value {
        serde_json::from_slice(&write.body).unwrap()
    }

    #[test]
    fn new_child_is_applied_with_its_owner_and_without_annotation_and_server_fields() {
        let mut wanted = config_map("1");
        wanted["metadata"]["creationTimestamp"] = Value::Null;
        wanted["metadata"]["uid"] = json!("other");
        wanted["metadata"]["annotations"] = json!({last_applied::LAST_APPLIED: "{}"});
        wanted["status"] = json!({"a": 1});

        let Some(WriteStep::Create(write)) = step(UpdateMethod::OnDelete, None, wanted) else {
            panic!("it is new")
        };

        let mut expected = config_map("1");
        expected["metadata"]["ownerReferences"] = json!([owner_of_p()]);
        expected["metadata"]["annotations"] = json!({});
        assert_eq!(body(&write), expected);
    }

    #[test]
    fn observed_child_is_applied_by_its_uid_according_to_its_method() {
        let step = |method| step(method, Some(applied("1")), config_map("2"));
        assert_eq!(step(UpdateMethod::OnDelete), None);

        let Some(WriteStep::Update(write)) = step(UpdateMethod::InPlace) else {
            panic!("no apply")
        };
        assert_eq!(body(&write)["metadata"]["uid"], "u");
        assert_eq!(body(&write)["metadata"].get("resourceVersion"), None);
        assert_eq!(write.replaces.as_deref(), Some("7"));

        let Some(WriteStep::Recreate { uid, created, merged, .. }) = step(UpdateMethod::Recreate)
        else {
            panic!("no recreation")
        };
        let dry_run: Value = serde_json::from_slice(&merged).unwrap();
        assert_eq!((&*uid, &dry_run["metadata"]["uid"]), ("u", &json!("u")));
        assert_eq!(
            dry_run["metadata"]["resourceVersion"], "7",
            "a change of others is no difference"
        );
        assert_eq!(body(&created)["metadata"].get("uid"), None);
    }

    #[test]
    fn child_with_the_annotation_is_transferred_before_it_is_applied_or_recreated() {
        let mut observed = applied("1");
        observed["metadata"]["annotations"] = json!({last_applied::LAST_APPLIED: "{}"});
        for method in [UpdateMethod::InPlace, UpdateMethod::Recreate] {
            let step = step(method, Some(observed.clone()), config_map("1"));
            assert!(matches!(step, Some(WriteStep::TransferFields { back: None, .. })), "{step:?}");
        }
        assert_eq!(step(UpdateMethod::OnDelete, Some(observed), config_map("1")), None);
    }

    #[test]
    fn large_child_needs_no_room_in_an_annotation() {
        let mut wanted = config_map("1");
        wanted["data"]["large"] = json!("x".repeat(600_000));

        assert!(matches!(step(UpdateMethod::InPlace, None, wanted), Some(WriteStep::Create(_))));
    }

    #[test]
    fn fields_of_a_child_are_contained_whatever_else_it_has() {
        let mut observed = applied("1");
        observed["data"]["other"] = json!("z");

        assert!(contains(&observed, &config_map("1")));
        assert!(!contains(&observed, &config_map("2")));
    }
}
