//! Surrogates without their half in the JSON text of a response.
//!
//! JavaScript sends one where it cuts a string within a character. Semantics: Go's `encoding/json`,
//! which decodes it as U+FFFD. The decoder of this crate refuses it.

/// Replaces each escape of a lone surrogate by that of U+FFFD, which is as long.
pub(super) fn replace_lone(json: &mut [u8]) {
    // Most responses have no escape; this search compares several bytes at once.
    if !json.contains(&b'\\') {
        return;
    }
    let mut at = 0;
    while let Some(found) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let Some(unit) = escaped_unit(&json[at..]) else {
            // The next character is escaped, be it a backslash.
            at = json.len().min(at + 2);
            continue;
        };
        let is_low = |unit: u16| (0xDC00..0xE000).contains(&unit);
        let is_pair = (0xD800..0xDC00).contains(&unit)
            && escaped_unit(&json[at + ESCAPE..]).is_some_and(is_low);
        if is_pair {
            at += 2 * ESCAPE;
            continue;
        }
        if (0xD800..0xE000).contains(&unit) {
            json[at + 2..at + ESCAPE].copy_from_slice(b"fffd");
        }
        at += ESCAPE;
    }
}

/// Length of `\uXXXX`.
const ESCAPE: usize = 6;

/// Returns the UTF-16 code unit of the escape with which a text begins.
fn escaped_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    // A sign is no digit of JSON.
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogate_is_replaced_and_other_escapes_stay() {
        for (json, expected) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\uDE00!""#, r#""\ufffd!""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\ud83d\u0041""#, r#""\ufffd\u0041""#),
            (r#""\uD83D\uDE00""#, r#""\uD83D\uDE00""#),
            (r#""\\ud83d\n\u00e9""#, r#""\\ud83d\n\u00e9""#),
            (r#""\\\ud83d""#, r#""\\\ufffd""#),
            (r#""\u+83d""#, r#""\u+83d""#),
            (r#""\ud8"#, r#""\ud8"#),
            (r#""\ud83d\u"#, r#""\ufffd\u"#),
            ("\"\\", "\"\\"),
        ] {
            let mut text = json.as_bytes().to_vec();
            replace_lone(&mut text);
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{json}");
        }
    }
}
