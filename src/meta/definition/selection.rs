//! Selectors of declared controllers, with errors that name the field.

use std::collections::BTreeMap;

use kube::core::Expression;

use crate::{
    informer::{Selector, is_in_headers, is_label, is_value},
    meta::api::{AnnotationSelector, LabelSelector, LabelSelectorRequirement},
};

/// Parses a label selector; an empty one selects everything.
///
/// # Errors
///
/// Path of the field within the selector, and the problem. Invalid keys and values of labels are
/// errors as in the API server: they would never select anything.
pub(crate) fn parse(selector: &LabelSelector) -> Result<Selector, (String, String)> {
    read("matchLabels", &selector.match_labels, &selector.match_expressions, &LABELS)
}

/// Parses a selector of annotations; an empty one selects everything. The result matches
/// annotations as it would match labels.
///
/// # Errors
///
/// The errors of [`parse`], except that the value of an annotation may be any text.
pub(crate) fn parse_annotations(
    selector: &AnnotationSelector,
) -> Result<Selector, (String, String)> {
    let annotations = &selector.match_annotations;
    read("matchAnnotations", annotations, &selector.match_expressions, &ANNOTATIONS)
}

/// Syntax of the keys and values that a selector may have.
struct Syntax {
    noun: &'static str,
    is_key: fn(&str) -> bool,
    is_value: fn(&str) -> bool,
}

const LABELS: Syntax = Syntax { noun: "label", is_key: is_label, is_value };
/// The API server accepts upper case in the prefix of an annotation, and not in that of a label.
const ANNOTATIONS: Syntax = Syntax {
    noun: "annotation",
    is_key: |key| is_label(&key.to_ascii_lowercase()) && is_in_headers(key),
    is_value: |_| true,
};

fn read(
    equal: &str,
    pairs: &BTreeMap<String, String>,
    requirements: &[LabelSelectorRequirement],
    syntax: &Syntax,
) -> Result<Selector, (String, String)> {
    let Syntax { noun, is_key, is_value } = syntax;
    let no_key = |key: &str| match is_label(&key.to_ascii_lowercase()) && !is_in_headers(key) {
        true => format!("{key:?} is not kept in memory: it holds a copy of the whole object"),
        false => format!("{key:?} is not a valid {noun} key"),
    };
    let no_value = |value: &str| format!("{value:?} is not a valid {noun} value");
    let mut expressions = Vec::new();
    for (key, value) in pairs {
        if !is_key(key) {
            return Err((equal.to_owned(), no_key(key)));
        }
        if !is_value(value) {
            return Err((format!("{equal}[{key:?}]"), no_value(value)));
        }
        expressions.push(Expression::Equal(key.clone(), value.clone()));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let field = |name: &str| format!("matchExpressions[{index}].{name}");
        let key = requirement.key.clone();
        if key.is_empty() {
            return Err((field("key"), "must not be empty".to_owned()));
        }
        if !is_key(&key) {
            return Err((field("key"), no_key(&key)));
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
    Ok(Selector::new(expressions))
}

#[cfg(test)]
mod tests {
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
        check_text("app>1", Ok(false));
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
