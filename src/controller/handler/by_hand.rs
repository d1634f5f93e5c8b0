//! Requests of a handler that is called directly, as in a test.

use super::{Enqueue, Handler};
use crate::{
    controller::{Add, Context, Request, source::owner_type::OwnerType},
    informer::{Delta, Object},
    kind::{GroupKind, TypeRef},
};

impl Handler {
    /// Returns the requests of a change, each with the add that the handler chose, if it did: to
    /// call a handler directly, as in a test. It reads the caches of `context`, such as those of
    /// [`Context::with_input`].
    ///
    /// A request that the handler adds twice is returned twice; a queue merges them. An object that
    /// cannot be decoded has no requests. An owner has the scope of its type, if that is an input of
    /// the context; otherwise it is in the namespace of the object. Its request is one of the first
    /// primary type.
    ///
    /// ```
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// # use pilotlight::{controller::*, informer::*, kind::{Scope, ServedType, TypeRef}};
    /// # fn example(context: Context, pod: Object, map: Object) {
    /// let of_all_maps = Handler::typed(|_: Event<Pod>, queue| {
    ///     let Ok(maps) = queue.store(&TypeRef::of::<ConfigMap>()) else { return };
    ///     for map in maps.list().into_iter().flatten() {
    ///         queue.add(map.key().clone());
    ///     }
    /// });
    ///
    /// let maps = ServedType::of::<ConfigMap>(Scope::Namespaced);
    /// let context = context.with_input(&maps, maps.clone(), Store::of([map.clone()]));
    /// assert_eq!(
    ///     of_all_maps.requests_of(&Delta::created(pod), &context),
    ///     [(Request::from(map.key().clone()), None)]
    /// );
    /// # }
    /// ```
    pub fn requests_of(&self, change: &Delta, context: &Context) -> Vec<(Request, Option<Add>)> {
        Enqueue::collect(context, |queue| {
            for part in change.parts() {
                self.requests(&part, &|owner| type_in(context, owner), queue);
            }
        })
    }

    /// Returns the requests of a generic event of an object, like [`Handler::requests_of`].
    pub fn generic_requests_of(
        &self,
        object: &Object,
        context: &Context,
    ) -> Vec<(Request, Option<Add>)> {
        let created = Delta::created(object.clone());
        Enqueue::collect(context, |queue| {
            self.generic_requests(&created, &|owner| type_in(context, owner), queue);
        })
    }
}

impl Enqueue<'_> {
    /// Returns the requests that a function adds, such as that of
    /// [`Builder::on_synced`](crate::controller::Builder::on_synced), to call it directly, as in a
    /// test. It reads the caches of `context`.
    pub fn collect(
        context: &Context,
        add: impl FnOnce(&mut Enqueue<'_>),
    ) -> Vec<(Request, Option<Add>)> {
        let mut requests = Vec::new();
        add(&mut Enqueue::new(&mut requests, Some(context.statuses())));
        requests
    }
}

/// Returns the type of an owner. Its scope is known if it is an input of the context.
fn type_in(context: &Context, owner: &GroupKind) -> OwnerType {
    let type_ref = TypeRef::kind(owner.group.as_str(), "", owner.kind.as_str()).any_version();
    let attached = context.statuses().attached(None, &type_ref);
    let scope = attached.map(|attached| attached.served.identity.scope);
    OwnerType { scope, ..OwnerType::default() }
}
