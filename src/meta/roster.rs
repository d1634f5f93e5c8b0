//! The parents that a controller knows: whose children are whose, and whose hook fails.
//!
//! Handlers read it to map a child to its parent without decoding anything. A parent that was
//! never reconciled is not in it and need not be: its first reconcile sees every child.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{
    Selector,
    claim::UID_LABEL,
    write_limit::{Flapping, WriteLimit},
};
use crate::{
    controller::{Backoff, Pace, RetryGate, Wait},
    informer::{Delta, Object, ObjectKey},
};

/// How long what the server made of a status is taken to be what it makes of it: a schema that has
/// no place for a field may get one.
const SETTLED: Duration = Duration::from_secs(60);

/// How often a hook that is out is asked: once a second after a few tries, though a thousand parents
/// wait, and once in ten seconds, though only one does.
const HOOK_OUT: Pace = Pace {
    gap: Duration::from_secs(1),
    burst: 10,
    probe: Some(Duration::from_secs(10)),
    longest: Duration::from_secs(1000),
};

/// What is known of the parents of one controller.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    parents: Mutex<Parents>,
    health: watch::Sender<Health>,
    changed: OnChange,
}

/// Told of every change of health.
struct OnChange(Box<dyn Fn() + Send + Sync>);

impl Default for OnChange {
    fn default() -> Self {
        Self(Box::new(|| {}))
    }
}

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnChange")
    }
}

#[derive(Debug, Default)]
struct Parents {
    by_key: HashMap<ObjectKey, Entry>,
    by_uid: HashMap<Arc<str>, ObjectKey>,
    failing: BTreeMap<ObjectKey, Failure>,
    // Those for which the hook was out when it was asked last.
    gate: RetryGate<ObjectKey>,
}

#[derive(Debug)]
struct Entry {
    uid: Arc<str>,
    selector: Selector,
    // Digests of the status that was wanted last, and of what the server made of it; and when.
    status: Option<(u64, u64, Instant)>,
    write_limit: WriteLimit,
}

/// Why a parent's hook is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// CamelCase.
    pub(crate) reason: &'static str,
    /// A sentence.
    pub(crate) message: String,
}

/// Whether hooks answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// At least one answer was usable.
    pub(crate) proven: bool,
    /// Parents whose last answer was not.
    pub(crate) failing: usize,
    /// The first of them, and why.
    pub(crate) example: Option<(ObjectKey, Failure)>,
}

impl Roster {
    /// An empty roster that calls `changed` when the health changes; it must not block.
    pub(crate) fn new(changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self { changed: OnChange(Box::new(changed)), ..Self::default() }
    }

    /// Notes a parent, before its children are read: what changes afterwards finds it.
    pub(crate) fn enrol(&self, key: &ObjectKey, uid: &Arc<str>, selector: &Selector) {
        let mut parents = self.lock();
        match parents.by_key.get_mut(key) {
            Some(entry) if entry.uid == *uid => {
                if entry.selector != *selector {
                    entry.selector = selector.clone();
                }
                return;
            }
            Some(entry) => {
                let old = entry.uid.clone();
                parents.by_uid.remove(&old);
            }
            None => {}
        }
        let (uid, selector) = (uid.clone(), selector.clone());
        let entry = Entry { uid, selector, status: None, write_limit: WriteLimit::default() };
        parents.by_uid.insert(entry.uid.clone(), key.clone());
        parents.by_key.insert(key.clone(), entry);
    }

