//! Definition of a declared controller: its object parsed once, validated, and executable.
//!
//! All problems are collected, each with its field. An object with a problem is rejected as a whole
//! and never executed in part. The fields of each kind are read in a module of their own.

pub(super) mod apply_strategy;
mod composite;
mod decorator;
pub(super) mod edit_effect;
mod fields;
pub(super) mod finalizer;
pub(super) mod optional_related;
mod parents;
pub(super) mod selection;
mod sent_controller;
pub(super) mod strictness;
pub(super) mod workers;

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) use self::fields::{lacks_only_hooks, type_ref};
pub(crate) use self::parents::{ParentRule, ParentType};
use self::{
    apply_strategy::{ApplyRule, ApplyStrategy, FieldManager},
    optional_related::OptionalRelated,
    workers::workers,
};
use crate::{
    kind::TypeRef,
    meta::{
        api::{
            StatusChecks,
            choice::choice,
            controller_kind::ControllerKind,
            rejection::{Problems, Rejection},
        },
        hooks::rule::{HookKind, HookRule},
    },
    redaction,
};

/// Annotation of a declared controller: length of a chain of owners of the parent type at which a
/// parent gets no more children of that type; 16 without it.
pub const MAX_OWNER_DEPTH: &str = "pilotlight.dev/max-owner-depth";
/// Default of [`MAX_OWNER_DEPTH`].
const OWNER_DEPTH: usize = 16;
/// Upper bound of [`MAX_OWNER_DEPTH`]: each sync reads as many objects.
const DEEPEST: usize = 1000;

/// Shortest resync period.
const SHORTEST_RESYNC: Duration = Duration::from_secs(1);

/// Validated specification of a declared controller.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Kind of the object.
    pub(crate) kind: ControllerKind,
    /// Name of the object.
    pub(crate) name: String,
    /// Types of parents, in the order of their first rules; exactly one for a CompositeController.
    /// The position of a type is that of [`Request::primary`](crate::controller::Request::primary).
    pub(crate) parents: Vec<ParentType>,
    /// Types of children, or of attachments.
    pub(crate) children: Vec<ChildRule>,
    /// True if children are selected by a label with the parent's uid; for CompositeControllers.
    pub(crate) generate_selector: bool,
    /// Fields of a parent whose change begins a rolling update; `spec` unless declared.
    pub(crate) revision_fields: Vec<String>,
    /// Time after which every parent is synced again.
    pub(crate) resync_period: Option<Duration>,
    /// Length of a chain of owners of the parent type at which a parent gets no more children of
    /// that type.
    pub(crate) max_owner_depth: usize,
    /// Related types that may be missing.
    pub(crate) optional_related: OptionalRelated,
    /// Maximum number of concurrent hook calls, if the object sets one.
    pub(crate) workers: Option<usize>,
    /// Apply strategy of the children, if the object sets one.
    pub(crate) apply_strategy: Option<ApplyStrategy>,
    /// Field manager of server-side apply, if the object sets one.
    pub(crate) field_manager: Option<FieldManager>,
    /// The sync hook; without it, nothing is done for a parent until it is finalized.
    pub(crate) sync: Option<HookRule>,
    /// The finalize hook; without it, parents get no finalizer.
    pub(crate) finalize: Option<HookRule>,
    /// The customize hook; without it, no objects are related to parents.
    pub(crate) customize: Option<HookRule>,
    /// The accepted object with an empty status, which hooks receive as `controller`.
    pub(crate) controller: Bytes,
}

/// Type of children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildRule {
    /// The type.
    pub(crate) type_ref: TypeRef,
    /// Update method of existing children.
    pub(crate) strategy: UpdateMethod,
    /// Conditions that an updated child must have before the next one is updated; none unless the
    /// update is rolling.
    pub(crate) checks: StatusChecks,
    /// True if the controller also runs while the type is missing.
    pub(crate) optional: bool,
    /// True if a change of nothing but the status of a child does not sync its parent. Has no effect
    /// on rolling types, whose update waits for the status.
    pub(crate) ignore_status_changes: bool,
}

choice! {
    /// Update method of a child that exists and differs from the desired one.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum UpdateMethod {
        /// Not updated; created again after it was deleted.
        #[default]
        OnDelete = "OnDelete",
        /// Deleted by this sync, created by the next one.
        Recreate = "Recreate",
        /// Updated without being deleted.
        InPlace = "InPlace",
        /// Recreated, one child after the other.
        RollingRecreate = "RollingRecreate",
        /// Updated without being deleted, one child after the other.
        RollingInPlace = "RollingInPlace",
    }
}

impl UpdateMethod {
    /// Returns whether one child is updated after the other.
    pub(crate) fn is_rolling(self) -> bool {
        match self {
            Self::OnDelete | Self::Recreate | Self::InPlace => false,
            Self::RollingRecreate | Self::RollingInPlace => true,
        }
    }

    /// Returns the method that updates all children at once.
    fn at_once(self) -> Self {
        match self {
            Self::OnDelete => Self::OnDelete,
            Self::Recreate | Self::RollingRecreate => Self::Recreate,
            Self::InPlace | Self::RollingInPlace => Self::InPlace,
        }
    }
}

/// Specification of either kind, as far as it can be read. Each part that cannot has reported a
/// problem.
struct Declaration {
    parents: Vec<ParentType>,
    children: Vec<ChildRule>,
    generate_selector: bool,
    revision_fields: Vec<String>,
    resync_period: Option<Duration>,
    sync: Option<HookRule>,
    finalize: Option<HookRule>,
    customize: Option<HookRule>,
}

impl Definition {
    /// Returns the kind of the object.
    pub fn kind(&self) -> ControllerKind {
        self.kind
    }

