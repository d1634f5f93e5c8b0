//! JSON decoder that reports duplicate fields, as the API server's decoder does.

use std::fmt::{self, Formatter};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Number of findings that are reported for one body, as on the real server.
const MAX_FINDINGS: usize = 100;

/// Decoded object with the duplicate fields of its text.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) object: Value,
    /// Duplicate fields in document order; the last value counts.
    pub(super) duplicates: Vec<String>,
}

impl From<Value> for Body {
    fn from(object: Value) -> Self {
        Self { object, ..Self::default() }
    }
}

/// Decodes a body.
pub(super) fn read(json: &[u8]) -> serde_json::Result<Body> {
    let mut decoder = serde_json::Deserializer::from_slice(json);
    let (mut path, mut duplicates) = (String::new(), Vec::new());
    let walk = Walk { path: &mut path, duplicates: &mut duplicates };
    let object = walk.deserialize(&mut decoder)?;
    decoder.end()?;
    Ok(Body { object, duplicates })
}

struct Walk<'a> {
    /// Path of the value that is read.
    path: &'a mut String,
    duplicates: &'a mut Vec<String>,
}

impl Walk<'_> {
    /// Runs `read` on the value at `step` below this one.
    fn within<T>(&mut self, step: &str, read: impl FnOnce(Walk<'_>) -> T) -> T {
        let length = self.path.len();
        if !(self.path.is_empty() || step.starts_with('[')) {
            self.path.push('.');
        }
        self.path.push_str(step);
        let result = read(Walk { path: self.path, duplicates: self.duplicates });
        self.path.truncate(length);
        result
    }

    fn report_duplicate(&mut self) {
        let finding = format!("duplicate field {:?}", self.path);
        if self.duplicates.len() < MAX_FINDINGS && !self.duplicates.contains(&finding) {
            self.duplicates.push(finding);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Value;

    fn expecting(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let step = format!("[{}]", list.len());
            match self.within(&step, |item| items.next_element_seed(item))? {
                Some(item) => list.push(item),
                None => return Ok(list.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let known = map.contains_key(&name);
            let value = self.within(&name, |mut field| {
                if known {
                    field.report_duplicate();
                }
                fields.next_value_seed(field)
            })?;
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_duplicate_fields_counts_and_each_is_reported_once() {
        let body = r#"{ "data": {"a": "1", "a": "2", "a": "3"}, "kind": "A", "kind": "B",
            "list": [{}, { "x": 1, "x": 2 }] }"#;

        let Body { object, duplicates } = read(body.as_bytes()).unwrap();

        let expected = json!({ "kind": "B", "data": { "a": "3" }, "list": [{}, { "x": 2 }] });
        assert_eq!(object, expected);
        let fields = ["data.a", "kind", "list[1].x"].map(|it| format!("duplicate field {it:?}"));
        assert_eq!(duplicates, fields);
    }

    #[test]
    fn broken_json_is_an_error() {
        for broken in ["", "{", "{}{", r#"{"a" 1}"#, "[1,]"] {
            assert!(read(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
