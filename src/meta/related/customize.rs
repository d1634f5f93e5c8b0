//! Customize hook: its rules, which name the related objects that the other hooks receive.

mod declared_rule;

use std::sync::Arc;

use bytes::Bytes;

use self::declared_rule::{DeclaredRule, declared_rules};
use crate::{
    informer::{Interest, ObjectKey, Selection, Selector},
    kind::{Scope, TypeRef},
    meta::{
        api::{LabelSelector, rejection::Problems},
        definition::{selection, type_ref},
        hooks::rule::HookVersion,
        json::message::{bounded, not_utf8},
        options::customize_limits::CustomizeLimits,
    },
};

/// Rule for related objects of one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RelatedRule {
    /// Type of the objects.
    pub(crate) type_ref: TypeRef,
    /// Field of the response, for messages.
    field: String,
    namespaces: Namespaces,
    objects: ObjectRule,
}

/// Namespaces of the related objects, for types that are namespaced.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Namespaces {
    All,
    One(Arc<str>),
    /// Namespaces whose labels match.
    Matching(Selector),
    /// Namespace that the parent may not read, with the message about it. Ignored for a type that is
    /// cluster-scoped, like any namespace.
    Refused(String),
}

/// Objects within their namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ObjectRule {
    Selected(Selector),
    Named(Vec<Arc<str>>),
}

/// Parses the response of a customize hook.
///
/// # Errors
///
/// Names the rule and its field. With `strict`, unknown and repeated fields, at any depth, are
/// errors too. The response `null` has no rules, as in Metacontroller.
pub(crate) fn related_rules(
    body: &Bytes,
    strict: bool,
    version: HookVersion,
    parent_namespace: Option<&Arc<str>>,
    limits: &CustomizeLimits,
) -> Result<Vec<RelatedRule>, String> {
    let declared = decode(body, strict, limits)
        .map_err(|error| bounded(format!("hook response is unusable: {error}")))?;
    let rules = declared.into_iter().enumerate();
    rules
        .map(|(index, rule)| {
            let field = format!("relatedResources[{index}]");
            RelatedRule::of(field, rule, version, parent_namespace)
        })
        .collect::<Result<_, _>>()
        .map_err(|wrong| bounded(format!("hook response is unusable: {wrong}")))
}

fn decode(
    body: &Bytes,
    strict: bool,
    limits: &CustomizeLimits,
) -> Result<Vec<DeclaredRule>, String> {
    if body.trim_ascii() == b"null" {
        return Ok(Vec::new());
    }
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("must be an object with relatedResources".to_owned());
    }
    let most = limits.response_bytes;
    if body.len() > most {
        return Err(format!(
            "has {} bytes; at most {most} are read, the limit of --customize-response-limit",
            body.len()
        ));
    }
    let text = std::str::from_utf8(body).map_err(|error| not_utf8(&error))?;
    declared_rules(text, strict, limits)
}

