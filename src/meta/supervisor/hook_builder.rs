//! Hooks of a declared controller, built from its definition and the options of the process.

use std::sync::Arc;

use super::declared::DeclaredStates;
use crate::{
    guard::{self, GuardedDrop},
    meta::{
        api::rejection::Rejection,
        definition::Definition,
        hooks::{
            Hook,
            budget::ControllerBudget,
            counted::{CountedHook, Hooks},
            credentials::{HookCredentials, HookEndpoint},
            endpoint::EndpointRule,
            rule::{HookKind, HookRule},
            webhook::Webhook,
        },
        options::MetaOptions,
        recorder::Severity,
    },
    redaction,
};

/// Builder of the hooks of one definition.
pub(super) struct HookBuilder<'a> {
    pub(super) definition: &'a Definition,
    pub(super) options: &'a MetaOptions,
    pub(super) credentials: &'a HookCredentials,
    pub(super) changes: &'a Arc<DeclaredStates>,
    pub(super) budget: ControllerBudget,
}

impl HookBuilder<'_> {
    /// Returns the declared hooks.
    pub(super) fn build(self) -> Result<Hooks, Rejection> {
        let hook = |kind| Some(self.hook(kind, self.definition.hook(kind)?));
        let declared = HookKind::ALL.into_iter().filter_map(hook);
        Ok(Hooks::new(declared.collect::<Result<_, _>>()?, self.budget))
    }

    fn hook(&self, kind: HookKind, rule: &HookRule) -> Result<CountedHook, Rejection> {
        let Self { definition, options, .. } = self;
        let (url, name) = (redaction::url(&rule.url), &definition.name);
        let series = || options.metrics.series(kind, name, definition.kind.kind(), &url);
        let mut endpoint = None;
        let hook: Arc<dyn Hook> = match &options.hooks {
            Some(make) => {
                let made = guard::run(|| make(definition, kind));
                let refused = |panic| Rejection::Unbuildable(format!("its hook panicked: {panic}"));
                Arc::new(GuardedDrop::new(made.map_err(refused)?))
            }
            None => {
                endpoint = self.endpoint(&rule.endpoint).map(Arc::new);
                let hook = Webhook::new(rule.url.clone(), rule.timeout)
                    .budget(self.budget.clone())
                    .endpoint(endpoint.clone())
                    .error_excerpts(options.hook_error_excerpts)
                    .redirects(options.hook_redirects)
                    .replaces_invalid_utf8(!options.strictness.strict)
                    .longest_retry_after(options.longest_hook_retry_after)
                    .proxies(options.hook_proxies.clone())
                    .service(rule.is_service)
                    .user_agent(options.user_agent.clone());
                Arc::new(hook.etag(rule.etag).series(series()))
            }
        };
        Ok(CountedHook { kind, rule: rule.clone(), hook, series: series(), endpoint })
    }

    /// Returns the endpoint that a hook declares, kept current.
    fn endpoint(&self, rule: &EndpointRule) -> Option<HookEndpoint> {
        let runnable = self.definition.kind.runnable_name(&self.definition.name);
        let (name, changes) = (self.definition.name.clone(), Arc::downgrade(self.changes));
        let report = move |message: String| {
            tracing::warn!(name, message, "the credentials of a hook are stale");
            if let Some(changes) = changes.upgrade() {
                changes.note_event(&name, (Severity::Warning, "HookCredentialsStale", message));
            }
        };
        (!rule.is_empty()).then(|| self.credentials.endpoint(runnable, rule.clone(), report))
    }
}
