//! What is done to a request, and to its answer.

use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::text;

/// What happens to a request.
///
/// All but [`Edit`](Self::Edit) are data: as JSON or YAML they are written `hang`,
/// `{delay: 150ms}`, `{cut: {afterBytes: 100}}`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Action {
    /// It is sent that much later.
    Delay(#[serde(with = "text::duration")] Duration),
    /// It is answered with this, and not sent.
    Reply(Reply),
    /// It is answered by the server, but the connection breaks after so many bytes of the body.
    Cut {
        /// How many bytes pass.
        after_bytes: usize,
    },
    /// It is answered by the server, but the body ends cleanly after so many bytes.
    End {
        /// How many bytes pass.
        after_bytes: usize,
    },
    /// It is answered by the server, but after so many bytes of the body nothing comes any more.
    Stall {
        /// How many bytes pass.
        after_bytes: usize,
    },
    /// It is answered by the server, but the body comes so slowly.
    Drip {
        /// How many bytes come at once.
        bytes: usize,
        /// How long it takes until the next ones come.
        #[serde(with = "text::duration")]
        every: Duration,
    },
    /// Of a watch: one event comes once more, right after a later one or after itself.
    Repeat {
        /// Which one, counted from 1.
        event: usize,
        /// After which one it comes again.
        after: usize,
    },
    /// It is answered by the server, but with bytes that mean nothing.
    Garbage {
        /// The line that they stand instead of, counted from 1: of a watch, an event. Without it
        /// they are the whole body.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<usize>,
        /// The bytes.
        #[serde(with = "text::bytes")]
        bytes: Bytes,
    },
    /// Of a watch: nothing comes until an event of another type has passed since. Events of two
    /// types so change their order.
    Behind {
        /// The other type's group; empty for the core group.
        #[serde(default)]
        group: String,
        /// The other type's plural name.
        resource: String,
        /// Nothing is held longer than that.
        #[serde(with = "text::duration")]
        at_most: Duration,
    },
    /// It is answered with what the server said to the first such request that this rule matched:
    /// an old list, an old object. Requests that the rule matches and leaves alone, by
    /// [`skip`](super::Rule::skip), are such; one that has no predecessor passes.
    Stale,
    /// Of a list of groups, discovery: what is missing from it, and what is marked as stale.
    Partial {
        /// Groups that are missing.
        #[serde(default)]
        missing: Vec<String>,
        /// Groups whose versions are marked as stale; aggregated discovery has such a mark.
        #[serde(default)]
        stale: Vec<String>,
    },
    /// It is sent only when this rule is removed.
    Hang,
    /// It is sent, and its answer is passed on only when this rule is removed.
    Withhold,
    /// It is sent, and its answer is lost: the connection breaks before the head arrives.
    Lose,
    /// It is sent, and answered with this whatever the server says: a gateway lost patience.
    Instead(Reply),
    /// It fails with this message, as if the connection were refused.
    Fail(String),
    /// It is answered by the server, and this changes the body, which must be JSON and finite.
    #[serde(skip)]
    Edit(Edit),
}

/// Changes the JSON of an answer.
pub(super) type Edit = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Action {
    /// An [`Action::Edit`].
    pub fn edit(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self::Edit(Arc::new(edit))
    }

    /// An [`Action::Repeat`]: the event of this number, counted from 1, comes twice.
    pub fn duplicate(event: usize) -> Self {
        Self::Repeat { event, after: event }
    }

    /// What it is called in rules and in the log.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Reply(_) => "reply",
            Self::Cut { .. } => "cut",
            Self::End { .. } => "end",
            Self::Stall { .. } => "stall",
            Self::Drip { .. } => "drip",
            Self::Repeat { .. } => "repeat",
            Self::Garbage { .. } => "garbage",
            Self::Behind { .. } => "behind",
            Self::Stale => "stale",
            Self::Partial { .. } => "partial",
            Self::Hang => "hang",
            Self::Withhold => "withhold",
            Self::Lose => "lose",
            Self::Instead(_) => "instead",
            Self::Fail(_) => "fail",
            Self::Edit(_) => "edit",
        }
    }
}

impl Debug for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match serde_json::to_string(self) {
            Ok(data) => f.write_str(&data),
            // Code is no data.
            Err(_) => f.write_str(self.word()),
        }
    }
}

