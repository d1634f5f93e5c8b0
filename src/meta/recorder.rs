//! Events: what happened to an object, for `kubectl describe`.
//!
//! Written as core/v1 with `source.component`, which kube's recorder leaves empty and by which
//! users of Metacontroller find them. A failure that goes on is one Event with a count.

mod outbox;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::outbox::{Delivery, Outbox, Put};
use super::resource::{self, is_fenced, is_not_found};
use crate::{controller::Context, manager::StopReason};

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
/// Events of one runnable that wait to be written; client-go keeps 1000 for a whole process.
const ROOM: usize = 256;
/// The same of the supervisor, which tells of every controller.
const ROOM_OF_ALL: usize = SUBJECTS;
/// How long what waits goes on being written when its epoch ends: a stop is not to be noticed.
const LAST: Duration = Duration::from_millis(500);
/// Causes of failures that are told apart.
const CAUSES: usize = 16;
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

/// Writes Events, fewer than it is given, in their order, and lets nobody wait for it. Cheap to
/// clone.
#[derive(Clone)]
pub(crate) struct EventRecorder {
    // Not behind a fence.
    client: Client,
    memory: Memory,
    outbox: Outbox<Entry>,
    room: usize,
}

/// What all recorders of a process know.
#[derive(Clone, Debug, Default)]
struct Memory {
    subjects: Arc<Mutex<HashMap<Arc<str>, Written>>>,
    // Why Events were not written, so far.
    causes: Arc<Mutex<HashSet<String>>>,
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
    last: Timestamp,
    message: String,
}

/// A write that waits.
#[derive(Debug)]
struct Entry {
    subject: Subject,
    severity: Severity,
    reason: &'static str,
    write: Write,
}

impl EventRecorder {
    /// The recorder of the supervisor.
    pub(crate) fn new(client: Client) -> Self {
        let (memory, outbox) = (Memory::default(), Outbox::default());
        Self { client, memory, outbox, room: ROOM_OF_ALL }
    }

    /// One for another runnable, of the same memory. What is told through the one does not wait
    /// for what is told through the other.
    pub(crate) fn apart(&self) -> Self {
        Self { outbox: Outbox::default(), room: ROOM, ..self.clone() }
    }

    /// Has an Event written, or counts it if too many were. It is the epoch's of the context, and
    /// tried for a short time after its end. A failure is logged and forgotten.
    pub(crate) fn publish(
        &self,
        context: &Context,
        subject: &Subject,
        severity: Severity,
        reason: &'static str,
        message: &str,
    ) {
        let now = Timestamp::now();
        let Some(write) = self.memory.note(subject, severity, reason, message, now) else {
            return;
        };
        let entry = Entry { subject: subject.clone(), severity, reason, write };
        match self.outbox.put(entry, self.room) {
            Put::Begins => {
                let delivery = self.outbox.delivery();
                // Of the epoch and not of the request that happens to be first: the outbox is one for
                // all of them.
                context.epoch().spawn(self.clone().deliver(delivery, context.clone()));
            }
            Put::Dropped(1) => {
                let controller = context.epoch().controller();
                tracing::warn!(%controller, "Events are dropped: the API server is slow to take them");
            }
            Put::Waits | Put::Dropped(_) => {}
        }
    }

    /// Writes what waits, one after the other.
    async fn deliver(self, mut delivery: Delivery<Entry>, context: Context) {
        // One of its own: that of the context would count a write whose outcome is unknown among
        // those of the reconciles that happen to run.
        let client = context.epoch().client(&self.client);
        let all = async {
            while let Some(entry) = delivery.next() {
                if let Err(error) = write(&client, &entry).await {
                    self.tell(&entry, &error);
                }
            }
        };
        tokio::select! {
            () = all => {}
            () = last_call(&context) => {}
        }
    }

    fn tell(&self, Entry { subject, reason, .. }: &Entry, error: &kube::Error) {
        let is_news = !is_fenced(error) && self.memory.is_news(cause(error));
        let (error, name) = (resource::explain(error), &subject.name);
        if is_news {
            tracing::warn!(
                error,
                reason,
                %name,
                "an Event was not written; others that fail alike are logged at debug"
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

impl Memory {
    /// Whether Events have not failed for this cause before.
    fn is_news(&self, cause: &str) -> bool {
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        causes.len() < CAUSES && causes.insert(cause.to_owned())
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
            last: now,
            message: if combined {
                cut(&format!("(combined from similar events): {message}")).to_owned()
            } else {
                message.to_owned()
            },
        })
    }
}

/// Resolves when the epoch has ended and nothing of it is to be written any more.
async fn last_call(context: &Context) {
    context.cancelled().await;
    if context.epoch().stop_reason() != Some(StopReason::LeaseLost) {
        sleep(context.epoch().grace().min(LAST)).await;
    }
}

async fn write(client: &Client, entry: &Entry) -> Result<(), kube::Error> {
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
            // It has expired.
            Err(error) if is_not_found(&error) => {}
            other => return other.map(|IgnoredAny| ()),
        }
    }
    let event = event(entry, namespace);
    resource::send(client, Method::POST, path, "application/json", Some(&event))
        .await
        .map(|IgnoredAny| ())
}

/// What tells failures apart of which each is worth a word.
fn cause(error: &kube::Error) -> &str {
    let kube::Error::Api(status) = error else { return "NoAnswer" };
    // To create in a namespace that goes is forbidden too, and no right is missing.
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let first = causes.map(|cause| &cause.reason).find(|reason| !reason.is_empty());
    first.unwrap_or(&status.reason)
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

fn event(Entry { subject, severity, reason, write }: &Entry, namespace: &str) -> Value {
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
