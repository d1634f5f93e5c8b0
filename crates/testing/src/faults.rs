//! Faults between a client and the API server: responses and failures that a healthy server does
//! not produce on demand.

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
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::response::Parts;
use kube::{Client, Config, client::ClientBuilder};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

pub use self::{
    action::{Action, Reply},
    body::FaultBody,
    request::{RequestInfo, Verb},
    rule::Rule,
    schedule::{Fault, Profile, Schedule, ScheduleGuard},
    service::{FaultLayer, FaultService},
};

use super::Error;

/// Set of rules that disturb requests, with a record of the requests. Clones share both.
///
/// The first added rule that acts on a request wins; without such a rule the request passes. Rules
/// may be added and removed while requests run.
///
/// ```no_run
/// # use pilotlight_testing::{Action, ControlPlane, Faults, Reply, Rule, Verb};
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
    shared: Arc<SharedFaults>,
}

/// Identifier of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(u64);

/// Request whose response has not begun or not ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenRequest {
    /// Verb, type and path of the request.
    pub info: RequestInfo,
    /// True once the head of the response has arrived, for example for an open watch.
    pub answered: bool,
    /// Start of the request.
    pub since: tokio::time::Instant,
}

/// Record of a fault that has happened: the response was replaced, the connection broke, the event
/// was repeated. A rule that cuts after more bytes than the response has leaves no record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultRecord {
    /// Rule of the fault.
    pub rule: RuleId,
    /// Number of the request among the matches of the rule, from 1.
    pub number: usize,
    /// Name of the action, as in rules: `cut`, `reply`.
    pub action: &'static str,
    /// Disturbed request.
    pub request: RequestInfo,
}

impl fmt::Display for FaultRecord {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { number, action, request, .. } = self;
        write!(f, "{action} of request {number}: {:?} {}", request.verb, request.path)
    }
}

/// Earlier responses, by path and query of their request.
type Memory = BTreeMap<String, (Parts, Bytes)>;

#[derive(Default)]
struct SharedFaults {
    state: Mutex<FaultState>,
    /// Counter of changes of the state, for waiting.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct FaultState {
    last_id: u64,
    rules: BTreeMap<RuleId, CountedRule>,
    seen: Vec<RequestInfo>,
    open: BTreeMap<u64, (OpenRequest, CancellationToken)>,
    fired: Vec<FaultRecord>,
    /// Number of passed watch events by group and resource.
    passed: BTreeMap<(String, String), u64>,
}

struct CountedRule {
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
    /// Returns a client whose requests pass through these faults. It belongs to the runtime that
    /// creates it.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the configuration is unusable.
    pub fn client(&self, config: Config) -> Result<Client, Error> {
        let builder = ClientBuilder::try_from(config).map_err(Error::api("making a client"))?;
        Ok(builder.with_layer(&self.layer()).build())
    }

    /// Returns a layer for a custom service stack under [`Client::new`]. Faults act at the place of
    /// the layer: put it outside of the layers that need the server's own responses.
    pub fn layer(&self) -> FaultLayer {
        FaultLayer::new(self.clone())
    }

