//! Actions on a request and its response.

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

/// Action on a request.
///
/// All but [`Edit`](Self::Edit) are data: as JSON or YAML they are written `hang`, `{delay:
/// 150ms}`, `{cut: {afterBytes: 100}}`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Action {
    /// Sends the request after this delay.
    Delay(#[serde(with = "text::duration")] Duration),
    /// Answers with this, and does not send the request.
    Reply(Reply),
    /// Breaks the connection after so many bytes of the body.
    Cut {
        /// Number of bytes that pass.
        after_bytes: usize,
    },
    /// Ends the body cleanly after so many bytes.
    End {
        /// Number of bytes that pass.
        after_bytes: usize,
    },
    /// Stalls the body after so many bytes.
    Stall {
        /// Number of bytes that pass.
        after_bytes: usize,
    },
    /// Slows the body down.
    Drip {
        /// Number of bytes that arrive at once.
        bytes: usize,
        /// Time between two parts.
        #[serde(with = "text::duration")]
        every: Duration,
    },
    /// Repeats one event of a watch, directly after itself or after a later one.
    Repeat {
        /// Number of the event, from 1.
        event: usize,
        /// Number of the event after which it is repeated.
        after: usize,
    },
    /// Replaces the response, or a line of it, by invalid bytes.
    Garbage {
        /// Number of the replaced line, from 1: of a watch, an event. Without it the whole body is
        /// replaced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<usize>,
        /// Invalid bytes.
        #[serde(with = "text::bytes")]
        bytes: Bytes,
    },
    /// Holds a watch until an event of another type has passed since, which changes the order of
    /// events of two types.
    Behind {
        /// Group of the other type; empty for the core group.
        #[serde(default)]
        group: String,
        /// Plural name of the other type.
        resource: String,
        /// Limit of the delay.
        #[serde(with = "text::duration")]
        at_most: Duration,
    },
    /// Answers with the server's response to the first such request that this rule matched: an old
    /// list, an old object. Requests that the rule matches and passes, by
    /// [`skip`](super::Rule::skip), count as such. A request without a predecessor passes.
    Stale,
    /// Removes groups from discovery, or marks them as stale.
    Partial {
        /// Groups that are removed.
        #[serde(default)]
        missing: Vec<String>,
        /// Groups whose versions are marked as stale, in aggregated discovery.
        #[serde(default)]
        stale: Vec<String>,
    },
    /// Sends the request when this rule is removed.
    Hang,
    /// Sends the request, and passes the response on when this rule is removed.
    Withhold,
    /// Sends the request, and breaks the connection before the head of the response arrives.
    Lose,
    /// Sends the request, and replaces the response, as a gateway does after a timeout.
    Instead(Reply),
    /// Fails with this message, as if the connection were refused.
    Fail(String),
    /// Changes the body of the response, which must be JSON and finite.
    #[serde(skip)]
    Edit(Edit),
}

/// Function that changes the JSON of a response.
pub(super) type Edit = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Action {
    /// Returns an [`Action::Edit`].
    pub fn edit(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self::Edit(Arc::new(edit))
    }

    /// Returns an [`Action::Repeat`] that repeats the event of this number, from 1, directly.
    pub fn duplicate(event: usize) -> Self {
        Self::Repeat { event, after: event }
    }

    /// Returns its name in rules and in the log.
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
            // Code cannot be serialized.
            Err(_) => f.write_str(self.word()),
        }
    }
}

/// Response that replaces the server's.
///
/// As data: `{code: 429, reason: TooManyRequests, message: later, retryAfter: 1}` is a failure in
/// the form of the API server, `{code: 404, contentType: text/plain, body: no}` is any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "ReplyText")]
pub struct Reply {
    /// HTTP status code; an invalid one becomes 500.
    pub code: u16,
    /// Content type: `application/json`, `text/plain`.
    pub content_type: String,
    /// Seconds in the `Retry-After` header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Body.
    #[serde(with = "text::bytes")]
    pub body: Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplyText {
    code: u16,
    content_type: Option<String>,
    retry_after: Option<u64>,
    body: Option<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl From<ReplyText> for Reply {
    fn from(written: ReplyText) -> Self {
        let ReplyText { code, content_type, retry_after, body, reason, message } = written;
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
    /// Creates a failure in the form of the API server: a `Status` object.
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

    /// Creates a failure without a `Status` object, such as the plain 404 of an unknown path.
    pub fn text(code: u16, body: impl Into<Bytes>) -> Self {
        let content_type = "text/plain; charset=utf-8".to_owned();
        Self { code, content_type, retry_after: None, body: body.into() }
    }

    /// Creates a success with this body.
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

/// Removes groups from discovery and marks others as stale; returns true if any was found.
pub(super) fn make_partial(discovery: &mut Value, missing: &[String], stale: &[String]) -> bool {
    let mut changed = false;
    // Aggregated discovery has `items`, the other form has `groups`.
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
