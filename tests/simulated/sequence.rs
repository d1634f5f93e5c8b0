//! Sequences of requests, and a server's masked answers to them.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{mask::mask, side::Side};
use crate::support::PATIENCE;

/// Step of a sequence. Paths and bodies may contain `$group`, `$ns`, and `$version.x`, `$uid.x` and
/// `$continue.x` of a response that was kept as `x`.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    method: &'static str,
    path: String,
    kind: &'static str,
    body: Value,
    accept: &'static str,
    user: &'static str,
    keep: Option<&'static str>,
    action: StepAction,
    /// Compared part of the body.
    part: Part,
}

/// Function that selects the compared part of a body; the text is the group of the test.
pub(crate) type Choice = fn(Value, &str) -> Value;

/// Predicate for a body; the text is the group of the test.
pub(crate) type Wanted = fn(&Value, &str) -> bool;

#[derive(Clone, Copy, Debug)]
enum Part {
    Whole,
    /// Code and reason only, for bodies that differ for a known reason.
    Reason,
    Chosen(Choice),
}

#[derive(Clone, Debug)]
enum StepAction {
    Compare,
    /// Repeats the request until it is answered with this code.
    Until(u16),
    /// Repeats the request until the predicate holds for its response, and compares that.
    Settled(Wanted),
    /// Reads the events of a watch until the server ends it.
    Events,
    /// Begins a watch, which is read later.
    Open(&'static str),
    /// Reads the watch of this name until the server ends it.
    End(&'static str),
    /// Replaces the rights of the restricted user.
    Grant(Vec<Right>),
    /// Waits for this time.
    Wait(Duration),
}

/// Right to some verbs on some types of one group.
#[derive(Clone, Debug)]
pub(crate) struct Right {
    pub(crate) verbs: Vec<&'static str>,
    /// Group, which may contain `$group`.
    pub(crate) group: &'static str,
    pub(crate) resources: Vec<&'static str>,
    /// True to limit the right to the namespace of the test.
    pub(crate) namespaced: bool,
}

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn step(method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    Step {
        method,
        path: path.to_owned(),
        kind,
        body,
        accept: "",
        user: "",
        keep: None,
        action: StepAction::Compare,
        part: Part::Whole,
    }
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

/// Begins a watch of 2 s and reads it.
pub(crate) fn events(path: &str) -> Step {
    Step { action: StepAction::Events, ..get(&watching(path, 2)) }
}

/// Begins a watch that [`ends`] reads.
pub(crate) fn opens(name: &'static str, path: &str) -> Step {
    Step { action: StepAction::Open(name), ..get(&watching(path, 40)) }
}

pub(crate) fn ends(name: &'static str) -> Step {
    Step { action: StepAction::End(name), ..get(name) }
}

pub(crate) fn grant(rights: Vec<Right>) -> Step {
    Step { action: StepAction::Grant(rights), ..get("rights") }
}

pub(crate) fn wait(millis: u64) -> Step {
    Step { action: StepAction::Wait(Duration::from_millis(millis)), ..get("a pause") }
}

fn watching(path: &str, seconds: u32) -> String {
    if path.contains("timeoutSeconds") {
        return format!("{path}&watch=true");
    }
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}watch=true&timeoutSeconds={seconds}")
}

impl Step {
    pub(crate) fn keep(self, name: &'static str) -> Self {
        Self { keep: Some(name), ..self }
    }

    pub(crate) fn until(self, code: u16) -> Self {
        Self { action: StepAction::Until(code), ..self }
    }

    pub(crate) fn settled(self, wanted: Wanted) -> Self {
        Self { action: StepAction::Settled(wanted), ..self }
    }

    pub(crate) fn brief(self) -> Self {
        Self { part: Part::Reason, ..self }
    }

    pub(crate) fn only(self, choice: Choice) -> Self {
        Self { part: Part::Chosen(choice), ..self }
    }

    pub(crate) fn accept(self, accept: &'static str) -> Self {
        Self { accept, ..self }
    }

    /// Sends the request as a user with only the granted rights.
    pub(crate) fn by(self, user: &'static str) -> Self {
        Self { user, ..self }
    }

    /// Sends the same body with another content type.
    pub(crate) fn kind(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    pub(crate) fn says(&self) -> String {
        let mut says = format!("{} {}", self.method, self.path);
        for (word, what) in [("as", self.accept), ("by", self.user)] {
            if !what.is_empty() {
                says += &format!(" {word} {what}");
            }
        }
        says
    }
}

/// Names and watches that a sequence keeps.
struct Memory {
    names: BTreeMap<String, String>,
    watches: BTreeMap<&'static str, Body>,
}

/// Runs all steps and returns the compared parts of their responses.
pub(crate) async fn play(side: &Side, steps: &[Step]) -> Vec<Value> {
    let names = BTreeMap::from([
        ("$group".to_owned(), side.group.clone()),
        ("$ns".to_owned(), side.namespace.clone()),
    ]);
    let mut memory = Memory { names, watches: BTreeMap::new() };
    let mut answers = Vec::new();
    for step in steps {
        answers.push(one(side, step, &mut memory).await);
    }
    answers
}

impl Memory {
    fn filled(&self, text: &str) -> String {
        // The longer name first, since a name may be a prefix of another.
        let names = self.names.iter().rev();
        names.fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    fn keep(&mut self, name: &str, body: &Value) {
        for (what, field) in
            [("version", "resourceVersion"), ("uid", "uid"), ("continue", "continue")]
        {
            if let Some(value) = body["metadata"][field].as_str() {
                self.names.insert(format!("${what}.{name}"), value.to_owned());
            }
        }
    }
}

async fn one(side: &Side, step: &Step, memory: &mut Memory) -> Value {
    match &step.action {
        StepAction::Wait(pause) => {
            sleep(*pause).await;
            return Value::Null;
        }
        StepAction::Grant(rights) => {
            side.grant(rights).await;
            return Value::Null;
        }
        StepAction::End(name) => {
            let body = memory.watches.remove(name).expect("a watch was begun under this name");
            return events_of(body).await;
        }
        StepAction::Compare
        | StepAction::Until(_)
        | StepAction::Settled(_)
        | StepAction::Events
        | StepAction::Open(_) => {}
    }
    let begin = Instant::now();
    let mut last = String::new();
    loop {
        assert!(begin.elapsed() < PATIENCE, "{} does not end: {last}", step.says());
        let answer = timeout(PATIENCE, side.client(step.user).send(request(step, memory)));
        let (head, body) = answer
            .await
            .unwrap()
            .unwrap_or_else(|why| panic!("{}: {why}", step.says()))
            .into_parts();
        let code = head.status.as_u16();
        if code == 200 && matches!(step.action, StepAction::Events) {
            return events_of(body).await;
        }
        if let StepAction::Open(name) = step.action
            && code == 200
        {
            memory.watches.insert(name, body);
            return json!({ "code": code });
        }
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut body: Value = serde_json::from_slice(&bytes).unwrap_or_else(|_| text.into());
        let wanted = match step.action {
            StepAction::Until(wanted) => code == wanted,
            StepAction::Settled(wanted) => wanted(&body, &side.group),
            // A new type answers 429 at first.
            StepAction::Compare
            | StepAction::Events
            | StepAction::Open(_)
            | StepAction::End(_)
            | StepAction::Grant(_)
            | StepAction::Wait(_) => code != 429,
        };
        if !wanted {
            last = format!("{code} {body}");
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        if let Some(name) = step.keep {
            memory.keep(name, &body);
        }
        if matches!(step.action, StepAction::Until(_)) {
            return json!({ "code": code });
        }
        match step.part {
            Part::Reason => return json!({ "code": code, "reason": body["reason"] }),
            Part::Chosen(choice) => body = choice(body, &side.group),
            Part::Whole => {}
        }
        mask(&mut body);
        let mut shown = json!({ "code": code, "body": body });
        add_headers(step, &head.headers, &mut shown);
        return shown;
    }
}

fn request(step: &Step, memory: &Memory) -> Request<Body> {
    let body = match &step.body {
        Value::Null => String::new(),
        // Text that is not valid JSON on purpose.
        Value::String(text) => text.clone(),
        body @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            body.to_string()
        }
    };
    let mut request = Request::builder()
        .method(step.method)
        .uri(memory.filled(&step.path))
        .header(header::CONTENT_TYPE, step.kind)
        .header(header::USER_AGENT, "differential/1");
    if !step.accept.is_empty() {
        request = request.header(header::ACCEPT, step.accept);
    }
    request.body(Body::from(memory.filled(&body).into_bytes())).unwrap()
}

fn add_headers(step: &Step, headers: &HeaderMap, shown: &mut Value) {
    let texts = |name| -> Vec<&str> {
        headers.get_all(name).iter().filter_map(|it| it.to_str().ok()).collect()
    };
    let warnings = texts(header::WARNING);
    if !warnings.is_empty() {
        shown["warnings"] = warnings.into();
    }
    if !step.accept.is_empty() {
        shown["type"] = texts(header::CONTENT_TYPE).into();
        shown["tagged"] = headers.contains_key(header::ETAG).into();
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
    // Bookmarks arrive at any time, except for the one that ends the initial events.
    let is_compared = |event: &Value| {
        event["type"] != "BOOKMARK" || !event["object"]["metadata"]["annotations"].is_null()
    };
    events.filter(is_compared).collect()
}