    /// Adds a rule after the others.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.change(|state| {
            let id = RuleId(state.next_id());
            state
                .rules
                .insert(id, CountedRule { rule, matches: 0, hits: 0, memory: Memory::new() });
            id
        })
    }

    /// Adds the rules of a schedule, until the handle is dropped.
    pub fn play(&self, schedule: &Schedule) -> ScheduleGuard {
        ScheduleGuard::new(self.clone(), schedule.clone())
    }

    /// Removes a rule; requests that it holds resume.
    pub fn remove(&self, id: RuleId) {
        self.shared.change(|state| state.rules.remove(&id));
    }

    /// Removes all rules; requests that they hold resume.
    pub fn clear(&self) {
        self.shared.change(|state| state.rules.clear());
    }

    /// Returns the faults that have happened, in order, including those of removed rules. A test
    /// that relies on a fault asserts that it is listed.
    pub fn fired(&self) -> Vec<FaultRecord> {
        self.shared.state().fired.clone()
    }

    /// Returns the number of requests that a rule has acted on; 0 once it is removed.
    pub fn hits(&self, id: RuleId) -> usize {
        self.shared.state().rules.get(&id).map_or(0, |counted| counted.hits)
    }

    /// Returns the requests so far, in order, including those that were not sent.
    pub fn seen(&self) -> Vec<RequestInfo> {
        self.shared.state().seen.clone()
    }

    /// Clears the record of requests.
    pub fn forget_seen(&self) {
        self.shared.change(|state| state.seen.clear());
    }

    /// Returns the open requests, watches included.
    pub fn open(&self) -> Vec<OpenRequest> {
        self.shared.state().open.values().map(|(open, _)| open.clone()).collect()
    }

    /// Breaks the connection of the open requests that `which` selects; returns their number.
    pub fn cut_open(&self, which: impl Fn(&RequestInfo) -> bool) -> usize {
        let state = self.shared.state();
        let cut = state.open.values().filter(|(open, _)| which(&open.info));
        cut.map(|(_, cut)| cut.cancel()).count()
    }

    /// Waits until `condition` holds, which is evaluated again after each change of this handle's
    /// state.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        while !condition(self) {
            // The sender lives as long as this handle, so that an error is impossible.
            changes.changed().await.ok();
        }
    }

    /// Waits until a rule is removed, or its time limit is reached.
    async fn released(&self, acting: Option<&Acting>) {
        let Some(Acting { rule, at_most, .. }) = acting else { return };
        let removed = self.wait_until(|faults| !faults.shared.state().rules.contains_key(rule));
        match at_most {
            Some(long) => drop(time::timeout(*long, removed).await),
            None => removed.await,
        }
    }

    /// Waits until an event of this type has passed since the call.
    async fn behind(self, group: String, resource: String, at_most: Duration) {
        let of_type = (group, resource);
        let passed = |faults: &Self| faults.shared.state().passed.get(&of_type).copied();
        let before = passed(&self);
        // Without such an event it resumes after the limit.
        time::timeout(at_most, self.wait_until(|faults| passed(faults) > before)).await.ok();
    }

    /// Returns the server's earlier response to such a request.
    fn remembered(&self, id: RuleId, info: &RequestInfo) -> Option<(Parts, Bytes)> {
        self.shared.state().rules.get(&id)?.memory.get(&memory_key(info)).cloned()
    }

    /// Returns true if a rule needs the response to this request.
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

    /// Counts the request, and selects the action for it.
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
                        fired = Some(FaultRecord {
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

/// Key of requests for the same object or list, at any resource version.
fn memory_key(info: &RequestInfo) -> String {
    let pairs = info.query.split('&').filter(|pair| !pair.starts_with("resourceVersion"));
    let query = pairs.collect::<Vec<_>>().join("&");
    format!("{}?{query}", info.path)
}

impl SharedFaults {
    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock()
    }

    fn change<T>(&self, change: impl FnOnce(&mut FaultState) -> T) -> T {
        let changed = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        changed
    }
}

impl FaultState {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

/// Action on a request, and its rule.
struct Acting {
    rule: RuleId,
    action: Action,
    /// Limit of the time for which anything is held.
    at_most: Option<Duration>,
}

/// Guard that keeps a request among the open ones.
struct OpenGuard {
    shared: Arc<SharedFaults>,
    id: u64,
    cut: CancellationToken,
    info: RequestInfo,
    /// Rules that need the response.
    remember: Vec<RuleId>,
    /// Entry for the log, written when the fault happens.
    fired: Mutex<Option<FaultRecord>>,
}

impl OpenGuard {
    fn answered(&self) {
        self.shared.change(|state| {
            if let Some((open, _)) = state.open.get_mut(&self.id) {
                open.answered = true;
            }
        });
    }

    /// Writes the entry of the fault, once.
    fn happened(&self) {
        let fired = self.fired.lock().take();
        if let Some(fired) = fired {
            self.shared.change(|state| state.fired.push(fired));
        }
    }

    /// Counts passed bytes of the response.
    fn passed(&self, data: &[u8]) {
        // Bookmarks do not count as events.
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
