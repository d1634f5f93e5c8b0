//! Hooks: decide about the children and the status of a parent.

pub(super) mod budget;
pub(super) mod counted;
pub(super) mod credentials;
pub(super) mod endpoint;
pub(super) mod error;
pub(super) mod metrics;
pub(super) mod rule;
pub(super) mod webhook;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use self::{
    budget::ControllerBudget,
    error::HookError,
    metrics::{CallOutcome, CountedCall, HookSeries},
};
use crate::{controller::Request, guard::GuardedDrop, manager::Epoch};

/// Answers a JSON request with a JSON response.
///
/// The trait is open: a hook may be a web server, a function, or an expression.
/// ```
/// use bytes::Bytes;
/// use futures::{FutureExt, future::BoxFuture};
/// use pilotlight::meta::{Hook, HookError};
///
/// struct Empty;
///
/// impl Hook for Empty {
///     fn call(&self, _: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
///         async { Ok(Bytes::from_static(br#"{"children": []}"#)) }.boxed()
///     }
/// }
/// ```
pub trait Hook: Send + Sync + 'static {
    /// Calls the hook once. Retries are left to the work queue.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the exchange.
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>>;

    /// Like [`Hook::call`], for the parent of this request and uid: for a hook that keeps earlier
    /// responses. While a rollout is under way, the hook is also called for older revisions, where
    /// the uid is followed by a slash and the name of the revision. Controllers call this method, never twice at the same time for one parent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the exchange.
    fn call_about<'a>(
        &'a self,
        _parent: &'a Request,
        _uid: &'a str,
        request: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, HookError>> {
        self.call(request)
    }

    /// Drops the state kept for a parent: the parent is gone, or the last response for it is not
    /// usable.
    fn forget(&self, _parent: &Request) {}

    /// Drops the state kept between calls, such as connections, and resolves when that is done.
    /// Called when an epoch has ended; the hook may be called again later. Dropped half a second
    /// after the epoch's grace; the run then fails.
    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Hook of a user, whose `Drop` is guarded.
impl Hook for GuardedDrop<Arc<dyn Hook>> {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        (**self).call(request)
    }

    fn call_about<'a>(
        &'a self,
        parent: &'a Request,
        uid: &'a str,
        request: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, HookError>> {
        (**self).call_about(parent, uid, request)
    }

    fn forget(&self, parent: &Request) {
        (**self).forget(parent);
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        (**self).release()
    }
}

