//! Explanation of a refused write: one read of the live object.

use super::left_behind::{self, LeftBehindChild};
use crate::{
    informer::{ObjectKey, StringMap},
    meta::{
        children::{
            ChildContext, adoption,
            last_applied::LAST_APPLIED,
            ownership::{DECORATED_BY, Ownership},
        },
        parent::{
            Parent,
            sync_error::{CONFLICTS_BEFORE_EVENT, SyncError},
            sync_state::OtherOwner,
        },
        resource::{FIELD_MANAGER, LiveOwner, Resource, ServerObject, is_gone},
    },
};

/// Adds the field manager that keeps writing the object, if the server names one. Only a conflict
/// that is about to be reported is worth this request.
pub(super) async fn with_other_writer(
    error: SyncError,
    resource: &Resource<'_>,
    key: &ObjectKey,
    attempt: u32,
) -> SyncError {
    if attempt < CONFLICTS_BEFORE_EVENT {
        return error;
    }
    let SyncError::Conflict(message) = error else { return error };
    let live = resource.get(key).await.ok();
    SyncError::Conflict(match live.and_then(|live| live.other_writer()) {
        Some(writer) => format!("{message}; {writer} keeps writing it"),
        None => message,
    })
}

/// Live object that has the name of an object to create.
pub(super) enum ExistingObject {
    /// The server has no object of that name.
    Absent,
    /// State that ends by itself, or a failed read.
    Passing(SyncError),
    /// Child of an earlier parent of the same name, which is gone.
    LeftBehind(LeftBehindChild),
    /// Object of another owner, or of none.
    NotOurs {
        /// Refusal, with the owner.
        message: String,
        /// Controller of the object.
        owner: Option<OtherOwner>,
        /// Uid of an object without a controller that no other decorator attached.
        free: Option<String>,
    },
}

/// Reads the live object that has the name of an object to create.
pub(super) async fn explain_existing(
    rules: &ChildContext<'_>,
    group: usize,
    resource: &Resource<'_>,
    key: &ObjectKey,
    doing: &str,
) -> ExistingObject {
    let &ChildContext { parent, ownership, groups, .. } = rules;
    let live = match resource.get(key).await {
        Ok(live) => live,
        Err(error) if is_gone(&error) => return ExistingObject::Absent,
        Err(error) => return ExistingObject::Passing(SyncError::of_write(doing, &error)),
    };
    let metadata = &live.metadata;
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let annotations = metadata.annotations.as_ref().map(StringMap::from).unwrap_or_default();
    let labels = metadata.labels.as_ref().map(StringMap::from).unwrap_or_default();
    // A child that stops matching is released, unless its parent is being deleted.
    let is_left = parent.terminating
        && ownership.selector().is_some_and(|selector| !selector.matches(&labels));
    let left_behind = || {
        let served = &groups[group].served;
        LeftBehindChild::of(&live, served, &annotations, parent, ownership)
    };
    match controller {
        Some(owner) if *owner.uid == *parent.uid && is_left => ExistingObject::NotOurs {
            message: format!(
                "{doing}: it exists already, and the selector of the deleted parent does not \
                 match its labels"
            ),
            owner: None,
            free: None,
        },
        // The cache lags behind.
        Some(owner) if *owner.uid == *parent.uid && ownership.is_marked(&annotations) => {
            passing(doing, "the cache is behind")
        }
        Some(owner) if *owner.uid == *parent.uid => ExistingObject::NotOurs {
            message: format!(
                "{doing}: it exists already, and another controller attached it to the same object"
            ),
            owner: None,
            free: None,
        },
        Some(owner) => match left_behind() {
            Some(_) if live.is_terminating() => passing(doing, "the old object is being deleted"),
            Some(child) => ExistingObject::LeftBehind(child),
            // A kind that is never deleted here, or an object with other owners as well.
            None if left_behind::is_earlier(owner, metadata.namespace.as_deref(), parent) => {
                let LiveOwner { kind, name, .. } = owner;
                let why = format!(
                    "it belongs to an earlier {kind} {name}, whose children the garbage collector \
                     deletes"
                );
                passing(doing, &why)
            }
            None => ExistingObject::NotOurs {
                message: format!(
                    "{doing}: it exists already and belongs to {} {}",
                    owner.kind, owner.name
                ),
                owner: Some(OtherOwner {
                    reference: owner.clone(),
                    namespace: key.namespace.clone(),
                    is_parent: is_declared_child(&live, &annotations),
                }),
                free: None,
            },
        },
        None if live.is_terminating() => passing(doing, "the old object is being deleted"),
        None => explain_orphan(parent, ownership, &live, &annotations, doing),
    }
}

