//! Validation of the children of a hook response: each by itself, and all against each other.
//!
//! A child that cannot be used is an error of its own, as if the API server had refused it. The
//! observed child that it names stays as it is: the hook desires it, though in a form that cannot be
//! written.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
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

use super::{
    ChildContext, DesiredChild, MAX_CHILD_BYTES,
    named_child::{MAX_TYPE_BYTES, NamedChild, shown},
};
use crate::{
    informer::{ObjectKey, StringMap},
    kind::{Scope, ServedType, TypeRef},
    meta::{
        json::{digest::JsonDigest, message::bounded, rewrite},
        parent::failures::Failures,
    },
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

/// Children of a response after their check.
#[derive(Debug, Default)]
pub(crate) struct CheckedChildren {
    /// Children that can be written.
    pub(crate) desired: Vec<DesiredChild>,
    /// Errors of the other children.
    pub(crate) unusable: Failures,
    /// Observed children that the other children name. They stay as they are.
    pub(crate) held: BTreeSet<(usize, ObjectKey)>,
    /// Message about the first child that the response has several times, with different content.
    pub(crate) repeated: Option<String>,
}

impl ChildContext<'_> {
    /// Checks the children of a response, one after the other; returns the usable ones.
    ///
    /// # Errors
    ///
    /// Names the first child that cannot be used, or that the response has several times.
    #[cfg(test)]
    pub(crate) fn check(&self, children: Vec<Bytes>) -> Result<Vec<DesiredChild>, String> {
        self.check_all(children, true).map(|checked| checked.desired)
    }

    /// Checks the children of a response, one after the other. Of a child that the response has
    /// several times, the last one counts.
    ///
    /// Children of an optional type that is not served are left out.
    ///
    /// # Errors
    ///
    /// Only with `strict`: names the first invalid field, as in `children[3].metadata.name`, or the
    /// first child that is repeated. Later children are not checked.
    pub(crate) fn check_all(
        &self,
        children: Vec<Bytes>,
        strict: bool,
    ) -> Result<CheckedChildren, String> {
        let list = self.ownership.list();
        let mut checked = CheckedChildren::default();
        let mut unusable = HashSet::default();
        // Last index of each unusable child that is fully named.
        let mut refused = HashMap::<(usize, ObjectKey), usize, RandomState>::default();
        // Indexes of the usable children in the response.
        let mut indexes = Vec::new();
        // Places among the usable children.
        let mut places = HashMap::<(usize, ObjectKey), usize, RandomState>::default();
        for (index, json) in children.into_iter().enumerate() {
            let child = match self.check_child(json.clone()) {
                Ok(Some(child)) => child,
                Ok(None) => continue,
                Err(FieldError { field, message }) => {
                    let named = NamedChild::of(&json);
                    let name = named.as_ref().map(NamedChild::in_brackets).unwrap_or_default();
                    let error = bounded(format!("{list}[{index}]{field}{name}: {message}"));
                    if strict {
                        return Err(error);
                    }
                    checked.unusable.push(error);
                    let named = named.unwrap_or_default();
                    if let Some(child) = self.identified(&json, &named) {
                        refused.insert(child, index);
                    }
                    unusable.insert(named.clone().without_namespace());
                    unusable.insert(named);
                    continue;
                }
            };
            let place = match places.entry((child.group, child.key.clone())) {
                Entry::Vacant(free) => {
                    free.insert(checked.desired.len());
                    checked.desired.push(child);
                    indexes.push(index);
                    continue;
                }
                Entry::Occupied(taken) => *taken.get(),
            };
            let kind = &self.groups[child.group].served.kind;
            if strict {
                let key = &child.key;
                let why = "several times in the response, which --strict refuses";
                return Err(format!("{list}[{index}]: {kind} {key} is {why}"));
            }
            let first = &mut checked.desired[place];
            if checked.repeated.is_none() && !is_same(&first.json, &child.json) {
                checked.repeated = Some(format!(
                    "{kind} {} is several times in the response, with different content; the last \
                     one counts",
                    child.key
                ));
            }
            *first = child;
            indexes[place] = index;
        }
        if !unusable.is_empty() {
            // The last of several counts, also one that cannot be used.
            let mut indexes = indexes.into_iter();
            checked.desired.retain(|child| {
                let (index, child) = (indexes.next(), (child.group, child.key.clone()));
                let is_superseded = refused.get(&child).copied() > index;
                if is_superseded {
                    places.remove(&child);
                }
                !is_superseded
            });
            let observed = self.observed.iter();
            let observed = observed.filter(|it| self.is_named(it.group, &it.key, &unusable));
            checked.held = observed.map(|child| (child.group, child.key.clone())).collect();
            checked.held.retain(|child| !places.contains_key(child));
        }
        Ok(checked)
    }

    /// Returns type and key of an unusable child, if it states them all. A namespaced parent gives a
    /// child its namespace.
    fn identified(&self, json: &[u8], named: &NamedChild) -> Option<(usize, ObjectKey)> {
        let (kind, api_version) = (named.kind.as_deref()?, NamedChild::api_version(json)?);
        let group = self.groups.iter().position(|group| {
            *group.served.kind == *kind && group.served.identity.api_version() == api_version
        })?;
        let namespace = match self.groups[group].served.identity.scope {
            Scope::Cluster => None,
            Scope::Namespaced => {
                let stated = named.namespace.as_deref().map(Into::into);
                Some(stated.or_else(|| self.parent.key.namespace.clone())?)
            }
        };
        let name = Some(&named.name).filter(|name| !name.is_empty())?;
        Some((group, ObjectKey { namespace, name: name.as_str().into() }))
    }

    /// Returns whether one of these names may be that of an observed child. A name, kind or namespace
    /// that a child of the response leaves open is any, and any namespace is that of a cluster-scoped
    /// child.
    fn is_named(&self, group: usize, key: &ObjectKey, names: &HashSet<NamedChild>) -> bool {
        let kind = Some(self.groups[group].served.kind.to_string());
        let namespace = Some(key.namespace.as_deref().unwrap_or_default().to_owned());
        for name in [&*key.name, ""] {
            for kind in [&kind, &None] {
                for namespace in [&namespace, &None] {
                    let (kind, namespace) = (kind.clone(), namespace.clone());
                    if names.contains(&NamedChild { name: name.to_owned(), kind, namespace }) {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn check_child(&self, json: Bytes) -> Result<Option<DesiredChild>, FieldError> {
        if json.first() != Some(&b'{') {
            let message = format!("must be an object, not {}; leave it out", word_of(&json));
            return Err(wrong("", message));
        }
        // A text that cannot be decoded is refused below.
        let long = rewrite::text(&json).ok().filter(|it| !rewrite::is_short(MAX_CHILD_BYTES, it));
        let bytes = long.and_then(|text| rewrite::size_beyond(MAX_CHILD_BYTES, text).ok()?);
        if let Some(bytes) = bytes {
            let message =
                format!("has {bytes} bytes; the API server accepts at most {MAX_CHILD_BYTES}");
            return Err(wrong("", message));
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
                    "{} of {} is not declared in {}; declare it, or leave the child out",
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
        let name = match &generate_name {
            Some(base) => {
                let name = generated(base);
                check_name(".metadata.generateName", &name)?;
                name
            }
            None => name_of(metadata)?,
        };
        let namespace = self.namespace(metadata, &self.groups[group].served)?;
        let key = ObjectKey { namespace, name: name.into() };
        check_owners(metadata)?;
        self.ownership.mark(metadata, &self.parent.uid);
        let labels: StringMap = texts(metadata, "labels")?.into_iter().collect();
        check_annotations(metadata)?;
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
                     namespace: use a cluster-scoped parent, or leave the child out",
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
                        format!(
                            "must be {own:?}, as the parent's, not {:?}; use a cluster-scoped parent \
                             for children elsewhere",
                            shown(&wanted)
                        ),
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
                            "{:?} is not watched: --namespace limits this process to {watched:?}",
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

/// Returns the name of a child.
fn name_of(metadata: &Map<String, Value>) -> Result<String, FieldError> {
    let name = text(metadata, "name", ".metadata")?;
    check_name(".metadata.name", name)?;
    Ok(name.to_owned())
}

fn check_name(field: &str, name: &str) -> Result<(), FieldError> {
    if is_name(name) {
        Ok(())
    } else {
        Err(wrong(field, format!("{:?} is not a valid object name", shown(name))))
    }
}

/// Returns whether two texts mean the same.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let of = |json| JsonDigest::of(json).ok();
    one == other || (of(one).is_some() && of(one) == of(other))
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

/// Checks the form of annotations. Null is an empty text, as for the API server.
fn check_annotations(metadata: &Map<String, Value>) -> Result<(), FieldError> {
    let annotations = metadata.get("annotations").and_then(Value::as_object);
    if annotations.is_some_and(|all| all.values().all(|it| it.is_string() || it.is_null())) {
        return Ok(());
    }
    texts(metadata, "annotations").map(|_| ())
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
                // As the API server stores it.
                Value::Null => Ok((key.as_str(), "")),
                // The key is left out: it is not a name, and may have any content.
                other
                @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                    Err(wrong(format!("has a value that is {}, not a string", word(other))))
                }
            })
            .collect(),
        Some(other) => Err(wrong(format!("must be an object, not {}", word(other)))),
    }
}
