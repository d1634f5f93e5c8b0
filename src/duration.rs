//! Durations in Go's notation (`500ms`, `-1.5h`, `1m30s`, `0`), and deadlines without overflow.
//!
//! Flags, hooks and fault rules use this notation. Parsers of other crates accept more (`1 hour`)
//! or less (`1m1h`) than `time.ParseDuration` does. [`parse`] is public for the flags of programs
//! that embed the library.

use std::time::Duration;

use tokio::time::Instant;

/// Upper bound of every wait from an option, one year. Added to the current time it does not
/// overflow, and a timer accepts it.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the end of a wait that begins `now`, cut at [`LONGEST`].
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(LONGEST)
}

/// Returns the back-off `base` doubled `times` times, at most `longest`.
pub(crate) fn doubled(base: Duration, times: u32, longest: Duration) -> Duration {
    match 1_u32.checked_shl(times) {
        Some(factor) => base.saturating_mul(factor).min(longest),
        None if base.is_zero() => Duration::ZERO,
        None => longest,
    }
}

/// Longest duration in Go, 63 bits of nanoseconds.
const LONGEST_NANOS: u128 = i64::MAX as u128;

/// Number of fraction digits read; later ones are below a nanosecond in every unit.
const FRACTION_DIGITS: usize = 18;

/// Units with their nanoseconds; `ms` precedes its prefix `m`, since the first match wins.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Error of a duration that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a duration in Go's notation. Write it as the message says.
    #[error("{0:?} is not a duration; give a number and a unit, such as 500ms, 30s or 1h30m")]
    Malformed(String),
    /// Negative duration. Give a duration of 0 or more; some callers handle this case.
    #[error("{0:?} is negative; give a duration of 0 or more, such as 30s")]
    Negative(String),
    /// Duration beyond Go's longest. Give a shorter one.
    #[error("{0:?} is longer than 292 years; give a shorter duration")]
    TooLong(String),
}

/// Parses a duration as `time.ParseDuration` of Go does, except that it refuses negative ones.
///
/// # Errors
///
/// [`DurationError`] if the text is not a duration, or is negative, or is longer than Go's longest.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanos = nanoseconds(rest).ok_or_else(|| DurationError::Malformed(text.to_owned()))?;
    if negative && nanos > 0 {
        return Err(DurationError::Negative(text.to_owned()));
    }
    match u64::try_from(nanos) {
        Ok(short) if nanos <= LONGEST_NANOS => Ok(Duration::from_nanos(short)),
        _ => Err(DurationError::TooLong(text.to_owned())),
    }
}

/// Parses a duration without its sign, to nanoseconds; saturates instead of overflowing.
fn nanoseconds(text: &str) -> Option<u128> {
    let mut rest = text;
    if rest == "0" {
        return Some(0);
    }
    let mut total: u128 = 0;
    loop {
        let (whole, tail) = digits(rest);
        let (fraction, tail) = tail.strip_prefix('.').map_or(("", tail), digits);
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (unit, nanos) = UNITS.into_iter().find(|(unit, _)| tail.starts_with(unit))?;
        total = total
            .saturating_add(number(whole).saturating_mul(nanos))
            .saturating_add(part(fraction, nanos));
        rest = &tail[unit.len()..];
        if rest.is_empty() {
            return Some(total);
        }
    }
}

/// Returns a duration for messages: `2 min`, `30 s`, `250 ms`.
pub(crate) fn human(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (0, millis) => format!("{millis} ms"),
        (secs, 0) if secs % 60 == 0 => format!("{} min", secs / 60),
        (secs, _) => format!("{secs} s"),
    }
}

/// Returns a duration as `Duration.String` of Go writes it: `1m0s`, `1.5s`, `250ms`.
pub(crate) fn text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let decimal = |unit: u128| {
        let fraction = format!("{:0width$}", nanos % unit, width = unit.ilog10() as usize);
        match fraction.trim_end_matches('0') {
            "" => String::new(),
            digits => format!(".{digits}"),
        }
    };
    match (nanos, duration.as_secs()) {
        (0, _) => "0s".to_owned(),
        (..1_000, _) => format!("{nanos}ns"),
        (..1_000_000, _) => format!("{}{}\u{b5}s", nanos / 1_000, decimal(1_000)),
        (..1_000_000_000, _) => format!("{}{}ms", nanos / 1_000_000, decimal(1_000_000)),
        (_, seconds) => {
            let part = format!("{}{}s", seconds % 60, decimal(1_000_000_000));
            match (seconds / 3600, seconds / 60 % 60) {
                (0, 0) => part,
                (0, minutes) => format!("{minutes}m{part}"),
                (hours, minutes) => format!("{hours}h{minutes}m{part}"),
            }
        }
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn number(digits: &str) -> u128 {
    digits.bytes().fold(0, |number: u128, digit| {
        number.saturating_mul(10).saturating_add(u128::from(digit - b'0'))
    })
}

/// Returns a decimal fraction of a number, rounded down as in Go.
fn part(fraction: &str, of: u128) -> u128 {
    let digits = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let scale = digits.bytes().fold(1, |scale: u128, _| scale * 10);
    number(digits) * of / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negative(text: &str) -> Result<Duration, DurationError> {
        Err(DurationError::Negative(text.to_owned()))
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, nanos) in [
            ("10s", 10_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("1m1h", 3_660_000_000_000),
            ("250ms", 250_000_000),
            ("100us", 100_000),
            ("2\u{b5}s", 2_000),
            ("2\u{3bc}s", 2_000),
            ("3ns", 3),
            ("1.s", 1_000_000_000),
            (".5s", 500_000_000),
            ("0.1234567899ns", 0),
            ("0.0000000012345678909999s", 1),
            ("+5s", 5_000_000_000),
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("-0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (10_000_000_000, "10s"),
            (60_000_000_000, "1m0s"),
            (245_001_000_000, "4m5.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(text(Duration::from_nanos(nanos)), expected);
        }
    }

    #[test]
    fn text_that_is_no_duration_is_refused() {
        for text in [
            "", "+", "-", "10", "30", "5", "s", ".s", "1d", "-x", "1..5s", "1.2.3s", "1e3s", "1 s",
            " 1s", "1s ", "1s-5s", "1s5", "--1s", "1sec", "\u{663}s",
        ] {
            assert_eq!(parse(text), Err(DurationError::Malformed(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn a_negative_duration_has_an_error_of_its_own() {
        for text in ["-1s", "-1.5h", "-1ns", "-99999999999999999999h"] {
            assert_eq!(parse(text), negative(text));
        }
    }

    #[test]
    fn a_duration_beyond_measure_is_refused_without_a_panic() {
        let longest = format!("{}ns", i64::MAX);
        assert_eq!(parse(&longest), Ok(Duration::from_nanos(i64::MAX.unsigned_abs())));
        let digits = "9".repeat(200);
        for text in [
            "9223372036854775808ns".to_owned(),
            "2562048h".to_owned(),
            "99999999999999999999h".to_owned(),
            "99999999999999999999ms".to_owned(),
            format!("{digits}h{digits}h"),
            format!("{digits}.{digits}h"),
        ] {
            assert_eq!(parse(&text), Err(DurationError::TooLong(text.clone())), "{text}");
        }
    }
}
