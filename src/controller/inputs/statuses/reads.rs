//! Reads of the caches of a run's inputs.

use std::sync::Arc;

use kube::core::ApiResource;

use super::{Attached, InputStatus, InputStatuses};
use crate::{
    controller::ListerError,
    discovery::{RegistryId, TypeRegistry},
    informer::{CacheShare, MovingInterests},
    kind::{GroupKind, ServedType, TypeRef},
};

impl InputStatuses {
    /// Returns the cache of an input by its declared type or, failing that, by its served type.
    /// `None` as the cluster means that of the controller. `None` is returned until all namespaces
    /// of the input are listed.
    ///
    /// If the builder has several inputs of the type, the first that holds all objects whole is
    /// read, or else the first.
    pub(in crate::controller) fn attached(
        &self,
        cluster: Option<&TypeRegistry>,
        type_ref: &TypeRef,
    ) -> Option<Attached> {
        let (inputs, cluster) = (self.inputs(), self.foreign(cluster));
        let of_cluster =
            || inputs.values().map(|input| &**input).filter(|input| input.is_of(cluster));
        let order = |input: &&InputStatus| {
            (input.progress.is_some(), input.coverage.is_partial, input.cache.attached().is_none())
        };
        let declared = of_cluster().filter(|input| input.type_ref.as_ref() == Some(type_ref));
        let found = declared.min_by_key(order).or_else(|| {
            let is_served = |attached: &Attached| matches(type_ref, &attached.served);
            let served = of_cluster().filter(|input| input.cache.attached().is_some_and(is_served));
            served.min_by_key(order)
        });
        found?.with_parts(of_cluster())
    }

    /// Returns the cache of the only primary type, which has this Rust type, or the reason why there
    /// is none.
    pub(in crate::controller) fn primary_of<K: kube::Resource<DynamicType = ()>>(
        &self,
    ) -> Result<Attached, ListerError> {
        let inputs = self.inputs();
        let own = || inputs.values().map(|input| &**input).filter(|input| input.is_of(None));
        let primary = own().find(|input| input.coverage.is_primary);
        let attached = primary.and_then(|primary| primary.with_parts(own()));
        drop(inputs);
        attached.map_or_else(|| self.attached_of::<K>(None), Ok)
    }

    /// Returns the cache of an input of a Rust type, or the reason why there is none.
    pub(in crate::controller) fn attached_of<K: kube::Resource<DynamicType = ()>>(
        &self,
        cluster: Option<&TypeRegistry>,
    ) -> Result<Attached, ListerError> {
        let (type_ref, resource) = (TypeRef::of::<K>(), ApiResource::erase::<K>(&()));
        let attached = self.attached(cluster, &type_ref);
        let names = |input: &TypeRef| input.names_resource(&resource);
        attached.ok_or_else(|| self.unavailable(cluster, &type_ref, names))
    }

    /// Returns the cache of an input, as it was named to the builder, or the reason why there is
    /// none.
    pub(in crate::controller) fn attached_as(
        &self,
        cluster: Option<&TypeRegistry>,
        type_ref: &TypeRef,
    ) -> Result<Attached, ListerError> {
        let attached = self.attached(cluster, type_ref);
        let is_version = |input: &TypeRef| match (&input.version, &type_ref.version) {
            (Some(own), Some(read)) => own == read,
            (None, _) | (_, None) => true,
        };
        let names = |input: &TypeRef| input.is_alike(type_ref) && is_version(input);
        attached.ok_or_else(|| self.unavailable(cluster, type_ref, names))
    }

