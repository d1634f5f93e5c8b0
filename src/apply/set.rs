//! Set of objects, as a program declares it.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource, ResourceExt, core::ApiResource};
use serde::Serialize;
use serde_json::Value;

use super::{
    adopt::Adopt,
    error::Error,
    set_kind::SetKind,
    set_owner::{SetId, SetOwner},
};
use crate::kind::{GroupKind, Scope};

/// Named set of objects of any kinds, in any namespaces, that belong to an owner.
///
/// The set is declared as a whole each time. Objects that are no longer in it are deleted, also
/// those of kinds that no object of the set has any more. The name identifies the set among those of
/// its owner, and must not change.
///
/// Members in reach of their owner have an owner reference to it, so that the garbage collector
/// deletes them with it: those in its namespace, and all members of a cluster-scoped owner. Members
/// of kinds that are never deleted have none, unless [`Set::deletes`] names their kind. Delete the
/// others with [`Applier::clear`](super::Applier::clear) in a finalizer.
///
/// ```
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::{ConfigMap, Service}};
/// use pilotlight::apply::{Adopt, Set};
///
/// # fn example(owner: &Deployment, settings: ConfigMap, service: Service) -> Set {
/// Set::of(owner, "network")
///     .object(settings)
///     .object(service)
///     .adopt(Adopt::Unowned)
/// # }
/// ```
#[must_use = "a set does nothing until it is applied"]
pub struct Set {
    pub(super) id: SetId,
    /// Kind of the owner, or of the ConfigMap of a named set.
    pub(super) holder: SetKind,
    pub(super) objects: Vec<SetObject>,
    pub(super) adopt: Adopt,
    pub(super) replaces_immutable: bool,
    pub(super) is_controller: bool,
    pub(super) deletable: BTreeSet<GroupKind>,
    pub(super) namespace: Option<String>,
    /// First mistake of the declaration.
    pub(super) mistake: Option<Error>,
}

/// Object of a set as it was given.
pub(super) struct SetObject {
    pub(super) kind: SetKind,
    pub(super) json: Value,
}

impl Set {
    /// Declares a set of an owner, which was read from the cache or the server.
    pub fn of<O: Resource<DynamicType = ()>>(owner: &O, name: impl Into<String>) -> Self {
        Self::of_with(owner, &(), name)
    }

    /// Like [`Set::of`], for an owner whose type is known at run time only.
    pub fn of_with<O: Resource>(owner: &O, of: &O::DynamicType, name: impl Into<String>) -> Self {
        let metadata = owner.meta();
        let scope = if metadata.namespace.is_none() { Scope::Cluster } else { Scope::Namespaced };
        let missing = match (&metadata.name, &metadata.uid) {
            (None, _) => Some("name"),
            (Some(_), None) => Some("uid"),
            (Some(_), Some(_)) => None,
        };
        let owner = SetOwner {
            group: O::group(of).into_owned(),
            kind: O::kind(of).into_owned(),
            namespace: metadata.namespace.clone(),
            name: owner.name_any(),
            uid: metadata.uid.clone(),
        };
        let mut set = Self::new(owner, SetKind::of_with::<O>(of, scope), name.into());
        set.mistake = set.mistake.or(missing.map(Error::OwnerNotRead));
        set
    }

    /// Declares a set without an owner, identified by a namespace and a name. The kinds of the set
    /// are kept in the ConfigMap `pilotlight-set-<name>` of the namespace; the objects may be
    /// anywhere.
    pub fn named(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        let owner = SetOwner {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some(namespace.into()),
            name: format!("pilotlight-set-{name}"),
            uid: None,
        };
        Self::new(owner, SetKind::of::<ConfigMap>(), name)
    }

    fn new(owner: SetOwner, holder: SetKind, name: String) -> Self {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_valid = (1..=40).contains(&name.len())
            && name.bytes().all(is_part)
            && !name.starts_with('-')
            && !name.ends_with('-');
        Self {
            mistake: (!is_valid).then(|| Error::Name(name.clone())),
            id: SetId { name, owner },
            holder,
            objects: Vec::new(),
            adopt: Adopt::Never,
            replaces_immutable: false,
            is_controller: false,
            deletable: BTreeSet::new(),
            namespace: None,
        }
    }

    /// Adds an object. A namespaced object names its namespace.
    pub fn object<K>(self, object: K) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
        K::Scope: 'static,
    {
        self.add(SetKind::of::<K>(), object)
    }

    /// Adds an object whose type is known at run time only, such as a `DynamicObject` or a
    /// `serde_json::Value`.
    ///
    /// ```
    /// use pilotlight::{apply::Set, kind::Scope};
    /// use kube::core::{ApiResource, GroupVersionKind};
    /// use serde_json::json;
    ///
    /// let widgets = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    /// let set = Set::named("shop", "widgets").dynamic(
    ///     &widgets,
    ///     Scope::Namespaced,
    ///     json!({ "metadata": { "namespace": "shop", "name": "a" }, "spec": { "size": 1 } }),
    /// );
    /// # drop(set);
    /// ```
    pub fn dynamic(self, resource: &ApiResource, scope: Scope, object: impl Serialize) -> Self {
        self.add(SetKind::new(resource, scope), object)
    }

    fn add(mut self, kind: SetKind, object: impl Serialize) -> Self {
        match serde_json::to_value(object) {
            Ok(json) => self.objects.push(SetObject { kind, json }),
            Err(source) => {
                let kind = kind.kind;
                self.mistake = self.mistake.or(Some(Error::Encode { kind, source }));
            }
        }
        self
    }

    pub(super) fn without_objects(mut self) -> Self {
        self.objects.clear();
        self
    }

    /// Says which existing objects become members; [`Adopt::Never`] by default.
    pub fn adopt(mut self, adopt: Adopt) -> Self {
        self.adopt = adopt;
        self
    }

    /// Deletes an object and creates it again if a field is immutable. A dry run has shown before
    /// that the server accepts the new object. Kinds that are never deleted are not replaced.
    pub fn replace_immutable(mut self) -> Self {
        self.replaces_immutable = true;
        self
    }

    /// Makes the owner the managing controller of the members in its reach. An object has one
    /// controller at most.
    pub fn controlled(mut self) -> Self {
        self.is_controller = true;
        self
    }

    /// Deletes members of a kind that otherwise is never deleted: Namespace,
    /// PersistentVolumeClaim or CustomResourceDefinition.
    pub fn deletes(mut self, kind: GroupKind) -> Self {
        self.deletable.insert(kind);
        self
    }

    /// Confines the set to objects of one namespace, so that no right to list the objects of all
    /// namespaces is needed. Members elsewhere, of an earlier declaration, are not found.
    pub fn within(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

/// Formats without the objects, which may be Secrets.
impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set")
            .field("id", &self.id)
            .field("objects", &self.objects.len())
            .field("adopt", &self.adopt)
            .finish_non_exhaustive()
    }
}
