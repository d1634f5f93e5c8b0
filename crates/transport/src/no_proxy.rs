//! Proxy settings from environment variables.
//!
//! Semantics: Go's `golang.org/x/net/http/httpproxy`, which client-go uses.

use std::net::IpAddr;

use http::{Uri, uri::Scheme};
use kube::Config;

use super::{Error, proxy::port};

/// Sets the proxy of `config` from the environment, unless the kubeconfig has a `proxy-url`, which
/// always wins. `variable` reads an environment variable:
///
/// ```
/// # fn example(mut config: kube::Config) -> Result<(), pilotlight_transport::Error> {
/// use pilotlight_transport::proxy_from_environment;
///
/// proxy_from_environment(&mut config, |name| std::env::var(name).ok())?;
/// # Ok(())
/// # }
/// ```
///
/// Reads `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`. Entries of the latter name
/// hosts to reach directly: `example.com` (with all subdomains), `.example.com` (only subdomains),
/// `10.0.0.1`, `10.0.0.0/8`, each with an optional `:port` (except a range), or `*`. A loopback
/// address is always reached directly, and so is a server without TLS.
///
/// kube reads `HTTPS_PROXY` for kubeconfigs too, but it does not apply `NO_PROXY`, and in a pod it
/// reads neither. Therefore call this after the configuration has been read.
///
/// # Errors
///
/// If the server is to be reached through a proxy, and the variable does not hold a URL.
pub fn proxy_from_environment(
    config: &mut Config,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), Error> {
    let Some((name, value)) = lookup(&variable, ["HTTPS_PROXY", "https_proxy"]) else {
        return Ok(());
    };
    let proxy = parse(name, &value);
    if config.proxy_url.as_ref().is_some_and(|own| proxy.as_ref().ok() != Some(own)) {
        return Ok(());
    }
    let server = &config.cluster_url;
    let direct =
        server.scheme() != Some(&Scheme::HTTPS) || is_direct(server, &exceptions(&variable));
    config.proxy_url = if direct { None } else { Some(proxy?) };
    Ok(())
}

/// Returns the URL of a variable. The value is not part of the error, since it may hold a password.
pub(super) fn parse(name: &str, value: &str) -> Result<Uri, Error> {
    let address = value.split_once("://").map_or(value, |(_, address)| address);
    // An unencoded delimiter in a password would end the host there.
    let rest = address.find(['/', '?', '#']).map_or("", |end| &address[end..]);
    let url = if rest.contains('@') { None } else { value.parse().ok() };
    url.ok_or_else(|| Error::ProxyVariable { variable: name.to_owned() })
}

/// Returns the value of `NO_PROXY`.
pub(super) fn exceptions(variable: &impl Fn(&str) -> Option<String>) -> String {
    lookup(variable, ["NO_PROXY", "no_proxy"]).map(|(_, value)| value).unwrap_or_default()
}

pub(super) fn lookup<'a>(
    variable: &impl Fn(&str) -> Option<String>,
    names: [&'a str; 2],
) -> Option<(&'a str, String)> {
    names.into_iter().find_map(|name| {
        let value = variable(name)?.trim().to_owned();
        (!value.is_empty()).then_some((name, value))
    })
}

/// Returns whether a server is reached without the proxy.
pub(super) fn is_direct(server: &Uri, exceptions: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let host = without_dot(&host);
    let port = port(server);
    // An IPv4-mapped address is the IPv4 address, as in Go.
    let address: Option<IpAddr> = host.parse().ok().map(|address: IpAddr| address.to_canonical());
    host == "localhost"
        || address.is_some_and(|address| address.is_loopback())
        || exceptions
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .any(|entry| matches(&entry.to_ascii_lowercase(), host, address, port))
}

