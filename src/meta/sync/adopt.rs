//! Adopts matching orphans, and releases children that no longer match.

use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json, value::RawValue};

use super::{ParentReconciler, SyncError};
use crate::{
    controller::Context,
    informer::{Header, Object},
    manager::Requester,
    meta::{
        Selector,
        children::{Child, Parent, ServedChildType, owner_reference},
        claim::{self, Claim},
        resource::{Resource, is_gone},
    },
    redaction,
};

impl ParentReconciler {
    /// Returns the candidates that are children, after adopting and releasing.
    pub(super) async fn claim(
        &self,
        parent: &Parent,
        selector: &Selector,
        groups: &[ServedChildType],
        candidates: Vec<(usize, Object)>,
        context: &Context,
    ) -> Result<Vec<Child>, SyncError> {
        let mut children = Vec::new();
        // Read once, and only if there is something to adopt.
        let mut alive = None;
        for (group, object) in candidates {
            let served = &groups[group].served;
            let resource = Resource::new(context.requester(), served);
            let decision = claim::claim(object.header(), &parent.uid, parent.terminating, selector);
            match decision {
                Claim::Ignore => {}
                Claim::Owned => children.push(Child::new(group, &object)),
                Claim::Release => {
                    let patch =
                        owners_patch(&served.kind, object.header(), object.json(), |owners| {
                            owners.retain(|owner| owner["uid"] != *parent.uid);
                        })?;
                    match resource.merge_patch(object.key(), None, &patch).await {
                        Err(error) if !is_gone(&error) => {
                            let doing = format!("releasing {} {}", served.kind, object.key());
                            return Err(SyncError::of_write(&doing, &error));
                        }
                        Ok(IgnoredAny) | Err(_) => {}
                    }
                }
                Claim::Adopt => {
                    let alive = match alive {
                        Some(alive) => alive,
                        None => *alive.insert(is_alive(parent, context.requester()).await?),
                    };
                    if !alive {
                        continue;
                    }
                    let live = match resource.get(object.key()).await {
                        Ok(live) => Object::from_json(live.json(), served),
                        Err(error) if is_gone(&error) => continue,
                        Err(error) => {
                            let doing = format!("reading {} {}", served.kind, object.key());
                            return Err(SyncError::of_write(&doing, &error));
                        }
                    };
                    let object = live.map_err(|error| {
                        SyncError::Failed(format!("{} {}: {error}", served.kind, object.key()))
                    })?;
                    // The cache may be behind: another controller may have adopted the object.
                    let header = object.header();
                    if claim::claim(header, &parent.uid, false, selector) != Claim::Adopt {
                        continue;
                    }
                    let patch = owners_patch(&served.kind, header, object.json(), |owners| {
                        owners.push(owner_reference(parent))
                    })?;
                    match resource.merge_patch::<Box<RawValue>>(object.key(), None, &patch).await {
                        Ok(adopted) => {
                            let adopted = Object::from_json(adopted.get(), served);
                            let adopted = adopted.map_err(|error| {
                                SyncError::Failed(format!("adopted {}: {error}", served.kind))
                            })?;
                            children.push(Child::new(group, &adopted));
                        }
                        Err(error) if is_gone(&error) => {}
                        Err(error) => {
                            let doing = format!("adopting {} {}", served.kind, object.key());
                            return Err(SyncError::of_write(&doing, &error));
                        }
                    }
                }
            }
        }
        Ok(children)
    }
}

/// Reads the parent from the server, since the cache may be outdated.
pub(super) async fn is_alive(parent: &Parent, requester: Requester<'_>) -> Result<bool, SyncError> {
    match Resource::new(requester, &parent.served).get(&parent.key).await {
        Ok(live) => Ok(live.is(&parent.uid) && !live.is_going()),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(SyncError::of_write("reading the parent", &error)),
    }
}

/// Returns a patch of the owner references alone, for exactly this version of the object.
///
/// The whole list is written. An object that cannot be read is an error, since its other owners
/// would be lost.
pub(super) fn owners_patch(
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
    if owners.len() != header.owners.len() {
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
        let json = json!({
            "metadata": {
                "namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "7",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "other"},
                ],
            },
        });
        let served = served("", "configmaps", "ConfigMap", Scope::Namespaced);
        Object::from_json(json.to_string(), &served).unwrap()
    }

    #[test]
    fn a_change_of_owners_keeps_the_others() {
        let object = config_map();

        let patch = owners_patch("ConfigMap", object.header(), object.json(), |owners| {
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
    fn owners_of_an_unreadable_object_are_not_changed() {
        for json in ["{", "", r#"{"metadata": {}}"#] {
            let error = owners_patch("ConfigMap", config_map().header(), json.as_bytes(), |_| {});

            let Err(SyncError::Failed(message)) = error else { panic!("{error:?}") };
            assert!(message.starts_with("ConfigMap ns/a is unreadable: "), "{message}");
        }
    }
}
