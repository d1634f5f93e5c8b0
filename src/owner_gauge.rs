//! Gauge by owner: number of live tasks or timers of each owner.
//!
//! Each counted thing holds a guard, and is uncounted when the guard is dropped: after its end, an
//! abort or a panic. A series exists only while its count is above zero. Tasks that outlive their
//! owner are still counted under the owner's name.

use std::{fmt, hash::Hash, sync::Arc};

use dashmap::DashMap;
use foldhash::quality::RandomState;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio_util::task::TaskTracker;

/// Gauge of the live tasks or timers of each owner `L`, for a registry. Cheap to clone.
pub(crate) struct OwnerGauge<L> {
    owners: Arc<DashMap<L, Count, RandomState>>,
}

/// Count of one owner.
#[derive(Default)]
struct Count {
    counted: usize,
    trackers: Vec<OwnerTasks>,
}

/// Tracker of an owner; its number of tasks is read at each scrape.
struct OwnerTasks {
    tasks: TaskTracker,
    /// True while more tasks may be spawned: its [`TasksGuard`] still exists.
    followed: bool,
}

/// Part of an [`OwnerGauge`] for one owner.
#[derive(Debug)]
pub(crate) struct Part<L> {
    owner_gauge: OwnerGauge<L>,
    owner: L,
}

/// Guard that counts as one until dropped.
#[derive(Debug)]
pub(crate) struct CountGuard<L: Clone + Eq + Hash>(Part<L>);

/// Guard that counts the tasks of a tracker. Tasks that run on after its drop stay counted.
#[derive(Debug)]
pub(crate) struct TasksGuard<L: Clone + Eq + Hash> {
    part: Part<L>,
    tasks: TaskTracker,
}

impl<L: Clone + Eq + Hash> OwnerGauge<L> {
    /// Returns the part of an owner.
    pub(crate) fn of(&self, owner: L) -> Part<L> {
        Part { owner_gauge: self.clone(), owner }
    }
}

impl<L: Clone + Eq + Hash> Part<L> {
    /// Counts one more until the guard is dropped.
    pub(crate) fn count(&self) -> CountGuard<L> {
        self.owner_gauge.owners.entry(self.owner.clone()).or_default().counted += 1;
        CountGuard(self.clone())
    }

    /// Counts the tasks of a tracker.
    pub(crate) fn follow(&self, tasks: &TaskTracker) -> TasksGuard<L> {
        let tracked = OwnerTasks { tasks: tasks.clone(), followed: true };
        let owners = &self.owner_gauge.owners;
        owners.entry(self.owner.clone()).or_default().trackers.push(tracked);
        TasksGuard { part: self.clone(), tasks: tasks.clone() }
    }

    fn change(&self, change: impl FnOnce(&mut Count)) {
        self.owner_gauge.owners.remove_if_mut(&self.owner, |_, count| {
            change(count);
            count.tidy();
            count.is_idle()
        });
    }
}

impl Count {
    fn total(&self) -> usize {
        self.counted + self.trackers.iter().map(|tracked| tracked.tasks.len()).sum::<usize>()
    }

    /// Removes trackers that have no tasks and can get no new ones.
    fn tidy(&mut self) {
        self.trackers.retain(|tracked| tracked.followed || !tracked.tasks.is_empty());
    }

    fn is_idle(&self) -> bool {
        self.counted == 0 && self.trackers.is_empty()
    }
}

impl<L: Clone + Eq + Hash> Drop for CountGuard<L> {
    fn drop(&mut self) {
        self.0.change(|count| count.counted -= 1);
    }
}

impl<L: Clone + Eq + Hash> Drop for TasksGuard<L> {
    fn drop(&mut self) {
        self.part.change(|count| {
            let same = |tracked: &&mut OwnerTasks| {
                tracked.followed && TaskTracker::ptr_eq(&tracked.tasks, &self.tasks)
            };
            if let Some(tracked) = count.trackers.iter_mut().find(same) {
                tracked.followed = false;
            }
        });
    }
}

impl<L> EncodeMetric for OwnerGauge<L>
where
    L: EncodeLabelSet + Eq + Hash,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        self.owners.retain(|_, count| {
            count.tidy();
            !count.is_idle()
        });
        for one in self.owners.iter() {
            let (owner, total) = (one.key(), one.total());
            if total > 0 {
                let gauge = ConstGauge::new(i64::try_from(total).unwrap_or(i64::MAX));
                gauge.encode(encoder.encode_family(owner)?)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

impl<L> Clone for OwnerGauge<L> {
    fn clone(&self) -> Self {
        Self { owners: Arc::clone(&self.owners) }
    }
}

impl<L: Clone> Clone for Part<L> {
    fn clone(&self) -> Self {
        Self { owner_gauge: self.owner_gauge.clone(), owner: self.owner.clone() }
    }
}

impl<L: Eq + Hash> Default for OwnerGauge<L> {
    fn default() -> Self {
        Self { owners: Arc::default() }
    }
}

impl<L> fmt::Debug for OwnerGauge<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerGauge").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use prometheus_client::{encoding::text::encode, registry::Registry};
    use tokio::task::JoinSet;

    use super::*;

    type Labels = [(&'static str, &'static str); 1];

    const A: Labels = [("owner", "a")];

    fn registered() -> (OwnerGauge<Labels>, Registry) {
        let (owner_gauge, mut registry) = (OwnerGauge::default(), Registry::default());
        registry.register("things", "Things", owner_gauge.clone());
        (owner_gauge, registry)
    }

    /// Returns the exported series, without comments.
    fn series(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_series_is_there_while_something_is_counted() {
        let (owner_gauge, registry) = registered();

        let (one, other) = (owner_gauge.of(A).count(), owner_gauge.of(A).count());
        assert_eq!(series(&registry), [r#"things{owner="a"} 2"#]);
        drop(one);
        assert_eq!(series(&registry), [r#"things{owner="a"} 1"#]);

        drop(other);
        assert!(series(&registry).is_empty());
        assert!(owner_gauge.owners.is_empty());
    }

    #[tokio::test]
    async fn a_task_counts_until_it_has_ended_aborted_or_panicked() {
        let (owner_gauge, registry) = registered();
        let mut tasks = JoinSet::new();
        let (aborted, panics) = (owner_gauge.of(A).count(), owner_gauge.of(A).count());
        tasks.spawn(async move {
            let _counted = aborted;
            pending::<()>().await;
        });
        tasks.spawn(async move {
            let _counted = panics;
            panic!("expected by the test");
        });
        assert_eq!(series(&registry), [r#"things{owner="a"} 2"#]);

        assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
        assert_eq!(series(&registry), [r#"things{owner="a"} 1"#]);
        tasks.shutdown().await;

        assert!(series(&registry).is_empty());
    }

    #[tokio::test]
    async fn tasks_that_outlive_their_spawner_are_still_named() {
        let (owner_gauge, registry) = registered();
        let tracker = TaskTracker::new();
        let followed = owner_gauge.of(A).follow(&tracker);
        assert!(series(&registry).is_empty());
        let mut tasks = JoinSet::new();
        tasks.spawn(tracker.track_future(pending::<()>()));
        assert_eq!(series(&registry), [r#"things{owner="a"} 1"#]);

        drop(followed);
        assert_eq!(series(&registry), [r#"things{owner="a"} 1"#]);

        tasks.shutdown().await;
        assert!(series(&registry).is_empty());
        assert!(owner_gauge.owners.is_empty());
    }
}
