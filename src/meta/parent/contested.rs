//! Contested objects of one controller: desired objects of its parents that other controllers own.

use std::collections::BTreeMap;

use crate::controller::Request;

/// Maximum number of objects that are named.
const SHOWN: usize = 5;

/// Contested objects by the parents that want them.
#[derive(Debug, Default)]
pub(crate) struct ContestedObjects {
    by_parent: BTreeMap<Request, Vec<String>>,
    count: usize,
}

/// Contested objects, summed over all parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContestedSum {
    /// Number of objects; a desired object of two parents counts twice.
    pub(crate) count: usize,
    /// Parents and objects, five at most.
    pub(crate) first: Vec<(Request, String)>,
}

impl ContestedObjects {
    /// Records all contested objects of a parent. Returns whether they differ from the last ones.
    pub(crate) fn set(&mut self, parent: &Request, objects: Vec<String>) -> bool {
        let before = self.by_parent.remove(parent).unwrap_or_default();
        let differ = before != objects;
        self.count = self.count + objects.len() - before.len();
        if !objects.is_empty() {
            self.by_parent.insert(parent.clone(), objects);
        }
        differ
    }

    /// Returns the sum over all parents.
    pub(crate) fn sum(&self) -> ContestedSum {
        let all = self.by_parent.iter().flat_map(|(parent, objects)| {
            objects.iter().map(move |object| (parent.clone(), object.clone()))
        });
        ContestedSum { count: self.count, first: all.take(SHOWN).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_all_parents_are_counted_and_the_first_are_named() {
        let mut contested = ContestedObjects::default();
        let [one, two] = ["a", "b"].map(|name| Request::namespaced("ns", name));
        let objects = |count: usize| (0..count).map(|number| number.to_string()).collect();

        assert!(contested.set(&two, objects(3)));
        assert!(contested.set(&one, objects(4)));
        assert!(!contested.set(&one, objects(4)), "the same ones");

        let sum = contested.sum();
        assert_eq!(sum.count, 7);
        let parents: Vec<_> = sum.first.iter().map(|(parent, _)| parent).collect();
        assert_eq!(parents, [&one, &one, &one, &one, &two]);
        assert!(contested.set(&one, Vec::new()));
        assert!(contested.set(&two, Vec::new()));
        assert_eq!(contested.sum(), ContestedSum::default());
    }
}
