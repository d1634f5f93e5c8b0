//! Purge of orphans: members whose owner is gone, and which the garbage collector does not reach.

use std::collections::HashMap;

use super::{
    applier::Applier,
    error::Error,
    live_object::LiveObject,
    membership::{MemberRecord, SET_LABEL},
    object_name::ObjectName,
    outcome::{DeleteReason, Outcome, PendingReason, WriteResult, Written},
    refusal::{is_conflict, is_gone},
    requests::Requests,
    set_kind::SetKind,
    set_owner::SetOwner,
};
use crate::kind::is_never_deleted;

/// Purge of the members of lost owners.
struct Purge<'a> {
    requests: Requests<'a>,
    /// Type of the owners.
    owners: &'a SetKind,
    /// Owners that were read, with the proof that they are gone.
    known: HashMap<SetOwner, bool>,
}

impl Applier {
    /// Deletes the members of these kinds whose owner was deleted without a clear: of all sets of
    /// this field manager with an owner of the type `owners`. Members with an owner reference are
    /// left to the garbage collector, and those of kinds that are never deleted are kept.
    ///
    /// An owner is gone if the server names it as not found, or has another object of its name. The
    /// rights to get owners, and to list, get and delete members are needed in all namespaces.
    ///
    /// ```no_run
    /// use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
    /// use pilotlight::apply::{Applier, SetKind};
    ///
    /// # async fn example(applier: Applier) {
    /// let owners = SetKind::of::<Deployment>();
    /// let outcome = applier.purge(&owners, &[SetKind::of::<ConfigMap>()]).await;
    /// # drop(outcome);
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropped, a part of the orphans is deleted. The next purge deletes the rest.
    pub async fn purge(&self, owners: &SetKind, kinds: &[SetKind]) -> Outcome {
        let mut purge = Purge { requests: self.requests(), owners, known: HashMap::new() };
        let mut outcome = Outcome::default();
        for kind in kinds {
            match purge.requests.list(kind, None, SET_LABEL).await {
                Ok(Some(candidates)) => {
                    for candidate in &candidates {
                        let object = candidate.name(kind);
                        let result = purge.delete(kind, &object, candidate).await;
                        outcome.objects.extend(result.map(|result| Written { object, result }));
                    }
                }
                Ok(None) => outcome.pending.push(kind.clone()),
                Err(error) => outcome.failed_kinds.push(error),
            }
        }
        outcome
    }
}

impl Purge<'_> {
    /// Deletes a candidate; `None` if it is no orphan.
    async fn delete(
        &mut self,
        kind: &SetKind,
        object: &ObjectName,
        candidate: &LiveObject,
    ) -> Option<WriteResult> {
        let owner = self.owner_of(object, candidate)?;
        match self.is_gone(&owner).await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(WriteResult::Failed(error)),
        }
        if is_never_deleted(&kind.group, &kind.kind) {
            return Some(WriteResult::Kept(DeleteReason::OwnerGone));
        }
        let (namespace, name) = (object.namespace.as_deref(), object.name.as_str());
        let failed = |doing: &str, source| {
            let (doing, source) = (format!("{doing} {object}"), Box::new(source));
            WriteResult::Failed(Error::Request { doing, source })
        };
        let live = match self.requests.metadata(kind, namespace, name).await {
            Ok(live) => live?,
            Err(error) => return Some(failed("reading", error)),
        };
        if self.owner_of(object, &live).as_ref() != Some(&owner) {
            return None;
        }
        if live.metadata.deletion_timestamp.is_some() {
            return Some(WriteResult::Pending(PendingReason::Terminating));
        }
        let preconditions = live.preconditions()?;
        Some(match self.requests.delete(kind, namespace, name, preconditions).await {
            Ok(()) => WriteResult::Deleted(DeleteReason::OwnerGone),
            Err(error) if is_gone(&error) => WriteResult::Deleted(DeleteReason::OwnerGone),
            Err(error) if is_conflict(&error) => {
                WriteResult::Failed(Error::Changed(object.clone()))
            }
            Err(error) => failed("deleting", error),
        })
    }

    /// Returns the owner of a proven member, if it is of the type that is purged, and no owner
    /// reference reaches the member.
    fn owner_of(&self, object: &ObjectName, live: &LiveObject) -> Option<SetOwner> {
        let owner = MemberRecord::owner_of(object, &live.metadata, self.requests.manager)?;
        let is_of_type = owner.group == self.owners.group && owner.kind == self.owners.kind;
        let is_collected = owner.is_in_reach(object.namespace.as_deref());
        (is_of_type && owner.uid.is_some() && !is_collected).then_some(owner)
    }

    async fn is_gone(&mut self, owner: &SetOwner) -> Result<bool, Error> {
        // By all that the record names: a forged record may have the uid of a living owner.
        if let Some(known) = self.known.get(owner) {
            return Ok(*known);
        }
        let namespace = owner.namespace.as_deref();
        let live = self.requests.metadata(self.owners, namespace, &owner.name).await;
        let live = live.map_err(|source| {
            let doing = format!("reading {owner}");
            Error::Owner { doing, source: Box::new(source) }
        })?;
        let is_gone = live.is_none_or(|live| live.metadata.uid != owner.uid);
        self.known.insert(owner.clone(), is_gone);
        Ok(is_gone)
    }
}
