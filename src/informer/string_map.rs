//! String map: labels and annotations in packed form.
//!
//! A `BTreeMap` of strings takes half a kilobyte for its first entry, and an informer holds two
//! maps per object. Here all text of a map is a single allocation.

use std::{collections::BTreeMap, fmt};

/// An immutable map of strings, sorted by key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct StringMap {
    // Alternating keys and values, sorted by key, without separators.
    text: Box<str>,
    // End offset of each key and each value.
    ends: Box<[u32]>,
}

impl StringMap {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = low + (high - low) / 2;
            let (candidate, value) = self.entry(middle)?;
            match candidate.cmp(key) {
                std::cmp::Ordering::Equal => return Some(value),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Returns whether the map contains a key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + '_ {
        (0..self.len()).filter_map(|index| self.entry(index))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Returns an estimate of the allocated bytes.
    pub(super) fn memory(&self) -> usize {
        if self.is_empty() { 0 } else { self.text.len() + 4 * self.ends.len() + 32 }
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns a copy in the form that kube's selectors and typed objects need.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn entry(&self, index: usize) -> Option<(&str, &str)> {
        let start = match index {
            0 => 0,
            _ => *self.ends.get(index * 2 - 1)? as usize,
        };
        let middle = *self.ends.get(index * 2)? as usize;
        let end = *self.ends.get(index * 2 + 1)? as usize;
        Some((self.text.get(start..middle)?, self.text.get(middle..end)?))
    }
}

/// Packs a sorted map. Entries beyond 4 GiB are dropped.
fn pack<'a>(entries: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> StringMap {
    let (count, bytes) = entries
        .clone()
        .fold((0, 0), |(count, bytes), (key, value)| (count + 1, bytes + key.len() + value.len()));
    let mut text = String::with_capacity(bytes);
    let mut ends = Vec::with_capacity(count * 2);
    for (key, value) in entries {
        let middle = u32::try_from(text.len() + key.len());
        let end = u32::try_from(text.len() + key.len() + value.len());
        let (Ok(middle), Ok(end)) = (middle, end) else { break };
        text.push_str(key);
        text.push_str(value);
        ends.extend([middle, end]);
    }
    StringMap { text: text.into_boxed_str(), ends: ends.into_boxed_slice() }
}

impl<K: AsRef<str> + Ord, V: AsRef<str>> From<&BTreeMap<K, V>> for StringMap {
    fn from(map: &BTreeMap<K, V>) -> Self {
        pack(map.iter().map(|(key, value)| (key.as_ref(), value.as_ref())))
    }
}

/// The last value of a repeated key counts, as in JSON.
impl<K: AsRef<str> + Ord, V: AsRef<str>> FromIterator<(K, V)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self::from(&entries.into_iter().collect::<BTreeMap<K, V>>())
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
        let map: StringMap = [("a", "1"), ("a", "2")].into_iter().collect();

        assert_eq!(map.get("a"), Some("2"));
        assert_eq!(map.len(), 1);
    }

    proptest! {
        #[test]
        fn string_map_reads_as_the_map_it_was_packed_from(
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