    /// Forgets a parent that is gone, or none of ours any more.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        let mut parents = self.lock();
        if let Some(entry) = parents.by_key.remove(key) {
            parents.by_uid.remove(&entry.uid);
        }
        parents.gate.forget(key);
        if parents.failing.remove(key).is_some() {
            self.publish(&parents, false);
        }
    }

    /// The hook is out, as far as this parent tells. Returns when to ask again.
    pub(crate) fn hook_out(&self, key: &ObjectKey, backoff: Backoff, failures: u32) -> Duration {
        let pace = Pace { longest: backoff.max, ..HOOK_OUT };
        let wait = Wait { backoff: backoff.delay(failures), at_least: Duration::ZERO };
        let (spread, now) = (fastrand::f64(), Instant::now());
        self.lock().gate.failed(key.clone(), wait, &pace, spread, now)
    }

    /// The hook was not asked about this parent, or was there and did not do what was wanted: no
    /// end of an outage is a reason to ask about it again.
    pub(crate) fn hook_told_otherwise(&self, key: &ObjectKey) {
        self.lock().gate.forget(key);
    }

    /// The hook answered. Returns which other parents to ask about at once.
    pub(crate) fn hook_answered(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        // None of them was asked to wait.
        let next = self.lock().gate.answered(key, Instant::now());
        next.into_iter().map(|(key, _)| key).collect()
    }

    /// Forgets everything: the epoch is over.
    pub(crate) fn clear(&self) {
        *self.lock() = Parents::default();
        self.health.send_replace(Health::default());
        (self.changed.0)();
    }

    /// The hook's answer was usable.
    pub(crate) fn healthy(&self, key: &ObjectKey) {
        let mut parents = self.lock();
        if parents.failing.remove(key).is_some() || !self.health.borrow().proven {
            self.publish(&parents, true);
        }
    }

    /// The hook gave no usable answer. Returns whether that is new.
    pub(crate) fn failing(&self, key: &ObjectKey, failure: Failure) -> bool {
        let mut parents = self.lock();
        let new = parents.failing.get(key) != Some(&failure);
        parents.failing.insert(key.clone(), failure);
        self.publish(&parents, false);
        new
    }

    /// Whether something may be written for a parent.
    pub(crate) fn may_write(&self, key: &ObjectKey, what: &str) -> bool {
        let mut parents = self.lock();
        let entry = parents.by_key.get_mut(key);
        entry.is_none_or(|entry| entry.write_limit.may_write(what, Instant::now()))
    }

    /// Notes that something was written for a parent.
    pub(crate) fn wrote(&self, key: &ObjectKey, what: String) {
        if let Some(entry) = self.lock().by_key.get_mut(key) {
            entry.write_limit.wrote(what, Instant::now());
        }
    }

    /// Notes that somebody else wrote something first.
    pub(crate) fn outwritten(&self, key: &ObjectKey, what: &str) {
        if let Some(entry) = self.lock().by_key.get_mut(key) {
            entry.write_limit.outwritten(what, Instant::now());
        }
    }

    /// What is written too often for a parent.
    pub(crate) fn flapping(&self, key: &ObjectKey) -> Option<Flapping> {
        self.lock().by_key.get(key)?.write_limit.flapping(Instant::now())
    }

    /// Whether hooks answer, and every later change.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Whether the server made `stored` of the status `wanted` not long ago, and will again.
    pub(crate) fn status_settled(&self, key: &ObjectKey, wanted: u64, stored: u64) -> bool {
        let parents = self.lock();
        let known = parents.by_key.get(key).and_then(|entry| entry.status);
        known.is_some_and(|(of, made, at)| (of, made) == (wanted, stored) && at.elapsed() < SETTLED)
    }

    /// Notes what the server made of a status.
    pub(crate) fn settle_status(&self, key: &ObjectKey, wanted: u64, stored: u64) {
        if let Some(entry) = self.lock().by_key.get_mut(key) {
            entry.status = Some((wanted, stored, Instant::now()));
        }
    }

    /// All parents.
    pub(crate) fn parents(&self) -> Vec<ObjectKey> {
        self.lock().by_key.keys().cloned().collect()
    }

    /// The parents that a change of a child concerns: its owner, before and after; for one
    /// without an owner, those that would adopt it.
    pub(crate) fn concerned(&self, delta: &Delta) -> Vec<ObjectKey> {
        let parents = self.lock();
        let mut keys = Vec::new();
        for object in [&delta.old, &delta.new].into_iter().flatten() {
            match object.controller() {
                Some(owner) => keys.extend(parents.by_uid.get(&owner.uid).cloned()),
                None if delta.new.is_some() => parents.adopters(object, &mut keys),
                None => {}
            }
        }
        keys.dedup();
        keys
    }

    fn publish(&self, parents: &Parents, proven: bool) {
        let changed = self.health.send_if_modified(|health| {
            let first = parents.failing.first_key_value();
            let now = Health {
                proven: proven || health.proven,
                failing: parents.failing.len(),
                example: first.map(|(key, failure)| (key.clone(), failure.clone())),
            };
            let changed = *health != now;
            *health = now;
            changed
        });
        if changed {
            (self.changed.0)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parents> {
        self.parents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parents {
    fn adopters(&self, orphan: &Object, keys: &mut Vec<ObjectKey>) {
        let header = orphan.header();
        if header.deletion_timestamp.is_some() {
            return;
        }
        let would_adopt = |key: &ObjectKey, entry: &Entry| {
            (key.namespace.is_none() || key.namespace == header.key.namespace)
                && entry.selector.matches(&header.labels)
        };
        // A generated selector names its one parent.
        let named = header.labels.get(UID_LABEL).and_then(|uid| self.by_uid.get_key_value(uid));
        if let Some((_, key)) = named
            && self.by_key.get(key).is_some_and(|entry| would_adopt(key, entry))
        {
            keys.push(key.clone());
            return;
        }
        keys.extend(
            self.by_key
                .iter()
                .filter(|(key, entry)| would_adopt(key, entry))
                .map(|(key, _)| key.clone()),
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::children::fixtures::served, *};
    use crate::kind::Scope;

    fn object(labels: Value, owner: Option<&str>) -> Object {
        let owners: Vec<Value> = owner
            .map(|uid| {
                json!({
                    "apiVersion": "example.com/v1", "kind": "Thing", "name": "p", "uid": uid,
                    "controller": true
                })
            })
            .into_iter()
            .collect();
        let json = json!({
            "metadata": {
                "name": "c", "namespace": "ns", "uid": "c", "labels": labels,
                "ownerReferences": owners
            }
        });
        let served = served("", "configmaps", "ConfigMap", Scope::Namespaced);
        Object::from_json(json.to_string(), &served).unwrap()
    }

    fn concerned(roster: &Roster, old: Option<Object>, new: Option<Object>) -> Vec<String> {
        let key = ObjectKey::namespaced("ns", "c");
        let delta = Delta { key, old, new, initial: false };
        roster.concerned(&delta).iter().map(ToString::to_string).collect()
    }

    fn roster() -> Roster {
        let roster = Roster::default();
        let parent = |namespace: &str, name: &str, selector: Selector| {
            roster.enrol(&ObjectKey::namespaced(namespace, name), &name.into(), &selector);
        };
        parent("ns", "a", Selector::label("app", "x"));
        parent("ns", "b", Selector::label(UID_LABEL, "b"));
        parent("far", "c", Selector::label("app", "x"));
        roster
    }

    #[test]
    fn a_child_concerns_its_owner_before_and_after() {
        let (of_a, of_b) = (object(json!({}), Some("a")), object(json!({}), Some("b")));

        assert_eq!(concerned(&roster(), None, Some(of_a.clone())), ["ns/a"]);
        assert_eq!(concerned(&roster(), Some(of_a.clone()), Some(of_b)), ["ns/a", "ns/b"]);
        assert_eq!(concerned(&roster(), Some(of_a), None), ["ns/a"]);
        let of_nobody = object(json!({}), Some("stranger"));
        assert!(concerned(&roster(), None, Some(of_nobody)).is_empty());
    }

    #[test]
    fn an_orphan_concerns_who_would_adopt_it() {
        let orphan = |labels: Value| Some(object(labels, None));

        assert_eq!(concerned(&roster(), None, orphan(json!({"app": "x"}))), ["ns/a"]);
        assert_eq!(concerned(&roster(), None, orphan(json!({"controller-uid": "b"}))), ["ns/b"]);
        assert!(concerned(&roster(), None, orphan(json!({}))).is_empty());
        assert!(concerned(&roster(), orphan(json!({"app": "x"})), None).is_empty());
    }

    #[test]
    fn a_parent_of_the_same_name_is_another_one() {
        let roster = roster();

        roster.enrol(
            &ObjectKey::namespaced("ns", "a"),
            &"new".into(),
            &Selector::label("app", "x"),
        );

        assert!(concerned(&roster, None, Some(object(json!({}), Some("a")))).is_empty());
        assert_eq!(concerned(&roster, None, Some(object(json!({}), Some("new")))), ["ns/a"]);
    }

    #[test]
    fn health_is_the_sum_of_the_parents() {
        let (roster, key) = (roster(), ObjectKey::namespaced("ns", "a"));
        let health = roster.health();
        let failure = Failure { reason: "HookTimeout", message: "late".to_owned() };

        roster.failing(&key, failure);
        assert_eq!(health.borrow().failing, 1);
        assert!(!health.borrow().proven);

        roster.healthy(&key);
        assert_eq!(*health.borrow(), Health { proven: true, failing: 0, example: None });
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_that_is_gone_is_counted_no_more_and_follows_no_end_of_an_outage() {
        let roster = roster();
        let [a, b] = ["a", "b"].map(|name| ObjectKey::namespaced("ns", name));
        for key in [&a, &b] {
            roster.failing(key, Failure { reason: "HookTimeout", message: "late".to_owned() });
            roster.hook_out(key, Backoff::default(), 0);
        }

        roster.forget(&b);

        assert_eq!(roster.health().borrow().failing, 1);
        assert!(!roster.parents().contains(&b));
        assert!(concerned(&roster, None, Some(object(json!({}), Some("b")))).is_empty());
        assert!(roster.hook_answered(&a).is_empty(), "nobody else waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_the_schema_pruned_is_offered_again_after_a_minute() {
        let (roster, key) = (Roster::default(), ObjectKey::namespaced("ns", "a"));
        roster.enrol(&key, &"u".into(), &Selector::default());

        roster.settle_status(&key, 1, 2);

        assert!(roster.status_settled(&key, 1, 2));
        assert!(!roster.status_settled(&key, 1, 3) && !roster.status_settled(&key, 3, 2));
        tokio::time::advance(SETTLED).await;
        assert!(!roster.status_settled(&key, 1, 2));
    }
}
