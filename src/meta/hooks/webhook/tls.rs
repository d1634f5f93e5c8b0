//! TLS configurations of hooks.

use std::sync::{Arc, OnceLock};

use http::{Uri, uri::Scheme};
use hyper_rustls::ConfigBuilderExt;
use rustls::{ClientConfig, RootCertStore, client::ResolvesClientCert, pki_types::CertificateDer};

pub(in crate::meta) use super::client_identity::identity;
use super::trusted_leaf::TrustedLeaf;
use crate::meta::hooks::error::HookError;

/// Protocols that a hook may choose, the preferred one first. As in Go.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Returns the TLS configuration of hooks that declare none: the system's roots, loaded once. A
/// hook without TLS gets no roots, and so works on a system that has no root certificates. Hooks
/// share each configuration with its cache of sessions, which takes 14 KiB.
pub(super) fn shared(url: &Uri) -> Result<ClientConfig, HookError> {
    static TRUSTED: OnceLock<ClientConfig> = OnceLock::new();
    static WITHOUT_ROOTS: OnceLock<ClientConfig> = OnceLock::new();
    let secure = url.scheme() == Some(&Scheme::HTTPS);
    let shared = if secure { &TRUSTED } else { &WITHOUT_ROOTS };
    if let Some(shared) = shared.get() {
        return Ok(shared.clone());
    }
    let no_roots: &[CertificateDer<'static>] = &[];
    let created = configuration((!secure).then_some(no_roots), None)
        .map_err(|error| HookError::Transport(format!("preparing TLS: {error}")))?;
    Ok(shared.get_or_init(|| created).clone())
}

/// Returns a TLS configuration that trusts `roots`, or else the system's. TLS 1.2 or 1.3. As in Go,
/// roots that cannot be used are left out.
///
/// # Errors
///
/// If none of the roots can be used.
pub(in crate::meta) fn configuration(
    roots: Option<&[CertificateDer<'static>]>,
    identity: Option<Arc<dyn ResolvesClientCert>>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match roots {
        None => builder.try_with_platform_verifier()?,
        Some(certificates) => {
            let mut roots = RootCertStore::empty();
            let mut unusable = None;
            for certificate in certificates {
                unusable = roots.add(certificate.clone()).err().or(unusable);
            }
            if let Some(error) = unusable.filter(|_| roots.is_empty()) {
                return Err(error);
            }
            if roots.is_empty() {
                builder.with_root_certificates(roots)
            } else {
                let verifier = TrustedLeaf::new(certificates, roots, provider);
                let verifier =
                    verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        }
    };
    let mut configuration = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    configuration.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(configuration)
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, pki_types::ServerName};

    use super::*;

    /// Returns the bytes of the first message to a hook.
    fn hello() -> Vec<u8> {
        let config = configuration(Some(&[]), None).unwrap();
        let name = ServerName::try_from("hook.example.com").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        hello
    }

    #[test]
    fn hook_is_offered_http_2_before_1_1() {
        let hello = hello();

        let protocols = b"\x02h2\x08http/1.1";
        assert!(hello.windows(protocols.len()).any(|bytes| bytes == protocols), "{hello:x?}");
    }

    #[test]
    fn hook_is_offered_tls_1_3_and_1_2_and_nothing_older() {
        let hello = hello();

        // Extension supported_versions with two versions, 0x0304 and 0x0303.
        let versions = [0x00, 0x2b, 0x00, 0x05, 0x04, 0x03, 0x04, 0x03, 0x03];
        assert!(hello.windows(versions.len()).any(|bytes| bytes == versions), "{hello:x?}");
    }
}
