//! Name of a child that cannot be used, read from its text.

use std::{borrow::Cow, fmt};

use serde::{
    Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{meta::json::rewrite, redaction};

/// Longest `apiVersion` or `kind`, in bytes: no name of a group or kind is longer.
pub(super) const MAX_TYPE_BYTES: usize = 1024;

/// Returns the beginning of a name, which may have any length and content.
pub(super) fn shown(name: &str) -> String {
    redaction::printable(name).chars().take(64).collect()
}

/// Type and name that a child states which cannot be used. Fields that it does not state, or in
/// another form than a text, are open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NamedChild {
    /// Name; empty if it is open.
    pub(super) name: String,
    /// Kind.
    pub(super) kind: Option<String>,
    /// Namespace; empty for a cluster-scoped child.
    pub(super) namespace: Option<String>,
}

impl NamedChild {
    /// Returns the name as that of a cluster-scoped child.
    pub(super) fn without_namespace(self) -> Self {
        Self { namespace: Some(String::new()), ..self }
    }

    /// Reads the text of a child, of which other parts may be too deep or too long to be decoded.
    /// `None` if the text is no object.
    pub(super) fn of(json: &[u8]) -> Option<Self> {
        let [kind, metadata] = fields(rewrite::text(json).ok()?, ["kind", "metadata"])?;
        let metadata = metadata.and_then(|it| fields(it.get(), ["namespace", "name"]));
        let [namespace, name] = metadata.unwrap_or_default();
        let text = |raw: Option<&RawValue>| {
            let raw = raw.filter(|raw| raw.get().len() <= MAX_TYPE_BYTES)?;
            serde_json::from_str::<String>(raw.get()).ok().filter(|text| !text.is_empty())
        };
        let name = text(name).unwrap_or_default();
        Some(Self { name, kind: text(kind), namespace: text(namespace) })
    }

    /// Reads the apiVersion from the text of a child.
    pub(super) fn api_version(json: &[u8]) -> Option<String> {
        let [api_version, _] = fields(rewrite::text(json).ok()?, ["apiVersion", "kind"])?;
        let raw = api_version.filter(|raw| raw.get().len() <= MAX_TYPE_BYTES)?;
        serde_json::from_str(raw.get()).ok()
    }

    /// Returns kind and name for a message; empty if both are open.
    pub(super) fn in_brackets(&self) -> String {
        let kind = self.kind.as_deref().map(shown);
        let name = Some(shown(&self.name)).filter(|name| !name.is_empty());
        let words: Vec<_> = kind.into_iter().chain(name).collect();
        if words.is_empty() { String::new() } else { format!(" ({})", words.join(" ")) }
    }
}

/// Returns these fields of an object, not decoded; of a repeated one the last. `None` if the text is
/// no object.
fn fields<'de>(text: &'de str, names: [&'static str; 2]) -> Option<[Option<&'de RawValue>; 2]> {
    let mut decoder = serde_json::Deserializer::from_str(text);
    decoder.deserialize_map(TwoFields(names)).ok()
}

struct TwoFields([&'static str; 2]);

impl<'de> Visitor<'de> for TwoFields {
    type Value = [Option<&'de RawValue>; 2];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; 2];
        while let Some(field) = map.next_key::<Cow<'de, str>>()? {
            match self.0.iter().position(|name| *name == field) {
                Some(at) => found[at] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}
