//! JSON of a cached object, compressed where that saves memory.
//!
//! JSON repeats itself: names of fields, and the copy of a child that dynamic apply stores in an
//! annotation. LZ4 is fast enough to restore it for each read.

use std::borrow::Cow;

use lz4_flex::block;

/// Least length of a text that is compressed, in bytes: less would save little beside the header.
const SHORTEST: usize = 2048;

/// Least saving, as a divisor of the length: less is not worth the time of a read.
const LEAST_SAVING: usize = 8;

/// JSON as the store keeps it. Equal texts are stored as equal bytes, and others as others: in a
/// block of LZ4 that begins with a brace, as JSON does, that of its own text is next.
#[derive(PartialEq, Eq)]
pub(super) struct StoredJson {
    // Compressed if they are fewer than the bytes of the text.
    bytes: Box<[u8]>,
    // Length of the text.
    len: usize,
}

impl StoredJson {
    /// Stores a text.
    pub(super) fn new(json: Vec<u8>) -> Self {
        let len = json.len();
        let compressed = (len >= SHORTEST).then(|| block::compress(&json));
        let kept = compressed.filter(|kept| kept.len() <= len - len / LEAST_SAVING);
        Self { bytes: kept.unwrap_or(json).into_boxed_slice(), len }
    }

    /// Returns the text, which is a copy if it is stored compressed.
    pub(super) fn text(&self) -> Cow<'_, [u8]> {
        if !self.is_compressed() {
            return Cow::Borrowed(&self.bytes);
        }
        let restored = block::decompress(&self.bytes, self.len);
        debug_assert!(restored.is_ok(), "{restored:?}");
        // Cannot fail: these bytes were compressed here. Readers refuse an empty text as JSON.
        Cow::Owned(restored.unwrap_or_default())
    }

    /// Appends the text to `to`.
    pub(super) fn append_to(&self, to: &mut Vec<u8>) {
        if !self.is_compressed() {
            to.extend_from_slice(&self.bytes);
            return;
        }
        let start = to.len();
        to.resize(start + self.len, 0);
        let restored = block::decompress_into(&self.bytes, &mut to[start..]);
        debug_assert!(restored.is_ok(), "{restored:?}");
        // Cannot fail, as above.
        to.truncate(start + restored.unwrap_or_default());
    }

    /// Returns the length of the text.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that are stored.
    pub(super) fn stored(&self) -> &[u8] {
        &self.bytes
    }

    fn is_compressed(&self) -> bool {
        self.bytes.len() < self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(json: &[u8]) -> StoredJson {
        let stored = StoredJson::new(json.to_vec());
        assert_eq!(stored.text(), json);
        assert_eq!(stored.len(), json.len());
        let mut appended = b"before".to_vec();
        stored.append_to(&mut appended);
        assert_eq!(appended, [b"before", json].concat());
        stored
    }

    #[test]
    fn short_text_and_one_that_would_take_as_much_are_stored_as_they_are() {
        let mut state = 1_u32;
        let noise = (0..4096).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        for json in [vec![b' '; SHORTEST - 1], noise.collect(), Vec::new()] {
            assert_eq!(check(&json).stored(), json);
        }
    }

    #[test]
    fn copy_of_an_object_in_an_annotation_takes_little() {
        let text = (0..400_u32).map(|number| (number.wrapping_mul(2_654_435_761)).to_string());
        let data = text.collect::<String>();
        let object = format!(r#"{{"data":{{"text":"{data}"}}}}"#);
        let copy = serde_json::Value::from(&*object);
        let json = format!(r#"{{"data":{{"text":"{data}"}},"copy":{copy}}}"#);

        let stored = check(json.as_bytes());

        assert!(stored.stored().len() < object.len() + 64, "{} bytes", stored.stored().len());
    }

    #[test]
    fn text_longer_than_the_window_of_lz4_is_stored_compressed() {
        let member = |number: u32| format!(r#""{number}":{{"name":"n{number}","value":""}},"#);
        let json = (0..10_000).map(member).collect::<String>();

        let stored = check(json.as_bytes());

        assert!(stored.stored().len() < json.len() / 2, "{} bytes", stored.stored().len());
    }

    proptest! {
        #[test]
        fn stored_text_is_read_as_it_was(
            parts in proptest::collection::vec("[a-d]{1,12}|\\PC{0,9}", 0..800),
        ) {
            let text = parts.concat();
            check(text.as_bytes());
            // The second half is a copy of the first.
            let stored = check(text.repeat(2).as_bytes());
            assert!(text.len() < SHORTEST || stored.is_compressed());
        }
    }
}
