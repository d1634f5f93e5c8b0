//! Tests of the recorder: the requests that published Events cause, and when.

use std::{convert::Infallible, future::pending};

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use kube::{client::Body, core::Status};

use super::*;
use crate::manager::Epoch;

/// Requests to an API server: the method, and the Event's message.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<(Method, String)>>>);

impl Sent {
    /// Recorder of an epoch; its server answers the first `answered` requests and no other.
    fn recorder(&self, answered: usize) -> (EventRecorder, Context) {
        let sent = self.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let sent = sent.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let event: Value = serde_json::from_slice(&body).unwrap();
                let number = {
                    let mut all = sent.0.lock();
                    all.push((method, event["message"].as_str().unwrap().to_owned()));
                    all.len()
                };
                if number > answered {
                    pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Full::from(Bytes::from_static(b"{}"))))
            }
        });
        let client = Client::new(server, "default");
        let context = Context::new(Epoch::new("a", 1, Duration::from_secs(5)), &client);
        (EventRecorder::new(client, EventLimit::default()), context)
    }

    fn messages(&self) -> Vec<String> {
        self.0.lock().iter().map(|(_, message)| message.clone()).collect()
    }
}

/// Ends the epoch as the manager does, and waits until its tasks have ended.
async fn end(context: &Context, reason: StopReason) -> Duration {
    let begin = Instant::now();
    context.epoch().stop(reason);
    context.epoch().drain().await;
    context.epoch().wait_ended().await;
    begin.elapsed()
}

fn publish(recorder: &EventRecorder, context: &Context, message: &str) {
    recorder.publish(context, &subject("u"), Severity::Warning, "SyncError", message);
}

fn subject(uid: &str) -> Subject {
    Subject {
        api_version: "example.com/v1".to_owned(),
        kind: "Thing".to_owned(),
        namespace: Some("ns".into()),
        name: "a".into(),
        uid: uid.into(),
    }
}

fn note(memory: &EventMemory, uid: &str, message: &str) -> Option<EventWrite> {
    let now = Timestamp::now();
    memory.count_and_limit(&subject(uid), Severity::Warning, "SyncError", message, now)
}

