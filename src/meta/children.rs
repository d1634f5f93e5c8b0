//! Children of a parent: validates the desired children of a hook response, orders the writes, and
//! compares each child with its desired state.
//!
//! This module sends no requests. An unusable child is an error of its own: the others are written,
//! and the observed child that it names stays as it is.
//!
//! A child is kept as the text that the hook sent, and decoded only for its own step. At most one
//! child of a parent is decoded at a time, while earlier ones are being written.

pub(super) mod adoption;
mod check;
pub(super) mod claim;
mod desired_object;
pub(super) mod last_applied;
pub(super) mod log_text;
pub(super) mod merge;
mod named_child;
pub(super) mod ownership;
mod server_side;
mod write_step;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::{Value, json};

pub(crate) use self::{
    check::CheckedChildren,
    server_side::with_uid,
    write_step::{DynamicApplyReturn, Write, WriteStep},
};
use self::{desired_object::DesiredObject, last_applied::SYSTEM_FIELDS, ownership::Ownership};
use crate::{
    informer::{Object, ObjectKey},
    kind::{ServedType, TypeRef},
    meta::{
        definition::{
            UpdateMethod,
            apply_strategy::{ApplyRule, ApplyStrategy},
        },
        json::{digest::JsonDigest, go_json, rewrite},
        parent::{
            Parent,
            sync_record::{ChildDigest, ChildDigests},
        },
    },
    redaction,
};

/// Limit of a child in bytes: what kube-apiserver accepts as a request body. A larger child is
/// refused before it is processed.
pub(crate) const MAX_CHILD_BYTES: usize = 3 * 1024 * 1024;

/// Declared type of children that is served now.
#[derive(Clone, Debug)]
pub(crate) struct ServedChildType {
    /// Served type.
    pub(crate) served: Arc<ServedType>,
    /// Update method of existing children.
    pub(crate) strategy: UpdateMethod,
}

/// Observed child.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// Index of the child type.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// uid.
    pub(crate) uid: Arc<str>,
    /// True if the object is being deleted.
    pub(crate) terminating: bool,
    /// The object.
    pub(crate) object: Object,
}

impl Child {
    /// Returns a cached object as a child.
    pub(crate) fn new(group: usize, object: &Object) -> Self {
        let header = object.header();
        Self {
            group,
            key: object.key().clone(),
            uid: header.uid.clone(),
            terminating: header.deletion_timestamp.is_some(),
            object: object.clone(),
        }
    }
}

/// Limit of a child without its metadata and status, in bytes. The annotation of the child is at
/// least as long, and the API server accepts 256 KiB of annotations.
pub(crate) const MAX_REMEMBERED_BYTES: usize = 256 * 1024;

/// Desired child that passed all checks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredChild {
    /// Index of the child type.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// Beginning of a name that was generated for this response.
    pub(crate) generate_name: Option<Arc<str>>,
    /// The object as the hook sent it.
    pub(crate) json: Bytes,
}

/// Child that may need a write.
#[derive(Clone, Debug)]
pub(crate) enum PlannedChild<'a> {
    /// Observed and no longer desired.
    Delete(&'a Child),
    /// Observed and desired.
    Compare(&'a Child, DesiredChild),
    /// Desired and not observed.
    Create(DesiredChild),
}

impl PlannedChild<'_> {
    /// Returns the number of bytes that its step decodes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Delete(_) => 0,
            Self::Compare(child, desired) => child.object.json_len() + desired.json.len(),
            Self::Create(desired) => desired.json.len(),
        }
    }

    /// Returns the observed child that is compared.
    pub(crate) fn observed(&self) -> Option<&Child> {
        match self {
            Self::Compare(child, _) => Some(child),
            Self::Delete(_) | Self::Create(_) => None,
        }
    }

    /// Returns the index of the group, and the key of the object.
    pub(crate) fn target(&self) -> (usize, &ObjectKey) {
        match self {
            Self::Delete(child) => (child.group, &child.key),
            Self::Compare(_, desired) | Self::Create(desired) => (desired.group, &desired.key),
        }
    }
}

/// Parent, types and observed children that desired children are checked against.
#[derive(Debug)]
pub(crate) struct ChildContext<'a> {
    /// The parent.
    pub(crate) parent: &'a Parent,
    /// Declared types that are served.
    pub(crate) groups: &'a [ServedChildType],
    /// Declared optional types that are not served now.
    pub(crate) missing: &'a [TypeRef],
    /// Claim of the parent on its children.
    pub(crate) ownership: &'a Ownership,
    /// Observed children.
    pub(crate) observed: &'a [Child],
    /// Namespace that is watched, if only one is; children elsewhere would never be observed.
    pub(crate) restricted: Option<&'a str>,
}