impl RelatedRule {
    /// Checks a rule for a parent of this namespace, which is `None` for a cluster-scoped one.
    ///
    /// In version 1, a namespaced parent is related to objects of its own namespace, except for
    /// objects that are named without a namespace.
    fn of(
        field: String,
        rule: DeclaredRule,
        version: HookVersion,
        parent_namespace: Option<&Arc<str>>,
    ) -> Result<Self, String> {
        let names = rule.names;
        let namespace = Some(rule.namespace).filter(|namespace| !namespace.is_empty());
        let mut problems = Problems::default();
        let named = type_ref(&field, &rule.api_version, &rule.resource, &mut problems);
        let Some(type_ref) = named else {
            return Err(problems.rejection().map(|wrong| wrong.to_string()).unwrap_or_default());
        };
        let selector = |selector: Option<&LabelSelector>, part: &str| match selector {
            None => Ok(Selector::default()),
            Some(selector) => selection::parse(selector)
                .map_err(|(inner, message)| format!("{field}.{part}.{inner}: {message}")),
        };
        let labels = selector(rule.label_selector.as_ref(), "labelSelector")?;
        let namespace_labels = selector(rule.namespace_selector.as_ref(), "namespaceSelector")?;
        if !names.is_empty() {
            for (part, is_set) in [
                ("labelSelector", rule.label_selector.is_some()),
                ("namespaceSelector", rule.namespace_selector.is_some()),
            ] {
                if is_set {
                    return Err(format!("{field}.names: must not be set with {part}"));
                }
            }
        }
        if namespace.is_some() && rule.namespace_selector.is_some() {
            return Err(format!("{field}.namespace: must not be set with namespaceSelector"));
        }
        let own = parent_namespace.filter(|_| version == HookVersion::V1);
        let namespaces = match (rule.namespace_selector.is_some(), namespace) {
            (true, _) if own.is_some() => {
                return Err(format!(
                    "{field}.namespaceSelector: needs version v2 for a namespaced parent"
                ));
            }
            (true, _) => Namespaces::Matching(namespace_labels),
            (false, Some(namespace)) => match own {
                Some(own) if **own != *namespace => Namespaces::Refused(format!(
                    "{field}.namespace: {namespace:?} is not the namespace of the parent, {own:?}; \
                     other namespaces need version v2"
                )),
                Some(_) | None => Namespaces::One(namespace.into()),
            },
            (false, None) => match own {
                Some(own) if names.is_empty() => Namespaces::One(own.clone()),
                Some(_) | None => Namespaces::All,
            },
        };
        let objects = if names.is_empty() {
            ObjectRule::Selected(labels)
        } else {
            ObjectRule::Named(names.into_iter().map(Arc::from).collect())
        };
        Ok(Self { type_ref, field, namespaces, objects })
    }

    /// Returns the field of the response, for messages.
    pub(crate) fn field(&self) -> &str {
        &self.field
    }

    /// Selector of the namespaces, if the rule has one.
    pub(crate) fn namespace_selector(&self) -> Option<&Selector> {
        match &self.namespaces {
            Namespaces::Matching(selector) => Some(selector),
            Namespaces::All | Namespaces::One(_) | Namespaces::Refused(_) => None,
        }
    }

    /// Returns the namespace that the rule names.
    pub(crate) fn namespace(&self) -> Option<&str> {
        match &self.namespaces {
            Namespaces::One(namespace) => Some(namespace),
            Namespaces::All | Namespaces::Matching(_) | Namespaces::Refused(_) => None,
        }
    }

