//! Search for a key that an object of a JSON text has twice.
//!
//! Semantics: `UnmarshalStrict` of `sigs.k8s.io/json` for a field without a fixed structure.

use std::{collections::HashSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};

/// Checks that no object of a field's text, at any depth, has a key twice.
///
/// # Errors
///
/// The path of the repeated key, or the reason why the text is not JSON.
pub(crate) fn check(field: &str, text: &str) -> Result<(), serde_json::Error> {
    let mut decoder = serde_json::Deserializer::from_str(text);
    UniqueKeys(&Path::Field(field)).deserialize(&mut decoder)?;
    decoder.end()
}

/// Path of a value in a response. A message has the first 64 characters of each key.
enum Path<'p> {
    Field(&'p str),
    Key(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => f.write_str(name),
            Self::Key(object, key) => write!(f, "{object}.{key:.64}"),
            Self::Item(list, index) => write!(f, "{list}[{index}]"),
        }
    }
}

/// Reads the value at a path, whose objects may not have a key twice.
struct UniqueKeys<'p>(&'p Path<'p>);

impl<'de> DeserializeSeed<'de> for UniqueKeys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<(), D::Error> {
        decoder.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, _value: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, _value: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, _value: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, _value: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, _value: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        while items.next_element_seed(UniqueKeys(&Path::Item(self.0, index)))?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = fields.next_key::<String>()? {
            let path = Path::Key(self.0, &key);
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("duplicate field {:?}", path.to_string())));
            }
            fields.next_value_seed(UniqueKeys(&path))?;
            seen.insert(key);
        }
        Ok(())
    }
}