    /// Returns the name of the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads an object of this kind.
    ///
    /// # Errors
    ///
    /// [`Rejection`] names every field that prevents execution.
    pub(crate) fn parse(kind: ControllerKind, object: &[u8]) -> Result<Self, Rejection> {
        let value: Value =
            serde_json::from_slice(object).map_err(|error| Rejection::Undecodable {
                field: "object".to_owned(),
                message: redaction::decoding(error),
            })?;
        let name = match value.pointer("/metadata/name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => {
                return Err(Rejection::Undecodable {
                    field: "metadata.name".to_owned(),
                    message: "must be a non-empty string".to_owned(),
                });
            }
        };
        let Some(raw) = value.get("spec").filter(|spec| spec.is_object()) else {
            return Err(Rejection::Undecodable {
                field: "spec".to_owned(),
                message: "must be an object".to_owned(),
            });
        };
        let mut problems = Problems::default();
        let declaration = match kind {
            ControllerKind::Composite => composite::read(&spec_of(raw)?, &mut problems),
            ControllerKind::Decorator => decorator::read(&spec_of(raw)?, &mut problems),
        };
        let max_owner_depth = max_owner_depth(&value, &mut problems);
        let workers = workers(&value, &mut problems);
        let optional_related = OptionalRelated::of(&value, &mut problems);
        let (apply_strategy, field_manager) = apply_strategy::overrides(&value, &mut problems);
        check_name(kind, &name, &value, &mut problems);
        match (declaration, problems.rejection()) {
            (
                Some(Declaration {
                    parents,
                    children,
                    generate_selector,
                    revision_fields,
                    resync_period,
                    sync,
                    finalize,
                    customize,
                }),
                None,
            ) => Ok(Self {
                kind,
                name,
                parents,
                children,
                generate_selector,
                revision_fields,
                resync_period,
                max_owner_depth,
                optional_related,
                workers,
                apply_strategy,
                field_manager,
                sync,
                finalize,
                customize,
                controller: sent_controller::encode(value),
            }),
            (_, Some(rejected)) => Err(rejected),
            // Each part that cannot be read has reported a problem.
            (None, None) => Err(Rejection::Invalid(Vec::new())),
        }
    }

    /// Returns the rule of a hook, if it is declared.
    pub(crate) fn hook(&self, kind: HookKind) -> Option<&HookRule> {
        match kind {
            HookKind::Sync => self.sync.as_ref(),
            HookKind::Finalize => self.finalize.as_ref(),
            HookKind::Customize => self.customize.as_ref(),
        }
    }

    /// Returns the apply strategy with its defaults.
    pub(crate) fn apply_rule(&self) -> ApplyRule {
        ApplyRule {
            strategy: self.apply_strategy.unwrap_or_default(),
            manager: self.field_manager.clone().unwrap_or_default(),
        }
    }

    /// Returns the types of parents.
    pub(crate) fn parent_types(&self) -> impl Iterator<Item = &TypeRef> {
        self.parents.iter().map(|parent| &parent.type_ref)
    }

    /// Sets strategy and field manager of the apply, unless the object declares them.
    pub(crate) fn or_apply(mut self, strategy: ApplyStrategy, manager: &FieldManager) -> Self {
        self.apply_strategy.get_or_insert(strategy);
        self.field_manager.get_or_insert_with(|| manager.clone());
        self
    }

    /// Returns whether children of any type are updated one at a time.
    pub(crate) fn is_rolling(&self) -> bool {
        self.children.iter().any(|rule| rule.strategy.is_rolling())
    }

    /// Sets the resync period, unless the object declares one.
    pub(crate) fn or_resync(mut self, period: Option<Duration>) -> Self {
        let period = period.map(|period| period.max(SHORTEST_RESYNC));
        self.resync_period = self.resync_period.or(period);
        self
    }
}

/// Decodes a specification.
fn spec_of<S: DeserializeOwned>(raw: &Value) -> Result<S, Rejection> {
    serde_path_to_error::deserialize(raw).map_err(|error| {
        let path = error.path().to_string();
        Rejection::Undecodable {
            field: if path == "." { "spec".to_owned() } else { format!("spec.{path}") },
            message: redaction::decoding(error.inner()),
        }
    })
}

/// Checks that the name of an object with a finalize hook fits into that of the finalizer.
fn check_name(kind: ControllerKind, name: &str, object: &Value, problems: &mut Problems) {
    // A hook without a webhook is absent.
    let webhook = object.pointer("/spec/hooks/finalize/webhook");
    let has_finalize = webhook.is_some_and(|webhook| !webhook.is_null());
    let longest = finalizer::longest_name(kind);
    if has_finalize && name.len() > longest {
        problems.invalid(
            "metadata.name",
            format!(
                "has more than {longest} characters, which hooks.finalize needs for the name of the \
                 finalizer"
            ),
        );
    }
}

/// Reads the annotation [`MAX_OWNER_DEPTH`].
fn max_owner_depth(object: &Value, problems: &mut Problems) -> usize {
    let annotations = object.pointer("/metadata/annotations");
    let Some(said) = annotations.and_then(|annotations| annotations.get(MAX_OWNER_DEPTH)) else {
        return OWNER_DEPTH;
    };
    let depth = said.as_str().and_then(|text| text.parse().ok());
    depth.filter(|depth| (1..=DEEPEST).contains(depth)).unwrap_or_else(|| {
        let field = format!("metadata.annotations[{MAX_OWNER_DEPTH}]");
        problems.invalid(
            field,
            format!("the value {said} is not a number from 1 to {DEEPEST} in quotes"),
        );
        OWNER_DEPTH
    })
}

#[cfg(test)]
mod tests;
