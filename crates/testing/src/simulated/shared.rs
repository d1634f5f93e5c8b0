//! Owner of a server's state, with the record of its requests.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Formatter},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};
use tower::BoxError;

use super::{
    call::{Call, CallResult},
    cluster::SimulatedCluster,
    watches::{self, WatchId},
};
use crate::RequestInfo;

/// Number of requests on record. Beyond it the oldest that have ended are dropped, since a server
/// on a port may run for days.
const KEPT: usize = 200_000;

/// Request on the server's record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulatedRequest {
    /// Name of the user.
    pub user: String,
    /// Verb, type and path.
    pub info: RequestInfo,
    /// Time of the request since the start of the server.
    pub at: Duration,
    /// Status code of the response, once sent.
    pub code: Option<u16>,
    /// Time at which the response ended or was dropped.
    pub ended: Option<Duration>,
}

impl SimulatedRequest {
    /// Returns true until the response has ended, for example for an open watch.
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Returns `plural.group`, or `plural` in the core group; empty for a path without a type.
    pub fn resource(&self) -> String {
        super::resource::qualified(&self.info.group, &self.info.resource)
    }
}

/// Shared state behind all handles, clients and bodies of a server.
pub(super) struct SharedServer {
    state: Mutex<ServerState>,
    begin: Instant,
    /// Counter of visible changes.
    changes: watch::Sender<u64>,
}

struct ServerState {
    cluster: SimulatedCluster,
    wakers: BTreeMap<WatchId, Waker>,
    requests: BTreeMap<u64, SimulatedRequest>,
    last_request: u64,
    /// Number of times that all connections were dropped.
    connections: u64,
    is_up: bool,
}

/// Next item for the reader of a watch.
pub(super) enum BodyItem {
    Line(Bytes),
    Wait(Duration),
    End,
}

impl Debug for SharedServer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Shared")
            .field("resource_version", &state.cluster.history.version())
            .field("requests", &state.requests.len())
            .field("open_watches", &state.wakers.len())
            .finish_non_exhaustive()
    }
}

impl SharedServer {
    pub(super) fn new(cluster: SimulatedCluster) -> Arc<Self> {
        let state = ServerState {
            cluster,
            wakers: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_request: 0,
            connections: 0,
            is_up: true,
        };
        let (changes, _) = watch::channel(0);
        Arc::new(Self { state: Mutex::new(state), begin: Instant::now(), changes })
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Advances the time, runs `act` on the cluster, and wakes the tasks that a change concerns.
    pub(super) fn act<T>(&self, act: impl FnOnce(&mut SimulatedCluster, Duration) -> T) -> T {
        let now = self.now();
        let (result, woken, changed) = {
            let mut state = self.lock();
            let due = state.cluster.due();
            let version = state.cluster.history.version();
            state.cluster.advance(now);
            let result = act(&mut state.cluster, now);
            // Jobs without a delay run at once.
            state.cluster.advance(now);
            let ids = state.cluster.watches.take_woken();
            let mut woken: Vec<Waker> =
                ids.iter().filter_map(|id| state.wakers.remove(id)).collect();
            if state.cluster.due().is_some_and(|next| due.is_none_or(|due| next < due)) {
                woken.extend(state.timer_waker());
            }
            // A read is not a change: it would wake the tasks that wait for one, which read in
            // turn.
            (result, woken, state.cluster.history.version() != version)
        };
        woken.into_iter().for_each(Waker::wake);
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
        result
    }

    pub(super) fn respond(&self, call: &Call) -> CallResult {
        self.act(|cluster, now| cluster.respond(now, call))
    }

    pub(super) fn latency(&self) -> Duration {
        self.lock().cluster.delays.latency
    }

    /// Returns the time until the next job of the control plane.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let due = self.lock().cluster.due()?;
        Some(due.saturating_sub(self.now()))
    }

    /// Returns the next item of a watch, and wakes its reader when there is more.
    pub(super) fn next(&self, id: WatchId, waker: &Waker) -> BodyItem {
        let now = self.now();
        let is_due = self.lock().cluster.due().is_some_and(|due| due <= now);
        if is_due {
            self.act(|_, _| ());
        }
        let mut state = self.lock();
        let version = state.cluster.history.version();
        match state.cluster.watches.next(id, now, version) {
            watches::WatchItem::Line(line) => BodyItem::Line(line),
            watches::WatchItem::End => BodyItem::End,
            watches::WatchItem::Wait(until) => {
                let until = state.cluster.due().map_or(until, |due| due.min(until));
                state.wakers.insert(id, waker.clone());
                BodyItem::Wait(until.saturating_sub(now))
            }
        }
    }

