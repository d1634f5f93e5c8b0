//! Faults between a client and the API server: what a healthy server does not do on demand.

mod action;
mod body;
mod effect;
mod random;
mod request;
mod rule;
mod schedule;
mod service;
mod text;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Formatter},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::response::Parts;
use kube::{Client, Config, client::ClientBuilder};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

pub use self::{
    action::{Action, Reply},
    body::FaultBody,
    request::{RequestInfo, Verb},
    rule::Rule,
    schedule::{Fault, Playing, Profile, Schedule},
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
    /// Since when.
    pub since: tokio::time::Instant,
}

/// A fault that has happened: the request was answered otherwise, the connection did break, the
/// event did come twice. A rule that cuts after more bytes than there are does not get this far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired {
    /// By which rule.
    pub rule: RuleId,
    /// Which of the requests that the rule matches, counted from 1.
    pub number: usize,
    /// What was done, as rules word it: `cut`, `reply`.
    pub action: &'static str,
    /// To what.
    pub request: RequestInfo,
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { number, action, request, .. } = self;
        write!(f, "{action} of request {number}: {:?} {}", request.verb, request.path)
    }
}

/// An answer once given, by the path and query that were asked for.
type Memory = BTreeMap<String, (Parts, Bytes)>;

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
    fired: Vec<Fired>,
    /// Events of watches that have passed, by group and resource.
    passed: BTreeMap<(String, String), u64>,
}

struct Counted {
    rule: Rule,
    matches: usize,
    hits: usize,
    memory: Memory,
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
            state.rules.insert(id, Counted { rule, matches: 0, hits: 0, memory: Memory::new() });
            id
        })
    }

    /// Adds the rules of a schedule, until the handle is dropped.
    pub fn play(&self, schedule: &Schedule) -> Playing {
        Playing::new(self.clone(), schedule.clone())
    }

    /// Removes a rule; requests that it holds go on.
    pub fn remove(&self, id: RuleId) {
        self.shared.change(|state| state.rules.remove(&id));
    }

    /// Removes all rules; requests that they hold go on.
    pub fn clear(&self) {
        self.shared.change(|state| state.rules.clear());
    }

    /// The faults that have happened, in order, also those of rules that were removed since: a
    /// test that relies on a fault asserts that it is here.
    pub fn fired(&self) -> Vec<Fired> {
        self.shared.state().fired.clone()
    }

    /// How many requests a rule has chosen to act on; 0 once it is removed.
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

    /// Waits until a rule is removed, or has held something for as long as it may.
    async fn released(&self, acting: Option<&Acting>) {
        let Some(Acting { rule, at_most, .. }) = acting else { return };
        let removed = self.wait_until(|faults| !faults.shared.state().rules.contains_key(rule));
        match at_most {
            Some(long) => drop(time::timeout(*long, removed).await),
            None => removed.await,
        }
    }

    /// Waits until an event of this type has passed since.
    async fn behind(self, group: String, resource: String, at_most: Duration) {
        let of_type = (group, resource);
        let passed = |faults: &Self| faults.shared.state().passed.get(&of_type).copied();
        let before = passed(&self);
        // One that nothing overtakes goes on.
        time::timeout(at_most, self.wait_until(|faults| passed(faults) > before)).await.ok();
    }

    /// What the server once answered to such a request.
    fn remembered(&self, id: RuleId, info: &RequestInfo) -> Option<(Parts, Bytes)> {
        self.shared.state().rules.get(&id)?.memory.get(&memory_key(info)).cloned()
    }

    /// Whether a rule wants to know the answer to this request.
    fn remembers(&self, open: &OpenGuard) -> bool {
        open.info.verb != Verb::Watch && !open.remember.is_empty()
    }

    fn remember(&self, open: &OpenGuard, head: &Parts, body: &Bytes) {
        let mut state = self.shared.state();
        for id in &open.remember {
            if let Some(counted) = state.rules.get_mut(id) {
                let memory = counted.memory.entry(memory_key(&open.info));
                memory.or_insert_with(|| (head.clone(), body.clone()));
            }
        }
    }

    /// Counts the request, and finds what is to happen to it.
    fn enter(&self, info: RequestInfo) -> (Option<Acting>, OpenGuard) {
        self.shared.change(|state| {
            let mut acting = None;
            let mut fired = None;
            let mut remember = Vec::new();
            for (id, counted) in &mut state.rules {
                if acting.is_none() && counted.rule.matches(&info) {
                    counted.matches += 1;
                    if matches!(counted.rule.action, Action::Stale) {
                        remember.push(*id);
                    }
                    if counted.rule.acts_on(counted.matches - 1) {
                        counted.hits += 1;
                        let action = counted.rule.action.clone();
                        acting = Some(Acting { rule: *id, action, at_most: counted.rule.at_most });
                        fired = Some(Fired {
                            rule: *id,
                            number: counted.matches,
                            action: counted.rule.action.word(),
                            request: info.clone(),
                        });
                    }
                }
            }
            state.seen.push(info.clone());
            let id = state.next_id();
            let cut = CancellationToken::new();
            let since = tokio::time::Instant::now();
            let open = OpenRequest { info: info.clone(), answered: false, since };
            state.open.insert(id, (open, cut.clone()));
            let shared = Arc::clone(&self.shared);
            (acting, OpenGuard { shared, id, cut, info, remember, fired: Mutex::new(fired) })
        })
    }
}

/// Requests for the same thing, whatever version of it they ask for.
fn memory_key(info: &RequestInfo) -> String {
    let pairs = info.query.split('&').filter(|pair| !pair.starts_with("resourceVersion"));
    let query = pairs.collect::<Vec<_>>().join("&");
    format!("{}?{query}", info.path)
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

/// What is to happen to a request, and by which rule.
struct Acting {
    rule: RuleId,
    action: Action,
    /// Nothing is held longer than that.
    at_most: Option<Duration>,
}

/// Keeps a request among the open ones.
struct OpenGuard {
    shared: Arc<Shared>,
    id: u64,
    cut: CancellationToken,
    info: RequestInfo,
    /// Rules that want to know the answer.
    remember: Vec<RuleId>,
    /// What goes into the log once it happens.
    fired: Mutex<Option<Fired>>,
}

impl OpenGuard {
    fn answered(&self) {
        self.shared.change(|state| {
            if let Some((open, _)) = state.open.get_mut(&self.id) {
                open.answered = true;
            }
        });
    }

    /// The fault has happened; once is enough.
    fn happened(&self) {
        let fired = self.fired.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(fired) = fired {
            self.shared.change(|state| state.fired.push(fired));
        }
    }

    /// Bytes of the answer have passed.
    fn passed(&self, data: &[u8]) {
        // A bookmark is no event that could be overtaken.
        if self.info.verb == Verb::Watch && !data.starts_with(br#"{"type":"BOOKMARK""#) {
            let of_type = (self.info.group.clone(), self.info.resource.clone());
            self.shared.change(|state| *state.passed.entry(of_type).or_default() += 1);
        }
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
