//! Metrics of informers.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{InformerProgress, Store, classify::Cause};
use crate::{
    kind::TypeIdentity,
    owner_gauge::{CountGuard, OwnerGauge},
};

/// Metrics of the informers of one set. The series of a type are removed with its last informer.
#[derive(Clone, Debug, Default)]
pub struct InformerMetrics {
    informers: Family<InformerStateLabels, Gauge>,
    watches: Gauge,
    restarts: Family<RestartLabels, Counter>,
    relists: Family<TypeLabels, Counter>,
    events: Family<EventLabels, Counter>,
    objects: Family<TypeLabels, Gauge>,
    bytes: Family<TypeLabels, Gauge>,
    entries: Family<TypeLabels, Gauge>,
    accounted: Family<TypeLabels, Gauge>,
    tasks: OwnerGauge<TypeLabels>,
    timers: OwnerGauge<TimerLabels>,
    /// Number of informers per type.
    live: Arc<Mutex<HashMap<TypeLabels, usize>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    group: Arc<str>,
    resource: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestartLabels {
    group: Arc<str>,
    resource: Arc<str>,
    reason: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    group: Arc<str>,
    resource: Arc<str>,
    event: EventKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InformerStateLabels {
    state: InformerStateLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TimerLabels {
    group: Arc<str>,
    resource: Arc<str>,
    kind: TimerKind,
}

/// Purpose of an informer's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values, which are snake_case")]
enum TimerKind {
    /// Delay before a retry.
    backoff,
    /// Delay before an informer without subscribers ends.
    linger,
}

/// Kind of an input that an informer received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum EventKind {
    /// A listed object.
    Listed,
    /// An object that was added or modified.
    Changed,
    Deleted,
    Bookmark,
    /// An object that cannot be cached.
    Quarantined,
    /// Input that is not an event, or is older than the cached state.
    Ignored,
}

impl EventKind {
    const ALL: [Self; 6] = [
        Self::Listed,
        Self::Changed,
        Self::Deleted,
        Self::Bookmark,
        Self::Quarantined,
        Self::Ignored,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum InformerStateLabel {
    Syncing,
    Synced,
    Polled,
    Stale,
    Forbidden,
    ConversionFailed,
}

impl InformerStateLabel {
    const ALL: [Self; 6] = [
        Self::Syncing,
        Self::Synced,
        Self::Polled,
        Self::Stale,
        Self::Forbidden,
        Self::ConversionFailed,
    ];
}

impl InformerMetrics {
    /// Registers all metrics. The names are complete: each begins with `pilotlight_`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pilotlight_informers", "Informers, by state", self.informers.clone());
        registry.register("pilotlight_informer_watches", "Open watches", self.watches.clone());
        registry.register(
            "pilotlight_informer_restarts",
            "Lists and watches that ended or failed, by reason",
            self.restarts.clone(),
        );
        registry.register("pilotlight_informer_lists", "Complete lists", self.relists.clone());
        registry.register("pilotlight_informer_events", "Events received", self.events.clone());
        registry.register("pilotlight_informer_objects", "Objects cached", self.objects.clone());
        registry.register(
            "pilotlight_informer_cached_bytes",
            "Bytes of JSON cached, as it is stored, headers not counted",
            self.bytes.clone(),
        );
        registry.register(
            "pilotlight_informer_entries",
            "Objects cached as metadata entries, since they concern no subscriber",
            self.entries.clone(),
        );
        registry.register(
            "pilotlight_informer_accounted_bytes",
            "Estimated bytes of memory that cached objects and metadata entries take",
            self.accounted.clone(),
        );
        registry.register(
            "pilotlight_informer_tasks",
            "Live tasks of informers",
            self.tasks.clone(),
        );
        registry.register(
            "pilotlight_informer_timers",
            "Informers that wait to retry a request (backoff) or to end (linger)",
            self.timers.clone(),
        );
    }

    /// Counts the time that an informer lingers until the guard is dropped.
    pub(super) fn lingering(&self, identity: &TypeIdentity) -> CountGuard<TimerLabels> {
        let (group, resource) = (identity.group.clone(), identity.plural.clone());
        self.timers.of(TimerLabels { group, resource, kind: TimerKind::linger }).count()
    }

    /// Returns the metrics of a new informer.
    pub(super) fn join(&self, identity: &TypeIdentity) -> TypeMetrics {
        let labels =
            TypeLabels { group: identity.group.clone(), resource: identity.plural.clone() };
        // The lock also covers the last informer's removal of the series.
        let mut live = self.lock();
        *live.entry(labels.clone()).or_default() += 1;
        let events = EventKind::ALL.map(|event| {
            let (group, resource) = (labels.group.clone(), labels.resource.clone());
            self.events.get_or_create_owned(&EventLabels { group, resource, event })
        });
        let metrics = TypeMetrics {
            relists: self.relists.get_or_create_owned(&labels),
            objects: self.objects.get_or_create_owned(&labels),
            bytes: self.bytes.get_or_create_owned(&labels),
            entries: self.entries.get_or_create_owned(&labels),
            accounted: self.accounted.get_or_create_owned(&labels),
            events,
            state: Mutex::new(None),
            cached: [const { AtomicU64::new(0) }; 4],
            _task: self.tasks.of(labels.clone()).count(),
            labels,
            all: self.clone(),
        };
        drop(live);
        // Creates the series of all states, so that they exist from the first informer on.
        for state in InformerStateLabel::ALL {
            drop(self.informers.get_or_create(&InformerStateLabels { state }));
        }
        metrics.state(&InformerProgress::Syncing(None));
        metrics
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TypeLabels, usize>> {
        self.live.lock()
    }
}

/// Metrics of one informer; subtracts its share when dropped.
#[derive(Debug)]
pub(super) struct TypeMetrics {
    all: InformerMetrics,
    labels: TypeLabels,
    relists: Counter,
    objects: Gauge,
    bytes: Gauge,
    entries: Gauge,
    accounted: Gauge,
    events: [Counter; EventKind::ALL.len()],
    state: Mutex<Option<InformerStateLabel>>,
    /// Values that this informer has added to the gauges: objects, bytes, entries, accounted bytes.
    cached: [AtomicU64; 4],
    // Dropped with the informer's task.
    _task: CountGuard<TypeLabels>,
}

impl TypeMetrics {
    pub(super) fn event(&self, kind: EventKind) {
        self.events[kind as usize].inc();
    }

    pub(super) fn listed(&self) {
        self.relists.inc();
    }

    pub(super) fn restarted(&self, reason: Cause) {
        let labels = RestartLabels {
            group: self.labels.group.clone(),
            resource: self.labels.resource.clone(),
            reason,
        };
        self.all.restarts.get_or_create(&labels).inc();
    }

    pub(super) fn cached(&self, store: &Store) {
        let values = [store.len(), store.bytes(), store.entries(), store.accounted()];
        self.set_cached(values.map(|value| value as u64));
    }

    pub(super) fn state(&self, progress: &InformerProgress) {
        let state = match progress {
            InformerProgress::Syncing(_) => Some(InformerStateLabel::Syncing),
            InformerProgress::Synced => Some(InformerStateLabel::Synced),
            InformerProgress::Polled => Some(InformerStateLabel::Polled),
            InformerProgress::Stale(_) => Some(InformerStateLabel::Stale),
            InformerProgress::Forbidden(_) => Some(InformerStateLabel::Forbidden),
            InformerProgress::ConversionFailed(_) => Some(InformerStateLabel::ConversionFailed),
            InformerProgress::Ended(_) => None,
        };
        self.set_state(state);
    }

    /// Counts the wait before the next request until the guard is dropped.
    pub(super) fn backing_off(&self) -> CountGuard<TimerLabels> {
        let TypeLabels { group, resource } = self.labels.clone();
        self.all.timers.of(TimerLabels { group, resource, kind: TimerKind::backoff }).count()
    }

    /// Counts an open watch until the guard is dropped.
    pub(super) fn watching(&self) -> WatchGuard {
        self.all.watches.inc();
        WatchGuard(self.all.watches.clone())
    }

    fn set_state(&self, state: Option<InformerStateLabel>) {
        let mut known = self.state.lock();
        if *known == state {
            return;
        }
        if let Some(state) = *known {
            self.all.informers.get_or_create(&InformerStateLabels { state }).dec();
        }
        if let Some(state) = state {
            self.all.informers.get_or_create(&InformerStateLabels { state }).inc();
        }
        *known = state;
    }

    fn set_cached(&self, now: [u64; 4]) {
        let gauges = [&self.objects, &self.bytes, &self.entries, &self.accounted];
        for ((gauge, known), now) in gauges.into_iter().zip(&self.cached).zip(now) {
            let before = known.swap(now, Ordering::Relaxed);
            gauge.inc_by(now.wrapping_sub(before).cast_signed());
        }
    }
}

impl Drop for TypeMetrics {
    fn drop(&mut self) {
        self.set_state(None);
        self.set_cached([0; 4]);
        let mut live = self.all.lock();
        let Some(count) = live.get_mut(&self.labels) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        live.remove(&self.labels);
        let TypeLabels { group, resource } = &self.labels;
        self.all.relists.remove(&self.labels);
        self.all.objects.remove(&self.labels);
        self.all.bytes.remove(&self.labels);
        self.all.entries.remove(&self.labels);
        self.all.accounted.remove(&self.labels);
        for event in EventKind::ALL {
            let (group, resource) = (group.clone(), resource.clone());
            self.all.events.remove(&EventLabels { group, resource, event });
        }
        for reason in Cause::ALL {
            let (group, resource) = (group.clone(), resource.clone());
            self.all.restarts.remove(&RestartLabels { group, resource, reason });
        }
    }
}

/// An open watch.
#[derive(Debug)]
pub(super) struct WatchGuard(Gauge);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::fixture::{Fixture, widgets};

    fn encoded(metrics: &InformerMetrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn the_series_of_a_type_go_with_its_last_informer() {
        let metrics = InformerMetrics::default();
        let store = Store::new();
        store.put(&Fixture::new("a").object(), 0);
        let first = metrics.join(&widgets().identity);
        let second = metrics.join(&widgets().identity);

        first.cached(&store);
        second.cached(&store);
        second.cached(&store);
        second.restarted(Cause::Expired);
        second.state(&InformerProgress::Synced);
        let watching = second.watching();
        let text = encoded(&metrics);
        let labels = r#"group="example.com",resource="widgets""#;
        assert!(text.contains(&format!("pilotlight_informer_objects{{{labels}}} 2")), "{text}");
        assert!(text.contains(r#"reason="Expired"} 1"#), "{text}");
        assert!(text.contains(r#"pilotlight_informers{state="Synced"} 1"#), "{text}");
        assert!(text.contains("pilotlight_informer_watches 1"), "{text}");
        assert!(text.contains(&format!("pilotlight_informer_tasks{{{labels}}} 2")), "{text}");

        drop((first, watching));
        assert!(encoded(&metrics).contains(&format!("pilotlight_informer_objects{{{labels}}} 1")));

        drop(second);
        let text = encoded(&metrics);
        assert!(!text.contains("widgets"), "{text}");
        assert!(text.contains(r#"pilotlight_informers{state="Synced"} 0"#), "{text}");
        assert!(text.contains("pilotlight_informer_watches 0"), "{text}");
    }

    #[test]
    fn timers_are_counted_by_type_and_by_what_they_are_for() {
        let metrics = InformerMetrics::default();
        let informer = metrics.join(&widgets().identity);
        let labels = r#"group="example.com",resource="widgets""#;

        let timers = (informer.backing_off(), metrics.lingering(&widgets().identity));
        let text = encoded(&metrics);
        for kind in ["backoff", "linger"] {
            let series = format!("pilotlight_informer_timers{{{labels},kind=\"{kind}\"}} 1");
            assert!(text.contains(&series), "{text}");
        }

        drop(timers);
        assert!(!encoded(&metrics).contains("pilotlight_informer_timers{"));
    }

    #[test]
    fn every_kind_of_event_has_its_counter() {
        for (index, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }
}
