//! A declared hook after it was read: where it is, and how it is asked.

use std::time::Duration;

use http::Uri;

use super::{HookSpec, WebhookSpec, blueprint::Problems};

/// How long a hook may take when nothing valid is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookRule {
    /// How children are keyed in the request.
    pub version: HookVersion,
    /// Unknown and duplicate fields of an answer are errors.
    pub strict: bool,
    /// Where it is.
    pub url: Uri,
    /// The longest an exchange may take.
    pub timeout: Duration,
    /// Answers are kept by their ETag.
    pub etag: Option<EtagRule>,
}

/// How answers are kept by their ETag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EtagRule {
    /// How long one is kept after it was sent; as long as the epoch when absent.
    pub lifetime: Option<Duration>,
    /// How often those that have expired are removed; when another one is kept when absent.
    pub sweep: Option<Duration>,
}

/// Version of the hook protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookVersion {
    /// Keys are relative to the parent.
    V1,
    /// Keys are always namespace and name.
    V2,
}

/// Reads the hook at `field`; what is wrong goes to `problems`.
pub(super) fn hook_rule(field: &str, hook: &HookSpec, problems: &mut Problems) -> Option<HookRule> {
    let version = match hook.version.as_deref() {
        None | Some("" | "v1") => Some(HookVersion::V1),
        Some("v2") => Some(HookVersion::V2),
        Some(other) => {
            problems.invalid(format!("{field}.version"), format!("{other:?} is neither v1 nor v2"));
            None
        }
    };
    let Some(webhook) = &hook.webhook else {
        problems.invalid(format!("{field}.webhook"), "is required");
        return None;
    };
    let field = format!("{field}.webhook");
    let strict = match webhook.response_unmarshall_mode.as_deref() {
        None | Some("") => Some(version == Some(HookVersion::V2)),
        Some("strict") => Some(true),
        Some("loose") => Some(false),
        Some(other) => {
            problems.invalid(
                format!("{field}.responseUnMarshallMode"),
                format!("{other:?} is neither loose nor strict"),
            );
            None
        }
    };
    let etag = webhook.etag.as_ref().filter(|etag| etag.enabled == Some(true));
    let etag = etag.map(|etag| EtagRule {
        lifetime: positive(etag.cache_timeout_seconds),
        sweep: positive(etag.cache_cleanup_seconds),
    });
    for (name, present) in [
        ("caBundle", webhook.ca_bundle.is_some()),
        ("clientTLS", webhook.client_tls.is_some()),
        ("authorization", webhook.authorization.is_some()),
        ("basicAuth", webhook.basic_auth.is_some()),
    ] {
        if present {
            problems.unsupported(format!("{field}.{name}"));
        }
    }
    let timeout = match webhook.timeout.as_deref() {
        None | Some("") => Some(DEFAULT_TIMEOUT),
        Some(text) => match go_duration(text) {
            Some(seconds) if seconds > 0.0 => {
                Duration::try_from_secs_f64(seconds).ok().or(Some(Duration::MAX))
            }
            Some(_) => {
                tracing::info!(timeout = text, "a hook's timeout is not positive: 10 s instead");
                Some(DEFAULT_TIMEOUT)
            }
            None => {
                problems.invalid(
                    format!("{field}.timeout"),
                    format!("{text:?} is no duration, such as 10s or 1m30s"),
                );
                None
            }
        },
    };
    let url = url(&field, webhook, problems);
    Some(HookRule { version: version?, strict: strict?, url: url?, timeout: timeout?, etag })
}

/// As many seconds; zero and less mean never, as in Metacontroller.
fn positive(seconds: Option<i32>) -> Option<Duration> {
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

fn url(field: &str, webhook: &WebhookSpec, problems: &mut Problems) -> Option<Uri> {
    let (field, text) = match (&webhook.url, &webhook.service) {
        (Some(url), _) => (format!("{field}.url"), url.clone()),
        (None, None) => {
            problems.invalid(field, "needs url, or service and path");
            return None;
        }
        (None, Some(service)) => {
            let Some(path) = &webhook.path else {
                problems.invalid(format!("{field}.path"), "is required with service");
                return None;
            };
            let port = service.port.unwrap_or(80);
            let protocol = service.protocol.as_deref().filter(|text| !text.is_empty());
            let protocol = protocol.unwrap_or("http");
            for (name, text) in [("name", &service.name), ("namespace", &service.namespace)] {
                if text.is_empty() {
                    problems.invalid(format!("{field}.service.{name}"), "must not be empty");
                    return None;
                }
            }
            if !(1..=65535).contains(&port) {
                problems.invalid(format!("{field}.service.port"), format!("{port} is no port"));
                return None;
            }
            // A path without its slash would become part of the port.
            let slash = if path.starts_with('/') { "" } else { "/" };
            (
                format!("{field}.service"),
                format!("{protocol}://{}.{}:{port}{slash}{path}", service.name, service.namespace),
            )
        }
    };
    let parsed = match text.parse::<Uri>() {
        Ok(parsed) => parsed,
        Err(error) => {
            problems.invalid(field, format!("{text:?} is no URL: {error}"));
            return None;
        }
    };
    let authority = parsed.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    if !matches!(parsed.scheme_str(), Some("http" | "https")) {
        problems.invalid(field, format!("{text:?} must begin with http:// or https://"));
    } else if parsed.host().is_none_or(str::is_empty) {
        problems.invalid(field, format!("{text:?} names no host"));
    } else if authority.contains('@') {
        // Not echoed: it holds a password.
        problems.invalid(field, "must not hold a user name or password");
    } else {
        return Some(parsed);
    }
    None
}

/// Go's notation of durations, in seconds: `300ms`, `-1.5h`, `1m30s`, `0`.
fn go_duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0.0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits =
            rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("μs", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
        ];
        let (unit, factor) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        seconds += number * factor;
    }
    Some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, expected) in [
            ("10s", Some(10.0)),
            ("1m30s", Some(90.0)),
            ("1.5h", Some(5400.0)),
            ("250ms", Some(0.25)),
            ("-1s", Some(-1.0)),
            ("0", Some(0.0)),
            ("", None),
            ("10", None),
            ("s", None),
            ("1d", None),
        ] {
            assert_eq!(go_duration(text), expected, "{text}");
        }
    }
}
