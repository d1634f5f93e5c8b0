//! Explanations of failed TLS handshakes.
//!
//! Messages are constant, unlike those of rustls, which hold the time of day: a repeated failure is
//! then one Event.

use std::error::Error;

use k8s_openapi::jiff::Timestamp;
use rustls::{
    AlertDescription, CertificateError, InvalidMessage, PeerIncompatible, pki_types::UnixTime,
};

use crate::redaction;

/// Returns an explanation if the error is a failed handshake and there is more to say than its own
/// message does.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the variants are another crate's, and the others speak for themselves"
)]
pub(super) fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    let error = redaction::chain(error).find_map(|error| error.downcast_ref::<rustls::Error>())?;
    Some(match error {
        rustls::Error::InvalidCertificate(certificate) => of_certificate(certificate)?,
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            format!("the server does not speak TLS; check whether the URL should be http ({error})")
        }
        rustls::Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13)
        | rustls::Error::PeerIncompatible(
            PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        )
        | rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            format!("the server speaks neither TLS 1.2 nor 1.3 ({error})")
        }
        _ => return None,
    })
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the variants are another crate's, and the others speak for themselves"
)]
fn of_certificate(error: &CertificateError) -> Option<String> {
    Some(match error {
        CertificateError::UnknownIssuer => {
            "its certificate has an unknown issuer: no authority that this machine trusts has \
             signed it"
                .to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate expired at {}", at(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}", at(*not_before))
        }
        // The error names the valid names.
        CertificateError::NotValidForNameContext { .. } => format!("its {error}"),
        error if is_unreadable(error) => {
            "its certificate cannot be read; one of X.509 version 1 names no server: make one with \
             a subjectAltName"
                .to_owned()
        }
        _ => return None,
    })
}

/// Returns whether a certificate was not read, because of its version or its encoding.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the variants are another crate's, and the others are about a certificate that was read"
)]
fn is_unreadable(error: &CertificateError) -> bool {
    match error {
        CertificateError::BadEncoding => true,
        // The error is webpki's, which rustls does not export: its only name is its debug text.
        CertificateError::Other(other) => format!("{:?}", other.0) == "UnsupportedCertVersion",
        _ => false,
    }
}

fn at(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "an invalid time".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use super::*;

    /// Explains an error that is wrapped as by a connector.
    fn explanation(error: rustls::Error) -> Option<String> {
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, error);
        explain(&io::Error::other(wrapped))
    }

    fn expired(now: u64) -> rustls::Error {
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(Duration::from_secs(now)),
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(1_000_000_000)),
        })
    }

    #[test]
    fn expired_certificate_has_the_same_message_each_time() {
        let message = explanation(expired(1_700_000_000)).unwrap();

        assert_eq!(message, "its certificate expired at 2001-09-09T01:46:40Z");
        assert_eq!(explanation(expired(1_700_000_001)).unwrap(), message);
    }

    #[test]
    fn clear_errors_are_not_reworded() {
        assert_eq!(explanation(rustls::Error::DecryptError), None);
        assert_eq!(explain(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }
}
