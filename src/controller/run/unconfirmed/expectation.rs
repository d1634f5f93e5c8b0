//! Expectation: what a cache must hold of a written object.

use std::{collections::HashMap, time::Duration};

use kube::Client;
use tokio::time::Instant;

use super::{
    read::{self, ReadError},
    state::{Comparison, ObjectState},
    target::Target,
};
use crate::{
    controller::{foreign_cluster::ForeignCluster, run::input_status::Attached},
    informer::{InformerKey, LiveObject, Object, ObjectKey},
    kind::{TypeIdentity, VersionOrder},
    manager::retry_after,
};

/// Time after a write for which a cache may be behind, and time between two reads. Then the object
/// is read from the server, for three cases: the watch is down, the selectors of the cache exclude
/// the object, or another client has deleted it.
const READ_DELAY: Duration = Duration::from_secs(1);

/// Expected state of a written object or collection.
#[derive(Debug)]
pub(super) struct Expectation {
    // State in the response; `None` if the server must be read.
    pub(super) answered: Option<ObjectState>,
    // Live reads newer than the response, by cache, since each applies the selectors of one.
    reads: HashMap<InformerKey, LiveRead>,
    since: Instant,
}

#[derive(Debug)]
struct LiveRead {
    state: ObjectState,
    // `None` once its objects are dropped.
    at: Option<Instant>,
    // Cached object before the read.
    cached: Option<Object>,
}

/// Result of the comparison of a cache with an expectation.
#[derive(Debug)]
pub(super) enum ExpectationCheck {
    /// The cache holds the write.
    Held,
    /// The cache lacks these objects of a collection.
    Missing(Vec<(ObjectKey, ObjectState)>),
    /// The cache is behind the object, which the reconcile reads from here.
    Live(ObjectKey, LiveObject),
}

/// Result of the comparison of a cache with the response to a write.
#[derive(Debug)]
pub(super) enum AnswerCheck {
    /// The cache holds the write.
    Held,
    /// The write was a moment ago, and the cache is behind it.
    Behind(Unconfirmed),
}

/// Comparison of a cache with the last live read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadComparison {
    /// The cache has not reached the version of the read.
    Behind,
    /// The cache has reached it, or there was no read.
    Current,
    /// The cache has reached it, and lacks the object that was read.
    Deleted,
}

/// Error: the caches could not be shown to hold a write.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum Unconfirmed {
    /// Wait for the watch to deliver the change.
    #[error("the cache of {resource} does not hold the last write of {key} yet")]
    Behind { resource: TypeIdentity, key: ObjectKey },
    /// Fix what the reason names; the read is retried.
    #[error("{resource} cannot be read from the server: {source}")]
    Unread { resource: TypeIdentity, source: ReadError },
}

impl Unconfirmed {
    /// Returns the wait that the server requested if it could not be read; zero if it requested
    /// none.
    pub(super) fn unanswered(&self) -> Option<Duration> {
        match self {
            Self::Behind { .. } => None,
            Self::Unread { source: ReadError::Server(kube::Error::Api(status)), .. } => {
                Some(retry_after(status).unwrap_or_default())
            }
            Self::Unread { .. } => Some(Duration::ZERO),
        }
    }
}

impl Expectation {
    /// Creates the expectation of a write; without a state, the server has to be read.
    pub(super) fn new(answered: Option<ObjectState>) -> Self {
        Self { answered, reads: HashMap::new(), since: Instant::now() }
    }

    /// Returns the time since the write.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Drops the objects that were read, and keeps their versions, which show whether a cache has
    /// reached a read. The next check reads them again.
    pub(super) fn forget_reads(&mut self) {
        self.reads.retain(|_, read| {
            (read.at, read.cached) = (None, None);
            match &mut read.state {
                ObjectState::Stored { version, content, .. } => {
                    *content = None;
                    !version.is_empty()
                }
                ObjectState::Deleted { .. }
                | ObjectState::Absent { .. }
                | ObjectState::Unreadable => false,
            }
        });
    }

    /// Drops the reads for caches other than these, such as those of a type that is gone. Returns
    /// whether one of them had found the object.
    pub(super) fn detach(&mut self, caches: &[Attached]) -> bool {
        let of_others =
            |key: &InformerKey, _: &mut LiveRead| caches.iter().all(|it| it.key != *key);
        let detached = self.reads.extract_if(of_others);
        let found = |(_, read): &(_, LiveRead)| matches!(read.state, ObjectState::Stored { .. });
        detached.filter(found).count() > 0
    }

