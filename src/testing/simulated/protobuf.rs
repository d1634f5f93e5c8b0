//! Reads what Go's typed clients send, kubectl's `create` commands among them: objects in protobuf.
//!
//! The tables of [`fields`](super::fields) say what stands where. What they do not name is refused:
//! dropped, it would be an object that the client did not mean.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    fields::{self, Field, Kind, Message, Shown},
    refusal::Refusal,
};

pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every such body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Nothing that a client means is deeper; a CRD's schema is, but none of those is sent so.
const MAX_DEPTH: usize = 32;
/// How many values one body may hold: more than fit into what a real server takes, but for those
/// that are made to be many.
const MAX_VALUES: usize = 200_000;

/// The object in a body.
pub(super) fn read(body: &[u8]) -> Result<Value, Refusal> {
    let envelope = body.strip_prefix(MAGIC).ok_or(Broken("it does not begin as one"))?;
    let (mut about, mut raw, mut encoding) = (&b""[..], &b""[..], &b""[..]);
    for part in Parts(envelope) {
        match part? {
            (1, Wire::Bytes(bytes)) => about = bytes,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(bytes)) => encoding = bytes,
            // What format it was in before.
            _ => {}
        }
    }
    if !encoding.is_empty() {
        return Err(Refusal::not_simulated("a body in protobuf that is encoded once more"));
    }
    let (mut api_version, mut kind) = ("", "");
    for part in Parts(about) {
        match part? {
            (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
            (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
            _ => {}
        }
    }
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let message = match kind {
        // Of every group.
        "DeleteOptions" => fields::message("meta.DeleteOptions"),
        kind => fields::message_of(group, kind),
    };
    let Some(message) = message else {
        let what = format!("a body in protobuf of {kind:?} in version {api_version:?} (send JSON)");
        return Err(Refusal::not_simulated(what));
    };
    let mut object = Reader { values: 0 }.message(raw, message, 0)?;
    for (name, value) in [("apiVersion", api_version), ("kind", kind)] {
        object.insert(name.to_owned(), value.into());
    }
    Ok(Value::Object(object))
}

/// What is wrong with the bytes.
#[derive(Debug)]
struct Broken(&'static str);

impl From<Broken> for Refusal {
    fn from(Broken(why): Broken) -> Self {
        Self::bad_request(format!("the body is no object in protobuf: {why}"))
    }
}

/// A value as it stands in the bytes.
#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32,
}

/// The fields of a message, in their order, by number.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = Result<(u32, Wire<'a>), Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = self.part();
        if part.is_err() {
            self.0 = &[];
        }
        Some(part)
    }
}

impl<'a> Parts<'a> {
    fn part(&mut self) -> Result<(u32, Wire<'a>), Broken> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number != 0);
        let number = number.ok_or(Broken("a field has a number that none can have"))?;
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.take(8)?.try_into().map_err(|_| Broken("it ends early"))?),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            _ => return Err(Broken("a field is of a form that Kubernetes does not use")),
        };
        Ok((number, wire))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Broken("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first().ok_or(Broken("it ends early"))?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Broken("a number has no end"))
    }
}

/// Counts what it reads.
struct Reader {
    values: usize,
}

impl Reader {
    fn message(
        &mut self,
        bytes: &[u8],
        message: &'static Message,
        depth: usize,
    ) -> Result<Map<String, Value>, Refusal> {
        self.count(depth)?;
        let mut object = Map::new();
        for part in Parts(bytes) {
            let (number, wire) = part?;
            let Some(field) = message.numbered(number) else {
                let what = format!(
                    "the field {number} of {} in protobuf (kubectl create -f, and whatever else \
                     sends JSON, is understood)",
                    message.name
                );
                return Err(Refusal::not_simulated(what));
            };
            self.field(field, wire, &mut object, depth + 1)?;
        }
        for field in &message.fields {
            let missing = field.shown == Shown::Always && !object.contains_key(field.name);
            if missing && let Some(empty) = self.empty(&field.kind, depth + 1)? {
                object.insert(field.name.to_owned(), empty);
            }
        }
        Ok(object)
    }

    fn count(&mut self, depth: usize) -> Result<(), Broken> {
        self.values += 1;
        match (self.values > MAX_VALUES, depth > MAX_DEPTH) {
            (true, _) => Err(Broken("it holds too many values")),
            (_, true) => Err(Broken("it is too deep")),
            (false, false) => Ok(()),
        }
    }

