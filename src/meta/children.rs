//! Children: what a hook wants of them, checked as a whole, and the steps that lead there.
//!
//! Nothing here writes. An answer with one unusable child is refused altogether, so that no
//! mistake in it deletes anything.

mod check;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Selector, UpdateMethod, last_applied, merge};
use crate::{
    informer::{Object, ObjectKey},
    kind::{ServedType, TypeRef},
    redaction,
};

/// The parent, as far as its children are concerned.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    /// How to talk to its type.
    pub(crate) served: Arc<ServedType>,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// uid.
    pub(crate) uid: Arc<str>,
    /// It is being deleted.
    pub(crate) terminating: bool,
}

/// A declared type of children that is served now.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// How to talk to it.
    pub(crate) served: Arc<ServedType>,
    /// How existing children are updated.
    pub(crate) strategy: UpdateMethod,
}

/// An observed child.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// Which of the groups.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// uid.
    pub(crate) uid: Arc<str>,
    /// It is being deleted.
    pub(crate) terminating: bool,
    /// The object.
    pub(crate) json: Bytes,
}

impl Child {
    /// A cached object as a child.
    pub(crate) fn new(group: usize, object: &Object) -> Self {
        Self {
            group,
            key: object.key().clone(),
            uid: object.header().uid.clone(),
            terminating: object.header().deletion_timestamp.is_some(),
            json: object.json().clone(),
        }
    }
}

/// A wanted child that can be worked with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Desired {
    /// Which of the groups.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// The object.
    pub(crate) object: Value,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Delete the object with this uid.
    Delete {
        /// Which of the groups.
        group: usize,
        /// Namespace and name.
        key: ObjectKey,
        /// The one object that is meant.
        uid: Arc<str>,
    },
    /// Delete the object with this uid, so that this one is created in its place by the next sync.
    Recreate {
        /// The one object that is meant.
        uid: Arc<str>,
        /// What takes its place.
        desired: Desired,
        /// The object as it is.
        observed: Value,
        /// The object as it would be if it were updated.
        merged: Value,
    },
    /// Create this object.
    Create(Desired),
    /// Replace the observed object with this one.
    Update(Desired),
}

impl Step {
    /// Which of the groups, and which object.
    pub(crate) fn target(&self) -> (usize, &ObjectKey) {
        match self {
            Self::Delete { group, key, .. } => (*group, key),
            Self::Create(desired) | Self::Update(desired) | Self::Recreate { desired, .. } => {
                (desired.group, &desired.key)
            }
        }
    }
}

/// What wanted children are checked against.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    /// The parent.
    pub(crate) parent: &'a Parent,
    /// Declared types that are served.
    pub(crate) groups: &'a [Group],
    /// Declared optional types that are not served now.
    pub(crate) missing: &'a [TypeRef],
    /// What children must match.
    pub(crate) selector: &'a Selector,
    /// The label with the parent's uid is added.
    pub(crate) generate_selector: bool,
    /// Children that there are.
    pub(crate) observed: &'a [Child],
    /// The one namespace that is watched; children elsewhere would never be seen again.
    pub(crate) restricted: Option<&'a str>,
}

