//! Keeps a store equal to what the server has: a list, then a watch, for ever.
//!
//! Nothing a server answers ends it. Objects are deleted when the server says so in an event, or
//! when a *complete* list is without them; half a list deletes nothing.

use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, info, trace, warn};

use super::{
    InformerOptions, ObjectError, ObjectKey, Progress,
    backoff::Backoff,
    classify::{Cause, Failure, Pace, Phase, Step, classify},
    decode::{self, Decoder},
    hub::{Change, Hub},
    mark::{Mark, is_older},
    metrics::{EventKind, TypeMetrics},
    reader::LineReader,
    wire::{self, Bookmark, Event, Page, Slot, Wire},
};

/// Some load balancers drop a connection that has been idle for 240 s, and tell nobody.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 200..=230;
/// The server's own end of a watch gets so much time to arrive.
const WATCH_SLACK: Duration = Duration::from_secs(5);
/// A streaming list that has been silent for this long has no end.
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// A watch that lasted this long was healthy.
const HEALTHY: Duration = Duration::from_secs(1);
/// Bookmarks come every minute; a watch without a line in this time may be ahead of its server.
const SILENT: Duration = Duration::from_secs(90);
/// Other tasks get their turn after so many objects.
const BATCH: usize = 128;

pub(super) struct Reflector {
    hub: Arc<Hub>,
    wire: Wire,
    decoder: Decoder,
    options: Arc<InformerOptions>,
    lists: Arc<Semaphore>,
    metrics: TypeMetrics,
    backoff: Backoff,
    /// Where the watch goes on; none asks for a list.
    mark: Option<Mark>,
    listing: Listing,
    /// Lines over budget at the current mark.
    long_lines: (u32, String),
    /// An event was lost, or the server may have gone back: look before going on.
    suspicion: Option<Suspicion>,
}

/// How the next list is made.
struct Listing {
    limit: u32,
    whole: bool,
    /// The server does not know streaming lists.
    never_stream: bool,
    /// Not this time.
    pages: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    /// A line could not be read: something is missing.
    Lost,
    /// The server may be behind us: ask it.
    Behind,
}

/// What a complete list must find again.
struct Roll {
    seen: Option<HashSet<ObjectKey>>,
    unreadable: usize,
}

impl Reflector {
    pub(super) fn new(
        hub: Arc<Hub>,
        wire: Wire,
        decoder: Decoder,
        options: Arc<InformerOptions>,
        lists: Arc<Semaphore>,
        metrics: TypeMetrics,
    ) -> Self {
        let listing = Listing {
            limit: options.page_limit.max(1),
            whole: false,
            never_stream: false,
            pages: false,
        };
        Self {
            hub,
            wire,
            decoder,
            options,
            lists,
            metrics,
            backoff: Backoff::default(),
            mark: None,
            listing,
            long_lines: (0, String::new()),
            suspicion: None,
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let (phase, failure) = match &self.mark {
                Some(_) => (Phase::Watch, self.watch().await),
                None if self.streams() => self.stream().await,
                None => match self.list().await {
                    Ok(()) => continue,
                    Err(failed) => failed,
                },
            };
            self.recover(phase, failure).await;
        }
    }

    /// First lists are by pages: right after a type begins to be served these are answered at
    /// once, and a streaming list is not.
    fn streams(&self) -> bool {
        self.hub.is_complete() && !self.listing.never_stream && !self.listing.pages
    }

    async fn recover(&mut self, phase: Phase, failure: Failure) {
        let mut verdict = classify(phase, &failure);
        if phase == Phase::Watch && matches!(failure, Failure::TooLong { .. }) {
            verdict.step = self.long_line();
        }
        match verdict.step {
            Step::Again => {}
            Step::Relist => self.mark = None,
            Step::ListWhole => self.listing.whole = true,
            Step::ListSmaller => {
                if self.listing.limit == 1 {
                    verdict.pace = Pace::Slow;
                }
                self.listing.limit = (self.listing.limit / 4).max(1);
                self.listing.whole = false;
            }
            Step::ListPages => self.listing.pages = true,
            Step::NeverStream => self.listing.never_stream = true,
        }
        self.metrics.restarted(verdict.cause);
        if verdict.cause == Cause::NotFound
            && let Some(on_missing) = &self.options.on_missing
        {
            on_missing(&self.hub.key.identity);
        }

        let delay = self.backoff.delay(verdict.pace, fastrand::f64());
        self.report(&failure, verdict.pace);
        if delay.is_zero() {
            debug!(error = %failure, "request repeated");
            // A server that fails at once, every time, still leaves the runtime to others.
            tokio::task::yield_now().await;
            return;
        }
        debug!(error = %failure, ?delay, "request will be repeated");
        // Whoever nudges knows nothing of permissions, and must not make us ask more often.
        let nudged = async {
            match verdict.pace {
                Pace::Forbidden | Pace::After(_) => std::future::pending().await,
                Pace::Prompt | Pace::Quick | Pace::Slow => self.hub.nudge.notified().await,
            }
        };
        tokio::select! {
            () = sleep(delay) => {}
            () = nudged => {}
        }
    }

