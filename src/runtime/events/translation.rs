//! Translation of an informer's changes to watcher events of kube-rs: decisions without I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};

use kube_runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::{
    informer::{Delta, Object, ObjectKey},
    redaction,
};

/// State of a stream of events.
pub(super) struct Translation<K> {
    /// Type of the objects, for the log.
    resource: String,
    listed: bool,
    events: VecDeque<Event<K>>,
    /// Deletions and replacements before the end of the initial list, merged per object. kube's
    /// store fills a buffer until then, from which nothing can be removed.
    deferred: BTreeMap<ObjectKey, Delta>,
    /// Last versions that could be decoded, of objects whose current version cannot.
    kept: HashMap<ObjectKey, Object>,
}

impl<K: DeserializeOwned> Translation<K> {
    pub(super) fn new(resource: String) -> Self {
        Self {
            resource,
            listed: false,
            events: [Event::Init].into(),
            deferred: BTreeMap::new(),
            kept: HashMap::new(),
        }
    }

    /// Returns the next event.
    pub(super) fn next(&mut self) -> Option<Event<K>> {
        self.events.pop_front()
    }

    /// Returns whether the initial list is complete.
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Records that every object of the first list was delivered.
    pub(super) fn on_drained(&mut self) {
        self.listed = true;
        self.events.push_back(Event::InitDone);
        for delta in std::mem::take(&mut self.deferred).into_values() {
            self.on_delta(delta);
        }
    }

    /// Translates a change.
    pub(super) fn on_delta(&mut self, delta: Delta) {
        if !self.listed {
            if let Some(deferred) = self.deferred.get_mut(&delta.key) {
                deferred.new = delta.new;
                return;
            }
            if self.consumer_has(&delta).is_some_and(|old| !is_update(&old, delta.new.as_ref())) {
                self.deferred.insert(delta.key.clone(), delta);
                return;
            }
        }
        let old = self.consumer_has(&delta);
        let same = old.as_ref().is_some_and(|old| is_update(old, delta.new.as_ref()));
        let new = delta.new.filter(Object::is_whole);
        let decoded = new.and_then(|new| self.decode(&new));
        match (old, decoded) {
            // The object that exists cannot be decoded: consumers keep the version that they have.
            (Some(old), None) if same => drop(self.kept.insert(delta.key, old)),
            (old, decoded) => {
                self.kept.remove(&delta.key);
                let deleted = old.filter(|_| !same).and_then(|old| old.decode().ok());
                self.events.extend(deleted.map(Event::Delete));
                let event = if self.listed { Event::Apply } else { Event::InitApply };
                self.events.extend(decoded.map(event));
            }
        }
    }

    /// Returns the version of an object that consumers have.
    fn consumer_has(&self, delta: &Delta) -> Option<Object> {
        match self.kept.get(&delta.key) {
            Some(kept) => Some(kept.clone()),
            None => delta.old.clone().filter(Object::is_whole),
        }
    }

    fn decode(&self, object: &Object) -> Option<K> {
        match object.decode() {
            Ok(decoded) => Some(decoded),
            Err(error) => {
                let (namespace, name) = (object.key().namespace.as_deref(), &object.key().name);
                let (resource, error) = (&self.resource, redaction::decoding(error));
                warn!(resource, namespace, %name, error, "object cannot be decoded");
                None
            }
        }
    }
}

