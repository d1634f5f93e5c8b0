//! String map: labels and annotations as a sorted slice.
//!
//! A `BTreeMap` of strings takes half a kilobyte for its first entry, and an informer holds two
//! maps per object. A slice takes the strings and their places, and nothing if it is empty.

use std::{collections::BTreeMap, fmt};

/// An immutable map of strings, sorted by key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct StringMap {
    entries: Box<[(Box<str>, Box<str>)]>,
}

impl StringMap {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let place = self.entries.binary_search_by(|(it, _)| (**it).cmp(key)).ok()?;
        Some(&self.entries[place].1)
    }

    /// Returns whether the map contains a key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + '_ {
        self.entries.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns an estimate of the allocated bytes.
    pub(super) fn memory(&self) -> usize {
        // An allocator rounds two short strings up by about so many bytes.
        const ROUNDING: usize = 16;
        let entry = |(key, value): (&str, &str)| key.len() + value.len() + ROUNDING;
        size_of_val(&*self.entries) + self.iter().map(entry).sum::<usize>()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns a copy in the form that kube's selectors and typed objects need.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

impl<K: AsRef<str> + Ord, V: AsRef<str>> From<&BTreeMap<K, V>> for StringMap {
    fn from(map: &BTreeMap<K, V>) -> Self {
        map.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect()
    }
}

/// The last value of a repeated key counts, as in JSON.
impl<K: AsRef<str> + Ord, V: AsRef<str>> FromIterator<(K, V)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let owned = |(key, value): (K, V)| (key.as_ref().into(), value.as_ref().into());
        let mut entries: Vec<(Box<str>, Box<str>)> = entries.into_iter().map(owned).collect();
        // The stable sort puts the last of equal keys first, which is kept.
        entries.reverse();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|(later, _), (first, _)| later == first);
        Self { entries: entries.into_boxed_slice() }
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_map_finds_nothing() {
        let map = StringMap::default();

        assert!(map.is_empty());
        assert_eq!(map.get(""), None);
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let map: StringMap = [("b", "1"), ("a", "1"), ("b", "2")].into_iter().collect();

        assert_eq!(map.get("b"), Some("2"));
        assert_eq!(map.len(), 2);
    }

    proptest! {
        #[test]
        fn string_map_reads_as_the_map_it_was_built_from(
            given in proptest::collection::btree_map("[a-c/é]{0,3}", "[xyß]{0,3}", 0..12),
        ) {
            let map = StringMap::from(&given);

            prop_assert_eq!(&map.to_map(), &given);
            for (key, value) in &given {
                prop_assert_eq!(map.get(key), Some(value.as_str()));
            }
            prop_assert_eq!(map.get("zzzz"), None);
        }
    }
}
