//! Event recorder: Events about objects, as `kubectl describe` shows them.
//!
//! Events are written as core/v1 with `source.component`, by which users of Metacontroller find
//! them; kube's recorder leaves it empty. A repeated failure is one Event with a count.

mod outbox;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::outbox::{Delivery, Outbox, PutOutcome};
use crate::{
    controller::Context,
    manager::StopReason,
    meta::resource::{self, is_fenced, is_not_found},
    redaction,
    token_bucket::TokenBucket,
};

/// `source.component` of every Event.
const COMPONENT: &str = "metacontroller";
/// Default of [`EventLimit::burst`].
const BURST: u32 = 25;
/// Default of [`EventLimit::refill`].
const REFILL: Duration = Duration::from_secs(300);
/// Number of distinct messages for each object, severity and reason; further messages are combined
/// into one Event.
const MESSAGES: usize = 10;
/// Time after which the record of an object without new Events may be dropped.
const FORGET: Duration = Duration::from_secs(600);
/// Maximum number of objects with a record.
const SUBJECTS: usize = 4096;
/// Maximum number of pending Events of one runnable; client-go keeps 1000 for a whole process.
const ROOM: usize = 256;
/// Maximum number of pending Events of the supervisor, which reports on every controller.
const SUPERVISOR_ROOM: usize = SUBJECTS;
/// Longest time for which pending Events are still written after their epoch ended; short, so that
/// it does not delay a stop.
const LAST_WRITES: Duration = Duration::from_millis(500);
/// Maximum number of causes of failed writes that are logged as warnings.
const CAUSES: usize = 16;
/// Longest message that is written, in bytes; the API server accepts no longer one.
const MESSAGE_BYTES: usize = 1000;

/// Rate limit of the Events of one object; further ones are counted and not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimit {
    /// Number of Events that may be written without a pause; 25 by default.
    pub burst: u32,
    /// Time after which one more Event may be written; five minutes by default.
    pub refill: Duration,
}

impl Default for EventLimit {
    fn default() -> Self {
        Self { burst: BURST, refill: REFILL }
    }
}

/// Object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// `group/version` of the object.
    pub(crate) api_version: String,
    /// Kind of the object.
    pub(crate) kind: String,
    /// Namespace of the object.
    pub(crate) namespace: Option<Arc<str>>,
    /// Name of the object.
    pub(crate) name: Arc<str>,
    /// uid of the object.
    pub(crate) uid: Arc<str>,
}

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    /// Expected.
    Normal,
    /// Needs attention.
    Warning,
}

/// Event recorder. Aggregates and rate-limits Events, writes them in their order, and never blocks
/// its caller. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EventRecorder {
    // Not fenced: the epoch's fence is added for each delivery.
    client: Client,
    memory: EventMemory,
    outbox: Outbox<PendingEvent>,
    room: usize,
}

/// Record of written Events, shared by all recorders of a process.
#[derive(Clone, Debug, Default)]
struct EventMemory {
    limit: EventLimit,
    subjects: Arc<Mutex<HashMap<Arc<str>, SubjectEvents>>>,
    // Causes of failed writes that have been logged as warnings.
    causes: Arc<Mutex<HashSet<String>>>,
}

/// Events and rate limit of one object.
#[derive(Debug)]
struct SubjectEvents {
    tokens: TokenBucket,
    last: Instant,
    events: HashMap<(Severity, &'static str), Vec<WrittenEvent>>,
}

#[derive(Clone, Debug)]
struct WrittenEvent {
    // `None` for the combined Event.
    message: Option<String>,
    name: String,
    count: u32,
    first: Timestamp,
}

/// Create or update of one Event.
#[derive(Debug, PartialEq)]
struct EventWrite {
    name: String,
    // With a count above 1 the Event exists already.
    count: u32,
    first: Timestamp,
    last: Timestamp,
    message: String,
}

/// Pending write.
#[derive(Debug)]
struct PendingEvent {
    subject: Subject,
    severity: Severity,
    reason: &'static str,
    write: EventWrite,
}

impl EventRecorder {
    /// Returns the recorder of the supervisor.
    pub(crate) fn new(client: Client, limit: EventLimit) -> Self {
        let (memory, outbox) = (EventMemory { limit, ..EventMemory::default() }, Outbox::default());
        Self { client, memory, outbox, room: SUPERVISOR_ROOM }
    }

    /// Returns a recorder for another runnable, with the same record of written Events but its own
    /// outbox. Events of one runnable therefore never wait for those of another.
    pub(crate) fn with_own_outbox(&self) -> Self {
        Self { outbox: Outbox::default(), room: ROOM, ..self.clone() }
    }

