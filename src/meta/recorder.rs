//! Events: what happened to an object, for `kubectl describe`.
//!
//! Written as core/v1 with `source.component`, which kube's recorder leaves empty and by which
//! users of Metacontroller find them. A failure that goes on is one Event with a count.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::resource::{self, is_not_found};

/// `source.component` of every Event.
const COMPONENT: &str = "metacontroller";
/// Events of one object that may be written at once.
const BURST: f64 = 25.0;
/// The time after which one more may be written.
const REFILL: Duration = Duration::from_secs(300);
/// Messages of one reason that are told apart; the others are combined.
const MESSAGES: usize = 10;
/// How long an object without Events is remembered.
const FORGET: Duration = Duration::from_secs(600);
/// Objects that are remembered at most.
const SUBJECTS: usize = 4096;
/// The longest message that the API server takes.
const MESSAGE_BYTES: usize = 1000;

/// What an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// `group/version` of the object.
    pub(crate) api_version: String,
    /// Its kind.
    pub(crate) kind: String,
    /// Its namespace.
    pub(crate) namespace: Option<Arc<str>>,
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Its uid.
    pub(crate) uid: Arc<str>,
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    /// All is well.
    Normal,
    /// Something is wrong.
    Warning,
}

/// Writes Events, fewer than it is given. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    subjects: Arc<Mutex<HashMap<Arc<str>, Written>>>,
}

/// What was written about one object.
#[derive(Debug)]
struct Written {
    tokens: f64,
    last: Instant,
    events: HashMap<(Severity, &'static str), Vec<Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    // None for those that are combined.
    message: Option<String>,
    name: String,
    count: u32,
    first: Timestamp,
}

/// One write.
#[derive(Debug, PartialEq)]
struct Write {
    name: String,
    // With a count above 1 the Event is there already.
    count: u32,
    first: Timestamp,
    message: String,
}

impl Recorder {
    /// Writes an Event through a client, or counts it if too many were written. A failure is
    /// logged and forgotten.
    pub(crate) async fn publish(
        &self,
        client: &Client,
        subject: &Subject,
        severity: Severity,
        reason: &'static str,
        message: &str,
    ) {
        let Some(write) = self.note(subject, severity, reason, message, Timestamp::now()) else {
            return;
        };
        let result = self.write(client, subject, severity, reason, &write).await;
        if let Err(error) = result {
            let error = resource::explain(&error);
            tracing::debug!(error, reason, name = %subject.name, "an Event was not written");
        }
    }

    async fn write(
        &self,
        client: &Client,
        subject: &Subject,
        severity: Severity,
        reason: &str,
        write: &Write,
    ) -> Result<(), kube::Error> {
        let namespace = subject.namespace.as_deref().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/events");
        if write.count > 1 {
            let patch = json!({
                "count": write.count,
                "lastTimestamp": seconds(Timestamp::now()),
                "message": write.message,
            });
            let path = format!("{path}/{}", write.name);
            let content_type = "application/strategic-merge-patch+json";
            match resource::send(client, Method::PATCH, path, content_type, Some(&patch)).await {
                // It has expired.
                Err(error) if is_not_found(&error) => {}
                other => return other.map(drop),
            }
        }
        let event = event(subject, severity, reason, write, namespace);
        resource::send(client, Method::POST, path, "application/json", Some(&event)).await.map(drop)
    }

