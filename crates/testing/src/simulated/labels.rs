//! Label selectors, parsed as apimachinery parses them.

use serde_json::Value;

use super::{
    names::{LABEL_VALUE, is_label_value, is_qualified_name},
    refusal::Refusal,
};

const KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must \
    start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
    regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Requirements on the labels of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelRequirements(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    /// Key, true for greater than (false for less than), and the number.
    Compare(String, bool, i64),
}

impl LabelRequirements {
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        Reader { tokens: tokens(text), at: 0 }
            .requirements()
            .map(Self)
            .map_err(Refusal::bad_request)
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

/// Splits a selector into identifiers and operators.
fn tokens(text: &str) -> Vec<&str> {
    let is_sign = |letter: char| "=!(),<>".contains(letter);
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if !is_sign(first) {
            let ends = |letter: char| letter.is_whitespace() || is_sign(letter);
            rest.find(ends).unwrap_or(rest.len())
        } else if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else {
            1
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

fn is_word(token: &str) -> bool {
    token.starts_with(|letter: char| !"=!(),<>".contains(letter))
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// Returns the next token; empty at the end.
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirements(mut self) -> Result<Vec<Requirement>, String> {
        let mut all = Vec::new();
        loop {
            match self.peek() {
                "" => return Ok(all),
                token if token == "!" || is_word(token) => {}
                other => {
                    return Err(format!(
                        "found '{other}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
            let read = self.requirement();
            all.push(read.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match self.next() {
                "" => return Ok(all),
                "," => {
                    let next = self.peek();
                    if next != "!" && !is_word(next) {
                        return Err(format!("found '{next}', expected: identifier after ','"));
                    }
                }
                other => {
                    return Err(format!("found '{other}', expected: ',' or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let missing = self.peek() == "!";
        if missing {
            self.next();
        }
        let key = self.next();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check_key(key)?;
        let key = key.to_owned();
        if missing {
            return Ok(Requirement::Missing(key));
        }
        match self.peek() {
            "" | "," => return Ok(Requirement::Exists(key)),
            _ => {}
        }
        match self.next() {
            word @ ("in" | "notin") => {
                let values = self.values()?;
                check_values(&key, &values)?;
                let is_in = word == "in";
                Ok(if is_in { Requirement::In } else { Requirement::NotIn }(key, values))
            }
            sign @ ("=" | "==" | "!=") => {
                let values = vec![self.value()?];
                check_values(&key, &values)?;
                let differs = sign == "!=";
                Ok(if differs { Requirement::NotIn } else { Requirement::In }(key, values))
            }
            sign @ ("<" | ">") => {
                let value = self.value()?;
                let number = value.parse().map_err(|_| {
                    format!(
                        "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value \
                         must be an integer"
                    )
                })?;
                Ok(Requirement::Compare(key, sign == ">", number))
            }
            other => Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// Parses one value, which may be empty.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            "" | "," => Ok(String::new()),
            token if is_word(token) => Ok(self.next().to_owned()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// Parses values in parentheses.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = Vec::new();
        loop {
            values.push(if is_word(self.peek()) { self.next().to_owned() } else { String::new() });
            match self.next() {
                "," => {}
                ")" => return Ok(values),
                other => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

fn check_key(key: &str) -> Result<(), String> {
    if is_qualified_name(key) {
        return Ok(());
    }
    Err(format!("<nil>: Invalid value: {key:?}: {KEY}"))
}

fn check_values(key: &str, values: &[String]) -> Result<(), String> {
    let wrong = values.iter().enumerate().find(|(_, value)| !is_label_value(value));
    let Some((at, value)) = wrong else { return Ok(()) };
    Err(format!("values[{at}][{key}]: Invalid value: {value:?}: {LABEL_VALUE}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(selector: &str, expected: bool) {
        let object = json!({ "metadata": { "labels": { "app": "a", "tier": "2" } } });
        assert_eq!(
            LabelRequirements::parse(selector).unwrap().match_object(&object),
            expected,
            "{selector}"
        );
    }

    #[test]
    fn labels_are_selected_as_by_the_api_server() {
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
    fn invalid_selector_is_a_bad_request() {
        for selector in ["app in", "a b", "app in (a", "=x"] {
            assert_eq!(LabelRequirements::parse(selector).unwrap_err().code, 400, "{selector}");
        }
    }
}