    fn field(
        &mut self,
        field: &'static Field,
        wire: Wire<'_>,
        object: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), Refusal> {
        let name = field.name.to_owned();
        match (&field.kind, wire) {
            // Numbers may stand one by one, or together.
            (Kind::List(inner), Wire::Bytes(bytes)) if **inner == Kind::Integer => {
                let mut numbers = Parts(bytes);
                while !numbers.0.is_empty() {
                    self.count(depth)?;
                    let number = signed(numbers.varint()?);
                    items(object, name.clone()).push(number.into());
                }
            }
            (Kind::List(inner), wire) => {
                let item = self.value(inner, wire, depth)?;
                items(object, name).push(item);
            }
            (Kind::Map(inner), Wire::Bytes(bytes)) => {
                let (mut key, mut value) = ("", None);
                for part in Parts(bytes) {
                    match part? {
                        (1, Wire::Bytes(bytes)) => key = text(bytes)?,
                        (2, wire) => value = Some(self.value(inner, wire, depth)?),
                        _ => return Err(Broken("an entry of a map has more than two parts").into()),
                    }
                }
                let value = match value {
                    Some(value) => value,
                    None => self.empty(inner, depth)?.unwrap_or_default(),
                };
                let map = object.entry(name).or_insert_with(|| json!({}));
                super::object::fields(map).insert(key.to_owned(), value);
            }
            (kind, wire) => {
                let value = self.value(kind, wire, depth)?;
                if name.is_empty() {
                    // Its fields stand among ours.
                    object.extend(value.as_object().cloned().unwrap_or_default());
                } else if field.shown == Shown::IfNotEmpty && is_empty(&value) {
                    object.remove(&name);
                } else {
                    object.insert(name, value);
                }
            }
        }
        Ok(())
    }

    fn value(
        &mut self,
        kind: &'static Kind,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<Value, Refusal> {
        self.count(depth)?;
        Ok(match (kind, wire) {
            (Kind::Text, Wire::Bytes(bytes)) => text(bytes)?.into(),
            (Kind::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
            (Kind::Bool, Wire::Varint(number)) => (number != 0).into(),
            (Kind::Integer, Wire::Varint(number)) => signed(number).into(),
            (Kind::Double, Wire::Fixed64(bytes)) => f64::from_le_bytes(bytes).into(),
            (Kind::Time, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
            (Kind::MicroTime, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
            (Kind::Quantity, Wire::Bytes(bytes)) => text(only(bytes)?)?.into(),
            (Kind::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
            (Kind::Raw, Wire::Bytes(bytes)) => match only(bytes)? {
                b"" => Value::Null,
                json => serde_json::from_slice(json)
                    .map_err(|_| Broken("what is JSON inside of it is none"))?,
            },
            (Kind::Message(name), Wire::Bytes(bytes)) => {
                let message = fields::message(name).ok_or(Broken("no such message"))?;
                self.message(bytes, message, depth)?.into()
            }
            (Kind::Loose(_), _) => {
                return Err(Refusal::not_simulated("a schema in protobuf (send JSON)"));
            }
            (
                Kind::Text
                | Kind::Bytes
                | Kind::Bool
                | Kind::Integer
                | Kind::Double
                | Kind::Time
                | Kind::MicroTime
                | Kind::Quantity
                | Kind::IntOrString
                | Kind::Raw
                | Kind::Message(_)
                | Kind::List(_)
                | Kind::Map(_),
                _,
            ) => return Err(Broken("a field is of another form than it has to be").into()),
        })
    }

    /// What is shown of a field that was not given.
    fn empty(&mut self, kind: &'static Kind, depth: usize) -> Result<Option<Value>, Refusal> {
        self.count(depth)?;
        Ok(match kind {
            Kind::Text | Kind::Bytes => Some("".into()),
            Kind::Quantity => Some("0".into()),
            Kind::Bool => Some(false.into()),
            Kind::Integer | Kind::IntOrString => Some(0.into()),
            Kind::Double => Some(0.0.into()),
            Kind::Message(_) => Some(self.value(kind, Wire::Bytes(b""), depth)?),
            Kind::Time
            | Kind::MicroTime
            | Kind::Raw
            | Kind::List(_)
            | Kind::Map(_)
            | Kind::Loose(_) => None,
        })
    }
}

fn items(object: &mut Map<String, Value>, name: String) -> &mut Vec<Value> {
    let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
    list.as_array_mut().expect("a field of a list holds nothing but a list")
}

fn text(bytes: &[u8]) -> Result<&str, Broken> {
    str::from_utf8(bytes).map_err(|_| Broken("a text is not in UTF-8"))
}

/// How protobuf writes numbers that may be negative.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The bytes of a message that holds nothing else.
fn only(bytes: &[u8]) -> Result<&[u8], Broken> {
    let mut held = &b""[..];
    for part in Parts(bytes) {
        match part? {
            (1, Wire::Bytes(bytes)) => held = bytes,
            _ => return Err(Broken("a message of one field has another one")),
        }
    }
    Ok(held)
}

fn time(bytes: &[u8], form: &str) -> Result<Value, Broken> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for part in Parts(bytes) {
        match part? {
            (1, Wire::Varint(number)) => seconds = signed(number),
            (2, Wire::Varint(number)) => nanos = signed(number),
            _ => return Err(Broken("a time has more than two parts")),
        }
    }
    let nanos = i32::try_from(nanos).map_err(|_| Broken("a time is none"))?;
    let time = Timestamp::new(seconds, nanos).map_err(|_| Broken("a time is none"))?;
    Ok(time.strftime(form).to_string().into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Broken> {
    let (mut is_text, mut number, mut words) = (false, 0, "");
    for part in Parts(bytes) {
        match part? {
            (1, Wire::Varint(kind)) => is_text = kind != 0,
            (2, Wire::Varint(value)) => number = signed(value),
            (3, Wire::Bytes(bytes)) => words = text(bytes)?,
            _ => return Err(Broken("a number or text has more than three parts")),
        }
    }
    Ok(if is_text { words.into() } else { number.into() })
}

#[cfg(test)]
mod tests;
