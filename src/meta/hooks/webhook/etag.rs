//! ETag cache: responses by parent that a hook may confirm instead of sending them again.
//!
//! Decisions take the time as an argument and do no I/O. All responses have the same lifetime, so
//! that one order, by age, serves both their expiry and the eviction of the oldest.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use crate::{
    controller::Request,
    meta::hooks::{budget::ControllerBudget, rule::EtagRule},
};

/// Approximate memory of an entry besides its text, in bytes; also bounds the number of small
/// entries.
const ENTRY_BYTES: usize = 256;
/// Longest tag that is sent back, in bytes. Servers refuse a request with much larger headers, so a
/// longer tag would make every further request fail.
const MAX_TAG_BYTES: usize = 1024;

/// Cached response, with its tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedResponse {
    pub(super) tag: HeaderValue,
    pub(super) body: Bytes,
}

/// Cached responses of one hook; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct EtagCache {
    responses: Arc<Mutex<Responses>>,
    rule: EtagRule,
}

impl EtagCache {
    pub(super) fn new(rule: EtagRule, budget: ControllerBudget) -> Self {
        Self { responses: Arc::new(Mutex::new(Responses::new(rule.lifetime, budget))), rule }
    }

    /// Replaces the budget; drops all kept responses.
    pub(super) fn set_budget(&mut self, budget: ControllerBudget) {
        *self.lock() = Responses::new(self.rule.lifetime, budget);
    }

    /// Returns the kept response for a parent, unless it has expired.
    pub(super) fn get(&self, parent: &Request, uid: &str, now: Instant) -> Option<CachedResponse> {
        self.lock().get(parent, uid, now)
    }

    /// Replaces the kept response for a parent by a new one; keeps none if it has no usable tag.
    pub(super) fn answered(
        &self,
        parent: &Request,
        uid: &str,
        headers: &HeaderMap,
        body: &Bytes,
        now: Instant,
    ) {
        let kept = tag(headers).map(|tag| CachedResponse { tag, body: body.clone() });
        self.lock().put(parent, uid, kept, now);
    }

    /// Removes the response for a parent.
    pub(super) fn forget(&self, parent: &Request) {
        self.lock().remove(parent);
    }

    /// Removes all responses.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the interval of [`EtagCache::sweep_every`]; `None` if nothing expires or no interval
    /// is set.
    pub(super) fn sweep_period(&self) -> Option<Duration> {
        self.rule.lifetime.and(self.rule.sweep).filter(|period| !period.is_zero())
    }

    /// Removes expired responses at this interval, until dropped.
    pub(super) async fn sweep_every(self, period: Duration) {
        loop {
            sleep(period).await;
            self.lock().sweep(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Responses> {
        self.responses.lock()
    }
}

/// Copies the tag of a response; `None` if it cannot be sent back with the same meaning: `*` would
/// match any response.
fn tag(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = headers.get(header::ETAG)?.as_bytes();
    let usable = !tag.is_empty() && tag != b"*" && tag.len() <= MAX_TAG_BYTES;
    usable.then(|| HeaderValue::from_bytes(tag).ok()).flatten()
}

#[derive(Debug)]
struct Responses {
    lifetime: Option<Duration>,
    // The oldest entries are evicted to stay within it.
    budget: ControllerBudget,
    bytes: usize,
    // Responses for a parent, by its uid and the name of an older revision, if any.
    by_parent: HashMap<Request, BTreeMap<Box<str>, ResponseEntry>, RandomState>,
    // The smallest number is the oldest entry, and the first to expire.
    by_age: BTreeMap<u64, (Request, Box<str>)>,
    next: u64,
}

#[derive(Debug)]
struct ResponseEntry {
    kept: CachedResponse,
    since: Instant,
    number: u64,
    bytes: usize,
}

impl Responses {
    fn new(lifetime: Option<Duration>, budget: ControllerBudget) -> Self {
        let (by_parent, by_age) = (HashMap::default(), BTreeMap::new());
        Self { lifetime, budget, bytes: 0, by_parent, by_age, next: 0 }
    }

    fn get(&mut self, parent: &Request, uid: &str, now: Instant) -> Option<CachedResponse> {
        self.remove_others(parent, uid);
        let entry = self.by_parent.get(parent)?.get(uid)?;
        if !self.expired(entry, now) {
            return Some(entry.kept.clone());
        }
        self.remove_one(parent, uid);
        None
    }

    fn put(&mut self, parent: &Request, uid: &str, kept: Option<CachedResponse>, now: Instant) {
        self.remove_others(parent, uid);
        self.remove_one(parent, uid);
        self.sweep(now);
        let Some(CachedResponse { tag, body }) = kept else { return };
        let names = parent.name.len() + parent.namespace.as_ref().map_or(0, |name| name.len());
        let bytes = ENTRY_BYTES + names + uid.len() + tag.len() + body.len();
        if bytes > self.budget.most_kept() {
            return;
        }
        let reservation = loop {
            if let Some(reservation) = self.budget.try_keep(bytes) {
                break reservation;
            }
            // Responses of other controllers may occupy the rest of the process's budget.
            let Some((oldest, uid)) = self.by_age.values().next().cloned() else { return };
            self.remove_one(&oldest, &uid);
        };
        // Copied, since a slice would keep the whole buffer and the reservation of the read.
        let body = reservation.hold_all(body.to_vec());
        let kept = CachedResponse { tag, body };
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.by_age.insert(number, (parent.clone(), uid.into()));
        let entry = ResponseEntry { kept, since: now, number, bytes };
        self.by_parent.entry(parent.clone()).or_default().insert(uid.into(), entry);
    }

    /// Removes the responses for earlier parents of this name: a parent that was created again has
    /// another uid.
    fn remove_others(&mut self, parent: &Request, uid: &str) {
        let known = self.by_parent.get(parent).into_iter().flat_map(BTreeMap::keys);
        let others: Vec<_> = known.filter(|known| uid_of(known) != uid_of(uid)).cloned().collect();
        for other in others {
            self.remove_one(parent, &other);
        }
    }

    fn remove(&mut self, parent: &Request) {
        for entry in self.by_parent.remove(parent).into_iter().flat_map(BTreeMap::into_values) {
            self.by_age.remove(&entry.number);
            self.bytes -= entry.bytes;
        }
    }

    fn remove_one(&mut self, parent: &Request, uid: &str) {
        let Some(entries) = self.by_parent.get_mut(parent) else { return };
        if let Some(entry) = entries.remove(uid) {
            self.by_age.remove(&entry.number);
            self.bytes -= entry.bytes;
        }
        if entries.is_empty() {
            self.by_parent.remove(parent);
        }
    }

    fn sweep(&mut self, now: Instant) {
        while let Some((oldest, uid)) = self.by_age.values().next().cloned()
            && self.entry(&oldest, &uid).is_none_or(|entry| self.expired(entry, now))
        {
            self.remove_one(&oldest, &uid);
        }
    }

    fn entry(&self, parent: &Request, uid: &str) -> Option<&ResponseEntry> {
        self.by_parent.get(parent)?.get(uid)
    }

    fn clear(&mut self) {
        // New maps, since an emptied map keeps its memory.
        *self = Self::new(self.lifetime, self.budget.clone());
    }

    fn expired(&self, entry: &ResponseEntry, now: Instant) -> bool {
        self.lifetime.is_some_and(|lifetime| now.duration_since(entry.since) >= lifetime)
    }
}

/// Returns the uid of a parent without the name of its revision.
fn uid_of(uid: &str) -> &str {
    uid.split_once('/').map_or(uid, |(uid, _)| uid)
}

#[cfg(test)]
mod tests;
