//! Parsers of flag values.

use std::{num::NonZeroUsize, time::Duration};

use pilotlight::{duration, meta::ControllerKind};

/// Shortest polling interval.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Parses a polling interval. Metacontroller ends at an interval of zero or less.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text).map_err(|error| error.to_string())?;
    if interval.is_zero() { Err("must be longer than 0s".to_owned()) } else { Ok(interval) }
}

/// Returns the interval that is used instead of a given one. Its lower bound spares the API server.
pub(super) fn used_interval(given: Duration) -> Duration {
    given.max(SHORTEST_INTERVAL)
}

/// Returns the number of workers that is used instead of a given one: without a worker nothing
/// would be synced.
pub(super) fn used_workers(given: i64) -> usize {
    usize::try_from(given.max(1)).unwrap_or(usize::MAX)
}

/// Parses the kind of a declared controller.
pub(super) fn controller_kind(text: &str) -> Result<ControllerKind, String> {
    let of = |kind: &ControllerKind| kind.kind() == text;
    ControllerKind::ALL
        .into_iter()
        .find(of)
        .ok_or_else(|| "give CompositeController or DecoratorController".to_owned())
}

/// Parses a number of at least 1.
pub(super) fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "give a whole number of at least 1".to_owned())
}

/// Parses a number of bytes, such as `16Mi`.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .unwrap_or((text, 0));
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<usize>().ok().filter(|number| digits && *number > 0);
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "give a number of bytes of at least 1, such as 16Mi".to_owned())
}

/// Parses the name of a namespace, and refuses one that would change a URL.
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

/// Parses a whole number as Go's flags do. It may have the prefix of another base (`0x1F`, `0o17`,
/// `017`), and `_` between digits.
pub(super) fn go_int(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_lowercase();
    let prefixes = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let based =
        prefixes.iter().find_map(|(prefix, base)| Some((lower.strip_prefix(prefix)?, *base)));
    let (digits, base) = match based {
        Some((digits, base)) if !digits.is_empty() => {
            (digits.strip_prefix('_').unwrap_or(digits), base)
        }
        _ => (&*lower, 10),
    };
    let parts: Vec<_> = digits.split('_').collect();
    let is_number = parts.iter().all(|part| part.starts_with(|first: char| first.is_digit(base)));
    let number = i64::from_str_radix(&format!("{sign}{}", parts.concat()), base).ok();
    number.filter(|_| is_number).ok_or_else(|| "give a whole number".to_owned())
}

/// Parses a number as Go's flags do: decimal, or hexadecimal with an exponent of two, such as
/// `0x1.8p-2`. Underscores may separate digits.
pub(super) fn go_float(text: &str) -> Result<f64, String> {
    let plain = without_underscores(text);
    let hexadecimal = |text: &str| {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (mantissa, exponent) = unsigned.strip_prefix("0x")?.split_once('p')?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let number = digits
            .chars()
            .try_fold(0.0, |number, digit| Some(number * 16.0 + f64::from(digit.to_digit(16)?)));
        let number = number.filter(|_| !digits.is_empty())?;
        let shift = i32::try_from(fraction.chars().count()).ok()?.checked_mul(4)?;
        let exponent = exponent.parse::<i32>().ok()?.checked_sub(shift)?;
        let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
        Some(sign * number * f64::from(exponent).exp2()).filter(|it| it.is_finite())
    };
    let parsed = plain.and_then(|text| text.parse().ok().or_else(|| hexadecimal(&text)));
    parsed.ok_or_else(|| "give a number".to_owned())
}

/// Returns a number in lower case without the underscores between its digits, one of which may
/// follow `0x`; `None` if an underscore is elsewhere.
fn without_underscores(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let is_hexadecimal = lower.trim_start_matches(['+', '-']).starts_with("0x");
    let is_digit = |letter: char| letter.is_digit(if is_hexadecimal { 16 } else { 10 });
    let mut parts = lower.split('_').peekable();
    while let Some(part) = parts.next() {
        let Some(next) = parts.peek() else { break };
        let is_prefix = is_hexadecimal && part.trim_start_matches(['+', '-']) == "0x";
        if !(part.ends_with(is_digit) || is_prefix) || !next.starts_with(is_digit) {
            return None;
        }
    }
    Some(lower.replace('_', ""))
}

/// Parses a boolean as Go does.
pub(super) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_zero_is_refused_and_a_short_one_is_raised() {
        for text in ["0", "0s", "-1s"] {
            assert!(interval(text).is_err(), "{text:?}");
        }
        for (text, used) in [("1ns", 100), ("99ms", 100), ("100ms", 100), ("500ms", 500)] {
            let used = Duration::from_millis(used);
            assert_eq!(interval(text).map(used_interval), Ok(used), "{text:?}");
        }
    }

    #[test]
    fn at_least_one_worker_is_used() {
        for (given, used) in [(i64::MIN, 1), (-1, 1), (0, 1), (1, 1), (50, 50)] {
            assert_eq!(used_workers(given), used);
        }
    }

    #[test]
    fn whole_numbers_are_written_as_in_go() {
        for (text, number) in [
            ("0", 0),
            ("+5", 5),
            ("-7", -7),
            ("1_000", 1000),
            ("0x1F", 31),
            ("-0X_1f", -31),
            ("0b11", 3),
            ("0o17", 15),
            ("017", 15),
            ("0_7", 7),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(go_int(text), Ok(number), "{text:?}");
        }
        for text in ["", "-", "+-1", "08", "0x", "1__0", "_1", "1_", "1.0", "9223372036854775808"] {
            assert!(go_int(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_written_as_in_go() {
        for (text, number) in [
            ("5", 5.0),
            (".5", 0.5),
            ("1e-3", 0.001),
            ("+Inf", f64::INFINITY),
            ("0x1p-2", 0.25),
            ("-0X1.8P1", -3.0),
            ("0x_1fp+1", 62.0),
            ("0x.8p0", 0.5),
            ("0x1.8_0p1", 3.0),
            ("1_000", 1000.0),
            ("-1_0.5", -10.5),
            ("1e1_0", 1e10),
            ("0x1p1_0", 1024.0),
        ] {
            assert_eq!(go_float(text), Ok(number), "{text:?}");
        }
        assert!(go_float("NaN").unwrap().is_nan());
        for text in [
            "", "0x", "0x1", "0x1.8", "0xp1", "0x1p", "1p2", "0x-1p1", "x", "1__0", "_1", "1_",
            "1_.5", "1._5", "1_e3", "0x1_p1",
        ] {
            assert!(go_float(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn bytes_have_binary_units_or_none() {
        assert_eq!(bytes("70000"), Ok(70_000));
        assert_eq!(bytes("64Ki"), Ok(64 << 10));
        assert_eq!(bytes("16Mi"), Ok(16 << 20));
        assert_eq!(bytes("2Gi"), Ok(2 << 30));
        for text in ["", "0", "Mi", "-1", "+1", "1.5Mi", "16M", "16 Mi", "99999999999999Gi"] {
            assert!(bytes(text).is_err_and(|error| error.contains("16Mi")), "{text:?}");
        }
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
