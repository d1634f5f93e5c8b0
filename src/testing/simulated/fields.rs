//! What built-in types are made of: their fields, by number as in protobuf and by name as in JSON.

use std::{collections::BTreeMap, sync::LazyLock};

/// The fields that a message may have.
#[derive(Debug)]
pub(super) struct Message {
    /// As in the table: with a prefix outside of the core group.
    pub(super) name: &'static str,
    pub(super) fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    /// Zero for what protobuf has not.
    pub(super) number: u32,
    /// Empty for a message whose fields stand among those of the one that it is in.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) shown: Shown,
}

/// When a field that came in protobuf is shown in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    IfNotEmpty,
    IfGiven,
    Always,
}

/// What a field holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Integer,
    Double,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// Whatever JSON is there.
    Raw,
    Message(&'static str),
    List(Box<Kind>),
    Map(Box<Kind>),
    /// A message, a list of them, or a scalar in its place.
    Loose(&'static str),
}

static TABLE: LazyLock<BTreeMap<&'static str, Message>> = LazyLock::new(|| {
    let mut table = BTreeMap::new();
    let mut name = "";
    for line in include_str!("fields.txt").lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with(' ') {
            name = line;
            table.insert(name, Message { name, fields: Vec::new() });
        } else if let Some(message) = table.get_mut(name) {
            message.fields.extend(line.split_whitespace().map(field));
        }
    }
    table
});

fn field(text: &'static str) -> Field {
    let parts = text.split_once('=').and_then(|(number, rest)| {
        let (name, kind) = rest.split_once(':')?;
        Some((number.parse().ok()?, name, kind))
    });
    let (number, name, kind) = parts.expect("the table is part of the program, and tested");
    let (kind, shown) = match (kind.strip_suffix('!'), kind.strip_suffix('?')) {
        (Some(kind), _) => (kind, Shown::Always),
        (_, Some(kind)) => (kind, Shown::IfGiven),
        (None, None) => (kind, Shown::IfNotEmpty),
    };
    Field { number, name, kind: kind_of(kind), shown }
}

fn kind_of(text: &'static str) -> Kind {
    if let Some(inner) = text.strip_prefix("[]") {
        return Kind::List(Box::new(kind_of(inner)));
    }
    if let Some(inner) = text.strip_prefix("{}") {
        return Kind::Map(Box::new(kind_of(inner)));
    }
    if let Some(name) = text.strip_prefix('~') {
        return Kind::Loose(name);
    }
    match text {
        "string" => Kind::Text,
        "bool" => Kind::Bool,
        "int" => Kind::Integer,
        "double" => Kind::Double,
        "bytes" => Kind::Bytes,
        "time" => Kind::Time,
        "microtime" => Kind::MicroTime,
        "quantity" => Kind::Quantity,
        "intstr" => Kind::IntOrString,
        "raw" => Kind::Raw,
        name => Kind::Message(name),
    }
}

/// A message by its name in the table.
pub(super) fn message(name: &str) -> Option<&'static Message> {
    TABLE.get(name)
}

/// The message of a type.
pub(super) fn message_of(group: &str, kind: &str) -> Option<&'static Message> {
    match group.split('.').next().unwrap_or_default() {
        "" => message(kind),
        group => message(&format!("{group}.{kind}")),
    }
}

impl Message {
    /// The field of a name, also of those messages whose fields stand among the others.
    pub(super) fn named(&self, name: &str) -> Option<&'static Field>
    where
        Self: 'static,
    {
        let this = message(self.name)?;
        let own = this.fields.iter().find(|field| field.name == name && !name.is_empty());
        own.or_else(|| {
            let mut inner = this.fields.iter().filter(|field| field.name.is_empty());
            inner.find_map(|field| field.kind.message()?.named(name))
        })
    }

    pub(super) fn numbered(&self, number: u32) -> Option<&Field> {
        self.fields.iter().find(|field| field.number == number && number != 0)
    }

    /// The name without the prefix.
    pub(super) fn kind(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

impl Kind {
    pub(super) fn message(&self) -> Option<&'static Message> {
        match self {
            Self::Message(name) | Self::Loose(name) => message(name),
            Self::Text
            | Self::Bool
            | Self::Integer
            | Self::Double
            | Self::Bytes
            | Self::Time
            | Self::MicroTime
            | Self::Quantity
            | Self::IntOrString
            | Self::Raw
            | Self::List(_)
            | Self::Map(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::resource::{self, Resource},
        *,
    };

    fn innermost(kind: &Kind) -> &Kind {
        if let Kind::List(inner) | Kind::Map(inner) = kind { innermost(inner) } else { kind }
    }

    #[test]
    fn every_built_in_type_and_all_that_it_is_made_of_is_in_the_table() {
        let is_kept = |it: &&Arc<Resource>| it.group != resource::REVIEWS;
        for resource in resource::built_in().iter().filter(is_kept) {
            assert!(message_of(&resource.group, &resource.kind).is_some(), "{}", resource.kind);
        }
        for message in TABLE.values() {
            let mut numbers = Vec::new();
            for field in &message.fields {
                let about = format!("{}.{}", message.name, field.name);
                let is_type = matches!(field.name, "kind" | "apiVersion");
                assert!(field.number != 0 || is_type, "{about}");
                if let Kind::Message(name) | Kind::Loose(name) = innermost(&field.kind) {
                    assert!(super::message(name).is_some(), "{about}: {name}");
                }
                numbers.push(field.number);
            }
            numbers.retain(|number| *number != 0);
            let count = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), count, "{} names a number twice", message.name);
        }
    }

    #[test]
    fn a_field_of_a_message_inside_is_found_where_json_shows_it() {
        let volume = message("Volume").unwrap();

        assert_eq!(volume.named("hostPath").unwrap().kind, Kind::Message("HostPathVolumeSource"));
        assert_eq!(volume.named("name").unwrap().kind, Kind::Text);
        assert!(volume.named("").is_none());
        assert!(volume.named("Name").is_none(), "names are what they are, letter by letter");
        assert_eq!(volume.numbered(2).unwrap().name, "");
        assert!(message("ConfigMap").unwrap().numbered(0).is_none());
    }
}
