//! Room 5: controllers declared as objects, wire-compatible with Metacontroller.

mod adoption;
pub mod api;
mod apply;
mod apply_strategy;
mod budget;
mod children;
mod choice;
mod claim;
mod contested;
mod controller_kind;
mod counted_hook;
mod crds;
mod credentials;
mod current;
mod customize;
mod declared;
mod decoration;
mod definition;
mod digest;
mod edit_effect;
mod endpoint;
mod equal_children;
mod failures;
mod field_transfer;
mod finalizer;
mod fingerprint;
mod foreign_objects;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod go_json;
mod hook;
mod hook_error;
mod hook_health;
mod hook_metrics;
mod hook_rule;
mod last_applied;
mod log_text;
mod manager_source;
mod merge;
mod ownership;
mod parent_index;
mod parent_writes;
mod parents;
mod patches;
mod protocol;
mod recorder;
mod rejection;
mod related;
mod resource;
mod resync;
mod rewrite;
mod rollout;
mod runnable;
mod selection;
mod sent_controller;
mod served_elsewhere;
mod status;
mod strictness;
mod supervisor;
mod sync;
mod sync_error;
mod sync_record;
mod webhook;
mod workers;
mod write_limit;

use api::{
    CompositeControllerSpec, ControllerRevision, ControllerStatus, DecoratorControllerSpec,
    HookSpec, LabelSelector, StatusChecks, StatusCondition, WatchStatus, WebhookSpec,
};

use crate::informer::Selector;
pub use adoption::{ADOPT, Adoption};
pub use apply_strategy::{APPLY_FIELD_MANAGER, APPLY_STRATEGY, ApplyStrategy, FieldManager};
pub(crate) use budget::ControllerBudget;
pub use budget::{ResponseBudget, ResponseLimits};
pub use controller_kind::ControllerKind;
pub use crds::crds;
pub use customize::{CustomizeLimits, OPTIONAL_RELATED};
pub(crate) use definition::{ChildRule, ParentType, UpdateMethod};
pub use definition::{Definition, MAX_OWNER_DEPTH};
pub(crate) use endpoint::EndpointRule;
pub(crate) use foreign_objects::{ForeignObjects, ForeignReason};
pub use hook::Hook;
pub use hook_error::HookError;
pub(crate) use hook_health::HookHealth;
pub use hook_metrics::HookMetrics;
pub(crate) use hook_metrics::HookSeries;
pub use hook_rule::HookKind;
pub(crate) use hook_rule::{EtagRule, HookRule, HookVersion};
pub use last_applied::LAST_APPLIED;
pub(crate) use parent_index::ParentIndex;
pub(crate) use parent_writes::ParentWrites;
pub(crate) use parents::Parents;
pub use recorder::EventLimit;
pub(crate) use rejection::Rejection;
pub use strictness::Strictness;
pub use supervisor::{
    DeclaredController, DeclaredControllers, HookFactory, MetaOptions, PAUSED, SUPERVISOR,
    Supervisor,
};
pub(crate) use webhook::Webhook;
pub use workers::WORKERS;
