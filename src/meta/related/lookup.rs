//! Lookup of related objects in a cache, by its indexes of names and labels.

use std::collections::BTreeMap;

use crate::informer::{Index, Interest, Object, Selection, Store};

/// Name of the index by label.
const BY_LABEL: &str = "label";
/// Name of the index by name.
const BY_NAME: &str = "name";

/// Returns the index by label.
pub(super) fn by_label() -> Index {
    Index::new(BY_LABEL, |object| {
        let labels = object.header().labels.iter();
        labels.map(|(key, value)| format!("{key}={value}")).collect()
    })
}

/// Returns the index by name.
pub(super) fn by_name() -> Index {
    Index::new(BY_NAME, |object| vec![object.key().name.to_string()])
}

/// Returns the objects that interests concern, in the order of their keys.
pub(super) fn select(store: &Store, interests: &[Interest]) -> Vec<Object> {
    let mut found = BTreeMap::new();
    for interest in interests {
        let candidates = match interest {
            Interest::Named(key) => store.get(key).into_iter().collect(),
            Interest::NamedAnywhere(name) => store.by_index(BY_NAME, name),
            Interest::Selected(selection) => candidates(store, selection),
            Interest::Everything
            | Interest::OwnerKind(_)
            | Interest::OwnerUid(_)
            | Interest::Orphans(_) => store.all(),
        };
        let concerned = candidates.into_iter().filter(|it| interest.concerns(it.header()));
        found.extend(concerned.map(|object| (object.key().clone(), object)));
    }
    found.into_values().collect()
}

/// Returns objects among which are all that a selection selects: by the smallest index of a label,
/// by namespace, or all.
fn candidates(store: &Store, selection: &Selection) -> Vec<Object> {
    let indexed = selection.positive().map(|(key, values)| {
        let values = values.into_iter();
        values
            .flat_map(|value| store.by_index(BY_LABEL, &format!("{key}={value}")))
            .collect::<Vec<_>>()
    });
    match (indexed.min_by_key(Vec::len), &selection.namespace) {
        (Some(found), _) => found,
        (None, Some(namespace)) => store.all_in(namespace),
        (None, None) => store.all(),
    }
}
