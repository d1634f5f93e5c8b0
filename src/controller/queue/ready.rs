//! Ready keys of a work queue, by priority and ticket.

use std::collections::VecDeque;

/// Number of priorities whose lists are kept while they are empty, with their memory.
const KEPT_LISTS: usize = 8;

/// Number of tickets from which they are merged into a list rather than inserted one by one: each
/// insertion moves a part of the list.
const MERGED_FROM: usize = 64;

/// Slots of ready keys, each with its ticket: highest priority first, then the smallest ticket.
///
/// May hold outdated tickets. The queue skips them, and removes them in bulk when they dominate.
#[derive(Debug, Default)]
pub(super) struct ReadyKeys {
    // Tickets by priority, lowest first; in their order within one priority.
    lists: Vec<(i32, VecDeque<Ticket>)>,
    tickets: usize,
}

/// Place of a ready key among those of its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) number: u64,
    pub(super) slot: u32,
}

impl ReadyKeys {
    /// Number of tickets, outdated ones included.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.tickets
    }

    /// Inserts a ticket. Takes constant time for the last one of a priority, which a new one is.
    #[inline]
    pub(super) fn push(&mut self, priority: i32, ticket: Ticket) {
        let list = self.list(priority);
        match list.back() {
            Some(last) if last.number > ticket.number => {
                let place = list.partition_point(|other| other.number < ticket.number);
                list.insert(place, ticket);
            }
            Some(_) | None => list.push_back(ticket),
        }
        self.tickets += 1;
    }

    /// Inserts tickets of any number. Takes linear time for many.
    pub(super) fn extend(&mut self, priority: i32, tickets: Vec<Ticket>) {
        if tickets.len() < MERGED_FROM {
            tickets.into_iter().for_each(|ticket| self.push(priority, ticket));
            return;
        }
        self.tickets += tickets.len();
        let list = self.list(priority);
        list.extend(tickets);
        // Two sorted runs: the sort merges them.
        list.make_contiguous().sort_by_key(|ticket| ticket.number);
    }

    #[inline]
    fn list(&mut self, priority: i32) -> &mut VecDeque<Ticket> {
        let place = self.lists.binary_search_by_key(&priority, |(known, _)| *known);
        let place = place.unwrap_or_else(|place| {
            self.lists.insert(place, (priority, VecDeque::new()));
            place
        });
        &mut self.lists[place].1
    }

    /// Returns the first ticket.
    pub(super) fn first(&self) -> Option<Ticket> {
        self.lists.iter().rev().find_map(|(_, list)| list.front().copied())
    }

    /// Removes and returns the first ticket.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Ticket> {
        let place = self.lists.iter().rposition(|(_, list)| !list.is_empty())?;
        let list = &mut self.lists[place].1;
        let ticket = list.pop_front();
        if list.is_empty() && self.lists.len() > KEPT_LISTS {
            self.lists.remove(place);
        }
        self.tickets -= 1;
        ticket
    }

    /// Removes the tickets for which `is_valid` returns false.
    pub(super) fn retain(&mut self, is_valid: impl Fn(&Ticket) -> bool) {
        for (_, list) in &mut self.lists {
            list.retain(&is_valid);
        }
        self.lists.retain(|(_, list)| !list.is_empty());
        self.tickets = self.lists.iter().map(|(_, list)| list.len()).sum();
    }

    /// Removes all tickets.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_popped_by_priority_and_then_by_ticket() {
        let mut ready = ReadyKeys::default();
        let tickets = [(0, 3), (-100, 1), (5, 4), (0, 2), (0, 6), (5, 5), (0, 4)];
        for (slot, (priority, number)) in (0..).zip(tickets) {
            ready.push(priority, Ticket { number, slot });
        }
        assert_eq!(ready.first(), Some(Ticket { number: 4, slot: 2 }));

        ready.retain(|ticket| ticket.slot != 6);

        assert_eq!(ready.len(), 6);
        let popped: Vec<_> = std::iter::from_fn(|| ready.pop()).collect();
        let slots: Vec<_> = popped.iter().map(|ticket| ticket.slot).collect();
        assert_eq!(slots, [2, 5, 3, 0, 4, 1]);
        assert_eq!(ready.len(), 0);
    }

    #[test]
    fn many_tickets_of_any_number_are_popped_by_ticket() {
        let mut ready = ReadyKeys::default();
        let ticket = |number: u32| Ticket { number: number.into(), slot: number };
        let (promoted, normal): (Vec<_>, Vec<_>) = (0..400_000).partition(|number| number % 2 == 0);
        for number in &normal {
            ready.push(0, ticket(*number));
        }

        // Insertions one by one would take minutes.
        ready.extend(0, promoted.into_iter().map(ticket).collect());
        ready.extend(0, vec![ticket(400_000), ticket(399_999)]);

        assert_eq!(ready.len(), 400_002);
        let popped: Vec<_> = std::iter::from_fn(|| ready.pop()).collect();
        assert!(popped.is_sorted_by_key(|ticket| ticket.number));
    }

    #[test]
    fn empty_lists_of_many_priorities_are_not_kept() {
        let mut ready = ReadyKeys::default();
        for priority in 0..1_000 {
            ready.push(priority, Ticket { number: 1, slot: 0 });
        }

        while ready.pop().is_some() {}

        assert_eq!(ready.lists.len(), KEPT_LISTS);
    }
}
