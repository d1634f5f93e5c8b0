//! JSON rewriting: normalises text to the form that is sent, without decoding it into a tree.
//!
//! A tree of many small values takes 20 to 80 times the memory of its text. Size and validity of a
//! hook response are therefore found by streaming over the text, in constant memory.

use std::{borrow::Cow, fmt, io};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::go_json;

/// Returns the number of bytes of a text as it is sent: without whitespace, and escaped as Go does.
///
/// # Errors
///
/// The text is not JSON that can be decoded: malformed, nested too deeply, a number beyond all
/// floats, half of a surrogate pair.
pub(crate) fn size(json: &[u8]) -> Result<usize, serde_json::Error> {
    let mut counter = Counter(0);
    rewrite(json, &mut counter)?;
    Ok(counter.0)
}

/// Most bytes that a byte of a text may become when it is sent: `<` becomes `\u003c`, and `1e20` has
/// 21 digits.
const GROWTH: usize = 6;

/// Returns whether the length of a text alone shows that it is within a limit as it is sent.
pub(crate) fn is_short(limit: usize, json: &str) -> bool {
    json.len() <= limit / GROWTH
}

/// Returns the number of bytes of a text as it is sent, if that exceeds a limit. The text is
/// checked in any case.
///
/// # Errors
///
/// As [`size`].
pub(crate) fn size_beyond(limit: usize, json: &str) -> Result<Option<usize>, serde_json::Error> {
    if !is_short(limit, json) {
        return size(json.as_bytes()).map(|bytes| Some(bytes).filter(|bytes| *bytes > limit));
    }
    let mut decoder = serde_json::Deserializer::from_str(json);
    Checked.deserialize(&mut decoder)?;
    decoder.end().map(|()| None)
}

/// Writes a text as it is sent.
///
/// # Errors
///
/// As [`size`], or a failed write.
pub(crate) fn rewrite(json: &[u8], into: &mut impl io::Write) -> Result<(), serde_json::Error> {
    let mut decoder = serde_json::Deserializer::from_str(text(json)?);
    Value(into).deserialize(&mut decoder)?;
    decoder.end()
}

/// Writes an object as it is sent, with this value of one field in the place of its own.
///
/// # Errors
///
/// As [`rewrite()`], for a text that is no object, too.
pub(crate) fn with_field(
    json: &[u8],
    field: &str,
    value: &[u8],
    into: &mut impl io::Write,
) -> Result<(), serde_json::Error> {
    let mut decoder = serde_json::Deserializer::from_str(text(json)?);
    put::<serde_json::Error>(into, b"{")?;
    let mut fields = FieldsWriter { into: &mut *into, first: true, without: Some(field) };
    decoder.deserialize_map(&mut fields)?;
    if !fields.first {
        put::<serde_json::Error>(into, b",")?;
    }
    decoder.end()?;
    for part in [b"\"", field.as_bytes(), b"\":", value, b"}"] {
        put::<serde_json::Error>(into, part)?;
    }
    Ok(())
}

/// Returns JSON as text: one check of the whole is faster than one of each string.
///
/// # Errors
///
/// The text is no UTF-8.
pub(crate) fn text(json: &[u8]) -> Result<&str, serde_json::Error> {
    str::from_utf8(json).map_err(serde::de::Error::custom)
}

/// Decodes the next value, and drops it.
#[derive(Clone, Copy)]
pub(crate) struct Checked;

impl<'de> DeserializeSeed<'de> for Checked {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while fields.next_key_seed(self)?.is_some() {
            fields.next_value_seed(self)?;
        }
        Ok(())
    }
}

/// Number of written bytes.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the next value.
struct Value<'w, W>(&'w mut W);

impl<'de, W: io::Write> DeserializeSeed<'de> for Value<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de, W: io::Write> Visitor<'de> for Value<'_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        put(self.0, b"null")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        go_json::write_bool(value, self.0).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        write!(self.0, "{value}").map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        write!(self.0, "{value}").map_err(E::custom)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        go_json::write_float(value, self.0).map_err(E::custom)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        go_json::write_text(value, self.0).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        put(self.0, b"[")?;
        let mut first = true;
        loop {
            // The comma is written once an item is known to follow.
            let mut item = ValueWriter { into: &mut *self.0, comma: !first };
            if items.next_element_seed(&mut item)?.is_none() {
                break;
            }
            first = false;
        }
        put(self.0, b"]")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<(), A::Error> {
        put(self.0, b"{")?;
        FieldsWriter { into: &mut *self.0, first: true, without: None }.visit_map(fields)?;
        put(self.0, b"}")
    }
}

