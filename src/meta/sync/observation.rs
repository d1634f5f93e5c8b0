//! Observed state of one parent: the served types of its children, and its children.

use std::sync::Arc;

use super::SyncError;
use crate::{
    controller::Context,
    discovery::TypeRegistry,
    informer::{Interest, Object, Selection},
    kind::{Scope, ServedType, TypeRef},
    meta::{
        children::{Child, ChildContext, ServedChildType, ownership::Ownership},
        definition::Definition,
        parent::Parent,
        parents::Parents,
        protocol::ObservedObjects,
        related::RelatedGroup,
    },
};

/// Types and children of one parent at the beginning of a sync.
pub(super) struct ObservedChildren<'a> {
    pub(super) parent: &'a Parent,
    /// Namespace that is watched, if only one is.
    pub(super) restricted: Option<&'a str>,
    /// Claim of the parent on its children.
    pub(super) ownership: Ownership,
    /// Declared types that are served.
    pub(super) groups: Vec<ServedChildType>,
    /// Declared optional types that are not served.
    pub(super) missing: Vec<TypeRef>,
    /// Missing types that are proven not to be served and whose kinds are known from earlier.
    pub(super) absent: Vec<Arc<ServedType>>,
    /// Children of the parent, after adopting and releasing.
    pub(super) children: Vec<Child>,
}

impl ObservedChildren<'_> {
    /// Returns the context that desired children are checked against.
    pub(super) fn rules(&self) -> ChildContext<'_> {
        ChildContext {
            parent: self.parent,
            groups: &self.groups,
            missing: &self.missing,
            ownership: &self.ownership,
            observed: &self.children,
            restricted: self.restricted,
        }
    }

    /// Returns the objects of a request to the hook.
    pub(super) fn objects<'o>(&'o self, related: &'o [RelatedGroup]) -> ObservedObjects<'o> {
        let Self { groups, absent, children, .. } = self;
        ObservedObjects { groups, absent, children, related }
    }
}

/// Reader of the children of one parent, for one sync.
pub(super) struct ChildReader<'a> {
    pub(super) definition: &'a Definition,
    pub(super) types: &'a TypeRegistry,
    pub(super) parents: &'a Parents,
    pub(super) restricted: Option<&'a str>,
    pub(super) parent: &'a Parent,
    pub(super) context: &'a Context,
}

impl<'a> ChildReader<'a> {
    /// Reads the children of a parent from the caches, and claims them.
    pub(super) async fn observe(
        &self,
        ownership: Ownership,
    ) -> Result<ObservedChildren<'a>, SyncError> {
        let Self { parent, context, restricted, .. } = *self;
        let interests = interests(parent, &ownership);
        let (mut groups, mut stores) = (Vec::new(), Vec::new());
        let (mut missing, mut absent) = (Vec::new(), Vec::new());
        for rule in &self.definition.children {
            match (context.served(&rule.type_ref), context.store(&rule.type_ref)) {
                (Ok(served), Ok(store)) => {
                    // Before any child is read, so that each later change names the parent.
                    if let Some(moving) = context.moving_interests(&rule.type_ref) {
                        moving.set(&parent.key, interests.clone());
                    }
                    groups.push(ServedChildType { served, strategy: rule.strategy });
                    stores.push(store);
                }
                _ if rule.optional => {
                    let status = self.types.get(&rule.type_ref);
                    absent.extend(status.last_served.filter(|_| status.state.is_missing()));
                    missing.push(rule.type_ref.clone());
                }
                // A required type is gone, so the epoch is about to stop.
                _ => return Err(SyncError::Cancelled),
            }
        }
        let adopts = ownership.adopts().filter(|_| !parent.terminating);
        let orphans = adopts.map(|selector| Selection {
            namespace: parent.key.namespace.clone(),
            selector: selector.clone(),
        });
        let mut candidates = Vec::new();
        for (group, store) in stores.iter().enumerate() {
            let own = parent.key.namespace.as_deref();
            if own.is_some() && groups[group].served.identity.scope == Scope::Cluster {
                continue;
            }
            let found = store.claimable_by(&parent.uid, orphans.as_ref()).into_iter();
            let found = found.filter(|child| own.is_none_or(|own| in_namespace(child, own)));
            candidates.extend(found.map(|child| (group, child)));
        }
        // Asked after the reads: a store that has ended is empty, whatever children there are.
        if stores.iter().any(|store| store.is_gone()) {
            return Err(SyncError::Outdated("a cache of children has ended".to_owned()));
        }
        let children = match &ownership {
            Ownership::Selected { .. } => self.claim(&ownership, &groups, candidates).await?,
            Ownership::Annotated { .. } => {
                let attachments = candidates.into_iter();
                attachments
                    .filter(|(_, object)| ownership.is_marked(&object.header().annotations))
                    .map(|(group, object)| Child::new(group, &object))
                    .collect()
            }
        };
        parent.state.record().forget_foreign();
        Ok(ObservedChildren { parent, restricted, ownership, groups, missing, absent, children })
    }
}

/// Returns the interests of a parent in children: its own, and the orphans that it could adopt, if it
/// adopts those of a selector.
fn interests(parent: &Parent, ownership: &Ownership) -> Vec<Interest> {
    let orphans = ownership.adopts().map(|selector| {
        let (namespace, selector) = (parent.key.namespace.clone(), selector.clone());
        Interest::Orphans(Selection { namespace, selector })
    });
    [Interest::OwnerUid(parent.uid.clone())].into_iter().chain(orphans).collect()
}

fn in_namespace(object: &Object, namespace: &str) -> bool {
    object.key().namespace.as_deref() == Some(namespace)
}
