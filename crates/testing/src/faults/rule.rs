//! Rules: selection of the requests to disturb.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Action, RequestInfo, Verb, random, text};

/// Rule that disturbs the requests it matches: all of them, until it is restricted.
///
/// ```
/// # use pilotlight_testing::{Action, Reply, Rule, Verb};
/// // The second and third watch of widgets find their history expired.
/// let rule = Rule::new(Action::Reply(Reply::status(410, "Expired", "too old")))
///     .verb(Verb::Watch)
///     .resource("x.test", "widgets")
///     .skip(1)
///     .times(2);
/// ```
///
/// A rule is data too, unless its action is [`Action::Edit`]. The same in YAML:
///
/// ```yaml
/// action:
///   reply: {code: 410, reason: Expired, message: too old}
/// verbs: [watch]
/// group: x.test
/// resource: widgets
/// skip: 1
/// times: 2
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[must_use]
pub struct Rule {
    pub(super) action: Action,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    verbs: Vec<Verb>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_contains: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_not_contains: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    query_contains: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subresource: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    skip: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chance: Option<Chance>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::maybe_duration")]
    pub(super) at_most: Option<Duration>,
}

/// Random choice among requests by their number, which depends on the seed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Chance {
    per_mille: u16,
    seed: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Rule {
    /// Creates a rule that matches every request.
    pub fn new(action: Action) -> Self {
        Self {
            action,
            verbs: Vec::new(),
            path_contains: None,
            path_not_contains: None,
            path: None,
            query_contains: None,
            group: None,
            resource: None,
            subresource: None,
            namespace: None,
            name: None,
            skip: 0,
            every: None,
            times: None,
            chance: None,
            at_most: None,
        }
    }

    /// Returns the action.
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Restricts the rule to this verb; a further call adds one.
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verbs.push(verb);
        self
    }

    /// Restricts the rule to writes.
    pub fn mutating(mut self) -> Self {
        self.verbs.extend(Verb::MUTATING);
        self
    }

    /// Restricts the rule to paths that contain this text.
    pub fn path_contains(mut self, part: impl Into<String>) -> Self {
        self.path_contains = Some(part.into());
        self
    }

    /// Restricts the rule to paths that do not contain this text.
    pub fn path_not_contains(mut self, part: impl Into<String>) -> Self {
        self.path_not_contains = Some(part.into());
        self
    }

    /// Restricts the rule to this path.
    pub fn path_is(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Restricts the rule to queries that contain this text, as encoded in the URI.
    pub fn query_contains(mut self, part: impl Into<String>) -> Self {
        self.query_contains = Some(part.into());
        self
    }

    /// Restricts the rule to this type, in any version.
    pub fn resource(mut self, group: impl Into<String>, plural: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self.resource = Some(plural.into());
        self
    }

    /// Restricts the rule to this group, including its discovery; empty for the core group.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Restricts the rule to this subresource; empty for objects themselves.
    pub fn subresource(mut self, subresource: impl Into<String>) -> Self {
        self.subresource = Some(subresource.into());
        self
    }

    /// Restricts the rule to this namespace; empty for requests across all of them and for
    /// cluster-scoped types.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Restricts the rule to the object of this name. A create has its name only in the body, and
    /// does not match.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Passes the first so many matching requests.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Disturbs at most so many requests.
    pub fn times(mut self, count: usize) -> Self {
        self.times = Some(count);
        self
    }

    /// Disturbs only the matching request of this number, from 1.
    pub fn nth(self, number: usize) -> Self {
        self.skip(number.saturating_sub(1)).times(1)
    }

    /// Disturbs the first of the requests that are not skipped, then each at this distance.
    pub fn every(mut self, distance: usize) -> Self {
        self.every = Some(distance);
        self
    }

    /// Disturbs about so many in a thousand of the remaining requests. The choice depends on their
    /// numbers and the seed alone.
    pub fn chance(mut self, per_mille: u16, seed: u64) -> Self {
        self.chance = Some(Chance { per_mille, seed });
        self
    }

    /// Limits the time of the fault. Then a request that [hangs](Action::Hang) is sent, a response
    /// that is [withheld](Action::Withhold) is passed on, and the connection of a body that
    /// [stalls](Action::Stall) breaks.
    pub fn at_most(mut self, long: Duration) -> Self {
        self.at_most = Some(long);
        self
    }

    /// Returns true if the rule matches such a request.
    pub fn matches(&self, request: &RequestInfo) -> bool {
        let is = |wanted: &Option<String>, found: &String| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let has = |part: &Option<String>, whole: &String| {
            part.as_ref().is_none_or(|part| whole.contains(part))
        };
        (self.verbs.is_empty() || self.verbs.contains(&request.verb))
            && has(&self.path_contains, &request.path)
            && self.path_not_contains.as_ref().is_none_or(|part| !request.path.contains(part))
            && is(&self.path, &request.path)
            && has(&self.query_contains, &request.query)
            && is(&self.group, &request.group)
            && is(&self.resource, &request.resource)
            && is(&self.subresource, &request.subresource)
            && is(&self.namespace, &request.namespace)
            && is(&self.name, &request.name)
    }

    /// Returns true if the rule acts on the match of this number, from 0.
    pub fn acts_on(&self, number: usize) -> bool {
        let Some(number) = number.checked_sub(self.skip) else { return false };
        let every = self.every.unwrap_or(1).max(1);
        number.is_multiple_of(every)
            && self.times.is_none_or(|times| number / every < times)
            && self.chance.is_none_or(|chance| {
                random::mix(chance.seed, number as u64) % 1000 < u64::from(chance.per_mille)
            })
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn info(method: &Method, uri: &str) -> RequestInfo {
        RequestInfo::new(method, &uri.parse().unwrap())
    }

    fn hang() -> Rule {
        Rule::new(Action::Hang)
    }

    #[track_caller]
    fn check(rule: Rule, matched: &[&str], passed: &[&str]) {
        for uri in matched {
            assert!(rule.matches(&info(&Method::GET, uri)), "{uri} is not matched by {rule:?}");
        }
        for uri in passed {
            assert!(!rule.matches(&info(&Method::GET, uri)), "{uri} is matched by {rule:?}");
        }
    }

    #[test]
    fn a_rule_matches_only_its_requests() {
        check(
            hang()
                .verb(Verb::List)
                .verb(Verb::Watch)
                .resource("x.test", "widgets")
                .query_contains("limit=500"),
            &[
                "/apis/x.test/v1/widgets?limit=500",
                "/apis/x.test/v2/namespaces/a/widgets?watch=1&limit=500",
            ],
            &[
                "/apis/x.test/v1/widgets",
                "/apis/y.test/v1/widgets?limit=500",
                "/apis/x.test/v1/namespaces/a/widgets/w?limit=500",
            ],
        );
        check(
            hang().namespace("a").name("w"),
            &["/api/v1/namespaces/a/pods/w", "/apis/x.test/v1/namespaces/a/widgets/w/status"],
            &["/api/v1/namespaces/b/pods/w", "/api/v1/namespaces/a/pods", "/api/v1/pods/w"],
        );
        check(
            hang().group("x.test"),
            &["/apis/x.test/v1", "/apis/x.test/v1/widgets"],
            &["/apis", "/api/v1/pods"],
        );
        check(
            hang().subresource("status"),
            &["/apis/x.test/v1/namespaces/a/widgets/w/status"],
            &["/apis/x.test/v1/namespaces/a/widgets/w"],
        );
        check(
            hang().subresource("").namespace(""),
            &["/api/v1/pods", "/api/v1/nodes/n"],
            &["/api/v1/namespaces/a/pods", "/api/v1/nodes/n/status"],
        );
        check(
            hang().path_not_contains("/events"),
            &["/api/v1/namespaces/a/pods/w"],
            &["/api/v1/namespaces/a/events/e"],
        );
        // A whole path does not match as a prefix.
        check(hang().path_is("/api"), &["/api?timeout=1s"], &["/apis", "/api/v1"]);
    }

    #[test]
    fn mutating_verbs_are_recognised() {
        let rule = hang().mutating();

        assert!(!rule.matches(&info(&Method::GET, "/api/v1/pods")));
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(rule.matches(&info(&method, "/api/v1/namespaces/a/pods/p")), "{method}");
        }
    }

    #[test]
    fn requests_are_chosen_by_their_number() {
        let check = |rule: Rule, expected: &[usize]| {
            let acts: Vec<_> = (0..8).filter(|number| rule.acts_on(*number)).collect();
            assert_eq!(acts, expected, "{rule:?}");
        };

        check(hang(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        check(hang().skip(1).times(2), &[1, 2]);
        check(hang().nth(3), &[2]);
        check(hang().every(3), &[0, 3, 6]);
        check(hang().skip(1).every(3).times(2), &[1, 4]);
        check(hang().every(0).times(1), &[0]);
        check(hang().chance(0, 1), &[]);
        check(hang().skip(6).chance(1000, 1), &[6, 7]);
    }

    #[test]
    fn chance_is_the_same_for_the_same_seed() {
        let chosen = |seed| {
            let rule = hang().chance(250, seed);
            (0..1000).filter(|number| rule.acts_on(*number)).collect::<Vec<_>>()
        };

        assert_eq!(chosen(7), chosen(7));
        assert_ne!(chosen(7), chosen(8));
        assert!((200..300).contains(&chosen(7).len()), "{}", chosen(7).len());
    }

    #[test]
    fn a_rule_is_data() {
        let rules = [
            hang().verb(Verb::DeleteCollection).resource("", "pods").name("p").nth(2),
            Rule::new(Action::Cut { after_bytes: 5 }).path_is("/api").every(2).chance(5, 6),
            Rule::new(Action::Delay(Duration::from_millis(1500))),
            Rule::new(Action::Garbage { line: Some(2), bytes: "{".into() }),
            Rule::new(Action::Fail("refused".to_owned())),
            hang().at_most(Duration::from_secs(5)),
        ];

        for rule in rules {
            let text = serde_json::to_string(&rule).unwrap();
            let again: Rule = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&again).unwrap(), text);
        }
        let misspelt = r#"{"action":"hang","verb":["get"]}"#;
        assert!(serde_json::from_str::<Rule>(misspelt).unwrap_err().to_string().contains("verb"));
        let code = Rule::new(Action::edit(|_| ()));
        assert!(serde_json::to_string(&code).is_err(), "code is no data");
    }
}
