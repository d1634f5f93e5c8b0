//! Fence: the last check before a request of an epoch is sent.
//!
//! A fence owns each request that passes it, from the request's first poll to the end of the
//! response's body (`exchange.rs`). Closing the fence drops all of them, even if no task polls
//! them: a request that waits for a connection is not sent, and a body is not read further.
//! Dropping a read has no effect on the server. The outcome of a dropped write is unknown.

mod exchange;
mod object_identity;
mod refusal;
mod requester;
mod sender;
mod time_limit;
mod write;

use std::{collections::HashMap, fmt, mem, sync::Arc};

use kube::Client;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use self::exchange::ExchangeSlot;
use self::write::WriteResponse;
pub(crate) use self::{
    object_identity::ObjectIdentity,
    refusal::retry_after,
    requester::request_json,
    sender::FencedSender,
    write::{WriteEnd, WriteRequest},
};
pub(crate) use self::{
    refusal::wait_details,
    requester::{Requester, request_bytes},
};
use super::{
    BoxError,
    election::term::{Leadership, Term},
};

/// Observer of writes. Called before each write, in the task that sends it; the returned function
/// is called at the end of the write, unless the server has refused it.
pub(crate) type WriteObserver = Arc<dyn Fn(WriteRequest) -> OnEnd + Send + Sync>;

type OnEnd = Box<dyn FnOnce(WriteEnd) + Send>;

/// Gate for the requests of an epoch: passes them until it is closed, and counts those under way.
#[derive(Clone)]
pub(crate) struct Fence {
    state: Arc<watch::Sender<FenceState>>,
    // Leadership of the epoch, which writes need.
    leadership: Arc<watch::Sender<Leadership>>,
    // Clients behind this fence. Each has a task of kube's, which ends with the client's last
    // clone.
    clients: TaskTracker,
}

#[derive(Default)]
struct FenceState {
    closed: bool,
    /// Requests that have passed and have no response yet.
    under_way: usize,
    unknown: usize,
    /// Requests and response bodies that the fence owns, by number.
    exchanges: HashMap<u64, Arc<ExchangeSlot>>,
    next: u64,
}

/// The epoch is over, or this replica does not lead: the request was not sent, or it was dropped
/// before its whole response had arrived. In the second case the outcome of a write is unknown, and
/// counted so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the epoch is over or does not lead: the request was dropped")]
pub struct FenceClosed;

/// Request that has passed the fence; under way until it is answered.
///
/// If dropped without a response, the outcome of the request is unknown and counted so.
#[must_use = "the outcome counts as unknown when this is dropped"]
pub(crate) struct Passage {
    fence: Fence,
    answered: bool,
    // Callback at the end of a write that is not reported to its observer yet.
    on_end: Option<OnEnd>,
    // Present while the response of a successful write arrives.
    response: WriteResponse,
}

impl Passage {
    /// Records that the request was refused or not sent, or that a read has been answered.
    pub(crate) fn answered(mut self) {
        self.on_end = None;
        self.answered = true;
    }

    /// Records that the whole response of a successful write has arrived.
    fn succeeded(mut self) {
        self.answered = true;
        if let Some(on_end) = self.on_end.take() {
            on_end(WriteEnd::Answered(mem::take(&mut self.response).into_bytes()));
        }
    }

    /// Records that there is a response, but one that leaves the outcome of the write unknown to
    /// the observer.
    fn ended_unknown(mut self) {
        self.answered = true;
    }
}

impl Fence {
    /// Creates an open fence.
    pub(crate) fn new() -> Self {
        Self::elected(Leadership::NotNeeded)
    }

    /// Creates an open fence, whose writes need this leadership.
    pub(super) fn elected(leadership: Leadership) -> Self {
        let leadership = Arc::new(watch::Sender::new(leadership));
        Self { state: Arc::default(), leadership, clients: TaskTracker::new() }
    }

    /// Lets writes pass while a term holds, if they need one.
    pub(super) fn lead(&self, term: &Arc<Term>) {
        self.leadership.send_if_modified(|leadership| match leadership {
            Leadership::Awaited => {
                *leadership = Leadership::Held(Arc::clone(term));
                true
            }
            Leadership::NotNeeded | Leadership::Held(_) => false,
        });
    }

    /// Subscribes to the leadership that writes need.
    pub(super) fn subscribe_leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Passes a request that may change something, such as a write or the call of a hook. The fence
    /// must be open. If the epoch needs leadership, this replica must lead, by the clock. The
    /// passage is counted, but its holder sends the request: closing the fence does not cancel it.
    ///
    /// # Errors
    ///
    /// [`FenceClosed`] after [`Fence::close`], or while this replica does not lead.
    pub(crate) fn pass(&self) -> Result<Passage, FenceClosed> {
        if !self.leadership.borrow().allows_writes() {
            return Err(FenceClosed);
        }
        self.pass_read()
    }

