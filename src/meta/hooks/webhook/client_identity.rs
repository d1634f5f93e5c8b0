//! Client certificate of a hook, with its private key.
//!
//! The certificate is for the hook to judge. As in Go, it may be one of X.509 version 1, which
//! `openssl x509 -req` makes without extensions, and which webpki does not parse.

use std::sync::Arc;

use rustls::{
    Error, InconsistentKeys,
    client::ResolvesClientCert,
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::{CertifiedKey, SingleCertAndKey},
};

/// Tag of a SEQUENCE in DER.
const SEQUENCE: u8 = 0x30;
/// Tag of the version of a certificate; version 1 has none.
const VERSION: u8 = 0xA0;
/// Number of elements between the version of a certificate and its public key: serial number,
/// signature algorithm, issuer, validity and subject.
const BEFORE_PUBLIC_KEY: usize = 5;

/// Returns the identity that a client presents: its certificate with intermediates, and the key.
///
/// # Errors
///
/// If the private key cannot be used, or is not the one of the certificate.
pub(in crate::meta) fn identity(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<dyn ResolvesClientCert>, Error> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key)?;
    let certified = chain.first().and_then(|certificate| public_key(certificate));
    if let (Some(own), Some(certified)) = (key.public_key(), certified)
        && *own != *certified
    {
        return Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch));
    }
    Ok(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key))))
}

/// Returns the public key of a certificate: the DER of its SubjectPublicKeyInfo. `None` if the
/// certificate cannot be read so far.
fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    let certificate = first(certificate)?;
    let signed = first(certificate.content).filter(|it| it.tag == SEQUENCE)?;
    let mut field = first(signed.content)?;
    if field.tag == VERSION {
        field = first(field.rest)?;
    }
    for _ in 0..BEFORE_PUBLIC_KEY {
        field = first(field.rest)?;
    }
    (field.tag == SEQUENCE).then_some(field.whole)
}

/// Element of DER at the begin of some bytes.
struct Element<'a> {
    tag: u8,
    /// Tag, length and content.
    whole: &'a [u8],
    content: &'a [u8],
    /// Bytes behind it.
    rest: &'a [u8],
}

/// Returns the first element of some bytes of DER.
fn first(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, after) = bytes.split_first()?;
    let (&short, after) = after.split_first()?;
    let (length, after) = match short {
        0..0x80 => (usize::from(short), after),
        // The number of bytes in which the length follows; two reach 64 KiB.
        0x81 | 0x82 => {
            let (digits, after) = after.split_at_checked(usize::from(short - 0x80))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), after)
        }
        0x80 | 0x83.. => return None,
    };
    let (content, rest) = after.split_at_checked(length)?;
    Some(Element { tag, whole: &bytes[..bytes.len() - rest.len()], content, rest })
}
