//! Kinds of declared controllers, as users write them: `CompositeController` and its parts.
//!
//! These types are the schema of the CRDs ([`crds`](super::crds())). Their fields are
//! Metacontroller's. A field that is part of the schema and not executed is refused when the
//! controller is declared; [`Definition`](super::Definition) is the checked form of a specification.

pub use super::composite_controller::{
    Authorization, BasicAuth, CaBundle, CaReference, ChildResource, ClientTls, CompositeController,
    CompositeControllerSpec, CompositeControllerStatus, CompositeHooks, EndpointConfig, EtagSpec,
    HookSpec, LabelSelector, LabelSelectorRequirement, ParentResource, RevisionHistory,
    SecretKeyReference, SecretReference, ServiceReference, StatusChecks, StatusCondition,
    StatusConditionCheck, UpdateStrategy, WatchStatus, WebhookSpec,
};
