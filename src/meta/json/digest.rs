//! Digests of values: short numbers that are compared instead of the values.
//!
//! Detects accidental changes only; it is not cryptographic. Equal in each process of one build.
//!
//! The digest of a JSON text is equal for texts that mean the same. The text is read once, in constant
//! memory: a tree of many small values takes 20 to 80 times its text. The order of fields does not
//! matter, numbers count by value, and a field that is `null` counts as absent. Of a field that is
//! given twice both values count, where a tree has the last.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, Hash},
};

use foldhash::quality::FixedState;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::rewrite::text;

/// Whole numbers below this size are written without an exponent, and compare as integers.
const WHOLE: f64 = 1e21;

/// Returns the digest of a value.
pub(crate) fn digest(value: impl Hash) -> u64 {
    FixedState::with_seed(0).hash_one(value)
}

/// Digest of `null`, as which an absent field counts.
const NULL: JsonDigest = JsonDigest(0);

/// Digest of the meaning of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JsonDigest(u64);

impl JsonDigest {
    /// Reads a text.
    ///
    /// # Errors
    ///
    /// When the text is not JSON that can be decoded.
    pub(crate) fn of(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text(json)?)
    }

    /// Reads an object of the API without the fields that change although nothing is declared
    /// differently: its status, resourceVersion and managed fields.
    ///
    /// # Errors
    ///
    /// When the text is no JSON object that can be decoded.
    pub(crate) fn of_declared(json: &[u8]) -> Result<Self, serde_json::Error> {
        Self::of_applied(json, &["resourceVersion", "managedFields"])
    }

    /// Reads an object of the API without its status and these fields of its metadata.
    ///
    /// # Errors
    ///
    /// When the text is no JSON object that can be decoded.
    pub(crate) fn of_applied(json: &[u8], ignored: &[&str]) -> Result<Self, serde_json::Error> {
        let mut decoder = serde_json::Deserializer::from_str(text(json)?);
        let found = decoder.deserialize_map(DigestReader::of_applied(ignored))?;
        decoder.end()?;
        Ok(found)
    }

    /// Reads an object like [`JsonDigest::of_applied`]; `None` if it is no object. Whole floats
    /// beyond 2^53 may differ from those of its text.
    pub(crate) fn of_applied_tree(object: &Value, ignored: &[&str]) -> Option<Self> {
        object.as_object()?.deserialize_map(DigestReader::of_applied(ignored)).ok()
    }

    /// Reads an object of the API, without these fields of its metadata.
    ///
    /// # Errors
    ///
    /// When the text is no JSON object that can be decoded.
    pub(crate) fn of_object(json: &[u8], ignored: &[&str]) -> Result<Self, serde_json::Error> {
        let mut decoder = serde_json::Deserializer::from_str(text(json)?);
        let found =
            decoder.deserialize_map(DigestReader { metadata: Some(ignored), ignored: &[] })?;
        decoder.end()?;
        Ok(found)
    }
}

impl<'de> Deserialize<'de> for JsonDigest {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        decoder.deserialize_any(DigestReader { metadata: None, ignored: &[] })
    }
}

/// Part of a text, as it is hashed.
#[derive(Hash)]
enum Part<'a> {
    Bool(bool),
    Whole(i128),
    Float(u64),
    Text(&'a str),
    EmptyList,
    /// Hash of the items before, and of the next one.
    Item(u64, u64),
    /// Name, and hash of the value.
    Field(&'a str, u64),
    /// Sum of the hashes of the fields.
    Object(u64),
}

fn hash(part: Part<'_>) -> JsonDigest {
    JsonDigest(digest(part))
}

/// Reads a value; of an object the fields that are not ignored.
struct DigestReader<'a> {
    /// Fields to ignore within the field `metadata`.
    metadata: Option<&'a [&'a str]>,
    ignored: &'a [&'a str],
}

