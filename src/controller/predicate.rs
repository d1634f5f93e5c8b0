//! Predicates: drop changes before they reach a handler.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::Event;
use crate::{
    guard::GuardedDrop,
    informer::{Delta, Header, Object, Selector},
};

/// Predicate: drops changes before they reach a handler.
///
/// Predicates that compare the old object with the new one pass every creation and deletion, and
/// also an object that was recreated between two events. Semantics: `pkg/predicate` of
/// controller-runtime, except where stated.
///
/// ```
/// use k8s_openapi::api::apps::v1::Deployment;
/// use pilotlight::controller::{Controller, Event, Predicate};
///
/// let is_ready = |deployment: &Deployment| {
///     deployment.status.as_ref().is_some_and(|status| status.ready_replicas > Some(0))
/// };
/// let becomes_ready = Predicate::typed::<Deployment>(move |event| match event {
///     Event::Update { old, new } => is_ready(&new) && !is_ready(&old),
///     Event::Create { .. } | Event::Delete { .. } => true,
/// });
/// let builder = Controller::builder("deployments")
///     .for_::<Deployment>()
///     .predicate(becomes_ready.or(Predicate::generation()));
/// # drop(builder);
/// ```
#[derive(Clone)]
pub struct Predicate {
    pass: Arc<PassFn>,
    // Field that the predicate reads and `keys_only` does not keep, if known.
    reads: Option<&'static str>,
    // True if the predicate decodes the objects.
    decodes: bool,
}

/// Function of a change of one object. The flag is true for the object of a generic event, given as
/// created. Returns `None` for an object that cannot be decoded.
type PassFn = dyn Fn(&Delta, bool) -> Option<bool> + Send + Sync;

impl Predicate {
    /// Returns a predicate that passes the changes for which a function returns `true`.
    pub fn new(pass: impl Fn(&Delta) -> bool + Send + Sync + 'static) -> Self {
        Self::of(move |delta, _| Some(pass(delta)))
    }

    fn of(pass: impl Fn(&Delta, bool) -> Option<bool> + Send + Sync + 'static) -> Self {
        let pass = GuardedDrop::new(pass);
        let pass = move |delta: &Delta, is_generic| pass(delta, is_generic);
        Self { pass: Arc::new(pass), reads: None, decodes: false }
    }

    /// Returns a predicate of each event of an object: create, update or delete.
    ///
    /// ```
    /// use pilotlight::controller::{Event, Predicate};
    ///
    /// let no_deletions = Predicate::events(|event| !matches!(event, Event::Delete { .. }));
    /// let labels_or_generation = Predicate::labels().or(Predicate::generation());
    /// let predicate = no_deletions.and(labels_or_generation);
    /// # drop(predicate);
    /// ```
    pub fn events(pass: impl Fn(Event<&Object>) -> bool + Send + Sync + 'static) -> Self {
        Self::new(move |delta| Event::of(delta).is_some_and(&pass))
    }

