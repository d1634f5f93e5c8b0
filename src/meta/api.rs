//! Kinds of declared controllers, as users write them: `CompositeController`, `DecoratorController`
//! and `ControllerRevision`, with their parts.
//!
//! The types are the schema of the CRDs ([`crds`](crate::meta::crds())). Their fields are
//! Metacontroller's. `src/meta/definition.rs` validates their values, and rejects a controller with
//! an invalid one. `preUpdateChild` and `postUpdateChild` are accepted and never called.

pub(super) mod choice;
mod composite_controller;
pub(super) mod controller_kind;
mod controller_revision;
pub(super) mod crds;
mod credentials;
mod decorator_controller;
mod hook;
pub(super) mod rejection;
mod selector;
mod status;

pub use self::{
    composite_controller::{
        ChildResource, CompositeController, CompositeControllerSpec, CompositeHooks,
        ParentResource, RevisionHistory, StatusChecks, StatusConditionCheck, UpdateStrategy,
    },
    controller_revision::{ControllerRevision, RevisionChildren},
    credentials::{
        Authorization, BasicAuth, CaBundle, CaReference, ClientTls, EndpointConfig,
        SecretKeyReference, SecretReference,
    },
    decorator_controller::{
        Attachment, AttachmentUpdateStrategy, DecoratedResource, DecoratorController,
        DecoratorControllerSpec, DecoratorHooks,
    },
    hook::{EtagSpec, HookSpec, ServiceReference, WebhookSpec},
    selector::{AnnotationSelector, LabelSelector, LabelSelectorRequirement},
    status::{ControllerStatus, StatusCondition, WatchStatus},
};