impl<'a> DigestReader<'a> {
    fn of_applied(ignored: &'a [&'a str]) -> Self {
        Self { metadata: Some(ignored), ignored: &["status"] }
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for DigestReader<'_> {
    type Value = JsonDigest;

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<JsonDigest, D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DigestReader<'_> {
    type Value = JsonDigest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<JsonDigest, E> {
        Ok(NULL)
    }

    fn visit_bool<E>(self, value: bool) -> Result<JsonDigest, E> {
        Ok(hash(Part::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<JsonDigest, E> {
        Ok(hash(Part::Whole(i128::from(value))))
    }

    fn visit_i64<E>(self, value: i64) -> Result<JsonDigest, E> {
        Ok(hash(Part::Whole(i128::from(value))))
    }

    fn visit_f64<E>(self, value: f64) -> Result<JsonDigest, E> {
        if value.fract() == 0.0 && value.abs() < WHOLE {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a whole number within the range"
            )]
            return Ok(hash(Part::Whole(value as i128)));
        }
        Ok(hash(Part::Float(value.to_bits())))
    }

    fn visit_str<E>(self, value: &str) -> Result<JsonDigest, E> {
        Ok(hash(Part::Text(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonDigest, A::Error> {
        let mut list = hash(Part::EmptyList);
        while let Some(item) = items.next_element::<JsonDigest>()? {
            list = hash(Part::Item(list.0, item.0));
        }
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<JsonDigest, A::Error> {
        let mut sum = 0_u64;
        while let Some(FieldName(key)) = fields.next_key()? {
            if self.ignored.contains(&&*key) {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let ignored = self.metadata.filter(|_| key == "metadata").unwrap_or_default();
            let value = fields.next_value_seed(DigestReader { metadata: None, ignored })?;
            if value != NULL {
                // A sum does not depend on the order.
                sum = sum.wrapping_add(hash(Part::Field(&key, value.0)).0);
            }
        }
        Ok(hash(Part::Object(sum)))
    }
}

#[derive(Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn declared_object_is_equal_until_more_than_its_status_changes() {
        let of = |metadata: Value, spec: u8, status: u8| {
            let object = json!({"metadata": metadata, "spec": spec, "status": {"n": status}});
            JsonDigest::of_declared(object.to_string().as_bytes()).unwrap()
        };
        let before = of(json!({"name": "a", "resourceVersion": "1", "labels": {"a": "b"}}), 1, 1);

        let later = json!({
            "name": "a", "resourceVersion": "2", "labels": {"a": "b"},
            "managedFields": [{"manager": "m"}]
        });
        assert_eq!(of(later, 1, 2), before);
        for (metadata, spec) in [
            (json!({"name": "a", "resourceVersion": "1", "labels": {"a": "c"}}), 1),
            (json!({"name": "a", "labels": {"a": "b"}, "annotations": {"x": "y"}}), 1),
            (json!({"name": "a", "resourceVersion": "1", "labels": {"a": "b"}}), 2),
        ] {
            assert_ne!(of(metadata.clone(), spec, 1), before, "{metadata} {spec}");
        }
    }

    use super::*;
    use crate::meta::{children::last_applied, json::go_json};

    fn of(value: &Value) -> JsonDigest {
        JsonDigest::of(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn values_that_mean_the_same_have_one_digest() {
        for (one, other) in [
            (json!({"a": 1, "b": [true, null]}), json!({"b": [true, null], "a": 1.0})),
            (json!({"a": null}), json!({})),
            (json!({"a": 1}), json!({"a": 2})),
            (json!({}), json!({"a": {}})),
            (json!({"a": 1, "b": 2}), json!({"a": 2, "b": 1})),
            (json!({"a": {"b": 1}}), json!({"b": {"a": 1}})),
            (json!([1, 2]), json!([2, 1])),
            (json!([[1], 2]), json!([1, [2]])),
            (json!([null]), json!([])),
            (json!([]), json!({})),
            (json!("1"), json!(1)),
            (json!(u64::MAX), json!(u64::MAX - 1)),
            (json!(-0.0), json!(0)),
            (json!(1e21), json!(1e22)),
        ] {
            let same = last_applied::same(&one, &other);

            assert_eq!(of(&one) == of(&other), same, "{one} {other}");
        }
    }

    #[test]
    fn order_of_fields_and_blanks_do_not_matter() {
        let one = JsonDigest::of(br#"{"a":1,"b":{"c":"x","d":0.50}}"#).unwrap();
        let other = JsonDigest::of(br#" { "b" : {"d":0.5, "c":"\u0078"}, "a" : 1 } "#).unwrap();

        assert_eq!(one, other);
        for broken in ["", "{", "{} {}", "1e999", r#""\ud800""#] {
            assert!(JsonDigest::of(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn ignored_fields_are_those_of_the_metadata_alone() {
        let of = |object: Value| {
            JsonDigest::of_object(object.to_string().as_bytes(), &["generation"]).unwrap()
        };
        let object = json!({"metadata": {"name": "a", "generation": 1}, "generation": 1});

        assert_eq!(of(object.clone()), of(json!({"metadata": {"name": "a"}, "generation": 1})));
        assert_ne!(of(object.clone()), of(json!({"metadata": {"name": "a"}})));
        let deeper =
            |generation| json!({"metadata": {"name": "a", "labels": {"generation": generation}}});
        assert_ne!(of(deeper("1")), of(deeper("2")));
        assert!(JsonDigest::of_object(b"[]", &[]).is_err());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2_i64..3).prop_map(Value::from),
            (-2_i64..3).prop_map(|number| json!(number as f64 / 2.0)),
            "[ab]{0,1}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[ab]", inner, 0..3).prop_map(Value::from_iter),
            ]
        })
    }

    proptest! {
        #[test]
        fn digest_of_a_tree_is_that_of_its_text(value in value(), status in value()) {
            let object = json!({"metadata": {"uid": "u", "name": value}, "status": status});
            let text = go_json::encode(&object);

            prop_assert_eq!(
                JsonDigest::of_applied_tree(&object, &["uid"]),
                JsonDigest::of_applied(text.as_bytes(), &["uid"]).ok(),
            );
        }

        #[test]
        fn digests_are_equal_where_the_trees_mean_the_same(one in value(), other in value()) {
            prop_assert_eq!(of(&one) == of(&other), last_applied::same(&one, &other));
        }
    }
}