    fn report(&mut self, failure: &Failure, pace: Pace) {
        if !self.backoff.is_notable(pace) {
            return;
        }
        let error = failure.to_string();
        let progress = match (pace, self.hub.is_complete()) {
            (Pace::Forbidden, _) => {
                let verbs = if self.mark.is_some() { "watch" } else { "list and watch" };
                let resource = self.hub.key.identity.group_resource();
                Progress::Forbidden(format!("{error} (grant {verbs} on {resource})"))
            }
            (_, true) => Progress::Stale(error),
            (_, false) => Progress::Syncing(Some(error)),
        };
        self.publish(progress);
    }

    fn publish(&self, progress: Progress) {
        let known = self.hub.progress();
        if *known.borrow() == progress {
            return;
        }
        match &progress {
            Progress::Syncing(None) | Progress::Ended(_) => {}
            Progress::Synced => info!("watch is open"),
            Progress::Syncing(Some(error)) => warn!(error, "first list fails"),
            Progress::Stale(error) => warn!(error, "watch fails"),
            Progress::Forbidden(error) => warn!(error, "not permitted"),
        }
        self.metrics.state(&progress);
        self.hub.publish(progress);
    }

    /// A place among the lists under way; given back when waiting to retry.
    async fn slot(&self) -> Slot {
        self.lists.clone().acquire_owned().await.ok()
    }

    // --- list

    async fn list(&mut self) -> Result<(), (Phase, Failure)> {
        let mut slot = self.slot().await;
        let mut roll = self.roll();
        let mut token = String::new();
        loop {
            let phase = Phase::List { continued: !token.is_empty() };
            let limit = (!self.listing.whole).then_some(self.listing.limit);
            let budget = self.options.max_page_bytes;
            let bytes = self.wire.page(limit, &token, budget, &mut slot).await;
            let bytes = bytes.map_err(|failure| (phase, failure))?;
            let (next, version) =
                self.page(bytes, &mut roll).await.map_err(|failure| (phase, failure))?;
            if next.is_empty() {
                self.complete(&version, roll);
                return Ok(());
            }
            token = next;
        }
    }

