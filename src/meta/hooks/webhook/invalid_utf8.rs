//! Bytes of a response that are not UTF-8.
//!
//! Semantics: Go's `encoding/json`, which decodes each byte that is not part of a character as
//! U+FFFD. The decoder of this crate refuses it.

use crate::meta::hooks::budget::UNRESERVED_BYTES;

/// Character in place of an invalid byte.
const REPLACEMENT: &str = "\u{fffd}";
/// Bytes that a replacement adds.
const ADDED: usize = REPLACEMENT.len() - 1;
/// Maximum number of invalid bytes that are replaced: the text becomes longer than its reservation
/// by no more than what is read without one.
pub(super) const MOST_REPLACED: usize = UNRESERVED_BYTES / ADDED;

/// Replaces each byte that is not part of a character by U+FFFD. A text with too many of them stays
/// as it is.
pub(super) fn replace(text: &mut Vec<u8>) {
    // Most responses are valid; this comparison is fast.
    if std::str::from_utf8(text).is_ok() {
        return;
    }
    let mut invalid = Vec::new();
    let mut end = 0;
    for chunk in text.utf8_chunks() {
        let begin = end + chunk.valid().len();
        end = begin + chunk.invalid().len();
        invalid.extend(begin..end);
        if invalid.len() > MOST_REPLACED {
            return;
        }
    }
    // From the end to the begin, in place: a second text may not fit in the budget.
    let mut read = text.len();
    let mut write = read + ADDED * invalid.len();
    text.reserve_exact(ADDED * invalid.len());
    text.resize(write, 0);
    for at in invalid.into_iter().rev() {
        let kept = at + 1..read;
        write -= kept.len();
        text.copy_within(kept, write);
        write -= REPLACEMENT.len();
        text[write..write + REPLACEMENT.len()].copy_from_slice(REPLACEMENT.as_bytes());
        read = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &[u8]) -> Vec<u8> {
        let mut text = text.to_vec();
        replace(&mut text);
        text
    }

    #[test]
    fn each_byte_that_is_no_character_is_replaced_as_by_go() {
        for (text, expected) in [
            (&b"{\"a\":\"\xff\"}"[..], "{\"a\":\"\u{fffd}\"}"),
            (b"\xffa\xfe\xfd\xc3\xa9z\x80", "\u{fffd}a\u{fffd}\u{fffd}éz\u{fffd}"),
            (b"\xc3(", "\u{fffd}("),
            // A surrogate in UTF-8, and the begin of a character of four bytes.
            (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
            (b"\"\xf0\x9f\x98\"", "\"\u{fffd}\u{fffd}\u{fffd}\""),
            ("é\u{1f600}".as_bytes(), "é\u{1f600}"),
            (b"", ""),
        ] {
            assert_eq!(String::from_utf8(replaced(text)).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn text_grows_by_what_is_read_without_a_reservation_at_most() {
        let most = replaced(&vec![0xff; MOST_REPLACED]);
        assert_eq!(most.len(), MOST_REPLACED + UNRESERVED_BYTES);
        let more = vec![0xff; MOST_REPLACED + 1];
        assert_eq!(replaced(&more), more);
    }
}