/// Calls a hook for a parent on behalf of an epoch, once the bound of the process admits it. The
/// wait counts as no call, and not towards the timeout of the hook. The call passes the epoch's
/// fence until the response is complete, and is abandoned when the epoch ends. A call without a
/// response is counted here, any other one by the caller, which judges the response.
///
/// # Errors
///
/// [`HookError::Cancelled`] if the epoch ends first, else the error of the hook.
pub(crate) async fn call<'a>(
    hook: &dyn Hook,
    series: &'a HookSeries,
    budget: &ControllerBudget,
    epoch: &Epoch,
    key: &Request,
    uid: &str,
    request: Bytes,
) -> Result<(Bytes, CountedCall<'a>), HookError> {
    let token = epoch.token();
    let permit = token.run_until_cancelled(budget.call()).await;
    let _permit = permit.ok_or(HookError::Cancelled)?;
    let passage = epoch.fence().pass()?;
    let counted = series.call();
    let response = tokio::select! {
        biased;
        () = token.cancelled() => Err(HookError::Cancelled),
        response = hook.call_about(key, uid, request) => response,
    };
    // An abandoned call counts as answered: a hook call is retried, so its outcome is not needed.
    passage.answered();
    match response {
        Ok(response) => Ok((response, counted)),
        Err(error) => {
            counted.end(CallOutcome::of(&error));
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{
        manager::StopReason,
        meta::hooks::{
            budget::{ResponseBudget, ResponseLimits},
            metrics::HookMetrics,
            rule::HookKind,
        },
    };

    /// Hook with one fixed response.
    struct ScriptedHook(Result<Bytes, HookError>);

    impl Hook for ScriptedHook {
        fn call(&self, _: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
            std::future::ready(self.0.clone()).boxed()
        }
    }

    fn budget() -> ControllerBudget {
        ResponseBudget::default().controller("c")
    }

    fn key() -> Request {
        Request::namespaced("ns", "p")
    }

    fn series() -> HookSeries {
        HookMetrics::default().series(HookKind::Sync, "c", "CompositeController", "http://x/")
    }

    #[tokio::test]
    async fn every_call_counts_once_with_its_outcome() {
        let status = |code| HookError::Status { code, body: String::new(), proxy: None };
        let waited = Duration::from_secs(10);
        for (response, usable, outcome) in [
            (Ok(Bytes::new()), true, "2xx"),
            (Ok(Bytes::new()), false, "invalid"),
            (Err(status(204)), true, "invalid"),
            (Err(status(302)), true, "3xx"),
            (Err(status(404)), true, "4xx"),
            (Err(status(503)), true, "5xx"),
            (Err(HookError::NothingToConfirm { code: 304 }), true, "3xx"),
            (Err(HookError::NothingToConfirm { code: 412 }), true, "4xx"),
            (Err(HookError::Timeout(waited)), true, "timeout"),
            (Err(HookError::Transport("refused".to_owned())), true, "unreachable"),
            (Err(HookError::Encoded("gzip".to_owned())), true, "invalid"),
            (Err(HookError::TooLarge { limit: 1 }), true, "too_large"),
            (Err(HookError::NoBudget { bytes: 1, waited }), true, "no_budget"),
            (Err(HookError::Busy(waited)), true, "busy"),
            (Err(HookError::Cancelled), true, "cancelled"),
        ] {
            let (mut registry, metrics) = (Registry::default(), HookMetrics::default());
            metrics.register(&mut registry);
            let series = metrics.series(HookKind::Sync, "c", "CompositeController", "http://x/");
            let (hook, epoch) = (ScriptedHook(response), Epoch::new("c", 1, Duration::ZERO));

            let called = call(&hook, &series, &budget(), &epoch, &key(), "uid", Bytes::new()).await;
            if let Ok((_, counted)) = called {
                counted.end(if usable { CallOutcome::Answered } else { CallOutcome::Invalid });
            }

            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let counted: Vec<_> =
                text.lines().filter(|line| line.starts_with("pilotlight_hook_calls_")).collect();
            let expected = format!(
                "pilotlight_hook_calls_total{{controller_name=\"c\",\
                 controller_type=\"CompositeController\",url=\"http://x/\",\
                 hook=\"sync\",outcome=\"{outcome}\"}} 1"
            );
            assert_eq!(counted, [expected]);
        }
    }

    #[tokio::test]
    async fn call_that_is_dropped_counts_as_cancelled() {
        let (mut registry, metrics) = (Registry::default(), HookMetrics::default());
        metrics.register(&mut registry);
        let series = metrics.series(HookKind::Sync, "c", "CompositeController", "http://x/");
        let epoch = Epoch::new("c", 1, Duration::ZERO);

        let dropped = call(&SilentHook, &series, &budget(), &epoch, &key(), "uid", Bytes::new())
            .now_or_never();

        assert!(dropped.is_none());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("outcome=\"cancelled\"} 1"), "{text}");
    }

    struct SilentHook;

    impl Hook for SilentHook {
        fn call(&self, _: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_is_in_flight_until_its_response_and_ends_with_its_epoch() {
        let epoch = Epoch::new("c", 1, Duration::ZERO);
        let (key, series, budget) = (key(), series(), budget());
        let mut call =
            tokio_test(call(&SilentHook, &series, &budget, &epoch, &key, "uid", Bytes::new()));

        assert!(futures::poll!(&mut call).is_pending());
        assert_eq!(epoch.fence().under_way(), 1);

        epoch.stop(StopReason::TypeGone);
        assert_eq!(call.await.err(), Some(HookError::Cancelled));
        assert_eq!((epoch.fence().under_way(), epoch.fence().unknown()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn call_beyond_the_bound_of_the_process_waits_and_ends_with_its_epoch() {
        let budget = ResponseBudget::new(ResponseLimits::default()).most_calls(1);
        let (own, other) = (budget.controller("c"), budget.controller("other"));
        let epoch = Epoch::new("c", 1, Duration::ZERO);
        let (key, series) = (key(), series());
        let hook = ScriptedHook(Ok(Bytes::new()));
        let call = || tokio_test(call(&hook, &series, &own, &epoch, &key, "uid", Bytes::new()));
        let held = other.call().await;
        let mut waiting = call();
        assert!(futures::poll!(&mut waiting).is_pending());

        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(futures::poll!(&mut waiting).is_pending(), "the wait is no failure");
        assert_eq!(epoch.fence().under_way(), 0, "the wait is no call");
        drop(held);
        assert!(waiting.await.is_ok());

        let _held = other.call().await;
        let waiting = call();
        epoch.stop(StopReason::TypeGone);
        assert_eq!(waiting.await.err(), Some(HookError::Cancelled));
    }

    #[tokio::test(start_paused = true)]
    async fn hook_is_not_called_after_the_fence_has_closed() {
        let epoch = Epoch::new("c", 1, Duration::ZERO);
        epoch.fence().close();

        let series = series();
        let call = call(&SilentHook, &series, &budget(), &epoch, &key(), "uid", Bytes::new()).await;

        assert_eq!(call.err(), Some(HookError::Cancelled));
    }

    fn tokio_test<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        Box::pin(future)
    }
}