/// Writes the fields of an object, without its braces.
struct FieldsWriter<'w, W> {
    into: &'w mut W,
    /// No field has been written.
    first: bool,
    /// Field that is left out.
    without: Option<&'w str>,
}

impl<'de, W: io::Write> Visitor<'de> for &mut FieldsWriter<'_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<Cow<'de, str>>()? {
            if self.without.is_some_and(|without| *without == key) {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            if !std::mem::take(&mut self.first) {
                put(self.into, b",")?;
            }
            go_json::write_text(&key, self.into).map_err(A::Error::custom)?;
            put(self.into, b":")?;
            fields.next_value_seed(Value(&mut *self.into))?;
        }
        Ok(())
    }
}

/// Writes the next value after a comma, if it is not the first.
struct ValueWriter<'w, W> {
    into: &'w mut W,
    comma: bool,
}

impl<'de, W: io::Write> DeserializeSeed<'de> for &mut ValueWriter<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        if self.comma {
            put(self.into, b",")?;
        }
        Value(&mut *self.into).deserialize(decoder)
    }
}

fn put<E: serde::de::Error>(into: &mut impl io::Write, bytes: &[u8]) -> Result<(), E> {
    into.write_all(bytes).map_err(E::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::json::go_json::encode;

    fn rewritten(json: &str) -> Result<String, serde_json::Error> {
        let mut text = Vec::new();
        rewrite(json.as_bytes(), &mut text)?;
        assert_eq!(size(json.as_bytes())?, text.len());
        assert!(text.len() <= GROWTH * json.len(), "{json}");
        assert_eq!(size_beyond(text.len(), json)?, None);
        assert_eq!(size_beyond(text.len() - 1, json)?, Some(text.len()));
        assert_eq!(size_beyond(usize::MAX, json)?, None);
        Ok(String::from_utf8(text).unwrap())
    }

    #[test]
    fn text_is_rewritten_as_its_tree_is_encoded() {
        for json in [
            r#" { "a" : [ 1 , 2.0, -3, 1e21, 0.5, true, null, [], {} ] , "b" : "<\u00e9\n\">" } "#,
            "[]",
            "18446744073709551615",
            r#"{"a":{"b":{"c":[[["x"]]]}}}"#,
            r#""<<<<<<<<""#,
            "[1e20,9e20,-9e20,1e9,1e-6,1.5e-6,1e-7,5e-324]",
            "\"\u{2028}\u{2029}\u{7f}\"",
        ] {
            let tree: serde_json::Value = serde_json::from_str(json).unwrap();

            assert_eq!(rewritten(json).unwrap(), encode(&tree), "{json}");
        }
    }

    #[test]
    fn text_that_has_no_tree_is_refused() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for json in ["", "{", "1e999", r#""\ud800""#, "[1,]", "1 2", &deep] {
            assert!(size(json.as_bytes()).is_err(), "{json}");
            assert!(size_beyond(usize::MAX, json).is_err(), "{json}");
        }
        assert!(size(b"\"\xff\"").is_err());
    }

    #[test]
    fn field_of_an_object_is_replaced_or_added() {
        for (json, expected) in [
            ("{}", r#"{"a":[7]}"#),
            (r#"{"a":1}"#, r#"{"a":[7]}"#),
            (r#"{"a":1,"b":2.0,"a":{"c":3}}"#, r#"{"b":2,"a":[7]}"#),
            (r#" { "b" : {"a" : 1} , "\u0061" : 2 } "#, r#"{"b":{"a":1},"a":[7]}"#),
        ] {
            let mut text = Vec::new();

            with_field(json.as_bytes(), "a", b"[7]", &mut text).unwrap();

            assert_eq!(String::from_utf8(text).unwrap(), expected, "{json}");
        }
        for json in ["[]", "null", "{", "{} {}", r#"{"b":1e999}"#] {
            assert!(with_field(json.as_bytes(), "a", b"[7]", &mut Vec::new()).is_err(), "{json}");
        }
    }
}