    /// Returns a predicate of each event of an object, decoded to its Rust type. An object that
    /// cannot be decoded passes, also with `!`, unless another predicate decides.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilotlight::controller::{Event, Predicate};
    ///
    /// let data = Predicate::typed(|event: Event<ConfigMap>| match event {
    ///     Event::Update { old, new } => old.data != new.data,
    ///     Event::Create { .. } | Event::Delete { .. } => true,
    /// });
    /// # drop(data);
    /// ```
    pub fn typed<K: DeserializeOwned>(
        pass: impl Fn(Event<K>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let passes = Self::of(move |delta, _| match Event::of(delta).map(Event::decode) {
            None => Some(false),
            Some(Ok(event)) => Some(pass(event)),
            Some(Err(_)) => None,
        });
        Self { decodes: true, ..passes }
    }

    /// Returns this predicate with a function for generic events. Without it, a predicate decides
    /// about the object of a generic event as about a created one. The inputs of types have no such
    /// events.
    ///
    /// Semantics: `GenericFunc` of `predicate.Funcs` in controller-runtime (`pkg/predicate`).
    ///
    /// ```
    /// use pilotlight::{controller::Predicate, informer::Object};
    ///
    /// let is_marked = |object: &Object| object.header().labels.get("sync").is_some();
    /// let changes = Predicate::labels().generic(is_marked);
    /// # drop(changes);
    /// ```
    #[must_use]
    pub fn generic(self, pass: impl Fn(&Object) -> bool + Send + Sync + 'static) -> Self {
        let Self { reads, decodes, .. } = self;
        let passes = Self::of(move |delta, is_generic| match &delta.new {
            Some(object) if is_generic => Some(pass(object)),
            Some(_) | None => (self.pass)(delta, false),
        });
        Self { reads, decodes, ..passes }
    }

    /// Passes changes of the specification, and the begin of a deletion.
    ///
    /// The server raises the generation of custom resources, and of most built-in types, with
    /// each change of the specification and at the begin of a deletion. For a type without
    /// generations every change passes, since they cannot be distinguished; controller-runtime
    /// drops them all.
    ///
    /// A change of finalizers does not pass. A reconciler that adds its finalizer and relies on the
    /// event of that change, such as the `finalizer` of kube, needs [`Predicate::finalizers`] too:
    ///
    /// ```
    /// use pilotlight::controller::Predicate;
    ///
    /// let predicate = Predicate::generation().or(Predicate::finalizers());
    /// # drop(predicate);
    /// ```
    pub fn generation() -> Self {
        let generation = Self::changed(|old, new| {
            old.generation != new.generation
                || new.generation == 0
                || old.deletion_timestamp.is_some() != new.deletion_timestamp.is_some()
        });
        generation.reading("generation")
    }

    /// Passes changes of the resourceVersion: drops the events of a resync.
    pub fn resource_version() -> Self {
        Self::changed(|old, new| {
            // An aggregated API may send no resourceVersion.
            old.resource_version != new.resource_version || new.resource_version.is_empty()
        })
    }

    /// Passes changes of labels: those of the server, also with a
    /// [`Transform`](crate::informer::Transform).
    pub fn labels() -> Self {
        Self::changed(|old, new| old.labels != new.labels).reading("labels")
    }

    /// Passes changes of annotations.
    pub fn annotations() -> Self {
        Self::changed(|old, new| old.annotations != new.annotations).reading("annotations")
    }

    /// Passes changes of finalizers.
    pub fn finalizers() -> Self {
        Self::changed(|old, new| old.finalizers != new.finalizers).reading("finalizers")
    }

    /// Passes objects that match a selector, or matched before the change, so that the end of a
    /// match passes too.
    pub fn selector(selector: impl Into<Selector>) -> Self {
        let selector = selector.into();
        let matches = Self::new(move |delta| {
            [&delta.old, &delta.new]
                .into_iter()
                .flatten()
                .any(|object| selector.matches(&object.header().labels))
        });
        matches.reading("labels")
    }

    /// Passes changes that both predicates pass.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (reads, decodes) = self.reads_with(&other);
        let both = Self::of(move |delta, is_generic| match (self.pass)(delta, is_generic) {
            Some(false) => Some(false),
            Some(true) => (other.pass)(delta, is_generic),
            None => (other.pass)(delta, is_generic).filter(|passes| !passes),
        });
        Self { reads, decodes, ..both }
    }

