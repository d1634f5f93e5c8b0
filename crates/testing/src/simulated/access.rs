//! Access rules, and the attributes of a request that they match.

use serde_json::json;

use super::refusal::Refusal;
use crate::{RequestInfo, Verb};

/// User of the script, to which no access rules apply.
pub(super) const SCRIPT: &str = "system:script";

/// Rule that allows or denies requests. The first rule that matches decides; a request without a
/// matching rule is allowed.
///
/// An empty list, or `*` in it, matches everything. `/apis/*` matches by prefix and `*.apps` by
/// suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRule {
    /// True to allow the requests, false to deny them.
    pub allow: bool,
    /// Names of the users.
    pub users: Vec<String>,
    /// Verbs: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verbs: Vec<String>,
    /// Types: `resource.group`, or `resource` for the core group, with `/subresource` after the
    /// resource for a subresource. Or a path that begins with a slash, such as `/apis`.
    pub resources: Vec<String>,
    /// Namespaces. A request across all namespaces belongs to no namespace.
    pub namespaces: Vec<String>,
}

impl AccessRule {
    /// Denies everything, until it is restricted.
    pub fn deny() -> Self {
        Self::default()
    }

    /// Allows everything, until it is restricted.
    pub fn allow() -> Self {
        Self { allow: true, ..Self::default() }
    }

    /// Restricts the rule to these users.
    #[must_use]
    pub fn users<'a>(mut self, users: impl IntoIterator<Item = &'a str>) -> Self {
        self.users = owned(users);
        self
    }

    /// Restricts the rule to these verbs.
    #[must_use]
    pub fn verbs<'a>(mut self, verbs: impl IntoIterator<Item = &'a str>) -> Self {
        self.verbs = owned(verbs);
        self
    }

    /// Restricts the rule to these types or paths.
    #[must_use]
    pub fn resources<'a>(mut self, resources: impl IntoIterator<Item = &'a str>) -> Self {
        self.resources = owned(resources);
        self
    }

    /// Restricts the rule to these namespaces.
    #[must_use]
    pub fn namespaces<'a>(mut self, namespaces: impl IntoIterator<Item = &'a str>) -> Self {
        self.namespaces = owned(namespaces);
        self
    }

    pub(super) fn fits(&self, attributes: &RequestAttributes) -> bool {
        let holds = |list: &[String], value: &str| {
            list.is_empty() || list.iter().any(|it| covers(it, value))
        };
        holds(&self.users, &attributes.user)
            && holds(&self.verbs, &attributes.verb)
            && holds(&self.resources, &attributes.what())
            && holds(&self.namespaces, &attributes.namespace)
    }
}

fn covers(pattern: &str, value: &str) -> bool {
    let begins = pattern.strip_suffix('*').is_some_and(|start| value.starts_with(start));
    let ends = pattern.strip_prefix('*').is_some_and(|end| value.ends_with(end));
    pattern == value || begins || ends
}

fn owned<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Attributes of one request, as the rules match them.
#[derive(Debug)]
pub(super) struct RequestAttributes {
    pub(super) user: String,
    pub(super) verb: String,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) path: String,
}

impl RequestAttributes {
    pub(super) fn of(user: &str, info: &RequestInfo, method: &str) -> Self {
        // A request for a namespace has its own name as namespace.
        let namespace = match info.resource.as_str() {
            "namespaces" => &info.name,
            _ => &info.namespace,
        };
        Self {
            user: user.to_owned(),
            // Paths have the methods of HTTP as verbs.
            verb: match info.resource.as_str() {
                "" => method.to_lowercase(),
                _ => verb(info.verb).to_owned(),
            },
            group: info.group.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: namespace.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
        }
    }

    fn resource_path(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }

    fn what(&self) -> String {
        if self.resource.is_empty() {
            self.path.clone()
        } else if self.group.is_empty() {
            self.resource_path()
        } else {
            format!("{}.{}", self.resource_path(), self.group)
        }
    }

    pub(super) fn refused(&self) -> Refusal {
        let Self { user, verb, group, name, .. } = self;
        if self.resource.is_empty() {
            let message = format!("forbidden: User {user:?} cannot {verb} path {:?}", self.path);
            let mut refusal = Refusal::new(403, "Forbidden", message);
            refusal.details = Some(json!({}));
            return refusal;
        }
        let place = match self.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let resource = self.resource_path();
        let why = format!(
            "User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}"
        );
        let qualified = super::resource::qualified(group, &self.resource);
        let message = match name.as_str() {
            "" => format!("{qualified} is forbidden: {why}"),
            name => format!("{qualified} {name:?} is forbidden: {why}"),
        };
        let mut refusal = Refusal::new(403, "Forbidden", message);
        let mut details = json!({ "kind": self.resource });
        for (field, value) in [("group", group), ("name", name)] {
            if !value.is_empty() {
                details[field] = value.as_str().into();
            }
        }
        refusal.details = Some(details);
        refusal
    }
}

pub(super) fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::List => "list",
        Verb::Watch => "watch",
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::Patch => "patch",
        Verb::Delete => "delete",
        Verb::DeleteCollection => "deletecollection",
        Verb::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[track_caller]
    fn check(rule: &AccessRule, method: Method, path: &str, expected: bool) {
        let info = RequestInfo::new(&method, &path.parse().unwrap());
        assert_eq!(
            rule.fits(&RequestAttributes::of("alice", &info, method.as_str())),
            expected,
            "{method} {path}"
        );
    }

    #[test]
    fn a_rule_grants_only_its_requests() {
        let rule = AccessRule::deny().verbs(["list", "watch"]).resources(["widgets.x.test"]);
        check(&rule, Method::GET, "/apis/x.test/v1/widgets", true);
        check(&rule, Method::GET, "/apis/x.test/v1/namespaces/a/widgets?watch=1", true);
        check(&rule, Method::GET, "/apis/x.test/v1/namespaces/a/widgets/b", false);
        check(&rule, Method::GET, "/apis/y.test/v1/widgets", false);
        let rule = AccessRule::deny().resources(["widgets/status.x.test"]).namespaces(["a"]);
        check(&rule, Method::PATCH, "/apis/x.test/v1/namespaces/a/widgets/b/status", true);
        check(&rule, Method::PATCH, "/apis/x.test/v1/namespaces/b/widgets/b/status", false);
        check(&AccessRule::deny().users(["bob"]), Method::GET, "/api/v1/pods", false);
        check(&AccessRule::deny().resources(["/apis"]), Method::GET, "/apis", true);
    }
}
