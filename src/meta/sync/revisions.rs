//! Revisions of one parent: claims the existing ones, and writes the planned ones.

use std::sync::Arc;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::{Value, json, value::RawValue};

use super::{ParentReconciler, SyncError, adopt::owners_patch};
use crate::{
    controller::Context,
    informer::{Header, Interest, Object, Selection},
    kind::ServedType,
    meta::{
        ForeignReason,
        api::RevisionChildren,
        apply::is_alive,
        children::{Parent, owner_reference},
        customize::RelatedRule,
        digest::digest,
        ownership::Ownership,
        resource::{Resource, is_already_there, is_conflict, is_gone, is_in_ending_namespace},
        rollout::{
            OlderParent, Plan, Revision, RevisionCache, RevisionOwner, apply_patch, is_named_by,
            is_of_type, labels_of, orphan_selector, patch_of,
        },
    },
    redaction,
};

/// Live revisions of one parent.
pub(super) struct Revisions {
    /// Type of revisions.
    served: Arc<ServedType>,
    /// Revision of the current parent.
    pub(super) latest: Revision,
    /// True if the patch of the latest revision's object was edited: the name is not that of the
    /// patch.
    is_altered: bool,
    /// Other revisions, in the order of their names. A revision without children is deleted.
    pub(super) older: Vec<OlderParent>,
    /// Digest of the observed revisions.
    pub(super) digest: u64,
    /// The parent, decoded.
    pub(super) parent: Value,
    /// Rules of the customize hook for the current parent.
    pub(super) related_rules: Arc<[RelatedRule]>,
}

