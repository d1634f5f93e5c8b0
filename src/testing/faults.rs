//! Faults between a client and the API server: what a healthy server does not do on demand.

mod body;
mod request;
mod rule;
mod service;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Formatter},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{Client, Config, client::ClientBuilder};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::{
    body::FaultBody,
    request::{RequestInfo, Verb},
    rule::{Action, Reply, Rule},
    service::{FaultLayer, FaultService},
};

use super::Error;

/// Rules that disturb requests, and a record of the requests. Clones share both.
///
/// The first rule added that acts on a request wins; a request that no rule acts on passes. Rules
/// may be added and removed while requests run.
///
/// ```no_run
/// # use pilotlight::testing::{Action, ControlPlane, Faults, Reply, Rule, Verb};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let faults = Faults::default();
/// let client = faults.client(ControlPlane::shared().config())?;
///
/// let forbidden = Reply::status(403, "Forbidden", "widgets is forbidden");
/// let rule = faults.add(Rule::new(Action::Reply(forbidden)).verb(Verb::List));
/// // … the client's lists are refused …
/// faults.remove(rule);
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

/// Names a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(u64);

/// A request that is not answered yet, or whose answer is not at its end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenRequest {
    /// What was asked.
    pub info: RequestInfo,
    /// Whether the head of the answer has come: an open watch, for one.
    pub answered: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Counts changes of the state, so that it can be waited for.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    rules: BTreeMap<RuleId, Counted>,
    seen: Vec<RequestInfo>,
    open: BTreeMap<u64, (OpenRequest, CancellationToken)>,
}

struct Counted {
    rule: Rule,
    matches: usize,
    hits: usize,
}

impl Debug for Faults {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("Faults")
            .field("rules", &state.rules.len())
            .field("seen", &state.seen.len())
            .field("open", &state.open.len())
            .finish_non_exhaustive()
    }
}

impl Faults {
    /// A client of this configuration whose requests pass through here. It belongs to the runtime
    /// in which it is made.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when no client can be made of the configuration.
    pub fn client(&self, config: Config) -> Result<Client, Error> {
        let builder = ClientBuilder::try_from(config).map_err(Error::api("making a client"))?;
        Ok(builder.with_layer(&self.layer()).build())
    }

    /// For a service stack of one's own under [`Client::new`]. Faults act where the layer stands:
    /// put it outside of whatever needs the server's own answers.
    pub fn layer(&self) -> FaultLayer {
        FaultLayer::new(self.clone())
    }

    /// Adds a rule behind the others.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.change(|state| {
            let id = RuleId(state.next_id());
            state.rules.insert(id, Counted { rule, matches: 0, hits: 0 });
            id
        })
    }

    /// Removes a rule; requests that it holds go on.
    pub fn remove(&self, id: RuleId) {
        self.shared.change(|state| state.rules.remove(&id));
    }

    /// Removes all rules; requests that they hold go on.
    pub fn clear(&self) {
        self.shared.change(|state| state.rules.clear());
    }

    /// How many requests a rule has acted on; 0 once it is removed.
    pub fn hits(&self, id: RuleId) -> usize {
        self.shared.state().rules.get(&id).map_or(0, |counted| counted.hits)
    }

    /// The requests so far, in order, also those that were never sent.
    pub fn seen(&self) -> Vec<RequestInfo> {
        self.shared.state().seen.clone()
    }

    /// Forgets the requests so far.
    pub fn forget_seen(&self) {
        self.shared.change(|state| state.seen.clear());
    }

    /// The requests that run, watches included.
    pub fn open(&self) -> Vec<OpenRequest> {
        self.shared.state().open.values().map(|(open, _)| open.clone()).collect()
    }

    /// Breaks the connection of the open requests that `which` picks, and says of how many.
    pub fn cut_open(&self, which: impl Fn(&RequestInfo) -> bool) -> usize {
        let state = self.shared.state();
        let cut = state.open.values().filter(|(open, _)| which(&open.info));
        cut.map(|(_, cut)| cut.cancel()).count()
    }

    /// Waits until `condition` holds; it is asked again after every change of what this handle shows.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        while !condition(self) {
            // Never an error: the sender lives as long as this handle.
            changes.changed().await.ok();
        }
    }

    /// Waits until a rule is removed.
    async fn removed(&self, id: RuleId) {
        self.wait_until(|faults| !faults.shared.state().rules.contains_key(&id)).await;
    }

    /// Counts the request, and finds what is to happen to it.
    fn enter(&self, info: RequestInfo) -> (Option<(RuleId, Action)>, OpenGuard) {
        self.shared.change(|state| {
            let mut acting = None;
            for (id, counted) in &mut state.rules {
                if acting.is_none() && counted.rule.matches(&info) {
                    counted.matches += 1;
                    if counted.rule.acts_on(counted.matches - 1) {
                        counted.hits += 1;
                        acting = Some((*id, counted.rule.action.clone()));
                    }
                }
            }
            state.seen.push(info.clone());
            let id = state.next_id();
            let cut = CancellationToken::new();
            state.open.insert(id, (OpenRequest { info, answered: false }, cut.clone()));
            (acting, OpenGuard { shared: Arc::clone(&self.shared), id, cut })
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        changed
    }
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

/// Keeps a request among the open ones.
struct OpenGuard {
    shared: Arc<Shared>,
    id: u64,
    cut: CancellationToken,
}

impl OpenGuard {
    fn answered(&self) {
        self.shared.change(|state| {
            if let Some((open, _)) = state.open.get_mut(&self.id) {
                open.answered = true;
            }
        });
    }
}

impl Debug for OpenGuard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenGuard").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.shared.change(|state| state.open.remove(&self.id));
    }
}
