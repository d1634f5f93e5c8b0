//! Hook metrics: Metacontroller's under its names, and Pilotlight's own.
//!
//! Metacontroller counts responses by their status code, and therefore no call without a response.
//! Pilotlight's own metric counts each call once, with its outcome.

mod series;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, atomic::AtomicI64},
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

pub(crate) use self::series::{CountedCall, HookSeries};
use super::{error::HookError, rule::HookKind};
use crate::owner_gauge::{OwnerGauge, Part};

/// Bucket bounds in seconds: Go's defaults, which dashboards expect.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bucket bounds in seconds of look-ups of names, as in Metacontroller.
const DNS_BUCKETS: [f64; 4] = [0.005, 0.01, 0.025, 0.05];

/// Bucket bounds in seconds of TLS handshakes, as in Metacontroller.
const TLS_BUCKETS: [f64; 4] = [0.05, 0.1, 0.25, 0.5];

/// Gauge of the tasks that drive the connections to one hook.
pub(in crate::meta) type HookTasks = Part<SeriesLabels>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(in crate::meta) struct SeriesLabels {
    controller_name: String,
    controller_type: String,
    url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookDurationLabels {
    controller_name: String,
    controller_type: String,
    url: String,
    method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectLabels {
    controller_name: String,
    controller_type: String,
    url: String,
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookRequestLabels {
    controller_name: String,
    controller_type: String,
    url: String,
    method: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    controller_name: String,
    controller_type: String,
    url: String,
    hook: &'static str,
    outcome: &'static str,
}

/// Series of one hook: its kind, and the labels of Metacontroller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SeriesKey {
    kind: HookKind,
    labels: SeriesLabels,
}

/// Event of a connection that is being opened, by Metacontroller's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::meta) enum ConnectEvent {
    /// The look-up of a name began.
    DnsStart,
    /// The look-up of a name ended, with or without addresses.
    DnsDone,
    /// A TLS handshake with the hook began.
    TlsHandshakeStart,
    /// A TLS handshake with the hook succeeded.
    TlsHandshakeDone,
}

impl ConnectEvent {
    const ALL: [Self; 4] =
        [Self::DnsStart, Self::DnsDone, Self::TlsHandshakeStart, Self::TlsHandshakeDone];

    fn word(self) -> &'static str {
        match self {
            Self::DnsStart => "dns_start",
            Self::DnsDone => "dns_done",
            Self::TlsHandshakeStart => "tls_handshake_start",
            Self::TlsHandshakeDone => "tls_handshake_done",
        }
    }
}

/// Outcome of one call of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Status 200 or a confirmed ETag, with a usable response.
    Answered,
    /// Another status from 300 to 399.
    Redirect,
    /// Another status from 400 to 499.
    ClientError,
    /// Status 500 or higher.
    ServerError,
    /// Status 429.
    Busy,
    /// The response is not usable.
    Invalid,
    /// The response is longer than its limit.
    TooLarge,
    /// No room in the budget for the response.
    NoBudget,
    /// No complete response within the timeout.
    Timeout,
    /// No connection, or a broken one.
    Unreachable,
    /// The epoch ended first.
    Cancelled,
}

impl CallOutcome {
    const ALL: [Self; 11] = [
        Self::Answered,
        Self::Redirect,
        Self::ClientError,
        Self::ServerError,
        Self::Busy,
        Self::Invalid,
        Self::TooLarge,
        Self::NoBudget,
        Self::Timeout,
        Self::Unreachable,
        Self::Cancelled,
    ];