    /// Takes the objects of one page; returns the token of the next and the list's position.
    async fn page(&mut self, bytes: Vec<u8>, roll: &mut Roll) -> Result<(String, String), Failure> {
        let text = decode::text(&bytes);
        let page: Page<'_> = serde_json::from_str(&text).map_err(|error| Failure::Undecodable {
            what: "a page of the list",
            error: error.to_string(),
        })?;
        let items = page.items.unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            self.listed(item.get(), roll);
            if index % BATCH == BATCH - 1 {
                tokio::task::yield_now().await;
            }
        }
        self.metrics.cached(&self.hub.store);
        let metadata = page.metadata.unwrap_or_default();
        Ok((metadata.token.unwrap_or_default(), metadata.resource_version.unwrap_or_default()))
    }

    fn roll(&self) -> Roll {
        // Into an empty store a list cannot bring a deletion.
        let seen = (!self.hub.store.is_empty()).then(HashSet::new);
        Roll { seen, unreadable: 0 }
    }

    fn listed(&mut self, json: &str, roll: &mut Roll) {
        match self.decoder.decode(json) {
            Ok(object) => {
                self.metrics.event(EventKind::Listed);
                roll.seen(object.key());
                self.hub.put(&object);
            }
            Err(error) => {
                match &error.key {
                    // It is there, whatever it looks like.
                    Some(key) => roll.seen(key),
                    None => roll.unreadable += 1,
                }
                self.quarantine(&error);
            }
        }
    }

    /// Deletes what a complete list was without, and goes on from its position.
    fn complete(&mut self, version: &str, roll: Roll) {
        if let Some(seen) = &roll.seen {
            if roll.unreadable == 0 {
                for object in self.hub.store.list() {
                    if !seen.contains(object.key()) {
                        self.hub.remove(object.key());
                    }
                }
                self.hub.retain_quarantined(|key| seen.contains(key));
            } else {
                // One of those that cannot be read may be any of those that are missing.
                let unreadable = roll.unreadable;
                warn!(unreadable, "list has objects without a name; it deletes nothing");
            }
        }
        self.metrics.cached(&self.hub.store);
        self.metrics.listed();
        self.listing.whole = false;
        self.listing.pages = false;
        self.suspicion = None;
        self.mark = Some(Mark::new(version));
        self.hub.complete();
        debug!(resource_version = version, objects = self.hub.store.len(), "list is complete");
    }

    // --- streaming list

    /// Lists by a watch, and goes on watching.
    async fn stream(&mut self) -> (Phase, Failure) {
        let seconds = fastrand::u32(WATCH_SECONDS);
        let deadline = Deadline::new(seconds);
        let mut slot = self.slot().await;
        let body = match self.wire.stream(seconds, &mut slot).await {
            Ok(body) => body,
            Err(failure) => return (Phase::Stream, failure),
        };
        let _watching = self.metrics.watching();
        let mut lines = LineReader::new(body, self.options.max_line_bytes);
        if let Err(failure) = self.initial_events(&mut lines).await {
            return (Phase::Stream, failure);
        }
        drop(slot);
        (Phase::Watch, self.follow(lines, deadline).await)
    }

    async fn initial_events(&mut self, lines: &mut LineReader) -> Result<(), Failure> {
        let mut roll = self.roll();
        let mut count = 0;
        loop {
            let line = timeout_at(Instant::now() + STREAM_IDLE, lines.next())
                .await
                .map_err(|_elapsed| Failure::Endless)??
                .ok_or(Failure::Closed)?;
            let line = decode::text(&line);
            let event = match serde_json::from_str::<Event<'_>>(&line) {
                Ok(event) => event,
                Err(error) => match wire::in_stream(&line) {
                    Some(failure) => return Err(failure),
                    None => {
                        let (what, error) = ("an event of the list", error.to_string());
                        return Err(Failure::Undecodable { what, error });
                    }
                },
            };
            let json = event.object.get();
            match &*event.kind {
                "ADDED" | "MODIFIED" => self.listed(json, &mut roll),
                // It went while the list was on its way.
                "DELETED" => match self.decoder.decode(json) {
                    Ok(object) => self.unlisted(object.key(), &mut roll),
                    Err(ObjectError { key: Some(key), .. }) => self.unlisted(&key, &mut roll),
                    Err(_unreadable) => roll.unreadable += 1,
                },
                "BOOKMARK" => {
                    if let Ok(bookmark) = serde_json::from_str::<Bookmark>(json)
                        && bookmark.ends_list()
                    {
                        let version = bookmark.metadata.resource_version.unwrap_or_default();
                        self.complete(&version, roll);
                        return Ok(());
                    }
                }
                "ERROR" => return Err(error_event(json)),
                _ => self.metrics.event(EventKind::Ignored),
            }
            count += 1;
            if count % BATCH == 0 {
                self.metrics.cached(&self.hub.store);
                tokio::task::yield_now().await;
            }
        }
    }

    fn unlisted(&self, key: &ObjectKey, roll: &mut Roll) {
        self.metrics.event(EventKind::Deleted);
        if let Some(seen) = &mut roll.seen {
            seen.remove(key);
        }
        self.hub.remove(key);
    }

    // --- watch

    /// Watches from the mark until that ends, one way or the other.
    async fn watch(&mut self) -> Failure {
        if let Some(failure) = self.look_again().await {
            return failure;
        }
        let Some(mark) = &self.mark else { return Failure::Suspect("there is no position") };
        let seconds = fastrand::u32(WATCH_SECONDS);
        let deadline = Deadline::new(seconds);
        match self.wire.watch(mark.version(), seconds).await {
            Ok(body) => {
                let _watching = self.metrics.watching();
                let lines = LineReader::new(body, self.options.max_line_bytes);
                self.follow(lines, deadline).await
            }
            Err(failure) => failure,
        }
    }

    async fn follow(&mut self, mut lines: LineReader, deadline: Deadline) -> Failure {
        self.publish(Progress::Synced);
        let opened = Instant::now();
        let mut count = 0;
        let failure = loop {
            let line = match timeout_at(deadline.at, lines.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => break Failure::Closed,
                Ok(Err(failure)) => break failure,
                Err(_elapsed) => {
                    break Failure::Deadline { what: "end of the watch", after: deadline.after };
                }
            };
            if let Err(failure) = self.line(&decode::text(&line)) {
                break failure;
            }
            self.metrics.cached(&self.hub.store);
            count += 1;
            if count % BATCH == 0 {
                tokio::task::yield_now().await;
            }
        };
        if opened.elapsed() >= HEALTHY {
            self.backoff.reset();
        }
        if count == 0 && opened.elapsed() >= SILENT {
            self.suspicion.get_or_insert(Suspicion::Behind);
        }
        failure
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        let Ok(event) = serde_json::from_str::<Event<'_>>(line) else {
            if let Some(failure) = wire::in_stream(line) {
                return Err(failure);
            }
            self.metrics.event(EventKind::Ignored);
            warn!("watch event cannot be read; the next watch begins with a list");
            self.suspicion = Some(Suspicion::Lost);
            return Ok(());
        };
        let json = event.object.get();
        match &*event.kind {
            "ADDED" | "MODIFIED" => self.changed(json),
            "DELETED" => self.deleted(json),
            "BOOKMARK" => self.bookmark(json),
            "ERROR" => return Err(error_event(json)),
            kind => {
                self.metrics.event(EventKind::Ignored);
                warn!(event = kind, "watch event of an unknown type");
            }
        }
        Ok(())
    }

    fn changed(&mut self, json: &str) {
        match self.decoder.decode(json) {
            Ok(object) => {
                let version = &object.header().resource_version;
                if self.is_past(version) {
                    self.metrics.event(EventKind::Ignored);
                    debug!(name = %object.key(), resource_version = %version, "old event ignored");
                    return;
                }
                trace!(name = %object.key(), resource_version = %version, "object changed");
                match self.hub.put(&object) {
                    Change::Applied => self.metrics.event(EventKind::Changed),
                    Change::None => self.metrics.event(EventKind::Ignored),
                }
                self.advance(version);
            }
            Err(error) => {
                self.quarantine(&error);
                // Its change is not lost: what is cached stays, and its next event replaces it.
                self.advance(error.resource_version.as_deref().unwrap_or_default());
            }
        }
    }

    fn deleted(&mut self, json: &str) {
        let (key, uid, version) = match self.decoder.decode(json) {
            Ok(object) => {
                let header = object.header();
                (header.key.clone(), header.uid.clone(), header.resource_version.clone())
            }
            Err(ObjectError { key: Some(key), uid, resource_version, .. }) => {
                (key, uid.unwrap_or_default(), resource_version.unwrap_or_default())
            }
            Err(error) => {
                self.quarantine(&error);
                self.suspicion = Some(Suspicion::Lost);
                return;
            }
        };
        // Judged against the object and not the mark: some servers send a deletion with the
        // version of the last change.
        let is_stale = self.hub.store.get(&key).is_some_and(|cached| {
            let cached = cached.header();
            let other = !uid.is_empty() && !cached.uid.is_empty() && uid != cached.uid;
            let newer = is_older(&version, &cached.resource_version);
            newer || (other && self.is_past(&version))
        });
        if is_stale {
            self.metrics.event(EventKind::Ignored);
            debug!(name = %key, resource_version = %version, "old deletion ignored");
        } else {
            trace!(name = %key, resource_version = %version, "object deleted");
            self.metrics.event(EventKind::Deleted);
            self.hub.remove(&key);
        }
        self.advance(&version);
    }

    fn bookmark(&mut self, json: &str) {
        self.metrics.event(EventKind::Bookmark);
        let version = serde_json::from_str::<Bookmark>(json)
            .ok()
            .and_then(|bookmark| bookmark.metadata.resource_version)
            .unwrap_or_default();
        if self.is_past(&version) {
            warn!(resource_version = version, "bookmark goes back; ignored");
            self.suspicion.get_or_insert(Suspicion::Behind);
        } else {
            self.advance(&version);
        }
    }

    fn quarantine(&self, error: &ObjectError) {
        self.metrics.event(EventKind::Quarantined);
        if self.hub.quarantine(error) {
            let name = error.key.as_ref().map(ObjectKey::to_string).unwrap_or_default();
            let resource_version = error.resource_version.as_deref().unwrap_or_default();
            warn!(name, resource_version, %error, "object cannot be read and is left out");
        }
    }

    fn is_past(&self, version: &str) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.is_past(version))
    }

    fn advance(&mut self, version: &str) {
        if let Some(mark) = &mut self.mark {
            mark.advance(version);
        }
    }

    /// What to do when the same line is over budget: a list may still get past it.
    fn long_line(&mut self) -> Step {
        let position = self.mark.as_ref().map(Mark::version).unwrap_or_default();
        if self.long_lines.1 != position {
            self.long_lines = (0, position.to_owned());
        }
        self.long_lines.0 += 1;
        if self.long_lines.0 > 1 { Step::Relist } else { Step::Again }
    }

    /// Follows up a suspicion before the next watch; a failure asks for a list.
    ///
    /// A watch from a position that the server has not reached yet, after a backup was restored,
    /// is silent until it has, and misses everything before.
    async fn look_again(&mut self) -> Option<Failure> {
        match self.suspicion.take()? {
            Suspicion::Lost => Some(Failure::Suspect("an event of the watch was lost")),
            Suspicion::Behind => {
                let mut slot = self.slot().await;
                let budget = self.options.max_page_bytes;
                // When this fails, the watch will too, and says why.
                let bytes = self.wire.page(Some(1), "", budget, &mut slot).await.ok()?;
                let text = decode::text(&bytes);
                let page: Page<'_> = serde_json::from_str(&text).ok()?;
                let version = page.metadata.unwrap_or_default().resource_version?;
                self.is_past(&version).then_some(Failure::Suspect("the server has gone back"))
            }
        }
    }
}