impl Rules<'_> {
    /// The writes that lead from what is observed to what is desired, in their order: deletes,
    /// then creates and updates, each by type.
    ///
    /// # Errors
    ///
    /// Names an observed child that is wanted and cannot be read.
    pub(crate) fn plan(&self, desired: Vec<Desired>) -> Result<Vec<Step>, String> {
        let mut deletes = Vec::new();
        let mut writes = Vec::new();
        let mut wanted: BTreeMap<(usize, ObjectKey), (usize, Desired)> = desired
            .into_iter()
            .enumerate()
            .map(|(order, desired)| ((desired.group, desired.key.clone()), (order, desired)))
            .collect();
        for child in self.observed {
            let target = (child.group, child.key.clone());
            let Some((order, desired)) = wanted.remove(&target) else {
                if !child.terminating {
                    deletes.push(delete(child));
                }
                continue;
            };
            if child.terminating {
                continue;
            }
            let observed: Value = serde_json::from_slice(&child.json).map_err(|error| {
                let kind = &self.groups[child.group].served.kind;
                format!("{kind} {} is unreadable: {}", child.key, redaction::decoding(error))
            })?;
            let merged = merge::apply(&observed, &desired.object);
            if last_applied::same(&merged, &observed) {
                continue;
            }
            match self.groups[child.group].strategy {
                UpdateMethod::OnDelete => {}
                UpdateMethod::Recreate => {
                    let object = self.new_child(&desired.object);
                    let desired = Desired { object, ..desired };
                    let uid = child.uid.clone();
                    deletes.push(Step::Recreate { uid, desired, observed, merged });
                }
                UpdateMethod::InPlace => {
                    writes.push((order, Step::Update(Desired { object: merged, ..desired })));
                }
            }
        }
        for (order, desired) in wanted.into_values() {
            let object = self.new_child(&desired.object);
            writes.push((order, Step::Create(Desired { object, ..desired })));
        }
        let rank = |step: &Step| {
            let identity = &self.groups[step.target().0].served;
            (
                identity.identity.group.clone(),
                identity.identity.version.clone(),
                identity.kind.clone(),
            )
        };
        deletes.sort_by_cached_key(|step| (rank(step), step.target().1.clone()));
        writes.sort_by_cached_key(|(order, step)| (rank(step), *order));
        Ok(deletes.into_iter().chain(writes.into_iter().map(|(_, step)| step)).collect())
    }

    /// A child as it is created: owned, and remembering what was wanted.
    fn new_child(&self, desired: &Value) -> Value {
        let essence = last_applied::essence(desired);
        let mut object = essence.clone();
        if let (Some(object), Some(status)) = (object.as_object_mut(), desired.get("status")) {
            object.insert("status".to_owned(), status.clone());
        }
        last_applied::write(&mut object, &essence);
        object["metadata"]["ownerReferences"] = json!([owner_reference(self.parent)]);
        object
    }
}

/// The reference by which a child names its parent.
pub(crate) fn owner_reference(parent: &Parent) -> Value {
    json!({
        "apiVersion": parent.served.identity.api_version(),
        "kind": parent.served.kind,
        "name": parent.key.name,
        "uid": parent.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn delete(child: &Child) -> Step {
    Step::Delete { group: child.group, key: child.key.clone(), uid: child.uid.clone() }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;
    use crate::kind::{Scope, Subresources, TypeIdentity, VersionOrder};

    pub(crate) fn served(group: &str, plural: &str, kind: &str, scope: Scope) -> Arc<ServedType> {
        Arc::new(ServedType {
            identity: TypeIdentity {
                group: group.into(),
                version: "v1".into(),
                plural: plural.into(),
                scope,
                uid: None,
            },
            kind: kind.into(),
            list_kind: format!("{kind}List").into(),
            subresources: Subresources { status: true, scale: false },
            version_order: VersionOrder::Comparable,
        })
    }

    pub(crate) fn parent(namespace: Option<&str>) -> Parent {
        let scope = if namespace.is_some() { Scope::Namespaced } else { Scope::Cluster };
        Parent {
            served: served("example.com", "things", "Thing", scope),
            key: ObjectKey { namespace: namespace.map(Into::into), name: "p".into() },
            uid: "parent-uid".into(),
            terminating: false,
        }
    }

    pub(crate) fn groups(strategy: UpdateMethod) -> Vec<Group> {
        [
            served("", "configmaps", "ConfigMap", Scope::Namespaced),
            served("apps", "deployments", "Deployment", Scope::Namespaced),
            served("", "namespaces", "Namespace", Scope::Cluster),
        ]
        .map(|served| Group { served, strategy })
        .into()
    }

    pub(crate) fn child(group: usize, name: &str, object: Value) -> Child {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        Child {
            group,
            key: ObjectKey {
                namespace: text("/metadata/namespace").map(Into::into),
                name: name.into(),
            },
            uid: text("/metadata/uid").unwrap_or(name).into(),
            terminating: object.pointer("/metadata/deletionTimestamp").is_some(),
            json: serde_json::to_vec(&object).unwrap().into(),
        }
    }
}

#[cfg(test)]
mod tests;
