//! Validation of the children of a hook response: each by itself, and all against each other.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use foldhash::quality::RandomState;
use serde::{
    Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{ChildContext, DesiredChild};
use crate::{
    informer::{ObjectKey, StringMap},
    kind::{Scope, ServedType, TypeRef},
    meta::{protocol::bounded, rewrite},
    redaction,
};

/// Longest metadata of a child, in bytes: twice what the API server accepts as annotations.
const MAX_METADATA_BYTES: usize = 512 * 1024;
/// Longest beginning of a generated name, in characters, as the API server cuts it: a name of 63
/// characters is also a label value.
const MAX_GENERATED_BASE: usize = 58;
/// Number of random characters of a generated name.
const RANDOM_CHARACTERS: usize = 5;
/// Random characters of a generated name, those of the API server: they form no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest `apiVersion` or `kind`, in bytes: no name of a group or kind is longer.
const MAX_TYPE_BYTES: usize = 1024;

impl ChildContext<'_> {
    /// Checks the children of a response, one after the other.
    ///
    /// Children of an optional type that is not served are left out.
    ///
    /// # Errors
    ///
    /// Names the first invalid field, as in `children[3].metadata.name`; later children are not
    /// checked.
    #[cfg(test)]
    pub(crate) fn check(&self, children: Vec<Bytes>) -> Result<Vec<DesiredChild>, String> {
        self.check_all(children, false)
    }

    /// Checks like `check`; if repeats are allowed, the last one counts.
    pub(crate) fn check_all(
        &self,
        children: Vec<Bytes>,
        is_repeatable: bool,
    ) -> Result<Vec<DesiredChild>, String> {
        let list = self.ownership.list();
        // Index of the first one in the response, and place among the checked ones.
        let mut first = HashMap::<(usize, ObjectKey), (usize, usize), RandomState>::default();
        let mut desired = Vec::with_capacity(children.len());
        for (index, child) in children.into_iter().enumerate() {
            let checked = self
                .check_child(child)
                .map_err(|FieldError { field, message }| {
                    format!("{list}[{index}]{field}: {message}")
                })
                .map_err(bounded);
            let Some(child) = checked? else { continue };
            match first.entry((child.group, child.key.clone())) {
                Entry::Vacant(free) => {
                    free.insert((index, desired.len()));
                    desired.push(child);
                }
                Entry::Occupied(taken) if is_repeatable => desired[taken.get().1] = child,
                Entry::Occupied(taken) => {
                    return Err(format!(
                        "{list}[{index}]: {} {} is listed twice, first as {list}[{}]",
                        self.groups[child.group].served.kind,
                        child.key,
                        taken.get().0
                    ));
                }
            }
        }
        Ok(desired)
    }

    fn check_child(&self, json: Bytes) -> Result<Option<DesiredChild>, FieldError> {
        if json.first() != Some(&b'{') {
            return Err(wrong("", format!("must be an object, not {}", word_of(&json))));
        }
        let head = head(&json).map_err(|error| wrong("", redaction::decoding(error)));
        let mut object = head?;
        let api_version = text(&object, "apiVersion", "")?.to_owned();
        let kind = text(&object, "kind", "")?.to_owned();
        let group = self.groups.iter().position(|group| {
            *group.served.kind == *kind && group.served.identity.api_version() == api_version
        });
        let Some(group) = group else {
            let missing = self.missing.iter().find(|it| same_api_version(it, &api_version));
            if let Some(missing) = missing {
                // Named as it is declared, since the hook chooses the kind.
                tracing::debug!(%missing, "child of a type that is not served");
                return Ok(None);
            }
            return Err(wrong(
                "",
                format!(
                    "{} of {} is not declared in {}",
                    shown(&kind),
                    shown(&api_version),
                    self.ownership.declared()
                ),
            ));
        };
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err(wrong(".metadata", "must be an object"));
        };
        let generate_name = generate_name(metadata);
        let (field, name) = match &generate_name {
            Some(base) => (".metadata.generateName", generated(base)),
            None => (".metadata.name", text(metadata, "name", ".metadata")?.to_owned()),
        };
        if !is_name(&name) {
            let message = format!("{:?} is not a valid object name", shown(&name));
            return Err(wrong(field, message));
        }
        let namespace = self.namespace(metadata, &self.groups[group].served)?;
        let key = ObjectKey { namespace, name: name.into() };
        check_owners(metadata)?;
        self.ownership.mark(metadata, &self.parent.uid);
        let labels: StringMap = texts(metadata, "labels")?.into_iter().collect();
        texts(metadata, "annotations")?;
        let unclaimed = |message| wrong(".metadata.labels", message);
        self.ownership.check_labels(&labels).map_err(unclaimed)?;
        Ok(Some(DesiredChild { group, key, generate_name, json }))
    }

    /// Returns the namespace of the child.
    fn namespace(
        &self,
        metadata: &Map<String, Value>,
        served: &ServedType,
    ) -> Result<Option<Arc<str>>, FieldError> {
        const FIELD: &str = ".metadata.namespace";
        let wanted = match metadata.get("namespace") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => {
                return Err(wrong(FIELD, format!("must be a string, not {}", word(other))));
            }
        };
        match (served.identity.scope, &self.parent.key.namespace, wanted) {
            (Scope::Cluster, Some(_), _) => Err(wrong(
                "",
                format!(
                    "{} is cluster-scoped; a namespaced parent has children only in its own \
                     namespace",
                    served.kind
                ),
            )),
            (Scope::Cluster, None, Some(_)) => {
                Err(wrong(FIELD, format!("must be empty: {} is cluster-scoped", served.kind)))
            }
            (Scope::Cluster, None, None) => Ok(None),
            (Scope::Namespaced, Some(own), wanted) => {
                if let Some(wanted) = wanted.filter(|wanted| **wanted != **own) {
                    return Err(wrong(
                        FIELD,
                        format!("must be {own:?}, as the parent's, not {:?}", shown(&wanted)),
                    ));
                }
                Ok(Some(own.clone()))
            }
            (Scope::Namespaced, None, None) => {
                Err(wrong(FIELD, "is required: the parent is cluster-scoped"))
            }
            (Scope::Namespaced, None, Some(wanted)) => {
                if let Some(watched) = self.restricted.filter(|watched| wanted != *watched) {
                    return Err(wrong(
                        FIELD,
                        format!(
                            "{:?} is not watched: this process is limited to {watched:?}",
                            shown(&wanted)
                        ),
                    ));
                }
                let valid = wanted.len() <= 63
                    && wanted.bytes().all(|byte| {
                        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
                    });
                if valid {
                    Ok(Some(wanted.into()))
                } else {
                    Err(wrong(FIELD, "is not a valid namespace name"))
                }
            }
        }
    }
}

