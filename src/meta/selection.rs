//! Label selectors: parsed once, with errors that name the field.

use std::{fmt, str::FromStr};

use kube::core::Expression;

use super::LabelSelector;
use crate::informer::StringMap;

/// A parsed label selector; an empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Expression>);

impl Selector {
    /// Selects the objects with this label.
    pub fn label(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(vec![Expression::Equal(key.into(), value.into())])
    }

    /// Returns the requirements, for comparison.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn expressions(&self) -> &[Expression] {
        &self.0
    }

    /// Returns whether an object with these labels is selected.
    pub fn matches(&self, labels: &StringMap) -> bool {
        self.0.iter().all(|expression| match expression {
            Expression::In(key, values) => {
                labels.get(key).is_some_and(|value| values.contains(value))
            }
            Expression::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| !values.contains(value))
            }
            Expression::Equal(key, value) => labels.get(key) == Some(value),
            Expression::NotEqual(key, value) => labels.get(key) != Some(value),
            Expression::Exists(key) => labels.contains_key(key),
            Expression::DoesNotExist(key) => !labels.contains_key(key),
        })
    }
}

/// Format of a query: `app=web,tier in (a,b)`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, expression) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{expression}")?;
        }
        Ok(())
    }
}

/// Invalid label selector; the message names the part and the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} {problem}")]
pub struct SelectorError {
    part: String,
    problem: &'static str,
}

/// Format of `kubectl --selector`: `app=web,tier in (a,b),!old`.
impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        requirements(text).into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

/// Splits at the commas outside of parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            '(' => inside = true,
            ')' => inside = false,
            ',' if !inside => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

