//! Go JSON: JSON as Go's encoder writes it. Metacontroller compares the last-applied annotation by
//! its bytes.
//!
//! Keys are sorted, `<`, `>`, `&`, U+2028 and U+2029 escaped, and whole floats have no point.
//! Source: `encoding/json/encode.go` of golang/go.

use std::io::{self, Write};

use serde_json::{Number, Value};

/// Capacity of an encoded object before it grows: most children and their annotation fit.
const ENCODED: usize = 2048;

/// Escape of each byte of a text: [`PLAIN`], [`LONG`], [`SEPARATOR`], or the character that follows
/// a backslash.
static ESCAPES: [u8; 256] = escapes();

/// The byte itself.
const PLAIN: u8 = 0;
/// The number of the character in hexadecimal digits.
const LONG: u8 = b'u';
/// The byte itself, unless U+2028 or U+2029 begins with it.
const SEPARATOR: u8 = 0xe2;

const fn escapes() -> [u8; 256] {
    let mut escapes = [PLAIN; 256];
    let mut control = 0;
    while control < 0x20 {
        escapes[control] = LONG;
        control += 1;
    }
    escapes[b'<' as usize] = LONG;
    escapes[b'>' as usize] = LONG;
    escapes[b'&' as usize] = LONG;
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes[b'\n' as usize] = b'n';
    escapes[b'\r' as usize] = b'r';
    escapes[b'\t' as usize] = b't';
    escapes[0x08] = b'b';
    escapes[0x0c] = b'f';
    escapes[0xe2] = SEPARATOR;
    escapes
}

/// Encodes a value.
pub(crate) fn encode(value: &Value) -> String {
    let mut bytes = Vec::with_capacity(ENCODED);
    write_value(value, &mut bytes).expect("a vector takes every byte");
    String::from_utf8(bytes).expect("JSON is text")
}

fn write_value(value: &Value, into: &mut Vec<u8>) -> io::Result<()> {
    match value {
        Value::Null => into.write_all(b"null"),
        Value::Bool(value) => write_bool(*value, into),
        Value::Number(number) => write_number(number, into),
        Value::String(text) => write_text(text, into),
        Value::Array(items) => {
            into.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    into.push(b',');
                }
                write_value(item, into)?;
            }
            into.push(b']');
            Ok(())
        }
        Value::Object(fields) => {
            into.push(b'{');
            for (index, (name, field)) in fields.iter().enumerate() {
                if index > 0 {
                    into.push(b',');
                }
                write_text(name, into)?;
                into.push(b':');
                write_value(field, into)?;
            }
            into.push(b'}');
            Ok(())
        }
    }
}

fn write_number(number: &Number, into: &mut Vec<u8>) -> io::Result<()> {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) => write_float(float, into),
        None => write!(into, "{number}"),
    }
}

/// Writes `true` or `false`.
pub(crate) fn write_bool(value: bool, into: &mut impl Write) -> io::Result<()> {
    into.write_all(if value { b"true" } else { b"false" })
}

/// Writes a float that JSON can have.
pub(crate) fn write_float(value: f64, into: &mut impl Write) -> io::Result<()> {
    let size = value.abs();
    if size == 0.0 || (1e-6..1e21).contains(&size) {
        return write!(into, "{value}");
    }
    // Go writes 1e+21 and 1e-7.
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.strip_prefix('-') {
        Some(digits) => write!(into, "{mantissa}e-{digits}"),
        None => write!(into, "{mantissa}e+{exponent}"),
    }
}

/// Writes a text with its quotes.
pub(crate) fn write_text(text: &str, into: &mut impl Write) -> io::Result<()> {
    into.write_all(b"\"")?;
    let mut rest = text.as_bytes();
    while let Some(index) = rest.iter().position(|byte| ESCAPES[usize::from(*byte)] != PLAIN) {
        let (plain, escaped) = rest.split_at(index);
        into.write_all(plain)?;
        let mut length = 1;
        match (ESCAPES[usize::from(escaped[0])], escaped) {
            (SEPARATOR, [_, 0x80, last @ (0xa8 | 0xa9), ..]) => {
                length = 3;
                write!(into, "\\u20{:02x}", last - 0x80)?;
            }
            (SEPARATOR, _) => into.write_all(&escaped[..1])?,
            (LONG, _) => write!(into, "\\u{:04x}", escaped[0])?,
            (short, _) => into.write_all(&[b'\\', short])?,
        }
        rest = &escaped[length..];
    }
    into.write_all(rest)?;
    into.write_all(b"\"")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn value_is_encoded_as_go_encodes_it() {
        let value = json!({
            "b": "<a>&\u{2028}\u{2029}é\u{2027}\u{8}\u{c}\n\r\t\u{1}\u{1f}\u{7f}\"\\/",
            "a": [1, 1.5, 2.0, 1e21, 1.5e300, 1e-6, 1e-7, 1e-10, -0.25, -0.0, true, false, null],
            "c": {},
            "d": [u64::MAX, i64::MIN],
        });

        assert_eq!(
            encode(&value),
            concat!(
                r#"{"a":[1,1.5,2,1e+21,1.5e+300,0.000001,1e-7,1e-10,-0.25,-0,true,false,null],"#,
                r#""b":"\u003ca\u003e\u0026\u2028\u2029é"#,
                "\u{2027}",
                r#"\b\f\n\r\t\u0001\u001f"#,
                "\u{7f}",
                r#"\"\\/","c":{},"d":[18446744073709551615,-9223372036854775808]}"#
            )
        );
    }

    #[test]
    fn number_is_the_same_after_it_was_encoded_and_read() {
        for text in ["123456789012345680000.0", "1.2345678901234567e-5", "0.1", "5e-324", "-0.0"] {
            let number: Value = serde_json::from_str(text).unwrap();

            let again: Value = serde_json::from_str(&encode(&number)).unwrap();

            let bits = |number: &Value| number.as_f64().map(f64::to_bits);
            assert_eq!(bits(&number), bits(&again), "{text}: {number} {again}");
        }
    }

    proptest! {
        #[test]
        fn text_is_the_same_after_it_was_encoded_and_read(text in any::<String>()) {
            let encoded = encode(&json!({ (text.clone()): text.clone() }));
            let is_escaped = !encoded.contains(['<', '>', '&', '\u{2028}', '\u{2029}']);
            prop_assert!(is_escaped, "{}", encoded);

            prop_assert_eq!(
                serde_json::from_str::<Value>(&encoded).unwrap(),
                json!({ (text.clone()): text }),
            );
        }
    }
}