/// Checks the form of the owners that a hook adds to the parent.
fn check_owners(metadata: &Map<String, Value>) -> Result<(), FieldError> {
    const FIELD: &str = ".metadata.ownerReferences";
    match metadata.get("ownerReferences") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(owners)) => match owners.iter().position(|owner| !owner.is_object()) {
            None => Ok(()),
            Some(index) => {
                let message = format!("must be an object, not {}", word(&owners[index]));
                Err(wrong(&format!("{FIELD}[{index}]"), message))
            }
        },
        Some(other) => Err(wrong(FIELD, format!("must be a list, not {}", word(other)))),
    }
}

fn same_api_version(type_ref: &TypeRef, api_version: &str) -> bool {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    type_ref.group == group && type_ref.version.as_deref().is_none_or(|wanted| wanted == version)
}

/// Returns the beginning of the name of a child that has none.
fn generate_name(metadata: &Map<String, Value>) -> Option<Arc<str>> {
    let text = |field| metadata.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_unnamed = matches!(metadata.get("name"), None | Some(Value::Null | Value::String(_)));
    let is_unnamed = is_unnamed && text("name").is_none();
    text("generateName").filter(|_| is_unnamed).map(Arc::from)
}

/// Returns a new name with this beginning. The API server would generate it too, but a create whose
/// response is lost can be read by its name, so that it is not repeated.
fn generated(base: &str) -> String {
    let base = base.chars().take(MAX_GENERATED_BASE);
    let random = || char::from(ALPHABET[fastrand::usize(..ALPHABET.len())]);
    base.chain(std::iter::repeat_with(random).take(RANDOM_CHARACTERS)).collect()
}

