//! Which requests are disturbed, and how.

use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{RequestInfo, Verb};

/// Disturbs the requests that it matches: all of them, unless it is narrowed down.
///
/// ```
/// # use pilotlight::testing::{Action, Reply, Rule, Verb};
/// // The second and third watch of widgets are told that their history is gone.
/// let rule = Rule::new(Action::Reply(Reply::status(410, "Expired", "too old")))
///     .verb(Verb::Watch)
///     .resource("x.test", "widgets")
///     .skip(1)
///     .times(2);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Rule {
    pub(super) action: Action,
    verbs: Vec<Verb>,
    path: Option<String>,
    exact_path: Option<String>,
    query: Option<String>,
    resource: Option<(String, String)>,
    skip: usize,
    times: usize,
}

/// What happens to a request.
#[derive(Clone)]
#[non_exhaustive]
pub enum Action {
    /// It is sent that much later.
    Delay(Duration),
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
    /// It is sent only when this rule is removed.
    Hang,
    /// It fails with this message, as if the connection were refused.
    Fail(String),
    /// It is answered by the server, and this changes the body, which must be JSON and finite.
    Edit(Edit),
}

/// Changes the JSON of an answer.
pub(super) type Edit = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Action {
    /// An [`Action::Edit`].
    pub fn edit(edit: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        Self::Edit(Arc::new(edit))
    }
}

impl Debug for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay(delay) => f.debug_tuple("Delay").field(delay).finish(),
            Self::Reply(reply) => f.debug_tuple("Reply").field(reply).finish(),
            Self::Cut { after_bytes } => f.debug_tuple("Cut").field(after_bytes).finish(),
            Self::End { after_bytes } => f.debug_tuple("End").field(after_bytes).finish(),
            Self::Hang => f.write_str("Hang"),
            Self::Fail(message) => f.debug_tuple("Fail").field(message).finish(),
            Self::Edit(_) => f.write_str("Edit"),
        }
    }
}

/// An answer that the server did not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status; one that is none becomes 500.
    pub code: u16,
    /// `application/json`, `text/plain`.
    pub content_type: String,
    /// Seconds of the `Retry-After` header.
    pub retry_after: Option<u64>,
    /// The body.
    pub body: Bytes,
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

impl Rule {
    /// A rule that matches every request.
    pub fn new(action: Action) -> Self {
        Self {
            action,
            verbs: Vec::new(),
            path: None,
            exact_path: None,
            query: None,
            resource: None,
            skip: 0,
            times: usize::MAX,
        }
    }

    /// Only this verb; called again, that one too.
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verbs.push(verb);
        self
    }

    /// Only paths that contain this.
    pub fn path_contains(mut self, part: impl Into<String>) -> Self {
        self.path = Some(part.into());
        self
    }

    /// Only this path.
    pub fn path_is(mut self, path: impl Into<String>) -> Self {
        self.exact_path = Some(path.into());
        self
    }

    /// Only queries that contain this, as it stands in the URI.
    pub fn query_contains(mut self, part: impl Into<String>) -> Self {
        self.query = Some(part.into());
        self
    }

    /// Only this type, in any version.
    pub fn resource(mut self, group: impl Into<String>, plural: impl Into<String>) -> Self {
        self.resource = Some((group.into(), plural.into()));
        self
    }

    /// Leaves the first so many matching requests alone.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Disturbs so many requests at most.
    pub fn times(mut self, count: usize) -> Self {
        self.times = count;
        self
    }

    pub(super) fn matches(&self, request: &RequestInfo) -> bool {
        let RequestInfo { verb, path, query, group, resource, .. } = request;
        (self.verbs.is_empty() || self.verbs.contains(verb))
            && self.path.as_ref().is_none_or(|part| path.contains(part))
            && self.exact_path.as_ref().is_none_or(|exact| path == exact)
            && self.query.as_ref().is_none_or(|part| query.contains(part))
            && self.resource.as_ref().is_none_or(|(g, r)| g == group && r == resource)
    }

    /// Whether it acts on the match of this number, counted from 0.
    pub(super) fn acts_on(&self, number: usize) -> bool {
        number.checked_sub(self.skip).is_some_and(|hit| hit < self.times)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn a_rule_matches_what_it_is_narrowed_down_to() {
        let rule = Rule::new(Action::Hang)
            .verb(Verb::List)
            .verb(Verb::Watch)
            .resource("x.test", "widgets")
            .query_contains("limit=500");
        let matches =
            |uri: &str| rule.matches(&RequestInfo::new(&Method::GET, &uri.parse().unwrap()));

        assert!(matches("/apis/x.test/v1/widgets?limit=500"));
        assert!(matches("/apis/x.test/v2/namespaces/a/widgets?watch=1&limit=500"));
        assert!(!matches("/apis/x.test/v1/widgets"));
        assert!(!matches("/apis/y.test/v1/widgets?limit=500"));
        assert!(!matches("/apis/x.test/v1/namespaces/a/widgets/w?limit=500"));
    }

    #[test]
    fn a_whole_path_is_not_the_beginning_of_another() {
        let rule = Rule::new(Action::Hang).path_is("/api");
        let matches =
            |uri: &str| rule.matches(&RequestInfo::new(&Method::GET, &uri.parse().unwrap()));

        assert!(matches("/api?timeout=1s"));
        assert!(!matches("/apis"));
        assert!(!matches("/api/v1"));
    }

    #[test]
    fn the_first_matches_are_skipped_and_the_rest_counted() {
        let rule = Rule::new(Action::Hang).skip(1).times(2);

        let acts: Vec<_> = (0..5).map(|number| rule.acts_on(number)).collect();

        assert_eq!(acts, [false, true, true, false, false]);
    }
}
