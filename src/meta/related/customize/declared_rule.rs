//! Declared rules of a customize response, decoded as by Go.
//!
//! An unknown or repeated field, at any depth, is an error in a strict response. In a loose one
//! unknown fields are ignored, the objects of a repeated field are merged, and otherwise the last of
//! a repeated field counts. `null` means absent.
//!
//! Semantics: `UnmarshalStrict` of `sigs.k8s.io/json`, except that the elements of a repeated list
//! are not merged with those of an earlier one.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    meta::{
        api::{LabelSelector, LabelSelectorRequirement},
        options::customize_limits::CustomizeLimits,
    },
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
        let names = names.into_iter().map(Option::unwrap_or_default).collect();
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

/// Values of a field in their order: several if the field is repeated.
type FieldValues<'de> = Vec<&'de RawValue>;

/// Object of a response: the values of its known fields.
struct ResponseObject<'de> {
    path: String,
    fields: BTreeMap<String, FieldValues<'de>>,
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
        let mut object = Self { path: path.to_owned(), fields: BTreeMap::new(), strict };
        object.add(text, known)?;
        Ok(object)
    }

    /// Adds the fields of another object in its place.
    fn add(
        &mut self,
        text: &'de str,
        known: Option<&'static [&'static str]>,
    ) -> Result<(), String> {
        let (strict, fields) = (self.strict, &mut self.fields);
        let mut decoder = serde_json::Deserializer::from_str(text);
        decoder
            .deserialize_map(ObjectVisitor { known, strict, fields })
            .and_then(|()| decoder.end())
            .map_err(|error| problem(&self.path, error))
    }

    fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn values(&self, field: &str) -> &[&'de RawValue] {
        self.fields.get(field).map_or(&[], Vec::as_slice)
    }

    /// Returns the field, or the default if it is absent or null. Null leaves an earlier value as it
    /// is.
    fn value<T: Default + Deserialize<'de>>(&self, field: &str) -> Result<T, String> {
        let mut last = None;
        for raw in self.values(field) {
            let value: Result<Option<T>, _> = serde_json::from_str(raw.get());
            last = value.map_err(|error| problem(&self.path(field), error))?.or(last);
        }
        Ok(last.unwrap_or_default())
    }

    /// Returns the field as an object; `None` if it is absent or its last value is null. Objects of
    /// a repeated field are merged.
    fn object(
        &self,
        field: &str,
        known: Option<&'static [&'static str]>,
    ) -> Result<Option<Self>, String> {
        let mut merged: Option<Self> = None;
        for raw in self.values(field) {
            merged = match merged {
                _ if raw.get() == "null" => None,
                None => Some(Self::read(&self.path(field), raw.get(), known, self.strict)?),
                Some(mut object) => {
                    object.add(raw.get(), known)?;
                    Some(object)
                }
            };
        }
        Ok(merged)
    }

    /// Returns the texts of an object whose fields are labels; the last of a label counts.
    fn texts(&self) -> Result<BTreeMap<String, String>, String> {
        let last = |(key, values): (&String, &FieldValues<'de>)| {
            let value = values.last().map_or("null", |raw| raw.get());
            let value: Result<Option<String>, _> = serde_json::from_str(value);
            let value = value.map_err(|error| problem(&self.path(key), error))?;
            Ok((key.clone(), value.unwrap_or_default()))
        };
        self.fields.iter().map(last).collect()
    }

    /// Returns the elements of a list, at most `most`, which `flag` sets; none if the field is
    /// absent or null.
    fn list<T: Deserialize<'de>>(
        &self,
        field: &str,
        most: usize,
        flag: &'static str,
    ) -> Result<Vec<T>, String> {
        let raw = self.values(field).last().filter(|raw| raw.get() != "null");
        let Some(raw) = raw else { return Ok(Vec::new()) };
        let mut decoder = serde_json::Deserializer::from_str(raw.get());
        decoder
            .deserialize_seq(ListVisitor { most, flag, element: PhantomData })
            .and_then(|list| decoder.end().map(|()| list))
            .map_err(|error| problem(&self.path(field), error))
    }

    fn selector(&self, field: &str, most: usize) -> Result<Option<LabelSelector>, String> {
        let Some(selector) = self.object(field, Some(SELECTOR))? else { return Ok(None) };
        let labels = selector.object("matchLabels", None)?;
        let match_labels = labels.map(|labels| labels.texts()).transpose()?.unwrap_or_default();
        let expressions: Vec<&RawValue> = selector.list("matchExpressions", most, NAMES_FLAG)?;
        let path = selector.path("matchExpressions");
        let expressions = expressions.into_iter().enumerate();
        let match_expressions = expressions
            .map(|(index, raw)| {
                let path = format!("{path}[{index}]");
                let requirement =
                    ResponseObject::read(&path, raw.get(), Some(REQUIREMENT), self.strict)?;
                let values: Vec<Option<String>> = requirement.value("values")?;
                Ok(LabelSelectorRequirement {
                    key: requirement.value("key")?,
                    operator: requirement.value("operator")?,
                    values: values.into_iter().map(Option::unwrap_or_default).collect(),
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

struct ObjectVisitor<'de, 'f> {
    known: Option<&'static [&'static str]>,
    strict: bool,
    fields: &'f mut BTreeMap<String, FieldValues<'de>>,
}

impl<'de> Visitor<'de> for ObjectVisitor<'de, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let is_known = self.known.is_none_or(|known| known.contains(&&*key));
            let wrong = match (is_known, self.fields.contains_key(&key)) {
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
                self.fields.entry(key).or_default().push(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
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
