//! Answers that a hook may confirm instead of sending them again, by parent.
//!
//! What to keep is decided without a clock and without I/O, and told in tables. All answers live equally
//! long, so that one order, by age, serves both their expiry and their number.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use tokio::time::{Instant, sleep};

use crate::{
    informer::ObjectKey,
    meta::{ControllerBudget, EtagRule},
};

/// What an answer takes beside its text, about: also the smallest ones are bounded in number.
const ENTRY_BYTES: usize = 256;
/// The longest tag that is sent back. Servers refuse a request with much larger headers, and one
/// that is refused for its tag would be refused for ever.
const MAX_TAG_BYTES: usize = 1024;

/// An answer, and the tag by which the hook knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) tag: HeaderValue,
    pub(super) body: Bytes,
}

/// The answers of one hook; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EtagCache {
    answers: Arc<Mutex<Answers>>,
    rule: EtagRule,
}

impl EtagCache {
    pub(super) fn new(rule: EtagRule, budget: ControllerBudget) -> Self {
        Self { answers: Arc::new(Mutex::new(Answers::new(rule.lifetime, budget))), rule }
    }

    /// Keeps answers within another budget from now on.
    pub(super) fn set_budget(&mut self, budget: ControllerBudget) {
        *self.lock() = Answers::new(self.rule.lifetime, budget);
    }

    /// What was answered about a parent, if that may still be confirmed.
    pub(super) fn get(&self, parent: &ObjectKey, uid: &str, now: Instant) -> Option<Kept> {
        self.lock().get(parent, uid, now)
    }

    /// The hook answered with a new text: keeps it if it can be confirmed, and else nothing.
    pub(super) fn answered(
        &self,
        parent: &ObjectKey,
        uid: &str,
        headers: &HeaderMap,
        body: &Bytes,
        now: Instant,
    ) {
        let kept = tag(headers).map(|tag| Kept { tag, body: body.clone() });
        self.lock().put(parent, uid, kept, now);
    }

    /// Keeps nothing of a parent.
    pub(super) fn forget(&self, parent: &ObjectKey) {
        self.lock().remove(parent);
    }

    /// Keeps nothing.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// How often what has expired is to be removed, if anything expires.
    pub(super) fn sweep_period(&self) -> Option<Duration> {
        self.rule.lifetime.and(self.rule.sweep).filter(|period| !period.is_zero())
    }

    /// Removes what has expired, again and again, until dropped.
    pub(super) async fn sweep_every(self, period: Duration) {
        loop {
            sleep(period).await;
            self.lock().sweep(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tag of an answer, copied. One that cannot be sent back with that meaning is none: `*` would
/// stand for any answer at all.
fn tag(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = headers.get(header::ETAG)?.as_bytes();
    let usable = !tag.is_empty() && tag != b"*" && tag.len() <= MAX_TAG_BYTES;
    usable.then(|| HeaderValue::from_bytes(tag).ok()).flatten()
}

#[derive(Debug)]
struct Answers {
    lifetime: Option<Duration>,
    // Beyond it the oldest go.
    budget: ControllerBudget,
    bytes: usize,
    by_parent: HashMap<ObjectKey, Entry>,
    // The smallest number is the oldest, and the first to expire.
    by_age: BTreeMap<u64, ObjectKey>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    // Another parent of the same name is another one.
    uid: Box<str>,
    kept: Kept,
    since: Instant,
    number: u64,
    bytes: usize,
}

impl Answers {
    fn new(lifetime: Option<Duration>, budget: ControllerBudget) -> Self {
        let (by_parent, by_age) = (HashMap::new(), BTreeMap::new());
        Self { lifetime, budget, bytes: 0, by_parent, by_age, next: 0 }
    }

    fn get(&mut self, parent: &ObjectKey, uid: &str, now: Instant) -> Option<Kept> {
        let entry = self.by_parent.get(parent)?;
        if *entry.uid == *uid && !self.expired(entry, now) {
            return Some(entry.kept.clone());
        }
        self.remove(parent);
        None
    }

    fn put(&mut self, parent: &ObjectKey, uid: &str, kept: Option<Kept>, now: Instant) {
        self.remove(parent);
        self.sweep(now);
        let Some(Kept { tag, body }) = kept else { return };
        let names = parent.name.len() + parent.namespace.as_ref().map_or(0, |name| name.len());
        let bytes = ENTRY_BYTES + names + uid.len() + tag.len() + body.len();
        if bytes > self.budget.most_kept() {
            return;
        }
        let reservation = loop {
            if let Some(reservation) = self.budget.try_keep(bytes) {
                break reservation;
            }
            // Other controllers' answers may take what is left of the process's budget.
            let Some(oldest) = self.by_age.values().next().cloned() else { return };
            self.remove(&oldest);
        };
        // Copied: a slice would hold on to the buffer and the reservation that it was read into.
        let body = reservation.hold_all(body.to_vec());
        let kept = Kept { tag, body };
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.by_age.insert(number, parent.clone());
        let entry = Entry { uid: uid.into(), kept, since: now, number, bytes };
        self.by_parent.insert(parent.clone(), entry);
    }

    fn remove(&mut self, parent: &ObjectKey) {
        if let Some(entry) = self.by_parent.remove(parent) {
            self.by_age.remove(&entry.number);
            self.bytes -= entry.bytes;
        }
    }

    fn sweep(&mut self, now: Instant) {
        while let Some(oldest) = self.by_age.values().next().cloned()
            && self.by_parent.get(&oldest).is_none_or(|entry| self.expired(entry, now))
        {
            self.remove(&oldest);
        }
    }

    fn clear(&mut self) {
        // A new one: a map that was emptied keeps its memory.
        *self = Self::new(self.lifetime, self.budget.clone());
    }

    fn expired(&self, entry: &Entry, now: Instant) -> bool {
        self.lifetime.is_some_and(|lifetime| now.duration_since(entry.since) >= lifetime)
    }
}

#[cfg(test)]
mod tests;