/// Returns whether `new` is a later version of the same object.
fn is_update(old: &Object, new: Option<&Object>) -> bool {
    new.is_some_and(|new| new.is_whole() && new.header().uid == old.header().uid)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::informer::fixture::Fixture;

    /// Object whose generation is required.
    #[derive(Clone, Debug, Deserialize)]
    struct Widget {
        metadata: Metadata,
    }

    #[derive(Clone, Debug, Deserialize)]
    struct Metadata {
        name: String,
        uid: String,
        generation: u32,
    }

    fn widget(name: &str, uid: &str, generation: u32) -> Object {
        Fixture::new(name).uid(uid).set("generation", json!(generation)).object()
    }

    /// Widget without a generation.
    fn malformed(name: &str, uid: &str) -> Object {
        Fixture::new(name).uid(uid).object()
    }

    fn translation() -> Translation<Widget> {
        Translation::new("widgets".to_owned())
    }

    fn listed() -> Translation<Widget> {
        let mut translation = translation();
        translation.on_drained();
        assert_eq!(said(&mut translation), ["Init", "InitDone"]);
        translation
    }

    fn change(old: Option<Object>, new: Option<Object>) -> Delta {
        let key = old.iter().chain(&new).next().unwrap().key().clone();
        Delta { key, old, new, initial: false, interests: Vec::new() }
    }

    /// Events since the last call, as text.
    fn said(translation: &mut Translation<Widget>) -> Vec<String> {
        let events = std::iter::from_fn(|| translation.next());
        let of = |what: &str, widget: Widget| {
            let Metadata { name, uid, generation } = widget.metadata;
            format!("{what} {name} {uid} {generation}")
        };
        let said = events.map(|event| match event {
            Event::Init => "Init".to_owned(),
            Event::InitApply(widget) => of("InitApply", widget),
            Event::InitDone => "InitDone".to_owned(),
            Event::Apply(widget) => of("Apply", widget),
            Event::Delete(widget) => of("Delete", widget),
        });
        said.collect()
    }

    #[test]
    fn initial_list_comes_before_every_later_change() {
        let mut translation = translation();

        translation.on_delta(change(None, Some(widget("a", "1", 1))));
        translation.on_delta(change(Some(widget("a", "1", 1)), Some(widget("a", "1", 2))));
        translation.on_drained();
        translation.on_delta(change(Some(widget("a", "1", 2)), None));

        let expected = ["Init", "InitApply a 1 1", "InitApply a 1 2", "InitDone", "Delete a 1 2"];
        assert_eq!(said(&mut translation), expected);
    }

    #[test]
    fn another_uid_is_a_deletion_and_then_an_apply() {
        let mut translation = listed();

        translation.on_delta(change(Some(widget("a", "1", 1)), Some(widget("a", "2", 7))));

        assert_eq!(said(&mut translation), ["Delete a 1 1", "Apply a 2 7"]);
    }

    #[test]
    fn deletion_during_the_initial_list_follows_its_end() {
        let mut translation = translation();
        let (old, new) = (widget("a", "1", 1), widget("a", "2", 2));
        for name in ["a", "b"] {
            translation.on_delta(change(None, Some(widget(name, "1", 1))));
        }

        translation.on_delta(change(Some(old.clone()), None));
        translation.on_delta(change(None, Some(new.clone())));
        translation.on_delta(change(Some(new), Some(widget("a", "2", 3))));
        translation.on_delta(change(Some(widget("b", "1", 1)), None));
        let init = ["Init", "InitApply a 1 1", "InitApply b 1 1"];
        assert_eq!(said(&mut translation), init);
        translation.on_drained();

        let later = ["InitDone", "Delete a 1 1", "Apply a 2 3", "Delete b 1 1"];
        assert_eq!(said(&mut translation), later);
    }

    #[test]
    fn object_that_cannot_be_decoded_keeps_its_previous_version_and_stops_no_other() {
        let mut translation = listed();
        let (first, bad) = (widget("a", "1", 1), malformed("a", "1"));

        translation.on_delta(change(None, Some(first.clone())));
        translation.on_delta(change(Some(first), Some(bad.clone())));
        translation.on_delta(change(Some(bad.clone()), Some(bad.clone())));
        translation.on_delta(change(None, Some(widget("b", "1", 1))));
        assert_eq!(said(&mut translation), ["Apply a 1 1", "Apply b 1 1"]);
        translation.on_delta(change(Some(bad), None));

        assert_eq!(said(&mut translation), ["Delete a 1 1"]);
        assert!(translation.kept.is_empty());
    }

    #[test]
    fn object_that_never_could_be_decoded_is_applied_once_it_can() {
        let mut translation = translation();
        let bad = malformed("a", "1");

        translation.on_delta(change(None, Some(bad.clone())));
        translation.on_drained();
        translation.on_delta(change(Some(bad.clone()), Some(bad.clone())));
        assert_eq!(said(&mut translation), ["Init", "InitDone"]);
        translation.on_delta(change(Some(bad.clone()), Some(widget("a", "1", 2))));
        translation.on_delta(change(Some(widget("a", "1", 2)), Some(bad.clone())));
        translation.on_delta(change(Some(bad), Some(malformed("a", "2"))));

        assert_eq!(said(&mut translation), ["Apply a 1 2", "Delete a 1 2"]);
        assert!(translation.kept.is_empty());
    }

    #[test]
    fn object_that_is_no_longer_kept_whole_is_deleted() {
        let mut translation = listed();
        let whole = widget("a", "1", 1);

        translation.on_delta(change(Some(whole.clone()), Some(whole.reduced())));
        translation.on_delta(change(Some(whole.reduced()), None));
        translation.on_delta(change(Some(whole.reduced()), Some(whole)));

        assert_eq!(said(&mut translation), ["Delete a 1 1", "Apply a 1 1"]);
    }
}
