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
    if location.is_empty() {
        return None;
    }
    // A fragment is not sent.
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let absolute = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if has_scheme(location) {
        location.to_owned()
    } else if location.is_empty() {
        from.to_string()
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", from.path())
    } else {
        let path = from.path();
        let directory = path.rfind('/').map_or("/", |end| &path[..=end]);
        format!("{scheme}://{authority}{directory}{location}")
    };
    let target = without_dot_segments(absolute.parse().ok()?)?;
    let is_http = match target.scheme_str() {
        Some("https") => true,
        Some("http") => scheme == "http",
        Some(_) | None => false,
    };
    (is_http && target.host().is_some_and(|host| !host.is_empty())).then_some(target)
}

/// Returns whether a location is absolute: the text before the first `:` is a scheme.
fn has_scheme(location: &str) -> bool {
    let is_of_scheme = |it: char| it.is_ascii_alphanumeric() || matches!(it, '+' | '-' | '.');
    location.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(is_of_scheme)
    })
}

/// Returns a URL without the segments `.` and `..` of its path, as RFC 3986 (5.2.4) removes them.
fn without_dot_segments(url: Uri) -> Option<Uri> {
    let is_dots = |segment| matches!(segment, "." | "..");
    let path = url.path();
    if !path.split('/').any(is_dots) {
        return Some(url);
    }
    let mut kept = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    // A path that ends in dots is that of a directory.
    if path.rsplit('/').next().is_some_and(is_dots) {
        kept.push("");
    }
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("/{}{query}", kept.join("/"));
    let mut parts = url.into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
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
            (308, "../x?y=..", Some("https://hook.test:8443/x?y=..")),
            (308, "./x", Some("https://hook.test:8443/a/x")),
            (308, "/a/../../x/.", Some("https://hook.test:8443/x/")),
            (308, "https://other.test/a/..", Some("https://other.test/")),
            (308, "#z", Some("https://hook.test:8443/a/b?q")),
            (308, "", None),
            (308, "mailto:x", None),
            (308, "http:/x", None),
            (308, "1:x", Some("https://hook.test:8443/a/1:x")),
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