/// Write of one revision.
#[derive(Debug)]
enum RevisionWrite<'a> {
    Create(&'a Revision, Vec<RevisionChildren>),
    SetChildren(&'a Revision, Vec<RevisionChildren>),
    /// Restores the patch of a revision.
    Restore(&'a Revision, Vec<RevisionChildren>),
    Delete(&'a Revision),
}

impl ParentReconciler {
    /// Claims the revisions of a parent; `None` if its children are not updated one at a time.
    pub(super) async fn revisions(
        &self,
        parent: &Parent,
        object: &Object,
        ownership: &Ownership,
        context: &Context,
    ) -> Result<Option<Revisions>, SyncError> {
        let definition = &*self.definition;
        if !definition.is_rolling() || !self.finalizer.manages_children(object.header()) {
            return Ok(None);
        }
        let cache = self.parents.revisions.cache(&parent.key, context).await?;
        let RevisionCache { served, store, moving } = cache;
        let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
        let namespace = parent.key.namespace.as_ref().unwrap_or(&definition.revision_namespace);
        let orphans = Selection {
            namespace: Some(namespace.clone()),
            selector: orphan_selector(owner.identity),
        };
        if let Some(moving) = moving {
            let interests =
                vec![Interest::OwnerUid(parent.uid.clone()), Interest::Orphans(orphans.clone())];
            moving.set((parent.key.primary, &parent.key.key), interests);
        }
        let found = store.claimable_by(&parent.uid, Some(&orphans).filter(|_| !parent.terminating));
        let (mut objects, candidates) = found
            .into_iter()
            .partition::<Vec<_>, _>(|revision| revision.is_controlled_by(&parent.uid));
        objects
            .extend(self.adopt_revisions(parent, &served, ownership, candidates, context).await?);
        objects.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        let seen: Vec<_> = objects.iter().map(Object::stored_json).collect();
        let digest = digest(&seen);
        let observed: Result<Vec<_>, _> = objects.iter().map(Revision::read).collect();
        let observed = observed.map_err(SyncError::Failed)?;
        let _permit = self.budget.decode_permit(object.json_len()).await;
        let json: Value = serde_json::from_slice(&object.json()).map_err(|error| {
            SyncError::Failed(format!("the parent is unreadable: {}", redaction::decoding(error)))
        })?;
        let fields = &definition.revision_fields;
        let patch = patch_of(&json, fields).map_err(SyncError::Failed)?;
        let mut latest = None;
        let mut older = Vec::new();
        for revision in observed {
            if latest.is_none() && revision.has(&patch) {
                latest = Some(revision);
                continue;
            }
            let mut then = json.clone();
            apply_patch(&mut then, &revision.patch, fields).map_err(SyncError::Failed)?;
            older.push(OlderParent { revision, json: Bytes::from(then.to_string()) });
        }
        let (latest, is_altered) = match latest {
            Some(latest) => (latest, false),
            None => altered(Revision::new(owner, namespace.clone(), patch), &mut older),
        };
        let related_rules = Arc::default();
        let parent = json;
        Ok(Some(Revisions { served, latest, is_altered, older, digest, parent, related_rules }))
    }

    /// Returns the revisions without an owner that are a parent's, after adopting them. These
    /// requests hold no worker slot.
    async fn adopt_revisions(
        &self,
        parent: &Parent,
        served: &ServedType,
        ownership: &Ownership,
        mut candidates: Vec<Object>,
        context: &Context,
    ) -> Result<Vec<Object>, SyncError> {
        let foreign = &self.parents.foreign;
        let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
        candidates.retain(|candidate| {
            foreign.get(&parent.uid, candidate.header()).is_none()
                && is_free(candidate.header(), owner)
                && may_be_of(owner, ownership, candidate)
        });
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        context.release_slot();
        let mut adopted = Vec::new();
        // Read once, and only if there is something to adopt.
        let mut alive = None;
        let resource = Resource::new(context.requester(), served);
        for candidate in candidates {
            let key = candidate.key();
            let doing = |verb: &str| format!("{verb} ControllerRevision {key}");
            let live = match resource.get(key).await {
                Ok(live) => Object::from_json(live.json(), served),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(SyncError::of_write(&doing("reading"), &error)),
            };
            // The cache may be behind: another parent may have adopted the revision.
            let Ok(live) = live else { continue };
            if !is_free(live.header(), owner) || !may_be_of(owner, ownership, &live) {
                foreign.insert(&parent.uid, candidate.header(), ForeignReason::NotOurs);
                continue;
            }
            let alive = match alive {
                Some(alive) => alive,
                None => *alive.insert(is_alive(parent, context.requester()).await?),
            };
            if !alive {
                break;
            }
            let patch =
                owners_patch("ControllerRevision", live.header(), &live.json(), |owners| {
                    owners.push(owner_reference(parent));
                })?;
            match resource.merge_patch::<Box<RawValue>>(key, None, &patch).await {
                Ok(stored) => {
                    let object = Object::from_json(stored.get(), served);
                    adopted.push(object.map_err(|error| {
                        SyncError::Failed(format!("adopted ControllerRevision: {error}"))
                    })?);
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(SyncError::of_write(&doing("adopting"), &error)),
            }
        }
        if !context.regain_slot().await {
            return Err(SyncError::Cancelled);
        }
        Ok(adopted)
    }

    /// Writes the planned children of the revisions, the latest first. After a crash between two
    /// writes a child may be in two revisions, of which the latest counts. A child in no revision
    /// would not be updated.
    pub(super) async fn write_revisions(
        &self,
        parent: &Parent,
        revisions: &Revisions,
        plan: &Plan,
        context: &Context,
    ) -> Result<(), SyncError> {
        let writes = revisions.writes(plan);
        if writes.is_empty() {
            return Ok(());
        }
        context.release_slot();
        let resource = Resource::new(context.requester(), &revisions.served);
        for write in writes {
            match write {
                RevisionWrite::Create(revision, children) => {
                    self.create_revision(parent, revisions, revision, children, &resource).await?;
                }
                RevisionWrite::SetChildren(revision, children) => {
                    let patch = children_patch(revision, children);
                    let result = resource.merge_patch(&revision.key, None, &patch).await;
                    if let Err(error) = result.map(|IgnoredAny| ()) {
                        let doing = format!("updating ControllerRevision {}", revision.key);
                        return Err(match is_gone(&error) {
                            true => SyncError::Outdated(format!("{doing}: it no longer exists")),
                            false => SyncError::of_write(&doing, &error),
                        });
                    }
                }
                RevisionWrite::Restore(revision, children) => {
                    restore_revision(revision, &children, &resource).await?;
                }
                RevisionWrite::Delete(revision) => {
                    let Some((uid, _)) = &revision.observed else { continue };
                    match resource.delete(&revision.key, uid).await {
                        Err(error) if !is_gone(&error) && !is_conflict(&error) => {
                            let doing = format!("deleting ControllerRevision {}", revision.key);
                            return Err(SyncError::of_write(&doing, &error));
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates a revision. An existing object of its name without an owner is the parent's, and is
    /// adopted.
    async fn create_revision(
        &self,
        parent: &Parent,
        revisions: &Revisions,
        revision: &Revision,
        children: Vec<RevisionChildren>,
        resource: &Resource<'_>,
    ) -> Result<(), SyncError> {
        let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
        let generates = self.definition.generate_selector;
        let labels = labels_of(&revisions.parent, owner, generates).map_err(SyncError::Failed)?;
        let object = revision.object(labels, owner_reference(parent), children.clone());
        let doing = format!("creating ControllerRevision {}", revision.key);
        let error = match resource.create(&revision.key, object).await {
            Ok(_stored) => return Ok(()),
            // Rollouts have ended for this parent: its children are finalized without a record.
            Err(error) if parent.terminating && is_in_ending_namespace(&error) => return Ok(()),
            Err(error) if is_already_there(&error) => error,
            Err(error) => return Err(SyncError::of_write(&doing, &error)),
        };
        let live = match resource.get(&revision.key).await {
            Ok(live) => live,
            Err(error) if is_gone(&error) => return Err(SyncError::Outdated(doing)),
            Err(error) => return Err(SyncError::of_write(&doing, &error)),
        };
        let live = Object::from_json(live.json(), &revisions.served)
            .map_err(|error| SyncError::Failed(format!("{doing}: {error}")))?;
        match live.controller() {
            Some(other) if *other.uid == *parent.uid => Err(SyncError::Outdated(doing)),
            Some(_) => Err(SyncError::of_write(&doing, &error)),
            None => {
                let mut patch =
                    owners_patch("ControllerRevision", live.header(), &live.json(), |owners| {
                        owners.push(owner_reference(parent));
                    })?;
                patch["children"] = json!(children);
                let adopted = resource.merge_patch(&revision.key, None, &patch).await;
                adopted.map(|IgnoredAny| ()).map_err(|error| SyncError::of_write(&doing, &error))
            }
        }
    }
}

impl Revisions {
    /// Returns the writes that the plan needs, in their order.
    fn writes(&self, plan: &Plan) -> Vec<RevisionWrite<'_>> {
        let mut writes = Vec::new();
        // A namespace that is being deleted admits no new object, and nothing is rolled any more.
        let is_ending = self.parent.pointer("/metadata/deletionTimestamp").is_some();
        if self.latest.observed.is_none() && is_ending && self.older.is_empty() {
            return writes;
        }
        if self.latest.observed.is_none() {
            writes.push(RevisionWrite::Create(&self.latest, plan.latest.clone()));
        } else if self.is_altered {
            writes.push(RevisionWrite::Restore(&self.latest, plan.latest.clone()));
        } else if self.latest.children != plan.latest {
            writes.push(RevisionWrite::SetChildren(&self.latest, plan.latest.clone()));
        }
        let older = || self.older.iter().map(|older| &older.revision).zip(&plan.older);
        let changed = older()
            .filter(|(revision, children)| !children.is_empty() && revision.children != **children);
        writes
            .extend(changed.map(|(revision, children)| {
                RevisionWrite::SetChildren(revision, children.clone())
            }));
        let unused = older().filter(|(_, children)| children.is_empty());
        writes.extend(unused.map(|(revision, _)| RevisionWrite::Delete(revision)));
        writes
    }

    /// Returns whether the plan needs a write.
    pub(super) fn needs_write(&self, plan: &Plan) -> bool {
        !self.writes(plan).is_empty()
    }
}

/// Returns a new revision, and whether its object exists among the older revisions because its
/// patch was edited by hand. The object is moved from the older revisions, with its children.
fn altered(new: Revision, older: &mut Vec<OlderParent>) -> (Revision, bool) {
    let Some(at) = older.iter().position(|older| older.revision.key == new.key) else {
        return (new, false);
    };
    (Revision { patch: new.patch, ..older.remove(at).revision }, true)
}

/// Restores the patch of a revision's object, and sets its children. A merge patch could not remove
/// the fields that were added to the patch.
async fn restore_revision(
    revision: &Revision,
    children: &[RevisionChildren],
    resource: &Resource<'_>,
) -> Result<(), SyncError> {
    let (uid, version) = revision.observed.clone().unwrap_or_default();
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let patch = json!([
        add("/metadata/uid", json!(uid)),
        add("/metadata/resourceVersion", json!(version)),
        add("/parentPatch", revision.patch.clone()),
        add("/children", json!(children)),
    ]);
    let restored = resource.json_patch(&revision.key, &patch).await;
    restored.map(|IgnoredAny| ()).map_err(|error| {
        let doing = format!("restoring the edited ControllerRevision {}", revision.key);
        match is_gone(&error) {
            true => SyncError::Outdated(format!("{doing}: it no longer exists")),
            false => SyncError::of_write(&doing, &error),
        }
    })
}

/// Patch of the children alone, for exactly this version of a revision.
fn children_patch(revision: &Revision, children: Vec<RevisionChildren>) -> Value {
    let (uid, version) = revision.observed.clone().unwrap_or_default();
    let children = if children.is_empty() { Value::Null } else { json!(children) };
    json!({"metadata": {"uid": uid, "resourceVersion": version}, "children": children})
}

/// Returns whether an object may be adopted as a revision of a parent of this type.
fn is_free(header: &Header, owner: RevisionOwner<'_>) -> bool {
    header.deletion_timestamp.is_none()
        && !header.owners.iter().any(|owner| owner.controller)
        && is_of_type(&header.labels, owner.identity)
}

/// Returns whether a revision without an owner may be a parent's: the parent's selector matches it,
/// or its name is that of its patch for this parent.
fn may_be_of(owner: RevisionOwner<'_>, ownership: &Ownership, candidate: &Object) -> bool {
    let labels = &candidate.header().labels;
    ownership.adopts().is_some_and(|selector| selector.matches(labels))
        || Revision::read(candidate).is_ok_and(|it| is_named_by(owner, &it))
}