    /// Returns the outcome of a call without a response.
    pub(crate) fn of(error: &HookError) -> Self {
        match error {
            HookError::Status { code, .. } | HookError::NothingToConfirm { code } => match code {
                300..400 => Self::Redirect,
                400..500 => Self::ClientError,
                500.. => Self::ServerError,
                // A success that carries no response.
                ..300 => Self::Invalid,
            },
            HookError::Busy(_) => Self::Busy,
            HookError::Encoded(_) => Self::Invalid,
            HookError::TooLarge { .. } => Self::TooLarge,
            HookError::NoBudget { .. } => Self::NoBudget,
            HookError::Timeout(_) | HookError::ProxyTimeout { .. } => Self::Timeout,
            HookError::Transport(_) => Self::Unreachable,
            HookError::Cancelled => Self::Cancelled,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Answered => "2xx",
            Self::Redirect => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::Busy => "busy",
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
            Self::NoBudget => "no_budget",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Metrics of all hooks; cheap to clone.
#[derive(Clone, Default)]
pub struct HookMetrics {
    families: Arc<Families>,
}

struct Families {
    by_kind: BTreeMap<HookKind, KindFamilies>,
    calls: Family<CallLabels, Counter>,
    unchanged: Family<SeriesLabels, Counter>,
    pending_rollouts: Family<SeriesLabels, Gauge<i64, AtomicI64>>,
    rollout_since: Family<SeriesLabels, Gauge<i64, AtomicI64>>,
    tasks: OwnerGauge<SeriesLabels>,
    // Number of users of each series, with the status codes that it counted. During a replacement a
    // controller and its successor share a series.
    users: Mutex<BTreeMap<SeriesKey, Users>>,
}

/// Metacontroller's families, which it has once for each kind of hook.
struct KindFamilies {
    requests: Family<HookRequestLabels, Counter>,
    durations: Family<HookDurationLabels, Histogram, fn() -> Histogram>,
    dns: Family<ConnectLabels, Histogram, fn() -> Histogram>,
    tls: Family<ConnectLabels, Histogram, fn() -> Histogram>,
    in_flight: Family<SeriesLabels, Gauge<i64, AtomicI64>>,
}

#[derive(Default)]
struct Users {
    count: usize,
    codes: BTreeSet<String>,
}

impl Default for KindFamilies {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            dns: Family::new_with_constructor(|| Histogram::new(DNS_BUCKETS)),
            tls: Family::new_with_constructor(|| Histogram::new(TLS_BUCKETS)),
            in_flight: Family::default(),
        }
    }
}

impl KindFamilies {
    fn connecting(
        &self,
        event: ConnectEvent,
    ) -> &Family<ConnectLabels, Histogram, fn() -> Histogram> {
        match event {
            ConnectEvent::DnsStart | ConnectEvent::DnsDone => &self.dns,
            ConnectEvent::TlsHandshakeStart | ConnectEvent::TlsHandshakeDone => &self.tls,
        }
    }
}

impl Default for Families {
    fn default() -> Self {
        Self {
            by_kind: HookKind::ALL.map(|kind| (kind, KindFamilies::default())).into(),
            calls: Family::default(),
            unchanged: Family::default(),
            pending_rollouts: Family::default(),
            rollout_since: Family::default(),
            tasks: OwnerGauge::default(),
            users: Mutex::default(),
        }
    }
}

impl HookMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        for (kind, families) in &self.families.by_kind {
            let word = kind.word();
            registry.register(
                format!("metacontroller_{word}_requests"),
                format!("Responses of {word} hooks, by status code"),
                families.requests.clone(),
            );
            registry.register(
                format!("metacontroller_{word}_request_duration_histogram_seconds"),
                format!("Duration of {word} hook calls"),
                families.durations.clone(),
            );
            registry.register(
                format!("metacontroller_{word}_dns_duration_histogram_seconds"),
                format!("Time of {word} hook calls until the host's name was resolved"),
                families.dns.clone(),
            );
            registry.register(
                format!("metacontroller_{word}_tls_duration_histogram_seconds"),
                format!("Time of {word} hook calls until the TLS session was open"),
                families.tls.clone(),
            );
            registry.register(
                format!("metacontroller_{word}_in_flight_requests"),
                format!("{} hook calls in flight", kind.title()),
                families.in_flight.clone(),
            );
        }
        registry.register(
            "pilotlight_hook_calls",
            "Finished hook calls, each counted once, by hook and outcome",
            self.families.calls.clone(),
        );
        registry.register(
            "pilotlight_composite_unchanged_syncs",
            "Syncs that ended with the hook's response, since nothing had changed",
            self.families.unchanged.clone(),
        );
        registry.register(
            "pilotlight_composite_pending_rollouts",
            "Parents whose children do not all have the latest revision yet",
            self.families.pending_rollouts.clone(),
        );
        registry.register(
            "pilotlight_composite_rollout_waiting_since_timestamp_seconds",
            "Last progress of the pending rollout that has stalled longest; 0 if none is pending",
            self.families.rollout_since.clone(),
        );
        registry.register(
            "pilotlight_hook_tasks",
            "Live tasks that drive connections to hooks or expire cached responses",
            self.families.tasks.clone(),
        );
    }

    /// Returns the series of one hook of a controller; removed when the last user of these labels
    /// is dropped.
    pub(crate) fn series(
        &self,
        kind: HookKind,
        controller_name: &str,
        controller_type: &str,
        url: &str,
    ) -> HookSeries {
        let labels = SeriesLabels {
            controller_name: controller_name.to_owned(),
            controller_type: controller_type.to_owned(),
            url: url.to_owned(),
        };
        let key = SeriesKey { kind, labels };
        HookSeries::new(self.families.clone(), key)
    }
}

