//! Reads JSON as the real server does: what a type does not know is dropped and told, as is what
//! stands twice, and what is of another type than it has to be is an error.

use std::fmt::{self, Formatter};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::jiff::Timestamp;
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::fields::{Kind, Message};

/// The real server stops telling there.
const MOST_ODDITIES: usize = 100;

/// An object, and what was odd about it.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) object: Value,
    /// Fields that nobody knows, and were left out, and those that stand there twice; in their order.
    pub(super) oddities: Vec<String>,
    /// The first value that is of another type than it has to be.
    pub(super) wrong: Option<String>,
}

impl From<Value> for Body {
    fn from(object: Value) -> Self {
        Self { object, ..Self::default() }
    }
}

/// Reads what is in a body; of a type that is not known, everything.
pub(super) fn read(json: &[u8], message: Option<&'static Message>) -> serde_json::Result<Body> {
    let mut decoder = serde_json::Deserializer::from_slice(json);
    let mut found = Found::new(message, "");
    let object = found.walk(message, &mut decoder)?;
    decoder.end()?;
    Ok(found.body(object))
}

/// The same of a value, which stands at a path in its object.
pub(super) fn check(value: Value, message: &'static Message, path: &str) -> Body {
    let mut found = Found::new(Some(message), path);
    // Whoever reads a value meets no end of it.
    let object = found.walk(Some(message), value).unwrap_or_default();
    found.body(object)
}

struct Found {
    kind: &'static str,
    path: String,
    oddities: Vec<String>,
    wrong: Option<String>,
    /// Inside of what the real server reads in another way, which tells nothing.
    silent: bool,
}

impl Found {
    fn new(message: Option<&'static Message>, path: &str) -> Self {
        Self {
            kind: message.map(Message::kind).unwrap_or_default(),
            path: path.to_owned(),
            oddities: Vec::new(),
            wrong: None,
            silent: false,
        }
    }

    fn body(self, object: Value) -> Body {
        Body { object, oddities: self.oddities, wrong: self.wrong }
    }

    fn walk<'de, D: Deserializer<'de>>(
        &mut self,
        message: Option<&'static Message>,
        from: D,
    ) -> Result<Value, D::Error> {
        let holds = message.map_or(Holds::Anything, Holds::Fields);
        Walk { holds, found: self }.deserialize(from)
    }

    fn tell(&mut self, what: &str, name: &str) {
        if self.silent || self.oddities.len() >= MOST_ODDITIES {
            return;
        }
        let dot = if self.path.is_empty() { "" } else { "." };
        let told = format!("{what} field {:?}", format!("{}{dot}{name}", self.path));
        if !self.oddities.contains(&told) {
            self.oddities.push(told);
        }
    }

    fn blame(&mut self, what: &str, wanted: &str) {
        if self.wrong.is_none() {
            let Self { kind, path, .. } = self;
            let field = format!("{kind}.{path} of type {wanted}");
            self.wrong =
                Some(format!("json: cannot unmarshal {what} into Go struct field {field}"));
        }
    }

    /// Does something one step further down.
    fn within<T>(&mut self, step: &str, act: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if !(self.path.is_empty() || step.starts_with('[')) {
            self.path.push('.');
        }
        self.path.push_str(step);
        let result = act(self);
        self.path.truncate(length);
        result
    }
}

/// What may stand in a place.
#[derive(Clone, Copy)]
enum Holds {
    Anything,
    Fields(&'static Message),
    A(&'static Kind),
}

impl Holds {
    fn says(self) -> &'static str {
        match self {
            Self::Anything => "interface {}",
            Self::Fields(message) => message.kind(),
            Self::A(kind) => match kind {
                Kind::Text => "string",
                Kind::Bool => "bool",
                Kind::Integer => "int64",
                Kind::Double => "float64",
                Kind::Bytes => "[]uint8",
                Kind::Time | Kind::MicroTime => "time",
                Kind::Quantity => "quantity",
                Kind::IntOrString => "number or string",
                Kind::Raw => "interface {}",
                Kind::Message(_) | Kind::Loose(_) => "struct",
                Kind::List(_) => "list",
                Kind::Map(_) => "map",
            },
        }
    }

    /// What each item of a list may be, or each value of an object without fields of its own.
    fn inner(self, is_list: bool) -> Option<Self> {
        match self {
            Self::Anything => Some(self),
            Self::A(Kind::List(inner)) if is_list => Some(Self::A(inner)),
            Self::A(kind @ Kind::Loose(_)) if is_list => Some(Self::A(kind)),
            Self::A(Kind::Map(inner)) if !is_list => Some(Self::A(inner)),
            Self::Fields(_) | Self::A(_) => None,
        }
    }

    fn fields(self) -> Option<&'static Message> {
        match self {
            Self::Fields(message) => Some(message),
            Self::A(kind) => kind.message(),
            Self::Anything => None,
        }
    }

