//! Kinds of a set, kept on its owner, so that members of a kind that left the code are found.
//!
//! A kind is recorded before its first object is created. It is dropped after a list that has no
//! member. A named set has a ConfigMap in place of the owner.

use kube::api::Preconditions;
use serde_json::{Value, json};

use super::{
    checked_set::CheckedSet,
    error::Error,
    live_object::LiveObject,
    refusal::{is_already_there, is_conflict, is_gone},
    requests::Requests,
    set_kind::SetKind,
};

/// Kinds of one set at most, since each is listed at every apply.
const KINDS: usize = 256;
/// Attempts to write the kinds while other clients change the owner.
const ATTEMPTS: usize = 5;

/// Kinds of a set, with the owner that keeps them.
#[derive(Debug)]
pub(super) struct KindsRecord {
    pub(super) kinds: Vec<SetKind>,
    /// Owner as it was read; `None` if the ConfigMap of a named set does not exist.
    holder: Option<LiveObject>,
}

impl KindsRecord {
    /// Reads the kinds of a set, and proves that its owner exists.
    ///
    /// # Errors
    ///
    /// [`Error::OwnerGone`], also if another object has the owner's name.
    pub(super) async fn read(requests: Requests<'_>, set: &CheckedSet) -> Result<Self, Error> {
        let owner = &set.id.owner;
        let namespace = owner.namespace.as_deref();
        let holder = requests
            .metadata(&set.holder, namespace, &owner.name)
            .await
            .map_err(|source| failed(set, "reading", source))?;
        let uid = holder.as_ref().and_then(|it| it.metadata.uid.as_ref());
        if owner.uid.is_some() && uid != owner.uid.as_ref() {
            return Err(Error::OwnerGone(owner.to_string()));
        }
        let annotation = set.id.kinds_annotation();
        let annotations = holder.as_ref().and_then(|it| it.metadata.annotations.as_ref());
        let kinds = match annotations.and_then(|it| it.get(&annotation)) {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text)
                .ok()
                .filter(|kinds: &Vec<SetKind>| {
                    kinds.len() <= KINDS && kinds.iter().all(SetKind::is_plausible)
                })
                .ok_or_else(|| Error::Kinds { owner: owner.to_string(), annotation })?,
        };
        Ok(Self { kinds, holder })
    }

    /// Returns whether the owner is being deleted.
    pub(super) fn is_terminating(&self) -> bool {
        self.holder.as_ref().is_some_and(|it| it.metadata.deletion_timestamp.is_some())
    }

    /// Records further kinds, and the versions of known ones. Other clients may change the owner
    /// meanwhile.
    pub(super) async fn add(
        self,
        requests: Requests<'_>,
        set: &CheckedSet,
        added: &[SetKind],
    ) -> Result<Self, Error> {
        let mut record = self;
        for _ in 0..ATTEMPTS {
            let mut kinds = record.kinds.clone();
            kinds.retain(|kind| !added.iter().any(|it| it.is_same(kind)));
            kinds.extend(added.iter().cloned());
            kinds.sort();
            if kinds == record.kinds {
                return Ok(record);
            }
            if let Some(holder) = record.write(requests, set, &kinds).await? {
                return Ok(Self { kinds, holder: Some(holder) });
            }
            record = Self::read(requests, set).await?;
        }
        Err(Error::OwnerBusy(set.id.owner.to_string()))
    }

    /// Drops kinds that have no member, unless another client has changed the owner since it was
    /// read: the next apply drops them then. The ConfigMap of a named set is deleted with its last
    /// kind, if the set alone has written it.
    pub(super) async fn drop(
        self,
        requests: Requests<'_>,
        set: &CheckedSet,
        dropped: &[SetKind],
    ) -> Result<(), Error> {
        let mut kinds = self.kinds.clone();
        kinds.retain(|kind| !dropped.iter().any(|it| it.is_same(kind)));
        if kinds.len() == self.kinds.len() {
            return Ok(());
        }
        let is_named = set.id.owner.uid.is_none();
        let holder = self.holder.as_ref().filter(|holder| {
            is_named && kinds.is_empty() && holder.is_managed_by(requests.manager)
        });
        match holder.and_then(LiveObject::preconditions) {
            None => self.write(requests, set, &kinds).await.map(|_written_or_conflict| ()),
            Some(preconditions) => {
                let owner = &set.id.owner;
                let namespace = owner.namespace.as_deref();
                match requests.delete(&set.holder, namespace, &owner.name, preconditions).await {
                    Ok(()) => Ok(()),
                    Err(error) if is_conflict(&error) || is_gone(&error) => Ok(()),
                    Err(source) => Err(failed(set, "deleting", source)),
                }
            }
        }
    }

    /// Writes the kinds to exactly the version of the owner that was read. Returns the owner;
    /// `None` after a conflict.
    async fn write(
        &self,
        requests: Requests<'_>,
        set: &CheckedSet,
        kinds: &[SetKind],
    ) -> Result<Option<LiveObject>, Error> {
        let owner = &set.id.owner;
        let namespace = owner.namespace.as_deref();
        let text = serde_json::to_string(kinds)
            .map_err(|source| Error::Encode { kind: owner.kind.clone(), source })?;
        let annotation = if kinds.is_empty() { Value::Null } else { text.into() };
        let mut metadata = json!({ "annotations": { set.id.kinds_annotation(): annotation } });
        let written = match &self.holder {
            Some(holder) => {
                if let Some(Preconditions { uid, resource_version }) = holder.preconditions() {
                    metadata["uid"] = uid.into();
                    metadata["resourceVersion"] = resource_version.into();
                }
                let patch = json!({ "metadata": metadata });
                requests.merge(&set.holder, namespace, &owner.name, &patch).await
            }
            None => {
                metadata["name"] = owner.name.as_str().into();
                metadata["namespace"] = namespace.into();
                let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
                requests.create(&set.holder, namespace, &map, false).await
            }
        };
        match written {
            Ok(holder) => Ok(Some(holder)),
            Err(error) if is_conflict(&error) || is_already_there(&error) => Ok(None),
            Err(source) => Err(failed(set, "writing the kinds of the set to", source)),
        }
    }
}

fn failed(set: &CheckedSet, doing: &str, source: kube::Error) -> Error {
    Error::Owner { doing: format!("{doing} {}", set.id.owner), source: Box::new(source) }
}
