//! `Retry-After` of a hook that is busy.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp, fmt::rfc2822};

use crate::duration::LONGEST;

/// Default of the longest wait that a hook may request: a mistake in a unit would stop a parent for
/// days.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Wait of a busy hook whose `Retry-After` is missing or cannot be parsed.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Shortest wait, so that a hook which requests 0 s is not called in a hot loop.
const MIN_RETRY_AFTER: Duration = Duration::from_millis(100);

/// Parses `Retry-After`: seconds, or a date. The wait is at most `longest`.
pub(super) fn retry_after(value: Option<&str>, now: Timestamp, longest: Duration) -> Duration {
    let longest = longest.clamp(MIN_RETRY_AFTER, LONGEST);
    let Some(value) = value.map(str::trim) else { return DEFAULT_RETRY_AFTER };
    let number = |text: &str| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let plain =
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        plain.then(|| text.parse::<f64>().ok()).flatten()
    };
    let wait = match (number(value), rfc2822::DateTimeParser::new().parse_timestamp(value)) {
        (Some(seconds), _) => Duration::from_secs_f64(seconds.clamp(0.0, longest.as_secs_f64())),
        (None, Ok(date)) => {
            let wait: SignedDuration = date.duration_since(now);
            Duration::try_from(wait).unwrap_or(Duration::ZERO)
        }
        (None, Err(_)) => DEFAULT_RETRY_AFTER,
    };
    wait.clamp(MIN_RETRY_AFTER, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_clamped() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (value, expected) in [
            (None, 1000),
            (Some("7"), 7000),
            (Some(" 7 "), 7000),
            (Some("1.5"), 1500),
            (Some("0"), 100),
            (Some("-5"), 100),
            (Some("1000000000"), 300_000),
            (Some("99999999999999999999999999"), 300_000),
            (Some("NaN"), 1000),
            (Some("inf"), 1000),
            (Some("soon"), 1000),
            (Some(""), 1000),
            (Some("Thu, 01 Jan 2026 00:00:30 GMT"), 30_000),
            (Some("Thu, 01 Jan 2026 10:00:00 GMT"), 300_000),
            (Some("Wed, 31 Dec 2025 23:00:00 GMT"), 100),
        ] {
            let wait = retry_after(value, now, MAX_RETRY_AFTER);
            assert_eq!(wait, Duration::from_millis(expected), "{value:?}");
        }
    }

    #[test]
    fn longest_wait_is_an_option() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        for (value, longest, expected) in [
            ("7200", hour, hour),
            ("1800", hour, Duration::from_secs(1800)),
            ("Thu, 01 Jan 2026 10:00:00 GMT", hour, hour),
            ("7", Duration::from_secs(2), Duration::from_secs(2)),
            ("7", Duration::ZERO, MIN_RETRY_AFTER),
            ("1e3000", Duration::MAX, DEFAULT_RETRY_AFTER),
            ("99999999999999999999999999", Duration::MAX, LONGEST),
        ] {
            assert_eq!(retry_after(Some(value), now, longest), expected, "{value:?} {longest:?}");
        }
    }
}