    /// Returns the interests in objects of the rule's type; `matching` has the namespaces that
    /// match [`RelatedRule::namespace_selector`], at most `most` of them.
    ///
    /// A namespace is ignored for a type that is cluster-scoped.
    ///
    /// # Errors
    ///
    /// If the rule has a namespace selector for a cluster-scoped type, or one that matches too many
    /// namespaces, or another namespace than the parent's for a namespaced type in version 1.
    pub(crate) fn interests(
        &self,
        scope: Scope,
        matching: &[Arc<str>],
        most: usize,
    ) -> Result<Vec<Interest>, String> {
        let namespaces: Vec<Option<Arc<str>>> = match (&self.namespaces, scope) {
            (Namespaces::Matching(_), Scope::Cluster) => {
                return Err(format!(
                    "{}.namespaceSelector: {} is cluster-scoped",
                    self.field, self.type_ref
                ));
            }
            (Namespaces::Matching(_), Scope::Namespaced) if matching.len() > most => {
                return Err(format!(
                    "{}.namespaceSelector: matches more than {most} namespaces, the limit of \
                     --customize-names",
                    self.field
                ));
            }
            (Namespaces::Matching(_), Scope::Namespaced) => {
                matching.iter().cloned().map(Some).collect()
            }
            (Namespaces::One(namespace), Scope::Namespaced) => vec![Some(namespace.clone())],
            (Namespaces::Refused(wrong), Scope::Namespaced) => return Err(wrong.clone()),
            (Namespaces::All | Namespaces::One(_) | Namespaces::Refused(_), _) => vec![None],
        };
        let is_anywhere =
            |namespace: &Option<Arc<str>>| namespace.is_none() && scope == Scope::Namespaced;
        let interests = namespaces.into_iter().flat_map(|namespace| match &self.objects {
            ObjectRule::Selected(selector) => {
                vec![Interest::Selected(Selection { namespace, selector: selector.clone() })]
            }
            ObjectRule::Named(names) if is_anywhere(&namespace) => {
                names.iter().cloned().map(Interest::NamedAnywhere).collect()
            }
            ObjectRule::Named(names) => {
                let key = |name: &Arc<str>| ObjectKey {
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                names.iter().map(|name| Interest::Named(key(name))).collect()
            }
        });
        Ok(interests.map(everything).collect())
    }
}

/// Simplifies an interest that selects all objects.
fn everything(interest: Interest) -> Interest {
    if let Interest::Selected(Selection { namespace: None, selector }) = &interest
        && selector.expressions().is_empty()
    {
        return Interest::Everything;
    }
    interest
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(
        version: HookVersion,
        parent: Option<&str>,
        rule: Value,
    ) -> Result<RelatedRule, String> {
        let mut rule = rule;
        rule["apiVersion"] = json!("v1");
        rule["resource"] = json!("configmaps");
        let body = Bytes::from(json!({ "relatedResources": [rule] }).to_string());
        let parent = parent.map(Arc::from);
        let limits = CustomizeLimits::default();
        let found = related_rules(&body, false, version, parent.as_ref(), &limits);
        found.map(|mut rules| rules.remove(0))
    }

    /// Texts of the interests that a rule has in namespaced and in cluster-scoped objects.
    fn interests(rule: &RelatedRule) -> [String; 2] {
        [Scope::Namespaced, Scope::Cluster].map(|scope| {
            let text = |interest: &Interest| match interest {
                Interest::Everything => "all".to_owned(),
                Interest::Named(key) => key.to_string(),
                Interest::NamedAnywhere(name) => format!("*/{name}"),
                Interest::Selected(Selection { namespace, selector }) => {
                    let selector = format!("{:?}", selector.expressions());
                    let labels = if selector == "[]" { "all" } else { "labels" };
                    format!("{}:{labels}", namespace.as_deref().unwrap_or("*"))
                }
                other @ (Interest::OwnerKind(_) | Interest::OwnerUid(_) | Interest::Orphans(_)) => {
                    panic!("{other:?}")
                }
            };
            match rule.interests(scope, &["m".into(), "n".into()], 2) {
                Ok(interests) => interests.iter().map(text).collect::<Vec<_>>().join(" "),
                Err(error) => error,
            }
        })
    }

    #[test]
    fn mode_of_a_rule_depends_on_version_and_parent() {
        use HookVersion::{V1, V2};
        let labels = json!({"matchLabels": {"a": "b"}});
        let is_cluster = "relatedResources[0].namespaceSelector: configmaps/v1 is cluster-scoped";
        let is_foreign = "relatedResources[0].namespace: \"far\" is not the namespace of the \
                          parent, \"own\"; other namespaces need version v2";
        for (version, parent, rule, namespaced, cluster) in [
            // Labels; nothing at all means everything.
            (V1, Some("own"), json!({}), "own:all", "all"),
            (V1, Some("own"), json!({"labelSelector": {}}), "own:all", "all"),
            (V1, Some("own"), json!({"labelSelector": labels}), "own:labels", "*:labels"),
            (V1, None, json!({"labelSelector": labels}), "*:labels", "*:labels"),
            (V2, Some("own"), json!({"labelSelector": labels}), "*:labels", "*:labels"),
            (V2, Some("own"), json!({"labelSelector": null}), "all", "all"),
            // A namespace and labels.
            (
                V1,
                Some("own"),
                json!({"namespace": "own", "labelSelector": labels}),
                "own:labels",
                "*:labels",
            ),
            (
                V1,
                None,
                json!({"namespace": "far", "labelSelector": labels}),
                "far:labels",
                "*:labels",
            ),
            (
                V2,
                Some("own"),
                json!({"namespace": "far", "labelSelector": labels}),
                "far:labels",
                "*:labels",
            ),
            (
                V2,
                Some("own"),
                json!({"namespace": "", "labelSelector": labels}),
                "*:labels",
                "*:labels",
            ),
            // A namespace, names, or both.
            (V1, Some("own"), json!({"namespace": "own"}), "own:all", "all"),
            (V2, Some("own"), json!({"namespace": "far"}), "far:all", "all"),
            (V1, Some("own"), json!({"names": ["x", "y"]}), "*/x */y", "x y"),
            (V1, Some("own"), json!({"namespace": "own", "names": ["x"]}), "own/x", "x"),
            (V2, None, json!({"namespace": "far", "names": ["x"]}), "far/x", "x"),
            (V2, Some("own"), json!({"names": ["x"]}), "*/x", "x"),
            // A namespace that is refused for objects that have one.
            (V1, Some("own"), json!({"namespace": "far"}), is_foreign, "all"),
            (V1, Some("own"), json!({"namespace": "far", "names": ["x"]}), is_foreign, "x"),
            (
                V1,
                Some("own"),
                json!({"namespace": "far", "labelSelector": labels}),
                is_foreign,
                "*:labels",
            ),
            // A selector of namespaces.
            (V2, Some("own"), json!({"namespaceSelector": labels}), "m:all n:all", is_cluster),
            (V1, None, json!({"namespaceSelector": {}}), "m:all n:all", is_cluster),
            (
                V2,
                None,
                json!({"namespaceSelector": labels, "labelSelector": labels}),
                "m:labels n:labels",
                is_cluster,
            ),
        ] {
            let found = rules(version, parent, rule.clone()).unwrap();

            let expected = [namespaced, cluster].map(str::to_owned);
            assert_eq!(interests(&found), expected, "{version:?} {parent:?} {rule}");
        }
    }

    #[test]
    fn refused_rule_is_named_with_its_field() {
        use HookVersion::{V1, V2};
        let labels = json!({"matchLabels": {"a": "b"}});
        for (version, rule, expected) in [
            (
                V2,
                json!({"names": ["x"], "labelSelector": labels}),
                "names: must not be set with labelSelector",
            ),
            (
                V2,
                json!({"names": ["x"], "namespaceSelector": {}}),
                "names: must not be set with namespaceSelector",
            ),
            (
                V2,
                json!({"namespace": "n", "namespaceSelector": {}}),
                "namespace: must not be set with namespaceSelector",
            ),
            (V1, json!({"namespaceSelector": {}}), "namespaceSelector: needs version v2"),
            (
                V2,
                json!({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Has"}]}}),
                "labelSelector.matchExpressions[0].operator: ",
            ),
            (
                V2,
                json!({"namespaceSelector": {"matchLabels": {"-": "x"}}}),
                "namespaceSelector.matchLabels: ",
            ),
        ] {
            let error = rules(version, Some("own"), rule.clone()).unwrap_err();

            let expected = format!("relatedResources[0].{expected}");
            assert!(error.contains(&expected), "{rule}: {error}");
        }
    }

    /// Parses a response in version 2 for a cluster-scoped parent.
    fn parse(
        body: &str,
        strict: bool,
        limits: CustomizeLimits,
    ) -> Result<Vec<RelatedRule>, String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        related_rules(&body, strict, HookVersion::V2, None, &limits)
    }

    #[track_caller]
    fn check(body: &str, strict: bool, expected: Result<usize, &str>) {
        let found = parse(body, strict, CustomizeLimits::default());

        match (&found, expected) {
            (Ok(rules), Ok(count)) => assert_eq!(rules.len(), count, "{body}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, expected) => panic!("{body}: {found:?} {expected:?}"),
        }
    }

    #[test]
    fn response_is_an_object_with_a_list_of_rules() {
        let rule = r#"{"apiVersion":"v1","resource":"configmaps","names":null,"namespace":null}"#;
        check(&format!(r#"{{"relatedResources":[{rule},{rule}]}}"#), true, Ok(2));
        check(r#"{"relatedResources":null}"#, true, Ok(0));
        check("{}", true, Ok(0));
        check(r#"{"other":1}"#, false, Ok(0));
        check(r#"{"other":1}"#, true, Err("unknown field"));
        let rule_with = |fields: &str| {
            format!(
                r#"{{"relatedResources":[{{"apiVersion":"v1","resource":"secrets",{fields}}}]}}"#
            )
        };
        for (fields, wrong) in [
            (r#""labelSelectr":{"matchLabels":{"a":"b"}}"#, "[0]: unknown field \"labelSelectr\""),
            (r#""names":["a"],"names":["b"]"#, "[0]: duplicate field \"names\""),
            (r#""labelSelector":{"matchLabel":{}}"#, "[0].labelSelector: unknown field"),
            (
                r#""namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Exists","value":1}]}"#,
                "[0].namespaceSelector.matchExpressions[0]: unknown field \"value\"",
            ),
            (
                r#""labelSelector":{"matchLabels":{"a":"b","a":"c"}}"#,
                "[0].labelSelector.matchLabels: duplicate field",
            ),
        ] {
            check(&rule_with(fields), false, Ok(1));
            check(&rule_with(fields), true, Err(wrong));
        }
        let nulls = r#""labelSelector":{"matchLabels":null,"matchExpressions":[{"key":"a","operator":"Exists","values":null}]},"namespaceSelector":{"matchLabels":{},"matchExpressions":null}"#;
        check(&rule_with(nulls), true, Ok(1));
        check("", false, Err("must be an object"));
        check(" null\n", true, Ok(0));
        check("\u{feff}{}", false, Err("must be an object"));
        check("{} {}", false, Err("trailing"));
        check("[]", false, Err("must be an object"));
        check(r#"{"relatedResources":{}}"#, false, Err("unusable"));
        check(
            r#"{"relatedResources":[{"resource":"pods"}]}"#,
            false,
            Err("relatedResources[0].apiVersion: "),
        );
        check(
            r#"{"relatedResources":[{"apiVersion":"v1","resource":"Pod"}]}"#,
            false,
            Err("relatedResources[0].resource: "),
        );
        let usual = CustomizeLimits::default();
        let many = vec![rule; usual.rules + 1].join(",");
        check(&format!(r#"{{"relatedResources":[{many}]}}"#), false, Err("more than 1000 "));
        let names = vec!["\"n\""; usual.names + 1].join(",");
        let body = format!(r#"{{"relatedResources":[{{"names":[{names}]}}]}}"#);
        check(&body, false, Err("more than 10000"));
        let long = format!("{{\"x\":\"{}\"}}", "x".repeat(usual.response_bytes));
        check(&long, false, Err("at most 1048576"));
    }

    #[test]
    fn limits_of_a_response_are_options() {
        let requirement = r#"{"key":"a","operator":"Exists"}"#;
        let response = |names: &str, requirements: &str| {
            format!(
                r#"{{"relatedResources":[{{"apiVersion":"v1","resource":"secrets","names":{names}}},
                   {{"apiVersion":"v1","resource":"secrets","labelSelector":
                     {{"matchExpressions":{requirements}}}}}]}}"#
            )
        };
        let two = response(r#"["a","b"]"#, &format!("[{requirement},{requirement}]"));
        let names = response(r#"["a","b"]"#, "[]");
        let requirements = response("[]", &format!("[{requirement},{requirement}]"));
        let exact = CustomizeLimits { response_bytes: two.len(), rules: 2, names: 2 };

        let refused = |body: &str, limits| parse(body, false, limits).unwrap_err();

        assert_eq!(parse(&two, false, exact).unwrap().len(), 2);
        let shorter = CustomizeLimits { response_bytes: two.len() - 1, ..exact };
        assert!(refused(&two, shorter).contains(&format!("at most {} are read", two.len() - 1)));
        let error = refused(&two, CustomizeLimits { rules: 1, ..exact });
        assert!(error.contains("relatedResources: more than 1 of them"), "{error}");
        let fewer = CustomizeLimits { names: 1, ..exact };
        assert!(refused(&names, fewer).contains("[0].names: more than 1 of them"));
        let error = refused(&requirements, fewer);
        assert!(error.contains("labelSelector.matchExpressions: more than 1 of them"), "{error}");
        let selector = json!({"namespaceSelector": {}});
        let selected = rules(HookVersion::V2, None, selector).unwrap();
        let error = selected.interests(Scope::Namespaced, &["m".into(), "n".into()], 1);
        assert!(error.unwrap_err().contains("matches more than 1 namespaces"));
    }

    #[test]
    fn repeated_fields_of_a_loose_response_count_as_in_go() {
        let rule = |fields: &str| {
            let rule = format!(r#"{{"apiVersion":"v1","resource":"secrets",{fields}}}"#);
            let body = format!(r#"{{"relatedResources":[],"relatedResources":[{rule}]}}"#);
            parse(&body, false, CustomizeLimits::default()).unwrap().remove(0)
        };
        let labels = |labels: &str| rule(&format!(r#""labelSelector":{{"matchLabels":{labels}}}"#));

        for (fields, expected) in [
            (
                r#""apiVersion":"v2","apiVersion":"v1","names":["a"],"names":["b"]"#,
                r#""names":["b"]"#,
            ),
            (r#""namespace":"x","namespace":null"#, r#""namespace":"x""#),
            (r#""names":["a"],"names":null"#, r#""names":[]"#),
        ] {
            assert_eq!(rule(fields), rule(expected), "{fields}");
        }
        for (fields, expected) in [
            (r#""labelSelector":{"matchLabels":{"a":"b","a":"c"}}"#, r#"{"a":"c"}"#),
            (r#""labelSelector":{"matchLabels":{"a":"b","a":null}}"#, r#"{"a":""}"#),
            (
                r#""labelSelector":{"matchLabels":{"a":"1"}},"labelSelector":{"matchLabels":{"b":"2"}}"#,
                r#"{"a":"1","b":"2"}"#,
            ),
            (
                r#""labelSelector":{"matchLabels":{"a":"1"},"matchLabels":{"b":"2"}}"#,
                r#"{"a":"1","b":"2"}"#,
            ),
            (
                r#""labelSelector":{"matchLabels":{"a":"1"}},"labelSelector":null,"labelSelector":{"matchLabels":{"b":"2"}}"#,
                r#"{"b":"2"}"#,
            ),
        ] {
            assert_eq!(rule(fields), labels(expected), "{fields}");
        }
    }

    #[test]
    fn null_in_a_list_of_texts_is_an_empty_text_as_in_go() {
        let rule = |fields: &str| {
            let rule = format!(r#"{{"apiVersion":"v1","resource":"secrets",{fields}}}"#);
            let body = format!(r#"{{"relatedResources":[{rule}]}}"#);
            parse(&body, true, CustomizeLimits::default()).unwrap().remove(0)
        };
        let values = |values: &str| {
            let requirement = format!(r#"{{"key":"a","operator":"In","values":{values}}}"#);
            rule(&format!(r#""labelSelector":{{"matchExpressions":[{requirement}]}}"#))
        };

        assert_eq!(rule(r#""names":["a",null]"#), rule(r#""names":["a",""]"#));
        assert_eq!(values(r#"["x",null]"#), values(r#"["x",""]"#));
    }

    #[test]
    fn error_quotes_no_secret_value_of_the_response() {
        let error = related_rules(
            &Bytes::from_static(br#"{"relatedResources":["hush"]}"#),
            false,
            HookVersion::V1,
            None,
            &CustomizeLimits::default(),
        );
        assert!(!error.unwrap_err().contains("hush"));
    }
}