#[tokio::test(start_paused = true)]
async fn a_repeated_failure_is_one_event_with_a_count() {
    let memory = EventMemory::default();

    let first = note(&memory, "u", "bad").unwrap();
    let second = note(&memory, "u", "bad").unwrap();

    assert_eq!((first.count, second.count), (1, 2));
    assert_eq!(first.name, second.name);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_counted_and_not_written() {
    let memory = EventMemory::default();

    let written = (0..1000).filter(|_| note(&memory, "u", "bad").is_some()).count();
    assert_eq!(written, 25);

    tokio::time::advance(REFILL).await;
    assert_eq!(note(&memory, "u", "bad").unwrap().count, 1001);
    assert!(note(&memory, "u", "bad").is_none());
    assert!(note(&memory, "other", "bad").is_some());
}

#[tokio::test(start_paused = true)]
async fn messages_that_differ_each_time_are_combined() {
    let memory = EventMemory::default();

    let names: std::collections::BTreeSet<_> = (0..20)
        .filter_map(|index| note(&memory, "u", &format!("bad {index}")))
        .map(|write| (write.message.starts_with("(combined"), write.name))
        .collect();

    assert_eq!(names.iter().filter(|(combined, _)| *combined).count(), 1);
    assert_eq!(names.len(), MESSAGES + 1);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded() {
    let memory = EventMemory::default();

    for index in 0..SUBJECTS + 100 {
        note(&memory, &index.to_string(), "bad");
    }

    assert!(memory.subjects.lock().len() <= SUBJECTS);
}

#[test]
fn long_messages_are_cut_between_characters() {
    assert_eq!(cut(&"ä".repeat(600)).len(), 1000);
    assert_eq!(cut(&format!("x{}", "ä".repeat(600))).len(), 999);
}

#[tokio::test(start_paused = true)]
async fn events_of_one_object_are_written_in_order() {
    let sent = Sent::default();
    let (recorder, context) = sent.recorder(usize::MAX);

    for message in ["one", "two", "one"] {
        publish(&recorder, &context, message);
    }
    end(&context, StopReason::Cancelled).await;

    let written = sent.0.lock().clone();
    let expected = [(Method::POST, "one"), (Method::POST, "two"), (Method::PATCH, "one")];
    assert_eq!(written, expected.map(|(method, message)| (method, message.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn publishing_an_event_does_not_wait_for_the_server() {
    let sent = Sent::default();
    let (recorder, context) = sent.recorder(0);
    let other = recorder.with_own_outbox();

    publish(&recorder, &context, "hangs");
    publish(&recorder, &context, "waits");
    publish(&other, &context, "of another runnable");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sent.messages(), ["hangs", "of another runnable"]);

    sleep(Duration::from_secs(30)).await;
    assert_eq!(sent.messages(), ["hangs", "of another runnable", "waits"], "after the deadline");
    end(&context, StopReason::Cancelled).await;
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_ends_has_half_a_second_for_waiting_events() {
    for (reason, grace) in [
        (StopReason::Cancelled, LAST_WRITES),
        (StopReason::Superseded, LAST_WRITES),
        (StopReason::LeaseLost, Duration::ZERO),
    ] {
        let sent = Sent::default();
        let (recorder, context) = sent.recorder(2);
        for message in ["one", "two", "hangs", "never"] {
            publish(&recorder, &context, message);
        }

        let took = end(&context, reason).await;

        assert_eq!(took, grace, "{reason:?}");
        assert_eq!(context.epoch().fence().under_way(), 0);
        if reason == StopReason::LeaseLost {
            assert!(sent.messages().is_empty(), "{:?}", sent.messages());
        } else {
            assert_eq!(sent.messages(), ["one", "two", "hangs"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_an_epoch_could_not_write_do_not_reach_the_next_one() {
    let sent = Sent::default();
    let (recorder, context) = sent.recorder(0);
    publish(&recorder, &context, "hangs");
    publish(&recorder, &context, "never");
    end(&context, StopReason::TypeGone).await;

    let next = Context::new(Epoch::new("a", 2, Duration::from_secs(5)), &recorder.client);
    publish(&recorder, &next, "next");
    end(&next, StopReason::Cancelled).await;

    assert_eq!(sent.messages(), ["hangs", "next"]);
}

#[tokio::test(start_paused = true)]
async fn number_of_waiting_events_is_bounded() {
    let sent = Sent::default();
    let (recorder, context) = sent.recorder(0);
    let recorder = recorder.with_own_outbox();

    for number in 0..ROOM + 100 {
        let subject = subject(&number.to_string());
        recorder.publish(&context, &subject, Severity::Normal, "Started", "Started");
    }

    assert_eq!(recorder.outbox.put(waiting(), ROOM), PutOutcome::Dropped(101));
    end(&context, StopReason::Cancelled).now_or_never();
}

#[test]
fn a_failure_is_reported_once_for_each_cause() {
    let memory = EventMemory::default();
    let api = |reason: &str, causes: Value| {
        let status = json!({ "code": 403, "reason": reason, "details": { "causes": causes } });
        kube::Error::Api(serde_json::from_value::<Box<Status>>(status).unwrap())
    };
    let going = api("Forbidden", json!([{ "reason": "NamespaceTerminating", "field": "x" }]));
    let no_right = api("Forbidden", json!([]));
    let check = |error: &kube::Error, expected: bool| {
        assert_eq!(memory.is_news(cause(error)), expected, "{error:?}");
    };

    check(&going, true);
    check(&no_right, true);
    check(&no_right, false);
    check(&going, false);
    check(&kube::Error::LinesCodecMaxLineLengthExceeded, true);
    for number in 0..100 {
        memory.is_news(&number.to_string());
    }
    assert_eq!(memory.causes.lock().len(), CAUSES);
}

fn waiting() -> PendingEvent {
    let write = note(&EventMemory::default(), "u", "bad").unwrap();
    PendingEvent { subject: subject("u"), severity: Severity::Normal, reason: "Started", write }
}
