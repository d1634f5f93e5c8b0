//! Rule of a declared hook: its parsed address, protocol and timeout.

use std::{fmt, time::Duration};

use http::Uri;

use super::{endpoint::EndpointRule, error::LONGEST_TIMEOUT};
use crate::{
    duration::{self, DurationError},
    meta::api::{EndpointConfig, WebhookSpec, rejection::Problems},
    redaction,
};

/// Timeout of a hook that declares none, or one that is not positive.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of a hook of a declared controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookKind {
    /// Decides on the children and the status of a parent.
    Sync,
    /// Called instead of sync while a parent is being deleted or no longer selected.
    Finalize,
    /// Names the related objects that the other hooks receive.
    Customize,
}

impl HookKind {
    /// All hooks.
    pub(crate) const ALL: [Self; 3] = [Self::Sync, Self::Finalize, Self::Customize];

    /// Returns the name of the field in `spec.hooks`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Finalize => "finalize",
            Self::Customize => "customize",
        }
    }

    /// Returns the name at the beginning of a sentence.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Sync => "Sync",
            Self::Finalize => "Finalize",
            Self::Customize => "Customize",
        }
    }
}

/// Rule of one hook.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HookRule {
    /// Protocol version; decides the keys of children in a request.
    pub(crate) version: HookVersion,
    /// True if unknown and duplicate fields of a response are errors.
    pub(crate) strict: bool,
    /// URL of the hook. A user name and password in it become the header `Authorization`; do not
    /// show them.
    pub(crate) url: Uri,
    /// True if the host of the URL is the name and the namespace of a service.
    pub(crate) is_service: bool,
    /// Timeout of a whole exchange.
    pub(crate) timeout: Duration,
    /// Rule for responses with an ETag; `None` keeps none.
    pub(crate) etag: Option<EtagRule>,
    /// TLS and credentials.
    pub(crate) endpoint: EndpointRule,
}

/// Rule for responses that are kept by their ETag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EtagRule {
    /// Time for which a response is kept after it was received; `None` keeps it until the epoch
    /// ends.
    pub(crate) lifetime: Option<Duration>,
    /// Interval at which expired responses are removed; `None` removes them when another one is
    /// kept.
    pub(crate) sweep: Option<Duration>,
}

impl fmt::Debug for HookRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookRule")
            .field("version", &self.version)
            .field("strict", &self.strict)
            .field("url", &redaction::url(&self.url))
            .field("timeout", &self.timeout)
            .field("etag", &self.etag)
            .finish()
    }
}

/// Version of the hook protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookVersion {
    /// Keys are relative to the parent.
    V1,
    /// Keys are always namespace and name.
    V2,
}

/// Parses the webhook of the hook at `field`, and adds its errors to `problems`.
pub(in crate::meta) fn hook_rule(
    field: &str,
    version: Option<&str>,
    webhook: &WebhookSpec,
    configs: &[EndpointConfig],
    problems: &mut Problems,
) -> Option<HookRule> {
    let version = match version {
        None | Some("" | "v1") => Some(HookVersion::V1),
        Some("v2") => Some(HookVersion::V2),
        Some(other) => {
            problems.invalid(format!("{field}.version"), format!("{other:?} is neither v1 nor v2"));
            None
        }
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
    let timeout = match webhook.timeout.as_deref() {
        None | Some("") => Some(DEFAULT_TIMEOUT),
        Some(text) => match duration::parse(text) {
            Ok(Duration::ZERO) | Err(DurationError::Negative(_)) => {
                tracing::info!(timeout = text, "the timeout of a hook is not positive; using 10 s");
                Some(DEFAULT_TIMEOUT)
            }
            Ok(timeout) if timeout <= LONGEST_TIMEOUT => Some(timeout),
            Ok(_) | Err(DurationError::TooLong(_)) => {
                tracing::warn!(timeout = text, "the timeout of a hook is too long; using 10 min");
                Some(LONGEST_TIMEOUT)
            }
            Err(error @ DurationError::Malformed(_)) => {
                problems.invalid(format!("{field}.timeout"), error.to_string());
                None
            }
        },
    };
    let url = url(&field, webhook, problems)?;
    let endpoint = EndpointRule::of(&field, webhook, configs, &url, problems)?;
    Some(HookRule {
        version: version?,
        strict: strict?,
        url,
        is_service: webhook.url.is_none(),
        timeout: timeout?,
        etag,
        endpoint,
    })
}

/// Returns the seconds as a duration; zero and less mean never, as in Metacontroller.
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
                problems.invalid(format!("{field}.service.port"), format!("{port} is not a port"));
                return None;
            }
            // Without its slash, a path would become part of the port.
            let slash = if path.starts_with('/') { "" } else { "/" };
            (
                format!("{field}.service"),
                format!("{protocol}://{}.{}:{port}{slash}{path}", service.name, service.namespace),
            )
        }
    };
    // Without user, password and query, which must not be shown.
    let shown = redaction::url(&text);
    let parsed = match text.parse::<Uri>() {
        Ok(parsed) => parsed,
        Err(error) => {
            problems.invalid(field, format!("{shown:?} is not a URL: {error}"));
            return None;
        }
    };
    if !matches!(parsed.scheme_str(), Some("http" | "https")) {
        problems.invalid(field, format!("{shown:?} must begin with http:// or https://"));
    } else if parsed.host().is_none_or(str::is_empty) {
        problems.invalid(field, format!("{shown:?} has no host"));
    } else if !has_usable_port(&parsed) {
        // The request would go to the default port of the scheme, where another server may listen.
        problems.invalid(field, format!("{shown:?} has a port outside of 1 to 65535"));
    } else {
        return Some(parsed);
    }
    None
}

