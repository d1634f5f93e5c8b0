//! Text forms of durations and bytes, in rules that are data.

/// Duration as text: `150ms`, `2s`, `1m30s`, in whole milliseconds.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::duration;

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}ms", duration.as_millis()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration = duration::parse(text.trim()).map_err(D::Error::custom)?;
        // The text has no smaller unit, and would not be read back as the same value.
        if duration.subsec_nanos().is_multiple_of(1_000_000) {
            Ok(duration)
        } else {
            Err(D::Error::custom(format!("{text:?} is no whole number of milliseconds")))
        }
    }
}

/// Optional duration.
pub(super) mod maybe_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct WrittenDuration(#[serde(with = "super::duration")] Duration);

    pub(crate) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(WrittenDuration).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<WrittenDuration>::deserialize(deserializer)?.map(|it| it.0))
    }
}

/// Bytes as text; invalid UTF-8 is written with replacement characters.
pub(super) mod bytes {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        String::deserialize(deserializer).map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    fn read(text: &str) -> Result<Duration, String> {
        super::duration::deserialize(json!(text)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_duration_is_a_number_with_its_unit() {
        assert_eq!(read("150ms"), Ok(Duration::from_millis(150)));
        assert_eq!(read(" 2s "), Ok(Duration::from_secs(2)));
        assert_eq!(read("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(read("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(read("1m1.5s"), Ok(Duration::from_millis(61_500)));
        for nonsense in ["", "5", "s", "-1s", "1 s", "99999999999999999999ms", "1d"] {
            let error = read(nonsense).unwrap_err();
            assert!(error.contains(&format!("{nonsense:?} is ")), "{error}");
        }
    }

    #[test]
    fn duration_without_a_text_form_is_refused() {
        for text in ["1us", "1.0005s", "0.5ms"] {
            assert!(read(text).unwrap_err().contains("milliseconds"), "{text}");
        }
    }
}
