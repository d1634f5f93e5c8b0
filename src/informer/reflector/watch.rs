//! Watches of the reflector: later changes, from the position of a list or an earlier watch.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::{debug, trace, warn};

use super::{BATCH, Reflector, WatchCheck, WatchDeadline};
use crate::{
    informer::{
        InformerProgress, Object, ObjectError,
        classify::{NextRequest, RequestFailure},
        decode,
        metrics::EventKind,
        reader::LineReader,
        shared_informer::StoreChange,
        wire::{self, Bookmark, Page, WatchLine, error_event},
    },
    resume_version::{ResumeVersion, SILENT},
};

/// Lifetime after which a watch counts as healthy.
const HEALTHY: Duration = Duration::from_secs(1);
/// Wait before a watch counts as recovered: a server that cannot resume from the position reports
/// it in the first line.
const FIRST_LINE: Duration = Duration::from_millis(50);

impl Reflector {
    /// Watches from the resume version until the watch ends or fails.
    pub(super) async fn watch(&mut self) -> RequestFailure {
        if let Some(failure) = self.run_due_check().await {
            return failure;
        }
        let Some(resume_version) = &self.resume_version else {
            return RequestFailure::Suspect("the watch has no resourceVersion to resume from");
        };
        let deadline = WatchDeadline::random();
        let mut due = self.fill.take_due(&self.informer, &self.lists);
        let opened = tokio::select! {
            biased;
            slot = &mut due => {
                self.begin_fill(slot);
                return RequestFailure::Wanted;
            }
            opened = self.wire.watch(resume_version.version(), deadline.seconds) => opened,
        };
        self.fill.keep_due(due);
        match opened {
            Ok(body) => {
                let _watching = self.metrics.watching();
                let lines = LineReader::new(body, self.options.max_line_bytes);
                self.follow(lines, deadline, false).await
            }
            Err(failure) => failure,
        }
    }

    /// Reads an open watch until it ends. `proven` is true if a list has just given its position.
    pub(super) async fn follow(
        &mut self,
        mut lines: LineReader,
        deadline: WatchDeadline,
        proven: bool,
    ) -> RequestFailure {
        self.delays.answered();
        let opened = Instant::now();
        // A watch that failed has recovered once it passes its first line.
        let failed = matches!(
            *self.informer.progress().borrow(),
            InformerProgress::Stale(_)
                | InformerProgress::Forbidden(_)
                | InformerProgress::ConversionFailed(_)
        );
        let mut announced = proven || !failed;
        if announced {
            self.publish(InformerProgress::Synced);
        }
        let mut count = 0;
        let mut due = self.fill.take_due(&self.informer, &self.lists);
        let failure = loop {
            let until = if announced { deadline.at } else { opened + FIRST_LINE };
            let next = tokio::select! {
                biased;
                slot = &mut due => {
                    self.begin_fill(slot);
                    break RequestFailure::Wanted;
                }
                next = timeout_at(until, lines.next()) => next,
            };
            match next {
                Ok(Ok(Some(line))) => {
                    if let Err(failure) = self.line(&decode::text(&line)) {
                        break failure;
                    }
                    self.metrics.cached(&self.informer.store);
                    count += 1;
                    if count % BATCH == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                Ok(Ok(None)) => break RequestFailure::Closed,
                Ok(Err(failure)) => break failure,
                Err(_elapsed) if announced => {
                    break RequestFailure::Deadline {
                        what: "end of the watch",
                        after: deadline.after,
                    };
                }
                Err(_elapsed) => {}
            }
            if !announced {
                announced = true;
                self.publish(InformerProgress::Synced);
            }
        };
        if failure != RequestFailure::Wanted {
            self.fill.keep_due(due);
        }
        if opened.elapsed() >= HEALTHY {
            self.delays.reset();
        }
        if count == 0 && opened.elapsed() >= SILENT {
            self.due_check.get_or_insert(WatchCheck::Behind);
        }
        failure
    }

    /// Applies one line of the watch. Returns a failure if no later line may be applied.
    fn line(&mut self, line: &str) -> Result<(), RequestFailure> {
        // An object that decodes has no text after its end, so that the line has no other member.
        if let Some(json) = wire::changed_object(line)
            && let Ok(object) = self.decode(json)
        {
            self.changed(&object, json);
            return Ok(());
        }
        let Ok(event) = serde_json::from_str::<WatchLine<'_>>(line) else {
            if let Some(failure) = wire::in_stream(line) {
                return Err(failure);
            }
            self.metrics.event(EventKind::Ignored);
            return Err(self.lost("not a watch event"));
        };
        let json = event.object.get();
        match &*event.kind {
            "ADDED" | "MODIFIED" => match self.decode(json) {
                Ok(object) => self.changed(&object, json),
                Err(error) => {
                    self.quarantine(&error);
                    // The change is not lost: the cached object stays, and the next event replaces
                    // it.
                    self.advance(error.resource_version.as_deref().unwrap_or_default());
                }
            },
            "DELETED" => self.deleted(json)?,
            "BOOKMARK" => self.bookmark(json),
            "ERROR" => return Err(error_event(json)),
            kind => {
                self.metrics.event(EventKind::Ignored);
                warn!(event = kind, "watch event of an unknown type");
            }
        }
        Ok(())
    }

