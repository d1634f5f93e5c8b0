//! Adopts matching orphans, and releases children that no longer match.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::{FutureExt, StreamExt, stream};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::{SyncError, observation::ChildReader, parent_writes::patch_object};
use crate::{
    informer::{Header, Object, Selector},
    kind::ServedType,
    meta::{
        apply::{is_alive, most_at_once},
        children::{
            Child, ServedChildType, adoption,
            claim::{self, Claim},
            owner_reference,
            ownership::Ownership,
        },
        parent::{Parent, sync_record::ForeignReason},
        parents::Parents,
        resource::{Resource, is_gone},
    },
    redaction,
};

/// Number of orphans that one sync reads for adoption; the next sync reads more.
const MAX_ADOPTIONS: usize = 1000;

impl ChildReader<'_> {
    /// Returns the candidates that are children, after adopting and releasing. These writes overlap,
    /// and hold no worker slot.
    pub(super) async fn claim(
        &self,
        ownership: &Ownership,
        groups: &[ServedChildType],
        candidates: Vec<(usize, Object)>,
    ) -> Result<Vec<Child>, SyncError> {
        // A decorator claims by its annotation.
        let Some(selector) = ownership.selector() else { return Ok(Vec::new()) };
        let Self { parents, parent, context, .. } = *self;
        let foreign = |header: &Header| parent.state.record().foreign(header);
        let decide = |group: usize, object: &Object| {
            let header = object.header();
            match claim::claim(header, &parent.uid, parent.terminating, selector) {
                Claim::Adopt => match foreign(header) {
                    None if ownership.adopts().is_some() => Claim::Adopt,
                    Some(ForeignReason::Unproven) => {
                        contest_unproven(parent, &groups[group].served, object);
                        Claim::Ignore
                    }
                    None | Some(ForeignReason::NotOurs) => Claim::Ignore,
                },
                claim @ (Claim::Owned | Claim::Release | Claim::Ignore) => claim,
            }
        };
        let mut adoptions = 0;
        let decided: Vec<_> = candidates
            .into_iter()
            .map(|(group, object)| (decide(group, &object), group, object))
            .filter(|(claim, ..)| {
                adoptions += usize::from(*claim == Claim::Adopt);
                *claim != Claim::Ignore && (*claim != Claim::Adopt || adoptions <= MAX_ADOPTIONS)
            })
            .collect();
        if decided.iter().all(|(claim, ..)| *claim == Claim::Owned) {
            return Ok(decided
                .iter()
                .map(|(_, group, object)| Child::new(*group, object))
                .collect());
        }
        context.release_slot();
        // The parent is read once, and only if an orphan is to be adopted.
        let adopts = decided.iter().any(|(claim, ..)| *claim == Claim::Adopt);
        let is_alive = adopts && is_alive(parent, context.requester()).await?;
        let has_failed = AtomicBool::new(false);
        let writes = decided.into_iter().map(|(decision, group, object)| {
            let resource = Resource::new(context.requester(), &groups[group].served);
            let write = ClaimWrite {
                parent,
                selector,
                ownership,
                parents,
                resource,
                served: &groups[group].served,
                object,
            };
            let has_failed = &has_failed;
            async move {
                let claimed = match decision {
                    Claim::Owned => Ok(Some(Child::new(group, &write.object))),
                    Claim::Adopt if is_alive && !has_failed.load(Ordering::Relaxed) => {
                        write.adopt(has_failed).await.map(|it| it.map(|it| Child::new(group, &it)))
                    }
                    Claim::Release if !has_failed.load(Ordering::Relaxed) => {
                        write.release().await.map(|()| None)
                    }
                    Claim::Ignore | Claim::Adopt | Claim::Release => Ok(None),
                };
                has_failed.fetch_or(claimed.is_err(), Ordering::Relaxed);
                claimed
            }
            .boxed()
        });
        // Writes under way are awaited although one has failed.
        let claimed: Vec<_> =
            stream::iter(writes).buffered(most_at_once(context.attempt())).collect().await;
        let claimed: Vec<Option<Child>> = claimed.into_iter().collect::<Result<_, _>>()?;
        if !context.regain_slot().await {
            return Err(SyncError::Cancelled);
        }
        Ok(claimed.into_iter().flatten().collect())
    }
}

/// Object whose owners are to be changed.
struct ClaimWrite<'a> {
    parent: &'a Parent,
    selector: &'a Selector,
    ownership: &'a Ownership,
    parents: &'a Parents,
    resource: Resource<'a>,
    served: &'a ServedType,
    object: Object,
}

