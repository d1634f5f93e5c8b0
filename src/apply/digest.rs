//! Digest of fields: FNV-1a with 128 bits.
//!
//! The digest tells objects apart, and holds no secret. A client that can write an annotation can
//! also compute it; the field manager of the annotation is checked beside it.

use std::fmt;

const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// Digest of fields, equal in every process and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FieldDigest(u128);

impl FieldDigest {
    /// Digests fields. Each is preceded by its length, so that no two lists of fields are equal as
    /// bytes.
    pub(super) fn of(fields: &[&str]) -> Self {
        let mut digest = OFFSET_BASIS;
        let mut add = |byte: u8| digest = (digest ^ u128::from(byte)).wrapping_mul(PRIME);
        for field in fields {
            field.len().to_string().bytes().chain(*b":").chain(field.bytes()).for_each(&mut add);
        }
        Self(digest)
    }
}

/// Formats as 32 hexadecimal digits.
impl fmt::Display for FieldDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_stable_and_separates_fields() {
        // FNV-1a of nothing is its basis. A change of a digest would lose every member.
        assert_eq!(FieldDigest::of(&[]).to_string(), "6c62272e07bb014262b821756295c58d");
        assert_eq!(FieldDigest::of(&["a", "bc"]).to_string(), "350af1eede4ff78cdc7d3d2672323b26");
        assert_ne!(FieldDigest::of(&["ab", "c"]), FieldDigest::of(&["a", "bc"]));
        assert_ne!(FieldDigest::of(&["a", ""]), FieldDigest::of(&["a"]));
    }
}
