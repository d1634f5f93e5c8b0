//! Record of an election in a Lease, in the form of client-go, so that both exclude each other.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kind::VersionOrder;

/// Lease as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredLease {
    pub(super) version: String,
    pub(super) record: Record,
    /// Whole object; fields of other writers are kept.
    object: Value,
}

/// Fields of a Lease that the election writes. Times of other machines are compared, never read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Identity of the holder; empty if the lease is free.
    pub(super) holder: String,
    /// Seconds that others wait; zero if the field is missing.
    pub(super) seconds: i64,
    pub(super) acquired: Option<String>,
    pub(super) renewed: Option<String>,
    pub(super) transitions: i64,
}

impl Record {
    /// Record with which a replica acquires a lease.
    pub(super) fn acquired_by(identity: &str, seconds: i64, transitions: i64) -> Self {
        let now = Some(now());
        Self {
            holder: identity.to_owned(),
            seconds,
            acquired: now.clone(),
            renewed: now,
            transitions,
        }
    }

    /// Returns the record with a new renewTime.
    pub(super) fn renewed(&self, seconds: i64) -> Self {
        Self { renewed: Some(now()), seconds, ..self.clone() }
    }

    /// Record that frees the lease. The duration is one second, as client-go writes it: it must be
    /// positive.
    pub(super) fn released(&self) -> Self {
        let now = Some(now());
        Self {
            holder: String::new(),
            seconds: 1,
            acquired: now.clone(),
            renewed: now,
            transitions: self.transitions,
        }
    }

    /// Returns a Lease with this record, to create.
    pub(super) fn creation(&self, namespace: &str, name: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": self.spec(),
        })
    }

    fn spec(&self) -> Map<String, Value> {
        let fields = [
            ("holderIdentity", json!(self.holder)),
            ("leaseDurationSeconds", json!(self.seconds)),
            ("acquireTime", json!(self.acquired)),
            ("renewTime", json!(self.renewed)),
            ("leaseTransitions", json!(self.transitions)),
        ];
        fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
    }
}

impl StoredLease {
    /// Reads a Lease of the server.
    pub(super) fn read(object: Value) -> Self {
        let spec = &object["spec"];
        let text = |field: &str| spec[field].as_str().map(str::to_owned);
        let record = Record {
            holder: text("holderIdentity").unwrap_or_default(),
            seconds: spec["leaseDurationSeconds"].as_i64().unwrap_or_default(),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: spec["leaseTransitions"].as_i64().unwrap_or_default(),
        };
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        Self { version, record, object }
    }

    /// Returns the object with another record. The server refuses it if the Lease has changed.
    pub(super) fn with(&self, record: &Record) -> Value {
        let mut object = self.object.clone();
        match object.get_mut("spec").and_then(Value::as_object_mut) {
            Some(spec) => spec.extend(record.spec()),
            None => object["spec"] = Value::Object(record.spec()),
        }
        object
    }

    /// Returns whether this is an earlier state of the Lease than `other`.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        VersionOrder::Comparable.is_older(&self.version, &other.version)
    }
}

/// Current time as Kubernetes writes a MicroTime.
fn now() -> String {
    format!("{:.6}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As client-go writes it.
    fn lease() -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "a", "namespace": "ns", "resourceVersion": "7", "labels": {"b": "c"}},
            "spec": {
                "holderIdentity": "one_9f0b",
                "leaseDurationSeconds": 15,
                "acquireTime": "2026-01-22T10:00:00.000000Z",
                "renewTime": "2026-01-22T10:00:10.123456Z",
                "leaseTransitions": 5,
                "strategy": "OldestEmulationVersion",
            },
        })
    }

    #[test]
    fn record_of_client_go_is_read_and_what_it_lacks_is_kept() {
        let seen = StoredLease::read(lease());

        assert_eq!((seen.version.as_str(), seen.record.holder.as_str()), ("7", "one_9f0b"));
        assert_eq!((seen.record.seconds, seen.record.transitions), (15, 5));
        assert_eq!(seen.with(&seen.record), lease(), "labels, version and strategy");
    }

    #[test]
    fn written_times_have_six_digits() {
        let record = Record::acquired_by("a", 15, 0);
        let time = record.renewed.clone().unwrap();

        assert_eq!(record.acquired, record.renewed);
        assert_eq!(time.len(), "2026-01-22T10:00:10.123456Z".len(), "{time}");
        assert!(time.ends_with('Z'), "{time}");
    }

    #[test]
    fn renewal_keeps_the_acquisition_and_release_empties_the_holder() {
        let seen = StoredLease::read(lease());

        let renewed = seen.record.renewed(15);
        assert_eq!(
            (&renewed.acquired, renewed.transitions),
            (&seen.record.acquired, seen.record.transitions)
        );
        assert_ne!(renewed.renewed, seen.record.renewed);
        let released = seen.record.released();
        assert_eq!((released.holder.as_str(), released.seconds, released.transitions), ("", 1, 5));
    }

    #[test]
    fn lease_without_a_specification_is_free() {
        let seen = StoredLease::read(json!({"metadata": {"resourceVersion": "3"}}));

        assert_eq!(seen.record, Record::default());
        assert_eq!(seen.with(&Record::acquired_by("a", 15, 1))["spec"]["holderIdentity"], "a");
    }

    #[test]
    fn earlier_state_is_known_by_its_version() {
        let at = |version: &str| {
            StoredLease::read(json!({"metadata": {"resourceVersion": version}, "spec": {}}))
        };

        assert!(at("9").is_before(&at("10")));
        assert!(!at("10").is_before(&at("10")));
        assert!(!at("x").is_before(&at("10")), "not comparable");
    }
}
