//! Label and field selectors.

use serde_json::Value;

use super::{object, refusal::Refusal, resource::Resource};

/// Which labels an object must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    /// The key, and whether the label's number is above (or else below) this one.
    Compare(String, bool, i64),
}

impl Labels {
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        let wrong = |part: &str| {
            Refusal::bad_request(format!("unable to parse requirement: found {part:?}"))
        };
        let mut requirements = Vec::new();
        for part in split(text) {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            let requirement = if let Some((key, set)) = part.split_once('(') {
                let values = set.strip_suffix(')').ok_or_else(|| wrong(part))?;
                let values = values.split(',').map(|value| value.trim().to_owned()).collect();
                let words: Vec<_> = key.split_whitespace().collect();
                match *words.as_slice() {
                    [key, "in"] => Requirement::In(key.to_owned(), values),
                    [key, "notin"] => Requirement::NotIn(key.to_owned(), values),
                    _ => return Err(wrong(part)),
                }
            } else if let Some((key, value)) = part.split_once("!=") {
                Requirement::NotIn(key.trim().to_owned(), vec![value.trim().to_owned()])
            } else if let Some((key, value)) = part.split_once('=') {
                let value = value.trim_start_matches('=').trim();
                Requirement::In(key.trim().to_owned(), vec![value.to_owned()])
            } else if let Some((key, value)) = part.split_once(['<', '>']) {
                let number = value.trim().parse().map_err(|_| wrong(part))?;
                Requirement::Compare(key.trim().to_owned(), part.contains('>'), number)
            } else if let Some(key) = part.strip_prefix('!') {
                Requirement::Missing(key.trim().to_owned())
            } else {
                Requirement::Exists(part.to_owned())
            };
            let key = match &requirement {
                Requirement::In(key, _)
                | Requirement::NotIn(key, _)
                | Requirement::Exists(key)
                | Requirement::Missing(key)
                | Requirement::Compare(key, ..) => key,
            };
            if key.is_empty() || key.contains(char::is_whitespace) {
                return Err(wrong(part));
            }
            requirements.push(requirement);
        }
        Ok(Self(requirements))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn match_object(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|it| it == value))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|it| it != value))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Missing(key) => label(key).is_none(),
            Requirement::Compare(key, above, number) => {
                let value = label(key).and_then(|value| value.parse::<i64>().ok());
                value.is_some_and(|it| if *above { it > *number } else { it < *number })
            }
        })
    }
}

/// Splits at commas that stand in no parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// Which fields an object must have: its name and its namespace, and a few more of built-in types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields(Vec<(String, bool, String)>);

impl Fields {
    pub(super) fn parse(text: &str, resource: &Resource) -> Result<Self, Refusal> {
        let mut requirements = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) = part.split_once('=') {
                (field, true, value.trim_start_matches('='))
            } else {
                return Err(Refusal::bad_request(format!(
                    "invalid selector: {text:?}; can't understand {part:?}"
                )));
            };
            let known = matches!(field, "metadata.name" | "metadata.namespace")
                || resource.selectable.contains(&field);
            if !known {
                let message = if resource.custom || !resource.selectable.is_empty() {
                    format!("field label not supported: {field}")
                } else {
                    format!(
                        "{field:?} is not a known field selector: only \"metadata.name\", \
                         \"metadata.namespace\""
                    )
                };
                return Err(Refusal::bad_request(message));
            }
            requirements.push((field.to_owned(), equal, value.to_owned()));
        }
        Ok(Self(requirements))
    }

    pub(super) fn of_name(name: &str) -> Self {
        Self(vec![("metadata.name".to_owned(), true, name.to_owned())])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn match_object(&self, object: &Value) -> bool {
        self.0.iter().all(|(field, equal, value)| {
            let found = match field.as_str() {
                "metadata.name" => object::name(object),
                "metadata.namespace" => object::namespace(object),
                path => {
                    let pointer = format!("/{}", path.replace('.', "/"));
                    object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default()
                }
            };
            (found == value) == *equal
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(selector: &str, expected: bool) {
        let object = json!({ "metadata": { "labels": { "app": "a", "tier": "2" } } });
        assert_eq!(Labels::parse(selector).unwrap().match_object(&object), expected, "{selector}");
    }

    #[test]
    fn labels_are_selected_as_the_api_server_does() {
        check("", true);
        check("app=a", true);
        check("app==a,tier=2", true);
        check("app!=a", false);
        check("other!=a", true);
        check("app in (b, a),tier", true);
        check("app notin (a,b)", false);
        check("!app", false);
        check("!other,tier>1", true);
        check("tier<2", false);
    }

    #[test]
    fn a_selector_that_makes_no_sense_is_a_bad_request() {
        for selector in ["app in", "a b", "app in (a", "=x"] {
            assert_eq!(Labels::parse(selector).unwrap_err().code, 400, "{selector}");
        }
    }
}
