//! How durations and bytes are written in rules that are data.

/// `150ms`, `2s`, `1m`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

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
        parse(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is no duration: write a whole number and ms, s, m or h, such as 150ms"
            ))
        })
    }

    pub(crate) fn parse(text: &str) -> Option<Duration> {
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
        number.parse::<u64>().ok()?.checked_mul(*millis).map(Duration::from_millis)
    }
}

/// Bytes as text; what is no UTF-8 is written with replacement characters.
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

    use super::duration::parse;

    #[test]
    fn a_duration_is_a_number_with_its_unit() {
        assert_eq!(parse("150ms"), Some(Duration::from_millis(150)));
        assert_eq!(parse("2s"), Some(Duration::from_secs(2)));
        assert_eq!(parse("1m"), Some(Duration::from_secs(60)));
        assert_eq!(parse("1h"), Some(Duration::from_secs(3600)));
        for nonsense in ["", "5", "s", "-1s", "1.5s", "1 s", "99999999999999999999ms", "1d"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }
}