/// Returns whether the port is absent or valid; [`Uri`] ignores a port that it cannot parse.
fn has_usable_port(url: &Uri) -> bool {
    let authority = url.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    let written = url.host().and_then(|host| authority.strip_prefix(host)).unwrap_or_default();
    let Some(port) = written.strip_prefix(':') else { return true };
    // Rust also parses `+80` as a number.
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    port.is_empty() || is_number && url.port_u16().is_some_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(webhook: serde_json::Value, problems: &mut Problems) -> Option<HookRule> {
        let webhook = serde_json::from_value(webhook).unwrap();
        hook_rule("sync", None, &webhook, &[], problems)
    }

    #[test]
    fn invalid_port_is_not_replaced_by_the_default() {
        let check = |url: &str, usable: bool| {
            let rule = rule(json!({"url": url}), &mut Problems::default());
            assert_eq!(rule.is_some(), usable, "{url}");
        };

        check("http://hook", true);
        check("http://hook:/sync", true);
        check("http://hook:8080/sync", true);
        check("https://[::1]:65535/sync", true);
        check("http://user:hush@hook:8080/sync", true);
        check("http://user:hush@hook:0/sync", false);
        check("https://[::1]/sync", true);
        check("http://hook:65536/sync", false);
        check("http://hook:99999/sync", false);
        check("http://hook:0/sync", false);
        check("http://hook:+80/sync", false);
        check("http://[::1]:123456/sync", false);
    }

    #[test]
    fn a_url_that_is_refused_is_named_without_password_and_query() {
        for url in [
            "ftp://user:hush@hook/?hush",
            "http://user:hush@hook:99999/ ?hush hush",
            "http://hook:0/?hush",
            "http://?hush",
            "user:hush@hook",
        ] {
            let mut problems = Problems::default();
            let rule = rule(json!({"url": url}), &mut problems);
            let said = problems.rejection().unwrap().to_string();
            assert!(rule.is_none() && !said.contains("hush"), "{said}");
        }
        let rule = rule(json!({"url": "http://hook/sync?hush"}), &mut Problems::default());
        assert!(!format!("{rule:?}").contains("hush"));
    }

    #[test]
    fn hook_is_called_by_service_unless_its_webhook_has_a_url() {
        let check = |webhook: serde_json::Value, url: &str, is_service: bool| {
            let rule = rule(webhook, &mut Problems::default()).unwrap();
            assert_eq!(rule.url, url);
            assert_eq!(rule.is_service, is_service, "{url}");
        };
        let service = json!({"name": "hooks", "namespace": "dev"});

        let by_service = json!({"service": service, "path": "/sync"});
        check(by_service.clone(), "http://hooks.dev:80/sync", true);
        check(json!({"url": "http://hooks.dev/sync"}), "http://hooks.dev/sync", false);
        let mut both = by_service;
        both["url"] = json!("http://hooks.test/sync");
        check(both, "http://hooks.test/sync", false);
    }

    fn timeout(text: &str) -> Option<Duration> {
        let webhook = json!({"url": "http://hooks.test/", "timeout": text});
        rule(webhook, &mut Problems::default()).map(|rule| rule.timeout)
    }

    #[test]
    fn timeout_that_is_not_positive_is_the_default_and_a_long_one_is_cut() {
        for (text, expected) in [
            ("1m30s", Some(Duration::from_secs(90))),
            ("", Some(DEFAULT_TIMEOUT)),
            ("0", Some(DEFAULT_TIMEOUT)),
            ("-1s", Some(DEFAULT_TIMEOUT)),
            ("10m", Some(LONGEST_TIMEOUT)),
            ("10m1ns", Some(LONGEST_TIMEOUT)),
            ("999999h", Some(LONGEST_TIMEOUT)),
            ("99999999999999999999h", Some(LONGEST_TIMEOUT)),
            ("10", None),
            ("1d", None),
        ] {
            assert_eq!(timeout(text), expected, "{text:?}");
        }
    }
}
