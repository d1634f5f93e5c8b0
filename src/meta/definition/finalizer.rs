//! Finalizer of a controller on its parents: decisions without I/O.
//!
//! A controller with a finalize hook adds its finalizer to a parent before any other write for it,
//! so that the hook is called before the parent is gone. The finalizer is removed when the hook
//! returns `finalized`, or when the controller no longer declares the hook.

use serde_json::{Value, json};

use crate::{
    informer::Header,
    meta::{api::controller_kind::ControllerKind, hooks::rule::HookKind},
};

/// Finalizers of the API server's garbage collector. While a parent has one, the collector deletes
/// or orphans its children, and the controller does not manage them.
const COLLECTOR: [&str; 2] = ["foregroundDeletion", "orphan"];
/// Maximum length of a finalizer's name after the slash, as the API server accepts it.
const MAX_NAME: usize = 63;

/// Returns the maximum length of a controller's name with a finalize hook, in characters.
pub(crate) fn longest_name(kind: ControllerKind) -> usize {
    let own = kind.finalizer_prefix().rsplit_once('/').map_or(0, |(_, own)| own.len());
    MAX_NAME - own
}

/// Finalizer of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finalizer {
    /// Name in `metadata.finalizers`.
    pub(crate) name: String,
    /// True if the finalize hook is declared.
    pub(crate) declared: bool,
}

/// First step of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstStep {
    /// Add the finalizer.
    Add,
    /// Remove the finalizer, which no hook would remove.
    Remove,
    /// Call this hook.
    Call(HookKind),
}

impl Finalizer {
    /// Finalizer of the controller of this kind and name.
    pub(crate) fn of(kind: ControllerKind, controller: &str, declared: bool) -> Self {
        Self { name: format!("{}{controller}", kind.finalizer_prefix()), declared }
    }

    /// Returns whether an object has the finalizer.
    pub(crate) fn is_on(&self, object: &Header) -> bool {
        object.finalizers.contains(&self.name)
    }

    /// Returns the first step of a sync; `None` if the state about the object is to be dropped.
    /// `selected` is true if the object matches the selector of the controller.
    pub(crate) fn first_step(&self, object: &Header, selected: bool) -> Option<FirstStep> {
        let terminating = object.deletion_timestamp.is_some();
        Some(match (self.is_on(object), self.declared) {
            (false, _) if !selected => return None,
            (true, false) => FirstStep::Remove,
            // The API server refuses new finalizers of an object that is being deleted.
            (false, true) if !terminating => FirstStep::Add,
            (_, true) if terminating || !selected => FirstStep::Call(HookKind::Finalize),
            (_, _) => FirstStep::Call(HookKind::Sync),
        })
    }

    /// Returns whether the children of a parent are managed: it is not being deleted, or it waits
    /// for this finalizer and the garbage collector does not handle its children.
    pub(crate) fn manages_children(&self, object: &Header) -> bool {
        let collected = || object.finalizers.iter().any(|it| COLLECTOR.contains(&it.as_str()));
        object.deletion_timestamp.is_none() || self.declared && self.is_on(object) && !collected()
    }

    /// Merge patch that adds the finalizer to exactly this version of an object.
    pub(crate) fn added(&self, object: &Header) -> Value {
        let others = object.finalizers.iter().filter(|it| **it != self.name);
        patch(object, others.chain([&self.name]).collect())
    }

    /// Merge patch that removes the finalizer from exactly this version of an object.
    pub(crate) fn removed(&self, object: &Header) -> Value {
        patch(object, object.finalizers.iter().filter(|it| **it != self.name).collect())
    }
}

/// Merge patch of the whole list, since a merge replaces lists.
fn patch(object: &Header, finalizers: Vec<&String>) -> Value {
    json!({
        "metadata": {
            "uid": object.uid,
            "resourceVersion": object.resource_version,
            "finalizers": finalizers,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{informer::Object, kind::Scope, meta::children::fixtures::served};

    const OURS: &str = "metacontroller.io/compositecontroller-things";

    fn object(finalizers: &[&str], terminating: bool) -> Object {
        let mut json = json!({"metadata": {
            "name": "a", "uid": "u", "resourceVersion": "7", "finalizers": finalizers,
        }});
        if terminating {
            json["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let served = served("example.com", "things", "Thing", Scope::Cluster);
        Object::from_json(json.to_string(), &served).unwrap()
    }

    #[test]
    fn first_step_follows_from_finalizer_hook_selector_and_deletion() {
        use FirstStep::{Add, Call, Remove};
        use HookKind::{Finalize, Sync};

        for (is_on, declared, selected, terminating, expected) in [
            (false, false, true, false, Some(Call(Sync))),
            (false, false, true, true, Some(Call(Sync))),
            (false, false, false, false, None),
            (false, false, false, true, None),
            (false, true, true, false, Some(Add)),
            (false, true, true, true, Some(Call(Finalize))),
            (false, true, false, false, None),
            (false, true, false, true, None),
            (true, false, true, false, Some(Remove)),
            (true, false, true, true, Some(Remove)),
            (true, false, false, false, Some(Remove)),
            (true, false, false, true, Some(Remove)),
            (true, true, true, false, Some(Call(Sync))),
            (true, true, true, true, Some(Call(Finalize))),
            (true, true, false, false, Some(Call(Finalize))),
            (true, true, false, true, Some(Call(Finalize))),
        ] {
            let finalizer = Finalizer::of(ControllerKind::Composite, "things", declared);
            let object = object(if is_on { &["other", OURS] } else { &["other"] }, terminating);

            let step = finalizer.first_step(object.header(), selected);

            assert_eq!(step, expected, "{is_on} {declared} {selected} {terminating}");
        }
    }

    #[test]
    fn children_are_managed_while_the_parent_waits_for_the_finalizer_alone() {
        for (finalizers, declared, terminating, expected) in [
            (&[][..], false, false, true),
            (&[], true, false, true),
            (&["orphan"], true, false, true),
            (&[], true, true, false),
            (&["other"], true, true, false),
            (&[OURS], false, true, false),
            (&[OURS], true, true, true),
            (&[OURS, "other"], true, true, true),
            (&[OURS, "foregroundDeletion"], true, true, false),
            (&["orphan", OURS], true, true, false),
        ] {
            let finalizer = Finalizer::of(ControllerKind::Composite, "things", declared);
            let object = object(finalizers, terminating);

            let managed = finalizer.manages_children(object.header());

            assert_eq!(managed, expected, "{finalizers:?} {declared} {terminating}");
        }
    }

    #[test]
    fn patch_keeps_the_finalizers_of_others_and_the_version_of_the_object() {
        let finalizer = Finalizer::of(ControllerKind::Composite, "things", true);
        let patch = |finalizers: Value| json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": finalizers}});

        let added = finalizer.added(object(&["other"], false).header());
        assert_eq!(added, patch(json!(["other", OURS])));
        let removed = finalizer.removed(object(&["one", OURS, "other"], true).header());
        assert_eq!(removed, patch(json!(["one", "other"])));
    }
}