    /// Removes a watch whose reader was dropped.
    pub(super) fn forget(&self, id: WatchId) {
        let waker = {
            let mut state = self.lock();
            state.cluster.watches.forget(id);
            state.wakers.remove(&id);
            // The reader of the watch may have held the timer of the next job.
            state.timer_waker()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    // --- requests

    pub(super) fn begin(self: &Arc<Self>, call: &Call) -> RequestGuard {
        let mut state = self.lock();
        state.last_request += 1;
        let id = state.last_request;
        let request = SimulatedRequest {
            user: call.user.clone(),
            info: call.info.clone(),
            at: self.now(),
            code: None,
            ended: None,
        };
        state.requests.insert(id, request);
        forget_beyond(KEPT, &mut state.requests);
        let connections = state.connections;
        RequestGuard { shared: Arc::clone(self), id, connections }
    }

    pub(super) fn requests(&self) -> Vec<SimulatedRequest> {
        self.lock().requests.values().cloned().collect()
    }

    pub(super) fn forget_requests(&self) {
        self.lock().requests.retain(|_, request| request.is_open());
    }

    /// Drops all connections and refuses new ones while the server is down.
    pub(super) fn drop_connections(&self, is_up: bool) {
        let woken = {
            let mut state = self.lock();
            state.connections += 1;
            state.is_up = is_up;
            std::mem::take(&mut state.wakers)
        };
        woken.into_values().for_each(Waker::wake);
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn set_up(&self) {
        self.lock().is_up = true;
    }
}

impl ServerState {
    /// Returns the waker of one reader, which sets its timer again.
    fn timer_waker(&self) -> Option<Waker> {
        self.wakers.values().next().cloned()
    }
}

fn forget_beyond(most: usize, requests: &mut BTreeMap<u64, SimulatedRequest>) {
    if requests.len() > most
        && let Some(oldest) = requests.iter().find(|it| !it.1.is_open()).map(|it| *it.0)
    {
        requests.remove(&oldest);
    }
}

/// Keeps the record of one request until its response has ended.
pub(super) struct RequestGuard {
    shared: Arc<SharedServer>,
    id: u64,
    connections: u64,
}

impl Debug for RequestGuard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestGuard").field("id", &self.id).finish_non_exhaustive()
    }
}

impl RequestGuard {
    pub(super) fn answered(&self, code: u16) {
        if let Some(request) = self.shared.lock().requests.get_mut(&self.id) {
            request.code = Some(code);
        }
        self.shared.changes.send_modify(|count| *count += 1);
    }

    /// Returns an error if the connection has been dropped since.
    pub(super) fn check_connection(&self) -> Result<(), BoxError> {
        let state = self.shared.lock();
        if !state.is_up {
            return Err("connection refused: the simulated server is stopped".into());
        }
        if state.connections != self.connections {
            return Err("connection reset: the simulated server was restarted".into());
        }
        Ok(())
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let now = self.shared.now();
        if let Some(request) = self.shared.lock().requests.get_mut(&self.id) {
            request.ended = Some(now);
        }
        self.shared.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;

    #[test]
    fn oldest_finished_request_is_evicted() {
        let path = Uri::from_static("/api/v1/pods");
        let request = |ended: Option<u64>| SimulatedRequest {
            user: "alice".to_owned(),
            info: RequestInfo::new(&Method::GET, &path),
            at: Duration::ZERO,
            code: None,
            ended: ended.map(Duration::from_secs),
        };
        let mut requests = BTreeMap::from([
            (1, request(None)),
            (2, request(Some(1))),
            (3, request(Some(1))),
            (4, request(None)),
        ]);

        let mut forget = |most| {
            forget_beyond(most, &mut requests);
            requests.keys().copied().collect::<Vec<_>>()
        };
        assert_eq!(forget(4), [1, 2, 3, 4]);
        assert_eq!(forget(3), [1, 3, 4]);
        assert_eq!(forget(1), [1, 4], "open requests stay on record");
        assert_eq!(forget(1), [1, 4]);
    }
}