    /// Passes changes that at least one of both predicates passes.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let (reads, decodes) = self.reads_with(&other);
        let either = Self::of(move |delta, is_generic| match (self.pass)(delta, is_generic) {
            Some(true) => Some(true),
            Some(false) => (other.pass)(delta, is_generic),
            None => (other.pass)(delta, is_generic).filter(|passes| *passes),
        });
        Self { reads, decodes, ..either }
    }

    /// Returns whether a change passes: for an object that was created again, the deletion of the old
    /// one or the creation of the new one.
    pub fn passes(&self, delta: &Delta) -> bool {
        delta.parts().any(|part| (self.pass)(&part, false).unwrap_or(true))
    }

    /// Returns whether the object of a generic event passes, given as its creation.
    pub(super) fn passes_generic(&self, created: &Delta) -> bool {
        (self.pass)(created, true).unwrap_or(true)
    }

    /// Returns the field that the predicate reads and `keys_only` does not keep. Unknown for a
    /// user's function, which may read any field.
    pub(super) fn reads(&self) -> Option<&'static str> {
        self.reads
    }

    /// Returns whether the predicate decodes the objects to a Rust type.
    pub(super) fn decodes(&self) -> bool {
        self.decodes
    }

    /// Returns what both predicates read.
    fn reads_with(&self, other: &Self) -> (Option<&'static str>, bool) {
        (self.reads.or(other.reads), self.decodes || other.decodes)
    }

    fn reading(self, field: &'static str) -> Self {
        Self { reads: Some(field), ..self }
    }

    fn changed(changed: impl Fn(&Header, &Header) -> bool + Send + Sync + 'static) -> Self {
        Self::new(move |delta| match (&delta.old, &delta.new) {
            // The object begins or ceases to concern the input.
            (Some(old), Some(new)) if old.is_whole() != new.is_whole() => true,
            // The two are one object in a resync.
            (Some(old), Some(new)) => !old.is(new) && changed(old.header(), new.header()),
            (None, _) | (_, None) => true,
        })
    }
}

/// Inverts the predicate.
impl std::ops::Not for Predicate {
    type Output = Self;

    fn not(self) -> Self {
        let Self { reads, decodes, .. } = self;
        let inverse = Self::of(move |delta, is_generic| Some(!(self.pass)(delta, is_generic)?));
        Self { reads, decodes, ..inverse }
    }
}

