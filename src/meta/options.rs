//! Options of declared controllers: one value for the process, which each part reads where it acts.

pub(super) mod customize_limits;

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderValue;

use self::customize_limits::CustomizeLimits;
use crate::{
    informer::Selector,
    manager::RunnableOptions,
    meta::{
        children::adoption::Adoption,
        definition::{
            Definition,
            apply_strategy::{ApplyStrategy, FieldManager},
            strictness::Strictness,
        },
        hooks::{
            Hook, budget::ResponseBudget, metrics::HookMetrics, rule::HookKind,
            webhook::MAX_RETRY_AFTER,
        },
        recorder::EventLimit,
    },
    transport::{Proxies, library_user_agent},
};

/// Default of the maximum number of children in one response.
pub(crate) const MAX_CHILDREN: usize = 10_000;

/// Creates one of the declared hooks of a controller, in place of a call to its URL.
pub type HookFactory = Arc<dyn Fn(&Definition, HookKind) -> Arc<dyn Hook> + Send + Sync>;

/// Options of all declared controllers.
#[derive(Clone)]
pub struct MetaOptions {
    /// Maximum number of concurrent hook calls of one controller; 5, unless the controller has the
    /// annotation [`WORKERS`](crate::meta::WORKERS). A sync that writes is not
    /// counted; at most 50 parents of a controller are synced at once, or `workers` if that is
    /// more.
    pub workers: usize,
    /// Options of each runnable.
    pub runnable: RunnableOptions,
    /// Metrics of hook calls, which the supervisors register with their manager.
    pub metrics: HookMetrics,
    /// Makes hooks; `None` calls the declared webhooks.
    pub hooks: Option<HookFactory>,
    /// Budget of the hook responses that are held at once, in bytes; defaults as in
    /// [`ResponseLimits`](crate::meta::ResponseLimits).
    pub responses: ResponseBudget,
    /// Maximum number of concurrent hook calls of all controllers together; 0 for no bound, which
    /// is the default. Calls beyond it wait in the order in which they were made.
    pub max_hook_calls: usize,
    /// Selects the declared controllers that are run and whose status is written; all by default. A
    /// controller that stops matching is stopped.
    pub target: Selector,
    /// Resync period of controllers without `resyncPeriodSeconds`; none by default. Less than a
    /// second counts as one second.
    pub resync_period: Option<Duration>,
    /// Maximum number of children in one response; 10,000 by default.
    pub max_children: usize,
    /// Limits of the responses of customize hooks.
    pub customize: CustomizeLimits,
    /// Namespace of the revisions of cluster-scoped parents; `default` by default. A cluster that is
    /// limited to one namespace uses that one.
    pub revision_namespace: Arc<str>,
    /// Rate limit of the Events of one object.
    pub events: EventLimit,
    /// Deletes a child that is to be recreated without dry runs, as Metacontroller does; off by
    /// default.
    pub recreate_without_dry_run: bool,
    /// Apply strategy of controllers without the annotation
    /// [`APPLY_STRATEGY`](crate::meta::APPLY_STRATEGY); dynamic apply by default.
    pub apply_strategy: ApplyStrategy,
    /// Field manager of server-side apply, of controllers without the annotation
    /// [`APPLY_FIELD_MANAGER`](crate::meta::APPLY_FIELD_MANAGER); that of Metacontroller by default.
    pub field_manager: FieldManager,
    /// Refusals beyond those of Metacontroller, and lifted bounds; none by default.
    pub strictness: Strictness,
    /// Orphans that become children of a composite's parent; all that its selector matches by
    /// default.
    pub adoption: Adoption,
    /// Shows the first bytes of a hook's error body in Events, statuses, logs and endpoints; off by
    /// default, since they may hold secrets. No effect on hooks that `hooks` makes.
    pub hook_error_excerpts: bool,
    /// Follows redirects of hooks with status 307 and 308, as Metacontroller does; on by default.
    /// Another host gets no credentials. No effect on hooks that `hooks` makes.
    pub hook_redirects: bool,
    /// Longest wait that a hook may request by status 429; 5 min by default. A longer one is cut. No
    /// effect on hooks that `hooks` makes.
    pub longest_hook_retry_after: Duration,
    /// Proxies through which hooks are reached; none by default. No effect on hooks that `hooks`
    /// makes.
    pub hook_proxies: Proxies,
    /// `User-Agent` of requests to hooks; names the library by default.
    /// [`Transport::user_agent`](crate::transport::Transport::user_agent) also names the product of
    /// the embedder. No effect on hooks that `hooks` makes.
    pub user_agent: HeaderValue,
}

impl Default for MetaOptions {
    fn default() -> Self {
        Self {
            workers: 5,
            runnable: RunnableOptions::default(),
            metrics: HookMetrics::default(),
            hooks: None,
            responses: ResponseBudget::default(),
            max_hook_calls: 0,
            target: Selector::default(),
            resync_period: None,
            max_children: MAX_CHILDREN,
            customize: CustomizeLimits::default(),
            revision_namespace: "default".into(),
            events: EventLimit::default(),
            recreate_without_dry_run: false,
            apply_strategy: ApplyStrategy::default(),
            field_manager: FieldManager::default(),
            strictness: Strictness::default(),
            adoption: Adoption::default(),
            hook_error_excerpts: false,
            hook_redirects: true,
            longest_hook_retry_after: MAX_RETRY_AFTER,
            hook_proxies: Proxies::default(),
            user_agent: library_user_agent(),
        }
    }
}

impl fmt::Debug for MetaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetaOptions")
            .field("workers", &self.workers)
            .field("max_hook_calls", &self.max_hook_calls)
            .field("target", &self.target)
            .field("resync_period", &self.resync_period)
            .finish_non_exhaustive()
    }
}
