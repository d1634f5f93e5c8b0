//! Room 5: controllers declared as objects, wire-compatible with Metacontroller.

mod blueprint;
mod composite_controller;
mod crds;
mod last_applied;
mod merge;
mod selection;

pub use blueprint::{Blueprint, ChildRule, HookRule, HookVersion, Problem, Rejected, UpdateMethod};
pub use composite_controller::{
    Authorization, BasicAuth, CaBundle, CaReference, ChildResource, ClientTls, CompositeController,
    CompositeControllerSpec, CompositeControllerStatus, CompositeHooks, EndpointConfig, EtagSpec,
    HookSpec, LabelSelector, LabelSelectorRequirement, ParentResource, RevisionHistory,
    SecretKeyReference, SecretReference, ServiceReference, StatusChecks, StatusCondition,
    StatusConditionCheck, UpdateStrategy, WatchStatus, WebhookSpec,
};
pub use crds::crds;
pub use last_applied::LAST_APPLIED;
