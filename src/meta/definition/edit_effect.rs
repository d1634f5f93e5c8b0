//! Effect of an edit of a declared controller on its runnable. A decision without I/O.
//!
//! The inputs of the runnable are built from the types of parents and children. A change of these
//! needs a new epoch. Each sync reads the rest of the definition, which is replaced while the epoch
//! runs.

use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};

use super::{ChildRule, Definition, ParentType};
use crate::meta::{
    api::{CompositeControllerSpec, DecoratorControllerSpec, controller_kind::ControllerKind},
    hooks::rule::HookRule,
};

/// Effect of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EditEffect {
    /// No effect: nothing is replaced.
    Keep,
    /// The definition is replaced while the epoch runs.
    Swap(NextSyncs),
    /// A new epoch replaces the current one.
    NewEpoch,
}

/// Time of the syncs that follow a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NextSyncs {
    /// The next change or resync of each parent, since its result stays the same. Parents whose
    /// last sync failed are synced at once.
    WhenDue,
    /// Every parent, spread over a minute: its result may differ.
    Spread,
    /// Every parent at once: the user waits for the effect.
    AtOnce,
}

/// Returns the effect of an edit from `old` to `new`.
pub(crate) fn edit_effect(old: &Definition, new: &Definition) -> EditEffect {
    // Without `..`, so that a new field cannot be forgotten.
    let Definition {
        kind,
        name,
        parents,
        children,
        generate_selector,
        revision_fields,
        resync_period,
        max_owner_depth,
        optional_related,
        workers,
        apply_strategy,
        field_manager,
        sync,
        finalize,
        customize,
        controller,
    } = old;
    let is_same_apply =
        *apply_strategy == new.apply_strategy && *field_manager == new.field_manager;
    if *kind != new.kind || *name != new.name {
        return EditEffect::NewEpoch;
    }
    let swap =
        |is_same: bool, syncs| if is_same { EditEffect::Keep } else { EditEffect::Swap(syncs) };
    // Without rolling types only the hooks read them.
    let revised = if new.is_rolling() { NextSyncs::AtOnce } else { NextSyncs::Spread };
    let effects = [
        of_parents(parents, &new.parents),
        of_children(children, &new.children),
        swap(is_same_apply, NextSyncs::AtOnce),
        swap(*generate_selector == new.generate_selector, NextSyncs::AtOnce),
        swap(*revision_fields == new.revision_fields, revised),
        swap(*resync_period == new.resync_period, NextSyncs::WhenDue),
        swap(*max_owner_depth == new.max_owner_depth, NextSyncs::Spread),
        swap(*optional_related == new.optional_related, NextSyncs::AtOnce),
        swap(*workers == new.workers, NextSyncs::WhenDue),
        of_hook(sync.as_ref(), new.sync.as_ref()),
        of_hook(finalize.as_ref(), new.finalize.as_ref()),
        of_hook(customize.as_ref(), new.customize.as_ref()),
    ];
    let effect = effects.into_iter().max().unwrap_or(EditEffect::Keep);
    if effect == EditEffect::Keep && !same_spec(*kind, controller, &new.controller) {
        // Only the hooks read the field: they receive the specification as `controller`.
        return EditEffect::Swap(NextSyncs::Spread);
    }
    effect
}

/// Returns the effect of an edit of the parent types. Their order is that of the requests.
fn of_parents(old: &[ParentType], new: &[ParentType]) -> EditEffect {
    let pairs = || old.iter().zip(new);
    let is_same_type = |(old, new): (&ParentType, &ParentType)| {
        let ParentType { type_ref, rules: _ } = old;
        *type_ref == new.type_ref
    };
    if old.len() != new.len() || !pairs().all(is_same_type) {
        return EditEffect::NewEpoch;
    }
    if pairs().any(|(old, new)| old.rules != new.rules) {
        return EditEffect::Swap(NextSyncs::AtOnce);
    }
    EditEffect::Keep
}

/// Returns the effect of an edit of the child types.
fn of_children(old: &[ChildRule], new: &[ChildRule]) -> EditEffect {
    if old.len() != new.len() {
        return EditEffect::NewEpoch;
    }
    let of_rule = |(old, new): (&ChildRule, &ChildRule)| {
        let ChildRule { type_ref, strategy, checks, optional, ignore_status_changes } = old;
        if *type_ref != new.type_ref || *optional != new.optional {
            return EditEffect::NewEpoch;
        }
        // Once status changes count again, no parent may miss the earlier ones.
        let is_same_trigger = *ignore_status_changes == new.ignore_status_changes;
        if *strategy != new.strategy || *checks != new.checks || !is_same_trigger {
            return EditEffect::Swap(NextSyncs::AtOnce);
        }
        EditEffect::Keep
    };
    old.iter().zip(new).map(of_rule).max().unwrap_or(EditEffect::Keep)
}

/// Returns the effect of an edit of one hook.
fn of_hook(old: Option<&HookRule>, new: Option<&HookRule>) -> EditEffect {
    let (Some(old), Some(new)) = (old, new) else {
        let is_same = old.is_none() && new.is_none();
        return if is_same { EditEffect::Keep } else { EditEffect::Swap(NextSyncs::AtOnce) };
    };
    let HookRule { version, strict, url, is_service, timeout, etag, endpoint } = old;
    if (*version, *strict) != (new.version, new.strict) || *url != new.url {
        return EditEffect::Swap(NextSyncs::AtOnce);
    }
    let is_same_call = (*timeout, *etag, *is_service) == (new.timeout, new.etag, new.is_service);
    if !is_same_call || *endpoint != new.endpoint {
        return EditEffect::Swap(NextSyncs::WhenDue);
    }
    EditEffect::Keep
}

/// Returns whether two accepted objects of a kind have the same specification. Defaults that the
/// server fills in count as written.
fn same_spec(kind: ControllerKind, one: &Bytes, other: &Bytes) -> bool {
    fn same<S: DeserializeOwned + PartialEq>(one: &Bytes, other: &Bytes) -> bool {
        #[derive(Deserialize)]
        struct SpecOnly<S> {
            spec: S,
        }
        let spec =
            |object: &Bytes| serde_json::from_slice(object).map(|SpecOnly::<S> { spec }| spec);
        match (spec(one), spec(other)) {
            (Ok(one), Ok(other)) => one == other,
            _ => one == other,
        }
    }
    match kind {
        ControllerKind::Composite => same::<CompositeControllerSpec>(one, other),
        ControllerKind::Decorator => same::<DecoratorControllerSpec>(one, other),
    }
}

#[cfg(test)]
mod tests;
