//! Epoch numbers of removed runnables, so that a name that is added again does not repeat a number.

use std::collections::{HashMap, VecDeque};

use super::super::ControllerName;

/// Number of names kept; beyond it, the oldest are dropped.
const KEPT: usize = 1024;

/// Last epoch numbers of removed names, bounded by [`KEPT`].
#[derive(Debug, Default)]
pub(super) struct LastEpochNumbers {
    numbers: HashMap<ControllerName, u64>,
    // Names in the order of removal.
    order: VecDeque<ControllerName>,
    /// Highest number that was dropped; a name without a number of its own starts after this.
    floor: u64,
}

impl LastEpochNumbers {
    /// Keeps the last number of a name that is removed.
    pub(super) fn add(&mut self, name: &ControllerName, number: u64) {
        if number == 0 {
            return;
        }
        if self.numbers.insert(name.clone(), number).is_none() {
            self.order.push_back(name.clone());
        }
        while self.order.len() > KEPT {
            let Some(oldest) = self.order.pop_front() else { return };
            let forgotten = self.numbers.remove(&oldest).unwrap_or_default();
            self.floor = self.floor.max(forgotten);
        }
    }

    /// Removes and returns the number after which the epochs of a name continue. For a new name
    /// this is 0, until numbers have been dropped.
    pub(super) fn take(&mut self, name: &ControllerName) -> u64 {
        match self.numbers.remove(name) {
            Some(number) => {
                self.order.retain(|other| other != name);
                number
            }
            None => self.floor,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len().max(self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_begins_at_one_and_a_returning_name_repeats_no_number() {
        let mut numbers = LastEpochNumbers::default();
        let (a, b) = (ControllerName::from("a"), ControllerName::from("b"));
        numbers.add(&a, 7);

        assert_eq!(numbers.take(&b), 0, "another name has nothing to do with it");
        assert_eq!(numbers.take(&a), 7);
        assert_eq!(numbers.len(), 0);
    }

    #[test]
    fn names_beyond_the_bound_are_forgotten_and_their_numbers_are_not_used_again() {
        let mut numbers = LastEpochNumbers::default();
        let name = |number: usize| ControllerName::from(format!("c{number}"));
        for number in 0..10 * KEPT {
            numbers.add(&name(number), 3);
        }

        assert_eq!(numbers.len(), KEPT);
        assert_eq!(numbers.take(&name(0)), 3);
        assert_eq!(numbers.take(&ControllerName::from("new")), 3);
    }
}
