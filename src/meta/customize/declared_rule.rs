//! Declared rules of a customize response, decoded as by Go.
//!
//! An unknown or repeated field, at any depth, is an error in a strict response. In a loose one
//! unknown fields are ignored, and the last of a repeated field counts. `null` means absent.
//!
//! Semantics: `UnmarshalStrict` of `sigs.k8s.io/json`, except that the objects of a repeated field
//! are not merged.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::CustomizeLimits;
use crate::{
    meta::{LabelSelector, api::LabelSelectorRequirement},
    redaction,
};

/// Rule of a response, as declared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeclaredRule {
    pub(super) api_version: String,
    pub(super) resource: String,
    pub(super) label_selector: Option<LabelSelector>,
    pub(super) namespace_selector: Option<LabelSelector>,
    pub(super) namespace: String,
    pub(super) names: Vec<String>,
}

/// Decodes the rules of a response, which is an object.
///
/// # Errors
///
/// The path of the field and its problem. Values are not quoted.
pub(super) fn declared_rules(
    text: &str,
    strict: bool,
    limits: &CustomizeLimits,
) -> Result<Vec<DeclaredRule>, String> {
    let response = ResponseObject::read("", text, Some(RESPONSE), strict)?;
    let rules: Vec<&RawValue> =
        response.list("relatedResources", limits.rules, "--customize-rules")?;
    let rules = rules.into_iter().enumerate();
    rules
        .map(|(index, rule)| {
            DeclaredRule::read(&format!("relatedResources[{index}]"), rule, strict, limits.names)
        })
        .collect()
}

/// Flag of the maximum number of names, and of requirements of a selector.
const NAMES_FLAG: &str = "--customize-names";

const RESPONSE: &[&str] = &["relatedResources"];
const RULE: &[&str] =
    &["apiVersion", "resource", "labelSelector", "namespaceSelector", "namespace", "names"];
const SELECTOR: &[&str] = &["matchLabels", "matchExpressions"];
const REQUIREMENT: &[&str] = &["key", "operator", "values"];

impl DeclaredRule {
    /// Reads a rule with at most `most` names, and as many requirements in each selector.
    fn read(path: &str, rule: &RawValue, strict: bool, most: usize) -> Result<Self, String> {
        let rule = ResponseObject::read(path, rule.get(), Some(RULE), strict)?;
        let names = rule.list("names", most, NAMES_FLAG)?;
        Ok(Self {
            api_version: rule.value("apiVersion")?,
            resource: rule.value("resource")?,
            label_selector: rule.selector("labelSelector", most)?,
            namespace_selector: rule.selector("namespaceSelector", most)?,
            namespace: rule.value("namespace")?,
            names,
        })
    }
}

/// Object of a response: the last value of each of its known fields.
struct ResponseObject<'de> {
    path: String,
    fields: BTreeMap<String, &'de RawValue>,
    strict: bool,
}

impl<'de> ResponseObject<'de> {
    /// Reads an object; `known` has the names of its fields, or is `None` if any is a field.
    fn read(
        path: &str,
        text: &'de str,
        known: Option<&'static [&'static str]>,
        strict: bool,
    ) -> Result<Self, String> {
        let mut decoder = serde_json::Deserializer::from_str(text);
        let fields = decoder
            .deserialize_map(ObjectVisitor { known, strict })
            .and_then(|fields| decoder.end().map(|()| fields))
            .map_err(|error| problem(path, error))?;
        Ok(Self { path: path.to_owned(), fields, strict })
    }

    fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Returns the field, or the default if it is absent or null.
    fn value<T: Default + Deserialize<'de>>(&self, field: &str) -> Result<T, String> {
        let Some(raw) = self.fields.get(field) else { return Ok(T::default()) };
        let value: Result<Option<T>, _> = serde_json::from_str(raw.get());
        value.map(Option::unwrap_or_default).map_err(|error| problem(&self.path(field), error))
    }

    /// Returns the field as an object; `None` if it is absent or null.
    fn object(
        &self,
        field: &str,
        known: Option<&'static [&'static str]>,
    ) -> Result<Option<Self>, String> {
        let raw = self.fields.get(field).filter(|raw| raw.get() != "null");
        raw.map(|raw| Self::read(&self.path(field), raw.get(), known, self.strict)).transpose()
    }

    /// Returns the elements of a list, at most `most`, which `flag` sets; none if the field is
    /// absent or null.
    fn list<T: Deserialize<'de>>(
        &self,
        field: &str,
        most: usize,
        flag: &'static str,
    ) -> Result<Vec<T>, String> {
        let raw = self.fields.get(field).filter(|raw| raw.get() != "null");
        let Some(raw) = raw else { return Ok(Vec::new()) };
        let mut decoder = serde_json::Deserializer::from_str(raw.get());
        decoder
            .deserialize_seq(ListVisitor { most, flag, element: PhantomData })
            .and_then(|list| decoder.end().map(|()| list))
            .map_err(|error| problem(&self.path(field), error))
    }

    fn selector(&self, field: &str, most: usize) -> Result<Option<LabelSelector>, String> {
        let Some(selector) = self.object(field, Some(SELECTOR))? else { return Ok(None) };
        let mut match_labels = BTreeMap::new();
        if let Some(labels) = selector.object("matchLabels", None)? {
            for key in labels.fields.keys() {
                match_labels.insert(key.clone(), labels.value(key)?);
            }
        }
        let expressions: Vec<&RawValue> = selector.list("matchExpressions", most, NAMES_FLAG)?;
        let path = selector.path("matchExpressions");
        let expressions = expressions.into_iter().enumerate();
        let match_expressions = expressions
            .map(|(index, raw)| {
                let path = format!("{path}[{index}]");
                let requirement =
                    ResponseObject::read(&path, raw.get(), Some(REQUIREMENT), self.strict)?;
                Ok(LabelSelectorRequirement {
                    key: requirement.value("key")?,
                    operator: requirement.value("operator")?,
                    values: requirement.value("values")?,
                })
            })
            .collect::<Result<_, String>>()?;
        Ok(Some(LabelSelector { match_labels, match_expressions }))
    }
}

fn problem(path: &str, error: serde_json::Error) -> String {
    let problem = redaction::decoding(error);
    if path.is_empty() { problem } else { format!("{path}: {problem}") }
}

struct ObjectVisitor {
    known: Option<&'static [&'static str]>,
    strict: bool,
}

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = BTreeMap<String, &'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let is_known = self.known.is_none_or(|known| known.contains(&&*key));
            let wrong = match (is_known, fields.contains_key(&key)) {
                (false, _) => Some("unknown field"),
                (true, true) => Some("duplicate field"),
                (true, false) => None,
            };
            if let Some(wrong) = wrong.filter(|_| self.strict) {
                // A key of a label is left out of the message, as its value is.
                let key = self.known.map(|_| key.chars().take(64).collect::<String>());
                let key = key.map(|key| format!(" {key:?}")).unwrap_or_default();
                return Err(A::Error::custom(format!("{wrong}{key}")));
            }
            if is_known {
                fields.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(fields)
    }
}

/// Visitor of a list of at most `most` elements.
struct ListVisitor<T> {
    most: usize,
    flag: &'static str,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut few = Vec::new();
        while let Some(item) = items.next_element()? {
            if few.len() == self.most {
                let Self { most, flag, .. } = self;
                return Err(A::Error::custom(format!(
                    "more than {most} of them, the limit of {flag}"
                )));
            }
            few.push(item);
        }
        Ok(few)
    }
}
