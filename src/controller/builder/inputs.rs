//! Inputs of a builder: primary, owned, watched and claimed types, and custom sources.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{
    BuildError, Builder, delivers, delivers_generic_only,
    input_options::{InputKind, InputOptions, KindOptions, Role},
};
use crate::{
    controller::{
        ConditionalSource, Handler,
        inputs::{input::InputConditions, status::InputMode},
        source::mapping::SourceHandlers,
    },
    guard::GuardedDrop,
    informer::InformerKey,
    kind::TypeRef,
};

impl Builder {
    /// Adds a primary type, whose objects the requests name. Called for several types,
    /// [`Request::primary`](crate::controller::Request::primary) distinguishes them.
    pub fn for_<K: kube::Resource<DynamicType = ()> + DeserializeOwned>(self) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Primary, true)
    }

    /// Adds a primary type by reference, for a type known at run time only.
    ///
    /// A reference without a version is bound in each epoch, to the server's best version.
    pub fn for_type(self, type_ref: impl Into<TypeRef>) -> Self {
        self.kind(type_ref.into(), Role::Primary, false)
    }

    /// Adds a type whose objects are controlled by objects of the primary types. A change enqueues
    /// the controlling owner.
    ///
    /// Only objects with an owner of the primary kind are delivered and kept whole. The cache keeps
    /// metadata entries of all others, so that listing it is an error. Call [`Builder::whole`] to
    /// keep all objects, or read one with [`Context::fetch`](crate::controller::Context::fetch).
    pub fn owns<K: kube::Resource<DynamicType = ()>>(self) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Owned { only_controller: true }, true)
    }

    /// Like [`Builder::owns`], for a type known at run time only.
    pub fn owns_type(self, type_ref: impl Into<TypeRef>) -> Self {
        self.kind(type_ref.into(), Role::Owned { only_controller: true }, false)
    }

    /// Adds any other type, with a handler that maps its changes to requests.
    ///
    /// Every object is delivered and kept whole, unless [`Builder::matching`] or [`Builder::named`]
    /// narrows the input.
    pub fn watches<K: kube::Resource<DynamicType = ()>>(self, handler: Handler) -> Self {
        self.kind(TypeRef::of::<K>(), Role::Watched(handler), true)
    }

    /// Like [`Builder::watches`], for a type known at run time only.
    pub fn watches_type(self, type_ref: impl Into<TypeRef>, handler: Handler) -> Self {
        self.kind(type_ref.into(), Role::Watched(handler), false)
    }

    /// Adds the informer of this key, such as one to which the program has a
    /// [`Subscription`](crate::informer::Subscription): both share a watch and a cache. Without one it
    /// is started. The input follows the type of the key through all of its identities.
    ///
    /// Where the key has no namespace, labels, fields or transform, the defaults of the cluster
    /// apply.
    ///
    /// Semantics: `source.Informer` of controller-runtime (`pkg/source`), except that the input can be
    /// started again, and lives with the type.
    ///
    /// ```
    /// use pilotlight::{controller::*, informer::Subscription};
    ///
    /// # fn example(subscription: &Subscription, builder: Builder) -> Builder {
    /// // The program reads the subscription itself; the controller watches the same informer.
    /// builder.watches_informer(subscription.key(), Handler::Object)
    /// # }
    /// ```
    pub fn watches_informer(self, key: &InformerKey, handler: Handler) -> Self {
        let identity = &key.identity;
        let type_ref = TypeRef::resource(&*identity.group, &*identity.version, &*identity.plural);
        let key = key.clone();
        self.watches_type(type_ref, handler).last("watches_informer", |kind| {
            kind.namespaces = key.namespace.into_iter().collect();
            kind.filter.labels = key.labels;
            kind.filter.fields = key.fields;
            kind.filter.projection = key.projection;
            kind.filter.managed_fields = key.managed_fields;
            kind.filter.transform = key.transform;
        })
    }

    /// Adds a type whose objects the reconciler selects for each request by
    /// [`Context::moving_interests`]. Examples are the objects of one owner, and the orphans that
    /// it could adopt. Only objects with an owner of the primary kind are kept whole.
    ///
    /// A change has the names of the interests that it concerns:
    ///
    /// ```
    /// # use pilotlight::{controller::{Controller, Handler}, kind::TypeRef};
    /// let widgets = TypeRef::kind("example.com", "v1", "Widget");
    /// let parts = TypeRef::kind("example.com", "v1", "Part");
    /// let named = Handler::delta(|change, queue| {
    ///     change.interests.iter().for_each(|request| queue.add(&**request));
    /// });
    /// let builder = Controller::builder("widgets").for_type(widgets).claims_type(parts, named);
    /// # drop(builder);
    /// ```
    ///
    /// [`Context::moving_interests`]: crate::controller::Context::moving_interests
    pub fn claims_type(self, type_ref: impl Into<TypeRef>, handler: Handler) -> Self {
        self.kind(type_ref.into(), Role::Claimed(handler), false)
    }

    /// Adds a custom source. [`Builder::predicate`] applies to the changes that it delivers.
    pub fn source(self, source: impl ConditionalSource) -> Self {
        self.custom(Arc::new(source), Handler::Object)
    }

    /// Adds a custom source, with a handler that maps the changes that it delivers
    /// ([`SourceContext::deliver`](crate::controller::SourceContext::deliver)) to requests. Not for a source that
    /// only adds requests, such as [`ChannelSource`](crate::controller::ChannelSource). A source
    /// that delivers generic events alone, such as
    /// [`EventSource`](crate::controller::EventSource), needs a handler of them.
    pub fn watches_source(mut self, source: impl ConditionalSource, handler: Handler) -> Self {
        if !delivers(&source) {
            self.record(BuildError::RequestsOnly, "watches_source");
        }
        if !handler.takes_generic() && delivers_generic_only(&source) {
            let error = BuildError::ChangesOnly(self.name.clone());
            self.error.get_or_insert(error);
        }
        self.custom(Arc::new(source), handler)
    }

    fn custom(mut self, source: Arc<dyn ConditionalSource>, handler: Handler) -> Self {
        self.inputs.push(InputOptions {
            kind: InputKind::Source(GuardedDrop::new(source), SourceHandlers::new(handler)),
            mode: InputMode::Plain,
            conditions: InputConditions::new(),
        });
        self
    }

    fn kind(mut self, type_ref: TypeRef, role: Role, typed: bool) -> Self {
        let kind = KindOptions::new(type_ref, role, typed);
        self.inputs.push(InputOptions {
            kind: InputKind::Kind(Box::new(kind)),
            mode: InputMode::Plain,
            conditions: InputConditions::new(),
        });
        self
    }
}
