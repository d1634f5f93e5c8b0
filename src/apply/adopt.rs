//! Adoption: objects that exist already, and become members of a set.

use std::collections::BTreeSet;

use super::object_name::ObjectName;

/// Objects that a set takes over if they exist and are not members.
///
/// An adopted object is a member from then on: it is deleted when it leaves the set. Fields of other
/// managers stay theirs in any case.
///
/// ```
/// use pilotlight::{apply::{Adopt, ObjectName}, kind::GroupKind};
///
/// let kind = GroupKind { group: String::new(), kind: "ConfigMap".to_owned() };
/// let one = ObjectName { kind, namespace: Some("shop".to_owned()), name: "web".to_owned() };
/// let adopt = Adopt::Listed([one].into());
/// # drop(adopt);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adopt {
    /// No object. The default.
    #[default]
    Never,
    /// Objects that have no owner reference and are no members of another set.
    Unowned,
    /// Listed objects, with any owner; another set loses those that are its members.
    Listed(BTreeSet<ObjectName>),
}