    fn unavailable(
        &self,
        cluster: Option<&TypeRegistry>,
        type_ref: &TypeRef,
        names: impl Fn(&TypeRef) -> bool,
    ) -> ListerError {
        let (inputs, cluster) = (self.inputs(), self.foreign(cluster));
        let is_offered = |served: &Arc<ServedType>| matches(type_ref, served);
        let of_type = inputs.values().filter(|input| {
            let is_type = input.type_ref.as_ref().is_some_and(&names)
                || input.offered().is_some_and(is_offered);
            is_type && input.is_of(cluster)
        });
        let type_ref = type_ref.clone();
        // The first input that is not listed yet, if there are several namespaces.
        let found = of_type.map(|input| &**input).min_by_key(|input| input.cache.is_listed());
        let Some(input) = found else { return ListerError::NotAnInput(type_ref) };
        let why = match input.cache.attached() {
            // The input is of any version, for example, and the type of another one.
            Some(attached) => {
                let identity = &attached.served.identity;
                format!("its input has {} of {}", identity.plural, identity.api_version())
            }
            None if input.state().is_synced() && input.error().is_none() => {
                "its epoch is over".to_owned()
            }
            None => input.explanation(),
        };
        ListerError::Unavailable { type_ref, why }
    }

    /// Returns a cluster if it is not that of the controller.
    pub(in crate::controller) fn foreign<'a>(
        &self,
        cluster: Option<&'a TypeRegistry>,
    ) -> Option<&'a TypeRegistry> {
        cluster.filter(|cluster| !self.types.as_ref().is_some_and(|own| own.is(cluster)))
    }

    /// Returns the group and kind of an input's type, as it is served in this epoch.
    pub(in crate::controller) fn group_kind(&self, type_ref: &TypeRef) -> Option<GroupKind> {
        let inputs = self.inputs();
        let own = inputs.values().filter(|input| input.is_of(None));
        let of_type = own.filter(|input| input.type_ref.as_ref() == Some(type_ref));
        of_type.filter_map(|input| Some(input.cache.attached()?.served.group_kind())).next()
    }

    /// Returns the interests of the builder's input of a type whose objects the reconciler names.
    pub(in crate::controller) fn moving_interests(
        &self,
        type_ref: &TypeRef,
    ) -> Option<MovingInterests> {
        let inputs = self.inputs();
        let of_builder = inputs.values().filter(|input| input.progress.is_none());
        let of_type = of_builder.filter(|input| input.type_ref.as_ref() == Some(type_ref));
        of_type.filter_map(|input| input.cache.attached()?.moving.clone()).next()
    }

    /// Returns the cache of an input that was added by this name; the newer one during a
    /// replacement.
    pub(in crate::controller) fn named(&self, name: &str) -> Option<Attached> {
        let inputs = self.inputs();
        let named = || inputs.values().map(|input| &**input).filter(|input| input.is_named(name));
        named().rev().find_map(|input| input.with_parts(named()))
    }

    /// Returns the current error of the input that was added by this name.
    pub(in crate::controller) fn error_of(&self, name: &str) -> Option<String> {
        let inputs = self.inputs();
        let named = inputs.values().rev().filter(|input| input.is_named(name));
        named.filter_map(|input| input.error().cloned()).next()
    }

    /// Returns the caches of a type at any version. `None` as the cluster means that of the
    /// controller.
    pub(in crate::controller) fn caches(
        &self,
        cluster: Option<&RegistryId>,
        group: &str,
        plural: &str,
    ) -> Vec<Attached> {
        let inputs = self.inputs();
        let attached = inputs.values().filter_map(|input| input.cache.attached());
        let is = |it: &&Attached| {
            let identity = &it.served.identity;
            *identity.group == *group
                && *identity.plural == *plural
                && it.cluster().as_ref() == cluster
        };
        attached.filter(is).cloned().collect()
    }

    /// Returns the share of the inputs in their caches. An object of two inputs counts twice.
    pub(in crate::controller) fn share(&self) -> CacheShare {
        let inputs = self.inputs();
        let attached = inputs.values().filter_map(|input| input.cache.attached());
        attached.map(|attached| attached.store.share()).fold(CacheShare::default(), CacheShare::and)
    }
}

/// Returns whether a served type is the one that a reference names.
fn matches(type_ref: &TypeRef, served: &ServedType) -> bool {
    let identity = &served.identity;
    type_ref.names(&identity.group, &identity.version, &identity.plural, &served.kind)
}
