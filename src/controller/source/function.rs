//! Function source: requests that a function of a program adds, once in each epoch or at intervals.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    select,
    time::{Instant, MissedTickBehavior, interval_at},
};

use crate::controller::{ConditionalSource, Request, SourceContext, SourceEnd, SourceStart};
use crate::manager::{Readiness, always};

/// Shortest interval: a shorter one would keep a processor busy.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// Source whose requests come from a function.
///
/// The function is called once in each epoch, and is dropped when the source is to stop. The source
/// ends when the function returns, as described at [`SourceEnd`]. Semantics: `source.Func` of
/// controller-runtime, except that the function may take as long as the epoch.
///
/// ```
/// use std::time::Duration;
/// use pilotlight::{controller::{Controller, FunctionSource, Request}, kind::TypeRef};
///
/// let files = FunctionSource::new("files", |context| async move {
///     // Add a request for each file that changes.
///     context.enqueue(Request::cluster("config"));
///     context.stopping().await;
/// });
/// let hourly = FunctionSource::interval(Duration::from_secs(3600), Request::cluster("all"));
/// let builder = Controller::builder("files")
///     .for_type(TypeRef::kind("example.com", "v1", "Setting"))
///     .source(files)
///     .source(hourly);
/// # drop(builder);
/// ```
#[derive(Clone)]
pub struct FunctionSource {
    name: Arc<str>,
    function: Arc<SourceFn>,
    delivers: bool,
}

type SourceFn = dyn Fn(SourceContext) -> BoxFuture<'static, ()> + Send + Sync;

impl FunctionSource {
    /// Returns a source of this name that runs a function.
    pub fn new<F>(
        name: impl Into<Arc<str>>,
        function: impl Fn(SourceContext) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let function = move |context| function(context).boxed();
        Self { name: name.into(), function: Arc::new(function), delivers: true }
    }

    /// Returns a source that adds a request at each end of an interval (1 ms at least), from the
    /// start of the epoch on.
    pub fn interval(interval: Duration, request: impl Into<Request>) -> Self {
        let (interval, request) = (interval.max(SHORTEST_INTERVAL), request.into());
        let ticks = Self::new(format!("an interval of {interval:?}"), move |context| {
            let request = request.clone();
            async move {
                let mut ticks = interval_at(Instant::now() + interval, interval);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    context.enqueue(request.clone());
                }
            }
        });
        Self { delivers: false, ..ticks }
    }
}

impl ConditionalSource for FunctionSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let function = Arc::clone(&self.function);
        let done = async move {
            select! {
                biased;
                () = context.stopping() => {}
                () = async { function(context.clone()).await } => {}
            }
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn delivers(&self) -> bool {
        self.delivers
    }
}

impl fmt::Debug for FunctionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionSource").field("name", &self.name).finish_non_exhaustive()
    }
}
