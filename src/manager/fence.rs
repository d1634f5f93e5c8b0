//! The last check before the wire.
//!
//! A fence owns each request that it lets pass, from its first poll to the end of the response's
//! body (`exchange.rs`). Closing it drops all of them, whether or not a task polls them: a request
//! that waits for a connection is not sent, and a body is not read on. A read that is dropped
//! changes nothing; the outcome of a write that is dropped is unknown.

mod ask;
mod exchange;
mod refusal;
mod write;

use std::{collections::HashMap, fmt, sync::Arc};

use futures::FutureExt;

use kube::{Client, client::Body};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tower::service_fn;
use tracing::debug;

use self::exchange::{Exchange, Slot};
#[cfg(feature = "meta")]
pub(crate) use self::refusal::wait_details;
pub(crate) use self::{ask::ask, refusal::retry_after, write::Write};
use super::BoxError;

/// Hears of every write that is about to be sent, in the task that sends it; what it returns is
/// called if the outcome of that write stays unknown.
pub(crate) type WriteObserver = Arc<dyn Fn(Write) -> Box<dyn FnOnce() + Send> + Send + Sync>;

/// Lets requests pass until it is closed, and counts those under way.
#[derive(Clone)]
pub(crate) struct Fence {
    state: Arc<watch::Sender<State>>,
    // The clients that were made. Each has a task of kube's, which ends with the last clone.
    clients: TaskTracker,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Requests that have passed and are not answered.
    under_way: usize,
    unknown: usize,
    /// Requests and bodies that are owned, by number.
    exchanges: HashMap<u64, Arc<Slot>>,
    next: u64,
}

/// The epoch is over: the request was not sent, or it was given up before its whole response had
/// arrived. In the second case the outcome of a write is unknown, and counted so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the epoch is over, the request was given up")]
pub struct FenceClosed;

/// A request that has passed; under way until it is answered.
///
/// Dropped without an answer, what the server made of the request is unknown, and counted so.
#[must_use = "the outcome counts as unknown when this is dropped"]
pub(crate) struct Passage {
    fence: Fence,
    answered: bool,
    // Called when the outcome is unknown.
    told: Option<Box<dyn FnOnce() + Send>>,
}

impl Passage {
    /// The request has been answered, or was not sent.
    pub(crate) fn answered(mut self) {
        self.told = None;
        self.answered = true;
    }

    /// There is an answer, but it leaves open what became of the request.
    fn answered_vaguely(mut self) {
        self.answered = true;
    }
}

