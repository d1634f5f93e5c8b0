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