fn requirement(text: &str) -> Result<Expression, SelectorError> {
    let text = text.trim();
    let wrong = |problem| SelectorError { part: text.to_owned(), problem };
    let key = |key: &str| match key.trim() {
        "" => Err(wrong("has no label key")),
        key if is_label(key) => Ok(key.to_owned()),
        _ => {
            Err(wrong("is not a requirement such as app=web, app!=web, app in (a,b), app or !app"))
        }
    };
    let value = |value: &str| match value.trim() {
        value if is_value(value) => Ok(value.to_owned()),
        _ => Err(wrong("has an invalid label value")),
    };
    if let Some((left, values)) = text.split_once('(') {
        let values =
            values.strip_suffix(')').ok_or_else(|| wrong("lacks a closing parenthesis"))?;
        let values = values.split(',').map(value).collect::<Result<_, _>>()?;
        return match left.trim().rsplit_once(char::is_whitespace) {
            Some((left, "in")) => Ok(Expression::In(key(left)?, values)),
            Some((left, "notin")) => Ok(Expression::NotIn(key(left)?, values)),
            _ => Err(wrong("has neither in nor notin before its values")),
        };
    }
    if let Some((left, right)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(left)?, value(right)?));
    }
    if let Some((left, right)) = text.split_once('=') {
        return Ok(Expression::Equal(key(left)?, value(right.strip_prefix('=').unwrap_or(right))?));
    }
    match text.strip_prefix('!') {
        Some(absent) => Ok(Expression::DoesNotExist(key(absent)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

/// Returns whether this is a valid label key: `tier`, `example.com/tier`.
fn is_label(key: &str) -> bool {
    let part = |part: &str| {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        edge(part.bytes().next())
            && edge(part.bytes().next_back())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let domain = |prefix: &str| {
        prefix.len() <= 253
            && prefix.split('.').all(part)
            && !prefix.bytes().any(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    name.len() <= 63 && part(name) && prefix.is_none_or(domain)
}

/// Returns whether this is a valid label value.
fn is_value(value: &str) -> bool {
    value.is_empty() || !value.contains('/') && is_label(value)
}

/// Parses a label selector; an empty one selects everything.
///
/// # Errors
///
/// Path of the field within the selector, and the problem. Invalid keys and values of labels are
/// errors as in the API server: they would never select anything.
pub(crate) fn parse(selector: &LabelSelector) -> Result<Selector, (String, String)> {
    let no_label = |key: &str| format!("{key:?} is not a valid label key");
    let no_value = |value: &str| format!("{value:?} is not a valid label value");
    let mut expressions = Vec::new();
    for (key, value) in &selector.match_labels {
        if !is_label(key) {
            return Err(("matchLabels".to_owned(), no_label(key)));
        }
        if !is_value(value) {
            return Err((format!("matchLabels[{key:?}]"), no_value(value)));
        }
        expressions.push(Expression::Equal(key.clone(), value.clone()));
    }
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let field = |name: &str| format!("matchExpressions[{index}].{name}");
        let key = requirement.key.clone();
        if key.is_empty() {
            return Err((field("key"), "must not be empty".to_owned()));
        }
        if !is_label(&key) {
            return Err((field("key"), no_label(&key)));
        }
        if let Some(value) = requirement.values.iter().find(|value| !is_value(value)) {
            return Err((field("values"), no_value(value)));
        }
        let values = || requirement.values.iter().cloned().collect();
        let expression = match (requirement.operator.as_str(), requirement.values.is_empty()) {
            ("In" | "NotIn", true) => {
                return Err((field("values"), "must not be empty for In and NotIn".to_owned()));
            }
            ("Exists" | "DoesNotExist", false) => {
                return Err((
                    field("values"),
                    "must be empty for Exists and DoesNotExist".to_owned(),
                ));
            }
            ("In", false) => Expression::In(key, values()),
            ("NotIn", false) => Expression::NotIn(key, values()),
            ("Exists", true) => Expression::Exists(key),
            ("DoesNotExist", true) => Expression::DoesNotExist(key),
            (other, _) => {
                return Err((
                    field("operator"),
                    format!("{other:?} is not one of In, NotIn, Exists, DoesNotExist"),
                ));
            }
        };
        expressions.push(expression);
    }
    Ok(Selector(expressions))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{prelude::*, sample::select};
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(selector: serde_json::Value, matches: Result<bool, &str>) {
        let selector: LabelSelector = serde_json::from_value(selector).unwrap();
        let labels = [("app", "web")].into_iter().collect();

        let parsed = parse(&selector).map(|selector| selector.matches(&labels));

        assert_eq!(
            parsed.as_ref().map_err(|(field, _)| field.as_str()),
            matches.as_ref().map_err(|field| *field)
        );
    }

    #[test]
    fn selectors_match_as_everywhere_in_kubernetes() {
        let one = |operator: &str, values: serde_json::Value| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
        check(json!({}), Ok(true));
        check(json!({"matchLabels": {"app": "web"}}), Ok(true));
        check(json!({"matchLabels": {"app": "db"}}), Ok(false));
        check(one("In", json!(["web", "db"])), Ok(true));
        check(one("NotIn", json!(["web"])), Ok(false));
        check(one("Exists", json!([])), Ok(true));
        check(one("DoesNotExist", json!([])), Ok(false));
        check(one("In", json!([])), Err("matchExpressions[0].values"));
        check(one("Exists", json!(["x"])), Err("matchExpressions[0].values"));
        check(one("Gt", json!(["1"])), Err("matchExpressions[0].operator"));
    }

    #[test]
    fn invalid_label_is_an_error_and_not_an_empty_match() {
        let (longest, longer) = ("x".repeat(63), "x".repeat(64));
        for value in ["", "x", "X.y_z-1", &longest] {
            check(json!({"matchLabels": {"app": value}}), Ok(false));
            check(
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [value]}]}),
                Ok(true),
            );
        }
        for value in ["a/b", "-a", "a-", "a b", "ü", &longer] {
            check(json!({"matchLabels": {"app": value}}), Err("matchLabels[\"app\"]"));
            check(
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", value]}]}),
                Err("matchExpressions[0].values"),
            );
        }
        for key in ["a", "A.b_c-1", "example.com/App", &longest, &format!("{longest}.io/{longest}")]
        {
            check(
                json!({"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}),
                Ok(true),
            );
        }
        for key in
            ["not a key", "ü", "-a", "a.", "/a", "a/", "a/b/c", "Example.com/a", "a..b/c", &longer]
        {
            check(json!({"matchLabels": {key: "x"}}), Err("matchLabels"));
            check(
                json!({"matchExpressions": [{"key": key, "operator": "Exists"}]}),
                Err("matchExpressions[0].key"),
            );
        }
    }

    #[track_caller]
    fn check_text(text: &str, expected: Result<bool, &str>) {
        let labels = [("app", "web"), ("example.com/tier", "a")].into_iter().collect();

        let parsed = text.parse::<Selector>().map(|selector| selector.matches(&labels));

        match (parsed, expected) {
            (Ok(matches), expected) => assert_eq!(Ok(matches), expected, "{text}"),
            (Err(error), Err(part)) => assert_eq!(error.part, part, "{text}"),
            (Err(error), Ok(_)) => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn a_selector_is_read_as_kubectl_reads_it() {
        check_text("", Ok(true));
        check_text(" ", Ok(true));
        check_text("app=web", Ok(true));
        check_text("app == web , example.com/tier in (a, b)", Ok(true));
        check_text("app!=web", Ok(false));
        check_text("none!=web", Ok(true));
        check_text("app notin (db,web)", Ok(false));
        check_text("app,!old", Ok(true));
        check_text("! app", Ok(false));
        check_text("app=", Ok(false));
        check_text("app=web,", Err(""));
        check_text("=web", Err("=web"));
        check_text("app in (a", Err("app in (a"));
        check_text("app on (a)", Err("app on (a)"));
        check_text("app>1", Err("app>1"));
        check_text("app=a=b", Err("app=a=b"));
        check_text("a b", Err("a b"));
    }

    /// Requirement evaluated literally as Kubernetes' documentation defines it.
    #[derive(Clone, Debug)]
    struct Plain {
        key: String,
        operator: &'static str,
        values: Vec<String>,
    }

    impl Plain {
        fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
            let value = labels.get(&self.key);
            let among = value.is_some_and(|value| self.values.iter().any(|one| one == value));
            match self.operator {
                "In" => among,
                "NotIn" => !among,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("{other}"),
            }
        }

        /// Text of the requirement as a user might type it; `style` selects spaces and spellings.
        fn text(&self, style: u8) -> String {
            let Self { key, operator, values } = self;
            let blank = ["", " ", "\t"][usize::from(style % 3)];
            match (*operator, values.as_slice()) {
                ("In", [one]) if style & 8 == 0 => {
                    let equals = if style & 16 == 0 { "=" } else { "==" };
                    format!("{blank}{key}{blank}{equals}{blank}{one}{blank}")
                }
                ("NotIn", [one]) if style & 8 == 0 => format!("{blank}{key}{blank}!={blank}{one}"),
                ("In" | "NotIn", values) => {
                    let values = values.join(&format!("{blank},{blank}"));
                    let word = operator.to_lowercase();
                    format!("{blank}{key} {word} {blank}({blank}{values}{blank})")
                }
                ("Exists", _) => format!("{blank}{key}{blank}"),
                (_, _) => format!("{blank}!{blank}{key}"),
            }
        }
    }

    fn plain() -> impl Strategy<Value = Plain> {
        let operator = select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
        // Labels may have the names of operators.
        let key = select(vec!["a", "example.com/b", "in", "notin", "c_d-e.f"]);
        (key, operator, prop::collection::vec("[xy]{0,2}|in", 1..4)).prop_map(
            |(key, operator, values)| {
                let has_values = matches!(operator, "In" | "NotIn");
                let values = if has_values { values } else { Vec::new() };
                Plain { key: key.to_owned(), operator, values }
            },
        )
    }

    fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        let key = select(vec!["a", "example.com/b", "in", "notin", "c_d-e.f", "other"]);
        prop::collection::btree_map(key.prop_map(str::to_owned), "[xy]{0,2}|in", 0..5)
    }

    proptest! {
        #[test]
        fn a_selector_selects_what_its_requirements_say_however_it_is_written(
            plain in prop::collection::vec((plain(), any::<u8>()), 0..4),
            labels in prop::collection::vec(labels(), 1..6),
        ) {
            let text: Vec<_> = plain.iter().map(|(plain, style)| plain.text(*style)).collect();
            let typed: Selector = text.join(",").parse().unwrap();
            let expressions: Vec<_> = plain
                .iter()
                .map(|(plain, _)| {
                    json!({"key": plain.key, "operator": plain.operator, "values": plain.values})
                })
                .collect();
            let object = json!({ "matchExpressions": expressions });
            let declared = parse(&serde_json::from_value(object).unwrap()).unwrap();

            for labels in labels {
                let expected = plain.iter().all(|(plain, _)| plain.selects(&labels));
                let map = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                prop_assert_eq!(typed.matches(&map), expected, "{} of {:?}", typed, labels);
                prop_assert_eq!(declared.matches(&map), expected, "{} of {:?}", declared, labels);
            }
            let again: Selector = typed.to_string().parse().unwrap();
            prop_assert_eq!(again, typed);
        }
    }
}
