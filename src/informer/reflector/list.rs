//! Lists of the reflector: by pages, and as a streaming list.

use std::{collections::HashSet, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::{BATCH, Reflector, WatchDeadline, fill::Fill};
use crate::{
    informer::{
        ObjectError, ObjectKey,
        classify::{Cause, RequestFailure, RequestPhase},
        decode,
        metrics::EventKind,
        reader::LineReader,
        shared_informer::OngoingList,
        wire::{self, Bookmark, ListSlot, Page, WatchLine, error_event},
    },
    list_page::ContinueTokens,
    resume_version::ResumeVersion,
};

/// Silence after which a streaming list counts as endless.
const STREAM_IDLE: Duration = Duration::from_secs(10);

/// Failures of one page after which a list begins anew: its token may be the cause.
const PAGE_FAILURES_MAX: u32 = 5;

/// State of a list in progress.
pub(super) struct Scan {
    list: OngoingList,
    /// Objects that cannot be decoded, but named.
    named: HashSet<ObjectKey>,
    /// Number of objects whose key cannot be read.
    unreadable: usize,
    /// Token of the next page; `None` for the first page.
    token: Option<String>,
    tokens: ContinueTokens,
    /// Failures of the next page.
    failures: u32,
}

impl Reflector {
    /// Lists by pages. A list that fails continues at its token.
    pub(super) async fn list(&mut self) -> Result<(), (RequestPhase, RequestFailure)> {
        let mut slot = self.slot().await;
        let mut scan = self.ongoing.take().unwrap_or_else(|| self.begin());
        loop {
            let failure = match self.page(&mut scan, &mut slot).await {
                Ok(None) => continue,
                Ok(Some(version)) => {
                    self.complete(&version, scan);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            if matches!(failure, RequestFailure::TooLong { .. }) && self.listing.shrink() {
                self.metrics.restarted(Cause::TooLong);
                debug!(error = %failure, limit = self.listing.limit, "page is requested in parts");
                // A long response may have lost its slot.
                drop(slot);
                slot = self.slot().await;
                continue;
            }
            let continued = scan.token.is_some();
            scan.failures += 1;
            if continued && scan.failures < PAGE_FAILURES_MAX {
                self.ongoing = Some(scan);
            }
            return Err((RequestPhase::List { continued }, failure));
        }
    }

    /// Requests the next page of a list and applies its objects. Returns the position of the list
    /// after the last page.
    async fn page(
        &mut self,
        scan: &mut Scan,
        slot: &mut ListSlot,
    ) -> Result<Option<String>, RequestFailure> {
        let limit = (!self.listing.whole).then_some(self.listing.limit);
        let budget = self.options.max_page_bytes.min(self.options.max_list_bytes);
        let begun = Instant::now();
        let token = scan.token.as_deref().unwrap_or_default();
        let body = self.wire.page(limit, token, budget, slot).await?;
        let is_prompt = begun.elapsed() < self.options.request_deadline / 4;
        // Pages grow again while twice the size would still be answered in time, and fit.
        if is_prompt && body.bytes.len() < budget / 4 {
            let most = self.options.page_limit.max(1);
            self.listing.limit = self.listing.limit.saturating_mul(2).min(most);
        }
        let text = decode::text(&body.bytes);
        let page: Page<'_> = serde_json::from_str(&text).map_err(|error| {
            RequestFailure::Undecodable { what: "a page of the list", error: error.to_string() }
        })?;
        for (index, item) in page.items.iter().flatten().enumerate() {
            self.listed(item.get(), scan);
            if index % BATCH == BATCH - 1 {
                tokio::task::yield_now().await;
            }
        }
        self.metrics.cached(&self.informer.store);
        scan.failures = 0;
        scan.token = scan.tokens.after(&page).map_err(RequestFailure::EndlessPages)?;
        Ok(scan.token.is_none().then(|| page.resource_version().to_owned()))
    }

    pub(super) fn begin(&self) -> Scan {
        Scan {
            list: self.informer.begin_list(),
            named: HashSet::new(),
            unreadable: 0,
            token: None,
            tokens: ContinueTokens::default(),
            failures: 0,
        }
    }

    pub(super) fn listed(&mut self, json: &str, scan: &mut Scan) {
        match self.decode(json).and_then(|object| self.put(&object, json)) {
            Ok(_change) => self.metrics.event(EventKind::Listed),
            Err(error) => {
                match &error.key {
                    // The object exists, even if it cannot be decoded.
                    Some(key) => {
                        self.informer.store.touch(key, scan.list.number);
                        scan.named.insert(key.clone());
                    }
                    None => scan.unreadable += 1,
                }
                self.quarantine(&error);
            }
        }
    }

    /// Deletes the objects that a complete list lacks, and sets the resume version.
    pub(super) fn complete(&mut self, version: &str, scan: Scan) {
        if scan.unreadable == 0 {
            for key in self.informer.store.not_in(scan.list.number) {
                self.informer.remove(&key);
            }
            self.informer.retain_quarantined(|key| scan.named.contains(key));
        } else {
            // Each unreadable object could be one of the missing ones.
            let unreadable = scan.unreadable;
            warn!(unreadable, "list has objects without a name; no object is deleted");
        }
        self.metrics.cached(&self.informer.store);
        self.metrics.listed();
        self.delays.answered();
        self.listing.limit = self.options.page_limit.max(1);
        self.listing.whole = false;
        self.listing.pages = false;
        self.due_check = None;
        self.ongoing = None;
        self.fill = Fill::default();
        let resume_version = ResumeVersion::new(version, self.order);
        self.informer.store.set_version(resume_version.number());
        self.resume_version = Some(resume_version);
        if version.is_empty() {
            // A server without versions has no watch cache and no streaming lists.
            self.listing.never_stream = true;
        }
        self.informer.complete(scan.list);
        debug!(resource_version = version, objects = self.informer.store.len(), "list is complete");
    }

    /// Lists with a streaming list, and continues it as a watch.
    pub(super) async fn stream(&mut self) -> (RequestPhase, RequestFailure) {
        let mut slot = self.slot().await;
        let deadline = WatchDeadline::random();
        let body = match self.wire.stream(deadline.seconds, &mut slot).await {
            Ok(body) => body,
            Err(failure) => return (RequestPhase::Stream, failure),
        };
        let _watching = self.metrics.watching();
        let mut lines = LineReader::new(body, self.options.max_line_bytes);
        if let Err(failure) = self.initial_events(&mut lines, &mut slot).await {
            return (RequestPhase::Stream, failure);
        }
        drop(slot);
        (RequestPhase::Watch, self.follow(lines, deadline, true).await)
    }

    async fn initial_events(
        &mut self,
        lines: &mut LineReader,
        slot: &mut ListSlot,
    ) -> Result<(), RequestFailure> {
        let mut scan = self.begin();
        let mut count = 0;
        loop {
            let line = async {
                let line = timeout(STREAM_IDLE, lines.next()).await;
                line.map_err(|_elapsed| RequestFailure::Endless)??.ok_or(RequestFailure::Closed)
            };
            let line = slot.wait(line).await?;
            let line = decode::text(&line);
            let event = match serde_json::from_str::<WatchLine<'_>>(&line) {
                Ok(event) => event,
                Err(error) => match wire::in_stream(&line) {
                    Some(failure) => return Err(failure),
                    None => {
                        let (what, error) = ("an event of the list", error.to_string());
                        return Err(RequestFailure::Undecodable { what, error });
                    }
                },
            };
            let json = event.object.get();
            match &*event.kind {
                "ADDED" | "MODIFIED" => self.listed(json, &mut scan),
                // The object was deleted during the list.
                "DELETED" => match self.decoder.decode(json, |_| false) {
                    Ok(object) => self.unlisted(object.key(), &mut scan),
                    Err(ObjectError { key: Some(key), .. }) => self.unlisted(&key, &mut scan),
                    Err(_unreadable) => scan.unreadable += 1,
                },
                "BOOKMARK" => {
                    if let Ok(bookmark) = serde_json::from_str::<Bookmark>(json)
                        && bookmark.ends_list()
                    {
                        let version = bookmark.metadata.resource_version.unwrap_or_default();
                        self.complete(&version, scan);
                        return Ok(());
                    }
                }
                "ERROR" => return Err(error_event(json)),
                _ => self.metrics.event(EventKind::Ignored),
            }
            count += 1;
            if count % BATCH == 0 {
                self.metrics.cached(&self.informer.store);
                tokio::task::yield_now().await;
            }
        }
    }

    fn unlisted(&self, key: &ObjectKey, scan: &mut Scan) {
        self.metrics.event(EventKind::Deleted);
        scan.named.remove(key);
        self.informer.remove(key);
    }
}

#[cfg(test)]
mod tests;
