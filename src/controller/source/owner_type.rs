//! Owner type: the primary type that an owner reference names, and its scope.

use crate::{
    discovery::TypeRegistry,
    kind::{GroupKind, Scope, TypeName, TypeRef},
};

/// Type of an owner, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::controller) struct OwnerType {
    /// Position among the primary types; 0 for a type that is none of them.
    pub(in crate::controller) primary: usize,
    /// Scope of the objects, while the type is served.
    pub(in crate::controller) scope: Option<Scope>,
}

impl OwnerType {
    /// Returns the type of owners of a kind in the cluster of `types`, for a controller with these
    /// primary types in the cluster of `own`.
    pub(super) fn of(
        types: &TypeRegistry,
        own: &TypeRegistry,
        primaries: &[TypeRef],
        owner: &GroupKind,
    ) -> Self {
        let named = TypeRef {
            group: owner.group.clone(),
            version: None,
            name: TypeName::Kind(owner.kind.clone()),
        };
        let is_owner = |primary: &TypeRef| match own.served(primary) {
            Some(served) => served.group_kind() == *owner,
            // An owned object may exist while the type of its owner is not served.
            None => primary.is_alike(&named),
        };
        // With one primary type, the usual case, there is nothing to compare.
        let primary = if primaries.len() > 1 { primaries.iter().position(is_owner) } else { None };
        let scope = types.served(&named).map(|served| served.identity.scope);
        Self { primary: primary.unwrap_or_default(), scope }
    }
}
