//! Hooks of one controller, each with its protocol and the metrics of its calls.

use std::sync::Arc;

use super::{
    Hook,
    budget::ControllerBudget,
    credentials::HookEndpoint,
    metrics::HookSeries,
    rule::{HookKind, HookRule},
};
use crate::manager::{Readiness, all_of};

/// Hook of a controller, with its protocol and the metrics of its calls.
pub(crate) struct CountedHook {
    pub(crate) kind: HookKind,
    pub(crate) rule: HookRule,
    pub(crate) hook: Arc<dyn Hook>,
    pub(crate) series: HookSeries,
    /// Endpoint of the hook, if it is declared.
    pub(crate) endpoint: Option<Arc<HookEndpoint>>,
}

/// Declared hooks of a controller, and the budget of their responses.
pub(crate) struct Hooks {
    hooks: Vec<CountedHook>,
    pub(crate) budget: ControllerBudget,
}

impl Hooks {
    /// Returns the hooks of one controller; at most one of each kind.
    pub(crate) fn new(hooks: Vec<CountedHook>, budget: ControllerBudget) -> Self {
        Self { hooks, budget }
    }

    /// Returns the hook of this kind, if it is declared.
    pub(crate) fn get(&self, kind: HookKind) -> Option<&CountedHook> {
        self.all().find(|hook| hook.kind == kind)
    }

    /// Returns the condition that the endpoint of each hook was usable once.
    pub(crate) fn ready(&self) -> Readiness {
        let endpoints = self.all().filter_map(|hook| hook.endpoint.as_ref());
        all_of(endpoints.map(|endpoint| endpoint.ready()))
    }

    /// Returns all declared hooks.
    pub(crate) fn all(&self) -> impl Iterator<Item = &CountedHook> {
        self.hooks.iter()
    }
}