impl std::fmt::Debug for Predicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Predicate")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixture::{delta, widget};

    fn changed(predicate: &Predicate, old: Value, new: Value) -> bool {
        predicate.passes(&delta(Some(widget(old)), Some(widget(new))))
    }

    #[track_caller]
    fn check(predicate: &Predicate, old: Value, new: Value, expected: bool) {
        assert_eq!(changed(predicate, old.clone(), new.clone()), expected, "{old} to {new}");
    }

    #[test]
    fn creations_and_deletions_pass_whatever_must_have_changed() {
        let any = || Some(widget(json!({})));
        for predicate in [
            Predicate::generation(),
            Predicate::resource_version(),
            Predicate::labels(),
            Predicate::annotations(),
            Predicate::finalizers(),
        ] {
            assert!(predicate.passes(&delta(None, any())));
            assert!(predicate.passes(&delta(any(), None)));
        }
    }

    #[test]
    fn resync_passes_no_predicate_of_changes_also_without_generations_and_versions() {
        let object = widget(json!({}));
        let resync = delta(Some(object.clone()), Some(object));
        for predicate in [
            Predicate::generation(),
            Predicate::resource_version(),
            Predicate::labels(),
            Predicate::annotations(),
            Predicate::finalizers(),
        ] {
            assert!(!predicate.passes(&resync));
        }
    }

    #[test]
    fn object_that_was_created_again_between_two_looks_passes() {
        let (old, new) =
            (json!({"uid": "a", "generation": 1}), json!({"uid": "b", "generation": 1}));
        for predicate in [
            Predicate::generation(),
            Predicate::labels(),
            Predicate::annotations(),
            Predicate::finalizers(),
        ] {
            check(&predicate, old.clone(), new.clone(), true);
        }
    }

    #[test]
    fn generation_passes_changes_of_the_specification_and_the_begin_of_a_deletion() {
        let generation = Predicate::generation();
        let deleted = "2026-01-01T00:00:00Z";

        check(&generation, json!({"generation": 1}), json!({"generation": 2}), true);
        check(&generation, json!({"generation": 2}), json!({"generation": 2}), false);
        check(
            &generation,
            json!({"generation": 2}),
            json!({"generation": 2, "deletionTimestamp": deleted}),
            true,
        );
        check(&generation, json!({}), json!({"labels": {"a": "b"}}), true);
    }

    #[test]
    fn others_pass_what_they_are_named_after() {
        let version = Predicate::resource_version();
        check(&version, json!({"resourceVersion": "1"}), json!({"resourceVersion": "1"}), false);
        check(&version, json!({"resourceVersion": "1"}), json!({"resourceVersion": "2"}), true);

        let labels = Predicate::labels();
        check(&labels, json!({"labels": {"a": "b"}}), json!({"labels": {"a": "c"}}), true);
        check(&labels, json!({"labels": {"a": "b"}}), json!({"labels": {"a": "b"}}), false);
        check(&labels, json!({}), json!({"annotations": {"a": "c"}}), false);

        let annotations = Predicate::annotations();
        check(&annotations, json!({}), json!({"annotations": {"a": "c"}}), true);
        check(&annotations, json!({}), json!({"labels": {"a": "c"}}), false);

        let finalizers = Predicate::finalizers();
        check(&finalizers, json!({}), json!({"finalizers": ["a.test/b"]}), true);
        check(&finalizers, json!({"finalizers": ["a.test/b"]}), json!({}), true);
        check(&finalizers, json!({}), json!({"labels": {"a": "c"}}), false);
    }

    #[test]
    fn selector_passes_what_matches_or_did() {
        let of_kube: kube::core::Selector = [("app", "web")].into_iter().collect();
        let (web, db) = (json!({"labels": {"app": "web"}}), json!({"labels": {"app": "db"}}));

        for selector in
            [Predicate::selector(Selector::label("app", "web")), Predicate::selector(of_kube)]
        {
            check(&selector, web.clone(), web.clone(), true);
            check(&selector, db.clone(), web.clone(), true);
            check(&selector, web.clone(), db.clone(), true);
            check(&selector, db.clone(), db.clone(), false);
            assert!(selector.passes(&delta(Some(widget(web.clone())), None)));
            assert!(!selector.passes(&delta(None, Some(widget(db.clone())))));
        }
    }

    #[test]
    fn object_that_was_created_again_is_a_deletion_and_a_creation_for_every_combination() {
        let no_deletions = || Predicate::events(|event| !matches!(event, Event::Delete { .. }));
        let deletions = || Predicate::events(|event| matches!(event, Event::Delete { .. }));
        let creations = || Predicate::events(|event| matches!(event, Event::Create { .. }));
        let (old, new) = (json!({"uid": "a"}), json!({"uid": "b"}));

        for passing in [!deletions(), no_deletions(), creations().or(deletions()), !creations()] {
            check(&passing, old.clone(), new.clone(), true);
        }
        for never in [creations().and(deletions()), !creations().or(deletions())] {
            check(&never, old.clone(), new.clone(), false);
        }
    }

    #[test]
    fn object_that_cannot_be_decoded_passes_unless_another_predicate_decides() {
        let typed = || Predicate::typed::<Vec<u8>>(|_| panic!("it is no list"));
        let (yes, no) = (|| Predicate::new(|_| true), || Predicate::new(|_| false));

        for passing in [typed(), !typed(), !!typed(), typed().and(yes()), typed().or(no())] {
            check(&passing, json!({}), json!({"labels": {"a": "b"}}), true);
        }
        for dropping in
            [typed().and(no()), no().and(typed()), !typed().or(yes()), !yes().or(typed())]
        {
            check(&dropping, json!({}), json!({"labels": {"a": "b"}}), false);
        }
    }

    #[test]
    fn object_that_begins_or_ceases_to_concern_the_input_passes() {
        let (whole, entry) = (widget(json!({})), widget(json!({})).reduced());
        for predicate in [
            Predicate::generation(),
            Predicate::resource_version(),
            Predicate::labels(),
            Predicate::annotations(),
            Predicate::finalizers(),
        ] {
            assert!(predicate.passes(&delta(Some(entry.clone()), Some(whole.clone()))));
            assert!(predicate.passes(&delta(Some(whole.clone()), Some(entry.clone()))));
        }
    }

    #[test]
    fn predicates_combine() {
        let yes = || Predicate::new(|_| true);
        let no = || Predicate::new(|_| false);
        let any = delta(None, Some(widget(json!({}))));

        assert!(yes().and(yes()).passes(&any) && !yes().and(no()).passes(&any));
        assert!(no().or(yes()).passes(&any) && !no().or(no()).passes(&any));
        assert!((!no()).passes(&any) && !(!yes()).passes(&any));
    }
}
