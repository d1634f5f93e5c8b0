//! Credential: an `Authorization` header, a client certificate, or both.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use kube::{Config, client::ConfigExt, config::AuthInfo};
use rustls::client::ResolvesClientCert;

use crate::Error;

/// Credential that one source has issued.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Credential {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) certificate: Option<Certificate>,
}

/// Client certificate with its key.
#[derive(Clone, Debug)]
pub(super) struct Certificate(pub(super) Arc<dyn ResolvesClientCert>);

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Certificate {
    /// Parses the client certificate and the key of a kubeconfig's user that holds both as data.
    pub(super) fn parse(user: AuthInfo) -> Result<Self, Error> {
        let mut config = Config::new(http::Uri::from_static("https://localhost"));
        // No roots: only the client's half of the configuration is used.
        config.root_cert = Some(Vec::new());
        config.auth_info = user;
        let tls = config.rustls_client_config().map_err(|error| Error::Config(Arc::new(error)))?;
        Ok(Self(tls.client_auth_cert_resolver))
    }

    /// Parses a client certificate and its key, both PEM.
    pub(super) fn of_pem(certificate: &[u8], key: &[u8]) -> Result<Self, Error> {
        Self::parse(AuthInfo {
            client_certificate_data: Some(STANDARD.encode(certificate)),
            client_key_data: Some(STANDARD.encode(key).into()),
            ..AuthInfo::default()
        })
    }
}

/// Returns the value of `Authorization` for a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "the token has characters that a header cannot hold".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