/// Returns a name without the dot of the root zone.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Returns whether one entry of `NO_PROXY` matches a host.
fn matches(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/') {
        let network: Option<IpAddr> = network.parse().ok();
        let bits: Option<u32> = bits.parse().ok();
        let (network, bits) = match (network, network.map(|network| network.to_canonical()), bits) {
            (Some(IpAddr::V6(_)), Some(mapped @ IpAddr::V4(_)), Some(bits)) => {
                (Some(mapped), bits.checked_sub(96))
            }
            (network, _, bits) => (network, bits),
        };
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
    // No port stands behind `host:`, which is the host alone.
    let wanted = wanted.filter(|wanted| !wanted.is_empty());
    if wanted.is_some_and(|wanted| wanted.parse() != Ok(port)) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    if let Ok(wanted) = name.parse::<IpAddr>() {
        return address == Some(wanted.to_canonical());
    }
    let name = without_dot(name);
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
    use super::{super::Proxies, *};

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
        check("example.com.", "api.example.com", true);
        check("example.com", "api.example.com.", true);
        check("example.com.", "example.com.", true);
        check("", "localhost.", true);
        check("example.com:", "example.com:6443", true);
        check("[fd00::1]:", "[fd00::1]:6443", true);
        check("10.0.0.1", "[::ffff:10.0.0.1]", true);
        check("::ffff:10.0.0.1", "10.0.0.1", true);
        check("10.0.0.0/8", "[::ffff:10.0.0.1]", true);
        check("::ffff:10.0.0.0/104", "10.0.0.1", true);
        check("::ffff:10.0.0.0/104", "11.0.0.1", false);
        check("", "[::ffff:127.0.0.1]:6443", true);
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
        });
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
            let found = proxies.of(&url.parse().unwrap()).unwrap();
            let found = found.map(|proxy| proxy.address.to_string());
            assert_eq!(found.as_deref(), proxy, "{url}");
        }
        let none = Proxies::from_environment(|_| None);
        assert!(matches!(none.of(&"http://example.com/".parse().unwrap()), Ok(None)));
    }

    #[test]
    fn a_variable_that_is_no_url_is_named_without_its_value() {
        let mut config = Config::new("https://api.example.com".parse().unwrap());

        let variable = |_: &str| Some("http://me:secret@a b".to_owned());
        let error = proxy_from_environment(&mut config, variable).unwrap_err().to_string();

        assert!(error.contains("HTTPS_PROXY"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn variable_that_cannot_be_used_fails_only_the_calls_that_need_its_proxy() {
        for (value, reason) in [
            ("socks5://me:secret@proxy:1080", "the proxy socks5://proxy:1080/ is not supported"),
            ("http://me:secret@a b", "is not the URL of a proxy"),
            ("http://me:sec/secret@proxy:1", "is not the URL of a proxy"),
            ("http://me:1#secret@proxy:1", "is not the URL of a proxy"),
        ] {
            let variable = |name: &str| match name {
                "HTTP_PROXY" => Some(value.to_owned()),
                "HTTPS_PROXY" => Some(" http://usable:3128 ".to_owned()),
                "NO_PROXY" => Some("excepted.org".to_owned()),
                _ => None,
            };
            let proxies = Proxies::from_environment(variable);
            let problems: Vec<_> = proxies.problems().collect();
            let of = |url: &str| proxies.of(&url.parse().unwrap());

            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with("HTTP_PROXY: "), "{problems:?}");
            assert!(problems[0].contains(reason), "{problems:?}");
            assert!(!problems[0].contains("sec"), "{problems:?}");
            assert_eq!(of("http://example.com/").err(), Some(problems[0]));
            assert!(matches!(of("http://excepted.org/"), Ok(None)), "NO_PROXY counts first");
            let usable = of("https://example.com/").unwrap().unwrap();
            assert_eq!(usable.address, "http://usable:3128/", "blanks around it do not count");
        }
        let blank = Proxies::from_environment(|_| Some("  ".to_owned()));
        assert!(matches!(blank.of(&"http://example.com/".parse().unwrap()), Ok(None)));
    }

    #[test]
    fn server_that_is_reached_directly_needs_no_usable_variable() {
        let unusable = ("HTTPS_PROXY", "a b");

        let direct = [unusable, ("NO_PROXY", "example.com")];
        assert_eq!(proxy(None, "https://api.example.com", &direct), None);
        assert_eq!(proxy(None, "http://api.example.com", &[unusable]), None);
        let own = "http://own:3128/";
        assert_eq!(proxy(Some(own), "https://api.example.com", &[unusable]).unwrap(), own);
    }
}
