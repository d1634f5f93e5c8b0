//! Tests of certificates of X.509 version 1, as `openssl x509 -req` makes them without extensions.

use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

/// Certificate of a client, valid until 2126; signed by [`AUTHORITY`].
const CLIENT: &str = "-----BEGIN CERTIFICATE-----
MIIBJjCBzgIUBEhrLKJsiAcm4e1mL3dQPQQU8CcwCgYIKoZIzj0EAwIwFzEVMBMG
A1UEAwwMdjEgYXV0aG9yaXR5MCAXDTI2MTEyOTA2MTUwNFoYDzIxMjYxMTA1MDYx
NTA0WjAUMRIwEAYDVQQDDAl2MSBjbGllbnQwWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAASCaGkUpiM+h/IryPwN24YvPeiGk/YWnDctMjERp24iadXZT/8JfDs44nSf
hhZ+I0Qg+SwqxJazMV5jew9DEbM4MAoGCCqGSM49BAMCA0cAMEQCIA/2c1IEj8bK
NYs2UPoLB67hn+YNY6lmh6npHq4lxvuxAiAtixR+FIcx8thWjNJ0/5KKhV76HXiG
fbrn9whMJZhniw==
-----END CERTIFICATE-----
";
const CLIENT_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgNJwEmb6Yl6SbpytR
nKrGCUaFBzmESBA221HIvKVOhEOhRANCAASCaGkUpiM+h/IryPwN24YvPeiGk/YW
nDctMjERp24iadXZT/8JfDs44nSfhhZ+I0Qg+SwqxJazMV5jew9DEbM4
-----END PRIVATE KEY-----
";
/// Certificate of an authority, valid until 2126; signed by itself.
const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----
MIIBKjCB0QIUQBAb586mSaAJQuLZqltZdPWWdLcwCgYIKoZIzj0EAwIwFzEVMBMG
A1UEAwwMdjEgYXV0aG9yaXR5MCAXDTI2MTEyOTA2MTUwNFoYDzIxMjYxMTA1MDYx
NTA0WjAXMRUwEwYDVQQDDAx2MSBhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR/gQjIPsGXmHdBZtWtpz0vW+vpjGZMPmaCjTftU7gdouY/7zUvWSpx
HwS4TpLDh6R34MwRH4IZI5jDpX/VnZFzMAoGCCqGSM49BAMCA0gAMEUCIFoJiW0K
e6hf91AAnkcjx+nE3TMgPgz/d3dpHsF/rHmIAiEAlHcXwsLfv+9XBi5noJ/wWzoX
30bg+G7TxP5CxoYw7qY=
-----END CERTIFICATE-----
";
const AUTHORITY_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgpmyKIl57jUXxkfN+
DJDWGEdpWFTP0CfzLaYiSp5vpqGhRANCAAR/gQjIPsGXmHdBZtWtpz0vW+vpjGZM
PmaCjTftU7gdouY/7zUvWSpxHwS4TpLDh6R34MwRH4IZI5jDpX/VnZFz
-----END PRIVATE KEY-----
";

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Verifier that requires a certificate of the client, and accepts any.
#[derive(Debug)]
struct AnyClient;

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// Server of the host `hook.test` that requires a client certificate if `asks` is set.
fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    asks: bool,
) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if asks {
        builder.with_client_cert_verifier(Arc::new(AnyClient))
    } else {
        builder.with_no_client_auth()
    };
    // Not `with_single_cert`, which parses the certificate.
    let key = provider.key_provider.load_private_key(key).unwrap();
    let shown = rustls::sign::CertifiedKey::new(chain, key);
    let shown = Arc::new(rustls::sign::SingleCertAndKey::from(shown));
    TlsAcceptor::from(Arc::new(builder.with_cert_resolver(shown)))
}

/// Connects a hook's client. Returns the certificates that the server has received.
async fn connect(
    server: TlsAcceptor,
    trusted: &CertificateDer<'static>,
    identity: Option<Arc<dyn ResolvesClientCert>>,
) -> std::io::Result<Vec<CertificateDer<'static>>> {
    let client = tls::configuration(Some(std::slice::from_ref(trusted)), identity).unwrap();
    let (near, far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from("hook.test").unwrap();
    let connecting = TlsConnector::from(Arc::new(client)).connect(name, near);
    let (connected, accepted) = futures::join!(connecting, server.accept(far));
    connected?;
    let received = accepted?.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    Ok(received)
}

fn self_signed() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let certified = rcgen::generate_simple_self_signed(vec!["hook.test".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_der().try_into().unwrap();
    (certified.cert.der().clone(), key)
}

#[tokio::test]
async fn client_certificate_of_version_1_is_shown_to_the_hook() {
    let (trusted, its_key) = self_signed();
    let identity = tls::identity(vec![certificate(CLIENT)], key(CLIENT_KEY)).unwrap();

    let server = server(vec![trusted.clone()], its_key, true);
    let received = connect(server, &trusted, Some(identity)).await;

    assert_eq!(received.unwrap(), [certificate(CLIENT)]);
}

#[test]
fn key_of_another_certificate_is_refused_for_version_1_and_3() {
    let (other, its_key) = self_signed();
    assert!(tls::identity(vec![other.clone()], its_key).is_ok());
    for (chain, key) in [(certificate(CLIENT), key(AUTHORITY_KEY)), (other, key(CLIENT_KEY))] {
        let refused = tls::identity(vec![chain], key).unwrap_err();
        assert!(matches!(refused, rustls::Error::InconsistentKeys(_)), "{refused}");
    }
}

#[tokio::test]
async fn authority_of_version_1_is_trusted_if_a_bundle_has_it() {
    let authority_key = KeyPair::from_pem(AUTHORITY_KEY).unwrap();
    let mut authority = CertificateParams::default();
    authority.distinguished_name = rcgen::DistinguishedName::new();
    authority.distinguished_name.push(DnType::CommonName, "v1 authority");
    let issuer = Issuer::new(authority, authority_key);
    let own = KeyPair::generate().unwrap();
    let hook = CertificateParams::new(vec!["hook.test".to_owned()]).unwrap();
    let hook = hook.signed_by(&own, &issuer).unwrap().der().clone();

    let server = server(vec![hook], own.serialize_der().try_into().unwrap(), false);
    let received = connect(server, &certificate(AUTHORITY), None).await;

    assert_eq!(received.unwrap(), [], "the hook asks for no certificate");
}

#[tokio::test]
async fn server_certificate_of_version_1_is_refused_with_what_to_do() {
    let server = server(vec![certificate(CLIENT)], key(CLIENT_KEY), false);

    let refused = connect(server, &certificate(AUTHORITY), None).await.unwrap_err();

    let said = handshake::explain(&refused).unwrap();
    assert!(said.contains("version 1") && said.contains("subjectAltName"), "{said}");
}
