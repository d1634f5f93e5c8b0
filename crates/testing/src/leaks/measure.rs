//! Counts of resources, and the difference of two measurements.

use std::{collections::BTreeMap, fmt};

/// Number of resources by kind and owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measure(BTreeMap<String, BTreeMap<String, u64>>);

/// Count that is above its baseline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrownCount {
    /// Kind: `tasks`, `series`.
    pub sort: String,
    /// Owner.
    pub owner: String,
    /// Count in the baseline.
    pub before: u64,
    /// Current count.
    pub now: u64,
}

/// All counts above their baseline; an error when there should be none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Growth(pub Vec<GrownCount>);

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for GrownCount { sort, owner, before, now } in &self.0 {
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

    /// Returns the count of a kind for all owners.
    pub fn total(&self, sort: &str) -> u64 {
        self.0.get(sort).into_iter().flat_map(BTreeMap::values).sum()
    }

    /// Returns the count of a kind for one owner.
    pub fn count(&self, sort: &str, owner: &str) -> u64 {
        self.0.get(sort).and_then(|owners| owners.get(owner)).copied().unwrap_or_default()
    }

    /// Returns the lesser of each count; a missing owner counts 0.
    pub(super) fn least(mut self, other: &Self) -> Self {
        for (sort, owners) in &mut self.0 {
            owners.retain(|owner, number| {
                *number = (*number).min(other.count(sort, owner));
                *number > 0
            });
        }
        self
    }

    /// Returns true if the counts of these kinds are equal.
    pub(super) fn is_as(&self, other: &Self, counts: impl Fn(&str) -> bool) -> bool {
        let sorts = self.0.keys().chain(other.0.keys());
        sorts.filter(|sort| counts(sort)).all(|sort| self.0.get(sort) == other.0.get(sort))
    }

    /// Returns the counts above those in `before`.
    pub fn grown_since(&self, before: &Self) -> Growth {
        let each = self.0.iter().flat_map(|(sort, owners)| {
            owners.iter().map(move |(owner, number)| (sort, owner, *number))
        });
        let grown = each.filter_map(|(sort, owner, now)| {
            let before = before.count(sort, owner);
            let (sort, owner) = (sort.clone(), owner.clone());
            (now > before).then_some(GrownCount { sort, owner, before, now })
        });
        Growth(grown.collect())
    }
}

/// Gauges of Pilotlight's tasks; each task counts in one of them.
const TASKS: [&str; 4] = [
    "pilotlight_connection_tasks",
    "pilotlight_controller_tasks",
    "pilotlight_hook_tasks",
    "pilotlight_informer_tasks",
];
/// Gauges of pending timers.
const TIMERS: [&str; 3] =
    ["pilotlight_controller_timers", "pilotlight_informer_timers", "pilotlight_queue_waiting"];

/// Returns the series of a text exposition by kind; the gauges of tasks, of timers and those named
/// here count with their value.
pub(super) fn series(text: &str, gauges: &[&str]) -> [(String, BTreeMap<String, u64>); 3] {
    let (mut tasks, mut timers, mut all) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let name = series.split('{').next().unwrap_or_default();
        if name.ends_with("_bucket") {
            // A histogram is represented by its count and sum, not by its buckets.
            continue;
        }
        let (sort, number) = match name {
            _ if TASKS.contains(&name) => (&mut tasks, whole(value)),
            _ if TIMERS.contains(&name) => (&mut timers, whole(value)),
            _ if gauges.contains(&name) => (&mut all, whole(value)),
            _ => (&mut all, 1),
        };
        sort.insert(series.to_owned(), number);
    }
    // A gauge at 0 is equal to a missing one.
    tasks.retain(|_, number| *number > 0);
    timers.retain(|_, number| *number > 0);
    [("named tasks".to_owned(), tasks), ("timers".to_owned(), timers), ("series".to_owned(), all)]
}

/// Converts a value to a whole count, at least 0.
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
    fn only_larger_counts_have_grown() {
        check(&[("tasks", "a", 1)], &[("tasks", "a", 1)], "");
        check(&[("tasks", "a", 2)], &[("tasks", "a", 1)], "");
        check(&[("tasks", "a", 2)], &[], "");
        check(&[("tasks", "a", 1)], &[("tasks", "a", 3)], "  tasks of a: 3, 1 before\n");
        check(&[], &[("tasks", "a", 1)], "  tasks of a: 1, 0 before\n");
        check(&[], &[("tasks", "a", 0)], "");
        // A count that falls does not offset one that rises.
        check(
            &[("watches", "a", 1), ("tasks", "a", 1)],
            &[("watches", "b", 1), ("tasks", "a", 1)],
            "  watches of b: 1, 0 before\n",
        );
    }

    #[test]
    fn minimum_of_two_measures_is_their_common_part() {
        let (one, other) = (
            measure(&[("tasks", "a", 3), ("tasks", "b", 1)]),
            measure(&[("tasks", "a", 2), ("tasks", "c", 1)]),
        );

        let least = one.least(&other);

        assert_eq!((least.count("tasks", "a"), least.total("tasks")), (2, 2));
    }

    #[test]
    fn tasks_and_timers_are_counted_by_owner() {
        let text = "pilotlight_informer_tasks{resource=\"widgets\"} 2\n\
                    pilotlight_queue_waiting{controller=\"a\"} 3.0\n\
                    pilotlight_queue_waiting{controller=\"b\"} 0.0\n";

        let found = Measure::of(series(text, &[]).into_iter());

        let tasks = r#"pilotlight_informer_tasks{resource="widgets"}"#;
        let timers = r#"pilotlight_queue_waiting{controller="a"}"#;
        let expected =
            format!("  named tasks of {tasks}: 2, 0 before\n  timers of {timers}: 3, 0 before\n");
        assert_eq!(found.grown_since(&Measure::default()).to_string(), expected);
    }

    #[test]
    fn series_are_counted_by_name_and_labels_and_gauges_by_value() {
        let text = "# TYPE depth gauge\ndepth{c=\"a\"} 5\ntime_bucket{le=\"1.0\"} 2\n\
                    age{c=\"a\"} 7.5\nage{c=\"b\"} -1\n# EOF\n";

        let [_, _, (_, found)] = series(text, &["depth"]);

        let expected = [("age{c=\"a\"}", 1), ("age{c=\"b\"}", 1), ("depth{c=\"a\"}", 5)];
        let found: Vec<_> = found.iter().map(|(name, number)| (name.as_str(), *number)).collect();
        assert_eq!(found, expected);
        assert_eq!((whole("7.5"), whole("-1"), whole("NaN")), (7, 0, 0));
    }
}
