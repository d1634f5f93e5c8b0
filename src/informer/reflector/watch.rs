//! Watches of the reflector: later changes, from the position of a list or an earlier watch.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, trace, warn};

use super::{BATCH, Deadline, Reflector, Suspicion};
use crate::informer::{
    ObjectError, Progress,
    classify::{Failure, Step},
    decode,
    metrics::EventKind,
    reader::LineReader,
    resume_version::ResumeVersion,
    shared_informer::Change,
    wire::{self, Bookmark, Event, Page, error_event},
};

/// Lifetime after which a watch counts as healthy.
const HEALTHY: Duration = Duration::from_secs(1);
/// Silence after which a watch may be ahead of its server: bookmarks arrive every minute.
const SILENT: Duration = Duration::from_secs(90);
/// Wait before a watch counts as recovered: a server that cannot resume from the position reports
/// it in the first line.
const FIRST_LINE: Duration = Duration::from_millis(50);

impl Reflector {
    /// Watches from the resume version until the watch ends or fails.
    pub(super) async fn watch(&mut self) -> Failure {
        if let Some(failure) = self.check_suspicion().await {
            return failure;
        }
        let Some(resume_version) = &self.resume_version else {
            return Failure::Suspect("the watch has no position");
        };
        let deadline = Deadline::random();
        match self.wire.watch(resume_version.version(), deadline.seconds).await {
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
        deadline: Deadline,
        proven: bool,
    ) -> Failure {
        self.delays.answered();
        let opened = Instant::now();
        // A watch that failed has recovered once it passes its first line.
        let failed = matches!(
            *self.informer.progress().borrow(),
            Progress::Stale(_) | Progress::Forbidden(_) | Progress::ConversionFailed(_)
        );
        let mut announced = proven || !failed;
        if announced {
            self.publish(Progress::Synced);
        }
        let mut count = 0;
        let (informer, delay) = (self.informer.clone(), self.fill_delay());
        let mut wanted = pin!(async {
            informer.fill_wanted().await;
            sleep(delay).await;
        });
        let failure = loop {
            let until = if announced { deadline.at } else { opened + FIRST_LINE };
            let next = tokio::select! {
                biased;
                () = &mut wanted => break Failure::Wanted,
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
                Ok(Ok(None)) => break Failure::Closed,
                Ok(Err(failure)) => break failure,
                Err(_elapsed) if announced => {
                    break Failure::Deadline { what: "end of the watch", after: deadline.after };
                }
                Err(_elapsed) => {}
            }
            if !announced {
                announced = true;
                self.publish(Progress::Synced);
            }
        };
        if opened.elapsed() >= HEALTHY {
            self.delays.reset();
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
            return Err(self.lost("not a watch event"));
        };
        let json = event.object.get();
        match &*event.kind {
            "ADDED" | "MODIFIED" => self.changed(json),
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

    fn changed(&mut self, json: &str) {
        match self.decode(json) {
            Ok(object) => {
                let header = object.header();
                let version = &header.resource_version;
                // A list that failed in its middle may have stored a newer state.
                let is_overtaken = self.failed_fills > 0
                    && self.informer.store.stored(&header.key).is_some_and(|cached| {
                        let cached = cached.header();
                        cached.uid == header.uid
                            && self.order.is_older(version, &cached.resource_version)
                    });
                if is_overtaken || self.is_past(version) {
                    self.metrics.event(EventKind::Ignored);
                    debug!(name = %object.key(), resource_version = %version, "old event ignored");
                    return;
                }
                trace!(name = %object.key(), resource_version = %version, "object changed");
                match self.put(&object, json) {
                    Change::Applied => self.metrics.event(EventKind::Changed),
                    Change::None | Change::Incomplete => self.metrics.event(EventKind::Ignored),
                }
                self.advance(version);
            }
            Err(error) => {
                self.quarantine(&error);
                // The change is not lost: the cached object stays, and the next event replaces it.
                self.advance(error.resource_version.as_deref().unwrap_or_default());
            }
        }
    }

    /// Ends the watch after an event that no object can be assigned to. No later event replaces it,
    /// and a watch may last for minutes, so a list follows before the next watch.
    fn lost(&mut self, error: &str) -> Failure {
        self.suspicion = Some(Suspicion::Lost);
        Failure::Undecodable { what: "an event of the watch", error: error.to_owned() }
    }

    fn deleted(&mut self, json: &str) -> Result<(), Failure> {
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
            warn!(resource_version = version, "bookmark goes back; ignored");
            self.suspicion.get_or_insert(Suspicion::Behind);
        } else {
            self.advance(&version);
        }
    }

    /// Returns the next step after a line over budget: a list if the line repeats, since it may get
    /// past it.
    pub(super) fn long_line(&mut self) -> Step {
        let position = self.resume_version.as_ref().map(ResumeVersion::version).unwrap_or_default();
        if self.long_lines.1 != position {
            self.long_lines = (0, position.to_owned());
        }
        self.long_lines.0 += 1;
        if self.long_lines.0 > 1 { Step::Relist } else { Step::Again }
    }

    /// Checks a suspicion before the next watch; a returned failure requires a list.
    ///
    /// After a restore from backup, a watch from a position that the server has not reached is
    /// silent until the server reaches it. All changes before are missed.
    async fn check_suspicion(&mut self) -> Option<Failure> {
        match self.suspicion.take()? {
            Suspicion::Lost => Some(Failure::Suspect("an event of the watch was lost")),
            Suspicion::Behind => {
                let mut slot = self.slot().await;
                let budget = self.options.max_page_bytes;
                // If this fails, so will the watch, which reports the error.
                let whole = self.wire.page(Some(1), "", budget, &mut slot).await.ok()?;
                let text = decode::text(&whole.bytes);
                let page: Page<'_> = serde_json::from_str(&text).ok()?;
                let version = page.resource_version();
                let contradicted = !version.is_empty()
                    && self.resume_version.as_ref().is_some_and(|it| it.is_contradicted(version));
                contradicted
                    .then_some(Failure::Suspect("the server's position contradicts the watch"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::{
        informer::{
            InformerOptions, Interest, ObjectKey,
            fixture::Fixture,
            script::{Harness, Open, change, names, progress, settle, stored, widget},
        },
        kind::GroupKind,
    };

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_resumes_without_a_list() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        watch.event("MODIFIED", &widget("a", 11));
        watch.bookmark(20);
        watch.reset();
        let watch = harness.script.watch(20).await.open();
        watch.event("MODIFIED", &widget("a", 21));

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
        assert_eq!(change(&mut subscription).await, ("a".into(), 11, 21));
    }

    #[tokio::test(start_paused = true)]
    async fn version_of_a_store_follows_events_and_bookmarks() {
        let mut harness = Harness::new();
        let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        let store = subscription.store();
        assert_eq!(store.version(), 10);

        watch.event("MODIFIED", &widget("a", 11));
        settle().await;
        assert_eq!(store.version(), 11);
        watch.bookmark(20);
        settle().await;
        assert_eq!(store.version(), 20);
        watch.event("MODIFIED", &widget("a", 15));
        settle().await;
        assert_eq!(store.version(), 20, "old event");
    }

    #[tokio::test(start_paused = true)]
    async fn list_of_whole_objects_that_fails_does_not_stop_the_watch_of_others() {
        let mut harness = Harness::new();
        let owned = |version: u64| Fixture::new("a").version(version).controller("u").json();
        let kind = GroupKind { group: String::new(), kind: "Owner".to_owned() };
        let named = |name: &str| Interest::Named(ObjectKey::cluster(name));
        let mut first = harness.subscribe_to(vec![named("b")]);
        harness.script.list().await.page(10, "", &[owned(1), widget("b", 2)]);
        let watch = harness.script.watch(10).await.open();
        assert_eq!(change(&mut first).await, ("b".into(), 0, 2));

        let mut late = harness.subscribe_to(vec![Interest::OwnerKind(kind)]);
        let mut watches = vec![watch];
        for (attempt, position) in [10, 11, 11].into_iter().enumerate() {
            let list = match attempt {
                0 => harness.script.stream().await,
                _ => harness.script.list().await,
            };
            list.refuse(500, "InternalError", "etcd is slow");
            let watch = harness.script.watch(position).await.open();
            if attempt == 0 {
                watch.event("MODIFIED", &widget("b", 11));
            }
            settle().await;
            watches.push(watch);
        }
        assert_eq!(change(&mut first).await, ("b".into(), 2, 11));
        assert_eq!(progress(&first), Progress::Synced);
        assert!(late.next().now_or_never().is_none());

        harness.script.list().await.page(20, "", &[owned(1), widget("b", 11)]);
        assert_eq!(change(&mut late).await, ("a".into(), 0, 1));
        late.drained().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_cut_at_any_byte_loses_nothing() {
        let event = json!({"type": "MODIFIED", "object": widget("a", 11)}).to_string() + "\n";
        for end in 0..event.len() {
            let mut harness = Harness::new();
            let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

            watch.text(&event[..end]);
            settle().await;
            drop(watch);
            let watch = harness.script.watch(10).await.open();
            watch.text(&event);

            assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11), "cut after {end}");
            assert_eq!(stored(&subscription), names(&[("a", 11)]));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_arrives_byte_by_byte_loses_nothing() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        let event = json!({"type": "MODIFIED", "object": widget("a", 11)}).to_string() + "\n";
        for byte in event.as_bytes() {
            watch.chunk(&[*byte]);
            settle().await;
        }

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clean_end_is_followed_by_a_watch_at_once_but_not_in_a_loop() {
        let mut harness = Harness::new();
        let (_subscription, watch) = harness.synced(&[]).await;
        watch.bookmark(10);
        tokio::time::sleep(Duration::from_secs(200)).await;

        let ended = Instant::now();
        drop(watch);
        let mut watches = 0;
        while ended.elapsed() < Duration::from_secs(60) {
            harness.script.watch(10).await.text(StatusCode::OK, "");
            watches += 1;
            if watches == 1 {
                assert!(ended.elapsed() < Duration::from_millis(10));
            }
        }

        assert!((5..14).contains(&watches), "{watches}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_over_budget_is_cut_and_then_got_past_by_a_list() {
        let options = InformerOptions { max_line_bytes: 1000, ..InformerOptions::default() };
        let mut harness = Harness::with(options);
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        let long = async |watch: Open| {
            for _ in 0..20 {
                watch.chunk(&[b'x'; 100]);
            }
            watch.dropped().await;
        };
        long(watch).await;
        long(harness.script.watch(10).await.open()).await;
        let stream = harness.script.stream().await.open();
        stream.event("ADDED", &widget("a", 15));
        stream.end_of_list(20);

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 15));
    }

    #[tokio::test(start_paused = true)]
    async fn old_and_repeated_events_change_nothing() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

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
    async fn a_change_that_comes_before_its_creation_counts_once() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[]).await;

        watch.event("MODIFIED", &widget("a", 12));
        assert_eq!(change(&mut subscription).await, ("a".into(), 0, 12));
        watch.event("ADDED", &widget("a", 11));
        watch.event("MODIFIED", &widget("a", 12));
        watch.event("ADDED", &widget("b", 13));

        assert_eq!(change(&mut subscription).await, ("b".into(), 0, 13));
        assert_eq!(stored(&subscription), names(&[("a", 12), ("b", 13)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_with_the_version_of_the_last_change_counts() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

        watch.event("MODIFIED", &widget("b", 12));
        watch.event("DELETED", &widget("a", 1));

        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_deletion_takes_nothing_away() {
        let mut harness = Harness::new();
        let (subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;
        watch.event("MODIFIED", &widget("a", 12));
        watch.event("DELETED", &widget("b", 13));
        watch.event("ADDED", &Fixture::new("b").uid("second").version(14).json());
        watch.bookmark(20);
        let known = names(&[("a", 12), ("b", 14)]);
        settle().await;
        assert_eq!(stored(&subscription), known);

        // Older than its last change; older than its re-creation, by version or by uid.
        for old in [widget("a", 11), widget("b", 13), widget("b", 15)] {
            watch.event("DELETED", &old);
            settle().await;

            assert_eq!(stored(&subscription), known, "{old}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_created_again_is_seen_with_both_its_uids() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        watch.event("DELETED", &widget("a", 11));
        watch.event("ADDED", &Fixture::new("a").uid("second").version(12).json());
        settle().await;
        let delta = subscription.next().await.unwrap();

        assert_eq!(&*delta.old.unwrap().header().uid, "uid-a");
        assert_eq!(&*delta.new.unwrap().header().uid, "second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bookmark_that_goes_back_is_ignored_and_looked_into() {
        let mut harness = Harness::new();
        let (_subscription, watch) = harness.synced(&[]).await;

        watch.bookmark(50);
        watch.bookmark(40);
        settle().await;
        drop(watch);

        // The server's position is ahead of ours.
        let probe = harness.script.list().await;
        assert_eq!(probe.query["limit"], "1");
        probe.page(60, "", &[]);
        harness.script.watch(50).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_restored_from_a_backup_is_listed_again() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;
        watch.event("ADDED", &widget("b", 1000));
        assert_eq!(change(&mut subscription).await, ("b".into(), 0, 1000));
        drop(watch);

        // A watch from a position that the server has not reached is silent.
        let silent = harness.script.watch(1000).await.open();
        silent.dropped().await;
        drop(silent);
        harness.script.list().await.page(500, "more", &[widget("a", 1)]);
        let stream = harness.script.stream().await.open();
        stream.event("ADDED", &widget("a", 1));
        stream.end_of_list(501);
        stream.event("MODIFIED", &widget("a", 502));

        assert_eq!(change(&mut subscription).await, ("b".into(), 1000, 0));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 502));
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_event_is_replaced_by_a_list_at_once() {
        for line in [&b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\n"[..], b"\xff\xfe\n"] {
            let mut harness = Harness::new();
            let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;
            let begin = Instant::now();

            // Replaces the only event about `b`.
            watch.chunk(line);

            watch.dropped().await;
            let stream = harness.script.stream().await.open();
            stream.event("ADDED", &widget("a", 1));
            stream.event("ADDED", &widget("b", 12));
            stream.end_of_list(12);
            assert_eq!(change(&mut subscription).await, ("b".into(), 0, 12));
            assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_object_affects_itself_alone_until_it_is_valid_again() {
        let mut harness = Harness::new();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

        let bad = Fixture::new("a").version(11).set("labels", json!(["x"])).json();
        watch.event("MODIFIED", &bad);
        watch.event("MODIFIED", &widget("b", 12));
        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
        assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));
        let status = &harness.set.status()[0];
        assert_eq!(status.quarantined[0].field, "metadata.labels");
        assert_eq!(status.quarantined[0].key.as_ref().unwrap().to_string(), "a");

        // The event counts as seen: the watch resumes after it, and a list finds the object
        // present.
        drop(watch);
        harness.script.watch(12).await.refuse(410, "Expired", "old");
        let stream = harness.script.stream().await.open();
        stream.event("ADDED", &bad);
        stream.event("ADDED", &widget("b", 12));
        stream.end_of_list(20);
        settle().await;
        assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));

        stream.event("MODIFIED", &widget("a", 21));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 21));
        assert!(harness.set.status()[0].quarantined.is_empty());

        stream.event("DELETED", &Fixture::new("a").version(22).set("labels", json!(1)).json());
        assert_eq!(change(&mut subscription).await, ("a".into(), 21, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_is_given_up_before_a_load_balancer_would() {
        let mut harness = Harness::new();
        let _subscription = harness.subscribe();
        harness.script.list().await.page(10, "", &[]);
        let watch = harness.script.watch(10).await;
        let asked = Duration::from_secs(watch.query["timeoutSeconds"].parse().unwrap());
        let watch = watch.open();
        let opened = Instant::now();

        watch.dropped().await;

        let lasted = opened.elapsed();
        assert!(lasted > asked && lasted <= asked + Duration::from_secs(5), "{lasted:?}");
        let probe = harness.script.list().await;
        probe.page(10, "", &[]);
        harness.script.watch(10).await;
    }

    #[tokio::test(start_paused = true)]
    async fn lists_without_a_version_are_made_again_on_each_reconnect() {
        let mut harness = Harness::opaque();
        let list = |names: &[&str]| {
            let items: Vec<_> = names.iter().map(|name| widget(name, 1)).collect();
            json!({"kind": "WidgetList", "metadata": {}, "items": items}).to_string()
        };
        let mut subscription = harness.subscribe();
        harness.script.list().await.text(StatusCode::OK, &list(&["a", "b"]));
        for _ in 0..2 {
            subscription.next().await.unwrap();
        }
        let watch = harness.script.next().await;
        assert!(watch.is_watch());
        let watch = watch.open();
        // The version of an object is not a position of the list.
        watch.event("MODIFIED", &widget("a", 7));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 7));
        watch.event("MODIFIED", &widget("b", 3));
        assert_eq!(change(&mut subscription).await, ("b".into(), 1, 3));

        watch.reset();
        harness.script.list().await.text(StatusCode::OK, &list(&["a"]));
        assert_eq!(change(&mut subscription).await, ("a".into(), 7, 1));
        assert_eq!(change(&mut subscription).await, ("b".into(), 3, 0));
        let watch = harness.script.next().await;
        assert!(watch.is_watch());
        drop(watch.open());
        harness.script.list().await.text(StatusCode::OK, &list(&[]));
        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn where_versions_are_opaque_only_equal_ones_are_dropped() {
        let mut harness = Harness::opaque();
        let (mut subscription, watch) = harness.synced(&[widget("a", 9), widget("b", 2)]).await;

        watch.event("MODIFIED", &widget("a", 3));
        assert_eq!(change(&mut subscription).await, ("a".into(), 9, 3));
        watch.event("MODIFIED", &widget("a", 3));
        watch.event("DELETED", &widget("b", 1));
        assert_eq!(change(&mut subscription).await, ("b".into(), 2, 0));
        watch.event("ADDED", &widget("c", 1));
        assert_eq!(change(&mut subscription).await, ("c".into(), 0, 1));
        watch.bookmark(4);
        settle().await;
        watch.reset();

        // The position is the last one that arrived.
        harness.script.watch(4).await;
    }

    #[tokio::test(start_paused = true)]
    async fn where_versions_are_opaque_a_silent_watch_is_followed_by_a_list_unless_nothing_moved() {
        let mut harness = Harness::opaque();
        let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

        watch.dropped().await;
        harness.script.list().await.page(10, "", &[]);
        let watch = harness.script.watch(10).await.open();
        watch.dropped().await;
        harness.script.list().await.page(12, "", &[]);
        let stream = harness.script.stream().await.open();
        stream.end_of_list(12);

        assert_eq!(change(&mut subscription).await, ("a".into(), 1, 0));
    }
}
