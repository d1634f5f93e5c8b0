//! Label selectors: parsed once, with errors that name the field.

use std::fmt;

use kube::core::Expression;

use super::LabelSelector;
use crate::informer::StringMap;

/// A parsed label selector; an empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Expression>);

impl Selector {
    /// The objects with this one label.
    pub fn label(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(vec![Expression::Equal(key.into(), value.into())])
    }

    /// Whether an object with these labels is selected.
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

/// As in a query: `app=web,tier in (a,b)`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, expression) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{expression}")?;
        }
        Ok(())
    }
}

/// Parses a label selector; an empty one selects everything.
///
/// # Errors
///
/// Which field is wrong, below the selector's own, and why.
pub(crate) fn parse(selector: &LabelSelector) -> Result<Selector, (String, String)> {
    let mut expressions: Vec<Expression> = selector
        .match_labels
        .iter()
        .map(|(key, value)| Expression::Equal(key.clone(), value.clone()))
        .collect();
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let field = |name: &str| format!("matchExpressions[{index}].{name}");
        let key = requirement.key.clone();
        if key.is_empty() {
            return Err((field("key"), "must not be empty".to_owned()));
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
                    format!("{other:?} is none of In, NotIn, Exists, DoesNotExist"),
                ));
            }
        };
        expressions.push(expression);
    }
    Ok(Selector(expressions))
}

#[cfg(test)]
mod tests {
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
}