    /// Queues an Event, or only counts it if its object is over the rate limit. The Event belongs
    /// to the epoch of the context, and is written no later than a short time after its end. A
    /// failed write is logged and not retried.
    pub(crate) fn publish(
        &self,
        context: &Context,
        subject: &Subject,
        severity: Severity,
        reason: &'static str,
        message: &str,
    ) {
        let now = Timestamp::now();
        let Some(write) = self.memory.count_and_limit(subject, severity, reason, message, now)
        else {
            return;
        };
        let entry = PendingEvent { subject: subject.clone(), severity, reason, write };
        match self.outbox.put(entry, self.room) {
            PutOutcome::Begins => {
                let delivery = self.outbox.delivery();
                // A task of the epoch rather than of the request that happens to be first, since
                // all requests share the outbox.
                context.epoch().spawn(self.clone().deliver(delivery, context.clone()));
            }
            PutOutcome::Dropped(1) => {
                let controller = context.epoch().controller();
                tracing::warn!(%controller, "Events are dropped, because the API server is slow");
            }
            PutOutcome::Waits | PutOutcome::Dropped(_) => {}
        }
    }

    /// Writes the pending Events one after the other.
    async fn deliver(self, mut delivery: Delivery<PendingEvent>, context: Context) {
        // A separate client: with that of the context, a write with an unknown outcome would count
        // as one of the running reconciles.
        let client = context.epoch().client(&self.client);
        let all = async {
            while let Some(entry) = delivery.next() {
                if let Err(error) = write(&client, &entry).await {
                    self.log_failure(&entry, &error);
                }
            }
        };
        tokio::select! {
            () = all => {}
            () = end_of_delivery(&context) => {}
        }
    }

    fn log_failure(
        &self,
        PendingEvent { subject, reason, .. }: &PendingEvent,
        error: &kube::Error,
    ) {
        let is_news = !is_fenced(error) && self.memory.is_news(cause(error));
        let (error, name) = (redaction::request_error(error), &subject.name);
        if is_news {
            tracing::warn!(
                error,
                reason,
                %name,
                "an Event was not written; further failures of this cause are logged at debug"
            );
        } else {
            tracing::debug!(error, reason, %name, "an Event was not written");
        }
    }
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRecorder").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl EventMemory {
    /// Returns whether no write has failed for this cause before.
    fn is_news(&self, cause: &str) -> bool {
        let mut causes = self.causes.lock();
        causes.len() < CAUSES && causes.insert(cause.to_owned())
    }

    /// Counts an Event; returns the write, unless the object is over the rate limit.
    fn count_and_limit(
        &self,
        subject: &Subject,
        severity: Severity,
        reason: &'static str,
        message: &str,
        now: Timestamp,
    ) -> Option<EventWrite> {
        let instant = Instant::now();
        let mut subjects = self.subjects.lock();
        make_room(&mut subjects, instant);
        let written = subjects.entry(subject.uid.clone()).or_insert_with(|| SubjectEvents {
            tokens: TokenBucket::new(self.limit.burst, self.limit.refill, instant),
            last: instant,
            events: HashMap::new(),
        });
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
                events.push(WrittenEvent {
                    message: (!combined).then(|| message.to_owned()),
                    name: event_name(&subject.name, now),
                    count: 0,
                    first: now,
                });
                events.last_mut().expect("one was just pushed")
            }
        };
        known.count += 1;
        if written.tokens.level(instant) < 1.0 {
            return None;
        }
        written.tokens.take(instant);
        Some(EventWrite {
            name: known.name.clone(),
            count: known.count,
            first: known.first,
            last: now,
            message: if combined {
                cut(&format!("(combined from similar events): {message}")).to_owned()
            } else {
                message.to_owned()
            },
        })
    }
}

/// Resolves when the epoch has ended and the time for its last Events is over.
async fn end_of_delivery(context: &Context) {
    context.cancelled().await;
    if context.epoch().stop_reason() != Some(StopReason::LeaseLost) {
        sleep(context.epoch().grace().min(LAST_WRITES)).await;
    }
}

async fn write(client: &Client, entry: &PendingEvent) -> Result<(), kube::Error> {
    let write = &entry.write;
    let namespace = entry.subject.namespace.as_deref().unwrap_or("default");
    let path = format!("/api/v1/namespaces/{namespace}/events");
    if write.count > 1 {
        let patch = json!({
            "count": write.count,
            "lastTimestamp": seconds(write.last),
            "message": write.message,
        });
        let path = format!("{path}/{}", write.name);
        let content_type = "application/strategic-merge-patch+json";
        match resource::send(client, Method::PATCH, path, content_type, Some(&patch)).await {
            // The Event has expired, so it is created again.
            Err(error) if is_not_found(&error) => {}
            other => return other.map(|IgnoredAny| ()),
        }
    }
    let event = event(entry, namespace);
    resource::send(client, Method::POST, path, "application/json", Some(&event))
        .await
        .map(|IgnoredAny| ())
}

/// Returns the cause by which failed writes are grouped for the log.
fn cause(error: &kube::Error) -> &str {
    let kube::Error::Api(status) = error else { return "NoResponse" };
    // Creating in a terminating namespace is forbidden too, and no right is missing.
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let first = causes.map(|cause| &cause.reason).find(|reason| !reason.is_empty());
    first.unwrap_or(&status.reason)
}

/// Drops the records of objects without recent Events; if there are still too many, the oldest one.
fn make_room(subjects: &mut HashMap<Arc<str>, SubjectEvents>, now: Instant) {
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
    PendingEvent { subject, severity, reason, write }: &PendingEvent,
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
        "lastTimestamp": seconds(write.last),
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
mod tests;
