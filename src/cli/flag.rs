//! Parsers of flag values.

use std::{num::NonZeroUsize, time::Duration};

use pilotlight::{duration, meta::ControllerKind};

/// Shortest polling interval.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Parses a polling interval. Its lower bound spares the API server.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text).map_err(|error| error.to_string())?;
    if interval < SHORTEST_INTERVAL {
        return Err("is too short; give at least 100ms".to_owned());
    }
    Ok(interval)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_zero_is_refused() {
        for text in ["0", "0s", "99ms"] {
            assert!(interval(text).is_err_and(|error| error.contains("100ms")), "{text:?}");
        }
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
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