impl ChildContext<'_> {
    /// Returns the observed children without these.
    pub(crate) fn observed_without(&self, held: &BTreeSet<(usize, ObjectKey)>) -> Cow<'_, [Child]> {
        if held.is_empty() {
            return self.observed.into();
        }
        let is_held = |child: &&Child| held.contains(&(child.group, child.key.clone()));
        self.observed.iter().filter(|child| !is_held(child)).cloned().collect()
    }

    /// Returns the children that may need a write, in the order of the writes: deletes and
    /// recreations first, then creates and updates, each sorted by type.
    pub(crate) fn plan(&self, desired: Vec<DesiredChild>) -> Vec<PlannedChild<'_>> {
        let mut deletes = Vec::new();
        let mut writes = Vec::new();
        let mut wanted: BTreeMap<(usize, ObjectKey), (usize, DesiredChild)> = desired
            .into_iter()
            .enumerate()
            .map(|(order, desired)| ((desired.group, desired.key.clone()), (order, desired)))
            .collect();
        for child in self.observed {
            match wanted.remove(&(child.group, child.key.clone())) {
                _ if child.terminating => {}
                None => deletes.push(PlannedChild::Delete(child)),
                Some((order, desired)) => match self.groups[child.group].strategy {
                    UpdateMethod::OnDelete => {}
                    UpdateMethod::Recreate | UpdateMethod::RollingRecreate => {
                        deletes.push(PlannedChild::Compare(child, desired));
                    }
                    UpdateMethod::InPlace | UpdateMethod::RollingInPlace => {
                        writes.push((order, PlannedChild::Compare(child, desired)));
                    }
                },
            }
        }
        for (order, desired) in wanted.into_values() {
            writes.push((order, PlannedChild::Create(desired)));
        }
        let rank = |planned: &PlannedChild<'_>| {
            let served = &self.groups[planned.target().0].served;
            (served.identity.group.clone(), served.identity.version.clone(), served.kind.clone())
        };
        deletes.sort_by_cached_key(|planned| (rank(planned), planned.target().1.clone()));
        writes.sort_by_cached_key(|(order, planned)| (rank(planned), *order));
        deletes.into_iter().chain(writes.into_iter().map(|(_, planned)| planned)).collect()
    }

    /// Returns the digests of a child. Dynamic apply compares the bytes of an observed child, and
    /// server-side apply what the child declares.
    pub(crate) fn digests(&self, planned: &PlannedChild<'_>, rule: &ApplyRule) -> ChildDigests {
        let (observed, desired) = match planned {
            PlannedChild::Delete(_) => return ChildDigests::default(),
            PlannedChild::Compare(child, desired) => (Some(&child.object), desired),
            PlannedChild::Create(desired) => (None, desired),
        };
        let is_dynamic = rule.strategy == ApplyStrategy::DynamicApply;
        let manager = (!is_dynamic).then_some(&rule.manager);
        let generates = self.ownership.labels_children();
        let desired = ChildDigest::of_desired(&desired.json, generates, manager);
        let observed = observed.and_then(|object| {
            if is_dynamic {
                return Some(desired.with(object.stored_json()));
            }
            Some(desired.with(JsonDigest::of_declared(&object.json()).ok()?))
        });
        ChildDigests { desired: Some(desired), observed }
    }

    /// Returns whether the last sync found an observed child equal, or whether the child has the content
    /// of an earlier write for its desired state.
    pub(crate) fn was_equal(&self, planned: &PlannedChild<'_>, digests: ChildDigests) -> bool {
        let Some(child) = planned.observed() else { return false };
        let record = self.parent.state.record();
        if digests.observed.is_some_and(|digest| record.is_equal(digest)) {
            return true;
        }
        digests.desired.filter(|desired| record.is_equal(*desired)).is_some_and(|written| {
            JsonDigest::of_applied(&child.object.json(), &SYSTEM_FIELDS)
                .is_ok_and(|content| record.is_equal(written.with(content)))
        })
    }

    /// Returns the kind and key of a step, for messages and the write limit. Generated names, which
    /// differ in each sync, have the same text.
    pub(crate) fn name(&self, step: &WriteStep) -> String {
        let (group, key) = step.target();
        let kind = &self.groups[group].served.kind;
        match step.generate_name() {
            Some(base) => {
                let key = ObjectKey { name: format!("{base}*").into(), ..key.clone() };
                format!("{kind} {key}")
            }
            None => format!("{kind} {key}"),
        }
    }

    /// Returns the write for one child; `None` if the child is as desired.
    ///
    /// # Errors
    ///
    /// Names an observed child that cannot be decoded, or a desired one that the API server would
    /// refuse.
    pub(crate) fn step(&self, planned: PlannedChild<'_>) -> Result<Option<WriteStep>, String> {
        let (child, desired) = match planned {
            PlannedChild::Delete(child) => {
                let (group, key, uid) = (child.group, child.key.clone(), child.uid.clone());
                return Ok(Some(WriteStep::Delete { group, key, uid }));
            }
            PlannedChild::Create(desired) => {
                return Ok(Some(WriteStep::Create(self.object(&desired).created()?)));
            }
            PlannedChild::Compare(child, desired) => (child, desired),
        };
        let desired = self.object(&desired);
        let kind = &self.groups[child.group].served.kind;
        let json = child.object.json();
        let observed = rewrite::text(&json).and_then(serde_json::from_str);
        let mut merged: Value = observed.map_err(|error| self.unreadable(child, error))?;
        let wanted = desired.remembered()?;
        let last = last_applied::read(&merged);
        let is_remembered = last.is_some();
        let logged = tracing::enabled!(tracing::Level::DEBUG).then(|| merged.clone());
        if !merge::apply(&mut merged, last, wanted) {
            return Ok(None);
        }
        if let Some(observed) = logged {
            let fields = log_text::differing(&observed, &merged);
            tracing::debug!(%kind, name = %child.key, fields, "child differs");
        }
        let metadata = merged.get("metadata");
        let version = metadata.and_then(|metadata| metadata.get("resourceVersion")?.as_str());
        let replaces = version.map(str::to_owned);
        let body = Bytes::from(go_json::encode(&merged));
        let step = match self.groups[child.group].strategy {
            UpdateMethod::OnDelete => return Ok(None),
            UpdateMethod::Recreate | UpdateMethod::RollingRecreate => {
                drop(merged);
                WriteStep::Recreate {
                    uid: child.uid.clone(),
                    created: desired.created()?,
                    observed: json.into_owned().into(),
                    merged: body,
                }
            }
            UpdateMethod::InPlace | UpdateMethod::RollingInPlace => {
                let content = JsonDigest::of_applied_tree(&merged, &SYSTEM_FIELDS);
                drop(merged);
                WriteStep::Update(desired.write(body, replaces, content))
            }
        };
        // Server-side apply may have written the child, which has no annotation then.
        Ok(Some(if is_remembered { step } else { desired.to_dynamic_apply(&child.uid, step)? }))
    }

    fn unreadable(&self, child: &Child, error: serde_json::Error) -> String {
        let kind = &self.groups[child.group].served.kind;
        format!("{kind} {} is unreadable: {}", child.key, redaction::decoding(error))
    }

    /// Returns a desired child, to be completed.
    fn object<'d>(&'d self, desired: &'d DesiredChild) -> DesiredObject<'d> {
        DesiredObject { rules: self, desired }
    }
}

/// Returns the owner reference of a child to its parent.
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

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;
    use crate::{
        informer::fixture::undecoded,
        kind::{Scope, Subresources, TypeIdentity, VersionOrder},
    };

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
            polled: false,
        })
    }

    pub(crate) fn parent(namespace: Option<&str>) -> Parent {
        let scope = if namespace.is_some() { Scope::Namespaced } else { Scope::Cluster };
        Parent {
            served: served("example.com", "things", "Thing", scope),
            key: ObjectKey { namespace: namespace.map(Into::into), name: "p".into() }.into(),
            uid: "parent-uid".into(),
            terminating: false,
            state: Arc::default(),
        }
    }

    pub(crate) fn groups(strategy: UpdateMethod) -> Vec<ServedChildType> {
        [
            served("", "configmaps", "ConfigMap", Scope::Namespaced),
            served("apps", "deployments", "Deployment", Scope::Namespaced),
            served("", "namespaces", "Namespace", Scope::Cluster),
        ]
        .map(|served| ServedChildType { served, strategy })
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
            object: undecoded(object.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
