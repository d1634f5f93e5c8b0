//! Reflector: keeps a store equal to the server's state by list and watch, for ever.
//!
//! No response of the server ends it. Objects are removed by a delete event, or by a *complete*
//! list that lacks them. An incomplete list removes nothing.

#[cfg(test)]
mod bad_objects;
mod fill;
mod list;
#[cfg(test)]
mod model;
mod poll;
mod watch;

use std::{convert::Infallible, ops::RangeInclusive, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tracing::{debug, error, info, warn};

use self::{fill::Fill, list::Scan};
use super::{
    InformerOptions, InformerProgress, Object, ObjectError, ObjectKey,
    classify::{
        Cause, Classification, NextRequest, RequestFailure, RequestPace, RequestPhase, classify,
    },
    decode::Decoder,
    metrics::{EventKind, TypeMetrics},
    request_delays::RequestDelays,
    shared_informer::{SharedInformer, StoreChange},
    wire::{InformerRequests, ListSlot},
};
use crate::{guard, kind::VersionOrder, redaction, resume_version::ResumeVersion};

/// Watch timeouts. Some load balancers silently drop connections that are idle for 240 s.
const WATCH_SECONDS: RangeInclusive<u32> = 200..=230;
/// Time after the watch timeout for the server's own end of the watch to arrive.
const WATCH_SLACK: Duration = Duration::from_secs(5);
/// Objects after which the task yields to others.
const BATCH: usize = 128;

pub(super) struct Reflector {
    informer: Arc<SharedInformer>,
    wire: InformerRequests,
    decoder: Decoder,
    options: Arc<InformerOptions>,
    lists: Arc<Semaphore>,
    metrics: Arc<TypeMetrics>,
    delays: RequestDelays,
    /// Comparability of the type's resourceVersions.
    order: VersionOrder,
    /// Position from which the watch resumes; `None` requires a list.
    resume_version: Option<ResumeVersion>,
    /// True if the server has refused to watch the type: the next watch follows the next list.
    watch_refused: bool,
    fill: Fill,
    /// List whose last page has failed; it continues at its token.
    ongoing: Option<Scan>,
    listing: Listing,
    /// Lines over budget at the resume version, and that version.
    long_lines: (u32, String),
    /// Set if an event was lost or the server may be behind; checked before the next watch.
    due_check: Option<WatchCheck>,
}

/// Parameters of the next list.
struct Listing {
    /// Objects per page: fewer than wanted while pages of that size are too large.
    limit: u32,
    /// True if the next list is made in one piece, because a continue token has expired.
    whole: bool,
    /// True if the server does not support streaming lists.
    never_stream: bool,
    /// True if the next list must not be a streaming list.
    pages: bool,
}

impl Listing {
    /// Reduces the number of objects per page. Returns false if that is one already, or if the list
    /// has no pages.
    fn shrink(&mut self) -> bool {
        let shrinks = self.limit > 1 && !self.whole;
        if shrinks {
            self.limit = (self.limit / 4).max(1);
        }
        shrinks
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchCheck {
    /// A line could not be decoded: a change is missing.
    Lost,
    /// The server may be behind the watch's position; a list shows it.
    Behind,
}

impl Reflector {
    pub(super) fn new(
        informer: Arc<SharedInformer>,
        wire: InformerRequests,
        decoder: Decoder,
        options: Arc<InformerOptions>,
        lists: Arc<Semaphore>,
        metrics: Arc<TypeMetrics>,
        order: VersionOrder,
    ) -> Self {
        let listing = Listing {
            limit: options.page_limit.max(1),
            whole: false,
            never_stream: false,
            pages: false,
        };
        Self {
            informer,
            wire,
            decoder,
            options,
            lists,
            metrics,
            delays: RequestDelays::default(),
            order,
            resume_version: None,
            watch_refused: false,
            fill: Fill::default(),
            ongoing: None,
            listing,
            long_lines: (0, String::new()),
            due_check: None,
        }
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let (phase, failure) = match &self.resume_version {
                Some(_) if self.polls() => {
                    self.poll().await;
                    continue;
                }
                Some(_) => (RequestPhase::Watch, self.watch().await),
                None if self.streams() => self.stream().await,
                None => match self.list().await {
                    Ok(()) => continue,
                    Err(failed) => failed,
                },
            };
            self.recover(phase, failure).await;
        }
    }

    /// Returns whether the next list is a streaming list. First lists are by pages: right after a
    /// type begins to be served, these are answered at once, and a streaming list is not.
    fn streams(&self) -> bool {
        self.informer.is_complete()
            && !self.polls()
            && !self.listing.never_stream
            && !self.listing.pages
    }

    /// Reports a failed request, prepares the next one, and waits for its delay.
    async fn recover(&mut self, phase: RequestPhase, failure: RequestFailure) {
        if failure == RequestFailure::Wanted {
            // Not an error: neither delayed nor reported.
            return;
        }
        let mut classified = classify(phase, &failure);
        let identity = &self.informer.key.identity;
        let failure = failure.redacted(redaction::is_secret(&identity.group, &identity.plural));
        if phase == RequestPhase::Watch && matches!(failure, RequestFailure::TooLong { .. }) {
            classified.step = self.long_line();
        }
        if classified.step == NextRequest::Again
            && self.resume_version.as_ref().is_some_and(|it| !it.is_position())
        {
            // Without a position, only a list finds objects deleted while no watch was open.
            classified.step = NextRequest::Relist;
        }
        self.prepare(&mut classified);
        self.metrics.restarted(classified.cause);
        if classified.step == NextRequest::Poll {
            debug!(error = %failure, "type cannot be watched and is listed in an interval");
            return;
        }
        // A server without streaming lists has not failed: a list by pages follows at once.
        if classified.step != NextRequest::NeverStream
            && let Some(interrupted) = self.fill.take_interrupted()
        {
            self.fill_failed(&failure, classified);
            self.ongoing = None;
            self.resume_version = Some(interrupted);
            return;
        }
        if classified.cause == Cause::NotFound
            && let Some(on_missing) = &self.options.on_missing
        {
            // User code: its panic must not end an informer that others share.
            if let Err(error) = guard::run(|| on_missing(&self.informer.key.identity)) {
                error!(error, "on_missing panicked");
            }
        }

        let delay = self.delays.delay(classified, fastrand::f64());
        self.report(&failure, classified);
        if delay.is_zero() {
            debug!(error = %failure, "request retried");
            // A server that fails at once every time must not starve other tasks.
            tokio::task::yield_now().await;
            return;
        }
        debug!(error = %failure, ?delay, "request will be retried");
        // A type that is served again changes no permissions, and must not cause more requests.
        let served_again = async {
            match classified.pace {
                RequestPace::Forbidden | RequestPace::After(_) => std::future::pending().await,
                RequestPace::Prompt | RequestPace::Quick | RequestPace::Slow => {
                    self.informer.served_again.notified().await
                }
            }
        };
        // Lists may succeed where watches fail.
        let lists =
            self.resume_version.is_some() && !matches!(classified.pace, RequestPace::After(_));
        if !lists {
            // Not polled below, it would keep a slot from others.
            self.fill.drop_due();
        }
        let mut due = self.fill.take_due(&self.informer, &self.lists);
        let _timer = self.metrics.backing_off();
        tokio::select! {
            () = sleep(delay) => {}
            () = served_again => self.delays.served_again(),
            slot = &mut due, if lists => {
                self.begin_fill(slot);
                return;
            }
        }
        if lists {
            self.fill.keep_due(due);
        }
    }

    /// Prepares the next request. A page that cannot be smaller is requested slowly.
    fn prepare(&mut self, classified: &mut Classification) {
        match classified.step {
            NextRequest::Again => {}
            NextRequest::Relist => {
                self.resume_version = None;
                self.ongoing = None;
            }
            NextRequest::ListWhole => {
                self.listing.whole = true;
                self.ongoing = None;
            }
            // The token has expired because of many pages, not of large ones.
            NextRequest::ListSmaller if self.listing.whole => {
                self.listing.whole = false;
                self.listing.limit = self.options.page_limit.max(1);
            }
            NextRequest::ListSmaller => {
                if !self.listing.shrink() {
                    classified.pace = RequestPace::Slow;
                }
            }
            NextRequest::ListPages => self.listing.pages = true,
            NextRequest::NeverStream => self.listing.never_stream = true,
            NextRequest::Poll => self.watch_refused = true,
        }
    }

    fn report(&self, failure: &RequestFailure, classified: Classification) {
        if !self.delays.is_notable(classified) {
            return;
        }
        let progress = self.failed_progress(failure, classified, self.informer.is_complete());
        self.publish(progress);
    }

    /// Returns the progress of subscribers after a failed request; `is_complete` is true if they have
    /// what an earlier list had.
    fn failed_progress(
        &self,
        failure: &RequestFailure,
        classified: Classification,
        is_complete: bool,
    ) -> InformerProgress {
        let error = failure.to_string();
        match (classified.pace, is_complete) {
            (RequestPace::Forbidden, _) => {
                let verbs = match &self.resume_version {
                    Some(_) => "watch",
                    None if self.polls() => "list",
                    None => "list and watch",
                };
                let resource = self.informer.key.identity.group_resource();
                // The message of the server may be withheld, as for Secrets.
                let scope = match &self.informer.key.namespace {
                    Some(namespace) => format!(" in the namespace {namespace}"),
                    None => String::new(),
                };
                let rule = format!("grant {verbs} on {resource}{scope}");
                InformerProgress::Forbidden(format!("{error} ({rule})"))
            }
            (_, _) if classified.cause == Cause::Conversion => {
                InformerProgress::ConversionFailed(error)
            }
            (_, true) => InformerProgress::Stale(error),
            (_, false) => InformerProgress::Syncing(Some(error)),
        }
    }

    fn publish(&self, progress: InformerProgress) {
        let known = self.informer.progress().borrow().clone();
        if known == progress {
            return;
        }
        match &progress {
            InformerProgress::Synced if known == InformerProgress::Syncing(None) => {
                debug!("watch opened")
            }
            InformerProgress::Synced => info!("watch recovered"),
            InformerProgress::Polled => {
                let interval = self.options.poll_interval;
                info!(?interval, "type cannot be watched and is listed in an interval");
            }
            InformerProgress::Syncing(None) | InformerProgress::Ended(_) => {}
            InformerProgress::Syncing(Some(error)) => warn!(error, "first list failed"),
            InformerProgress::Stale(error) => warn!(error, "watch failed"),
            InformerProgress::Forbidden(error) => warn!(error, "watch is not permitted"),
            InformerProgress::ConversionFailed(error) => {
                warn!(error, "objects cannot be converted")
            }
        }
        self.metrics.state(&progress);
        self.informer.publish(progress);
    }

    /// Acquires a slot among the concurrent lists; released while waiting to retry.
    async fn slot(&mut self) -> ListSlot {
        self.fill.drop_due();
        match self.fill.take_slot() {
            Some(slot) => slot,
            None => ListSlot::acquire(self.lists.clone()).await,
        }
    }

    /// Decodes an object; as a metadata entry unless a subscriber needs it whole.
    fn decode(&mut self, json: &str) -> Result<Object, ObjectError> {
        self.decoder
            .decode(json, |header| header.is_compared_by_content() || self.informer.keeps(header))
    }

    /// Stores an object that was decoded from `json`.
    fn put(&mut self, object: &Object, json: &str) -> Result<StoreChange, ObjectError> {
        match self.informer.put(object) {
            // A subscriber has joined since.
            StoreChange::Incomplete => {
                let whole = self.decoder.decode(json, |_| true)?;
                Ok(self.informer.put(&whole))
            }
            change @ (StoreChange::Applied | StoreChange::None) => Ok(change),
        }
    }

    fn quarantine(&self, error: &ObjectError) {
        self.metrics.event(EventKind::Quarantined);
        if self.informer.quarantine(error) {
            let name = error.key.as_ref().map(ObjectKey::to_string).unwrap_or_default();
            let resource_version = error.resource_version.as_deref().unwrap_or_default();
            let uid = error.uid.as_deref().unwrap_or_default();
            warn!(name, uid, resource_version, %error, "object cannot be read and is left out");
        }
    }

    fn is_past(&self, version: &str) -> bool {
        self.resume_version.as_ref().is_some_and(|resume_version| resume_version.is_past(version))
    }

    fn advance(&mut self, version: &str) {
        if let Some(resume_version) = &mut self.resume_version
            && resume_version.advance(version)
        {
            self.informer.store.set_version(resume_version.number());
        }
    }
}

/// Maximum lifetime of a watch.
#[derive(Clone, Copy)]
struct WatchDeadline {
    /// Timeout in the request.
    seconds: u32,
    /// Time at which the client ends the watch.
    at: Instant,
    after: Duration,
}

impl WatchDeadline {
    fn random() -> Self {
        let seconds = fastrand::u32(WATCH_SECONDS);
        let after = Duration::from_secs(seconds.into()) + WATCH_SLACK;
        Self { seconds, at: Instant::now() + after, after }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::StatusCode;

    use super::*;
    use crate::informer::script::{Harness, names, progress, run_until_idle, stored, widget};

    #[tokio::test(start_paused = true)]
    async fn panic_of_the_callback_for_missing_types_ends_no_informer() {
        let on_missing = |_: &_| panic!("boom");
        let mut harness = Harness::with(InformerOptions {
            on_missing: Some(Arc::new(on_missing)),
            ..InformerOptions::default()
        });
        let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        drop(watch);

        for _ in 0..5 {
            harness.script.watch(10).await.text(StatusCode::NOT_FOUND, "404 page not found");
        }

        let progress = progress(&subscription);
        assert!(!matches!(progress, InformerProgress::Ended(_)), "{progress:?}");
        assert_eq!(stored(&subscription), names(&[("a", 1)]));
    }

    #[tokio::test(start_paused = true)]
    async fn missing_type_is_requested_again_and_its_store_is_kept() {
        let hints = Arc::new(AtomicUsize::new(0));
        let counted = hints.clone();
        let mut harness = Harness::with(InformerOptions {
            on_missing: Some(Arc::new(move |_identity| {
                counted.fetch_add(1, Ordering::Relaxed);
            })),
            ..InformerOptions::default()
        });
        let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        drop(watch);

        let started = Instant::now();
        let mut at = Vec::new();
        for _ in 0..15 {
            harness.script.watch(10).await.text(StatusCode::NOT_FOUND, "404 page not found");
            at.push(started.elapsed());
        }

        run_until_idle().await;
        assert!(at[1] - at[0] <= Duration::from_millis(6), "{at:?}");
        assert!(at[4] <= Duration::from_millis(100), "{at:?}");
        assert!(at[14] - at[13] >= Duration::from_secs(20), "{at:?}");
        assert_eq!(stored(&subscription), names(&[("a", 1)]));
        assert_eq!(hints.load(Ordering::Relaxed), 15);
        assert!(
            matches!(progress(&subscription), InformerProgress::Stale(error) if error.contains("404"))
        );

        // A hint that the type is served cuts the delay short.
        harness.set.type_served(&harness.key.identity);
        let before = Instant::now();
        let _watch = harness.script.watch(10).await.open();
        assert!(before.elapsed() < Duration::from_millis(1));
        subscription
            .progress()
            .wait_for(|progress| *progress == InformerProgress::Synced)
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_that_is_missing_at_first_is_listed_within_milliseconds_of_coming() {
        let mut harness = Harness::new();
        let subscription = harness.subscribe();
        let started = Instant::now();

        for _ in 0..3 {
            harness.script.list().await.text(StatusCode::NOT_FOUND, "404 page not found");
        }
        assert_eq!(progress(&subscription), InformerProgress::Syncing(None));
        harness.script.list().await.page(10, "", &[]);

        subscription.drained().await;
        assert!(started.elapsed() < Duration::from_millis(40));
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_type_is_requested_rarely_and_the_missing_rule_is_named() {
        let mut harness = Harness::new();
        let subscription = harness.subscribe();
        let message = "widgets.example.com is forbidden: User \"u\" cannot list resource";

        for _ in 0..4 {
            harness.script.list().await.refuse(403, "Forbidden", message);
        }
        run_until_idle().await;
        let InformerProgress::Forbidden(reason) = progress(&subscription) else {
            panic!("not forbidden")
        };
        assert!(reason.contains(message), "{reason}");
        assert!(reason.contains("grant list and watch on widgets.example.com"), "{reason}");

        harness.set.type_served(&harness.key.identity);
        let refused = Instant::now();
        let list = harness.script.list().await;
        assert!(refused.elapsed() >= Duration::from_secs(29));
        list.page(10, "", &[]);
        let _watch = harness.script.watch(10).await.open();
        subscription
            .progress()
            .wait_for(|progress| *progress == InformerProgress::Synced)
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_revoked_watch_keeps_its_store() {
        let mut harness = Harness::new();
        let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        drop(watch);
        harness.script.watch(10).await.refuse(403, "Forbidden", "cannot watch");
        run_until_idle().await;

        assert!(matches!(progress(&subscription), InformerProgress::Forbidden(_)));
        assert_eq!(stored(&subscription), names(&[("a", 1)]));
        harness.script.watch(10).await.open();
    }

    #[tokio::test(start_paused = true)]
    async fn initializing_storage_is_requested_again_within_milliseconds() {
        let mut harness = Harness::new();
        let (subscription, watch) = harness.synced(&[]).await;
        drop(watch);

        let started = Instant::now();
        for _ in 0..3 {
            let open = harness.script.watch(10).await.head(StatusCode::TOO_MANY_REQUESTS, Some(1));
            open.text(r#"{"kind":"Status","code":429,"message":"storage is (re)initializing"}"#);
        }
        harness.script.watch(10).await.open();

        assert!(started.elapsed() < Duration::from_millis(40));
        assert_eq!(progress(&subscription), InformerProgress::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_that_returns_after_long_is_followed_within_milliseconds() {
        let mut harness = Harness::new();
        let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        drop(watch);
        for _ in 0..15 {
            harness.script.watch(10).await.text(StatusCode::NOT_FOUND, "404 page not found");
        }
        let mut seen = subscription.progress();
        assert!(matches!(&*seen.borrow_and_update(), InformerProgress::Stale(_)));

        // The hint arrives before the server serves the type.
        let watch = harness.script.watch(10).await;
        harness.set.type_served(&harness.key.identity);
        let served = Instant::now();
        watch.text(StatusCode::NOT_FOUND, "404 page not found");
        let initializing = "storage is (re)initializing";
        harness.script.watch(10).await.refuse(429, "TooManyRequests", initializing);
        let watch = harness.script.watch(10).await.open();
        watch.error(410, "Expired", "too old");
        let stream = harness.script.stream().await.open();
        stream.event("ADDED", &widget("a", 1));
        stream.end_of_list(20);
        seen.changed().await.unwrap();

        // A watch that was open for a moment is not a recovery.
        assert!(matches!(&*seen.borrow_and_update(), InformerProgress::Synced));
        assert!(served.elapsed() < Duration::from_millis(100), "{:?}", served.elapsed());
        assert!(!seen.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttling_server_is_given_its_time() {
        let mut harness = Harness::new();
        let _subscription = harness.subscribe();

        let open = harness.script.list().await.head(StatusCode::TOO_MANY_REQUESTS, Some(7));
        drop(open);
        let refused = Instant::now();
        harness.script.list().await;

        assert!(refused.elapsed() >= Duration::from_secs(7));
        assert!(refused.elapsed() < Duration::from_secs(8));
    }
}
