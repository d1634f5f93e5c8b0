//! Informer options: budgets and timeouts.

use std::{fmt, sync::Arc, time::Duration};

use crate::kind::TypeIdentity;

/// Callback for types that the server answers 404 for.
pub type OnMissing = Arc<dyn Fn(&TypeIdentity) + Send + Sync>;

/// Budgets and timeouts of a set's informers.
#[derive(Clone)]
pub struct InformerOptions {
    /// Time that an informer outlives its last subscriber. Default: 10 s.
    pub linger: Duration,
    /// Objects per list page. Default: 500. Fewer while pages of that size exceed their budget.
    pub page_limit: u32,
    /// Maximum size of a list page. Default: 64 MiB.
    pub max_page_bytes: usize,
    /// Total size of the pages that all informers of the set hold at once. Default: 128 MiB. A page
    /// that does not fit waits, and is requested again once a page of any size fits.
    pub max_list_bytes: usize,
    /// Maximum size of a watch event. Default: 16 MiB.
    pub max_line_bytes: usize,
    /// Maximum number of concurrent lists. Default: 16. A list whose server is silent for a second
    /// does not count until the server answers again.
    pub max_concurrent_lists: usize,
    /// Deadline for each response head, and between two chunks of a list. Default: 30 s.
    pub request_deadline: Duration,
    /// Interval in which a type is listed that can be listed and not watched, such as
    /// `pods.metrics.k8s.io`: up to a fifth shorter, so that informers spread their lists. Default:
    /// 15 s; less than 100 ms counts as 100 ms.
    pub poll_interval: Duration,
    /// Callback for types that the server answers 404 for: a hint for discovery, never a proof of
    /// absence. Called for each such response, in the informer's task, so it must not block. A
    /// panic is logged.
    pub on_missing: Option<OnMissing>,
}

impl Default for InformerOptions {
    fn default() -> Self {
        Self {
            linger: Duration::from_secs(10),
            page_limit: 500,
            max_page_bytes: 64 << 20,
            max_list_bytes: 128 << 20,
            max_line_bytes: 16 << 20,
            max_concurrent_lists: 16,
            request_deadline: Duration::from_secs(30),
            poll_interval: Duration::from_secs(15),
            on_missing: None,
        }
    }
}

impl fmt::Debug for InformerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerOptions")
            .field("linger", &self.linger)
            .field("page_limit", &self.page_limit)
            .field("max_page_bytes", &self.max_page_bytes)
            .field("max_list_bytes", &self.max_list_bytes)
            .field("max_line_bytes", &self.max_line_bytes)
            .field("max_concurrent_lists", &self.max_concurrent_lists)
            .field("request_deadline", &self.request_deadline)
            .field("poll_interval", &self.poll_interval)
            .finish_non_exhaustive()
    }
}
