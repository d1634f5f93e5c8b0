//! Verifier of servers whose certificate is itself one of the trusted ones.
//!
//! `openssl req -x509` makes a certificate of an authority, which webpki accepts from no server. Go
//! accepts it from a server if it is among the trusted certificates, and so does this verifier.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// Verifier that trusts these certificates, from a server too.
#[derive(Debug)]
pub(super) struct TrustedLeaf {
    trusted: Vec<CertificateDer<'static>>,
    webpki: Arc<WebPkiServerVerifier>,
}

impl TrustedLeaf {
    pub(super) fn new(
        trusted: &[CertificateDer<'static>],
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Self { trusted: trusted.to_vec(), webpki: webpki.build()? })
    }
}

impl ServerCertVerifier for TrustedLeaf {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            Err(error) if is_authority(&error) && self.trusted.contains(end_entity) => {
                // The dates were checked before that error.
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Returns whether a certificate was refused from a server because it is that of an authority.
fn is_authority(error: &Error) -> bool {
    // The error is webpki's, which rustls does not export: its only name is its debug text.
    matches!(
        error,
        Error::InvalidCertificate(CertificateError::Other(other))
            if format!("{:?}", other.0) == "CaUsedAsEndEntity"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    /// Self-signed certificate of an authority that is a server too.
    fn authority(name: &str) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, 1));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn verify(
        trusted: &CertificateDer<'static>,
        shown: &CertificateDer<'static>,
        name: &'static str,
        year: u64,
    ) -> Result<ServerCertVerified, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = TrustedLeaf::new(std::slice::from_ref(trusted), roots, provider).unwrap();
        let name = ServerName::try_from(name).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
        verifier.verify_server_cert(shown, &[], &name, &[], now)
    }

    #[test]
    fn certificate_of_an_authority_is_accepted_from_a_server_if_it_is_trusted_itself() {
        let (own, other) = (authority("hook.test"), authority("hook.test"));

        assert!(verify(&own, &own, "hook.test", 2025).is_ok());
        assert!(verify(&own, &own, "other.test", 2025).is_err(), "another name");
        assert!(verify(&own, &own, "hook.test", 2035).is_err(), "expired");
        assert!(verify(&own, &own, "hook.test", 2015).is_err(), "not valid yet");
        assert!(verify(&own, &other, "hook.test", 2025).is_err(), "not trusted");
    }
}
