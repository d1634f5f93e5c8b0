//! Map by group, then by plural or version.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Entries by group, then by plural or version.
pub(super) type ByGroup<T> = HashMap<Arc<str>, BTreeMap<Arc<str>, T>>;

pub(super) fn find<'a, T>(map: &'a ByGroup<T>, group: &str, name: &str) -> Option<&'a T> {
    map.get(group)?.get(name)
}

pub(super) fn find_mut<'a, T>(
    map: &'a mut ByGroup<T>,
    group: &str,
    name: &str,
) -> Option<&'a mut T> {
    map.get_mut(group)?.get_mut(name)
}

pub(super) fn take<T>(map: &mut ByGroup<T>, group: &str, name: &str) -> Option<T> {
    let inner = map.get_mut(group)?;
    let taken = inner.remove(name);
    if inner.is_empty() {
        map.remove(group);
    }
    taken
}

pub(super) fn entries<T>(map: &ByGroup<T>) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &T)> {
    map.iter()
        .flat_map(|(group, inner)| inner.iter().map(move |(name, value)| (group, name, value)))
}