    /// Decides what is to be written.
    fn note(
        &self,
        subject: &Subject,
        severity: Severity,
        reason: &'static str,
        message: &str,
        now: Timestamp,
    ) -> Option<Write> {
        let instant = Instant::now();
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut subjects, instant);
        let written = subjects.entry(subject.uid.clone()).or_insert_with(|| Written {
            tokens: BURST,
            last: instant,
            events: HashMap::new(),
        });
        let refilled = instant.duration_since(written.last).as_secs_f64() / REFILL.as_secs_f64();
        written.tokens = (written.tokens + refilled).min(BURST);
        written.last = instant;
        let events = written.events.entry((severity, reason)).or_default();
        let message = cut(message);
        let known = events.iter().position(|known| known.message.as_deref() == Some(message));
        let combined = known.is_none() && events.len() >= MESSAGES;
        let position = known.or_else(|| {
            combined.then(|| events.iter().position(|known| known.message.is_none())).flatten()
        });
        let known = match position {
            Some(position) => &mut events[position],
            None => {
                events.push(Known {
                    message: (!combined).then(|| message.to_owned()),
                    name: event_name(&subject.name, now),
                    count: 0,
                    first: now,
                });
                events.last_mut().expect("one was just pushed")
            }
        };
        known.count += 1;
        if written.tokens < 1.0 {
            return None;
        }
        written.tokens -= 1.0;
        Some(Write {
            name: known.name.clone(),
            count: known.count,
            first: known.first,
            message: if combined {
                cut(&format!("(combined from similar events): {message}")).to_owned()
            } else {
                message.to_owned()
            },
        })
    }
}

/// Forgets objects that were silent for long; when there are too many, the longest silent.
fn make_room(subjects: &mut HashMap<Arc<str>, Written>, now: Instant) {
    if subjects.len() < SUBJECTS {
        return;
    }
    subjects.retain(|_, written| now.duration_since(written.last) < FORGET);
    if subjects.len() >= SUBJECTS {
        let oldest = subjects.iter().min_by_key(|(_, written)| written.last);
        if let Some(uid) = oldest.map(|(uid, _)| uid.clone()) {
            subjects.remove(&uid);
        }
    }
}

fn event(
    subject: &Subject,
    severity: Severity,
    reason: &str,
    write: &Write,
    namespace: &str,
) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": write.name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            "namespace": subject.namespace,
            "uid": subject.uid,
        },
        "reason": reason,
        "message": write.message,
        "type": match severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        },
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
        "firstTimestamp": seconds(write.first),
        "lastTimestamp": seconds(Timestamp::now()),
        "count": write.count,
    })
}

fn event_name(object: &str, now: Timestamp) -> String {
    let object: String = object.chars().take(200).collect();
    format!("{object}.{:x}", now.as_nanosecond())
}

/// Event timestamps have no fractions.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn cut(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(uid: &str) -> Subject {
        Subject {
            api_version: "example.com/v1".to_owned(),
            kind: "Thing".to_owned(),
            namespace: Some("ns".into()),
            name: "a".into(),
            uid: uid.into(),
        }
    }

    fn note(recorder: &Recorder, uid: &str, message: &str) -> Option<Write> {
        let now = Timestamp::now();
        recorder.note(&subject(uid), Severity::Warning, "SyncError", message, now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_goes_on_is_one_event_with_a_count() {
        let recorder = Recorder::default();

        let first = note(&recorder, "u", "bad").unwrap();
        let second = note(&recorder, "u", "bad").unwrap();

        assert_eq!((first.count, second.count), (1, 2));
        assert_eq!(first.name, second.name);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_not_written() {
        let recorder = Recorder::default();

        let written = (0..1000).filter(|_| note(&recorder, "u", "bad").is_some()).count();
        assert_eq!(written, 25);

        tokio::time::advance(REFILL).await;
        assert_eq!(note(&recorder, "u", "bad").unwrap().count, 1001);
        assert!(note(&recorder, "u", "bad").is_none());
        assert!(note(&recorder, "other", "bad").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_differ_each_time_are_combined() {
        let recorder = Recorder::default();

        let names: std::collections::BTreeSet<_> = (0..20)
            .filter_map(|index| note(&recorder, "u", &format!("bad {index}")))
            .map(|write| (write.message.starts_with("(combined"), write.name))
            .collect();

        assert_eq!(names.iter().filter(|(combined, _)| *combined).count(), 1);
        assert_eq!(names.len(), MESSAGES + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let recorder = Recorder::default();

        for index in 0..SUBJECTS + 100 {
            note(&recorder, &index.to_string(), "bad");
        }

        assert!(recorder.subjects.lock().unwrap().len() <= SUBJECTS);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(cut(&"ä".repeat(600)).len(), 1000);
        assert_eq!(cut(&format!("x{}", "ä".repeat(600))).len(), 999);
    }
}
