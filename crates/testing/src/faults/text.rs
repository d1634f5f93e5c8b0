//! Text forms of durations and bytes, in rules that are data.

/// Duration as text, in Go's notation and in whole milliseconds: `150ms`, `2s`, `1m30s`, `1.5h`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Units with their milliseconds; `ms` precedes its prefix `m`, since the first match wins.
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

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
        milliseconds(text.trim()).map(Duration::from_millis).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is not a duration in whole milliseconds, such as 150ms, 2s or 1m30s"
            ))
        })
    }

    fn milliseconds(text: &str) -> Option<u64> {
        let mut total: u64 = 0;
        let mut rest = text;
        loop {
            let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
            let (number, tail) = rest.split_at(end);
            let (unit, millis) = UNITS.into_iter().find(|(unit, _)| tail.starts_with(unit))?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
            let divisor = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            let product = digits.checked_mul(millis)?;
            if !product.is_multiple_of(divisor) {
                return None;
            }
            total = total.checked_add(product / divisor)?;
            rest = &tail[unit.len()..];
            if rest.is_empty() {
                return Some(total);
            }
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
        assert_eq!(read(".5s1.h"), Ok(Duration::from_millis(3_600_500)));
        for nonsense in ["", "5", "s", ".s", "-1s", "1 s", "1.2.3s", "99999999999999999999ms", "1d"]
        {
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
