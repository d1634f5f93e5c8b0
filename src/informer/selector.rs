//! Label selectors: parsed once, then matched against labels without an allocation.

use std::{fmt, str::FromStr, sync::Arc};

use kube::core::Expression;

use super::StringMap;

/// A parsed label selector; an empty one selects everything. Cheap to clone. A selector of kube
/// (`kube::core::Selector`) becomes one by `into`.
///
/// ```
/// # use k8s_openapi::api::core::v1::Pod;
/// # use pilotlight::controller::Context;
/// use pilotlight::informer::Selector;
///
/// fn number_of_web_pods(context: &Context) -> Result<usize, Box<dyn std::error::Error>> {
///     let web: Selector = "tier=web,canary!=true".parse()?;
///     Ok(context.lister::<Pod>()?.matching(&web)?.len())
/// }
/// # drop(number_of_web_pods);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    // Shared: a requirement may have very many values, and each interest has a copy.
    requirements: Arc<[Expression]>,
    bounds: Arc<[Bound]>,
}

/// Bound of a label whose value is a whole number: `tier>1`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    key: String,
    is_lower: bool,
    number: i64,
}

impl Selector {
    /// Returns the selector of these requirements, all of which must hold.
    pub fn new(requirements: Vec<Expression>) -> Self {
        Self { requirements: requirements.into(), bounds: Arc::default() }
    }

    /// Selects the objects with this label.
    pub fn label(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(vec![Expression::Equal(key.into(), value.into())])
    }

    /// Returns the requirements without the bounds.
    pub(crate) fn expressions(&self) -> &[Expression] {
        &self.requirements
    }

    /// Returns whether an object without labels is never selected.
    pub(crate) fn requires_label(&self) -> bool {
        let is_positive = |expression: &Expression| match expression {
            Expression::In(..) | Expression::Equal(..) | Expression::Exists(_) => true,
            Expression::NotIn(..) | Expression::NotEqual(..) | Expression::DoesNotExist(_) => false,
        };
        self.requirements.iter().any(is_positive) || !self.bounds.is_empty()
    }

    /// Returns whether an object with these labels is selected.
    pub fn matches(&self, labels: &StringMap) -> bool {
        let required = self.requirements.iter().all(|expression| match expression {
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
        });
        required && self.bounds.iter().all(|bound| bound.matches(labels))
    }
}

impl From<&Selector> for Selector {
    fn from(selector: &Selector) -> Self {
        selector.clone()
    }
}

/// Selector of kube.
impl From<kube::core::Selector> for Selector {
    fn from(selector: kube::core::Selector) -> Self {
        Self::new(selector.into_iter().collect())
    }
}

impl Bound {
    fn matches(&self, labels: &StringMap) -> bool {
        let value = labels.get(&self.key).and_then(|value| value.parse::<i64>().ok());
        value.is_some_and(|it| if self.is_lower { it > self.number } else { it < self.number })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.key, if self.is_lower { '>' } else { '<' }, self.number)
    }
}

/// Format of a query: `app=web,tier in (a,b)`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requirements = self.requirements.iter().map(|it| it as &dyn fmt::Display);
        let bounds = self.bounds.iter().map(|it| it as &dyn fmt::Display);
        for (index, part) in requirements.chain(bounds).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{part}")?;
        }
        Ok(())
    }
}

/// Invalid label selector; the message names the part and the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} {problem}")]
pub struct SelectorError {
    pub(crate) part: String,
    problem: &'static str,
}

/// Format of `kubectl --selector`: `app=web,tier in (a,b),!old,size>1`.
impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let (mut expressions, mut bounds) = (Vec::new(), Vec::new());
        for part in requirements(text) {
            match bound(part)? {
                Some(bound) => bounds.push(bound),
                None => expressions.push(requirement(part)?),
            }
        }
        Ok(Self { requirements: expressions.into(), bounds: bounds.into() })
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

/// Parses a comparison such as `tier>1`; nothing for another requirement.
fn bound(text: &str) -> Result<Option<Bound>, SelectorError> {
    let text = text.trim();
    let Some((left, number)) = text.split_once(['<', '>']) else { return Ok(None) };
    let is_lower = text[left.len()..].starts_with('>');
    let (key, wrong) = (left.trim(), |problem| SelectorError { part: text.to_owned(), problem });
    if !is_label(key) {
        return Err(wrong("has no label key"));
    }
    let number = number.trim().parse().map_err(|_| wrong("is not compared with a whole number"))?;
    Ok(Some(Bound { key: key.to_owned(), is_lower, number }))
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
pub(crate) fn is_label(key: &str) -> bool {
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
pub(crate) fn is_value(value: &str) -> bool {
    value.is_empty() || !value.contains('/') && is_label(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_compared_with_whole_numbers() {
        let selector: Selector = " tier > 1,app=web, tier<9 ".parse().unwrap();
        let selects =
            |tier: &str| selector.matches(&[("app", "web"), ("tier", tier)].into_iter().collect());

        assert_eq!(selector.to_string().parse(), Ok(selector.clone()), "{selector}");
        assert!(selects("2") && selects("8"));
        for tier in ["1", "9", "-5", "", "two"] {
            assert!(!selects(tier), "{tier:?}");
        }
        assert!(!selector.matches(&[("app", "web")].into_iter().collect()), "no such label");
        assert!("a<-2".parse::<Selector>().is_ok());
        for text in ["a>", ">1", "a>b", "a>=1", "a>1.5", "!a>1"] {
            assert!(text.parse::<Selector>().is_err(), "{text:?}");
        }
    }
}