    /// Stores an object that was decoded from `json`, unless it is older than the watch or the cache.
    fn changed(&mut self, object: &Object, json: &str) {
        let header = object.header();
        let version = &header.resource_version;
        // A list that failed in its middle may have stored a newer state.
        let is_overtaken = self.fill.has_failed()
            && self.informer.store.stored(&header.key).is_some_and(|cached| {
                self.order.is_older(version, &cached.header().resource_version)
            });
        if is_overtaken || self.is_past(version) {
            self.metrics.event(EventKind::Ignored);
            debug!(name = %object.key(), resource_version = %version, "old event ignored");
            return;
        }
        trace!(name = %object.key(), resource_version = %version, "object changed");
        match self.put(object, json) {
            Ok(StoreChange::Applied) => self.metrics.event(EventKind::Changed),
            Ok(StoreChange::None | StoreChange::Incomplete) => {
                self.metrics.event(EventKind::Ignored);
            }
            Err(error) => self.quarantine(&error),
        }
        self.advance(version);
    }

    /// Ends the watch after an event that no object can be assigned to. No later event replaces it,
    /// and a watch may last for minutes, so a list follows before the next watch.
    fn lost(&mut self, error: &str) -> RequestFailure {
        self.due_check = Some(WatchCheck::Lost);
        RequestFailure::Undecodable { what: "an event of the watch", error: error.to_owned() }
    }

    fn deleted(&mut self, json: &str) -> Result<(), RequestFailure> {
        let (key, uid, version) = match self.decoder.decode(json, |_| false) {
            Ok(object) => {
                let header = object.header();
                (header.key.clone(), header.uid.clone(), header.resource_version.clone())
            }
            Err(ObjectError { key: Some(key), uid, resource_version, .. }) => {
                (key, uid.unwrap_or_default(), resource_version.unwrap_or_default())
            }
            Err(error) => {
                self.quarantine(&error);
                return Err(self.lost("deletion of an object without a name"));
            }
        };
        // Compared with the object instead of the resume version: some servers send a deletion with
        // the version of the last change.
        let is_stale = self.informer.store.stored(&key).is_some_and(|cached| {
            let cached = cached.header();
            let other = !uid.is_empty() && !cached.uid.is_empty() && uid != cached.uid;
            let newer = self.order.is_older(&version, &cached.resource_version);
            newer || (other && self.is_past(&version))
        });
        if is_stale {
            self.metrics.event(EventKind::Ignored);
            debug!(name = %key, resource_version = %version, "old deletion ignored");
        } else {
            trace!(name = %key, resource_version = %version, "object deleted");
            self.metrics.event(EventKind::Deleted);
            self.informer.remove(&key);
        }
        self.advance(&version);
        Ok(())
    }

    fn bookmark(&mut self, json: &str) {
        self.metrics.event(EventKind::Bookmark);
        let version = serde_json::from_str::<Bookmark>(json)
            .ok()
            .and_then(|bookmark| bookmark.metadata.resource_version)
            .unwrap_or_default();
        if self.is_past(&version) {
            warn!(resource_version = version, "bookmark is older than the last event; ignored");
            self.due_check.get_or_insert(WatchCheck::Behind);
        } else {
            self.advance(&version);
        }
    }

    /// Returns the next step after a line over budget: a list if the line repeats, since a list
    /// may succeed where this line fails.
    pub(super) fn long_line(&mut self) -> NextRequest {
        let position = self.resume_version.as_ref().map(ResumeVersion::version).unwrap_or_default();
        if self.long_lines.1 != position {
            self.long_lines = (0, position.to_owned());
        }
        self.long_lines.0 += 1;
        if self.long_lines.0 > 1 { NextRequest::Relist } else { NextRequest::Again }
    }

    /// Runs a due check before the next watch; a returned failure requires a list.
    async fn run_due_check(&mut self) -> Option<RequestFailure> {
        match self.due_check.take()? {
            WatchCheck::Lost => Some(RequestFailure::Suspect("an event of the watch was lost")),
            WatchCheck::Behind => {
                let mut slot = self.slot().await;
                let budget = self.options.max_page_bytes;
                // If this fails, so will the watch, which reports the error.
                let whole = self.wire.page(Some(1), "", budget, &mut slot).await.ok()?;
                let text = decode::text(&whole.bytes);
                let page: Page<'_> = serde_json::from_str(&text).ok()?;
                let version = page.resource_version();
                let contradicted = !version.is_empty()
                    && self.resume_version.as_ref().is_some_and(|it| it.is_contradicted(version));
                contradicted.then_some(RequestFailure::Suspect(
                    "the server's resourceVersion is older than that of the watch",
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests;
