//! String map: labels and annotations in packed form.
//!
//! A `BTreeMap` of strings takes half a kilobyte for its first entry, and an informer holds two
//! maps per object. Here a map is a single allocation, and an empty map is none.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

/// Bytes of an offset of 32 bits: digits of 7 bits, which are text.
const OFFSET: usize = 5;

/// An immutable map of strings, sorted by key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct StringMap {
    // Number of entries, end offset of each key and each value, and the text. The text has
    // alternating keys and values, sorted by key, without separators. Empty without entries.
    packed: Box<str>,
}

impl StringMap {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = low + (high - low) / 2;
            match self.text(2 * middle).cmp(key) {
                Ordering::Equal => return Some(self.text(2 * middle + 1)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
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
        (0..self.len()).map(|index| (self.text(2 * index), self.text(2 * index + 1)))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.number(0)
    }

    /// Returns an estimate of the allocated bytes.
    pub(super) fn memory(&self) -> usize {
        if self.is_empty() { 0 } else { self.packed.len() + 16 }
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// Returns a copy in the form that kube's selectors and typed objects need.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Returns a key, at an even place, or the value after it.
    fn text(&self, place: usize) -> &str {
        let text = OFFSET * (1 + 2 * self.len());
        let start = if place == 0 { 0 } else { self.number(place) };
        self.packed.get(text + start..text + self.number(place + 1)).unwrap_or_default()
    }

    /// Returns the number of entries, at place 0, or an end offset.
    fn number(&self, place: usize) -> usize {
        let digits = self.packed.get(OFFSET * place..OFFSET * (place + 1)).unwrap_or_default();
        digits.bytes().fold(0, |number, digit| (number << 7) | usize::from(digit))
    }
}

/// Packs a sorted map. Entries beyond 4 GiB are dropped.
fn pack<'a>(entries: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> StringMap {
    let mut ends = Vec::new();
    let mut text = 0;
    for (key, value) in entries.clone() {
        let (middle, end) = (text + key.len(), text + key.len() + value.len());
        let (Ok(middle), Ok(last)) = (u32::try_from(middle), u32::try_from(end)) else { break };
        ends.extend([middle, last]);
        text = end;
    }
    if ends.is_empty() {
        return StringMap::default();
    }
    let count = ends.len() / 2;
    let mut packed = Vec::with_capacity(OFFSET * (1 + ends.len()) + text);
    // Never more than offsets, which fit.
    packed.extend(digits(u32::try_from(count).unwrap_or(u32::MAX)));
    packed.extend(ends.into_iter().flat_map(digits));
    for (key, value) in entries.take(count) {
        packed.extend_from_slice(key.as_bytes());
        packed.extend_from_slice(value.as_bytes());
    }
    // Digits and whole strings are text.
    StringMap { packed: String::from_utf8(packed).unwrap_or_default().into_boxed_str() }
}

/// Returns the digits of a number, the most significant one first.
fn digits(number: u32) -> [u8; OFFSET] {
    [28, 21, 14, 7, 0].map(|shift| ((number >> shift) & 0x7f) as u8)
}

impl<K: AsRef<str> + Ord, V: AsRef<str>> From<&BTreeMap<K, V>> for StringMap {
    fn from(map: &BTreeMap<K, V>) -> Self {
        pack(map.iter().map(|(key, value)| (key.as_ref(), value.as_ref())))
    }
}

/// The last value of a repeated key counts, as in JSON.
impl<K: AsRef<str> + Ord, V: AsRef<str>> FromIterator<(K, V)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let entries: Vec<(K, V)> = entries.into_iter().collect();
        // Go encodes maps in the order of their keys.
        if entries.is_sorted_by(|(one, _), (other, _)| one < other) {
            return pack(entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref())));
        }
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

    #[test]
    fn long_values_are_read_as_they_were_packed() {
        for length in [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 5_000_000] {
            let given = BTreeMap::from([("a", "x".repeat(length)), ("b", "y".to_owned())]);

            let map = StringMap::from(&given);

            assert_eq!(map.get("a").map(str::len), Some(length));
            assert_eq!(map.get("b"), Some("y"), "{length}");
        }
        assert_eq!(digits(u32::MAX), [15, 127, 127, 127, 127]);
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
