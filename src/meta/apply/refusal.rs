//! Explanation of a refused write: one read of the live object.

use crate::{
    informer::{ObjectKey, StringMap},
    meta::{
        LAST_APPLIED,
        children::Parent,
        ownership::{DECORATED_BY, Ownership},
        parent_writes::OtherOwner,
        resource::{FIELD_MANAGER, Resource, ServerObject, is_gone},
        sync_error::{CONFLICTS_BEFORE_ERROR, SyncError},
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
    if attempt < CONFLICTS_BEFORE_ERROR {
        return error;
    }
    let SyncError::Outdated(message) = error else { return error };
    let live = resource.get(key).await.ok();
    SyncError::Outdated(match live.and_then(|live| live.other_writer()) {
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
    /// Object of another owner, or of none.
    NotOurs {
        /// Refusal, with the owner.
        message: String,
        /// Controller of the object.
        owner: Option<OtherOwner>,
        /// Uid of an object without a controller.
        free: Option<String>,
    },
}

/// Reads the live object that has the name of an object to create.
pub(super) async fn explain_existing(
    parent: &Parent,
    ownership: &Ownership,
    resource: &Resource<'_>,
    key: &ObjectKey,
    doing: &str,
) -> ExistingObject {
    let behind =
        |why: &str| ExistingObject::Passing(SyncError::Outdated(format!("{doing}: {why}")));
    let live = match resource.get(key).await {
        Ok(live) => live,
        Err(error) if is_gone(&error) => return ExistingObject::Absent,
        Err(error) => return ExistingObject::Passing(SyncError::of_write(doing, &error)),
    };
    let metadata = &live.metadata;
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let labels = metadata.labels.iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let annotations = metadata.annotations.iter().flatten();
    let annotations = annotations.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let going = live.is_terminating();
    match controller {
        // The cache lags behind.
        Some(owner) if *owner.uid == *parent.uid && ownership.is_marked(&annotations) => {
            behind("the cache is behind")
        }
        Some(owner) if *owner.uid == *parent.uid => ExistingObject::NotOurs {
            message: format!(
                "{doing}: it exists already, and another controller attached it to the same object"
            ),
            owner: None,
            free: None,
        },
        Some(owner) => ExistingObject::NotOurs {
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
        None if going => behind("the old object is being deleted"),
        None => match ownership.adopts() {
            Some(selector) if selector.matches(&labels) => behind("it is about to be adopted"),
            Some(selector) => ExistingObject::NotOurs {
                message: format!(
                    "{doing}: it exists already, has no owner and does not match the parent's \
                     selector {selector}"
                ),
                owner: None,
                free: metadata.uid.clone(),
            },
            None => ExistingObject::NotOurs {
                message: format!("{doing}: it exists already and has no owner"),
                owner: None,
                free: metadata.uid.clone(),
            },
        },
    }
}

/// Returns whether a declared controller, perhaps of another process, has written the object.
fn is_declared_child(live: &ServerObject, annotations: &StringMap) -> bool {
    annotations.get(LAST_APPLIED).is_some()
        || annotations.get(DECORATED_BY).is_some()
        || live.is_managed_by(FIELD_MANAGER)
}