/// An answer that the server did not give.
///
/// As data: `{code: 429, reason: TooManyRequests, message: later, retryAfter: 1}` is a failure as
/// the API server words it, `{code: 404, contentType: text/plain, body: no}` is any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "Written")]
pub struct Reply {
    /// The HTTP status; one that is none becomes 500.
    pub code: u16,
    /// `application/json`, `text/plain`.
    pub content_type: String,
    /// Seconds of the `Retry-After` header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// The body.
    #[serde(with = "text::bytes")]
    pub body: Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    code: u16,
    content_type: Option<String>,
    retry_after: Option<u64>,
    body: Option<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl From<Written> for Reply {
    fn from(written: Written) -> Self {
        let Written { code, content_type, retry_after, body, reason, message } = written;
        let mut reply = match body {
            None => Self::status(code, &reason, &message),
            Some(body) => Self { code, body: body.into(), ..Self::json(&Value::Null) },
        };
        if let Some(content_type) = content_type {
            reply.content_type = content_type;
        }
        Self { retry_after, ..reply }
    }
}

impl Reply {
    /// A failure as the API server words it: a `Status` object.
    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        let status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        });
        Self { code, ..Self::json(&status) }
    }

    /// A failure that is no `Status` object, such as the plain 404 of a path that nobody serves.
    pub fn text(code: u16, body: impl Into<Bytes>) -> Self {
        let content_type = "text/plain; charset=utf-8".to_owned();
        Self { code, content_type, retry_after: None, body: body.into() }
    }

    /// A success with this body.
    pub fn json(body: &Value) -> Self {
        let content_type = "application/json".to_owned();
        Self { code: 200, content_type, retry_after: None, body: body.to_string().into() }
    }

    /// Adds a `Retry-After` header.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(super) fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Leaves groups out of discovery and marks others as stale; whether there were any.
pub(super) fn make_partial(discovery: &mut Value, missing: &[String], stale: &[String]) -> bool {
    let mut changed = false;
    // `items` of aggregated discovery, `groups` of the other.
    for list in ["items", "groups"] {
        let Some(groups) = discovery.get_mut(list).and_then(Value::as_array_mut) else { continue };
        let name = |group: &Value| match group.pointer("/metadata/name") {
            Some(name) => name.as_str().unwrap_or_default().to_owned(),
            None => group["name"].as_str().unwrap_or_default().to_owned(),
        };
        let whole = groups.len();
        groups.retain(|group| !missing.contains(&name(group)));
        changed |= groups.len() < whole;
        for group in groups.iter_mut().filter(|group| stale.contains(&name(group))) {
            let versions = group.get_mut("versions").and_then(Value::as_array_mut);
            for version in versions.into_iter().flatten() {
                version["freshness"] = "Stale".into();
                changed = true;
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_can_be_missing_from_either_discovery_and_stale_in_one() {
        let mut aggregated = json!({ "kind": "APIGroupDiscoveryList", "items": [
            { "metadata": { "name": "apps" }, "versions": [{ "version": "v1" }] },
            { "metadata": { "name": "x.test" }, "versions": [{ "version": "v1" }] },
        ] });
        let mut plain = json!({ "kind": "APIGroupList", "groups": [{ "name": "x.test" }] });
        let (missing, stale) = (["x.test".to_owned()], ["apps".to_owned()]);

        assert!(make_partial(&mut aggregated, &missing, &stale));
        assert!(make_partial(&mut plain, &missing, &stale));

        let kept = json!([{
            "metadata": { "name": "apps" },
            "versions": [{ "version": "v1", "freshness": "Stale" }],
        }]);
        assert_eq!(aggregated["items"], kept);
        assert_eq!(plain["groups"], json!([]));
        assert!(!make_partial(&mut plain, &missing, &stale));
        assert!(!make_partial(&mut json!("nonsense"), &missing, &stale));
    }

    #[test]
    fn a_reply_is_written_as_a_status_or_as_a_body() {
        let status: Reply = serde_json::from_value(json!({
            "code": 429, "reason": "TooManyRequests", "message": "later", "retryAfter": 1,
        }))
        .unwrap();
        let text: Reply = serde_json::from_value(json!({
            "code": 404, "contentType": "text/plain; charset=utf-8", "body": "no",
        }))
        .unwrap();

        assert_eq!(status, Reply::status(429, "TooManyRequests", "later").retry_after(1));
        assert_eq!(text, Reply::text(404, "no"));
    }
}
