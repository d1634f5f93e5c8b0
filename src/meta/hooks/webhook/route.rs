//! Route to a hook: the name that is looked up, and the proxy.
//!
//! The service `hooks` in the namespace `dev` has the URL of Metacontroller, with the host
//! `hooks.dev`: in the header `Host`, for TLS and in configurations. Its connections are opened to
//! `hooks.dev.svc`. Without a service of that name, a look-up of `hooks.dev` would end in the public
//! DNS, where a stranger may own that domain.

use std::sync::Arc;

use http::Uri;

use crate::transport::{ConnectProxy, Proxies};

/// Suffix of the names of services, which no public domain has.
const SERVICE_SUFFIX: &str = ".svc";

/// Routes to a hook and to the targets of its redirects. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    pub(super) proxies: Proxies,
    /// Host of the hook's URL, if that names a service.
    pub(super) service: Option<Arc<str>>,
}

impl Routes {
    /// Returns a URL with the name that is looked up for it.
    pub(super) fn address(&self, url: &Uri) -> Uri {
        let host = url.host().unwrap_or_default();
        if self.service.as_deref().is_none_or(|service| !service.eq_ignore_ascii_case(host)) {
            return url.clone();
        }
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let mut parts = url.clone().into_parts();
        parts.authority = format!("{host}{SERVICE_SUFFIX}{port}").parse().ok();
        Uri::from_parts(parts).unwrap_or_default()
    }

    /// Returns the proxy through which a URL is reached, if any. An exception of `NO_PROXY` counts
    /// for either name of a service.
    ///
    /// # Errors
    ///
    /// The reason, if that proxy cannot be used.
    pub(super) fn proxy(&self, url: &Uri) -> Result<Option<&Arc<ConnectProxy>>, &str> {
        match self.proxies.of(&self.address(url)) {
            Ok(None) => Ok(None),
            Ok(Some(_)) | Err(_) => self.proxies.of(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(exceptions: &str) -> Routes {
        let proxies = Proxies::from_environment(|name| match name {
            "HTTP_PROXY" | "HTTPS_PROXY" => Some("http://proxy:3128".to_owned()),
            "NO_PROXY" => Some(exceptions.to_owned()),
            _ => None,
        });
        Routes { proxies, service: Some("hooks.dev".into()) }
    }

    #[test]
    fn service_is_looked_up_below_svc_and_other_hosts_as_they_are() {
        for (url, expected) in [
            ("http://hooks.dev:80/sync?a=b", "http://hooks.dev.svc:80/sync?a=b"),
            ("https://Hooks.dev/sync", "https://Hooks.dev.svc/sync"),
            ("http://hooks.dev.svc:80/sync", "http://hooks.dev.svc:80/sync"),
            ("http://other.dev:80/sync", "http://other.dev:80/sync"),
            ("http://10.0.0.1:80/sync", "http://10.0.0.1:80/sync"),
        ] {
            assert_eq!(routes("").address(&url.parse().unwrap()), expected);
            let url: Uri = url.parse().unwrap();
            assert_eq!(Routes::default().address(&url), url, "the URL of no service");
        }
    }

    #[test]
    fn service_is_reached_without_a_proxy_if_either_of_its_names_is_excepted() {
        for (exceptions, url, direct) in [
            ("", "http://hooks.dev:80/", false),
            (".svc", "http://hooks.dev:80/", true),
            (".svc", "https://hooks.dev:443/", true),
            (".svc", "http://other.dev:80/", false),
            ("hooks.dev", "http://hooks.dev:80/", true),
            ("hooks.dev:80", "https://hooks.dev:8443/", false),
            ("svc:8443", "https://hooks.dev:8443/", true),
        ] {
            let routes = routes(exceptions);
            let proxy = routes.proxy(&url.parse().unwrap());
            assert_eq!(matches!(proxy, Ok(None)), direct, "{exceptions:?} {url}");
        }
    }
}