impl Families {
    fn users(&self) -> parking_lot::MutexGuard<'_, BTreeMap<SeriesKey, Users>> {
        self.users.lock()
    }

    fn of(&self, kind: HookKind) -> &KindFamilies {
        &self.by_kind[&kind]
    }
}

impl fmt::Debug for HookMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    fn registered() -> (Registry, HookMetrics) {
        let (mut registry, metrics) = (Registry::default(), HookMetrics::default());
        metrics.register(&mut registry);
        (registry, metrics)
    }

    #[test]
    fn series_of_a_customize_hook_have_their_own_names() {
        let (registry, metrics) = registered();

        let series = metrics.series(HookKind::Customize, "c", "CompositeController", "http://x/");
        series.begin().end(Some(StatusCode::OK));

        let counted = text(&registry);
        for name in
            ["requests_total", "request_duration_histogram_seconds_count", "in_flight_requests"]
        {
            assert!(counted.contains(&format!("metacontroller_customize_{name}{{")), "{counted}");
        }
        assert!(!counted.contains("metacontroller_sync_requests_total{"));
    }

    #[test]
    fn users_of_a_series_count_in_one_place() {
        let (registry, metrics) = registered();
        let bare = text(&registry);
        let users = [(); 2]
            .map(|()| metrics.series(HookKind::Sync, "c", "CompositeController", "http://x/"));

        for user in &users {
            for (status, outcome) in [
                (StatusCode::OK, CallOutcome::Answered),
                (StatusCode::OK, CallOutcome::Answered),
                (StatusCode::BAD_GATEWAY, CallOutcome::ServerError),
            ] {
                let (timer, call) = (user.begin(), user.call());
                timer.end(Some(status));
                call.end(outcome);
                user.unchanged_sync();
            }
        }

        let counted = text(&registry);
        let counts = |name: &str, label: &str, count: usize| {
            let start = format!("{name}{{");
            let line = counted.lines().find(|it| it.starts_with(&start) && it.contains(label));
            let line = line.unwrap_or_else(|| panic!("{name} {label}: {counted}"));
            assert!(line.ends_with(&format!(" {count}")), "{line}");
        };
        counts("metacontroller_sync_requests_total", "code=\"200\"", 4);
        counts("metacontroller_sync_requests_total", "code=\"502\"", 2);
        counts("pilotlight_hook_calls_total", "outcome=\"2xx\"", 4);
        counts("pilotlight_hook_calls_total", "outcome=\"5xx\"", 2);
        counts("pilotlight_composite_unchanged_syncs_total", "", 6);
        counts("metacontroller_sync_request_duration_histogram_seconds_count", "", 6);
        counts("metacontroller_sync_in_flight_requests", "", 0);

        drop(users);
        assert_eq!(text(&registry), bare);
        let next = metrics.series(HookKind::Sync, "c", "CompositeController", "http://x/");
        next.begin().end(Some(StatusCode::OK));
        assert!(text(&registry).contains("code=\"200\"} 1\n"), "{}", text(&registry));
    }

    #[test]
    fn series_have_metacontrollers_names_and_are_removed_with_their_controller() {
        let (registry, metrics) = registered();
        let bare = text(&registry);

        let (old, new) = (
            metrics.series(HookKind::Sync, "c", "CompositeController", "http://x/"),
            metrics.series(HookKind::Sync, "c", "CompositeController", "http://x/"),
        );
        old.begin().end(Some(StatusCode::OK));
        old.call().end(CallOutcome::Timeout);
        old.unchanged_sync();
        let counted = text(&registry);
        assert!(
            counted.contains(
                "metacontroller_sync_requests_total{controller_name=\"c\",\
                 controller_type=\"CompositeController\",url=\"http://x/\",method=\"post\",\
                 code=\"200\"} 1"
            ),
            "{counted}"
        );
        assert!(counted.contains("metacontroller_sync_request_duration_histogram_seconds_count"));
        assert!(counted.contains("metacontroller_sync_in_flight_requests{"));
        assert!(counted.contains("pilotlight_composite_unchanged_syncs_total{"));

        drop(old);
        assert_eq!(text(&registry), counted);
        drop(new);
        assert_eq!(text(&registry), bare);
    }
}
