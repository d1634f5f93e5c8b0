//! Revisions of one parent: claims the existing ones. `revision_writes` writes the planned ones.
//!
//! An object counts as a revision of a parent only if it is where the manager writes revisions of
//! that parent, its controller reference names the parent in all parts, and its name is that of its
//! content. Others with the uid of the parent may be forged: they are reported and change nothing.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{SyncError, adopt::add_owner, report::SyncReporter};
use crate::{
    informer::{Header, Interest, Object, Selection},
    kind::ServedType,
    meta::{
        apply::{Apply, is_alive},
        definition::Definition,
        json::digest::digest,
        parent::{Parent, sync_record::ForeignReason},
        recorder::Severity,
        resource::{Resource, is_gone},
        rollout::{
            OlderParent, Revision, RevisionCache, RevisionOwner, apply_patch, is_named_by,
            is_of_type, orphan_selector, patch_of,
        },
    },
    redaction,
};

/// Live revisions of one parent.
pub(super) struct Revisions<'a> {
    pub(super) sync: RolloutSync<'a>,
    /// Type of revisions.
    pub(super) served: Arc<ServedType>,
    /// Revision of the current parent.
    pub(super) latest: Revision,
    /// True if the patch of the latest revision's object was edited: the name is not that of the
    /// patch.
    pub(super) is_altered: bool,
    /// Other revisions, in the order of their names. A revision without children is deleted.
    pub(super) older: Vec<OlderParent>,
    /// Digest of the observed revisions.
    pub(super) digest: u64,
    /// The parent, decoded.
    pub(super) parent: Value,
}

/// Rollout of one parent in one sync: claims its revisions, plans, and writes them.
#[derive(Clone, Copy)]
pub(super) struct RolloutSync<'a> {
    pub(super) definition: &'a Definition,
    /// Apply strategy, budget of decoded objects, and the parents.
    pub(super) apply: &'a Apply,
    /// Namespace of the revisions.
    pub(super) namespace: &'a Arc<str>,
    pub(super) reporter: SyncReporter<'a>,
}

