//! Room 5: controllers declared as objects, wire-compatible with Metacontroller.

// Rooms within, in their order: each imports only those above it.
//
// | room | owns |
// |---|---|
// | `api` | objects as users write them, their CRDs, and what is refused |
// | `json` | JSON that is copied, rewritten and compared as its authors wrote it |
// | `hooks` | hooks: rules, endpoints, credentials, webhooks, budgets, metrics |
// | `definition` | what a valid object declares, and the effect of an edit |
// | `resource` | requests to the API server for one type |
// | `recorder` | Events |
// | `parent` | what is kept of a parent between syncs, and how its sync fails |
// | `children` | plan of the children: claim, check, merge |
// | `options` | options of the process |
// | `related` | customize rules, and the objects that they relate |
// | `protocol` | requests and responses of hooks |
// | `rollout` | rolling updates |
// | `parents` | state of all parents of one controller |
// | `apply` | writes of the children |
// | `sync` | one sync of a parent |
// | `runnable` | one declared controller: its sources, its current sync |
// | `supervisor` | declared controllers, started, swapped and stopped by their objects |
pub mod api;
mod apply;
mod children;
mod definition;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod hooks;
mod json;
mod options;
mod parent;
mod parents;
mod protocol;
mod recorder;
mod related;
mod resource;
mod rollout;
mod runnable;
mod supervisor;
mod sync;

pub use self::{
    api::{controller_kind::ControllerKind, crds::crds},
    children::{
        adoption::{ADOPT, Adoption},
        last_applied::LAST_APPLIED,
    },
    definition::{
        Definition, MAX_OWNER_DEPTH,
        apply_strategy::{APPLY_FIELD_MANAGER, APPLY_STRATEGY, ApplyStrategy, FieldManager},
        optional_related::OPTIONAL_RELATED,
        strictness::Strictness,
        workers::WORKERS,
    },
    hooks::{
        Hook,
        budget::{ResponseBudget, ResponseLimits},
        error::HookError,
        metrics::HookMetrics,
        rule::HookKind,
    },
    options::{HookFactory, MetaOptions, customize_limits::CustomizeLimits},
    recorder::EventLimit,
    supervisor::{DeclaredController, DeclaredControllers, PAUSED, SUPERVISOR, Supervisor},
};