impl Fence {
    /// An open fence.
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), clients: TaskTracker::new() }
    }

    /// Passes, unless the fence is closed. The passage counts, and its holder sends: closing the
    /// fence does not end what the holder does.
    ///
    /// # Errors
    ///
    /// [`FenceClosed`] for ever after [`Fence::close`].
    pub(crate) fn pass(&self) -> Result<Passage, FenceClosed> {
        let open = self.state.send_if_modified(|state| {
            state.under_way += usize::from(!state.closed);
            !state.closed
        });
        if !open {
            return Err(FenceClosed);
        }
        Ok(Passage { fence: self.clone(), answered: false, told: None })
    }

    /// Lets nothing pass from now on, and drops the requests under way and the bodies of their
    /// responses. Their callers get [`FenceClosed`].
    pub(crate) fn close(&self) {
        let mut open = Vec::new();
        self.state.send_if_modified(|state| {
            if !state.closed {
                open.extend(state.exchanges.iter().map(|(id, slot)| (*id, Arc::clone(slot))));
            }
            !std::mem::replace(&mut state.closed, true)
        });
        // Outside of the lock: what is dropped calls back.
        for (id, slot) in open {
            if slot.cut() {
                self.forget(id);
            }
        }
    }

    /// Owns an exchange, unless the fence is closed; its number.
    fn remember(&self, slot: &Arc<Slot>) -> Option<u64> {
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

    /// An exchange has ended, or what was left of it has been dropped.
    fn forget(&self, id: u64) {
        // Only a closed fence is waited for until it owns nothing.
        self.state.send_if_modified(|state| {
            state.exchanges.remove(&id);
            state.closed && state.exchanges.is_empty()
        });
    }

    /// How many requests have passed and are neither answered nor dropped.
    pub(crate) fn under_way(&self) -> usize {
        self.state.borrow().under_way
    }

    /// How many requests passed whose outcome is unknown, because nobody waited for it.
    pub(crate) fn unknown(&self) -> usize {
        self.state.borrow().unknown
    }

    /// Resolves when no request is under way. Bodies of reads do not count. Cancel safe.
    pub(crate) async fn quiet(&self) {
        let mut state = self.state.subscribe();
        // The sender lives in `self`, so this cannot fail.
        drop(state.wait_for(|state| state.under_way == 0).await);
    }

    /// Resolves when a fence that has been closed owns nothing any more: at once, unless a thread
    /// polls a request at this moment. Cancel safe.
    pub(crate) async fn released(&self) {
        let mut state = self.state.subscribe();
        let left = |state: &State| !state.exchanges.is_empty() || state.under_way > 0;
        // The sender lives in `self`, so this cannot fail.
        drop(state.wait_for(|state| !left(state)).await);
    }

    /// The tasks of the clients behind this fence.
    pub(super) fn clients(&self) -> &TaskTracker {
        &self.clients
    }

    /// Resolves when every client behind this fence has been dropped and its task has ended. Cancel
    /// safe.
    pub(super) async fn clients_gone(&self) {
        self.clients.close();
        self.clients.wait().await;
    }

    /// `client` behind this fence.
    ///
    /// A read counts as answered when the head of its response has arrived, or when its future is
    /// dropped; its body can be read until the fence closes. The outcome of a write is unknown
    /// unless its whole answer was read: when its future is dropped, when the connection is lost, or
    /// when a gateway answers in the server's place (502, 504).
    ///
    /// A refusal of a request about Secrets comes without the server's message, which may quote what
    /// the Secret holds: its `Status` has code, reason and field paths.
    ///
    /// kube moves requests through a task of its own, one for each call of this: clone what this
    /// returns rather than call it again.
    pub(crate) fn client(&self, client: &Client) -> Client {
        self.observed_client(client, Arc::new(|_write| Box::new(|| {})))
    }

    /// As [`Fence::client`], with somebody who hears of writes whose outcome is unknown; of those
    /// too that ended in an error of the server (5xx), which may be older than the error. That holds
    /// of a 503 with a `Retry-After` as well: kube-apiserver says it before it handles a request,
    /// but who is in between says it of one that was passed on, in the same words.
    pub(crate) fn observed_client(&self, client: &Client, observer: WriteObserver) -> Client {
        let (fence, inner) = (self.clone(), client.clone());
        // kube offers no handle on its task. It owns the service, and so this too, to its end.
        let token = self.clients.token();
        let service = service_fn(move |request: http::Request<Body>| {
            let _owned = &token;
            let (fence, inner, observer) = (fence.clone(), inner.clone(), Arc::clone(&observer));
            async move {
                let (write, method) = (Write::of(&request), request.method().clone());
                let about_secrets = refusal::is_about_secrets(request.uri().path());
                let mut passage = fence.pass()?;
                match write {
                    Some(write) => {
                        let path = write.path().to_owned();
                        let told = observer(write);
                        passage.told = Some(Box::new(move || {
                            debug!(method = %method, path, "what became of a write is unknown");
                            told();
                        }));
                    }
                    // Nothing becomes of a read.
                    None => passage.answered = true,
                }
                let send = async move {
                    let response = inner.send(request).await?;
                    let response = refusal::with_retry_after(response).await;
                    Ok(match about_secrets {
                        true => refusal::without_message(response).await,
                        false => response,
                    })
                };
                Exchange::new(passage, send.boxed()).await
            }
        });
        Client::new(service, client.default_namespace())
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
        // Before the request stops counting as under way: whoever waits for that knows all.
        if let Some(told) = self.told.take() {
            told();
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