    fn is_free(self) -> bool {
        matches!(self, Self::Anything | Self::A(Kind::Raw | Kind::Loose(_)))
    }
}

struct Walk<'a> {
    holds: Holds,
    found: &'a mut Found,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.holds {
            // Kept as it is: nobody looks into it.
            Holds::A(Kind::Raw) => Value::deserialize(from),
            Holds::A(Kind::Loose(_)) => {
                let silent = std::mem::replace(&mut self.found.silent, true);
                let value = from.deserialize_any(Walk { holds: self.holds, found: self.found });
                self.found.silent = silent;
                value
            }
            Holds::Anything | Holds::Fields(_) | Holds::A(_) => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Value;

    fn expecting(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(self.holds.says())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        if !(self.holds.is_free() || matches!(self.holds, Holds::A(Kind::Bool))) {
            self.found.blame("bool", self.holds.says());
        }
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.number(value.into(), true)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.number(value.into(), i64::try_from(value).is_ok())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.number(value.into(), false)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        let fits = match self.holds {
            Holds::A(Kind::Bytes) => STANDARD.decode(value).is_ok(),
            Holds::A(Kind::Time | Kind::MicroTime) => value.parse::<Timestamp>().is_ok(),
            Holds::A(Kind::Text | Kind::Quantity | Kind::IntOrString) => true,
            Holds::Anything | Holds::Fields(_) | Holds::A(_) => self.holds.is_free(),
        };
        if !fits {
            self.found.blame("string", self.holds.says());
        }
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let Walk { holds, found } = self;
        let Some(holds) = holds.inner(true) else {
            found.blame("array", holds.says());
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut list = Vec::new();
        loop {
            let step = format!("[{}]", list.len());
            let item = found.within(&step, |found| items.next_element_seed(Walk { holds, found }));
            match item? {
                Some(item) => list.push(item),
                None => return Ok(list.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let Walk { holds, found } = self;
        let (message, inner) = (holds.fields(), holds.inner(false));
        let mut map = Map::new();
        if message.is_none() && inner.is_none() {
            found.blame("object", holds.says());
        }
        while let Some(name) = fields.next_key::<String>()? {
            let known = message.and_then(|it| it.named(&name)).map(|it| Holds::A(&it.kind));
            let Some(holds) = known.or(inner) else {
                if message.is_some() {
                    found.tell("unknown", &name);
                }
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            if map.contains_key(&name) {
                found.tell("duplicate", &name);
            }
            let value =
                found.within(&name, |found| fields.next_value_seed(Walk { holds, found }))?;
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

impl Walk<'_> {
    fn number<E>(self, value: Value, is_integer: bool) -> Result<Value, E> {
        let fits = match self.holds {
            Holds::A(Kind::Integer | Kind::IntOrString) => is_integer,
            Holds::A(Kind::Double | Kind::Quantity) => true,
            Holds::Anything | Holds::Fields(_) | Holds::A(_) => self.holds.is_free(),
        };
        if !fits {
            self.found.blame("number", self.holds.says());
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::fields::message, *};

    #[track_caller]
    fn check(kind: &str, body: &str, oddities: &[&str], wrong: Option<&str>) -> Value {
        let body = read(body.as_bytes(), Some(message(kind).unwrap())).unwrap();
        assert_eq!(body.oddities, oddities);
        assert_eq!(body.wrong.as_deref(), wrong);
        body.object
    }

    #[test]
    fn what_a_type_does_not_know_is_left_out_and_told_in_its_order() {
        let body = r#"{ "dta": {"a": "b"}, "kind": "ConfigMap", "Data": 1, "data": {"x": "y"},
            "metadata": { "name": "a", "nam": "b", "ownerReferences": [{ "uid": "1" }, { "u": 2 }] } }"#;
        let odd = [
            r#"unknown field "dta""#,
            r#"unknown field "Data""#,
            r#"unknown field "metadata.nam""#,
            r#"unknown field "metadata.ownerReferences[1].u""#,
        ];

        let object = check("ConfigMap", body, &odd, None);

        let references = json!([{ "uid": "1" }, {}]);
        let metadata = json!({ "name": "a", "ownerReferences": references });
        assert_eq!(
            object,
            json!({ "kind": "ConfigMap", "metadata": metadata, "data": { "x": "y" } })
        );
    }

    #[test]
    fn what_stands_twice_counts_as_it_stands_last_and_is_told_once() {
        let body = r#"{ "data": {"a": "1", "a": "2", "a": "3"}, "kind": "A", "kind": "B" }"#;
        let odd = [r#"duplicate field "data.a""#, r#"duplicate field "kind""#];

        let object = check("ConfigMap", body, &odd, None);
        let free = read(body.as_bytes(), None).unwrap();

        assert_eq!(object, json!({ "kind": "B", "data": { "a": "3" } }));
        assert_eq!((free.object, free.oddities), (object, odd.map(str::to_owned).to_vec()));
    }

    #[test]
    fn values_of_another_type_are_wrong_and_null_is_of_every_type() {
        let of_container = |inner: &str| {
            format!(
                r#"{{ "spec": {{ "template": {{ "spec": {{ "containers": [{inner}] }} }} }} }}"#
            )
        };
        let into = |place: &str| {
            format!(
                "json: cannot unmarshal {}",
                place.replacen(" in ", " into Go struct field Deployment.spec.", 1)
            )
        };
        for (container, wrong) in [
            (
                r#"{ "env": [{ "value": 8080 }] }"#,
                "number in template.spec.containers[0].env[0].value of type string",
            ),
            (r#"{ "tty": "yes" }"#, "string in template.spec.containers[0].tty of type bool"),
            (
                r#"{ "ports": [{ "containerPort": 1.5 }] }"#,
                "number in template.spec.containers[0].ports[0].containerPort of type int64",
            ),
            (
                r#"{ "command": "ls" }"#,
                "string in template.spec.containers[0].command of type list",
            ),
            (r#""nginx""#, "string in template.spec.containers[0] of type struct"),
        ] {
            check("apps.Deployment", &of_container(container), &[], Some(&into(wrong)));
        }
        let fine = r#"{ "env": null, "tty": null, "resources": { "limits": { "cpu": 1, "memory": "1Gi" } },
            "livenessProbe": { "httpGet": { "port": "http" } } }"#;
        check("apps.Deployment", &of_container(fine), &[], None);
        let secret = r#"{ "data": { "a": "not base64" } }"#;
        let wrong =
            "json: cannot unmarshal string into Go struct field Secret.data.a of type []uint8";
        check("Secret", secret, &[], Some(wrong));
        let lease = r#"{ "spec": { "renewTime": "yesterday" } }"#;
        let wrong =
            "json: cannot unmarshal string into Go struct field Lease.spec.renewTime of type time";
        check("coordination.Lease", lease, &[], Some(wrong));
        let listed = r#"{ "metadata": [1, { "a": 2 }], "data": { "a": { "b": 1 } } }"#;
        let wrong =
            "json: cannot unmarshal array into Go struct field ConfigMap.metadata of type struct";
        check("ConfigMap", listed, &[], Some(wrong));
    }

    #[test]
    fn schemas_are_looked_into_as_far_as_the_real_server_does() {
        let schema = r#"{ "type": "object", "typ": "object", "default": { "any": 1 }, "properties": {
            "a": { "item": {} }, "b": { "items": { "type": "string", "typo": 1 } },
            "c": { "additionalProperties": false, "items": [{ "type": "string" }] } } }"#;
        let odd = [r#"unknown field "typ""#, r#"unknown field "properties.a.item""#];

        let object = check("apiextensions.JSONSchemaProps", schema, &odd, None);

        assert_eq!(object["properties"]["b"], json!({ "items": { "type": "string" } }));
        assert_eq!(object["properties"]["c"]["additionalProperties"], false);
        assert_eq!(object["default"], json!({ "any": 1 }));
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for broken in ["", "{", "{}{", r#"{"a" 1}"#, "[1,]"] {
            assert!(read(broken.as_bytes(), message("ConfigMap")).is_err(), "{broken}");
        }
    }
}