impl ClaimWrite<'_> {
    /// Removes the parent from the owners.
    async fn release(&self) -> Result<(), SyncError> {
        let Self { parent, served, object, .. } = self;
        let patch = owners_patch(&served.kind, object.header(), &object.json(), |owners| {
            owners.retain(|owner| owner["uid"] != *parent.uid);
        })?;
        match self.parents.patches.merge(&self.resource, object.key(), &patch).await {
            Err(error) if !is_gone(&error) => {
                let doing = format!("releasing {} {}", served.kind, object.key());
                Err(SyncError::of_write(&doing, &error))
            }
            Ok(IgnoredAny) | Err(_) => Ok(()),
        }
    }

    /// Adds the parent to the owners, unless another write has failed since. Returns the object as
    /// stored; `None` if the parent may not adopt it any more.
    async fn adopt(&self, has_failed: &AtomicBool) -> Result<Option<Object>, SyncError> {
        let Self { parent, served, object, .. } = self;
        let stored = match self.resource.get(object.key()).await {
            Ok(stored) => stored,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => {
                let doing = format!("reading {} {}", served.kind, object.key());
                return Err(SyncError::of_write(&doing, &error));
            }
        };
        let live = Object::from_json(stored.json(), served).map_err(|error| {
            SyncError::Failed(format!("{} {}: {error}", served.kind, object.key()))
        })?;
        // The cache may be behind: another controller may have adopted the object.
        if claim::claim(live.header(), &parent.uid, false, self.selector) != Claim::Adopt {
            parent.state.record().add_foreign(object.header(), ForeignReason::NotOurs);
            return Ok(None);
        }
        // Caches hold no managed fields, and no annotations of metadata entries.
        if !self.ownership.admits(&stored) {
            parent.state.record().add_foreign(object.header(), ForeignReason::Unproven);
            contest_unproven(parent, served, object);
            return Ok(None);
        }
        if has_failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        add_owner(parent, self.parents, &self.resource, served, &live).await
    }
}

/// Adds a parent to the owners of exactly this version of an object. Returns the object as stored;
/// `None` if it is gone.
pub(super) async fn add_owner(
    parent: &Parent,
    parents: &Parents,
    resource: &Resource<'_>,
    served: &ServedType,
    live: &Object,
) -> Result<Option<Object>, SyncError> {
    let kind = &served.kind;
    let patch = owners_patch(kind, live.header(), &live.json(), |owners| {
        owners.push(owner_reference(parent));
    })?;
    let doing = format!("adopting {kind} {}", live.key());
    patch_object(&parents.patches, resource, served, live.key(), &patch, &doing).await
}

/// Records that an orphan is not adopted, to be reported like an object of another owner.
fn contest_unproven(parent: &Parent, served: &ServedType, object: &Object) {
    let what = format!("{} {}", served.kind, object.key());
    let message = adoption::unproven(&what);
    parent.state.contest(what, message, None);
}

/// Returns a patch of the owner references alone, for exactly this version of the object.
///
/// The whole list is written. An object that cannot be read is an error, since its other owners
/// would be lost.
fn owners_patch(
    kind: &str,
    header: &Header,
    json: &[u8],
    change: impl FnOnce(&mut Vec<Value>),
) -> Result<Value, SyncError> {
    let unreadable =
        |why: String| SyncError::Failed(format!("{kind} {} is unreadable: {why}", header.key));
    #[derive(Deserialize)]
    struct OwnedObject {
        metadata: OwnedMetadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct OwnedMetadata {
        owner_references: Option<Vec<Value>>,
    }
    let object: OwnedObject =
        serde_json::from_slice(json).map_err(|error| unreadable(redaction::decoding(error)))?;
    let mut owners = object.metadata.owner_references.unwrap_or_default();
    // A header has the controller alone where the owners are too many.
    if owners.len() < header.owners.len() {
        return Err(unreadable("its owners are missing".to_owned()));
    }
    change(&mut owners);
    Ok(json!({
        "metadata": {
            "uid": header.uid,
            "resourceVersion": header.resource_version,
            "ownerReferences": owners,
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind::Scope, meta::children::fixtures::served};

    fn config_map() -> Object {
        owned_by(1)
    }

    /// ConfigMap with so many owners that do not control it.
    fn owned_by(count: usize) -> Object {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "other"});
        let json = json!({
            "metadata": {
                "namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "7",
                "ownerReferences": vec![owner; count],
            },
        });
        let served = served("", "configmaps", "ConfigMap", Scope::Namespaced);
        Object::from_json(json.to_string(), &served).unwrap()
    }

    #[test]
    fn a_change_of_owners_keeps_the_others() {
        let object = config_map();

        let patch = owners_patch("ConfigMap", object.header(), &object.json(), |owners| {
            owners.push(json!({"uid": "parent"}));
        });

        let patch = patch.unwrap();
        let owners = patch.pointer("/metadata/ownerReferences").and_then(Value::as_array).unwrap();
        let uids: Vec<_> = owners.iter().map(|owner| owner["uid"].as_str().unwrap()).collect();
        assert_eq!(uids, ["other", "parent"]);
        assert_eq!(patch.pointer("/metadata/resourceVersion"), Some(&json!("7")));
        assert_eq!(
            patch.pointer("/metadata/uid"),
            Some(&json!("u")),
            "an aggregated API may have no versions"
        );
    }

    #[test]
    fn owners_that_are_too_many_for_a_header_are_kept() {
        let object = owned_by(2000);
        assert_eq!(object.header().owners.len(), 0);

        let patch = owners_patch("ConfigMap", object.header(), &object.json(), |owners| {
            owners.push(json!({"uid": "parent"}));
        });

        let patch = patch.unwrap();
        let owners = patch.pointer("/metadata/ownerReferences").and_then(Value::as_array).unwrap();
        assert_eq!(owners.len(), 2001);
    }

    #[test]
    fn owners_of_an_unreadable_object_are_not_changed() {
        for json in ["{", "", r#"{"metadata": {}}"#] {
            let error = owners_patch("ConfigMap", config_map().header(), json.as_bytes(), |_| {});

            let Err(SyncError::Failed(message)) = error else { panic!("{error:?}") };
            assert!(message.starts_with("ConfigMap ns/a is unreadable: "), "{message}");
        }
    }
}