    /// Compares a cache with the last read for it, which is dropped once the cache has reached it.
    pub(super) fn reached(&mut self, target: &Target, cache: &Attached) -> ReadComparison {
        let (Some(key), Some(read)) = (target.key(), self.reads.get(&cache.key)) else {
            return ReadComparison::Current;
        };
        if read.state.compare(&key, cache) != Comparison::Held {
            return ReadComparison::Behind;
        }
        let was_there = matches!(read.state, ObjectState::Stored { .. });
        self.reads.remove(&cache.key);
        match was_there && cache.store.stored(&key).is_none() {
            true => ReadComparison::Deleted,
            false => ReadComparison::Current,
        }
    }

    /// Replaces the expectation by that of a later write of the same target.
    ///
    /// A target that has to be read stays so. Of two responses to concurrent writes, the newer
    /// version counts, which may not be the one that arrived last.
    pub(super) fn replace(&mut self, new: Self) {
        let Some(old) = &self.answered else {
            *self = Self::new(None);
            return;
        };
        let is_older = new
            .answered
            .as_ref()
            .is_some_and(|new| VersionOrder::Comparable.is_older(new.version(), old.version()));
        if !is_older {
            *self = new;
        }
    }

    /// Compares a cache with the response, without a read of the server; `None` if one may be due.
    pub(super) fn answered_in(&self, target: &Target, cache: &Attached) -> Option<AnswerCheck> {
        let (Some(key), Some(answered)) = (target.key(), &self.answered) else { return None };
        if self.reads.contains_key(&cache.key) {
            return None;
        }
        match answered.compare(&key, cache) {
            Comparison::Held => Some(AnswerCheck::Held),
            Comparison::Behind if self.age() < READ_DELAY => {
                let resource = cache.served.identity.clone();
                Some(AnswerCheck::Behind(Unconfirmed::Behind { resource, key }))
            }
            Comparison::Behind | Comparison::Undecided => None,
        }
    }

    /// Checks a cache, and reads the server if that is due.
    ///
    /// # Errors
    ///
    /// The cache is behind a single object that was written a moment ago, or the server cannot be
    /// read.
    pub(super) async fn check(
        &mut self,
        target: &Target,
        cache: &Attached,
        client: impl Fn(Option<&ForeignCluster>) -> Client,
    ) -> Result<ExpectationCheck, Unconfirmed> {
        let resource = || cache.served.identity.clone();
        let unread = |source| Unconfirmed::Unread { resource: resource(), source };
        let client = || client(cache.foreign.as_ref());
        let Some(key) = target.key() else {
            return read::missing(target, cache, &client())
                .await
                .map(ExpectationCheck::Missing)
                .map_err(unread);
        };
        let (cached, now) = (cache.store.stored(&key), Instant::now());
        let read = self.reads.get(&cache.key);
        let known = read.map_or(self.answered.as_ref(), |read| Some(&read.state));
        let due = match (known.map(|state| state.compare(&key, cache)), read) {
            (Some(Comparison::Held), _) => return Ok(ExpectationCheck::Held),
            // Versions do not show whether an event since the read is the later state.
            (Some(Comparison::Undecided | Comparison::Behind), Some(read))
                if cache.served.version_order == VersionOrder::Opaque
                    && !is_same(read.cached.as_ref(), cached.as_ref()) =>
            {
                now
            }
            (_, Some(read)) => read.at.map_or(now, |at| at + READ_DELAY),
            (None | Some(Comparison::Undecided), None) => self.since,
            (Some(Comparison::Behind), None) => self.since + READ_DELAY,
        };
        if due <= now {
            let state = read::object(target, &key, cache, &client()).await.map_err(unread)?;
            let comparison = state.compare(&key, cache);
            let read = LiveRead { state, at: Some(Instant::now()), cached };
            self.reads.insert(cache.key.clone(), read);
            if comparison == Comparison::Held {
                return Ok(ExpectationCheck::Held);
            }
        }
        match self.reads.get(&cache.key) {
            Some(read) if self.age() >= READ_DELAY => {
                let order = cache.served.version_order;
                Ok(ExpectationCheck::Live(key, read.state.live(read.cached.clone(), order)))
            }
            Some(_) | None => Err(Unconfirmed::Behind { resource: resource(), key }),
        }
    }
}

/// Returns whether two reads of a cache found the same object in the same version.
fn is_same(one: Option<&Object>, other: Option<&Object>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.is_same_version(other),
        (one, other) => one.is_none() && other.is_none(),
    }
}
