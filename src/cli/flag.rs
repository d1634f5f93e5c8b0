//! Values of flags.

use std::{num::NonZeroUsize, time::Duration};

/// The longest duration that Go knows: 63 bits of nanoseconds.
const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());
/// The shortest time between two questions.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// A duration as Go writes it: `500ms`, `30s`, `1h30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const HINT: &str = "give a number and a unit, such as 500ms, 30s or 1h30m";
    if text.starts_with('-') {
        return Err(format!("a duration cannot be negative; {HINT}"));
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    loop {
        let number = rest.trim_start_matches(|byte: char| byte.is_ascii_digit() || byte == '.');
        let (number, tail) = rest.split_at(rest.len() - number.len());
        let unit = tail.trim_start_matches(char::is_alphabetic);
        let (unit, tail) = tail.split_at(tail.len() - unit.len());
        let value: f64 = number.parse().map_err(|_| format!("{text:?} is no duration; {HINT}"))?;
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(format!("{unit:?} is no unit of time; {HINT}")),
        };
        let part = Duration::try_from_secs_f64(value * seconds).ok();
        // What is longer is no duration in Go either, and the clock could not add it.
        total = part
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= LONGEST)
            .ok_or_else(|| format!("{text:?} is longer than 292 years"))?;
        if tail.is_empty() {
            return Ok(total);
        }
        rest = tail;
    }
}

/// A duration between two questions that leaves the other side in peace.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|interval| {
        if interval < SHORTEST_INTERVAL {
            Err("would ask without pause; give at least 100ms".to_owned())
        } else {
            Ok(interval)
        }
    })
}

/// A number of at least 1.
pub(super) fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "give a whole number of at least 1".to_owned())
}

/// The name of a namespace: what would change a URL is none.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    let bytes = text.as_bytes();
    let label = bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-');
    if label {
        Ok(text.to_owned())
    } else {
        Err("give one name of lower-case letters, digits and dashes, such as team-web".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("30").unwrap_err().contains("unit"));
        assert!(duration("-1s").unwrap_err().contains("negative"));
    }

    #[test]
    fn a_duration_beyond_measure_is_refused_without_a_panic() {
        for text in ["99999999999999999999h", "1s-5s", "2562048h", "", "s", "1..5s", "1e3s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_interval_of_nothing_is_refused() {
        for text in ["0", "0s", "99ms"] {
            assert!(interval(text).is_err_and(|error| error.contains("100ms")), "{text:?}");
        }
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn a_text_that_is_no_namespace_is_refused() {
        let long = "a".repeat(64);
        for text in ["", "A", "a b", "a/b", "a,b", "-a", "a-", "..", "a%2f", &long] {
            assert!(namespace(text).is_err(), "{text:?}");
        }
        assert_eq!(namespace("team-1").as_deref(), Ok("team-1"));
    }
}
