//! Open watches and their pending events.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    history::ObjectChange,
    labels::LabelRequirements,
    object,
    refusal::Refusal,
    render::{Shape, render},
    resource::{SimulatedResource, Storage},
    selector::Fields,
};

/// Identifier of a watch.
pub(super) type WatchId = u64;

/// Interval between bookmarks, for a watch that requests them.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Time between the last bookmark and the end of a watch.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Filter and shape of a list or watch.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) resource: Arc<SimulatedResource>,
    /// Namespace; empty for all.
    pub(super) namespace: String,
    pub(super) labels: LabelRequirements,
    pub(super) fields: Fields,
    pub(super) shape: Shape,
}

impl Filter {
    pub(super) fn matches(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || object::namespace(object) == self.namespace)
            && self.labels.match_object(object)
            && self.fields.match_object(object)
    }
}

#[derive(Debug)]
struct Watch {
    filter: Filter,
    bookmarks: bool,
    next_bookmark: Option<Duration>,
    ends_at: Duration,
    pending: VecDeque<Bytes>,
    closed: bool,
}

/// Set of open watches.
#[derive(Debug, Default)]
pub(super) struct OpenWatches {
    last: WatchId,
    open: BTreeMap<WatchId, Watch>,
    by_storage: BTreeMap<Storage, BTreeSet<WatchId>>,
    /// Watches with new events since their last read.
    woken: BTreeSet<WatchId>,
}

/// Next item for the reader of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchItem {
    Line(Bytes),
    /// Time of the next bookmark or timeout, unless an event occurs before.
    Wait(Duration),
    End,
}

impl OpenWatches {
    pub(super) fn open(
        &mut self,
        filter: Filter,
        bookmarks: bool,
        now: Duration,
        ends_at: Duration,
    ) -> WatchId {
        self.last += 1;
        let storage = Arc::clone(&filter.resource.storage);
        self.by_storage.entry(storage).or_default().insert(self.last);
        let mut watch = Watch {
            filter,
            bookmarks,
            next_bookmark: None,
            ends_at,
            pending: VecDeque::new(),
            closed: false,
        };
        watch.next_bookmark = watch.bookmark_after(now);
        self.open.insert(self.last, watch);
        self.last
    }

    pub(super) fn forget(&mut self, id: WatchId) {
        if let Some(watch) = self.open.remove(&id)
            && let Some(ids) = self.by_storage.get_mut(&watch.filter.resource.storage)
        {
            ids.remove(&id);
        }
        self.woken.remove(&id);
    }

    /// Returns the newest watch.
    pub(super) fn last(&self) -> WatchId {
        self.last
    }

    /// Ends the watches of a collection.
    pub(super) fn close(&mut self, storage: &str) -> usize {
        self.close_until(storage, self.last)
    }

    /// Ends the watches of a collection up to the given one.
    pub(super) fn close_until(&mut self, storage: &str, last: WatchId) -> usize {
        let ids = self.by_storage.get(storage).into_iter().flat_map(|ids| ids.range(..=last));
        for id in ids.clone() {
            if let Some(watch) = self.open.get_mut(id) {
                watch.closed = true;
                self.woken.insert(*id);
            }
        }
        ids.count()
    }

    /// Ends all watches.
    pub(super) fn close_all(&mut self) {
        for (id, watch) in &mut self.open {
            watch.closed = true;
            self.woken.insert(*id);
        }
    }

    pub(super) fn take_woken(&mut self) -> BTreeSet<WatchId> {
        std::mem::take(&mut self.woken)
    }

    /// Delivers a change to the watches of its collection.
    pub(super) fn deliver(&mut self, entry: &ObjectChange) {
        let Some(ids) = self.by_storage.get(&entry.storage) else { return };
        for id in ids {
            if let Some(watch) = self.open.get_mut(id)
                && !watch.closed
                && watch.push(entry)
            {
                self.woken.insert(*id);
            }
        }
    }

    /// Delivers an older change to one watch.
    pub(super) fn replay(&mut self, id: WatchId, entry: &ObjectChange) {
        if let Some(watch) = self.open.get_mut(&id) {
            watch.push(entry);
        }
    }

    /// Delivers an existing object to one watch.
    pub(super) fn initial(&mut self, id: WatchId, object: &Value) {
        if let Some(watch) = self.open.get_mut(&id)
            && watch.filter.matches(object)
        {
            watch.send("ADDED", object);
        }
    }

    /// Delivers the bookmark that ends the initial events.
    pub(super) fn initial_end(&mut self, id: WatchId, version: u64) {
        if let Some(watch) = self.open.get_mut(&id) {
            let annotations = json!({ "k8s.io/initial-events-end": "true" });
            watch.bookmark(version, Some(annotations));
        }
    }

    /// Ends one watch with an error inside the stream.
    pub(super) fn fail(&mut self, id: WatchId, refusal: &Refusal) {
        if let Some(watch) = self.open.get_mut(&id) {
            watch.pending.push_back(line("ERROR", &refusal.status()));
            watch.closed = true;
        }
    }

    /// Returns the next item of a watch. Bookmarks contain the server's version.
    pub(super) fn next(&mut self, id: WatchId, now: Duration, version: u64) -> WatchItem {
        let Some(watch) = self.open.get_mut(&id) else { return WatchItem::End };
        if let Some(line) = watch.pending.pop_front() {
            return WatchItem::Line(line);
        }
        if watch.closed || now >= watch.ends_at {
            return WatchItem::End;
        }
        match watch.next_bookmark {
            Some(at) if now >= at => {
                watch.next_bookmark = watch.bookmark_after(now);
                watch.bookmark(version, None);
                watch.pending.pop_front().map_or(WatchItem::End, WatchItem::Line)
            }
            Some(at) => WatchItem::Wait(at.min(watch.ends_at)),
            None => WatchItem::Wait(watch.ends_at),
        }
    }
}

impl Watch {
    fn bookmark_after(&self, now: Duration) -> Option<Duration> {
        let last = self.ends_at.saturating_sub(BOOKMARK_BEFORE_END);
        let next = (now + BOOKMARK_EVERY).min(last);
        (self.bookmarks && next > now).then_some(next)
    }

    fn push(&mut self, entry: &ObjectChange) -> bool {
        let matches = |object: &Option<Arc<Value>>| {
            object.as_ref().filter(|object| self.filter.matches(object)).cloned()
        };
        match (matches(&entry.before), matches(&entry.after)) {
            (None, None) => return false,
            (None, Some(after)) => self.send("ADDED", &after),
            (Some(_), Some(after)) => self.send("MODIFIED", &after),
            (Some(_), None) if entry.after.is_none() => {
                let last = Arc::clone(&entry.last);
                self.send("DELETED", &last);
            }
            // Without a match after the change, the event shows the last match at the version of
            // the change.
            (Some(before), None) => {
                let mut before = Value::clone(&before);
                object::metadata(&mut before)
                    .insert("resourceVersion".to_owned(), entry.version.to_string().into());
                self.send("DELETED", &before);
            }
        }
        true
    }

    fn send(&mut self, event: &str, object: &Value) {
        let shown = render(&self.filter.resource, object, self.filter.shape);
        self.pending.push_back(line(event, &shown));
    }

    fn bookmark(&mut self, version: u64, annotations: Option<Value>) {
        let mut metadata =
            json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let (api_version, kind) = match self.filter.shape {
            Shape::Whole => {
                (self.filter.resource.api_version(), self.filter.resource.kind.as_str())
            }
            Shape::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
        };
        let object = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata });
        self.pending.push_back(line("BOOKMARK", &object));
    }
}

fn line(event: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n").into()
}