impl<'a> RolloutSync<'a> {
    /// Claims the revisions of a parent, whose children are updated one at a time.
    pub(super) async fn claim(self, object: &Object) -> Result<Revisions<'a>, SyncError> {
        let Self { namespace, reporter: SyncReporter { parent, context, .. }, .. } = self;
        let cache = self.apply.parents.revisions.cache(&parent.key, context).await?;
        let RevisionCache { served, store, moving } = cache;
        let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
        let orphans = Selection {
            namespace: Some(namespace.clone()),
            selector: orphan_selector(owner.identity),
        };
        if let Some(moving) = moving {
            let interests =
                vec![Interest::OwnerUid(parent.uid.clone()), Interest::Orphans(orphans.clone())];
            moving.set(&parent.key, interests);
        }
        let found = store.claimable_by(&parent.uid, Some(&orphans).filter(|_| !parent.terminating));
        let (mut objects, candidates) = found
            .into_iter()
            .partition::<Vec<_>, _>(|revision| revision.is_controlled_by(&parent.uid));
        objects.extend(self.adopt(&served, candidates).await?);
        objects.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        let _permit = self.apply.budget.decode_permit(object.json_len()).await;
        let json: Value = serde_json::from_slice(&object.json()).map_err(|error| {
            SyncError::Failed(format!("the parent is unreadable: {}", redaction::decoding(error)))
        })?;
        let fields = &self.definition.revision_fields;
        let patch = patch_of(&json, fields).map_err(SyncError::Failed)?;
        let new = Revision::new(owner, namespace.clone(), patch);
        let (mut latest, mut older, mut seen) = (None, Vec::new(), Vec::new());
        for object in &objects {
            let counted = count(parent, &new, object).and_then(|revision| {
                if revision.key == new.key {
                    // The patch may have been edited, and is restored.
                    return Ok((revision, None));
                }
                let mut then = json.clone();
                apply_patch(&mut then, &revision.patch, fields)?;
                Ok((revision, Some(Bytes::from(then.to_string()))))
            });
            match counted {
                Ok((revision, None)) => latest = Some(revision),
                Ok((revision, Some(json))) => older.push(OlderParent { revision, json }),
                Err(why) => {
                    self.report_ignored(object, &why);
                    continue;
                }
            }
            seen.push(object.stored_json());
        }
        let digest = digest(&seen);
        let is_altered = latest.as_ref().is_some_and(|latest| !latest.has(&new.patch));
        let latest = match latest {
            Some(latest) => Revision { patch: new.patch, ..latest },
            None => new,
        };
        Ok(Revisions { sync: self, served, latest, is_altered, older, digest, parent: json })
    }

    /// Reports an object that does not count as a revision, once for each of its versions.
    fn report_ignored(&self, object: &Object, why: &str) {
        let parent = self.reporter.parent;
        if parent.state.record().foreign(object.header()).is_some() {
            return;
        }
        parent.state.record().add_foreign(object.header(), ForeignReason::NotOurs);
        let text = format!(
            "ControllerRevision {} is ignored, since it is no revision of this parent: {why}. \
             Delete it, unless it is in use elsewhere",
            object.key()
        );
        self.reporter.publish(Severity::Warning, "RevisionIgnored", &text);
    }

    /// Returns the revisions without an owner that are a parent's, after adopting them. These
    /// requests hold no worker slot.
    async fn adopt(
        &self,
        served: &ServedType,
        mut candidates: Vec<Object>,
    ) -> Result<Vec<Object>, SyncError> {
        let SyncReporter { parent, context, .. } = self.reporter;
        let parents = &*self.apply.parents;
        let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
        candidates.retain(|candidate| {
            parent.state.record().foreign(candidate.header()).is_none()
                && is_free(candidate.header(), owner)
                && is_named(owner, candidate)
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
            let live = match resource.get(key).await {
                Ok(live) => Object::from_json(live.json(), served),
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    let doing = format!("reading ControllerRevision {key}");
                    return Err(SyncError::of_write(&doing, &error));
                }
            };
            // The cache may be behind: another parent may have adopted the revision.
            let Ok(live) = live else { continue };
            if !is_free(live.header(), owner) || !is_named(owner, &live) {
                parent.state.record().add_foreign(candidate.header(), ForeignReason::NotOurs);
                continue;
            }
            let alive = match alive {
                Some(alive) => alive,
                None => *alive.insert(is_alive(parent, context.requester()).await?),
            };
            if !alive {
                break;
            }
            adopted.extend(add_owner(parent, parents, &resource, served, &live).await?);
        }
        if !context.regain_slot().await {
            return Err(SyncError::Cancelled);
        }
        Ok(adopted)
    }
}

/// Reads an object as a revision of a parent, whose latest one is `latest`.
///
/// # Errors
///
/// Says why the object is none: it may be forged by a client that knows the uid of the parent.
pub(super) fn count(
    parent: &Parent,
    latest: &Revision,
    object: &Object,
) -> Result<Revision, String> {
    if object.key().namespace != latest.key.namespace {
        let namespace = latest.key.namespace.as_deref().unwrap_or_default();
        return Err(format!("the revisions of this parent are in the namespace {namespace}"));
    }
    let is_owned = object.controller().is_some_and(|owner| {
        *owner.kind == parent.served.group_kind()
            && *owner.name == *parent.key.name
            && *owner.uid == *parent.uid
    });
    if !is_owned {
        return Err("its controller reference has another group, kind or name".to_owned());
    }
    let revision = Revision::read(object)?;
    let owner = RevisionOwner { identity: &parent.served.identity, uid: &parent.uid };
    if revision.key != latest.key && !is_named_by(owner, &revision) {
        return Err("its name is not that of its content".to_owned());
    }
    Ok(revision)
}

/// Returns whether an object may be adopted as a revision of a parent of this type.
fn is_free(header: &Header, owner: RevisionOwner<'_>) -> bool {
    header.deletion_timestamp.is_none()
        && !header.owners.iter().any(|owner| owner.controller)
        && is_of_type(&header.labels, owner.identity)
}

/// Returns whether the name of an object is that of its content for this parent.
fn is_named(owner: RevisionOwner<'_>, candidate: &Object) -> bool {
    Revision::read(candidate).is_ok_and(|revision| is_named_by(owner, &revision))
}
