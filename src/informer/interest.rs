//! Interest: the objects that concern a subscriber, and the index that routes a change by it.

mod index;
mod named;

use std::{
    hash::{BuildHasher, Hash, Hasher},
    mem,
    sync::Arc,
};

use kube::core::Expression;

#[cfg(test)]
pub(crate) use self::index::COMPARED;
pub(crate) use self::index::InterestIndex;
pub(super) use self::named::{NamedInterest, NamedInterests, dedup, names};

use super::{Header, ObjectKey, Selector};
use crate::kind::GroupKind;

/// Objects that concern a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interest {
    /// All objects.
    Everything,
    /// Objects with an owner of this kind, in any version.
    OwnerKind(GroupKind),
    /// Objects with the owner of this uid.
    OwnerUid(Arc<str>),
    /// Objects that a selection selects.
    Selected(Selection),
    /// Objects without a controlling owner that a selection selects.
    Orphans(Selection),
    /// The object of this name.
    Named(ObjectKey),
    /// Objects of this name, in all namespaces.
    NamedAnywhere(Arc<str>),
}

/// Selection of objects by labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Namespace of the objects; `None` for all, and for cluster-scoped objects.
    pub namespace: Option<Arc<str>>,
    /// Label selector.
    pub selector: Selector,
}

/// Name of moving interests: the object that they are declared for, such as a parent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterestName {
    /// Position of the object's type, since objects of two types may have one key.
    pub position: usize,
    /// Key of the object.
    pub key: ObjectKey,
}

/// Name of an object of the first type.
impl From<ObjectKey> for InterestName {
    fn from(key: ObjectKey) -> Self {
        Self { position: 0, key }
    }
}

/// Identity of a subscriber in its informer, by which its interests are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SubscriberId(pub(super) u64);

/// Holder of an interest in an informer's index.
#[derive(Clone, Debug)]
pub(super) struct InterestHolder {
    pub(super) subscriber: SubscriberId,
    /// Moving interest; `None` for an interest that the subscription began with.
    pub(super) named: Option<Arc<NamedInterest>>,
}

impl PartialEq for InterestHolder {
    fn eq(&self, other: &Self) -> bool {
        self.subscriber == other.subscriber
            && self.named.as_ref().map(Arc::as_ptr) == other.named.as_ref().map(Arc::as_ptr)
    }
}

/// Interests of a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interests {
    /// Objects whose changes are delivered; those in the store are delivered first.
    pub deliver: Vec<Interest>,
    /// Objects that are kept whole. All others are kept as metadata entries: key, uid,
    /// resourceVersion, labels, owners and deletionTimestamp.
    pub whole: Vec<Interest>,
}

impl Interest {
    /// Returns whether an object concerns the subscriber.
    pub(crate) fn concerns(&self, object: &Header) -> bool {
        #[cfg(test)]
        COMPARED.with(|compared| compared.set(compared.get() + 1));
        match self {
            Self::Everything => true,
            Self::OwnerKind(kind) => object.owners.iter().any(|owner| *owner.kind == *kind),
            Self::OwnerUid(uid) => object.owners.iter().any(|owner| owner.uid == *uid),
            Self::Selected(selection) => selection.selects(object),
            Self::Orphans(selection) => {
                !object.owners.iter().any(|owner| owner.controller) && selection.selects(object)
            }
            Self::Named(key) => object.key == *key,
            Self::NamedAnywhere(name) => object.key.name == *name,
        }
    }

    /// Returns whether the labels of an object decide.
    pub(crate) fn reads_labels(&self) -> bool {
        match self {
            Self::Selected(_) | Self::Orphans(_) => true,
            Self::Everything
            | Self::OwnerKind(_)
            | Self::OwnerUid(_)
            | Self::Named(_)
            | Self::NamedAnywhere(_) => false,
        }
    }

    /// Returns a hash that equal interests share. It reads all values of a requirement: who chooses
    /// them must not make interests collide.
    pub(super) fn hash(&self, state: &impl BuildHasher) -> u64 {
        let mut hasher = state.build_hasher();
        mem::discriminant(self).hash(&mut hasher);
        match self {
            Self::Everything => {}
            Self::OwnerKind(kind) => kind.hash(&mut hasher),
            Self::OwnerUid(uid) => uid.hash(&mut hasher),
            Self::Selected(selection) | Self::Orphans(selection) => selection.hash(&mut hasher),
            Self::Named(key) => key.hash(&mut hasher),
            Self::NamedAnywhere(name) => name.hash(&mut hasher),
        }
        hasher.finish()
    }
}

impl Selection {
    fn hash(&self, hasher: &mut impl Hasher) {
        self.namespace.hash(hasher);
        for expression in self.selector.expressions() {
            mem::discriminant(expression).hash(hasher);
            match expression {
                Expression::In(key, values) | Expression::NotIn(key, values) => {
                    (key, values).hash(hasher);
                }
                Expression::Equal(key, value) | Expression::NotEqual(key, value) => {
                    (key, value).hash(hasher);
                }
                Expression::Exists(key) | Expression::DoesNotExist(key) => key.hash(hasher),
            }
        }
    }

    fn selects(&self, object: &Header) -> bool {
        (self.namespace.is_none() || self.namespace == object.key.namespace)
            && self.selector.matches(&object.labels)
    }

    /// Returns the requirements that only objects with one of certain values of a label meet, which
    /// are sorted.
    pub(crate) fn positive(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.selector.expressions().iter().filter_map(|expression| match expression {
            Expression::Equal(key, value) => Some((key.as_str(), vec![value.as_str()])),
            Expression::In(key, values) if !values.is_empty() => {
                Some((key.as_str(), values.iter().map(String::as_str).collect()))
            }
            Expression::In(..)
            | Expression::NotIn(..)
            | Expression::NotEqual(..)
            | Expression::Exists(_)
            | Expression::DoesNotExist(_) => None,
        })
    }
}

impl Interests {
    /// Returns the interests of a subscriber of everything.
    pub fn everything() -> Self {
        Self { deliver: vec![Interest::Everything], whole: vec![Interest::Everything] }
    }
}

impl InterestIndex<InterestHolder> {
    /// Returns the moving interests of a subscriber in an object; `None` if no interest of the
    /// subscriber concerns it.
    pub(super) fn concerned(&self, id: SubscriberId, object: &Header) -> Option<NamedInterests> {
        let mut found = None;
        self.visit(object, |holder| {
            if holder.subscriber == id {
                found.get_or_insert_with(Vec::new).extend(holder.named.clone());
            }
        });
        if let Some(interests) = &mut found {
            dedup(interests);
        }
        found
    }
}
