//! Requests in a row, and what a server answered to each, without what no two servers share.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use http::{Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::rig::PATIENCE;

/// One thing to do. Paths and bodies may name `$group`, `$ns`, and `$version.x`, `$uid.x` and
/// `$continue.x` of an answer that was kept as `x`.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    method: &'static str,
    path: String,
    kind: &'static str,
    body: Value,
    keep: Option<&'static str>,
    then: Then,
    /// Compares code and reason only: the bodies differ for a reason that is known.
    brief: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Compare,
    /// Repeats the request until it answers this code.
    Until(u16),
    /// Reads the events of a watch until the server ends it.
    Events,
}

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn step(method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    let path = path.to_owned();
    Step { method, path, kind, body, keep: None, then: Then::Compare, brief: false }
}

pub(crate) fn get(path: &str) -> Step {
    step("GET", path, "", Value::Null)
}

pub(crate) fn post(path: &str, body: Value) -> Step {
    step("POST", path, "application/json", body)
}

pub(crate) fn put(path: &str, body: Value) -> Step {
    step("PUT", path, "application/json", body)
}

pub(crate) fn patch(kind: &'static str, path: &str, body: Value) -> Step {
    step("PATCH", path, kind, body)
}

pub(crate) fn delete(path: &str, body: Value) -> Step {
    step("DELETE", path, "application/json", body)
}

/// A watch of 2 s.
pub(crate) fn events(path: &str) -> Step {
    let mark = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{mark}watch=true&timeoutSeconds=2");
    Step { then: Then::Events, ..get(&path) }
}

impl Step {
    pub(crate) fn keep(self, name: &'static str) -> Self {
        Self { keep: Some(name), ..self }
    }

    pub(crate) fn until(self, code: u16) -> Self {
        Self { then: Then::Until(code), ..self }
    }

    pub(crate) fn brief(self) -> Self {
        Self { brief: true, ..self }
    }

    pub(crate) fn says(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// Does all of it; what is to be compared, step by step.
pub(crate) async fn play(
    client: &Client,
    group: &str,
    namespace: &str,
    steps: &[Step],
) -> Vec<Value> {
    let mut kept = BTreeMap::from([
        ("$group".to_owned(), group.to_owned()),
        ("$ns".to_owned(), namespace.to_owned()),
    ]);
    let mut answers = Vec::new();
    for step in steps {
        answers.push(one(client, step, &mut kept).await);
    }
    answers
}

fn filled(text: &str, kept: &BTreeMap<String, String>) -> String {
    // The longer name first: one may begin with another.
    kept.iter().rev().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

async fn one(client: &Client, step: &Step, kept: &mut BTreeMap<String, String>) -> Value {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "{} does not end", step.says());
        let body = if step.body.is_null() { String::new() } else { step.body.to_string() };
        let request = Request::builder()
            .method(step.method)
            .uri(filled(&step.path, kept))
            .header(header::CONTENT_TYPE, step.kind)
            .header(header::USER_AGENT, "differential/1")
            .body(Body::from(filled(&body, kept).into_bytes()))
            .unwrap();
        let answer = timeout(PATIENCE, client.send(request)).await.unwrap().unwrap();
        let code = answer.status().as_u16();
        if step.then == Then::Events && code == 200 {
            return events_of(answer.into_body()).await;
        }
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
        let mut body: Value = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        let wanted = match step.then {
            Then::Until(wanted) => code == wanted,
            // A type that has just begun to be served.
            Then::Compare | Then::Events => code != 429,
        };
        if !wanted {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        if let Some(name) = step.keep {
            for (what, field) in
                [("version", "resourceVersion"), ("uid", "uid"), ("continue", "continue")]
            {
                if let Some(value) = body["metadata"][field].as_str() {
                    kept.insert(format!("${what}.{name}"), value.to_owned());
                }
            }
        }
        if step.then != Then::Compare {
            return json!({ "code": code });
        }
        if step.brief {
            return json!({ "code": code, "reason": body["reason"] });
        }
        mask(&mut body);
        return json!({ "code": code, "body": body });
    }
}

async fn events_of(body: Body) -> Value {
    let mut bytes = Vec::new();
    let mut frames = body.into_data_stream();
    while let Some(frame) = timeout(PATIENCE, frames.next()).await.unwrap() {
        bytes.extend_from_slice(&frame.unwrap());
    }
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events = lines.map(|line| {
        let mut event: Value = serde_json::from_slice(line).unwrap();
        mask(&mut event);
        event
    });
    // Bookmarks come when they come, but for the one that ends the beginning.
    let is_told = |event: &Value| {
        event["type"] != "BOOKMARK" || !event["object"]["metadata"]["annotations"].is_null()
    };
    events.filter(is_told).collect()
}

/// Takes away what differs between any two servers.
fn mask(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("managedFields");
        // A digest that nobody but the storage migrator reads.
        fields.remove("storageVersionHash");
        for (name, value) in fields.iter_mut() {
            match (name.as_str(), value.as_str()) {
                (
                    "uid" | "resourceVersion" | "creationTimestamp" | "deletionTimestamp"
                    | "lastTransitionTime" | "continue",
                    Some(text),
                ) if !text.is_empty() => *value = "…".into(),
                ("message" | "selfLink", Some(text)) => *value = without_numbers(text).into(),
                ("name", Some(text)) if text.starts_with("made-") => *value = "made-…".into(),
                _ => mask(value),
            }
        }
        // A null says as much as nothing.
        fields.retain(|_, value| !value.is_null());
    }
    for item in value.as_array_mut().into_iter().flatten() {
        mask(item);
    }
}

/// Without uids and versions.
fn without_numbers(text: &str) -> String {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let mut shown = String::new();
    for part in text.split_inclusive(|letter| !is_word(letter)) {
        let word = part.trim_end_matches(|letter| !is_word(letter));
        let is_uid = word.len() == 36 && word.matches('-').count() == 4;
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let time = word.len() > 6 && word.starts_with("20") && word.contains('-');
        if is_uid || is_number || time {
            shown.push('#');
            shown.push_str(&part[word.len()..]);
        } else {
            shown.push_str(part);
        }
    }
    shown
}
