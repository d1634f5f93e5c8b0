//! Addresses that servers bind.

use std::{
    fmt, io,
    net::{TcpListener, ToSocketAddrs},
    str::FromStr,
};

/// Address of a server in Go's format: `:8081`, `127.0.0.1:9999`, `[::1]:0`; `0` for no server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BindAddress {
    Off,
    /// All addresses of the machine.
    Any(u16),
    Host(String),
}

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "give :PORT, HOST:PORT, or 0 for no server";
        if text == "0" {
            return Ok(Self::Off);
        }
        let (host, port) = text.rsplit_once(':').ok_or(hint)?;
        let port = match port {
            // As in Go, no port means any, and a port may have the name of its service.
            "" => 0,
            "http" => 80,
            "https" => 443,
            _ => port.parse().map_err(|_| format!("{port:?} is not a port; {hint}"))?,
        };
        Ok(if host.is_empty() { Self::Any(port) } else { Self::Host(format!("{host}:{port}")) })
    }
}

/// Parses the address of the metrics. An empty one is the default of controller-runtime.
pub(super) fn metrics(text: &str) -> Result<BindAddress, String> {
    if text.is_empty() { Ok(BindAddress::Any(8080)) } else { text.parse() }
}

/// Parses the address of the probes; an empty one means no server, as in controller-runtime.
pub(super) fn probes(text: &str) -> Result<BindAddress, String> {
    if text.is_empty() { Ok(BindAddress::Off) } else { text.parse() }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("0"),
            Self::Any(port) => write!(f, ":{port}"),
            Self::Host(host) => f.write_str(host),
        }
    }
}

impl BindAddress {
    /// Binds the address, so that a failure is known before anything starts.
    pub(super) fn listen(&self) -> io::Result<Option<TcpListener>> {
        let listener = match self {
            Self::Off => return Ok(None),
            // Both address families, if the machine has both.
            Self::Any(port) => TcpListener::bind(("::", *port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", *port)))?,
            Self::Host(host) => {
                let addresses: Vec<_> = host.to_socket_addrs()?.collect();
                TcpListener::bind(&*addresses)?
            }
        };
        listener.set_nonblocking(true)?;
        Ok(Some(listener))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_in_go() {
        assert_eq!("0".parse(), Ok(BindAddress::Off));
        assert_eq!(":9999".parse(), Ok(BindAddress::Any(9999)));
        assert_eq!("[::1]:0".parse(), Ok(BindAddress::Host("[::1]:0".into())));
        assert_eq!(":".parse(), Ok(BindAddress::Any(0)));
        assert_eq!(":http".parse(), Ok(BindAddress::Any(80)));
        assert_eq!("127.0.0.1:".parse(), Ok(BindAddress::Host("127.0.0.1:0".into())));
        assert_eq!(metrics(""), Ok(BindAddress::Any(8080)));
        assert_eq!(probes(""), Ok(BindAddress::Off));
        for wrong in ["", "9999", ":gopher", ":70000"] {
            assert!(wrong.parse::<BindAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_in_use_is_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = BindAddress::Host(taken.local_addr().unwrap().to_string());

        let error = address.listen().unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