impl Roll {
    fn seen(&mut self, key: &ObjectKey) {
        if let Some(seen) = &mut self.seen {
            seen.insert(key.clone());
        }
    }
}

/// When a watch must have ended.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    after: Duration,
}

impl Deadline {
    fn new(seconds: u32) -> Self {
        let after = Duration::from_secs(seconds.into()) + WATCH_SLACK;
        Self { at: Instant::now() + after, after }
    }
}

fn error_event(json: &str) -> Failure {
    wire::in_stream(json).unwrap_or_else(|| Failure::Status {
        code: 500,
        reason: String::new(),
        message: "an error event that says nothing".to_owned(),
        retry_after: None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::informer::{
        Projection, Subscription,
        fixture::Fixture,
        script::{Asked, Open, Rig, change, settle, stored, widget},
    };

    fn names(stored: &[(&str, u64)]) -> Vec<(String, u64)> {
        stored.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
    }

    fn progress(subscription: &Subscription) -> Progress {
        subscription.progress().borrow().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_is_filled_by_pages_and_then_watched() {
        let mut rig = Rig::new();
        rig.key.labels = Some("app in (a, b)".into());
        rig.key.namespace = Some("ns".into());
        let mut subscription = rig.subscribe();

        let first = rig.script.list().await;
        assert_eq!(first.path, "/apis/example.com/v1/namespaces/ns/widgets");
        assert_eq!(first.accept, "application/json");
        assert_eq!(first.query["limit"], "500");
        assert_eq!(first.query["labelSelector"], "app%20in%20%28a%2C%20b%29");
        first.page(10, "more/1", &[widget("a", 1)]);
        // What a page brings is handed out before the list is complete.
        assert_eq!(change(&mut subscription).await, ("a".into(), 0, 1));
        let second = rig.script.list().await;
        assert_eq!(second.query["continue"], "more%2F1");
        let mut drained = Box::pin(subscription.drained());
        assert!(futures::poll!(&mut drained).is_pending());
        second.page(10, "", &[widget("b", 2)]);
        let watch = rig.script.watch(10).await;
        assert!(futures::poll!(&mut drained).is_pending());
        assert!(subscription.next().await.unwrap().initial);
        drained.await;

        assert_eq!(watch.query["allowWatchBookmarks"], "true");
        assert_eq!(watch.query["labelSelector"], "app%20in%20%28a%2C%20b%29");
        assert!((200..=230).contains(&watch.query["timeoutSeconds"].parse().unwrap()));
        let watch = watch.open();
        watch.event("MODIFIED", &widget("a", 11));
        watch.event("DELETED", &widget("b", 12));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
        assert_eq!(progress(&subscription), Progress::Synced);
        assert_eq!(stored(&subscription), names(&[("a", 11)]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_type_is_in_sync_at_once() {
        let mut rig = Rig::new();
        let subscription = rig.subscribe();

        rig.script.list().await.text(
            StatusCode::OK,
            r#"{"kind":"WidgetList","metadata":{"resourceVersion":"10"},"items":null}"#,
        );

        subscription.drained().await;
        rig.script.watch(10).await;
    }

    #[tokio::test(start_paused = true)]
    async fn metadata_alone_is_asked_for() {
        let mut rig = Rig::new();
        rig.key.projection = Projection::Keys;
        let mut subscription = rig.subscribe();

        let list = rig.script.list().await;
        let partial =
            |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1,application/json");
        assert_eq!(list.accept, partial("PartialObjectMetadataList"));
        list.page(10, "", &[Fixture::new("a").label("x", "y").json()]);

        let delta = subscription.next().await.unwrap();
        assert!(delta.new.unwrap().json().is_empty());
        assert_eq!(rig.script.watch(10).await.accept, partial("PartialObjectMetadata"));
        assert_eq!(subscription.store().bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_resumes_without_a_list() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;

        watch.event("MODIFIED", &widget("a", 11));
        watch.bookmark(20);
        watch.reset();
        let watch = rig.script.watch(20).await.open();
        watch.event("MODIFIED", &widget("a", 21));

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
        assert_eq!(change(&mut subscription).await, ("a".into(), 11, 21));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_cut_at_any_byte_loses_nothing() {
        let event = json!({"type": "MODIFIED", "object": widget("a", 11)}).to_string() + "\n";
        for end in (0..event.len()).step_by(7).chain([event.len() - 2, event.len() - 1]) {
            let mut rig = Rig::new();
            let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;

            watch.text(&event[..end]);
            settle().await;
            drop(watch);
            let watch = rig.script.watch(10).await.open();
            watch.text(&event);

            assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clean_end_is_followed_by_a_watch_at_once_but_not_in_a_loop() {
        let mut rig = Rig::new();
        let (_subscription, watch) = rig.synced(&[]).await;
        watch.bookmark(10);
        tokio::time::sleep(Duration::from_secs(200)).await;

        let ended = Instant::now();
        drop(watch);
        let mut watches = 0;
        while ended.elapsed() < Duration::from_secs(60) {
            rig.script.watch(10).await.text(StatusCode::OK, "");
            watches += 1;
            if watches == 1 {
                assert!(ended.elapsed() < Duration::from_millis(10));
            }
        }

        assert!(watches < 12, "{watches}");
    }

    /// After an expired position, a streaming list brings the store up to date.
    async fn check_relist(rig: &mut Rig, subscription: &mut Subscription) {
        let stream = rig.script.stream().await;
        assert_eq!(stream.query["resourceVersionMatch"], "NotOlderThan");
        assert_eq!(stream.query["allowWatchBookmarks"], "true");
        assert!(!stream.query.contains_key("resourceVersion"));
        let stream = stream.open();
        stream.event("ADDED", &widget("a", 1));
        stream.event("ADDED", &widget("c", 3));
        settle().await;
        assert_eq!(stored(subscription), names(&[("a", 1), ("b", 2), ("c", 3)]));
        stream.end_of_list(30);

        assert_eq!(change(subscription).await, ("c".into(), 0, 3));
        assert_eq!(change(subscription).await, ("b".into(), 2, 0));
        stream.event("MODIFIED", &widget("a", 31));
        assert_eq!(change(subscription).await, ("a".into(), 1, 31));
        assert_eq!(progress(subscription), Progress::Synced);
        drop(stream);
        rig.script.watch(31).await;
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_watch_in_its_stream_lists_once_and_deletes_what_is_gone() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.error(410, "Expired", "too old resource version");

        check_relist(&mut rig, &mut subscription).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_watch_by_its_status_lists_once_and_deletes_what_is_gone() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        drop(watch);
        rig.script.watch(10).await.refuse(410, "Gone", "too old resource version");

        check_relist(&mut rig, &mut subscription).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_streaming_lists_is_asked_for_one_once() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;

        watch.error(410, "Expired", "old");
        rig.script.stream().await.refuse(422, "Invalid", "sendInitialEvents is forbidden");
        rig.script.list().await.page(20, "", &[]);
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
        let watch = rig.script.watch(20).await.open();
        tokio::time::sleep(Duration::from_secs(2)).await;
        watch.error(410, "Expired", "old");

        rig.script.list().await.page(30, "", &[]);
        rig.script.watch(30).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_streaming_list_without_an_end_is_given_up() {
        let mut rig = Rig::new();
        let (subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.error(410, "Expired", "old");
        let stream = rig.script.stream().await.open();
        stream.event("ADDED", &widget("a", 1));
        stream.bookmark(20);
        let started = Instant::now();
        let list = rig.script.list().await;

        assert!(started.elapsed() < Duration::from_secs(15));
        assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 2)]));
        list.page(30, "", &[widget("a", 1)]);
        rig.script.watch(30).await;
        assert_eq!(stored(&subscription), names(&[("a", 1)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_streaming_list_that_is_cut_deletes_nothing() {
        let mut rig = Rig::new();
        let (subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.error(410, "Expired", "old");
        let stream = rig.script.stream().await.open();
        stream.event("ADDED", &widget("a", 15));
        settle().await;
        stream.reset();
        let list = rig.script.list().await;

        assert_eq!(stored(&subscription), names(&[("a", 15), ("b", 2)]));
        list.page(30, "", &[widget("a", 15), widget("b", 2)]);
        rig.script.watch(30).await;
        assert_eq!(stored(&subscription), names(&[("a", 15), ("b", 2)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_on_its_third_page_begins_anew_and_deletes_nothing() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;
        watch.error(410, "Expired", "old");
        rig.script.stream().await.refuse(400, "BadRequest", "unknown parameter");

        rig.script.list().await.page(20, "1", &[widget("c", 3)]);
        rig.script.list().await.page(20, "2", &[widget("d", 4)]);
        rig.script.list().await.refuse(500, "InternalError", "etcd is away");
        let again = rig.script.list().await;
        assert_eq!(again.query.get("continue"), None);
        assert_eq!(stored(&subscription).len(), 4);
        assert!(
            matches!(progress(&subscription), Progress::Stale(error) if error.contains("etcd is away"))
        );
        again.page(21, "", &[widget("a", 1), widget("c", 3)]);
        rig.script.watch(21).await;

        assert_eq!(stored(&subscription), names(&[("a", 1), ("c", 3)]));
        assert_eq!(change(&mut subscription).await, ("c".into(), 0, 3));
        // d came and went before anybody looked.
        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_whose_token_expires_is_made_in_one_piece() {
        let mut rig = Rig::new();
        let mut subscription = rig.subscribe();

        rig.script.list().await.page(10, "1", &[widget("a", 1), widget("b", 2)]);
        rig.script.list().await.refuse(410, "Expired", "the token has expired");
        let whole = rig.script.list().await;
        assert_eq!(whole.query.get("limit"), None);
        whole.page(20, "", &[widget("b", 2)]);
        rig.script.watch(20).await;

        assert_eq!(stored(&subscription), names(&[("b", 2)]));
        assert_eq!(change(&mut subscription).await, ("b".into(), 0, 2));
        subscription.drained().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_over_budget_is_asked_for_in_smaller_ones() {
        let options = InformerOptions { max_page_bytes: 1000, ..InformerOptions::default() };
        let mut rig = Rig::with(options);
        let _subscription = rig.subscribe();
        let items: Vec<_> = (0..50).map(|index| widget(&index.to_string(), 1)).collect();

        rig.script.list().await.page(10, "", &items);

        assert_eq!(rig.script.list().await.query["limit"], "125");
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_type_is_asked_for_again_and_never_purged() {
        let hints = Arc::new(AtomicUsize::new(0));
        let heard = hints.clone();
        let mut rig = Rig::with(InformerOptions {
            on_missing: Some(Arc::new(move |_identity| {
                heard.fetch_add(1, Ordering::Relaxed);
            })),
            ..InformerOptions::default()
        });
        let (subscription, watch) = rig.synced(&[widget("a", 1)]).await;
        drop(watch);

        let started = Instant::now();
        let mut at = Vec::new();
        for _ in 0..15 {
            rig.script.watch(10).await.text(StatusCode::NOT_FOUND, "404 page not found");
            at.push(started.elapsed());
        }

        settle().await;
        assert!(at[1] - at[0] <= Duration::from_millis(6), "{at:?}");
        assert!(at[4] <= Duration::from_millis(100), "{at:?}");
        assert!(at[14] - at[13] >= Duration::from_secs(20), "{at:?}");
        assert_eq!(stored(&subscription), names(&[("a", 1)]));
        assert_eq!(hints.load(Ordering::Relaxed), 15);
        assert!(matches!(progress(&subscription), Progress::Stale(error) if error.contains("404")));

        // A word that it is served cuts the wait short.
        rig.set.type_served(&rig.key.identity);
        let before = Instant::now();
        let _watch = rig.script.watch(10).await.open();
        assert!(before.elapsed() < Duration::from_millis(1));
        settle().await;
        assert_eq!(progress(&subscription), Progress::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_that_is_missing_at_first_is_listed_within_milliseconds_of_coming() {
        let mut rig = Rig::new();
        let subscription = rig.subscribe();
        let started = Instant::now();

        for _ in 0..3 {
            rig.script.list().await.text(StatusCode::NOT_FOUND, "404 page not found");
        }
        assert_eq!(progress(&subscription), Progress::Syncing(None));
        rig.script.list().await.page(10, "", &[]);

        subscription.drained().await;
        assert!(started.elapsed() < Duration::from_millis(40));
    }

    #[tokio::test(start_paused = true)]
    async fn a_forbidden_type_is_asked_for_rarely_and_names_the_rule() {
        let mut rig = Rig::new();
        let subscription = rig.subscribe();
        let message = "widgets.example.com is forbidden: User \"u\" cannot list resource";

        for _ in 0..4 {
            rig.script.list().await.refuse(403, "Forbidden", message);
        }
        settle().await;
        let Progress::Forbidden(reason) = progress(&subscription) else { panic!("not forbidden") };
        assert!(reason.contains(message), "{reason}");
        assert!(reason.contains("grant list and watch on widgets.example.com"), "{reason}");

        rig.set.type_served(&rig.key.identity);
        let refused = Instant::now();
        let list = rig.script.list().await;
        assert!(refused.elapsed() >= Duration::from_secs(29));
        list.page(10, "", &[]);
        let _watch = rig.script.watch(10).await.open();
        settle().await;
        assert_eq!(progress(&subscription), Progress::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_revoked_watch_keeps_its_store() {
        let mut rig = Rig::new();
        let (subscription, watch) = rig.synced(&[widget("a", 1)]).await;

        drop(watch);
        rig.script.watch(10).await.refuse(403, "Forbidden", "cannot watch");
        settle().await;

        assert!(matches!(progress(&subscription), Progress::Forbidden(_)));
        assert_eq!(stored(&subscription), names(&[("a", 1)]));
        rig.script.watch(10).await.open();
    }

    #[tokio::test(start_paused = true)]
    async fn a_storage_that_is_initializing_is_asked_again_within_milliseconds() {
        let mut rig = Rig::new();
        let (subscription, watch) = rig.synced(&[]).await;
        drop(watch);

        let started = Instant::now();
        for _ in 0..3 {
            let open = rig.script.watch(10).await.head(StatusCode::TOO_MANY_REQUESTS, Some(1));
            open.text(r#"{"kind":"Status","code":429,"message":"storage is (re)initializing"}"#);
        }
        rig.script.watch(10).await.open();

        assert!(started.elapsed() < Duration::from_millis(40));
        assert_eq!(progress(&subscription), Progress::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttling_server_is_given_its_time() {
        let mut rig = Rig::new();
        let _subscription = rig.subscribe();

        let open = rig.script.list().await.head(StatusCode::TOO_MANY_REQUESTS, Some(7));
        drop(open);
        let refused = Instant::now();
        rig.script.list().await;

        assert!(refused.elapsed() >= Duration::from_secs(7));
        assert!(refused.elapsed() < Duration::from_secs(8));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_over_budget_is_cut_and_then_got_past_by_a_list() {
        let options = InformerOptions { max_line_bytes: 1000, ..InformerOptions::default() };
        let mut rig = Rig::with(options);
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;

        let long = async |watch: Open| {
            for _ in 0..20 {
                watch.chunk(&[b'x'; 100]);
            }
            watch.dropped().await;
        };
        long(watch).await;
        long(rig.script.watch(10).await.open()).await;
        let stream = rig.script.stream().await.open();
        stream.event("ADDED", &widget("a", 15));
        stream.end_of_list(20);

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 15));
    }

    #[tokio::test(start_paused = true)]
    async fn old_and_repeated_events_change_nothing() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.event("MODIFIED", &widget("a", 12));
        watch.event("MODIFIED", &widget("a", 12));
        watch.event("MODIFIED", &widget("a", 11));
        watch.event("DELETED", &widget("b", 13));
        watch.event("ADDED", &widget("b", 2));
        watch.event("DELETED", &widget("a", 11));
        watch.event("WHATEVER", &widget("a", 20));
        watch.bookmark(5);
        watch.event("MODIFIED", &widget("a", 14));

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 14));
        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
        assert_eq!(stored(&subscription), names(&[("a", 14)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_with_the_version_of_the_last_change_counts() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.event("MODIFIED", &widget("b", 12));
        watch.event("DELETED", &widget("a", 1));

        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_created_again_is_seen_with_both_its_uids() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;

        watch.event("DELETED", &widget("a", 11));
        watch.event("ADDED", &Fixture::new("a").uid("second").version(12).json());
        settle().await;
        let delta = subscription.next().await.unwrap();

        assert_eq!(&*delta.old.unwrap().header().uid, "uid-a");
        assert_eq!(&*delta.new.unwrap().header().uid, "second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bookmark_that_goes_back_is_ignored_and_looked_into() {
        let mut rig = Rig::new();
        let (_subscription, watch) = rig.synced(&[]).await;

        watch.bookmark(50);
        watch.bookmark(40);
        settle().await;
        drop(watch);

        // The server says where it is: ahead of us.
        let probe = rig.script.list().await;
        assert_eq!(probe.query["limit"], "1");
        probe.page(60, "", &[]);
        rig.script.watch(50).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_restored_from_a_backup_is_listed_again() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;
        watch.event("ADDED", &widget("b", 1000));
        assert_eq!(change(&mut subscription).await, ("b".into(), 0, 1000));
        drop(watch);

        // A watch from a position that the server has not reached yet is silent.
        let silent = rig.script.watch(1000).await.open();
        silent.dropped().await;
        drop(silent);
        rig.script.list().await.page(500, "more", &[widget("a", 1)]);
        let stream = rig.script.stream().await.open();
        stream.event("ADDED", &widget("a", 1));
        stream.end_of_list(501);
        stream.event("MODIFIED", &widget("a", 502));

        assert_eq!(change(&mut subscription).await, ("b".into(), 1000, 0));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 502));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_object_hurts_nobody_else_and_itself_only_until_it_is_good() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        let bad = Fixture::new("a").version(11).set("labels", json!(["x"])).json();
        watch.event("MODIFIED", &bad);
        watch.event("MODIFIED", &widget("b", 12));
        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
        assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));
        let status = &rig.set.status()[0];
        assert_eq!(status.quarantined[0].field, "metadata.labels");
        assert_eq!(status.quarantined[0].key.as_ref().unwrap().to_string(), "a");

        // It has been seen: the watch goes on behind it, and a list finds it present.
        drop(watch);
        rig.script.watch(12).await.refuse(410, "Expired", "old");
        let stream = rig.script.stream().await.open();
        stream.event("ADDED", &bad);
        stream.event("ADDED", &widget("b", 12));
        stream.end_of_list(20);
        settle().await;
        assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));

        stream.event("MODIFIED", &widget("a", 21));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 21));
        assert!(rig.set.status()[0].quarantined.is_empty());

        stream.event("DELETED", &Fixture::new("a").version(22).set("labels", json!(1)).json());
        assert_eq!(change(&mut subscription).await, ("a".into(), 21, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_every_wrong_kind_do_not_stop_a_list() {
        let mut rig = Rig::new();
        let mut subscription = rig.subscribe();

        let wrong = [json!(null), json!(7), json!({}), json!({"metadata": {"name": 7}})];
        rig.script.list().await.page(10, "", &[&wrong[..], &[widget("a", 1)]].concat());

        assert_eq!(change(&mut subscription).await, ("a".into(), 0, 1));
        subscription.drained().await;
        rig.script.watch(10).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_with_an_object_that_has_no_name_deletes_nothing() {
        let mut rig = Rig::new();
        let (subscription, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.error(410, "Expired", "old");
        let stream = rig.script.stream().await.open();
        stream.event("ADDED", &widget("a", 15));
        stream.event("ADDED", &json!({"metadata": {"name": ["b"]}}));
        stream.end_of_list(20);
        settle().await;

        assert_eq!(stored(&subscription), names(&[("a", 15), ("b", 2)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_is_no_event_is_skipped_and_made_up_for_by_a_list() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;

        watch.text("{\"type\":\"MODIFIED\",\"object\":{\"metadata\n");
        watch.chunk(b"\xff\xfe\n");
        watch.event("MODIFIED", &widget("a", 12));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 12));
        drop(watch);

        rig.script.stream().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_no_list_is_repeated() {
        let mut rig = Rig::new();
        let subscription = rig.subscribe();

        rig.script.list().await.text(StatusCode::OK, "<html>");
        settle().await;
        assert!(matches!(progress(&subscription), Progress::Syncing(Some(_))));

        rig.script.list().await.page(10, "", &[]);
        subscription.drained().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_never_answered_is_given_up_and_holds_up_nobody() {
        let options = InformerOptions { max_concurrent_lists: 1, ..InformerOptions::default() };
        let mut rig = Rig::with(options);
        let _first = rig.subscribe();
        let black_hole = rig.script.list().await;
        let started = Instant::now();

        rig.key.namespace = Some("ns".into());
        let second = rig.subscribe();
        rig.script.list().await.page(10, "", &[]);
        second.drained().await;
        assert!(started.elapsed() <= Duration::from_secs(1));
        let _watch = rig.script.watch(10).await;

        black_hole.abandoned().await;
        let waited = started.elapsed();
        assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(31));
        rig.script.list().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_stops_in_the_middle_is_given_up() {
        let mut rig = Rig::new();
        let _subscription = rig.subscribe();

        let half = rig.script.list().await.open();
        half.text(r#"{"items":[{"#);
        let started = Instant::now();
        half.dropped().await;

        assert!(started.elapsed() < Duration::from_secs(31));
        rig.script.list().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_is_given_up_before_a_load_balancer_would() {
        let mut rig = Rig::new();
        let (_subscription, watch) = rig.synced(&[]).await;
        let opened = Instant::now();

        watch.dropped().await;

        let lasted = opened.elapsed();
        assert!(lasted >= Duration::from_secs(204) && lasted < Duration::from_secs(240));
        let probe: Asked = rig.script.list().await;
        probe.page(10, "", &[]);
        rig.script.watch(10).await;
    }
}
