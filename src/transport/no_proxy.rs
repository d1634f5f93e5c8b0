//! Proxy settings from environment variables.
//!
//! Semantics: Go's `golang.org/x/net/http/httpproxy`, which client-go uses.

use std::{net::IpAddr, sync::Arc};

use http::{Uri, uri::Scheme};
use kube::Config;

use super::{
    Error,
    proxy::{Proxy, port},
};

/// Sets the proxy of `config` from the environment, unless the kubeconfig has a `proxy-url`, which
/// always wins. `variable` reads an environment variable:
///
/// ```
/// # fn example(mut config: kube::Config) -> Result<(), pilotlight::transport::Error> {
/// use pilotlight::transport::proxy_from_environment;
///
/// proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
/// # Ok(())
/// # }
/// ```
///
/// Reads `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`, whose entries name hosts to
/// reach directly: `example.com` (with all subdomains), `.example.com` (only subdomains),
/// `10.0.0.1`, `10.0.0.0/8`, each with an optional `:port` (except a range), or `*`. A loopback
/// address is always reached directly, and so is a server without TLS.
///
/// kube reads `HTTPS_PROXY` for kubeconfigs too, but it does not apply `NO_PROXY`, and in a pod it
/// reads neither. Therefore call this after the configuration has been read.
///
/// # Errors
///
/// If the variable does not hold a URL.
pub fn proxy_from_environment(
    config: &mut Config,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), Error> {
    let Some(proxy) = url(&variable, ["HTTPS_PROXY", "https_proxy"])? else { return Ok(()) };
    if config.proxy_url.as_ref().is_some_and(|own| *own != proxy) {
        return Ok(());
    }
    let exceptions = exceptions(&variable);
    let server = &config.cluster_url;
    let direct = server.scheme() != Some(&Scheme::HTTPS) || is_direct(server, &exceptions);
    config.proxy_url = (!direct).then_some(proxy);
    Ok(())
}

/// Proxies of hooks, by the scheme of the hook's URL; none by default. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Arc<Proxy>>,
    https: Option<Arc<Proxy>>,
    exceptions: Arc<str>,
}

impl Proxies {
    /// Returns the proxies that the environment names, as Go's `http.ProxyFromEnvironment`.
    /// `variable` reads an environment variable.
    ///
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, each in lower case too. The entries of
    /// `NO_PROXY` are those of [`proxy_from_environment`].
    ///
    /// # Errors
    ///
    /// If a variable does not hold the URL of a proxy of http or https.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let proxy = |names: [&str; 2]| -> Result<_, Error> {
            url(&variable, names)?.map(|url| Proxy::new(&url).map(Arc::new)).transpose()
        };
        Ok(Self {
            http: proxy(["HTTP_PROXY", "http_proxy"])?,
            https: proxy(["HTTPS_PROXY", "https_proxy"])?,
            exceptions: exceptions(&variable).into(),
        })
    }

    /// Returns the proxy through which a URL is reached.
    #[cfg(any(test, feature = "meta"))]
    pub(crate) fn of(&self, url: &Uri) -> Option<&Arc<Proxy>> {
        let proxy = match url.scheme_str() {
            Some("http") => &self.http,
            Some("https") => &self.https,
            Some(_) | None => return None,
        };
        proxy.as_ref().filter(|_| !is_direct(url, &self.exceptions))
    }
}

/// Returns the URL in the first of the variables that is set and not empty.
fn url(variable: &impl Fn(&str) -> Option<String>, names: [&str; 2]) -> Result<Option<Uri>, Error> {
    let Some((name, value)) = lookup(variable, names) else { return Ok(None) };
    // Not included in the error, because the value may hold a password.
    let url = value.parse().map_err(|_| Error::ProxyVariable { variable: name.to_owned() })?;
    Ok(Some(url))
}

/// Returns the value of `NO_PROXY`.
fn exceptions(variable: &impl Fn(&str) -> Option<String>) -> String {
    lookup(variable, ["NO_PROXY", "no_proxy"]).map(|(_, value)| value).unwrap_or_default()
}

fn lookup<'a>(
    variable: &impl Fn(&str) -> Option<String>,
    names: [&'a str; 2],
) -> Option<(&'a str, String)> {
    names.into_iter().find_map(|name| {
        variable(name).filter(|value| !value.is_empty()).map(|value| (name, value))
    })
}

/// Returns whether a server is reached without the proxy.
fn is_direct(server: &Uri, exceptions: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    let port = port(server);
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost"
        || address.is_some_and(|address| address.is_loopback())
        || exceptions
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .any(|entry| matches(&entry.to_ascii_lowercase(), host, address, port))
}

/// Returns whether one entry of `NO_PROXY` matches a host.
fn matches(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/') {
        let network: Option<IpAddr> = network.parse().ok();
        let bits: Option<u32> = bits.parse().ok();
        return match (network, bits, address) {
            (Some(network), Some(bits), Some(address)) => contains(network, bits, address),
            (None, _, _) | (_, None, _) | (_, _, None) => false,
        };
    }
    // Splits off the port of `[::1]:443` and `host:443`, but no part of `::1`.
    let (name, wanted) = match entry.rsplit_once(':') {
        Some((name, wanted)) if !name.contains(':') || name.ends_with(']') => (name, Some(wanted)),
        Some(_) | None => (entry, None),
    };
    if wanted.is_some_and(|wanted| wanted.parse() != Ok(port)) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    if let Ok(wanted) = name.parse::<IpAddr>() {
        return address == Some(wanted);
    }
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    let below = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    match name.strip_prefix('.') {
        Some(domain) => below(domain),
        None => host == name || below(name),
    }
}