    /// Passes a request that changes nothing, unless the fence is closed.
    ///
    /// # Errors
    ///
    /// [`FenceClosed`] after [`Fence::close`].
    fn pass_read(&self) -> Result<Passage, FenceClosed> {
        let open = self.state.send_if_modified(|state| {
            state.under_way += usize::from(!state.closed);
            !state.closed
        });
        if !open {
            return Err(FenceClosed);
        }
        Ok(Passage {
            fence: self.clone(),
            answered: false,
            on_end: None,
            response: WriteResponse::default(),
        })
    }

    /// Closes the fence for ever: passes no more requests, and drops those under way and the bodies
    /// of their responses. Their callers get [`FenceClosed`].
    pub(crate) fn close(&self) {
        let mut open = Vec::new();
        self.state.send_if_modified(|state| {
            if !state.closed {
                open.extend(state.exchanges.iter().map(|(id, slot)| (*id, Arc::clone(slot))));
            }
            !mem::replace(&mut state.closed, true)
        });
        // Outside of the lock: dropping a request calls back into the fence.
        for (id, slot) in open {
            if slot.cut() {
                self.forget(id);
            }
        }
    }

    /// Takes ownership of an exchange and returns its number; `None` if the fence is closed.
    fn remember(&self, slot: &Arc<ExchangeSlot>) -> Option<u64> {
        let mut id = None;
        self.state.send_if_modified(|state| {
            if !state.closed {
                state.next += 1;
                state.exchanges.insert(state.next, Arc::clone(slot));
                id = Some(state.next);
            }
            false
        });
        id
    }

    /// Forgets an exchange that has ended or whose content has been dropped.
    fn forget(&self, id: u64) {
        // Only `released` waits for this, and only on a closed fence.
        self.state.send_if_modified(|state| {
            state.exchanges.remove(&id);
            state.closed && state.exchanges.is_empty()
        });
    }

    /// Number of requests that have passed and are neither answered nor dropped.
    pub(crate) fn under_way(&self) -> usize {
        self.state.borrow().under_way
    }

    /// Number of requests whose outcome is unknown, because they ended without the server's
    /// response.
    pub(crate) fn unknown(&self) -> usize {
        self.state.borrow().unknown
    }

    /// Waits until no request is under way. Bodies of reads do not count. Cancel safe.
    pub(crate) async fn wait_answered(&self) {
        let mut state = self.state.subscribe();
        // The sender lives in `self`, so this cannot fail.
        drop(state.wait_for(|state| state.under_way == 0).await);
    }

    /// Waits until a closed fence owns nothing: at once, unless another thread polls a request at
    /// this moment. Cancel safe.
    pub(crate) async fn released(&self) {
        let mut state = self.state.subscribe();
        let left = |state: &FenceState| !state.exchanges.is_empty() || state.under_way > 0;
        // The sender lives in `self`, so this cannot fail.
        drop(state.wait_for(|state| !left(state)).await);
    }

    /// Tasks of the clients behind this fence.
    pub(crate) fn clients(&self) -> &TaskTracker {
        &self.clients
    }

    /// Waits until every client behind this fence has been dropped and its task has ended. Cancel
    /// safe.
    pub(super) async fn clients_gone(&self) {
        self.clients.close();
        self.clients.wait().await;
    }

    /// Returns `client` behind this fence.
    ///
    /// A read counts as answered when the head of its response has arrived, or when its future is
    /// dropped; its body can be read until the fence closes. The outcome of a write is unknown
    /// unless its whole response was read. Examples are a dropped future, a lost connection, and
    /// the response of a gateway (502, 504).
    ///
    /// The message of a refused request for Secrets is removed, since it may quote the Secret. Its
    /// `Status` keeps code, reason and field paths.
    ///
    /// kube spawns a task for each call of this method to move requests through: clone the returned
    /// client rather than call this again.
    pub(crate) fn client(&self, client: &Client) -> Client {
        self.observed_client(client, Self::unobserved())
    }

    /// Returns an observer that ignores writes.
    pub(crate) fn unobserved() -> WriteObserver {
        Arc::new(|_write| Box::new(|_end| {}))
    }

    /// As [`Fence::client`], with an observer of the writes that the server has carried out or may
    /// have. A server error (5xx) counts as unknown there, because the server may have stored the
    /// write before the error. A 503 with `Retry-After` is not an exception. kube-apiserver sends
    /// it before it handles a request, but a proxy may send it for a request that it has already
    /// forwarded.
    pub(crate) fn observed_client(&self, client: &Client, observer: WriteObserver) -> Client {
        FencedSender::new(self, client, observer).client()
    }
}

impl Default for Fence {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let unknown = usize::from(!self.answered);
        if !self.answered
            && let Leadership::Held(term) = &*self.fence.leadership.borrow()
        {
            term.write_dropped();
        }
        // Called while the request still counts as under way: `wait_answered` resolves after the
        // observer has run.
        if let Some(on_end) = self.on_end.take() {
            on_end(WriteEnd::Unknown);
        }
        self.fence.state.send_modify(|state| {
            state.under_way -= 1;
            state.unknown += unknown;
        });
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.borrow();
        f.debug_struct("Fence")
            .field("closed", &state.closed)
            .field("under_way", &state.under_way)
            .field("unknown", &state.unknown)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Passage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage")
            .field("fence", &self.fence)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
