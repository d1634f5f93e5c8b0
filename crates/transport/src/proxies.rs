//! Proxies of the environment, by the scheme of a URL.

use std::sync::Arc;

use http::Uri;

use super::{
    no_proxy::{exceptions, is_direct, lookup, parse},
    proxy::ConnectProxy,
};

/// Proxies by the scheme of a URL, as environment variables name them; none by default. Cheap to
/// clone. For requests outside the transport, such as those to webhooks.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Configured>,
    https: Option<Configured>,
    exceptions: Arc<str>,
}

/// Proxy, or the reason for which it cannot be used.
#[derive(Clone, Debug)]
enum Configured {
    Usable(Arc<ConnectProxy>),
    Unusable(Arc<str>),
}

impl Proxies {
    /// Returns the proxies that the environment names, as Go's `http.ProxyFromEnvironment`.
    /// `variable` reads an environment variable.
    ///
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, each in lower case too. The entries of
    /// `NO_PROXY` are those of [`proxy_from_environment`](super::proxy_from_environment). A
    /// variable that does not hold the URL of a proxy of http or https is one of the
    /// [`problems`](Self::problems), and calls that need its proxy fail.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let proxy = |names: [&str; 2]| {
            let (name, value) = lookup(&variable, names)?;
            Some(match parse(name, &value).and_then(|url| ConnectProxy::new(&url)) {
                Ok(proxy) => Configured::Usable(Arc::new(proxy)),
                Err(error) => Configured::Unusable(format!("{name}: {error}").into()),
            })
        };
        Self {
            http: proxy(["HTTP_PROXY", "http_proxy"]),
            https: proxy(["HTTPS_PROXY", "https_proxy"]),
            exceptions: exceptions(&variable).into(),
        }
    }

    /// Returns the reasons for which variables cannot be used, each with the name of its variable
    /// and without credentials.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.http.iter().chain(&self.https).filter_map(|proxy| match proxy {
            Configured::Usable(_) => None,
            Configured::Unusable(reason) => Some(&**reason),
        })
    }

    /// Returns the proxy through which a URL is reached, if any.
    ///
    /// # Errors
    ///
    /// The reason, if that proxy cannot be used.
    pub fn of(&self, url: &Uri) -> Result<Option<&Arc<ConnectProxy>>, &str> {
        let proxy = match url.scheme_str() {
            Some("http") => &self.http,
            Some("https") => &self.https,
            Some(_) | None => return Ok(None),
        };
        match proxy.as_ref().filter(|_| !is_direct(url, &self.exceptions)) {
            None => Ok(None),
            Some(Configured::Usable(proxy)) => Ok(Some(proxy)),
            Some(Configured::Unusable(reason)) => Err(reason),
        }
    }
}