/// Returns whether a network of `bits` leading bits contains an address.
fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    let same = |network: u128, address: u128, width: u32| {
        bits <= width && (network ^ address).checked_shr(width - bits).unwrap_or(0) == 0
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            same(network.to_bits().into(), address.to_bits().into(), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            same(network.to_bits(), address.to_bits(), 128)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(exceptions: &str, server: &str, direct: bool) {
        let server: Uri = format!("https://{server}").parse().unwrap();

        assert_eq!(is_direct(&server, exceptions), direct, "{exceptions:?} {server}");
    }

    #[test]
    fn entries_of_no_proxy_match_hosts_as_in_go() {
        check("", "api.example.com", false);
        check("", "localhost:6443", true);
        check("", "127.0.0.5:6443", true);
        check("", "[::1]:6443", true);
        check("*", "api.example.com", true);
        check("a.org, *", "api.example.com", true);
        check("example.com", "example.com", true);
        check("example.com", "api.example.com", true);
        check("EXAMPLE.com", "api.Example.com", true);
        check("example.com", "badexample.com", false);
        check(".example.com", "api.example.com", true);
        check(".example.com", "example.com", false);
        check("*.example.com", "api.example.com", true);
        check("*.example.com", "example.com", false);
        check("a.org,,example.com", "api.example.com", true);
        check("example.com:6443", "api.example.com:6443", true);
        check("example.com:6443", "api.example.com", false);
        check("example.com:443", "api.example.com", true);
        check("example.com:no", "api.example.com", false);
        check("10.0.0.1", "10.0.0.1:6443", true);
        check("10.0.0.1", "10.0.0.10", false);
        check("10.0.0.1:6443", "10.0.0.1:6443", true);
        check("10.0.0.1:6443", "10.0.0.1", false);
        check("10.96.0.0/12", "10.111.255.255:443", true);
        check("10.96.0.0/12", "10.112.0.0", false);
        check("0.0.0.0/0", "10.112.0.0", true);
        check("10.0.0.0/33", "10.0.0.0", false);
        check("10.0.0.0/x", "10.0.0.0", false);
        check("10.0.0.0/8", "example.com", false);
        check("fd00::/8", "[fd00::1]:6443", true);
        check("fd00::/8", "[fe00::1]", false);
        check("fd00::1", "[fd00::1]", true);
        check("[fd00::1]:6443", "[fd00::1]:6443", true);
        check("[fd00::1]:6443", "[fd00::1]", false);
        check("fd00::/8", "10.0.0.1", false);
    }

    #[track_caller]
    fn proxy(own: Option<&str>, server: &str, variables: &[(&str, &str)]) -> Option<String> {
        let mut config = Config::new(server.parse().unwrap());
        config.proxy_url = own.map(|own| own.parse().unwrap());
        let lookup = |name: &str| {
            let of_name = variables.iter().find(|(variable, _)| *variable == name);
            of_name.map(|(_, value)| (*value).to_owned())
        };
        proxy_from_environment(&mut config, lookup).unwrap();
        config.proxy_url.map(|proxy| proxy.to_string())
    }

    #[test]
    fn environment_applies_if_the_kubeconfig_has_no_proxy() {
        let server = "https://api.example.com:6443";
        let one = ("HTTPS_PROXY", "http://one:3128/");
        let other = ("https_proxy", "http://other:3128/");

        assert_eq!(proxy(None, server, &[]), None);
        assert_eq!(proxy(None, server, &[one, other]).unwrap(), "http://one:3128/");
        assert_eq!(proxy(None, server, &[("HTTPS_PROXY", ""), other]).unwrap(), other.1);
        assert_eq!(proxy(None, server, &[one, ("NO_PROXY", "example.com")]), None);
        assert_eq!(proxy(None, server, &[one, ("no_proxy", "example.com")]), None);
        assert_eq!(proxy(None, "http://api.example.com", &[one]), None);
        // As kube sets it from the environment.
        assert_eq!(proxy(Some(one.1), server, &[one, ("NO_PROXY", "example.com")]), None);
        let own = "http://own:3128/";
        assert_eq!(proxy(Some(own), server, &[one, ("NO_PROXY", "*")]).unwrap(), own);
        assert_eq!(proxy(Some(own), server, &[]).unwrap(), own);
    }

    #[test]
    fn hook_is_reached_through_the_proxy_of_its_scheme_unless_it_is_excepted() {
        let variables = [
            ("HTTP_PROXY", "http://plain:3128"),
            ("https_proxy", "secure:3129"),
            ("NO_PROXY", "hooks.svc:80,10.0.0.0/8"),
        ];
        let proxies = Proxies::from_environment(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
        .unwrap();
        for (url, proxy) in [
            ("http://example.com/sync", Some("http://plain:3128/")),
            ("https://example.com/sync", Some("http://secure:3129/")),
            ("http://hooks.svc/sync", None),
            ("http://a.hooks.svc:80/sync", None),
            ("https://hooks.svc/sync", Some("http://secure:3129/")),
            ("http://10.1.2.3/sync", None),
            ("http://localhost:8080/sync", None),
            ("https://[::1]/sync", None),
        ] {
            let found = proxies.of(&url.parse().unwrap()).map(|proxy| proxy.address.to_string());
            assert_eq!(found.as_deref(), proxy, "{url}");
        }
        let none = Proxies::from_environment(|_| None).unwrap();
        assert!(none.of(&"http://example.com/".parse().unwrap()).is_none());
    }

    #[test]
    fn a_variable_that_is_no_url_is_named_without_its_value() {
        let mut config = Config::new("https://api.example.com".parse().unwrap());

        let variable = |_: &str| Some("http://me:secret@a b".to_owned());
        let error = proxy_from_environment(&mut config, variable).unwrap_err().to_string();

        assert!(error.contains("HTTPS_PROXY"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
