//! Reads of servers for the requests of a controller: how many at once, and the clusters that could
//! not be read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::target::Target;
use crate::discovery::RegistryId;

/// Maximum number of requests for which one type is read at once. None of them has a worker slot
/// meanwhile: a type that cannot be read delays no request for another one.
const MOST_READS: usize = 10;
/// Least time after a failed read for which a cluster is not read again, 1 s.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest such time, unless the server requests a longer one, a minute.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Reads of servers.
#[derive(Debug, Default)]
pub(super) struct Reads(Mutex<ReadState>);

#[derive(Debug, Default)]
struct ReadState {
    // Permits of the types that are read now.
    types: BTreeMap<ReadType, Arc<Semaphore>>,
    // Clusters other than that of the controller whose last read has failed.
    unread: BTreeMap<RegistryId, UnreadCluster>,
}

/// Cluster, group and plural name of a type.
type ReadType = (Option<RegistryId>, Arc<str>, Arc<str>);

#[derive(Debug)]
struct UnreadCluster {
    // Time of the first failure since the last success.
    since: Instant,
    until: Instant,
}

/// Permit to read a server for one request.
#[derive(Debug)]
pub(in crate::controller) struct ReadPermit {
    _permit: OwnedSemaphorePermit,
    /// True if it is the server of the controller's cluster.
    pub(in crate::controller) is_own: bool,
}

impl Reads {
    /// Takes a permit to read the type of a target; `None` if none is left.
    pub(super) fn permit(&self, target: &Target) -> Option<ReadPermit> {
        let Target { cluster, group, plural, .. } = target.clone();
        let is_own = cluster.is_none();
        let types = &mut self.0.lock().types;
        types.retain(|_, permits| permits.available_permits() < MOST_READS);
        let new = || Arc::new(Semaphore::new(MOST_READS));
        let permits = types.entry((cluster, group, plural)).or_insert_with(new);
        let permit = Arc::clone(permits).try_acquire_owned().ok()?;
        Some(ReadPermit { _permit: permit, is_own })
    }

    /// Returns the number of requests for which a server is read.
    pub(super) fn under_way(&self) -> usize {
        let state = self.0.lock();
        state.types.values().map(|permits| MOST_READS - permits.available_permits()).sum()
    }

    /// Returns whether a target delays no reconcile, although a cache may lack it: its cluster, which
    /// is not that of the controller, did not answer the last read.
    pub(super) fn excuses(&self, target: &Target) -> bool {
        let Some(cluster) = &target.cluster else { return false };
        let unread = &self.0.lock().unread;
        unread.get(cluster).is_some_and(|unread| unread.until > Instant::now())
    }

    /// Records that another cluster could not be read. It is read again after as long as it has
    /// failed so far.
    pub(super) fn failed(&self, cluster: &RegistryId, retry_after: Duration) {
        let now = Instant::now();
        let unread = &mut self.0.lock().unread;
        // Clusters that no write needs any more.
        unread.retain(|_, unread| unread.until + LONGEST_DELAY > now);
        let unread =
            unread.entry(cluster.clone()).or_insert(UnreadCluster { since: now, until: now });
        let wait = (now - unread.since).clamp(FIRST_DELAY, LONGEST_DELAY);
        unread.until = now + wait.max(retry_after);
    }

    /// Records that another cluster could be read.
    pub(super) fn answered(&self, cluster: &RegistryId) {
        self.0.lock().unread.remove(cluster);
    }
}
