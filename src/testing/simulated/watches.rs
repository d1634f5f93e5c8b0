//! Open watches and what they are still to be sent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    call::Shape,
    history::Entry,
    labels::Labels,
    object,
    refusal::Refusal,
    render::render,
    resource::{Resource, Storage},
    selector::Fields,
};

/// Names a watch.
pub(super) type WatchId = u64;

/// How often a watch that wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A last bookmark comes so long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Which objects are watched, and how they are shown.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) resource: Arc<Resource>,
    /// Empty for all.
    pub(super) namespace: String,
    pub(super) labels: Labels,
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

/// All open watches.
#[derive(Debug, Default)]
pub(super) struct Watches {
    last: WatchId,
    open: BTreeMap<WatchId, Watch>,
    by_storage: BTreeMap<Storage, BTreeSet<WatchId>>,
    /// Those that have something new since they were last asked for.
    woken: BTreeSet<WatchId>,
}

/// What a watch has for its reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Line(Bytes),
    /// Nothing before this moment, unless something happens.
    Wait(Duration),
    End,
}

impl Watches {
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

    /// Names the watch that was begun last.
    pub(super) fn last(&self) -> WatchId {
        self.last
    }

    /// Ends the watches of a collection.
    pub(super) fn close(&mut self, storage: &str) -> usize {
        self.close_until(storage, self.last)
    }

    /// Ends the watches of a collection that are no younger than one.
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

    /// Tells the watches of the collection what happened.
    pub(super) fn deliver(&mut self, entry: &Entry) {
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

    /// Tells one watch what happened before it was opened.
    pub(super) fn replay(&mut self, id: WatchId, entry: &Entry) {
        if let Some(watch) = self.open.get_mut(&id) {
            watch.push(entry);
        }
    }

    /// Tells one watch of an object that was there before.
    pub(super) fn initial(&mut self, id: WatchId, object: &Value) {
        if let Some(watch) = self.open.get_mut(&id)
            && watch.filter.matches(object)
        {
            watch.send("ADDED", object);
        }
    }

    /// Says that all that was there before is told.
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

    /// What is next for the reader of a watch. The server's version goes into bookmarks.
    pub(super) fn next(&mut self, id: WatchId, now: Duration, version: u64) -> Next {
        let Some(watch) = self.open.get_mut(&id) else { return Next::End };
        if let Some(line) = watch.pending.pop_front() {
            return Next::Line(line);
        }
        if watch.closed || now >= watch.ends_at {
            return Next::End;
        }
        match watch.next_bookmark {
            Some(at) if now >= at => {
                watch.next_bookmark = watch.bookmark_after(now);
                watch.bookmark(version, None);
                watch.pending.pop_front().map_or(Next::End, Next::Line)
            }
            Some(at) => Next::Wait(at.min(watch.ends_at)),
            None => Next::Wait(watch.ends_at),
        }
    }
}

impl Watch {
    fn bookmark_after(&self, now: Duration) -> Option<Duration> {
        let last = self.ends_at.saturating_sub(BOOKMARK_BEFORE_END);
        let next = (now + BOOKMARK_EVERY).min(last);
        (self.bookmarks && next > now).then_some(next)
    }

    fn push(&mut self, entry: &Entry) -> bool {
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
            // It matches no longer: shown as it last matched, at the version of the change.
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
