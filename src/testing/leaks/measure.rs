//! What was counted, and how two counts differ.

use std::{collections::BTreeMap, fmt};

/// How many things there are, by their sort and their owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measure(BTreeMap<String, BTreeMap<String, u64>>);

/// What is more than it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grown {
    /// What it is: `tasks`, `series`.
    pub sort: String,
    /// Whose it is.
    pub owner: String,
    /// How many there were.
    pub before: u64,
    /// How many there are.
    pub now: u64,
}

/// All that is more than it was; an error when it should not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Growth(pub Vec<Grown>);

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Grown { sort, owner, before, now } in &self.0 {
            writeln!(f, "  {sort} of {owner}: {now}, {before} before")?;
        }
        Ok(())
    }
}

impl std::error::Error for Growth {}

impl Measure {
    pub(super) fn of(counts: impl Iterator<Item = (String, BTreeMap<String, u64>)>) -> Self {
        let mut all = Self::default();
        for (sort, owners) in counts {
            let sort = all.0.entry(sort).or_default();
            for (owner, number) in owners {
                *sort.entry(owner).or_default() += number;
            }
        }
        all
    }

    /// How many things of a sort there are, whosever they are.
    pub fn total(&self, sort: &str) -> u64 {
        self.0.get(sort).into_iter().flat_map(BTreeMap::values).sum()
    }

    /// How many things of a sort this owner has.
    pub fn count(&self, sort: &str, owner: &str) -> u64 {
        self.0.get(sort).and_then(|owners| owners.get(owner)).copied().unwrap_or_default()
    }

    /// The lesser number of each; an owner that either lacks has none.
    pub(super) fn least(mut self, other: &Self) -> Self {
        for (sort, owners) in &mut self.0 {
            owners.retain(|owner, number| {
                *number = (*number).min(other.count(sort, owner));
                *number > 0
            });
        }
        self
    }

    /// Whether there are the same things of a sort.
    pub(super) fn is_as(&self, other: &Self, sort: &str) -> bool {
        self.0.get(sort) == other.0.get(sort)
    }

    /// What is more than it was in `before`.
    pub fn grown_since(&self, before: &Self) -> Growth {
        let each = self.0.iter().flat_map(|(sort, owners)| {
            owners.iter().map(move |(owner, number)| (sort, owner, *number))
        });
        let grown = each.filter_map(|(sort, owner, now)| {
            let before = before.count(sort, owner);
            let (sort, owner) = (sort.clone(), owner.clone());
            (now > before).then_some(Grown { sort, owner, before, now })
        });
        Growth(grown.collect())
    }
}

/// The series in an exposition as text; those of `gauges` with their value.
pub(super) fn series(text: &str, gauges: &[&str]) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let name = series.split('{').next().unwrap_or_default();
            let number = match gauges.contains(&name) {
                true => whole(value),
                false => 1,
            };
            Some((series.to_owned(), number))
        })
        .collect()
}

/// A value as a count: nothing below 0, and whole.
fn whole(value: &str) -> u64 {
    let digits = value.split('.').next().unwrap_or_default();
    digits.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(counts: &[(&str, &str, u64)]) -> Measure {
        let one = |(sort, owner, number): &(&str, &str, u64)| {
            ((*sort).to_owned(), BTreeMap::from([((*owner).to_owned(), *number)]))
        };
        Measure::of(counts.iter().map(one))
    }

    #[track_caller]
    fn check(before: &[(&str, &str, u64)], now: &[(&str, &str, u64)], expected: &str) {
        assert_eq!(measure(now).grown_since(&measure(before)).to_string(), expected);
    }

    #[test]
    fn only_what_is_more_has_grown() {
        check(&[("tasks", "a", 1)], &[("tasks", "a", 1)], "");
        check(&[("tasks", "a", 2)], &[("tasks", "a", 1)], "");
        check(&[("tasks", "a", 2)], &[], "");
        check(&[("tasks", "a", 1)], &[("tasks", "a", 3)], "  tasks of a: 3, 1 before\n");
        check(&[], &[("tasks", "a", 1)], "  tasks of a: 1, 0 before\n");
        check(&[], &[("tasks", "a", 0)], "");
        // One that goes does not make up for one that comes.
        check(
            &[("watches", "a", 1), ("tasks", "a", 1)],
            &[("watches", "b", 1), ("tasks", "a", 1)],
            "  watches of b: 1, 0 before\n",
        );
    }

    #[test]
    fn the_least_of_two_is_what_both_have() {
        let (one, other) = (
            measure(&[("tasks", "a", 3), ("tasks", "b", 1)]),
            measure(&[("tasks", "a", 2), ("tasks", "c", 1)]),
        );

        let least = one.least(&other);

        assert_eq!((least.count("tasks", "a"), least.total("tasks")), (2, 2));
    }

    #[test]
    fn series_are_told_by_name_and_labels_and_gauges_by_value() {
        let text =
            "# TYPE depth gauge\ndepth{c=\"a\"} 5\nage{c=\"a\"} 7.5\nage{c=\"b\"} -1\n# EOF\n";

        let found = series(text, &["depth"]);

        let expected = [("age{c=\"a\"}", 1), ("age{c=\"b\"}", 1), ("depth{c=\"a\"}", 5)];
        let found: Vec<_> = found.iter().map(|(name, number)| (name.as_str(), *number)).collect();
        assert_eq!(found, expected);
        assert_eq!((whole("7.5"), whole("-1"), whole("NaN")), (7, 0, 0));
    }
}