/// Returns whether this is a name that the API server accepts in a path. Names that would change a
/// URL are refused too.
fn is_name(name: &str) -> bool {
    name.len() <= 253
        && !matches!(name, "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%?#\\".contains(&byte))
}

/// Reads the fields that identify a child, and checks that the others can be decoded.
fn head(json: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    let mut decoder = serde_json::Deserializer::from_str(rewrite::text(json)?);
    let head = decoder.deserialize_map(ChildHead { is_short: json.len() <= MAX_METADATA_BYTES })?;
    decoder.end().map(|()| head)
}

struct ChildHead {
    /// True if the metadata cannot be too long, so that they are read at once.
    is_short: bool,
}

impl<'de> Visitor<'de> for ChildHead {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut head = Map::new();
        while let Some(field) = map.next_key::<String>()? {
            let most = match field.as_str() {
                "metadata" if self.is_short => {
                    head.insert(field, map.next_value()?);
                    continue;
                }
                "metadata" => MAX_METADATA_BYTES,
                "apiVersion" | "kind" => MAX_TYPE_BYTES,
                _ => {
                    map.next_value_seed(rewrite::Checked)?;
                    continue;
                }
            };
            let part = map.next_value::<&RawValue>()?.get();
            if part.len() > most {
                return Err(A::Error::custom(format!(
                    "{field} has {} bytes; the limit is {most}",
                    part.len()
                )));
            }
            // As deep as within the child, to which a limit applies.
            let value = match part.starts_with('"') {
                true => serde_json::from_str(part),
                false => serde_json::from_str::<(Value,)>(&format!("[{part}]")).map(|it| it.0),
            };
            head.insert(field, value.map_err(A::Error::custom)?);
        }
        Ok(head)
    }
}

struct FieldError {
    field: String,
    message: String,
}

fn wrong(field: &str, message: impl Into<String>) -> FieldError {
    FieldError { field: field.to_owned(), message: message.into() }
}

/// Returns the beginning of a name, which may have any length and content.
fn shown(name: &str) -> String {
    redaction::printable(name).chars().take(64).collect()
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Like [`word`], for JSON text that is not an object.
fn word_of(json: &[u8]) -> &'static str {
    match json.first() {
        Some(b'n') | None => "null",
        Some(b't' | b'f') => "a boolean",
        Some(b'"') => "a string",
        Some(b'[') => "a list",
        Some(_) => "a number",
    }
}

fn text<'a>(
    object: &'a Map<String, Value>,
    field: &str,
    path: &str,
) -> Result<&'a str, FieldError> {
    let message = match object.get(field) {
        Some(Value::String(text)) if !text.is_empty() => return Ok(text),
        None | Some(Value::Null | Value::String(_)) => "is required".to_owned(),
        Some(other) => format!("must be a string, not {}", word(other)),
    };
    Err(wrong(&format!("{path}.{field}"), message))
}

fn texts<'a>(
    metadata: &'a Map<String, Value>,
    field: &str,
) -> Result<Vec<(&'a str, &'a str)>, FieldError> {
    let wrong = |message| wrong(&format!(".metadata.{field}"), message);
    match metadata.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(entries)) => entries
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) => Ok((key.as_str(), text.as_str())),
                // The key is left out: it is not a name, and may have any content.
                other @ (Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_)) => {
                    Err(wrong(format!("has a value that is {}, not a string", word(other))))
                }
            })
            .collect(),
        Some(other) => Err(wrong(format!("must be an object, not {}", word(other)))),
    }
}
