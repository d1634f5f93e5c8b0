//! Redirects of a hook. Functions without I/O.
//!
//! Semantics: Go's `net/http`, of whose redirects 307 and 308 send the body again. Others are
//! errors: they would make a GET of the call.

use http::{HeaderMap, StatusCode, Uri, header};

/// Largest number of redirects of one call.
pub(super) const MAX_REDIRECTS: usize = 10;

/// Returns the URL to which a response redirects a call, if any. `None` also from https to http,
/// since the request would be sent in clear text.
pub(super) fn target(status: StatusCode, headers: &HeaderMap, from: &Uri) -> Option<Uri> {
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    let location = headers.get(header::LOCATION)?.to_str().ok()?;
    // A fragment is not sent.
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let absolute = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if has_scheme(location) {
        location.to_owned()
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", from.path())
    } else {
        let path = from.path();
        let directory = path.rfind('/').map_or("/", |end| &path[..=end]);
        format!("{scheme}://{authority}{directory}{location}")
    };
    let target: Uri = absolute.parse().ok()?;
    let is_http = match target.scheme_str() {
        Some("https") => true,
        Some("http") => scheme == "http",
        Some(_) | None => false,
    };
    (is_http && target.host().is_some_and(|host| !host.is_empty())).then_some(target)
}

/// Returns whether a location is absolute: the text before the first `:` is a scheme.
fn has_scheme(location: &str) -> bool {
    let is_delimiter = |character| matches!(character, ':' | '/' | '?');
    let end = location.find(is_delimiter).unwrap_or(location.len());
    location[end..].starts_with("://")
}

/// Returns whether credentials of one URL may be sent to the other: the names of their hosts are
/// equal, whatever scheme and port are. Go also sends them to subdomains.
pub(super) fn is_same_host(one: &Uri, other: &Uri) -> bool {
    let host = |url: &Uri| url.host().map(str::to_ascii_lowercase);
    host(one) == host(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_of_a_redirect_is_absolute() {
        let from = Uri::from_static("https://hook.test:8443/a/b?q");
        for (code, location, expected) in [
            (307, "https://other.test/x?y#z", Some("https://other.test/x?y")),
            (308, "/x", Some("https://hook.test:8443/x")),
            (308, "x", Some("https://hook.test:8443/a/x")),
            (308, "?x=1", Some("https://hook.test:8443/a/b?x=1")),
            (308, "x?u=http://h", Some("https://hook.test:8443/a/x?u=http://h")),
            (308, "x/http://h", Some("https://hook.test:8443/a/x/http://h")),
            (308, "//other.test/x", Some("https://other.test/x")),
            (307, "http://hook.test/x", None),
            (307, "ftp://other.test/", None),
            (307, "http:///x", None),
            (301, "/x", None),
            (302, "/x", None),
            (303, "/x", None),
            (200, "/x", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::LOCATION, location.parse().unwrap());
            let target = target(StatusCode::from_u16(code).unwrap(), &headers, &from);
            assert_eq!(target.map(|url| url.to_string()).as_deref(), expected, "{location}");
        }
        assert_eq!(target(StatusCode::PERMANENT_REDIRECT, &HeaderMap::new(), &from), None);
    }

    #[test]
    fn credentials_stay_with_their_host() {
        let of = |url: &'static str| Uri::from_static(url);
        assert!(is_same_host(&of("https://Hook.test/a"), &of("https://hook.test:443/b")));
        assert!(is_same_host(&of("https://hook.test/"), &of("http://hook.test/")));
        assert!(is_same_host(&of("https://hook.test/"), &of("https://hook.test:8443/")));
        assert!(!is_same_host(&of("https://hook.test/"), &of("https://a.hook.test/")));
        assert!(!is_same_host(&of("https://hook.test/"), &of("https://ahook.test/")));
    }
}