/// Explains a live object without a controller. It is adopted if it matches the selector of a parent
/// that is not being deleted, and never if a decorator attached it.
fn explain_orphan(
    parent: &Parent,
    ownership: &Ownership,
    live: &ServerObject,
    annotations: &StringMap,
    doing: &str,
) -> ExistingObject {
    let not_ours = |why: &str, free: Option<String>| ExistingObject::NotOurs {
        message: format!("{doing}: it exists already{why}"),
        owner: None,
        free,
    };
    let decorator = annotations.get(DECORATED_BY);
    if let Some(decorator) = decorator.filter(|_| !ownership.is_marked(annotations)) {
        let why = format!(", has no owner and is attached by the DecoratorController {decorator}");
        return not_ours(&why, None);
    }
    let free = live.metadata.uid.clone();
    let labels = live.metadata.labels.as_ref().map(StringMap::from).unwrap_or_default();
    let Some(selector) = ownership.selector() else { return not_ours(" and has no owner", free) };
    if !selector.matches(&labels) {
        let why = format!(", has no owner and does not match the parent's selector {selector}");
        not_ours(&why, free)
    } else if parent.terminating {
        not_ours(", has no owner and is not adopted by a parent that is being deleted", free)
    } else if ownership.adopts().is_none() {
        let why = format!(
            ", has no owner and is not adopted, since the parent's selector {selector} requires no \
             label"
        );
        not_ours(&why, free)
    } else if ownership.admits(live) {
        passing(doing, "it is about to be adopted")
    } else {
        not_ours(&format!(": {}", adoption::unproven("it")), free)
    }
}

/// Returns a state that ends by itself.
fn passing(doing: &str, why: &str) -> ExistingObject {
    ExistingObject::Passing(SyncError::Outdated(format!("{doing}: {why}")))
}

/// Returns whether a declared controller, perhaps of another process, has written the object.
fn is_declared_child(live: &ServerObject, annotations: &StringMap) -> bool {
    annotations.get(LAST_APPLIED).is_some()
        || annotations.get(DECORATED_BY).is_some()
        || live.is_managed_by(FIELD_MANAGER)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::meta::children::{adoption::AdoptionRule, fixtures::parent};

    #[test]
    fn object_without_a_controller_is_adopted_free_or_attached_by_a_decorator() {
        let selected = Ownership::Selected {
            selector: "app=x".parse().unwrap(),
            generated: false,
            rule: AdoptionRule::default(),
        };
        let attaching = Ownership::Annotated { controller: "ours".to_owned() };
        // `None` is a state that ends by itself, and `Some` whether the object is free.
        for (ownership, terminating, label, attached_by, expected) in [
            (&selected, false, "x", None, None),
            (&selected, true, "x", None, Some(true)),
            (&selected, false, "y", None, Some(true)),
            (&selected, false, "x", Some("ours"), Some(false)),
            (&selected, true, "x", Some("ours"), Some(false)),
            (&selected, false, "y", Some("ours"), Some(false)),
            (&attaching, false, "x", None, Some(true)),
            (&attaching, false, "x", Some("ours"), Some(true)),
            (&attaching, false, "x", Some("theirs"), Some(false)),
        ] {
            let parent = Parent { terminating, ..parent(Some("ns")) };
            let live = json!({"metadata": {"name": "c", "uid": "u", "labels": {"app": label}}});
            let live: ServerObject = serde_json::from_str(&live.to_string()).unwrap();
            let annotations = attached_by.map(|name| (DECORATED_BY, name)).into_iter().collect();

            let found = explain_orphan(&parent, ownership, &live, &annotations, "creating c");

            let found = match found {
                ExistingObject::Absent => panic!("it exists"),
                ExistingObject::LeftBehind(_) => panic!("it has no owner"),
                ExistingObject::Passing(_) => None,
                ExistingObject::NotOurs { message, free, .. } => {
                    let is_attached = message.contains("attached by the DecoratorController");
                    assert_eq!(is_attached, free.is_none(), "{message}");
                    Some(free.is_some())
                }
            };
            assert_eq!(found, expected, "{terminating} {label} {attached_by:?}: {ownership:?}");
        }
    }
}
